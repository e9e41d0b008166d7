//! What the controller and the API want of a session: queues and counters at this moment, limits to set,
//! and whose sockets serve a listener.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_core::controller::{ListenerReading, Settings};
use weir_core::listener::{Listener, Mode};
use weir_core::verdict::Counters;
use weir_kernel::ListenSocket;

use super::{Applied, Policy, Session};
use crate::daemon::backend::Backend;
use crate::daemon::controller::listener_reading;
use crate::failure::{Failure, Result};
use crate::host::sockets::serving;

/// A listener in short.
#[derive(Debug, Clone)]
pub struct Glance {
    /// Its name.
    pub name: String,
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// What was done since it is guarded.
    pub counters: Counters,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in its listen queues.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The estimated wait for accept(), the longest of its sockets; `None` while not known.
    pub wait: Option<Duration>,
}

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
            Ok(listener_reading(name, &serving, &counters))
        };
        self.policies.iter().map(load).collect()
    }

    /// Every listener in short: its counters, its queue and its wait.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn glances(&self) -> Result<Vec<Glance>> {
        let sockets = self.backend.known_sockets()?;
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        let glance = |policy: &Policy| {
            let Listener { name, mode, .. } = &policy.asked;
            let serving = serving(&policy.asked, &all, &sockets);
            let servers = serving.iter().filter(|socket| !socket.parked);
            Ok(Glance {
                name: name.clone(),
                mode: *mode,
                counters: self.counters(name)?,
                queue_length: serving.iter().map(|socket| socket.queue_length).sum(),
                half_open: serving.iter().map(|socket| socket.half_open).sum(),
                queue_limit: servers.clone().map(|socket| socket.queue_limit).sum(),
                wait: servers.filter_map(|socket| socket.wait).max(),
            })
        };
        self.policies.iter().map(glance).collect()
    }

    /// The counters of every class in force. Those of `other` run only while a SYN's class is asked for.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn class_counters(&self) -> Result<BTreeMap<String, Counters>> {
        let mut counters = self.backend.class_counters()?;
        for (class, reset) in self.queues.refused() {
            // A class may have gone since.
            if let Some(counters) = counters.get_mut(&class) {
                counters.add(&reset);
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
