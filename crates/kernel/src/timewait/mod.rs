//! Which end of a connection is in TIME-WAIT (bpf/timewait.bpf.c): loading, attaching, records.

mod endings;
mod hooks;
mod load;
pub(crate) mod skel;
mod tables;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use weir_core::abi;
use weir_core::listener::Listener;
use weir_core::timewait::{Destination, TimeWaitMode};

use crate::clock::now_ns;
use crate::cookies;
use crate::error::{Error, Result, of_libbpf};
use crate::guard::attach::{Hook, link, link_header_len};
use crate::guard::chain::Rank;
use crate::object::{Plain, percpu, plain};
use crate::random::random;
use endings::Fate;
use hooks::{Hooks, no_cgroups};
use load::Bare;
use skel::TimewaitSkel;
use skel::types::{
    self, siphash_key, timewait_counters, timewait_ending, timewait_prefix, timewait_reset,
    timewait_rule, timewait_tuple,
};
use tables::{Side, Slots, Tables, Trie, assign_slots};

plain!(
    timewait_counters,
    timewait_ending,
    timewait_prefix,
    timewait_reset,
    timewait_tuple
);

/// In one go, of a few microseconds each: the others wait for the next one.
const ENDINGS_AT_ONCE: usize = 20_000;

/// The slot of connections that negotiate only because their application asked.
const ASKED: u16 = abi::TIMEWAIT_ASKED as u16;

/// Sweeps from one look at the listening sockets to the next: servers that come meanwhile may take what does without
/// negotiation.
const LOOK_EVERY: u32 = 10;

/// The programs, loaded, and attached where [`TimeWait::attach`] said. Dropping it (or the death of the process)
/// detaches everything and forgets the records.
pub struct TimeWait {
    // Links before the skeleton: fields drop in this order, and programs leave the hooks first.
    links: BTreeMap<u32, OwnedFd>,
    /// `None`: nothing negotiates.
    hooks: Option<Hooks>,
    skel: TimewaitSkel<'static>,
    bare: Bare,
    slots: Slots,
    prefixes: Trie,
    own_prefixes: Trie,
    /// See [`TimeWait::warnings`].
    warnings: Vec<String>,
    sweeps: u32,
    /// Connections that [`TimeWait::sweep_endings`] has ended, by the index of their rule.
    swept: BTreeMap<u16, u64>,
}

/// What has become of the connections of a destination or listener since it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeWaitFigures {
    /// Records here, as of the last [`TimeWait::sweep`].
    pub held: u64,
    /// Connections that would have been in TIME-WAIT here, had the other end not agreed to hold it.
    pub avoided: u64,
    /// Connections whose TIME-WAIT the other end holds by agreement.
    pub held_by_peer: u64,
    /// Connections whose TIME-WAIT the server dropped for a record here.
    pub swapped: u64,
    /// Records that gave way to a new connection, by its timestamps.
    pub reused: u64,
    /// SYN/ACKs, or SYNs to a listener, that were turned away because of a record or of a holder.
    pub refused: u64,
    /// Connections whose TIME-WAIT is where it would be without weir. Of a listener that leaves it to the client, also those
    /// whose handshake's last ACK is lost: the client holds all the same, and `held_by_peer` counts them too.
    pub fallback: u64,
}

impl TimeWaitFigures {
    /// Kernel memory of the records, in bytes.
    pub fn bytes(&self) -> u64 {
        self.held * u64::from(abi::TIMEWAIT_RECORD_BYTES)
    }
}

impl TimeWait {
    /// Loads the BPF programs. Nothing is attached yet and no destination is known.
    ///
    /// # Errors
    /// No rights, or the kernel lacks something.
    pub fn load() -> Result<TimeWait> {
        // Twice as many as a config has: at a change the new ones stand beside the old ones for a moment.
        TimeWait::with_space(abi::MAX_TIMEWAIT_RECORDS, 2 * abi::MAX_DESTINATION_PREFIXES)
    }

