//! What is said of listeners in other namespaces: each workload, and the sums over them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_core::forecast::Rule;
use weir_core::listener::{Listener, Mode};
use weir_core::quic::QuicListener;
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
use weir_core::word::Word;
use weir_core::workload::Workload;
use weir_kernel::{ListenSocket, Namespace, NamespacePath};

use super::Elsewhere;
use super::space::{Replica, Space};
use crate::daemon::backend::Spaces;
use crate::daemon::quic::Sight;
use crate::daemon::report::counters_by_name;
use crate::daemon::session::{Glance, accepts, settings_beside, waits_too_long};
use crate::failure::Result;
use crate::host::sockets::serving;
use crate::show::describe;

impl Elsewhere {
    /// Every listener in every other namespace, in short, by its label.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn glances(&self, kernel: &impl Spaces) -> Result<Vec<Glance>> {
        let mut glances = Vec::new();
        for (namespace, space) in &self.spaces {
            let sockets = sockets(kernel, *namespace, space);
            for replica in space.replicas.iter().filter(|one| one.because.is_none()) {
                // A policy that has not got there yet has counted nothing.
                if let Ok(counters) = kernel.counters_in(*namespace, &replica.asked.name) {
                    glances.push(glance(replica, &counters, &its(replica, space, &sockets)));
                }
            }
        }
        Ok(glances)
    }

    /// The same refusal with the label of its listener, if it was in another namespace than weir's own.
    pub fn named(&self, at: Option<Namespace>, refusal: Refusal) -> Refusal {
        let space = at.and_then(|at| self.spaces.get(&at));
        let replicas = space.map_or(&[][..], |space| &space.replicas);
        let mut replicas = replicas.iter();
        match replicas.find(|one| one.asked.name == *refusal.listener) {
            Some(replica) => Refusal {
                listener: Arc::from(&*replica.label),
                ..refusal
            },
            None => refusal,
        }
    }

    /// The labels of a listener's workloads.
    pub fn labels<'a>(&'a self, listener: &'a str) -> impl Iterator<Item = &'a str> {
        let replicas = self.spaces.values().flat_map(|space| &space.replicas);
        let its = replicas.filter(move |one| one.asked.name == listener);
        its.map(|one| &*one.label)
    }

    /// The label of a listener in another namespace, by its cookie.
    pub fn label_at(&self, cookie: u64, listener: &str) -> Option<&str> {
        let mut spaces = self.spaces.iter();
        let (_, space) = spaces.find(|(namespace, _)| namespace.cookie() == cookie)?;
        let mut replicas = space.replicas.iter();
        let its = replicas.find(|one| one.asked.name == listener);
        its.map(|one| &*one.label)
    }

    /// Where the server of a QUIC listener of another place may be: with the servers of the listener of the same place and
    /// port, also those that are not guarded yet. `None`: in weir's own namespace.
    pub fn places_of(&self, quic: &QuicListener) -> Vec<Option<(Namespace, &NamespacePath)>> {
        let has = |space: &Space| space.replicas.iter().any(|one| quic.goes_with(&one.asked));
        let others = self.spaces.iter().filter(|(_, space)| has(space));
        let others = others.map(|(namespace, space)| Some((*namespace, &space.path)));
        let own = self.own().iter().any(|listener| quic.goes_with(listener));
        others.chain(own.then_some(None)).collect()
    }

    /// Where QUIC listeners are to be in force: with the listeners of the same place and port.
    pub fn sights(&self, quic: &[QuicListener]) -> Vec<Sight> {
        let others = self.spaces.iter().map(|(namespace, space)| {
            let replicas = space.replicas.iter();
            // While one more interface is attached to, the others stay as they are.
            let is_on = |one: &&Replica| one.because.is_none() && !space.attached.is_empty();
            let replicas = replicas.filter(is_on);
            let listeners = quic.iter().filter_map(|one| {
                let mut its = replicas.clone().filter(|it| one.goes_with(&it.asked));
                Some((one.name.clone(), its.next()?.name.clone()))
            });
            Sight {
                namespace: *namespace,
                path: Some(space.path.clone()),
                interfaces: space.attached.clone(),
                listeners: listeners.collect(),
            }
        });
        let own = self.own();
        let own = quic
            .iter()
            .filter(|one| one.is_elsewhere())
            .filter_map(|one| {
                let asked = own.iter().find(|listener| one.goes_with(listener))?;
                let workload = self.own_socket(asked).map(|socket| &socket.workload);
                let name = workload.and_then(|workload| workload.name(&asked.location));
                Some((one.name.clone(), name.unwrap_or("here").to_owned()))
            });
        let own = Sight {
            namespace: self.own,
            path: None,
            interfaces: BTreeMap::new(),
            listeners: own.collect(),
        };
        let all = others.chain([own]);
        all.filter(|sight| !sight.listeners.is_empty()).collect()
    }

    /// What each listener has counted in all other namespaces.
    pub fn totals(&self, kernel: &impl Spaces) -> Vec<(&Listener, Counters)> {
        let total = |asked| (asked, self.total(kernel, asked));
        self.asked.iter().map(total).collect()
    }

    /// Whether some client may hold a cookie that it has not come back with.
    pub fn cookies_may_be_out(&self, kernel: &impl Spaces) -> bool {
        let totals = self.totals(kernel);
        let sends = |(l, counters): &(&Listener, Counters)| {
            l.mode == Mode::Enforce && counters.cookies_sent() > 0
        };
        totals.iter().any(sends)
    }

    /// What each listener has counted, everywhere. `own`: in weir's own namespace.
    pub fn with_totals<'a>(
        &'a self,
        kernel: &impl Spaces,
        mut own: Vec<(&'a Listener, Counters)>,
    ) -> Vec<(&'a Listener, Counters)> {
        for (asked, counters) in self.totals(kernel) {
            match own
                .iter_mut()
                .find(|(listener, _)| listener.name == asked.name)
            {
                Some((_, sum)) => sum.add(&counters),
                None => own.push((asked, counters)),
            }
        }
        own
    }

    fn total(&self, kernel: &impl Spaces, asked: &Listener) -> Counters {
        let mut sum = self.gone.get(&asked.name).copied().unwrap_or_default();
        for (namespace, space) in &self.spaces {
            let mut replicas = space.replicas.iter();
            if replicas.any(|one| one.asked.name == asked.name)
                && let Ok(counters) = kernel.counters_in(*namespace, &asked.name)
            {
                sum.add(&counters);
            }
        }
        sum
    }

    /// A listener with its workloads. `own`: it in weir's own namespace, if it is in force there.
    pub fn report(
        &self,
        kernel: &impl Spaces,
        asked: &Listener,
        own: Option<weir_api::Listener>,
    ) -> weir_api::Listener {
        let mut counters = self.total(kernel, asked);
        let mut workloads = Vec::new();
        if let Some(own) = &own {
            counters.add(&counters_of(&own.counters));
            workloads.push(self.own_workload(asked, own));
        }
        let mut longest = own.as_ref().and_then(|own| own.service_us);
        for (namespace, space) in &self.spaces {
            let mut replicas = space.replicas.iter();
            let Some(replica) = replicas.find(|one| one.asked.name == asked.name) else {
                continue;
            };
            let sockets = sockets(kernel, *namespace, space);
            let sockets = its(replica, space, &sockets);
            let service = sockets.iter().filter_map(|socket| socket.service).max();
            longest = longest.max(service.map(micros));
            let counted = kernel.counters_in(*namespace, &asked.name);
            let counted = counted.unwrap_or_default();
            workloads.push(workload(*namespace, space, replica, &sockets, &counted));
        }
        workloads.sort_by(|one, other| one.name.cmp(&other.name));
        let not_in_force_because = self.because(asked, &workloads);
        let sum = |of: fn(&weir_api::Workload) -> u32| workloads.iter().map(of).sum();
        weir_api::Listener {
            name: asked.name.clone(),
            address: asked.address.to_string(),
            mode: asked.mode.word().to_owned(),
            policy: describe::policy(asked),
            in_force: not_in_force_because.is_none(),
            not_in_force_because,
            listening: workloads.iter().any(|one| one.listening),
            queue_length: sum(|one| one.queue_length),
            queue_limit: sum(|one| one.queue_limit),
            half_open: sum(|one| one.half_open),
            queue_way: "fifo".to_owned(),
            wait_us: workloads.iter().filter_map(|one| one.wait_us).max(),
            service_us: longest,
            timewait_mode: asked.timewait.word().to_owned(),
            residence_mode: "off".to_owned(),
            counters: counters_by_name(&counters),
            settings: settings_beside(asked),
            workloads,
            ..weir_api::Listener::default()
        }
    }

    /// Why a listener is not in force everywhere that it is to be.
    fn because(&self, asked: &Listener, workloads: &[weir_api::Workload]) -> Option<String> {
        let new = self.due.iter().filter(|at| !self.spaces.contains_key(at));
        let is_about = |at: &&Namespace| {
            let sockets = self.sockets_in(**at);
            let mut workloads = sockets.iter().map(|one| &one.workload);
            **at != self.own && workloads.any(|one| asked.location.matches(one))
        };
        let new = new.filter(is_about).count();
        if new > 0 {
            let new = describe::count(new, "network namespace");
            return Some(format!("weir is about to enter {new}"));
        }
        if workloads.is_empty() {
            let (place, port) = (asked.location.describe(), asked.address.port);
            return Some(format!("nothing listens on port {port} in {place} yet"));
        }
        let off = workloads.iter().filter(|one| !one.in_force);
        let off: Vec<&weir_api::Workload> = off.collect();
        let first = off.first()?;
        let why = first.not_in_force_because.as_deref().unwrap_or_default();
        Some(match off.len() {
            1 => format!("{}: {why}", first.name),
            n => format!("{}: {why}; and {} more", first.name, n - 1),
        })
    }

    fn own_workload(&self, asked: &Listener, own: &weir_api::Listener) -> weir_api::Workload {
        let workload = self.own_socket(asked).map(|one| one.workload.clone());
        let workload = workload.unwrap_or_default();
        let name = workload.name(&asked.location).unwrap_or("here").to_owned();
        weir_api::Workload {
            netns_cookie: self.own.cookie(),
            in_force: own.in_force,
            not_in_force_because: own.not_in_force_because.clone(),
            listening: own.listening,
            queue_length: own.queue_length,
            queue_limit: own.queue_limit,
            half_open: own.half_open,
            wait_us: own.wait_us,
            fallback: own.fallback.clone(),
            fallback_because: own.fallback_because.clone(),
            attached_to: Vec::new(),
            counters: own.counters.clone(),
            ..called(name, &workload)
        }
    }
}

