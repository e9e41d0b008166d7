//! TIME-WAIT of the connections that this machine opens (bpf/timewait.bpf.c): loading, attaching, records.

mod load;
pub(crate) mod skel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{read_volatile, write_volatile};

use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use weir_core::abi;
use weir_core::prefix::Prefix;
use weir_core::timewait::{Destination, MAX_DESTINATIONS};

use crate::error::{Error, Result, of_libbpf};
use crate::guard::attach::{Hook, link, link_header_len};
use crate::object::{Plain, percpu, plain};
use load::Bare;
use skel::TimewaitSkel;
use skel::types::{self, timewait_counters, timewait_prefix, timewait_rule};

plain!(timewait_counters, timewait_prefix);

/// The programs, loaded, and attached where [`TimeWait::attach`] said. Dropping it (or the death of the process)
/// detaches everything and forgets the records.
pub struct TimeWait {
    // Links before the skeleton: fields drop in this order, and programs leave the hooks first.
    links: BTreeMap<u32, OwnedFd>,
    skel: TimewaitSkel<'static>,
    bare: Bare,
    /// Index of each destination in the programs' tables, by name.
    slots: BTreeMap<String, u16>,
    /// What the trie of prefixes has.
    prefixes: BTreeSet<Vec<u8>>,
}