    /// The same, with room for so many records and prefixes.
    ///
    /// # Errors
    /// As of [`TimeWait::load`].
    pub fn with_space(records: u32, prefixes: u32) -> Result<TimeWait> {
        let mut skel = load::load(records, prefixes)?;
        let bss = skel.maps.bss_data.as_deref_mut();
        bss.expect("its globals are mapped").marks_key = siphash_key {
            k0: random()?,
            k1: random()?,
        };
        Ok(TimeWait {
            links: BTreeMap::new(),
            hooks: None,
            skel,
            bare: Bare::default(),
            slots: Slots::new(),
            prefixes: Trie::default(),
            own_prefixes: Trie::default(),
            warnings: Vec::new(),
            sweeps: 0,
            swept: BTreeMap::new(),
        })
    }

    /// Loads the program for devices without a link header, which the first such device would.
    pub(crate) fn load_bare(&self) -> Result<()> {
        self.bare.program(&self.skel).map(drop)
    }

    /// Puts these in force, one after the other: a connection that closes meanwhile is treated by the old or by the new
    /// ones. A destination or listener keeps its figures by its name. `cgroups` is of [`crate::cgroup_root`]; only negotiation
    /// needs it.
    ///
    /// # Errors
    /// More than there is room for, or a kernel that takes no more prefixes or lacks what negotiation needs. What was in
    /// force stays.
    pub fn apply(
        &mut self,
        destinations: &[Destination],
        listeners: &[Listener],
        cgroups: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let negotiates = listeners.iter().any(Listener::negotiates)
            || destinations
                .iter()
                .any(|one| one.timewait == TimeWaitMode::Negotiate);
        let asks = listeners.iter().any(Listener::lets_sockets_choose)
            || destinations.iter().any(|one| one.per_socket);
        let negotiates = negotiates || asks;
        if negotiates && self.hooks.is_none() {
            self.bss().netns = cookies::of_namespace()?;
        }
        let (slots, tables) = self.tables_of(destinations, listeners)?;
        if negotiates {
            let root = cgroups.ok_or_else(no_cgroups)?;
            let hooks = match self.hooks.take() {
                Some(hooks) => hooks,
                None => Hooks::attach(&self.skel, root)?,
            };
            self.hooks.insert(hooks).let_ask(&self.skel, root, asks);
        }
        self.enter(slots, tables)?;
        if !asks {
            self.forget_wishes();
        }
        self.mark_listeners();
        if !negotiates {
            self.hooks = None;
            self.warnings.clear();
        }
        Ok(())
    }

    fn tables_of(
        &self,
        destinations: &[Destination],
        listeners: &[Listener],
    ) -> Result<(Slots, Tables)> {
        let wanted = destinations
            .iter()
            .map(|one| (Side::Destination, one.name.as_str()))
            .chain(
                listeners
                    .iter()
                    .map(|one| (Side::Listener, one.name.as_str())),
            );
        let slots = assign_slots(&self.slots, wanted)?;
        let tables = Tables::of(destinations, listeners, &slots);
        Ok((slots, tables))
    }

    fn enter(&mut self, slots: Slots, tables: Tables) -> Result<()> {
        self.write_tries(&tables)?;
        for (key, slot) in &slots {
            if !self.slots.contains_key(key) {
                percpu::reset::<timewait_counters>(&self.skel.maps.counters, *slot)
                    .map_err(of_libbpf("reset the counters of a destination or listener"))?;
            }
        }
        self.swept
            .retain(|slot, _| *slot == ASKED || slots.values().any(|s| s == slot));
        self.slots = slots;
        self.write_rules(tables);
        Ok(())
    }

    fn write_tries(&mut self, tables: &Tables) -> Result<()> {
        let maps = &self.skel.maps;
        let before = self.prefixes.entries().clone();
        self.prefixes.write(&maps.prefixes, &tables.prefixes)?;
        self.own_prefixes
            .write(&maps.own_prefixes, &tables.own_prefixes)
            .inspect_err(|_| {
                let _ = self.prefixes.write(&maps.prefixes, &before);
            })
    }

    fn write_rules(&mut self, tables: Tables) {
        let bss = self.bss();
        for (to, rule) in bss.rules.iter_mut().zip(tables.rules) {
            let held = to.held;
            *to = timewait_rule { held, ..rule };
        }
        for (to, port) in bss.ports.iter_mut().zip(tables.ports) {
            // SAFETY: mapped and aligned; the programs only read it.
            unsafe { write_volatile(to, port) };
        }
        for (to, port) in bss.own_ports.iter_mut().zip(tables.own_ports) {
            // SAFETY: likewise.
            unsafe { write_volatile(to, with_past(port, *to)) };
        }
    }

