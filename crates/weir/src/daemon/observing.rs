//! `weir observe`: for a while every listener only observes, whatever its mode in the file.

use std::collections::BTreeMap;

use weir_config::Config;
use weir_core::listener::{Listener, Mode};

/// The modes of the file's listeners by name, while all of them only observe.
#[derive(Debug, Default)]
pub struct Modes(BTreeMap<String, Mode>);

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
