//! Listeners in other network namespaces than weir's own: those of containers, of `ip netns`, of the whole machine.
//!
//! The kernel says who begins to listen; `core::workload` decides which listener is about it. Then the listener is put in
//! force in the namespace of the socket. Nothing here holds a namespace: each is entered by a path, and known by its cookie.
//! What is found in weir's own namespace (a unit, a container of `--network host`) is a listener of the session
//! ([`Elsewhere::own`]).

mod changes;
mod due;
mod every;
mod own;
mod renew;
mod report;
mod scan;
mod scans;
mod service;
mod space;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weir_api::Event;
use weir_core::listener::Listener;
use weir_core::verdict::Counters;
use weir_core::workload::{Where, Workload, in_force};
use weir_kernel::{AttachedIn, FoundListener, Limits, Namespace, Notice};

use crate::daemon::backend::Spaces;
use crate::failure::{Failure, Result};

use changes::Changes;
use due::{Due, Pace, Why};
use own::{FoundOwn, OwnWorkloads};
use scans::Scans;
use space::{Space, news};
pub use world::{Machine, World};

/// Between two looks whether namespaces have ended, and at some of them.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Namespaces that are looked at in each of these once interfaces may have gone into any of them.
const HURRIED: usize = 32;
/// Namespaces that are put in order before who waits for an answer has it.
const AT_A_TIME: usize = 8;
/// For so long the start and a reload wait for them.
pub const SETTLES: Duration = Duration::from_secs(2);

/// Room for listeners in other namespaces, some 18 MiB of the kernel's memory and 1.2 MiB for each CPU, which a machine without
/// any does not take.
pub const LIMITS: Limits = Limits {
    namespaces: 1024,
    listeners: 4096,
    sockets: 2048,
};

/// Whether some of these listeners are elsewhere.
pub fn any(listeners: &[Listener]) -> bool {
    let mut listeners = listeners.iter();
    listeners.any(|listener| listener.location != Where::Here)
}

/// The listeners of other namespaces, and where they are in force.
pub struct Elsewhere {
    open: fn() -> Result<Box<dyn World>>,
    /// `None` while no listener is elsewhere.
    world: Option<Box<dyn World>>,
    /// The guard was loaded with room for other namespaces.
    has_room: bool,
    own: Namespace,
    /// Those of weir's own namespace, whatever is found.
    here: Vec<Listener>,
    /// The others, in the order of the file; then those that `every` has made.
    asked: Vec<Listener>,
    every: Option<Every>,
    /// Ports for which it had no room.
    left_out: BTreeSet<u16>,
    /// Sockets at ports of these, by their cookies.
    sockets: BTreeMap<u64, Socket>,
    spaces: BTreeMap<Namespace, Space>,
    /// Namespaces that are to be put in order.
    due: Due,
    /// Those that are to be taken out of the kernel half, which waits as long for one as for many.
    leaving: Vec<Namespace>,
    scans: Scans,
    look_at: Instant,
    pace: Pace,
    /// Where the next look goes on.
    next: Option<Namespace>,
    /// Interfaces of weir's own namespace have changed, and perhaps have gone into others: so many are still to be looked at.
    moved: usize,
    /// What was counted in namespaces that have ended, by listener.
    gone: BTreeMap<String, Counters>,
    /// What has become of listeners there.
    changes: Changes,
    own_workloads: OwnWorkloads,
    /// Something may be otherwise than before the last turn.
    has_news: bool,
    /// When these are looked at next.
    own_look_at: Instant,
    /// What could not be put in force in weir's own namespace, and is not tried again and again.
    pub refused: Option<Vec<Listener>>,
}

/// What makes a listener for each port at which somebody listens in such a place (`weir protect all --where`).
pub struct Every {
    /// Where.
    pub location: Where,
    /// The listener of a port.
    pub listener: Box<dyn Fn(u16) -> Listener>,
}

/// A listening socket of a workload.
struct Socket {
    found: FoundListener,
    workload: Workload,
    /// It listens still. One that has ceased to is kept, since its server may be starting again, until another one has its
    /// port.
    listens: bool,
}

impl Socket {
    /// It has listened, and all that matters of it is as it was.
    fn is_still(&self, found: &FoundListener, workload: &Workload) -> bool {
        let of = |one: &FoundListener| (one.pid, one.ip, one.port);
        self.listens && of(&self.found) == of(found) && self.workload == *workload
    }
}