fn called(name: String, workload: &Workload) -> weir_api::Workload {
    let container = workload.container.as_ref();
    weir_api::Workload {
        name,
        runtime: container.map(|container| container.runtime.name().to_owned()),
        container_id: container.map(|container| container.id.clone()),
        unit: workload.unit.clone(),
        netns: workload.netns.clone(),
        pod: workload.pod.as_ref().and_then(|pod| pod.name.clone()),
        ..weir_api::Workload::default()
    }
}

fn workload(
    namespace: Namespace,
    space: &Space,
    replica: &Replica,
    sockets: &[&ListenSocket],
    counters: &Counters,
) -> weir_api::Workload {
    let because = space.because_of(replica);
    let fallback = replica.fallback.clone();
    let (fallback, fallback_because) = fallback.map(|f| (f.policy, f.because)).unzip();
    weir_api::Workload {
        netns_cookie: namespace.cookie(),
        in_force: because.is_none(),
        not_in_force_because: because,
        listening: !sockets.is_empty(),
        queue_length: sockets.iter().map(|s| s.queue_length).sum(),
        queue_limit: sockets.iter().map(|s| s.queue_limit).sum(),
        half_open: sockets.iter().map(|s| s.half_open).sum(),
        wait_us: sockets.iter().filter_map(|s| s.wait).max().map(micros),
        fallback,
        fallback_because,
        attached_to: space.attached.values().cloned().collect(),
        counters: counters_by_name(counters),
        ..called(replica.name.clone(), &replica.workload)
    }
}

