//! The guard of QUIC servers (bpf/quic.bpf.c): loading, attaching, policies and counters.

mod elsewhere;
mod events;
mod load;
mod places;
pub(crate) mod skel;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::write_volatile;
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use weir_core::abi;
use weir_core::class::OwnerId;
use weir_core::quic::{QUIC_VERDICTS, QuicCounters, QuicListener, QuicSocket};
use weir_core::refusals::Refusal;
use weir_core::workload::Where;

use crate::clock::now_ns;
use crate::error::{Error, Result, of_libbpf};
use crate::guard::ClassMaps;
use crate::guard::attach::{Hook, is_on_device, link, link_header_len};
use crate::guard::chain::Rank;
use crate::namespace::{Namespace, NamespacePath};
use crate::object::{Plain, drain, percpu, plain};
use elsewhere::Elsewhere;
use load::{Bare, Programs};
use places::{Numbers, places_of};
use skel::QuicSkel;
use skel::types::{quic_counters, quic_event, quic_place, quic_policy, quic_server, quic_state};

plain!(
    quic_counters,
    quic_place,
    quic_policy,
    quic_server,
    quic_state
);

/// A socket to which no attempt has come for so long is not reported: it may be closed.
const REPORTED_FOR_NS: u64 = 60_000_000_000;
/// Places in `places` of bpf/quic.bpf.c, half of them: at a change the new ones stand beside the old ones.
const MOST_PLACES: usize = abi::QUIC_PLACES as usize / 2;
/// So long after the last answer none waits for one (bpf/lib/quic_wait.h).
const FORGOTTEN_NS: u64 = abi::QUIC_FORGOTTEN_MS as u64 * 1_000_000;

/// What goes with QUIC listeners, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Around {
    /// The numbers by which rules of classes know them, as of [`crate::Guard::quic_owners`]; of one without a number are only the
    /// classes that name no listener.
    pub owners: BTreeMap<String, OwnerId>,
    /// The network namespaces in which those with `where` are to be in force.
    pub namespaces: BTreeMap<String, BTreeSet<Namespace>>,
}

/// The programs, loaded, and attached where [`Quic::attach`] said. Dropping it (or the death of the process) detaches
/// everything.
pub struct Quic {
    // Links before the skeleton: programs leave the hooks first.
    links: BTreeMap<u32, [OwnedFd; 2]>,
    skel: QuicSkel<'static>,
    /// Weir's own network namespace.
    own: Namespace,
    bare: Bare,
    /// What is attached in other network namespaces.
    elsewhere: Elsewhere,
    slots: BTreeMap<String, u16>,
    places: BTreeMap<Vec<u8>, quic_policy>,
}

impl Quic {
    /// Loads the BPF programs, without classes. Nothing is attached yet and no listener is known.
    ///
    /// # Errors
    /// No rights, or the kernel lacks something.
    pub fn load() -> Result<Quic> {
        Quic::with(None)
    }

    /// The same with the classes of a guard, on which they are put in force.
    ///
    /// # Errors
    /// As of [`Quic::load`].
    pub fn load_beside(classes: &ClassMaps) -> Result<Quic> {
        Quic::with(Some(classes))
    }

    fn with(classes: Option<&ClassMaps>) -> Result<Quic> {
        Ok(Quic {
            links: BTreeMap::new(),
            skel: load::load(classes)?,
            own: Namespace::current()?,
            bare: Bare::default(),
            elsewhere: Elsewhere::default(),
            slots: BTreeMap::new(),
            places: BTreeMap::new(),
        })
    }

    /// Loads the programs for devices without a link header, which the first such device would.
    pub(crate) fn load_bare(&self) -> Result<()> {
        self.bare.programs(&self.skel).map(drop)
    }