impl Elsewhere {
    /// No listener yet. `own` is weir's own namespace.
    pub fn none(
        open: fn() -> Result<Box<dyn World>>,
        own: Namespace,
        has_room: bool,
        now: Instant,
    ) -> Elsewhere {
        Elsewhere {
            open,
            world: None,
            has_room,
            own,
            here: Vec::new(),
            asked: Vec::new(),
            every: None,
            left_out: BTreeSet::new(),
            sockets: BTreeMap::new(),
            spaces: BTreeMap::new(),
            due: Due::default(),
            leaving: Vec::new(),
            scans: Scans::none(now),
            look_at: now,
            pace: Pace::default(),
            next: None,
            moved: 0,
            gone: BTreeMap::new(),
            changes: Changes::none(now),
            own_workloads: OwnWorkloads::default(),
            has_news: false,
            own_look_at: now,
            refused: None,
        }
    }

    /// Has these listeners in force from now on; those of other namespaces when they are next [put in order](Self::work).
    /// [`Elsewhere::own`] are then those of weir's own.
    ///
    /// # Errors
    /// The guard has no room for other namespaces, or the kernel does not say who listens. Then nothing has changed.
    pub fn set(&mut self, listeners: &[Listener], kernel: &mut impl Spaces) -> Result<()> {
        let is_here = |listener: &&Listener| listener.location == Where::Here;
        let (here, asked): (Vec<_>, Vec<_>) = listeners.iter().partition(is_here);
        let asked: Vec<Listener> = asked.into_iter().cloned().collect();
        let is_nobody = asked.is_empty() && self.every.is_none();
        let found = match is_nobody {
            true => Vec::new(),
            false => self.open_world()?.listeners()?,
        };
        self.here = here.into_iter().cloned().collect();
        self.asked = asked;
        let names: BTreeSet<&str> = self.asked.iter().map(|l| l.name.as_str()).collect();
        self.gone.retain(|name, _| names.contains(&**name));
        if is_nobody {
            self.world = None;
            let spaces = std::mem::take(&mut self.spaces);
            self.changes.say(spaces.values().flat_map(Space::end));
            self.changes.say(self.own_workloads.end());
            self.leaving.extend(spaces.into_keys());
            (self.sockets, self.due) = Default::default();
            self.let_go(kernel);
            return Ok(());
        }
        self.ask_for_new(&found);
        // Other ports may be of interest now.
        let ports: BTreeSet<u16> = self.asked.iter().map(|l| l.address.port).collect();
        self.sockets
            .retain(|_, one| ports.contains(&one.found.port));
        self.note(found);
        for one in self.sockets.values().filter(|one| one.listens) {
            self.due.add(one.found.namespace, Why::Listens);
        }
        let sockets = self.sockets.values().map(|one| one.found.namespace);
        self.due.look_at(self.spaces.keys().copied().chain(sockets));
        Ok(())
    }

    fn open_world(&mut self) -> Result<&dyn World> {
        if !self.has_room {
            let message = "weir was started without a listener in other network namespaces, so that it has no room for any";
            let hint = "start weir again: it makes the room at its start, when the file has a listener with `where`";
            return Err(Failure::failed(message, hint));
        }
        let world = match self.world.take() {
            Some(world) => world,
            None => {
                self.scans.lost = 0;
                (self.open)()?
            }
        };
        Ok(&**self.world.insert(world))
    }

    /// The listeners that were asked for in other places than here, in the order of the file.
    pub fn asked(&self) -> &[Listener] {
        &self.asked
    }

    /// All that were asked for, those of weir's own namespace first.
    pub fn all(&self) -> Vec<Listener> {
        self.here.iter().chain(&self.asked).cloned().collect()
    }

    /// The listeners of weir's own namespace: those that are asked for here, and those that are about a socket here.
    pub fn own(&self) -> Vec<Listener> {
        let sockets = self.sockets_in(self.own);
        let found = in_force(&self.asked, &addresses(&sockets)).into_iter();
        let free = |listener: &&Listener| {
            let mut here = self.here.iter();
            !here.any(|own| own.address.conflicts(&listener.address))
        };
        let found = found.map(|(listener, _)| listener).filter(free);
        self.here.iter().chain(found).cloned().collect()
    }