/// None where the namespace cannot be entered (any more). Where nobody listens it is not entered, since it may be ending.
fn sockets(kernel: &impl Spaces, at: Namespace, space: &Space) -> Vec<ListenSocket> {
    if space.silent_since.is_some() {
        return Vec::new();
    }
    kernel.sockets_in(&space.path, at).unwrap_or_default()
}

/// The sockets that serve a listener there.
fn its<'a>(replica: &Replica, space: &Space, sockets: &'a [ListenSocket]) -> Vec<&'a ListenSocket> {
    let all = space.replicas.iter().map(|one| one.asked.clone());
    serving(&replica.asked, &all.collect::<Vec<_>>(), sockets)
}

fn glance(replica: &Replica, counters: &Counters, sockets: &[&ListenSocket]) -> Glance {
    let asked = &replica.asked;
    let rule = Rule::from(asked);
    let too_long =
        |socket: &&ListenSocket| waits_too_long(socket, rule.target, asked.least_length.into());
    Glance {
        name: replica.label.clone(),
        mode: asked.mode,
        counters: *counters,
        queue_length: sockets.iter().map(|s| s.queue_length).sum(),
        queue_limit: sockets.iter().map(|s| s.queue_limit).sum(),
        sockets: sockets.len() as u32,
        half_open: sockets.iter().map(|s| s.half_open).sum(),
        came: None,
        wait: sockets.iter().filter_map(|s| s.wait).max(),
        waits_too_long: sockets.iter().any(too_long),
        accepts: accepts(sockets.iter().copied()),
        steered: sockets.iter().any(|s| s.steered),
        kept: sockets.iter().map(|s| s.kept_length).sum(),
        rule,
    }
}

fn counters_of(named: &BTreeMap<String, u64>) -> Counters {
    let mut counters = Counters::default();
    for row in &weir_core::verdict::VERDICTS {
        counters.0[row.verdict as usize] = named.get(row.name).copied().unwrap_or(0);
    }
    counters
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
