//! How a namespace is put in order.

use std::time::Instant;

use weir_core::listener::Listener;
use weir_core::workload::in_force;
use weir_kernel::{Namespace, NamespacePath};

use super::space::{Replica, SILENT, Space, apply, attach, news};
use super::world::Inside;
use super::{Elsewhere, addresses};
use crate::daemon::backend::Spaces;
use crate::failure::{Failure, Result};

impl Elsewhere {
    /// Has ready what is to be in force in a namespace, and begins to attach to its interfaces. Whether there is anything that
    /// is to be put in force.
    pub(super) fn renew(
        &mut self,
        kernel: &mut impl Spaces,
        namespace: Namespace,
        now: Instant,
    ) -> bool {
        // The session has those of weir's own.
        if namespace == self.own {
            return false;
        }
        let replicas = self.replicas_in(namespace);
        if replicas.is_empty() {
            self.end(kernel, namespace);
            return false;
        }
        let (path, inside) = match self.enter(namespace) {
            Ok(entered) => entered,
            Err(failure) => {
                self.not_entered(kernel, namespace, replicas, &failure, now);
                return false;
            }
        };
        self.end_before(kernel, namespace, &replicas);
        self.forget_others(kernel, namespace, &replicas);
        if self.leaving.contains(&namespace) {
            self.let_go(kernel);
        }
        let space = self.spaces.entry(namespace);
        let space = space.or_insert_with(|| Space::new(path.clone()));
        space.path = path;
        space.set(replicas);
        space.trouble = None;
        space.is_missed = false;
        let ready = apply(space, kernel, namespace, &inside);
        match ready {
            // The program is on its way meanwhile, and lets all pass as long as nothing is in force.
            Ok(_) => attach(space, kernel, namespace, &inside),
            Err(ref error) => space.trouble = Some(error.to_string()),
        }
        ready.unwrap_or(false)
    }

    /// The listeners that are to be in force there.
    fn replicas_in(&self, namespace: Namespace) -> Vec<Replica> {
        let sockets = self.sockets_in(namespace);
        let found = in_force(&self.asked, &addresses(&sockets)).into_iter();
        let replica = |(asked, at): (&Listener, usize)| {
            let workload = sockets[at].workload.clone();
            let name = workload.name(&asked.location).map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("net-{}", namespace.cookie()));
            Replica {
                label: self.label(namespace, asked, &name),
                name,
                workload,
                asked: asked.clone(),
                fallback: None,
                because: None,
            }
        };
        found.map(replica).collect()
    }

    /// `web@web-1`, and with the namespace if a living one has that already.
    fn label(&self, namespace: Namespace, listener: &Listener, name: &str) -> String {
        let label = format!("{}@{name}", listener.name);
        let mut others = self.spaces.iter().filter(|(other, _)| **other != namespace);
        let has = |space: &Space| space.replicas.iter().any(|one| one.label == label);
        match others.any(|(other, space)| has(space) && self.has_listening(*other)) {
            true => format!("{label}#{}", namespace.cookie()),
            false => label,
        }
    }

    pub(super) fn has_listening(&self, namespace: Namespace) -> bool {
        self.sockets_in(namespace).iter().any(|one| one.listens)
    }

    /// By the name that outlives processes, else by a process that has the socket.
    fn enter(&self, namespace: Namespace) -> Result<(NamespacePath, Inside)> {
        let sockets = self.sockets_in(namespace);
        let names = sockets.iter().filter_map(|one| one.workload.netns.as_ref());
        let names = names.map(|name| NamespacePath::named(name));
        let pids = sockets.iter().filter(|one| one.listens);
        let pids = pids.map(|one| NamespacePath::of_process(one.found.pid));
        let before = self.spaces.get(&namespace).map(|space| space.path.clone());
        let mut failure = None;
        for path in names.chain(pids).chain(before) {
            match self.look_into(&path, namespace) {
                Ok(inside) => return Ok((path, inside)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| Failure::failed("no process is known in it", "")))
    }

    pub(super) fn look_into(&self, path: &NamespacePath, at: Namespace) -> Result<Inside> {
        match &self.world {
            Some(world) => world.look(path, at),
            None => Err(Failure::failed("nothing is guarded elsewhere", "")),
        }
    }

    /// It has ended, or cannot be entered: what is in force there stays until its interfaces have gone. One that outlives it
    /// is another namespace's by now, so that they say nothing once nobody has listened there for a while.
    fn not_entered(
        &mut self,
        kernel: &impl Spaces,
        namespace: Namespace,
        replicas: Vec<Replica>,
        failure: &Failure,
        now: Instant,
    ) {
        let listens = self.has_listening(namespace);
        // Perhaps another process has the socket.
        self.scans.again |= listens;
        let space = self.spaces.get(&namespace);
        let silent_since = space.and_then(|space| space.silent_since);
        let is_silent = silent_since.is_some_and(|since| now >= since + SILENT);
        match (kernel.devices_in(namespace).is_empty(), listens) {
            (false, false) if is_silent => return self.end(kernel, namespace),
            (false, true) => return self.is_missed(namespace),
            (false, false) => return,
            (true, false) => return self.end(kernel, namespace),
            (true, true) => {}
        }
        let space = self.spaces.entry(namespace);
        let space = space.or_insert_with(|| Space::new(NamespacePath::at("")));
        space.set(replicas);
        space.turn_off(failure.to_string());
        self.changes.say(news(space));
    }

    /// Who has begun to listen there is not guarded before it can be entered again.
    fn is_missed(&mut self, namespace: Namespace) {
        if let Some(space) = self.spaces.get_mut(&namespace) {
            space.is_missed = true;
        }
    }

    /// A container that was started again has another namespace: the one before is of nobody now.
    fn end_before(&mut self, kernel: &impl Spaces, at: Namespace, replicas: &[Replica]) {
        let same = |space: &Space| {
            let mut labels = space.replicas.iter().map(|one| &one.label);
            labels.any(|label| replicas.iter().any(|new| new.label == *label))
        };
        let others = self.spaces.iter().filter(|(other, _)| **other != at);
        let before: Vec<Namespace> = others
            .filter(|(other, space)| same(space) && !self.has_listening(**other))
            .map(|(other, _)| *other)
            .collect();
        for namespace in before {
            self.end(kernel, namespace);
        }
    }

    /// Keeps the counters of listeners that are in force there no more, and says that these are off.
    fn forget_others(&mut self, kernel: &impl Spaces, at: Namespace, replicas: &[Replica]) {
        let Some(space) = self.spaces.get(&at) else {
            return;
        };
        let is_gone = |label: &str| !replicas.iter().any(|one| one.label == label);
        self.changes.say(space.off(is_gone));
        let stays = |name: &str| replicas.iter().any(|one| one.asked.name == name);
        let names = space.replicas.iter().map(|one| one.asked.name.clone());
        let gone: Vec<String> = names.filter(|name| !stays(name)).collect();
        for name in gone {
            self.keep_counters(kernel, at, &name);
        }
    }
}