    /// What those are called who listen at this port, anywhere, as `--where` takes it.
    pub fn names_at(&self, port: u16) -> Vec<String> {
        let sockets = self.sockets.values();
        let sockets = sockets.filter(|one| one.listens && one.found.port == port);
        let names = sockets.filter_map(|one| Some(one.workload.place()?.to_string()));
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    /// The socket here that a listener is about.
    fn own_socket(&self, listener: &Listener) -> Option<&Socket> {
        let sockets = self.sockets_in(self.own);
        let found = in_force(std::slice::from_ref(listener), &addresses(&sockets));
        found.first().map(|(_, at)| sockets[*at])
    }

    /// Readable when somebody has begun or ceased to listen.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.world.as_ref().map(|world| world.fd())
    }

    /// When there is work without that.
    pub fn due_at(&self) -> Option<Instant> {
        if self.changes.is_empty() {
            self.world.as_ref()?;
        }
        Some(match self.due.is_empty() && self.changes.is_empty() {
            true => self
                .scans
                .due_at()
                .into_iter()
                .fold(self.look_at, Instant::min),
            // It was due before.
            false => self.look_at.checked_sub(LOOK_EVERY)?,
        })
    }

    /// Interfaces of weir's own namespace have come or gone: perhaps from or into another one.
    pub fn links_changed(&mut self) {
        self.moved = self.spaces.len();
    }