    /// Servers that listen already.
    fn mark_listeners(&mut self) {
        self.warnings.clear();
        let Some(hooks) = &self.hooks else {
            return;
        };
        if let Some(why) = hooks.cannot_ask() {
            self.warnings
                .push(format!("applications cannot ask for TIME-WAIT: {why}"));
        }
        let bss = self.skel.maps.bss_data.as_deref_mut();
        let bss = bss.expect("its globals are mapped");
        let counts = [
            &raw mut bss.unmarked,
            &raw mut bss.with_mptcp,
            &raw mut bss.with_fast_open,
        ];
        for count in counts {
            // SAFETY: mapped and aligned; timewait_mark counts in it, which runs below alone.
            unsafe { write_volatile(count, 0) };
        }
        if let Err(error) = hooks.mark_listeners() {
            self.warnings.push(error.to_string());
            return;
        }
        // SAFETY: likewise.
        let [unmarked, mptcp, fast_open] = counts.map(|count| unsafe { read_volatile(count) });
        if unmarked > 0 {
            self.warnings.push(format!(
                "TIME-WAIT is not negotiated at some listening sockets ({unmarked}): they were there before weir, and \
                 the kernel is older than 6.12. Start their servers anew"
            ));
        }
        for (count, what) in [(mptcp, "MPTCP"), (fast_open, "TCP Fast Open")] {
            if count > 0 {
                self.warnings.push(format!(
                    "TIME-WAIT is not negotiated for connections by {what}, which some listening sockets take ({count}): \
                     these connections are as without weir"
                ));
            }
        }
    }

    /// Why TIME-WAIT of some connections is not negotiated, a sentence each, as of the last [`TimeWait::apply`] or
    /// [`TimeWait::sweep`].
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Attaches to one interface (tcx ingress). Attaching twice is no error.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on link layers other than Ethernet and bare IP; else what the kernel refused.
    pub fn attach(&mut self, ifindex: u32) -> Result<()> {
        if self.links.contains_key(&ifindex) {
            return Ok(());
        }
        let header = link_header_len(ifindex)?.ok_or_else(|| Error::Unsupported {
            what: "[[destination]] on this interface".into(),
            cause: "it carries neither Ethernet frames nor bare IP packets".into(),
            hint: "connections through it are left alone".into(),
        })?;
        let program = match header {
            0 => self.bare.program(&self.skel)?,
            _ => self.skel.progs.timewait_tc.as_fd(),
        };
        let link = link(program, ifindex, Hook::Tcx(Rank::TimeWait))?;
        self.links.insert(ifindex, link);
        Ok(())
    }

    /// Detaches from one interface; no error if not attached.
    pub fn detach(&mut self, ifindex: u32) {
        self.links.remove(&ifindex);
    }

    /// Takes away the records that have ended, and counts the others. Now and then it looks at the listening sockets
    /// too, and each time where one of them gave a warning.
    ///
    /// # Errors
    /// The kernel cannot run the program.
    pub fn sweep(&mut self) -> Result<()> {
        self.sweeps += 1;
        if !self.warnings.is_empty() || self.sweeps.is_multiple_of(LOOK_EVERY) {
            self.mark_listeners();
        }
        let sweep = self
            .skel
            .progs
            .timewait_sweep
            .test_run(ProgramInput::default());
        sweep
            .map(drop)
            .map_err(of_libbpf("look for records that have ended"))
    }

