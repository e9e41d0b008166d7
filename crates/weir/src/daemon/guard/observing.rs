//! `weir observe`: for a while every listener only observes, whatever its mode in the file.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_config::Config;
use weir_core::listener::{Listener, Mode};

use super::GuardService;
use crate::daemon::backend::Backend;
use crate::daemon::service::Put;
use crate::failure::Result;

/// The modes of the file's listeners by name, while all of them observe.
#[derive(Debug, Default)]
pub(super) struct Modes(BTreeMap<String, Mode>);

impl Modes {
    /// Those of the config, of which every listener only observes from then on.
    pub fn take(config: &mut Config) -> Modes {
        let listeners = config.listeners.iter();
        let modes = listeners.map(|one| (one.name.clone(), one.mode)).collect();
        only_observe(config);
        Modes(modes)
    }

    /// Gives listeners what the file says: for what refuses nobody, and goes on meanwhile.
    pub fn give_back(&self, listeners: &mut [Listener]) {
        for one in listeners {
            one.mode = self.0.get(&one.name).copied().unwrap_or(one.mode);
        }
    }
}

impl<B: Backend> GuardService<B> {
    /// Puts a config in force. Gives what that undoes of `weir class`: a sentence each.
    ///
    /// # Errors
    /// As of [`GuardService::put`]: what was in force stays.
    pub(super) fn put_as(
        &mut self,
        mut config: Config,
        now: Instant,
        put: Put,
    ) -> Result<Vec<String>> {
        let of_file = self.session.classes_of_file().to_vec();
        let (undone, observes) = match put {
            Put::File => (self.session.undone_by(&config.classes), None),
            Put::Again { observes } => {
                config.classes = self.session.classes().to_vec();
                (Vec::new(), observes.then(|| Modes::take(&mut config)))
            }
        };
        let before = std::mem::replace(&mut self.observes, observes);
        if let Err(failure) = self.put(&config, now) {
            self.observes = before;
            return Err(failure);
        }
        if put != Put::File {
            self.session.note_classes_of_file(of_file);
        }
        Ok(undone)
    }
}

/// Every listener of the config, of TCP and of QUIC, only observes.
pub fn only_observe(config: &mut Config) {
    let of_tcp = config.listeners.iter_mut().map(|one| &mut one.mode);
    let of_quic = config.quic.iter_mut().map(|one| &mut one.mode);
    of_tcp.chain(of_quic).for_each(|mode| *mode = Mode::Observe);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_observes_has_the_modes_of_the_file_again() {
        let file = "[[listener]]\naddress = \"*:80\"\n[[listener]]\naddress = \"*:81\"\nmode = \"observe\"\n\
                    [[quic]]\naddress = \"*:443\"\n";
        let mut config = weir_config::parse("f", file).unwrap();
        let asked = config.listeners.clone();
        let modes = Modes::take(&mut config);
        assert!(config.listeners.iter().all(|one| one.mode == Mode::Observe));
        assert_eq!(config.quic[0].mode, Mode::Observe);
        modes.give_back(&mut config.listeners);
        assert_eq!(config.listeners, asked);
    }
}