    /// Follows what has happened.
    pub fn work(&mut self, kernel: &mut impl Spaces, now: Instant) {
        let Some(world) = &self.world else {
            // Else it would be told of for ever.
            drop(kernel.attached());
            return;
        };
        self.take(world.notices(), now);
        self.scan_if_due(now);
        self.has_news = now >= self.look_at;
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.let_go(kernel);
            self.look(kernel, now);
        }
        self.put_in_order(kernel, now);
    }

    /// Whether the last turn of [`Elsewhere::work`] may have changed something; it says so once a second at least.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Puts namespaces in order that are due, until this time: at the start and after a reload, so that most are in force
    /// when it is said.
    pub fn settle(&mut self, kernel: &mut impl Spaces, until: Instant) {
        loop {
            let now = Instant::now();
            self.put_in_order(kernel, now);
            let is_under_way = self.spaces.values().any(Space::is_under_way);
            let is_settled = self.due.is_empty() && !is_under_way;
            if self.due.is_empty() {
                self.let_go(kernel);
            }
            let Some(left) = until.checked_duration_since(now).filter(|_| !is_settled) else {
                return;
            };
            if self.due.is_empty() && !wait_for(kernel, left) {
                return;
            }
        }
    }

    /// Puts weir before all others again where one has gone before it, because somebody asks.
    pub fn go_first(&self, kernel: &mut impl Spaces) {
        for (namespace, space) in &self.spaces {
            for (index, name) in &space.attached {
                if let Err(error) = kernel.go_first_in(&space.path, *namespace, *index) {
                    tracing::warn!("interface {name} in another namespace: {error}");
                }
            }
        }
    }

    fn put_in_order(&mut self, kernel: &mut impl Spaces, now: Instant) {
        let (mut seen, mut ready) = (Vec::new(), Vec::new());
        for _ in 0..AT_A_TIME {
            let Some((namespace, why)) = self.due.pop() else {
                break;
            };
            let begun = Instant::now();
            if self.renew(kernel, namespace, now) {
                ready.push(namespace);
                if why == Why::Look {
                    tracing::debug!("a look at net-{} has found news", namespace.cookie());
                }
            }
            seen.push(namespace);
            // Who has begun to listen waits for no looks: neither behind them, nor to be put in force together with them.
            if why == Why::Look {
                self.pace.took(begun.elapsed());
                self.hear(now);
            }
            if self.due.is_urgent_next() != (why == Why::Listens) {
                break;
            }
        }
        if !ready.is_empty()
            && let Err(error) = kernel.put_in_force()
        {
            self.not_put_in_force(&ready, &error);
        }
        seen.extend(self.take_attached(kernel));
        self.has_news |= !seen.is_empty();
        for namespace in seen {
            self.tell_of(namespace);
        }
    }

    /// Takes in who has begun or ceased to listen.
    fn hear(&mut self, now: Instant) {
        if let Some(world) = &self.world {
            self.take(world.notices(), now);
        }
    }

    /// Says which servers of weir's own namespace have come and gone, if it is time, once the session guards those that have come.
    pub fn look_at_own(&mut self, now: Instant) {
        if self.refused.is_some() || now < self.own_look_at {
            return;
        }
        self.own_look_at = now + LOOK_EVERY;
        let sockets = self.sockets_in(self.own);
        let found = in_force(&self.asked, &addresses(&sockets)).into_iter();
        let own = |(listener, at): (&Listener, usize)| {
            let name = sockets[at].workload.name(&listener.location)?;
            let port = listener.address.port;
            let mut its = sockets.iter().filter(|one| one.found.port == port);
            Some(FoundOwn {
                label: format!("{}@{name}", listener.name),
                address: listener.address,
                listens: its.any(|one| one.listens),
            })
        };
        let found: Vec<FoundOwn> = found.filter_map(own).collect();
        self.changes.say(self.own_workloads.take(&found, now));
    }

    /// The events of what has become of listeners there since the last call.
    pub fn events(&mut self, now: Instant) -> Vec<Event> {
        self.changes.events(now)
    }

    fn not_put_in_force(&mut self, namespaces: &[Namespace], error: &weir_kernel::Error) {
        for namespace in namespaces {
            if let Some(space) = self.spaces.get_mut(namespace) {
                space.not_applied(error.to_string());
            }
        }
    }

    /// Gives the namespaces of which there is news.
    fn take_attached(&mut self, kernel: &mut impl Spaces) -> Vec<Namespace> {
        let mut news = Vec::new();
        for AttachedIn {
            namespace,
            ifindex,
            outcome,
        } in kernel.attached()
        {
            if let Some(space) = self.spaces.get_mut(&namespace) {
                space.attached_to(ifindex, outcome);
                news.push(namespace);
            }
        }
        news
    }

    /// Says what has changed there, once nothing is under way.
    fn tell_of(&mut self, namespace: Namespace) {
        let Some(space) = self.spaces.get(&namespace) else {
            return;
        };
        if space.is_under_way() {
            return;
        }
        // It may have ended meanwhile, which is no trouble: the next look sees it.
        let has_ended = space.trouble.is_some() && self.look_into(&space.path, namespace).is_err();
        if !has_ended && let Some(space) = self.spaces.get_mut(&namespace) {
            self.changes.say(news(space));
        }
    }

    /// Takes namespaces out of the kernel half, together.
    fn let_go(&mut self, kernel: &mut impl Spaces) {
        if !self.leaving.is_empty() {
            kernel.remove(&std::mem::take(&mut self.leaving));
        }
    }

    fn take(&mut self, notices: Vec<Notice>, now: Instant) {
        let mut begun = Vec::new();
        for notice in notices {
            match notice {
                Notice::Listens(found) => begun.push(found),
                Notice::Ceased { socket, .. } => {
                    self.note(std::mem::take(&mut begun));
                    self.ceased(socket, now);
                }
            }
        }
        self.note(begun);
    }

    /// A socket listens no more. Where nothing is in force, it is not of interest.
    fn ceased(&mut self, socket: u64, now: Instant) {
        let Some(one) = self.sockets.get_mut(&socket) else {
            return;
        };
        one.listens = false;
        let at = one.found.namespace;
        let listens = self.has_listening(at);
        match self.spaces.get_mut(&at) {
            Some(space) if !listens => drop(space.silent_since.get_or_insert(now)),
            None if at != self.own => drop(self.sockets.remove(&socket)),
            _ => {}
        }
    }

    /// Notes those of them that listen at ports of interest.
    fn note(&mut self, mut found: Vec<FoundListener>) {
        // Its port is chosen a moment later.
        for one in found.iter().filter(|one| one.port == 0) {
            self.scans.add_unused(one);
        }
        self.ask_for_new(&found);
        found.retain(|one| self.asked.iter().any(|l| l.address.port == one.port));
        let Some(world) = &self.world else { return };
        let workloads = world.workloads(&found).into_iter();
        let mut known = Vec::new();
        for (found, workload) in found.into_iter().zip(workloads) {
            match workload {
                Some(workload) => known.push((found, workload)),
                // Another process may have the socket of one that has ended.
                None => self.scans.add_unused(&found),
            }
        }
        let place = |found: &FoundListener| (found.namespace, found.port);
        let taken: BTreeSet<_> = known.iter().map(|(found, _)| place(found)).collect();
        self.sockets
            .retain(|_, one| one.listens || !taken.contains(&place(&one.found)));
        for (found, workload) in known {
            let at = found.namespace;
            let before = self.sockets.get(&found.socket);
            let is_known = before.is_some_and(|one| one.is_still(&found, &workload));
            if !is_known {
                self.due.add(at, Why::Listens);
            }
            if let Some(space) = self.spaces.get_mut(&at) {
                space.silent_since = None;
            }
            let socket = Socket {
                found,
                workload,
                listens: true,
            };
            self.sockets.insert(socket.found.socket, socket);
        }
    }

    /// Looks what has changed that nobody has told.
    fn look(&mut self, kernel: &impl Spaces, now: Instant) {
        self.look_for_ended(kernel, now);
        self.look_for_silent(now);
        let count = match self.moved {
            0 => self.pace.looks(),
            many => many.min(HURRIED),
        };
        self.moved = self.moved.saturating_sub(HURRIED);
        let from = self.next.unwrap_or(Namespace::with_cookie(0));
        let behind = self.spaces.range(from..).chain(self.spaces.range(..from));
        let off = behind.clone().filter(|(_, space)| space.is_off());
        let again = self.pace.looks().min(AT_A_TIME);
        self.due.look_at(off.take(again).map(|(at, _)| *at));
        let mut some = behind.map(|(namespace, _)| *namespace);
        self.due.look_at(some.by_ref().take(count));
        self.next = some.next();
    }

    /// A namespace in which somebody listens cannot end.
    fn look_for_ended(&mut self, kernel: &impl Spaces, now: Instant) {
        let listening = self.sockets.values().filter(|one| one.listens);
        let listening: BTreeSet<Namespace> = listening.map(|one| one.found.namespace).collect();
        let mut ended = Vec::new();
        for (namespace, space) in &mut self.spaces {
            if listening.contains(namespace) {
                space.silent_since = None;
                continue;
            }
            space.silent_since.get_or_insert(now);
            if kernel.devices_in(*namespace).is_empty() {
                ended.push(*namespace);
            }
        }
        // What could not be attached to is no sign.
        for namespace in ended {
            match self.spaces[&namespace].attached.is_empty() {
                true => self.due.add(namespace, Why::Look),
                false => self.end(kernel, namespace),
            }
        }
    }

    /// A server may have ended for good in a namespace that goes on: one of several of a pod.
    fn look_for_silent(&mut self, now: Instant) {
        let listening = self.sockets.values().filter(|one| one.listens);
        let at = |one: &Socket| (one.found.namespace, one.found.port);
        let listening: BTreeSet<(Namespace, u16)> = listening.map(at).collect();
        for (namespace, space) in &mut self.spaces {
            let listens = |port| listening.contains(&(*namespace, port));
            self.changes.say(space.hear(listens, now));
        }
    }

    fn sockets_in(&self, namespace: Namespace) -> Vec<&Socket> {
        let all = self.sockets.values();
        all.filter(|one| one.found.namespace == namespace).collect()
    }

    /// Takes a namespace out: it has ended, or no listener is about it any more.
    fn end(&mut self, kernel: &impl Spaces, namespace: Namespace) {
        self.sockets
            .retain(|_, one| one.listens || one.found.namespace != namespace);
        let Some(space) = self.spaces.remove(&namespace) else {
            return;
        };
        for replica in &space.replicas {
            self.keep_counters(kernel, namespace, &replica.asked.name);
        }
        self.changes.say(space.end());
        self.leaving.push(namespace);
    }

    fn keep_counters(&mut self, kernel: &impl Spaces, namespace: Namespace, listener: &str) {
        if let Ok(counters) = kernel.counters_in(namespace, listener) {
            self.gone
                .entry(listener.to_owned())
                .or_default()
                .add(&counters);
        }
    }
}

/// Until there is something [attached](Spaces::attached), or for so long; whether there may be.
fn wait_for(kernel: &impl Spaces, time: Duration) -> bool {
    let Some(fd) = kernel.attached_fd() else {
        return false;
    };
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    poll(&mut fds, timeout).is_ok_and(|count| count > 0)
}

fn addresses<'a>(sockets: &[&'a Socket]) -> Vec<(&'a Workload, SocketAddr)> {
    let address = |one: &&'a Socket| {
        let at = SocketAddr::new(one.found.ip, one.found.port);
        (&one.workload, at)
    };
    sockets.iter().map(address).collect()
}

#[cfg(test)]
mod tests;
