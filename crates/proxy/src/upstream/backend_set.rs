//! The backends of a proxy as of now: the addresses of its settings, and those that its names have. Threads that move
//! data have lists of their own and are told of changes, so that no request takes a lock for it.
//!
//! A backend stays the same one as long as its address stays: with its number, its health, its counters, and the idle
//! connections of each thread. One whose address has gone gets nothing new. Its connections in use end by themselves, and
//! what it counted stays for a while: addresses often come back.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_core::proxy::{BackendAddress, BackendSetting, MAX_ADDRESSES, Proxy};

use super::announced::OnHealth;
use super::limit::{BackendList, ConnectionLimit, Notice};
use super::recheck::Recheck;
use super::shared_backend::SharedBackend;
use crate::runtime::Sender;

/// Backends without a connection whose addresses have gone, and whose counters are kept all the same.
const GONE_KEPT: usize = 64;

/// The addresses of names, each by the name.
pub type KnownAddresses = HashMap<String, Vec<IpAddr>>;

/// The backends of a proxy.
pub struct BackendSet {
    settings: Arc<Proxy>,
    threads: usize,
    limit: Option<Arc<ConnectionLimit>>,
    on_health: Option<OnHealth>,
    /// The way to those that look names up.
    rechecks: HashMap<String, Arc<Recheck>>,
    state: Mutex<State>,
}

struct State {
    addresses: KnownAddresses,
    listed: BackendList,
    /// The one that has gone last comes last.
    gone: Vec<Arc<SharedBackend>>,
    /// The way to each thread that moves data.
    threads: Vec<Option<Sender<Notice>>>,
    /// The way to the thread that checks.
    checks: Option<Sender<Option<BackendList>>>,
}

/// What a look-up has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressChange {
    /// Addresses that the name did not have before.
    pub new: Vec<IpAddr>,
    /// Addresses that it has no longer.
    pub gone: Vec<IpAddr>,
    /// Addresses beyond [`MAX_ADDRESSES`], which are left unused.
    pub unused: usize,
}

impl BackendSet {
    /// The backends of these settings for so many threads, with what is known of their names. `on_health` is called with what
    /// connections show of those that are not checked.
    pub fn new(
        settings: Arc<Proxy>,
        threads: usize,
        limit: Option<Arc<ConnectionLimit>>,
        on_health: Option<OnHealth>,
        mut addresses: KnownAddresses,
    ) -> BackendSet {
        let names = settings.backends.iter();
        let names = names.filter_map(|backend| backend.address.host());
        let rechecks: HashMap<String, Arc<Recheck>> = names
            .map(|name| (name.to_owned(), Arc::default()))
            .collect();
        addresses.retain(|name, _| rechecks.contains_key(name));
        let set = BackendSet {
            settings,
            threads,
            limit,
            on_health,
            rechecks,
            state: Mutex::new(State {
                addresses,
                listed: Arc::default(),
                gone: Vec::new(),
                threads: (0..threads).map(|_| None).collect(),
                checks: None,
            }),
        };
        set.relist(&mut set.lock());
        set
    }

    /// The names of the settings, each with the way to the thread that looks it up.
    pub fn names(&self) -> impl Iterator<Item = (&String, &Arc<Recheck>)> {
        self.rechecks.iter()
    }

    /// What the names' addresses are.
    pub fn addresses(&self) -> KnownAddresses {
        self.lock().addresses.clone()
    }

    /// The addresses of a name; `None` before the first answer.
    pub fn addresses_of(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.lock().addresses.get(name).cloned()
    }

    /// The backends of now.
    pub fn listed(&self) -> BackendList {
        self.lock().listed.clone()
    }

    /// The backends of now, and then those of before that still have a connection or counters.
    pub fn all(&self) -> Vec<Arc<SharedBackend>> {
        let state = self.lock();
        state.listed.iter().chain(&state.gone).cloned().collect()
    }

    /// A thread that moves data begins: it has these backends, and learns of changes through `notices`.
    pub fn join(&self, thread: usize, notices: Sender<Notice>) -> BackendList {
        let mut state = self.lock();
        state.threads[thread] = Some(notices);
        state.listed.clone()
    }

    /// The thread that checks begins: it has these backends, and learns of changes through `changes`, until
    /// [`end_checks`](Self::end_checks).
    pub(super) fn join_checks(&self, changes: Sender<Option<BackendList>>) -> BackendList {
        let mut state = self.lock();
        state.checks = Some(changes);
        state.listed.clone()
    }

    /// The thread that checks is to end.
    pub(super) fn end_checks(&self) {
        if let Some(checks) = self.lock().checks.take() {
            checks.send(None);
        }
    }

