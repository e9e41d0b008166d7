//! What the daemon needs of the kernel, so that its logic is tested without root.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_core::class::{BucketLimit, Class, OwnerId};
use weir_core::listener::Listener;
use weir_core::policy::Services;
use weir_core::residence::Gate;
use weir_core::verdict::Counters;
use weir_kernel::queue::QueueMaps;
use weir_kernel::{ClassCounters, Established, Guard, ListenSocket, Neighbours, Quic, Result};

use crate::host::links::{self, Peer};
use crate::host::{environment, vrf};

mod spaces;

pub use spaces::Spaces;

/// A loaded guard and the namespace around it; see [`weir_kernel::Guard`] for what each function promises.
pub trait Backend: Spaces {
    /// Puts a policy in force, atomically; on failure nothing has changed.
    fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()>;
    /// Whether weir may send cookies of its own, from the next `apply` on.
    fn allow_cookies(&mut self, allowed: bool);
    /// For how long it may, without another look at what is behind it.
    fn cookies_hold(&mut self, time: Duration);
    /// Whose packets find no listener, from the next `apply` on.
    fn pass_by(&mut self, services: &Services);
    /// Puts other classes in force, atomically; on failure nothing has changed.
    fn set_classes(&mut self, classes: &[Class]) -> Result<()>;
    /// Sets or lifts the controller's limits of these classes, which end by themselves without renewal.
    fn set_controlled_rates(
        &mut self,
        limits: &BTreeMap<String, Option<BucketLimit>>,
    ) -> Result<()>;
    /// Sets or lifts what a listener lets in until its server's requests are looked at again; it ends by itself.
    fn set_gate(&mut self, listener: &str, gate: Option<&Gate>);
    /// Counters of every class in force, and of `other`.
    fn class_counters(&self) -> Result<BTreeMap<String, ClassCounters>>;
    /// Attaches to one interface; `xdp` adds or takes away the XDP front.
    fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()>;
    /// Detaches from one interface.
    fn detach(&mut self, ifindex: u32);
    /// Puts the guard before all others on one interface again.
    fn go_first(&mut self, ifindex: u32) -> Result<()>;
    /// The programs of others around the guard at tc ingress of one interface.
    fn neighbours(&self, ifindex: u32) -> Result<Neighbours>;
    /// Connections established with guarded ports; `None` where the kernel does not say.
    fn established(&self) -> Result<Option<Vec<Established>>>;
    /// Counters of a listener of the policy in force.
    fn counters(&self, name: &str) -> Result<Counters>;
    /// All listening TCP sockets of the network namespace.
    fn listen_sockets(&self) -> Result<Vec<ListenSocket>>;
    /// The same for who asks many times a second; a socket that no connection has come to may be missing for one.
    fn known_sockets(&self) -> Result<Vec<ListenSocket>>;
    /// The VRFs that listening sockets are bound to, by the sockets' inode numbers.
    fn vrf_sockets(&self) -> BTreeMap<u64, String>;
    /// Admits all from now on; cookies that are out stay valid.
    fn drain(&mut self);
    /// Index of the counters of a listener of the policy in force.
    fn counters_index(&self, name: &str) -> u16;
    /// The classes in force by their slots, without `other`.
    fn class_slots(&self) -> Vec<(u32, Class)>;
    /// The names of the classes in force and of `other`, by their slots; none where there is no class.
    fn class_names(&self) -> BTreeMap<u32, Arc<str>>;
    /// What the prioritized queue shares with the guard.
    fn queue_maps(&self) -> Result<QueueMaps>;
    /// The programs that guard QUIC, with the classes of the guard.
    fn load_quic(&self) -> Result<Quic>;
    /// The numbers by which rules of classes know these QUIC listeners, from the next `apply` or `set_classes` on.
    fn quic_owners(&mut self, names: &[&str]) -> BTreeMap<String, OwnerId>;
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

    fn cookies_hold(&mut self, time: Duration) {
        if let Err(error) = Guard::cookies_hold(self, time) {
            tracing::error!("{error}");
        }
    }

    fn pass_by(&mut self, services: &Services) {
        Guard::pass_by(self, services.clone());
    }

    fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
        Guard::set_classes(self, classes)
    }

    fn set_controlled_rates(
        &mut self,
        limits: &BTreeMap<String, Option<BucketLimit>>,
    ) -> Result<()> {
        Guard::set_controlled_rates(self, limits)
    }

    fn set_gate(&mut self, listener: &str, gate: Option<&Gate>) {
        Guard::set_gate(self, listener, gate);
    }

    fn class_counters(&self) -> Result<BTreeMap<String, ClassCounters>> {
        Guard::class_counters(self)
    }

    fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()> {
        Guard::attach(self, ifindex, xdp)
    }

    fn detach(&mut self, ifindex: u32) {
        Guard::detach(self, ifindex);
    }

    fn go_first(&mut self, ifindex: u32) -> Result<()> {
        Guard::go_first(self, ifindex)
    }

    fn neighbours(&self, ifindex: u32) -> Result<Neighbours> {
        weir_kernel::neighbours(ifindex)
    }

    fn established(&self) -> Result<Option<Vec<Established>>> {
        Guard::established(self)
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

    fn vrf_sockets(&self) -> BTreeMap<u64, String> {
        vrf::bound_sockets()
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

    fn class_names(&self) -> BTreeMap<u32, Arc<str>> {
        Guard::class_names(self)
    }

    fn queue_maps(&self) -> Result<QueueMaps> {
        Guard::queue_maps(self)
    }

    fn load_quic(&self) -> Result<Quic> {
        Quic::load_beside(&self.class_maps()?)
    }

    fn quic_owners(&mut self, names: &[&str]) -> BTreeMap<String, OwnerId> {
        Guard::quic_owners(self, names)
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
    use std::os::fd::BorrowedFd;
    use std::rc::Rc;

    use std::collections::BTreeSet;

    use weir_config::{Environment, SynCookies};
    use weir_core::refusals::Refusal;
    use weir_kernel::{AttachedIn, Error, Namespace, NamespacePath};

    use super::*;

    /// A namespace that allows all.
    pub const NORMAL: Environment = Environment {
        syn_cookies: SynCookies::WhenNeeded,
        bpf_cookies: true,
        syn_filter: None,
    };

    /// What the fake remembers, shared with the test.
    #[derive(Default)]
    pub struct State {
        pub applied: Vec<Listener>,
        pub applies: usize,
        pub cookies: Option<bool>,
        pub cookies_hold: Option<Duration>,
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
        pub controlled: BTreeMap<String, BucketLimit>,
        pub class_counters: BTreeMap<String, ClassCounters>,
        pub refusals: Vec<Refusal>,
        pub drained: bool,
        pub attempts: usize,
        pub neighbours: BTreeMap<u32, Neighbours>,
        pub established: Vec<Established>,
        pub gates: BTreeMap<String, Gate>,
        pub services: Services,
        pub vrf_sockets: BTreeMap<u64, String>,
        /// Nobody can say which programs are on an interface.
        pub cannot_ask: bool,
        /// Other namespaces: what is in force there, and on which interfaces.
        pub spaces: BTreeMap<Namespace, (Vec<Listener>, BTreeSet<u32>)>,
        /// Interfaces there that are to be attached to, and whether soon.
        pub begun: Vec<(Namespace, u32, bool)>,
        /// Those that are not urgent are not attached to.
        pub late: bool,
        /// What is ready cannot be put in force the next time.
        pub refuse_in_force: bool,
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
            own_filters: Default::default(),
            socket: 0,
            wait: None,
            service: None,
            kept_length: 0,
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

        fn cookies_hold(&mut self, time: Duration) {
            self.0.borrow_mut().cookies_hold = Some(time);
        }

        fn pass_by(&mut self, services: &Services) {
            self.0.borrow_mut().services = services.clone();
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

        fn set_controlled_rates(
            &mut self,
            limits: &BTreeMap<String, Option<BucketLimit>>,
        ) -> Result<()> {
            let mut state = self.0.borrow_mut();
            for (name, limit) in limits {
                match limit {
                    Some(limit) => state.controlled.insert(name.clone(), *limit),
                    None => state.controlled.remove(name),
                };
            }
            Ok(())
        }

        fn set_gate(&mut self, listener: &str, gate: Option<&Gate>) {
            let gates = &mut self.0.borrow_mut().gates;
            match gate {
                Some(gate) => gates.insert(listener.to_owned(), *gate),
                None => gates.remove(listener),
            };
        }

        fn class_counters(&self) -> Result<BTreeMap<String, ClassCounters>> {
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

        fn go_first(&mut self, ifindex: u32) -> Result<()> {
            self.0.borrow_mut().neighbours.remove(&ifindex);
            Ok(())
        }

        fn neighbours(&self, ifindex: u32) -> Result<Neighbours> {
            let state = self.0.borrow();
            if state.cannot_ask {
                return Err(Error::Failed {
                    what: format!("ask for the programs of {ifindex}"),
                    cause: "ENOMEM".into(),
                });
            }
            Ok(state.neighbours.get(&ifindex).cloned().unwrap_or_default())
        }

        fn established(&self) -> Result<Option<Vec<Established>>> {
            Ok(Some(self.0.borrow().established.clone()))
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

        fn vrf_sockets(&self) -> BTreeMap<u64, String> {
            self.0.borrow().vrf_sockets.clone()
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

        fn class_names(&self) -> BTreeMap<u32, Arc<str>> {
            BTreeMap::new()
        }

        fn load_quic(&self) -> Result<Quic> {
            Err(Error::Failed {
                what: "guard QUIC".into(),
                cause: "there is no kernel".into(),
            })
        }

        fn quic_owners(&mut self, names: &[&str]) -> BTreeMap<String, OwnerId> {
            let numbers = names.iter().zip(1..);
            numbers.map(|(name, n)| ((*name).to_owned(), n)).collect()
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

    impl Spaces for Fake {
        fn prepare_in(
            &mut self,
            _: &NamespacePath,
            namespace: Namespace,
            listeners: &[Listener],
            _cookies: bool,
        ) -> Result<()> {
            let mut state = self.0.borrow_mut();
            if state.refuse_apply {
                return Err(Error::Failed {
                    what: "apply".into(),
                    cause: "E2BIG".into(),
                });
            }
            let space = state.spaces.entry(namespace).or_default();
            space.0 = listeners.to_vec();
            Ok(())
        }

        fn put_in_force(&mut self) -> Result<()> {
            let mut state = self.0.borrow_mut();
            match std::mem::take(&mut state.refuse_in_force) {
                false => Ok(()),
                true => Err(Error::Failed {
                    what: "put in force".into(),
                    cause: "ENOMEM".into(),
                }),
            }
        }

        fn remove(&mut self, namespaces: &[Namespace]) {
            let spaces = &mut self.0.borrow_mut().spaces;
            spaces.retain(|one, _| !namespaces.contains(one));
        }

        fn attach_in(
            &mut self,
            _: &NamespacePath,
            namespace: Namespace,
            ifindex: u32,
            urgent: bool,
        ) -> Result<()> {
            let mut state = self.0.borrow_mut();
            state.begun.push((namespace, ifindex, urgent));
            Ok(())
        }

        fn attached(&mut self) -> Vec<AttachedIn> {
            let mut state = self.0.borrow_mut();
            let late = state.late;
            let (done, begun) = std::mem::take(&mut state.begun)
                .into_iter()
                .partition(|(.., urgent)| !late || *urgent);
            state.begun = begun;
            let done: Vec<(Namespace, u32, bool)> = done;
            for (namespace, ifindex, _) in &done {
                let space = state.spaces.entry(*namespace).or_default();
                space.1.insert(*ifindex);
            }
            let attached = |(namespace, ifindex, _)| AttachedIn {
                namespace,
                ifindex,
                outcome: Ok(()),
            };
            done.into_iter().map(attached).collect()
        }

        fn attached_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn detach_in(&mut self, namespace: Namespace, ifindex: u32) {
            if let Some(space) = self.0.borrow_mut().spaces.get_mut(&namespace) {
                space.1.remove(&ifindex);
            }
        }

        fn go_first_in(&mut self, _: &NamespacePath, _: Namespace, _: u32) -> Result<()> {
            Ok(())
        }

        fn devices_in(&self, namespace: Namespace) -> BTreeSet<u32> {
            let state = self.0.borrow();
            let space = state.spaces.get(&namespace);
            space.map(|space| space.1.clone()).unwrap_or_default()
        }

        fn counters_in(&self, _: Namespace, name: &str) -> Result<Counters> {
            let counters = self.0.borrow().counters.get(name).copied();
            Ok(counters.unwrap_or_default())
        }

        fn sockets_in(&self, _: &NamespacePath, _: Namespace) -> Result<Vec<ListenSocket>> {
            Ok(self.0.borrow().sockets.clone())
        }

        fn events(&mut self) -> Result<Vec<(Namespace, Refusal)>> {
            let refusals = std::mem::take(&mut self.0.borrow_mut().refusals);
            let own = Namespace::with_cookie(0);
            Ok(refusals.into_iter().map(|refusal| (own, refusal)).collect())
        }
    }
}