    /// Ends connections whose TIME-WAIT the other end holds and that are in TIME-WAIT here all the same: a program that
    /// still used its socket kept the programs from it. Returns how many it ended.
    ///
    /// # Errors
    /// The kernel has no tcp_diag (CONFIG_INET_DIAG, CONFIG_INET_DIAG_DESTROY).
    pub fn sweep_endings(&mut self) -> Result<u64> {
        let failed = |e: std::io::Error| Error::Failed {
            what: "end connections in TIME-WAIT".into(),
            cause: e.to_string(),
        };
        // SAFETY: mapped and aligned; the programs write it too.
        unsafe { write_volatile(&raw mut self.bss().handed_on, 0) };
        self.look_again();
        let keys = self.endings();
        if keys.is_empty() {
            self.bss().awaited = 0;
            return Ok(0);
        }
        let map = &self.skel.maps.endings;
        let mut table = endings::Table::open().map_err(failed)?;
        let now = now_ns();
        let connections = keys.into_iter().filter_map(|key| {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
            let ending = timewait_ending::read(&value)?;
            timewait_tuple::read(&key)?;
            let age_ns = now.saturating_sub(ending.since_ns);
            Some(((key, ending), ending.rule, age_ns))
        });
        let end = |(key, ending): &(Vec<u8>, timewait_ending)| {
            let Some(tuple) = timewait_tuple::read(key) else {
                return Ok(Fate::Gone);
            };
            match table.end(&tuple, ending.answered != 0)? {
                Fate::Ended if ending.answered != 0 => Ok(Fate::Gone),
                fate => Ok(fate),
            }
        };
        let forget = |(key, _): (Vec<u8>, timewait_ending)| drop(map.delete(&key));
        let round = endings::round(connections, end, forget);
        self.bss().awaited = round.left;
        let total = round.ended.values().sum();
        for (slot, count) in round.ended {
            *self.swept.entry(slot).or_default() += count;
        }
        round.failed.map_or(Ok(total), |error| Err(failed(error)))
    }

    /// Has the next round look for the sockets of RSTs in place of a FIN after which no close came to look.
    fn look_again(&mut self) {
        let maps = &self.skel.maps;
        let now = now_ns();
        let is_due = |bytes: Vec<u8>| {
            let reset = timewait_reset::read(&bytes)?;
            (now.saturating_sub(reset.since_ns) >= abi::TIMEWAIT_RESET_NS.into()).then_some(())
        };
        let oldest = || {
            maps.resets
                .lookup(&[], MapFlags::ANY)
                .ok()?
                .and_then(is_due)?;
            // Another one by now if a close has come to look at it; then it is early, which does no harm.
            let bytes = maps.resets.lookup_and_delete(&[]).ok()??;
            timewait_reset::read(&bytes)
        };
        let mut due = false;
        for reset in std::iter::from_fn(oldest).take(abi::MAX_TIMEWAIT_RESETS as usize) {
            let ending = timewait_ending {
                since_ns: reset.since_ns,
                rule: reset.rule,
                answered: 1,
                ..timewait_ending::zero()
            };
            let (key, value) = (reset.tuple.bytes(), ending.bytes());
            // Without room, its socket is left to the kernel.
            due |= maps.endings.update(key, value, MapFlags::ANY).is_ok();
        }
        if due {
            // SAFETY: mapped and aligned; the programs write it too.
            unsafe { write_volatile(&raw mut self.bss().noted, 1) };
        }
    }

    /// What applications have asked of their sockets no longer counts.
    fn forget_wishes(&mut self) {
        // SAFETY: mapped and aligned; the programs write it too.
        unsafe { write_volatile(&raw mut self.bss().wished, 0) };
    }

    /// Connections that are to end here.
    fn endings(&mut self) -> Vec<Vec<u8>> {
        let noted = &raw mut self.bss().noted;
        let look = || {
            let keys = self.skel.maps.endings.keys();
            keys.take(ENDINGS_AT_ONCE).collect::<Vec<_>>()
        };
        // SAFETY: mapped and aligned; the programs write it too.
        if unsafe { read_volatile(noted) } == 0 {
            return Vec::new();
        }
        let keys = look();
        if !keys.is_empty() {
            return keys;
        }
        // SAFETY: likewise.
        unsafe { write_volatile(noted, 0) };
        fence(Ordering::SeqCst);
        // One that came in between has set it before that.
        let keys = look();
        if !keys.is_empty() {
            // SAFETY: likewise.
            unsafe { write_volatile(noted, 1) };
        }
        keys
    }

    /// The figures of the destination with this name.
    ///
    /// # Errors
    /// There is none, or the counters cannot be read.
    pub fn figures(&self, name: &str) -> Result<TimeWaitFigures> {
        self.figures_of(Side::Destination, name)
    }

    /// The figures of the listener with this name.
    ///
    /// # Errors
    /// As of [`TimeWait::figures`].
    pub fn listener_figures(&self, name: &str) -> Result<TimeWaitFigures> {
        self.figures_of(Side::Listener, name)
    }