    /// A look-up has found these addresses of a name, at least one. `None`: it has had the same before.
    pub fn found(&self, name: &str, found: &[IpAddr]) -> Option<AddressChange> {
        let mut state = self.lock();
        let before = state.addresses.get(name).cloned().unwrap_or_default();
        let (now, unused) = in_order(&before, found);
        let missing = |from: &[IpAddr], among: &[IpAddr]| -> Vec<IpAddr> {
            let is_missing = |ip: &&IpAddr| !from.contains(ip);
            among.iter().filter(is_missing).copied().collect()
        };
        let change = AddressChange {
            new: missing(&before, &now),
            gone: missing(&now, &before),
            unused,
        };
        if change.new.is_empty() && change.gone.is_empty() {
            return None;
        }
        state.addresses.insert(name.to_owned(), now);
        self.relist(&mut state);
        Some(change)
    }

    /// Makes the list of the addresses that are known, and says it to all that have one.
    fn relist(&self, state: &mut State) {
        let mut listed: Vec<Arc<SharedBackend>> = Vec::new();
        let known = state.listed.iter().chain(&state.gone);
        let mut numbers: BTreeSet<usize> = known.map(|backend| backend.number).collect();
        for setting in &self.settings.backends {
            for address in addresses_of(setting, &state.addresses) {
                // The first that names an address has it.
                if !listed.iter().any(|backend| backend.address == address) {
                    listed.push(self.backend(state, &mut numbers, setting, address));
                }
            }
        }
        let listed: BackendList = listed.into();
        let is_listed =
            |backend: &Arc<SharedBackend>| listed.iter().any(|other| Arc::ptr_eq(backend, other));
        let before = std::mem::replace(&mut state.listed, listed.clone());
        state.gone.retain(|backend| !is_listed(backend));
        let gone = before.iter().filter(|backend| !is_listed(backend));
        state.gone.extend(gone.cloned());
        self.forget_some(&mut state.gone);
        // In this order: a thread knows of a backend before a waiter of it is given a connection.
        if let Some(limit) = &self.limit {
            limit.make_known(&listed);
        }
        for thread in state.threads.iter().flatten() {
            thread.send(Notice::Listed(listed.clone()));
        }
        if let Some(limit) = &self.limit {
            limit.list(&listed);
        }
        if let Some(checks) = &state.checks {
            checks.send(Some(listed));
        }
    }

    /// The backend with this address: the one that there is or was, or a new one, whose number is then among `numbers`.
    fn backend(
        &self,
        state: &State,
        numbers: &mut BTreeSet<usize>,
        setting: &BackendSetting,
        address: SocketAddr,
    ) -> Arc<SharedBackend> {
        let mut known = state.listed.iter().chain(&state.gone);
        let is_same = |backend: &&Arc<SharedBackend>| {
            backend.address == address && backend.setting == *setting
        };
        if let Some(known) = known.find(is_same) {
            return known.clone();
        }
        let free = (0..).find(|number| numbers.insert(*number));
        let number = free.unwrap_or(usize::MAX);
        let recheck = setting.address.host();
        let recheck = recheck.and_then(|name| self.rechecks.get(name)).cloned();
        Arc::new(SharedBackend::new(
            number,
            address,
            setting.clone(),
            recheck,
            self.on_health.clone(),
            &self.settings,
            self.threads,
        ))
    }