    /// Puts these in force, at most [`QuicListener::MOST`], no two of one address. A listener keeps its counters by its
    /// name. Each is put in force for itself: an attempt that comes meanwhile is judged by the old or by the new one.
    ///
    /// # Errors
    /// The kernel takes no more: then some of them may be in force.
    pub fn apply(&mut self, listeners: &[QuicListener], around: &Around) -> Result<()> {
        let slots = self.assign_slots(listeners)?;
        let numbers = |name: &str| Numbers {
            counters: slots[name],
            owner: around.owners.get(name).copied().unwrap_or(0),
        };
        let mut wanted = BTreeMap::new();
        for (namespace, listeners) in self.by_namespace(listeners, around) {
            wanted.extend(places_of(namespace, &listeners, numbers));
        }
        if wanted.len() > MOST_PLACES {
            return Err(Error::Failed {
                what: "guard QUIC servers".into(),
                cause: format!("they are at more than {MOST_PLACES} addresses"),
            });
        }
        // Those that come are looked for before they are there, and those that go until they are gone.
        self.mark_ports(wanted.keys().chain(self.places.keys()).cloned().collect());
        let map = &self.skel.maps.places;
        for (place, policy) in &wanted {
            map.update(place, policy.bytes(), MapFlags::ANY)
                .map_err(of_libbpf("put a QUIC listener in force"))?;
            self.places.insert(place.clone(), *policy);
        }
        let leaving = |at: &Vec<u8>| !wanted.contains_key(at);
        let leaving: Vec<Vec<u8>> = self
            .places
            .keys()
            .filter(|at| leaving(at))
            .cloned()
            .collect();
        for place in leaving {
            map.delete(&place)
                .map_err(of_libbpf("take a QUIC listener away"))?;
            self.places.remove(&place);
        }
        self.mark_ports(wanted.keys().cloned().collect());
        (self.places, self.slots) = (wanted, slots);
        Ok(())
    }