    /// The figures of connections that no destination or listener has and that negotiate because their application
    /// asked; since the programs were loaded.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn asked_figures(&self) -> Result<TimeWaitFigures> {
        self.figures_at(ASKED, "sockets that ask")
    }

    fn figures_of(&self, side: Side, name: &str) -> Result<TimeWaitFigures> {
        let slot = self.slots.get(&(side, name.to_owned()));
        let slot = *slot.ok_or_else(|| Error::Failed {
            what: format!("count for \"{name}\""),
            cause: "no such destination or listener".into(),
        })?;
        self.figures_at(slot, name)
    }

    fn figures_at(&self, slot: u16, name: &str) -> Result<TimeWaitFigures> {
        let counters = percpu::values::<timewait_counters>(&self.skel.maps.counters, slot)
            .map_err(of_libbpf(format!("count for \"{name}\"")))?;
        let bss = self.skel.maps.bss_data.as_deref();
        let rule = &bss.expect("its globals are mapped").rules[usize::from(slot)];
        let mut sum = TimeWaitFigures {
            // SAFETY: mapped and aligned; timewait_sweep writes it.
            held: unsafe { read_volatile(&rule.held) }.into(),
            avoided: self.swept.get(&slot).copied().unwrap_or(0),
            ..TimeWaitFigures::default()
        };
        for one in counters {
            sum.avoided += one.avoided;
            sum.held_by_peer += one.held_by_peer;
            sum.swapped += one.swapped;
            sum.reused += one.reused;
            sum.refused += one.refused;
            sum.fallback += one.fallback;
        }
        Ok(sum)
    }

    fn bss(&mut self) -> &mut types::bss {
        let bss = self.skel.maps.bss_data.as_deref_mut();
        bss.expect("its globals are mapped")
    }
}

/// What [`crate::testing`] needs: to have the programs attached by another process, or run on made-up packets.
#[cfg(feature = "testing")]
impl TimeWait {
    /// As [`TimeWait::apply`], without a hook.
    pub(crate) fn enter_unattached(
        &mut self,
        destinations: &[Destination],
        listeners: &[Listener],
    ) -> Result<()> {
        self.bss().netns = cookies::of_namespace()?;
        let (slots, tables) = self.tables_of(destinations, listeners)?;
        self.enter(slots, tables)
    }

    /// Those of socket events, of listening sockets, and of packets.
    pub(crate) fn programs(&self) -> [BorrowedFd<'_>; 3] {
        let programs = &self.skel.progs;
        [
            programs.timewait_ops.as_fd(),
            programs.timewait_mark.as_fd(),
            programs.timewait_tc.as_fd(),
        ]
    }

    pub(crate) fn set_awaited(&mut self, connections: u32) {
        self.bss().awaited = connections;
    }

    /// Forgets all records, and the connections that are to end here.
    pub(crate) fn forget(&mut self) -> Result<()> {
        let maps = &self.skel.maps;
        for map in [&maps.records, &maps.endings] {
            for key in map.keys().collect::<Vec<_>>() {
                // Those that end meanwhile are gone.
                let _ = map.delete(&key);
            }
        }
        while let Ok(Some(_)) = maps.resets.lookup_and_delete(&[]) {}
        self.bss().awaited = 0;
        self.sweep()
    }
}

/// The bits of a local port, and what it was before: its sockets get back what they had.
fn with_past(bits: u16, before: u16) -> u16 {
    let pairs = [
        (abi::PORT_NEGOTIATES, abi::PORT_NEGOTIATED),
        (abi::PORT_HOLDS, abi::PORT_HELD),
    ];
    pairs.into_iter().fold(bits, |all, (is, was)| {
        let (is, was) = (is as u16, was as u16);
        match bits & is == 0 && before & (is | was) != 0 {
            true => all | was,
            false => all,
        }
    })
}

impl Drop for TimeWait {
    fn drop(&mut self) {
        // Their sockets are no longer to ask for options: nobody would answer.
        if self.hooks.is_some() {
            self.forget_wishes();
            self.write_rules(Tables::of(&[], &[], &Slots::new()));
            self.mark_listeners();
        }
    }
}
