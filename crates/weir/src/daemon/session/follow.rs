//! Listeners for every listening socket there is, and for those that come (`weir protect all`).

use std::collections::BTreeSet;

use weir_config::Environment;
use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_kernel::ListenSocket;

use super::Session;
use crate::daemon::backend::Backend;
use crate::failure::Result;
use crate::host::sockets::is_served;

/// One listener for each port on which some of the sockets serves it.
pub fn listeners_of(sockets: &[ListenSocket], listener: impl Fn(u16) -> Listener) -> Vec<Listener> {
    let servers = sockets.iter().filter(|socket| !socket.parked);
    let ports: BTreeSet<u16> = servers.map(|socket| socket.port).collect();
    let all = ports.into_iter().map(listener);
    all.filter(|one| is_served(one, sockets)).collect()
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
            all.retain(|one| is_served(one, &sockets));
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

#[cfg(test)]
mod tests {
    use weir_core::listener::ListenAddress;

    use super::*;
    use crate::daemon::backend::fake::{Fake, NORMAL, socket};
    use crate::host::links::fake::link;

    fn listener(port: u16) -> Listener {
        Listener::new(format!("port-{port}"), ListenAddress { ip: None, port })
    }

    #[test]
    fn servers_that_come_are_guarded_and_one_that_has_gone_makes_room_only_when_it_must() {
        let fake = Fake::default();
        let sockets = |ports: std::ops::Range<u16>| -> Vec<ListenSocket> {
            ports.map(|port| socket("0.0.0.0", port)).collect()
        };
        fake.0.borrow_mut().sockets = sockets(1..3);
        let first = listeners_of(&sockets(1..3), listener);
        let links = vec![link(1, "lo")];
        let mut session = Session::start(fake.clone(), NORMAL, first, Vec::new(), links).unwrap();
        let mut follow = || session.follow_sockets(NORMAL, listener).unwrap();
        assert_eq!(follow(), Followed::default(), "nothing has changed");
        fake.0.borrow_mut().sockets = sockets(2..4);
        assert_eq!(follow().new, [listener(3)]);
        let names = |fake: &Fake| -> Vec<String> {
            let state = fake.0.borrow();
            state.applied.iter().map(|one| one.name.clone()).collect()
        };
        assert_eq!(names(&fake), ["port-1", "port-2", "port-3"]);
        fake.0.borrow_mut().sockets = sockets(2..300);
        let followed = follow();
        assert_eq!(names(&fake).len(), MAX_LISTENERS);
        assert!(
            !names(&fake).contains(&"port-1".to_owned()),
            "its server has gone"
        );
        assert_eq!(followed.left_out.len(), 298 - MAX_LISTENERS);
        assert_eq!(follow().left_out, followed.left_out, "no room yet");
    }
}