    /// Who is where, by the namespace's cookie.
    fn by_namespace<'a>(
        &self,
        listeners: &'a [QuicListener],
        around: &Around,
    ) -> BTreeMap<Namespace, Vec<&'a QuicListener>> {
        let mut all: BTreeMap<Namespace, Vec<&QuicListener>> = BTreeMap::new();
        for one in listeners {
            let own = (one.location == Where::Here).then_some(self.own);
            let found = around.namespaces.get(&one.name).into_iter().flatten();
            for namespace in own.into_iter().chain(found.copied()) {
                all.entry(namespace).or_default().push(one);
            }
        }
        all
    }

    /// Says at which ports listeners are to be looked for, and how.
    fn mark_ports(&mut self, places: Vec<Vec<u8>>) {
        let mut marks = vec![0u8; 1 << 16];
        for place in places {
            let (port, mark) = places::mark_of(&place);
            marks[usize::from(port)] |= mark;
        }
        let bss = self.skel.maps.bss_data.as_deref_mut();
        let ports = &mut bss.expect("its globals are mapped").quic_ports;
        for (to, mark) in ports.iter_mut().zip(marks) {
            // SAFETY: mapped and aligned; the programs only read it.
            unsafe { write_volatile(to, mark) };
        }
    }

    /// Slots of counters by name; a listener that stays keeps its own, and that of a new one begins with zero.
    fn assign_slots(&self, listeners: &[QuicListener]) -> Result<BTreeMap<String, u16>> {
        let staying = |one: &&QuicListener| self.slots.contains_key(&one.name);
        let stays = listeners.iter().filter(staying);
        let mut slots: BTreeMap<String, u16> = stays
            .map(|one| (one.name.clone(), self.slots[&one.name]))
            .collect();
        for one in listeners.iter().filter(|one| !staying(one)) {
            let is_free = |slot: &u16| !slots.values().any(|used| used == slot);
            // Slots of listeners that go last: packets may still count there.
            let leaving = |slot: &u16| self.slots.values().any(|used| used == slot);
            let mut numbers: Vec<u16> = (0..QuicListener::MOST as u16).filter(is_free).collect();
            numbers.sort_by_key(leaving);
            let free = numbers.first().copied().ok_or_else(|| Error::Failed {
                what: "guard a QUIC server".into(),
                cause: format!("there are more than {} of them", QuicListener::MOST),
            })?;
            percpu::reset::<quic_counters>(&self.skel.maps.counters, free)
                .map_err(of_libbpf("reset the counters of a QUIC listener"))?;
            for (server, _) in self.states()? {
                if server.counters == u32::from(free) {
                    // Another CPU may have taken it away meanwhile.
                    let _ = self.skel.maps.states.delete(server.bytes());
                }
            }
            slots.insert(one.name.clone(), free);
        }
        Ok(slots)
    }

    /// Attaches to one interface (tcx ingress and egress). Attaching twice is no error.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on link layers other than Ethernet and bare IP; else what the kernel refused.
    pub fn attach(&mut self, ifindex: u32) -> Result<()> {
        let stays = |links: &[OwnedFd; 2]| links.iter().all(|link| is_on_device(link.as_fd()));
        if self.links.get(&ifindex).is_some_and(stays) {
            return Ok(());
        }
        // What is left of it: the kernel takes no program twice.
        self.detach(ifindex);
        let header = link_header_len(ifindex)?.ok_or_else(|| Error::Unsupported {
            what: "[[quic]] on this interface".into(),
            cause: "it carries neither Ethernet frames nor bare IP packets".into(),
            hint: "connections through it are left alone".into(),
        })?;
        let programs = match header {
            0 => self.bare.programs(&self.skel)?,
            _ => self.programs(),
        };
        // First the way out: without it no answer is seen.
        let leave = link(programs.leave, ifindex, Hook::TcxOut)?;
        let enter = link(programs.enter, ifindex, Hook::Tcx(Rank::Quic))?;
        self.links.insert(ifindex, [enter, leave]);
        Ok(())
    }

    /// Attaches to an interface of another namespace, in a while; [`Quic::attached_in`] says whether it is. Attaching twice is no
    /// error, and attaches again where it has failed.
    ///
    /// # Errors
    /// No thread can be started, or no descriptors are left.
    pub fn attach_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
    ) -> Result<()> {
        let programs = programs_of(&self.skel);
        self.elsewhere.attach(at, namespace, ifindex, &programs)
    }

    /// Notes what has come of [`Quic::attach_in`].
    pub fn follow_attached(&mut self) {
        self.elsewhere.follow(|| self.bare.programs(&self.skel));
    }

    /// Whether both programs are on this interface of another namespace; or why not, if that is known.
    pub fn attached_in(
        &self,
        namespace: Namespace,
        ifindex: u32,
    ) -> std::result::Result<bool, &str> {
        self.elsewhere.is_attached(namespace, ifindex)
    }

    /// Whether [`Quic::attach_in`] is under way at this interface of another namespace.
    pub fn is_awaited_in(&self, namespace: Namespace, ifindex: u32) -> bool {
        self.elsewhere.is_awaited(namespace, ifindex)
    }

    /// Detaches from one interface of another namespace, in a while; no error if not attached.
    pub fn detach_in(&mut self, namespace: Namespace, ifindex: u32) {
        self.elsewhere.detach(namespace, ifindex);
    }

    /// Takes the guard off in all other namespaces, in a while.
    pub fn leave_elsewhere(&mut self) {
        std::mem::take(&mut self.elsewhere).leave();
    }

    /// The interfaces of other namespaces to which it is attached, or about to be.
    pub fn interfaces_elsewhere(&self) -> Vec<(Namespace, u32)> {
        self.elsewhere.interfaces()
    }

    pub(crate) fn programs(&self) -> Programs<'_> {
        programs_of(&self.skel)
    }

    /// Detaches from one interface; no error if not attached.
    pub fn detach(&mut self, ifindex: u32) {
        self.links.remove(&ifindex);
    }

    /// Counters of the listener with this name, since it was first guarded.
    ///
    /// # Errors
    /// There is no such listener, or they cannot be read.
    pub fn counters(&self, name: &str) -> Result<QuicCounters> {
        let mut sum = QuicCounters::default();
        let values = percpu::values::<quic_counters>(&self.skel.maps.counters, self.slot(name)?);
        for cpu in values.map_err(of_libbpf("read the counters of a QUIC listener"))? {
            let (counts, _) = cpu.bytes().as_chunks::<8>();
            for (to, count) in sum.0.iter_mut().zip(counts) {
                *to += u64::from_ne_bytes(*count);
            }
        }
        Ok(sum)
    }

    /// The sockets of servers to which attempts have come within a minute, by the listener's name.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn sockets(&self) -> Result<BTreeMap<String, Vec<QuicSocket>>> {
        let names = self.slots.iter();
        let names: BTreeMap<u32, &String> =
            names.map(|(name, slot)| (u32::from(*slot), name)).collect();
        let (mut all, now) = (BTreeMap::<String, Vec<QuicSocket>>::new(), now_ns());
        let states = self.states()?;
        let mut newest = BTreeMap::<u32, u64>::new();
        for (server, state) in &states {
            let newest = newest.entry(server.counters).or_default();
            *newest = (*newest).max(state.admitted_ns);
        }
        for (server, state) in &states {
            let reported = report(state, now, newest[&server.counters]);
            if let (Some(name), Some(socket)) = (names.get(&server.counters), reported) {
                all.entry((*name).clone()).or_default().push(socket);
            }
        }
        Ok(all)
    }

    /// Sampled refusals since the last call (bounded by the ring's size; those that find it full are lost). `classes`: the names
    /// of the classes in force by their slots, as of [`crate::Guard::class_names`]; asked for if there are any refusals.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn refusals(
        &self,
        classes: impl FnOnce() -> BTreeMap<u32, Arc<str>>,
    ) -> Result<Vec<Refusal>> {
        let mut told: Vec<quic_event> = Vec::new();
        drain(&self.skel.maps.quic_events, |event| told.push(event))
            .map_err(of_libbpf("read the sampled refusals of QUIC"))?;
        if told.is_empty() {
            return Ok(Vec::new());
        }
        let classes = classes();
        let names = self.slots.iter();
        let names: BTreeMap<u16, Arc<str>> = names
            .map(|(name, &slot)| (slot, name.as_str().into()))
            .collect();
        let now = now_ns();
        let refusal = |event: &quic_event| {
            // One of a listener that is gone is nobody's.
            let listener = names.get(&event.listener)?.clone();
            let class = classes.get(&event.class).cloned();
            events::refusal(event, listener, class, now)
        };
        Ok(told.iter().filter_map(refusal).collect())
    }

    /// The sockets that the programs remember, in one call of the kernel: there may be thousands.
    fn states(&self) -> Result<Vec<(quic_server, quic_state)>> {
        let most = abi::QUIC_SOCKETS;
        let states = self
            .skel
            .maps
            .states
            .lookup_batch(most, MapFlags::ANY, MapFlags::ANY);
        let states = states.map_err(of_libbpf("read how QUIC servers answer"))?;
        let states = states.filter_map(|(server, state)| {
            Some((quic_server::read(&server)?, quic_state::read(&state)?))
        });
        Ok(states.collect())
    }

    fn slot(&self, name: &str) -> Result<u16> {
        self.slots.get(name).copied().ok_or_else(|| Error::Failed {
            what: format!("count for \"{name}\""),
            cause: "no such QUIC listener".into(),
        })
    }
}