/// What has become of a destination's connections since it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeWaitFigures {
    /// Records here, as of the last [`TimeWait::sweep`].
    pub held: u64,
    /// Connections whose TIME-WAIT the server dropped for a record here.
    pub swapped: u64,
    /// Records that gave way to a new connection, by its timestamps.
    pub reused: u64,
    /// New connections that were reset because of a record.
    pub refused: u64,
    /// Connections whose TIME-WAIT stayed at the server, because there was no free record.
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
        TimeWait::with_records(abi::MAX_TIMEWAIT_RECORDS)
    }

    /// The same, with room for so many records.
    ///
    /// # Errors
    /// As of [`TimeWait::load`].
    pub fn with_records(records: u32) -> Result<TimeWait> {
        Ok(TimeWait {
            links: BTreeMap::new(),
            skel: load::load(records)?,
            bare: Bare::default(),
            slots: BTreeMap::new(),
            prefixes: BTreeSet::new(),
        })
    }

    /// Puts these destinations in force, one after the other: a connection that closes meanwhile is treated by the
    /// old or by the new ones. A destination keeps its figures by its name.
    ///
    /// # Errors
    /// More destinations than there is room for, or the kernel takes no more prefixes.
    pub fn apply(&mut self, destinations: &[Destination]) -> Result<()> {
        let slots = self.assign_slots(destinations)?;
        let mut rules = vec![timewait_rule::default(); MAX_DESTINATIONS];
        let mut ports = vec![0u8; usize::from(u16::MAX) + 1];
        let mut prefixes = BTreeMap::new();
        for one in destinations {
            let slot = slots[&one.name];
            rules[usize::from(slot)] = timewait_rule {
                length_ns: one.timewait_length.as_nanos() as u64,
                timewait: u32::from(one.timewait as u8),
                held: 0,
            };
            match one.to_port {
                Some(port) => ports[usize::from(port.to_be())] = 1,
                None => ports.fill(1),
            }
            for prefix in one.prefixes() {
                let key = key_of(&prefix, one.to_port);
                prefixes.insert(key.bytes().to_vec(), u32::from(slot));
            }
        }
        self.write_prefixes(&prefixes)?;
        let bss = self.bss();
        for (to, rule) in bss.rules.iter_mut().zip(rules) {
            let held = to.held;
            *to = timewait_rule { held, ..rule };
        }
        for (to, port) in bss.ports.iter_mut().zip(ports) {
            // SAFETY: mapped and aligned; the programs only read it.
            unsafe { write_volatile(to, port) };
        }
        self.slots = slots;
        Ok(())
    }

    /// New ones first: one that stays is never missing.
    fn write_prefixes(&mut self, prefixes: &BTreeMap<Vec<u8>, u32>) -> Result<()> {
        let failed = || of_libbpf("enter the destinations");
        let trie = &self.skel.maps.prefixes;
        for (key, slot) in prefixes {
            trie.update(key, slot.bytes(), MapFlags::ANY)
                .map_err(failed())?;
            self.prefixes.insert(key.clone());
        }
        let gone = self
            .prefixes
            .iter()
            .filter(|key| !prefixes.contains_key(*key));
        for key in gone.cloned().collect::<Vec<_>>() {
            trie.delete(&key).map_err(failed())?;
            self.prefixes.remove(&key);
        }
        Ok(())
    }

    /// One that stays keeps its index; a new one gets an index that none has, if there is such a one, and begins at 0.
    fn assign_slots(&self, destinations: &[Destination]) -> Result<BTreeMap<String, u16>> {
        let stays = |name: &String| destinations.iter().any(|one| one.name == *name);
        let mut slots: BTreeMap<String, u16> = self
            .slots
            .iter()
            .filter(|(name, _)| stays(name))
            .map(|(name, slot)| (name.clone(), *slot))
            .collect();
        for one in destinations {
            if slots.contains_key(&one.name) {
                continue;
            }
            let has = |used: &BTreeMap<String, u16>, slot: &u16| used.values().any(|u| u == slot);
            let all = || 0..MAX_DESTINATIONS as u16;
            let unused = all().find(|slot| !has(&slots, slot) && !has(&self.slots, slot));
            let slot = unused.or_else(|| all().find(|slot| !has(&slots, slot)));
            let slot = slot.ok_or_else(|| Error::Failed {
                what: "enter the destinations".into(),
                cause: format!("more than {MAX_DESTINATIONS}"),
            })?;
            percpu::reset::<timewait_counters>(&self.skel.maps.counters, slot)
                .map_err(of_libbpf("reset the counters of a destination"))?;
            slots.insert(one.name.clone(), slot);
        }
        Ok(slots)
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
        let link = link(program.as_raw_fd(), ifindex, Hook::Tcx)?;
        self.links.insert(ifindex, link);
        Ok(())
    }

    /// Detaches from one interface; no error if not attached.
    pub fn detach(&mut self, ifindex: u32) {
        self.links.remove(&ifindex);
    }

    /// Takes away the records that have ended, and counts the others.
    ///
    /// # Errors
    /// The kernel cannot run the program.
    pub fn sweep(&mut self) -> Result<()> {
        let sweep = self
            .skel
            .progs
            .timewait_sweep
            .test_run(ProgramInput::default());
        sweep
            .map(drop)
            .map_err(of_libbpf("look for records that have ended"))
    }

    /// The figures of the destination with this name.
    ///
    /// # Errors
    /// There is none, or the counters cannot be read.
    pub fn figures(&self, name: &str) -> Result<TimeWaitFigures> {
        let slot = *self.slots.get(name).ok_or_else(|| Error::Failed {
            what: format!("count for \"{name}\""),
            cause: "no such destination".into(),
        })?;
        let counters = percpu::values::<timewait_counters>(&self.skel.maps.counters, slot)
            .map_err(of_libbpf(format!("count for \"{name}\"")))?;
        let bss = self.skel.maps.bss_data.as_deref();
        let rule = &bss.expect("its globals are mapped").rules[usize::from(slot)];
        let mut sum = TimeWaitFigures {
            // SAFETY: mapped and aligned; timewait_sweep writes it.
            held: unsafe { read_volatile(&rule.held) }.into(),
            ..TimeWaitFigures::default()
        };
        for one in counters {
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

/// Of a prefix as the programs look for it: IPv4 as `::ffff:a.b.c.d`.
fn key_of(prefix: &Prefix, port: Option<u16>) -> timewait_prefix {
    let (address, before) = match prefix.network() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96),
        IpAddr::V6(ip) => (ip, 0),
    };
    let octets = address.octets();
    let (words, _) = octets.as_chunks();
    timewait_prefix {
        bits: 32 + before + u32::from(prefix.prefix_len()),
        port: port.unwrap_or(0).to_be(),
        pad: 0,
        addr: std::array::from_fn(|i| u32::from_ne_bytes(words[i])),
    }
}
