//! Which class a connection of the server is of, and how its listener's queue is to be kept.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_config::Config;
use weir_core::class::{Class, OTHER_PRIORITY, Rules, Tuple};
use weir_core::listener::{DEFAULT_AGEING, Listener, Mode};

/// Index of the connections that are of no class.
const NO_CLASS: u32 = u32::MAX;

/// Listeners and classes, as `weir.toml` has them or as the running weir has changed them.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    listeners: Vec<Listener>,
    classes: Vec<Class>,
    rules: Rules,
}

/// What a connection is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Index of its class.
    pub class: u32,
    /// Priority of its class.
    pub priority: u8,
}

impl PartialEq for Policy {
    /// The rules follow from the rest.
    fn eq(&self, other: &Policy) -> bool {
        (&self.listeners, &self.classes) == (&other.listeners, &other.classes)
    }
}

impl Policy {
    /// Of a config file; without one there are no classes.
    pub fn of(config: Option<Config>) -> Policy {
        let (listeners, classes) =
            config.map_or_else(Default::default, |c| (c.listeners, c.classes));
        Policy::new(listeners, classes)
    }

    /// Of these listeners and classes.
    pub fn new(listeners: Vec<Listener>, classes: Vec<Class>) -> Policy {
        let classes: Vec<Class> = classes.into_iter().filter(Class::is_guarded).collect();
        let number = |name: &String| {
            let index = listeners.iter().position(|l| l.name == *name);
            index.map_or(0, |index| index as u16 + 1)
        };
        let rules = Rules::compile(&classes, |class| class.listener.as_ref().map(number));
        Policy {
            listeners,
            classes,
            rules,
        }
    }

    /// The same listeners with other classes.
    pub fn with_classes(&self, classes: Vec<Class>) -> Policy {
        Policy::new(self.listeners.clone(), classes)
    }

    /// What the connection of this client to this address is worth.
    pub fn standing(&self, from: SocketAddr, to: SocketAddr) -> Standing {
        let owner = self.index(to).map_or(0, |index| index as u16 + 1);
        let index = self.rules.classify(&Tuple { from, to, owner });
        match index.map(|index| (index, &self.classes[index])) {
            Some((index, class)) => Standing {
                class: index as u32,
                priority: class.priority,
            },
            None => Standing {
                class: NO_CLASS,
                priority: OTHER_PRIORITY,
            },
        }
    }

    /// How many connections of the class may wait.
    pub fn queue_limit(&self, class: u32) -> Option<u32> {
        self.classes.get(class as usize)?.queue_limit
    }

    /// The priorities that there are.
    pub fn priorities(&self) -> Vec<u8> {
        self.classes.iter().map(|class| class.priority).collect()
    }

    /// How long a connection waits at this address until it counts as of the next higher priority.
    pub fn ageing(&self, address: SocketAddr) -> Option<Duration> {
        let listener = self.index(address).map(|index| &self.listeners[index]);
        listener.map_or(Some(DEFAULT_AGEING), |listener| listener.ageing)
    }

    /// Whether nothing is to be done at this address but to look on.
    pub fn observes(&self, address: SocketAddr) -> bool {
        let listener = self.index(address).map(|index| &self.listeners[index]);
        listener.is_some_and(|listener| listener.mode == Mode::Observe)
    }

    /// The listener that stands for an address: as the guard finds it (weir_core::policy).
    fn index(&self, address: SocketAddr) -> Option<usize> {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let fit = |listener: &Listener| match listener.address.ip {
            _ if listener.address.port != port => None,
            Some(exact) if exact.to_canonical() == ip => Some(0),
            Some(IpAddr::V4(any)) if any.is_unspecified() && ip.is_ipv4() => Some(1),
            Some(IpAddr::V6(any)) if any.is_unspecified() => Some(2),
            Some(_) => None,
            None => Some(3),
        };
        let fits = (0..self.listeners.len()).filter_map(|i| Some((fit(&self.listeners[i])?, i)));
        fits.min().map(|(_, index)| index)
    }
}
