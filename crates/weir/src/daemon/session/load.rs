//! What the controller and the API want of a session: queues and counters at this moment, limits to set,
//! and whose sockets serve a listener.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_core::controller::{ListenerReading, Settings};
use weir_core::forecast::Rule;
use weir_core::listener::Listener;
use weir_core::pace::Look;
use weir_kernel::{ClassCounters, ListenSocket};

use super::glance::{Glance, accepts, waits_too_long};
use super::{Applied, Policy, Session};
use crate::daemon::backend::Backend;
use crate::daemon::controller::listener_reading;
use crate::failure::{Failure, Result};
use crate::host::sockets::serving;

impl<B: Backend> Session<B> {
    /// Every listener's queue and counters.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn load(&self) -> Result<Vec<ListenerReading>> {
        let sockets = self.backend.known_sockets()?;
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        let load = |policy: &Policy| {
            let name = &policy.asked.name;
            let serving = serving(&policy.asked, &all, &sockets);
            let counters = self.counters(name)?;
            Ok(ListenerReading {
                inside: self.inside.get(name).copied(),
                ..listener_reading(name, &serving, &counters)
            })
        };
        self.policies.iter().map(load).collect()
    }

    /// Every listener in short: its counters, its queue and its wait.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn glances(&self) -> Result<Vec<Glance>> {
        // Before the counters: each connection has had its SYN by then.
        let came = self.backend.established()?;
        let sockets = self.backend.known_sockets()?;
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        let glance = |policy: &Policy| {
            let Listener { name, mode, .. } = &policy.asked;
            let serving = serving(&policy.asked, &all, &sockets);
            let servers = serving.iter().filter(|socket| !socket.parked);
            let rule = Rule::from(&policy.fitted.listener);
            let target = self.target_of(&policy.asked);
            let least = policy.fitted.listener.least_length.into();
            let estimate = accepts(servers.clone().copied());
            let slower = self.slower(&policy.asked, estimate);
            Ok(Glance {
                name: name.clone(),
                mode: *mode,
                counters: self.counters(name)?,
                queue_length: serving.iter().map(|socket| socket.queue_length).sum(),
                half_open: serving.iter().map(|socket| socket.half_open).sum(),
                came: came.as_ref().map(|came| self.came_to(&policy.asked, came)),
                queue_limit: servers.clone().map(|socket| socket.queue_limit).sum(),
                sockets: servers.clone().count() as u32,
                wait: servers
                    .clone()
                    .filter_map(|socket| socket.wait)
                    .max()
                    .map(|wait| wait.mul_f64(slower)),
                waits_too_long: servers
                    .clone()
                    .any(|socket| waits_too_long(socket, target, least)),
                accepts: estimate.map(|per_second| per_second / slower),
                steered: servers.clone().any(|socket| socket.steered),
                kept: servers.map(|socket| socket.kept_length).sum(),
                rule,
            })
        };
        self.policies.iter().map(glance).collect()
    }

    /// Counts by a look at all listeners how fast their servers empty long queues.
    pub(super) fn follow_pace(&mut self, glances: &[Glance], now: Instant) {
        let at = now.saturating_duration_since(self.sights.begun);
        let known = |name: &str| glances.iter().any(|glance| glance.name == name);
        self.paces.retain(|name, _| known(name));
        for glance in glances {
            let Some(accepted) = glance.seen(at).accepted else {
                self.paces.remove(&glance.name);
                continue;
            };
            let pace = self.paces.entry(glance.name.clone()).or_default();
            pace.take(Look {
                at,
                accepted,
                queue_length: glance.queue_length,
            });
        }
    }

    /// How many times longer than the guard's estimate of so many accepts a second says connections wait at a listener.
    pub(super) fn slower(&self, listener: &Listener, estimate: Option<f64>) -> f64 {
        // What comes over other interfaces is in the queue, and is not counted.
        let pace = self.paces.get(&listener.name);
        let pace = pace.filter(|_| listener.interfaces.is_empty());
        pace.map_or(1.0, |pace| pace.slower_than(estimate))
    }

    /// The wait that is kept at a listener: that of the controller beside it, or its own target; `None`: none is.
    fn target_of(&self, listener: &Listener) -> Option<Duration> {
        let controller = self.controller.as_ref();
        let enforced = controller.and_then(|controller| controller.enforced_target());
        enforced.or(Rule::from(listener).target)
    }

    /// The counters of every class in force. Those of `other` run only while a SYN's class is asked for.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn class_counters(&self) -> Result<BTreeMap<String, ClassCounters>> {
        let mut counters = self.backend.class_counters()?;
        for (class, reset) in self.queues.refused() {
            // A class may have gone since.
            if let Some(counters) = counters.get_mut(&class) {
                counters.syns.add(&reset);
            }
        }
        Ok(counters)
    }

    /// The ports under guard.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.policies.iter().map(|policy| policy.asked.address.port)
    }

    /// The listening sockets of a listener; none if there is no such listener.
    ///
    /// # Errors
    /// The sockets cannot be read.
    pub fn sockets_of(&self, listener: &str) -> Result<Vec<ListenSocket>> {
        let Some(policy) = self
            .policies
            .iter()
            .find(|policy| policy.asked.name == listener)
        else {
            return Ok(Vec::new());
        };
        let sockets = self.backend.listen_sockets()?;
        Ok(self
            .serving(&policy.asked, &sockets)
            .into_iter()
            .cloned()
            .collect())
    }

    /// Has `admit = wait` of every listener leave to this controller what it decides, which knows the classes
    /// ([`Settings::beside`]). `None`: each listener's own rule is in force.
    ///
    /// # Errors
    /// The kernel half refuses; then nothing has changed.
    pub fn yield_to(&mut self, controller: Option<Settings>) -> Result<()> {
        if controller == self.controller {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.controller, controller);
        self.policies
            .iter_mut()
            .for_each(|policy| policy.fit_to(controller));
        let applied = Applied::of(&self.policies, &self.links);
        if let Err(error) = self.backend.apply(&applied.listeners, self.classes.list()) {
            self.controller = before;
            self.policies
                .iter_mut()
                .for_each(|policy| policy.fit_to(before));
            return Err(Failure::from(error));
        }
        self.applied = applied;
        Ok(())
    }
}
