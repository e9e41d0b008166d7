//! What the daemon needs of the kernel, so that its logic is tested without root.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_core::class::{Class, Limit};
use weir_core::listener::Listener;
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
use weir_kernel::queue::QueueMaps;
use weir_kernel::{Guard, ListenSocket, Result};

use crate::host::environment;
use crate::host::links::{self, Peer};

/// A loaded guard and the namespace around it; see [`weir_kernel::Guard`] for what each function promises.
pub trait Backend {
    /// Puts a policy in force, atomically; on failure nothing has changed.
    fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()>;
    /// Whether weir may send cookies of its own, from the next `apply` on.
    fn allow_cookies(&mut self, allowed: bool);
    /// Puts other classes in force, atomically; on failure nothing has changed.
    fn set_classes(&mut self, classes: &[Class]) -> Result<()>;
    /// Sets or lifts the controller's limits of these classes, which end by themselves without renewal.
    fn set_controlled_rates(&mut self, limits: &BTreeMap<String, Option<Limit>>) -> Result<()>;
    /// Counters of every class in force, and of `other`.
    fn class_counters(&self) -> Result<BTreeMap<String, Counters>>;
    /// Attaches to one interface; `xdp` adds or takes away the XDP front.
    fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()>;
    /// Detaches from one interface.
    fn detach(&mut self, ifindex: u32);
    /// Counters of a listener of the policy in force.
    fn counters(&self, name: &str) -> Result<Counters>;
    /// All listening TCP sockets of the network namespace.
    fn listen_sockets(&self) -> Result<Vec<ListenSocket>>;
    /// The same for who asks many times a second; a socket that no connection has come to may be missing for one.
    fn known_sockets(&self) -> Result<Vec<ListenSocket>>;
    /// Sampled refusals since the last call.
    fn events(&mut self) -> Result<Vec<Refusal>>;
    /// Admits all from now on; cookies that are out stay valid.
    fn drain(&mut self);
    /// Index of the counters of a listener of the policy in force.
    fn counters_index(&self, name: &str) -> u16;
    /// The classes in force by their slots, without `other`.
    fn class_slots(&self) -> Vec<(u32, Class)>;
    /// What the prioritized queue shares with the guard.
    fn queue_maps(&self) -> Result<QueueMaps>;
    /// Whether the other end of a veth has a native XDP program, as far as can be told.
    fn runs_xdp(&self, peer: &Peer) -> bool;
    /// Whether the address is one of this namespace, as far as can be told.
    fn has_address(&self, ip: IpAddr) -> bool;
    /// Whether the machine has more CPUs than the guard can tell apart.
    fn cpus_share_claims(&self) -> bool;
}

impl Backend for Guard {
    fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()> {
        Guard::apply(self, listeners, classes)
    }

    fn allow_cookies(&mut self, allowed: bool) {
        Guard::allow_cookies(self, allowed);
    }

    fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
        Guard::set_classes(self, classes)
    }

    fn set_controlled_rates(&mut self, limits: &BTreeMap<String, Option<Limit>>) -> Result<()> {
        Guard::set_controlled_rates(self, limits)
    }

    fn class_counters(&self) -> Result<BTreeMap<String, Counters>> {
        Guard::class_counters(self)
    }

    fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()> {
        Guard::attach(self, ifindex, xdp)
    }

    fn detach(&mut self, ifindex: u32) {
        Guard::detach(self, ifindex);
    }

    fn counters(&self, name: &str) -> Result<Counters> {
        Guard::counters(self, name)
    }

    fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        Guard::listen_sockets(self)
    }

    fn known_sockets(&self) -> Result<Vec<ListenSocket>> {
        Guard::known_sockets(self)
    }

    fn events(&mut self) -> Result<Vec<Refusal>> {
        Guard::events(self)
    }

    fn drain(&mut self) {
        Guard::drain(self);
    }

    fn counters_index(&self, name: &str) -> u16 {
        self.listener_slot(name).unwrap_or(0)
    }

    fn class_slots(&self) -> Vec<(u32, Class)> {
        let slots = Guard::class_slots(self);
        slots.map(|(slot, class)| (slot, class.clone())).collect()
    }

    fn queue_maps(&self) -> Result<QueueMaps> {
        Guard::queue_maps(self)
    }

    fn runs_xdp(&self, peer: &Peer) -> bool {
        links::runs_xdp(peer)
    }

    fn has_address(&self, ip: IpAddr) -> bool {
        environment::has_address(ip)
    }

    fn cpus_share_claims(&self) -> bool {
        Guard::cpus_share_claims(self)
    }
}

/// A kernel half that only remembers what it was told.
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use the rest of it"))]
pub mod fake {
    use std::cell::RefCell;
    use std::rc::Rc;

    use weir_kernel::Error;