fn programs_of<'a>(skel: &'a QuicSkel<'_>) -> Programs<'a> {
    Programs {
        enter: skel.progs.quic_in.as_fd(),
        leave: skel.progs.quic_out.as_fd(),
    }
}

/// `None`: nothing has come for long.
/// `newest`: when the last attempt came to any socket of the listener. If that was another one for a while, this one may be
/// closed: it answers none, and nothing is in its buffer.
fn report(state: &quic_state, now: u64, newest: u64) -> Option<QuicSocket> {
    if now.saturating_sub(state.admitted_ns) > REPORTED_FOR_NS {
        return None;
    }
    let pending = match now.saturating_sub(state.silent_ns) > FORGOTTEN_NS {
        true => 0,
        false => pending(state),
    };
    let is_asked = newest.saturating_sub(state.admitted_ns) <= FORGOTTEN_NS;
    let service =
        (state.service_ns > 0 && is_asked).then(|| Duration::from_nanos(state.service_ns));
    Some(QuicSocket {
        pending,
        wait: service.map(|service| service * pending),
        service,
        buffer: if is_asked { state.buffer } else { 0 },
        buffer_limit: state.buffer_limit,
        standing: state.standing != 0 && pending > 0,
        least: least(state),
    })
}

/// `QUIC_TRUST_LEAST` of bpf/lib/quic_wait.h.
const TRUST_LEAST: u64 = 16;
/// `QUIC_BEARABLE_NS` there.
const BEARABLE_NS: u64 = 1_000_000_000;