    /// Forgets those that have gone the longest ago, as long as too many are kept; never one that has a connection.
    fn forget_some(&self, gone: &mut Vec<Arc<SharedBackend>>) {
        let is_held = |backend: &SharedBackend| {
            let limit = self.limit.as_ref();
            backend.has_connections() || limit.is_some_and(|limit| limit.is_held(backend.number))
        };
        let mut too_many = gone.len().saturating_sub(GONE_KEPT);
        gone.retain(|backend| {
            let goes = too_many > 0 && !is_held(backend);
            too_many -= usize::from(goes);
            !goes
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step of it panics halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The addresses that an item of the settings has.
fn addresses_of(setting: &BackendSetting, known: &KnownAddresses) -> Vec<SocketAddr> {
    match &setting.address {
        BackendAddress::Ip(address) => vec![*address],
        BackendAddress::Name(name) => {
            let ips = known.get(&name.host).map(Vec::as_slice);
            let ips = ips.unwrap_or_default().iter();
            ips.map(|ip| SocketAddr::new(*ip, name.port)).collect()
        }
    }
}

/// The addresses found, each once: first those that there were, in the order that they had, and then the new ones. Name
/// servers give another order each time. How many are too many.
fn in_order(before: &[IpAddr], found: &[IpAddr]) -> (Vec<IpAddr>, usize) {
    let mut new: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).collect();
    new.sort_unstable();
    new.dedup();
    let mut now: Vec<IpAddr> = before
        .iter()
        .filter(|ip| new.contains(ip))
        .copied()
        .collect();
    new.retain(|ip| !now.contains(ip));
    now.append(&mut new);
    let unused = now.len().saturating_sub(MAX_ADDRESSES);
    now.truncate(MAX_ADDRESSES);
    (now, unused)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use weir_core::proxy::{HostName, ProxyMode};

    use super::*;

    fn ip(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn named(host: &str, weight: u16) -> BackendSetting {
        let host = host.to_owned();
        BackendSetting {
            address: BackendAddress::Name(HostName { host, port: 80 }),
            weight,
        }
    }

    /// Two names, and an address between them.
    fn set() -> BackendSet {
        let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
        settings.backends = vec![
            named("a", 1),
            SocketAddr::new(ip(1), 80).into(),
            named("b", 2),
        ];
        settings.max_connections = 10;
        let limit = ConnectionLimit::new(&settings, 2);
        BackendSet::new(Arc::new(settings), 2, limit, None, KnownAddresses::new())
    }

    fn listed(set: &BackendSet) -> Vec<(IpAddr, u16)> {
        let listed = set.listed();
        let one = |backend: &Arc<SharedBackend>| (backend.address.ip(), backend.setting.weight);
        listed.iter().map(one).collect()
    }

    #[test]
    fn the_first_that_names_an_address_has_it_and_each_has_its_order() {
        let set = set();
        assert_eq!(listed(&set), [(ip(1), 1)]);
        set.found("b", &[ip(3), ip(1), ip(2), ip(2)]).unwrap();
        assert_eq!(listed(&set), [(ip(1), 1), (ip(2), 2), (ip(3), 2)]);
        set.found("a", &[ip(3)]).unwrap();
        assert_eq!(listed(&set), [(ip(3), 1), (ip(1), 1), (ip(2), 2)]);
        // The same in another order, or in the form of IPv6, is no change.
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        };
        assert_eq!(set.found("b", &[mapped(ip(2)), ip(1), ip(3)]), None);
        let change = set.found("b", &[ip(4), ip(3), ip(2)]).unwrap();
        assert_eq!((change.new, change.gone), (vec![ip(4)], vec![ip(1)]));
    }

    #[test]
    fn of_too_many_addresses_those_that_there_were_stay() {
        let set = set();
        let many = |low: u32, count: u32| -> Vec<IpAddr> {
            (low..low + count)
                .map(|bits| std::net::Ipv4Addr::from_bits(bits).into())
                .collect()
        };
        let first = many(1000, MAX_ADDRESSES as u32);
        assert_eq!(set.found("a", &first).unwrap().unused, 0);
        let numbers = || -> Vec<usize> { set.listed().iter().map(|it| it.number).collect() };
        let before = numbers();
        assert_eq!(set.found("a", &many(900, MAX_ADDRESSES as u32 + 100)), None);
        assert_eq!(numbers(), before);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A model that keeps nothing: what is listed follows from the last answers alone. An address that stays is the same
        /// backend, and no two backends have one number, also among those that have gone.
        #[test]
        fn what_is_listed_follows_from_the_last_answers_and_numbers_are_never_of_two(
            answers in prop::collection::vec(
                (any::<bool>(), prop::collection::btree_set(0u8..150, 1..6)),
                1..60,
            )
        ) {
            let set = set();
            let mut last = BTreeMap::new();
            for (is_a, found) in answers {
                let before = set.listed();
                let name = if is_a { "a" } else { "b" };
                let found: Vec<IpAddr> = found.into_iter().map(ip).collect();
                set.found(name, &found);
                last.insert(name, found);
                let of = |name| last.get(name).cloned().unwrap_or_default();
                let mut expected = BTreeMap::new();
                for (weight, ips) in [(1, of("a")), (1, vec![ip(1)]), (2, of("b"))] {
                    for ip in ips {
                        expected.entry(ip).or_insert(weight);
                    }
                }
                prop_assert_eq!(listed(&set).into_iter().collect::<BTreeMap<_, _>>(), expected.clone());
                prop_assert_eq!(set.listed().len(), expected.len());
                for backend in &*set.listed() {
                    let mut same = before.iter().filter(|other| {
                        other.address == backend.address && other.setting == backend.setting
                    });
                    prop_assert!(same.all(|other| Arc::ptr_eq(other, backend)));
                }
                let all = set.all();
                let mut numbers: Vec<usize> = all.iter().map(|it| it.number).collect();
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(numbers.len(), all.len());
                prop_assert!(all.len() <= expected.len() + GONE_KEPT);
            }
        }
    }

    #[test]
    fn what_has_gone_is_forgotten_after_a_while_unless_it_has_connections() {
        let set = set();
        set.found("a", &[ip(2)]);
        let held = set.listed()[0].clone();
        held.accounts[1].gauges.in_use.raise();
        for number in 3..3 + 2 * GONE_KEPT as u8 {
            set.found("a", &[ip(number)]);
        }
        let is_there = |address| set.all().iter().any(|it| it.address.ip() == address);
        assert!(is_there(ip(2)) && !is_there(ip(3)));
        // It comes back as the same one.
        set.found("a", &[ip(2)]);
        assert!(Arc::ptr_eq(&set.listed()[0], &held));
        held.accounts[1].gauges.in_use.lower(1);
        for number in 3..4 + 2 * GONE_KEPT as u8 {
            set.found("a", &[ip(number)]);
        }
        assert!(!is_there(ip(2)));
    }
}
