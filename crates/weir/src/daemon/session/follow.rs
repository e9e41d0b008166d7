//! Listeners for every listening socket there is, and for those that come (`weir protect all`).

use std::collections::BTreeSet;

use weir_config::Environment;
use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_kernel::ListenSocket;

use super::Session;
use crate::daemon::backend::Backend;
use crate::failure::Result;
use crate::host::sockets::serving;

/// One listener for each port on which some of the sockets serves it.
pub fn listeners_of(sockets: &[ListenSocket], listener: impl Fn(u16) -> Listener) -> Vec<Listener> {
    let servers = sockets.iter().filter(|socket| !socket.parked);
    let ports: BTreeSet<u16> = servers.map(|socket| socket.port).collect();
    let all = ports.into_iter().map(listener);
    all.filter(|one| !serving(one, std::slice::from_ref(one), sockets).is_empty())
        .collect()
}

/// What a look at the sockets has led to.
#[derive(Debug, Default, PartialEq)]
pub struct Followed {
    /// Listeners that are under guard from now on.
    pub new: Vec<Listener>,
    /// Ports for which the table of listeners has no entry left.
    pub left_out: Vec<u16>,
}

impl<B: Backend> Session<B> {
    /// Puts those of `listener` under guard whose ports have a socket by now. Listeners whose socket has gone stay,
    /// with their counters, until their entries are needed.
    ///
    /// # Errors
    /// As of [`Session::swap`].
    pub fn follow_sockets(
        &mut self,
        environment: Environment,
        listener: impl Fn(u16) -> Listener,
    ) -> Result<Followed> {
        let sockets = self.backend.listen_sockets()?;
        let mut new = listeners_of(&sockets, listener);
        new.retain(|one| {
            self.policies
                .iter()
                .all(|old| old.asked.address != one.address)
        });
        if new.is_empty() {
            return Ok(Followed::default());
        }
        let mut all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        if all.len() + new.len() > MAX_LISTENERS {
            all.retain(|one| !serving(one, std::slice::from_ref(one), &sockets).is_empty());
        }
        let entries = MAX_LISTENERS.saturating_sub(all.len()).min(new.len());
        let left_out = new.split_off(entries);
        let left_out = left_out.iter().map(|one| one.address.port).collect();
        if !new.is_empty() {
            all.extend(new.iter().cloned());
            let classes = self.classes().to_vec();
            self.swap(environment, all, classes)?;
        }
        Ok(Followed { new, left_out })
    }
}