/// `quic_least()` there.
pub(crate) fn least(state: &quic_state) -> u32 {
    let bearable = BEARABLE_NS.checked_div(state.service_ns);
    let least = u64::from(state.least).min(bearable.unwrap_or(u64::MAX));
    (least as u32).max(abi::QUIC_LEAST_MIN)
}

/// `quic_pending()` there.
pub(crate) fn pending(state: &quic_state) -> u32 {
    let newest = state
        .admitted
        .wrapping_sub(state.answered)
        .wrapping_sub(state.excused);
    let newest = (newest as i32).max(0) as u32;
    let share = u64::from(state.trust_answered);
    let all = share + u64::from(state.trust_lost);
    let newest = match state.trust_lost > 0 && all >= TRUST_LEAST {
        true => (u64::from(newest) * share).div_ceil(all) as u32,
        false => newest,
    };
    let overtaken = u64::from(state.overtaken) + u64::from(state.overtaken_before);
    let answered = u64::from(state.overtaken_answered);
    let known = answered + u64::from(state.overtaken_lost);
    let still_waiting = overtaken.wrapping_mul(answered).checked_div(known);
    newest.saturating_add(still_waiting.unwrap_or(0) as u32)
}

const _: () = assert!(size_of::<quic_counters>() == 8 * QUIC_VERDICTS.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_server_that_has_started_again_answers_none_any_more() {
        const SECOND_NS: u64 = 1_000_000_000;
        let state = quic_state {
            admitted_ns: 100 * SECOND_NS,
            silent_ns: 100 * SECOND_NS,
            service_ns: 2_000_000,
            buffer: 900,
            buffer_limit: 1000,
            ..Default::default()
        };
        let told = |newest_s, now_s| {
            let socket = report(&state, now_s * SECOND_NS, newest_s * SECOND_NS);
            socket.map(|one| (one.service.is_some(), one.buffer, one.buffer_limit))
        };
        // An idle server is as it was at the last attempt.
        assert_eq!(told(100, 130), Some((true, 900, 1000)));
        assert_eq!(told(101, 130), Some((true, 900, 1000)));
        assert_eq!(told(103, 103), Some((false, 0, 1000)));
        assert_eq!(told(161, 161), None);
    }

    #[test]
    fn those_who_were_overtaken_are_told_as_they_are_judged() {
        let state = quic_state {
            admitted: 110,
            answered: 107,
            excused: 1,
            overtaken: 50,
            overtaken_before: 10,
            overtaken_answered: 30,
            overtaken_lost: 10,
            ..Default::default()
        };
        assert_eq!(report(&state, 0, 0).map(|one| one.pending), Some(2 + 45));
    }
}