    use super::*;

    /// What the fake remembers, shared with the test.
    #[derive(Default)]
    pub struct State {
        pub applied: Vec<Listener>,
        pub applies: usize,
        pub cookies: Option<bool>,
        pub attached: BTreeMap<u32, bool>,
        pub counters: BTreeMap<String, Counters>,
        pub sockets: Vec<ListenSocket>,
        pub no_xdp: Vec<u32>,
        pub peers_with_xdp: Vec<u32>,
        pub shares_claims: bool,
        pub absent: Vec<IpAddr>,
        pub broken: Vec<u32>,
        pub refuse_apply: bool,
        pub classes: Vec<Class>,
        pub controlled: BTreeMap<String, Limit>,
        pub class_counters: BTreeMap<String, Counters>,
        pub refusals: Vec<Refusal>,
        pub drained: bool,
        pub attempts: usize,
    }

    #[derive(Clone, Default)]
    pub struct Fake(pub Rc<RefCell<State>>);

    /// A listening socket with 3 of 511 places taken.
    pub fn socket(ip: &str, port: u16) -> ListenSocket {
        ListenSocket {
            ip: ip.parse::<IpAddr>().unwrap(),
            port,
            v6only: false,
            mptcp: false,
            queue_length: 3,
            queue_limit: 511,
            half_open: 1,
            inode: 0,
            parked: false,
            steered: false,
            socket: 0,
            wait: None,
        }
    }

    impl Backend for Fake {
        fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()> {
            self.set_classes(classes)?;
            let mut state = self.0.borrow_mut();
            if state.refuse_apply {
                return Err(Error::Failed {
                    what: "apply".into(),
                    cause: "E2BIG".into(),
                });
            }
            state.applied = listeners.to_vec();
            state.applies += 1;
            Ok(())
        }

        fn allow_cookies(&mut self, allowed: bool) {
            self.0.borrow_mut().cookies = Some(allowed);
        }

        fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
            let mut state = self.0.borrow_mut();
            if state.refuse_apply {
                return Err(Error::Failed {
                    what: "set classes".into(),
                    cause: "E2BIG".into(),
                });
            }
            state.classes = classes.to_vec();
            Ok(())
        }

        fn set_controlled_rates(&mut self, limits: &BTreeMap<String, Option<Limit>>) -> Result<()> {
            let mut state = self.0.borrow_mut();
            for (name, limit) in limits {
                match limit {
                    Some(limit) => state.controlled.insert(name.clone(), *limit),
                    None => state.controlled.remove(name),
                };
            }
            Ok(())
        }

        fn class_counters(&self) -> Result<BTreeMap<String, Counters>> {
            Ok(self.0.borrow().class_counters.clone())
        }

        fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()> {
            let mut state = self.0.borrow_mut();
            state.attempts += 1;
            if state.broken.contains(&ifindex) || xdp && state.no_xdp.contains(&ifindex) {
                let what = format!("attach to {ifindex}");
                return Err(Error::Failed {
                    what,
                    cause: "EOPNOTSUPP".into(),
                });
            }
            state.attached.insert(ifindex, xdp);
            Ok(())
        }

        fn detach(&mut self, ifindex: u32) {
            self.0.borrow_mut().attached.remove(&ifindex);
        }

        fn counters(&self, name: &str) -> Result<Counters> {
            let state = self.0.borrow();
            if !state.applied.iter().any(|l| l.name == name) {
                return Err(Error::Failed {
                    what: format!("read {name}"),
                    cause: "none".into(),
                });
            }
            Ok(state.counters.get(name).copied().unwrap_or_default())
        }

        fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
            Ok(self.0.borrow().sockets.clone())
        }

        fn known_sockets(&self) -> Result<Vec<ListenSocket>> {
            self.listen_sockets()
        }

        fn events(&mut self) -> Result<Vec<Refusal>> {
            Ok(std::mem::take(&mut self.0.borrow_mut().refusals))
        }

        fn drain(&mut self) {
            self.0.borrow_mut().drained = true;
        }

        fn counters_index(&self, _name: &str) -> u16 {
            0
        }

        fn class_slots(&self) -> Vec<(u32, Class)> {
            Vec::new()
        }

        fn queue_maps(&self) -> Result<QueueMaps> {
            Err(Error::Unsupported {
                what: "a queue".into(),
                cause: "there is no kernel".into(),
                hint: String::new(),
            })
        }

        fn runs_xdp(&self, peer: &Peer) -> bool {
            self.0.borrow().peers_with_xdp.contains(&peer.index)
        }

        fn has_address(&self, ip: IpAddr) -> bool {
            !self.0.borrow().absent.contains(&ip)
        }

        fn cpus_share_claims(&self) -> bool {
            self.0.borrow().shares_claims
        }
    }
}
