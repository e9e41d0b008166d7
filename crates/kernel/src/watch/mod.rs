//! What weir looks at beside packets (bpf/watch.bpf.c): the connections that come to guarded ports, and the names of
//! programs.

pub(crate) mod skel;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::write_volatile;
use std::sync::OnceLock;

use libbpf_rs::{MapCore, MapFlags};

use crate::error::{Error, Result, of_libbpf};
use crate::guard::events::address;
use crate::namespace::namespace;
use crate::object::iteration::read_all;
use crate::object::{self, Plain, open, open_in, plain};
use skel::types::{established_key, program_name as program_record};
use skel::{WatchSkel, WatchSkelBuilder};

plain!(established_key, program_record);

/// Counts the connections of guarded ports while it lives.
pub(crate) struct Watch {
    // Before the skeleton: the program leaves its hook first.
    _link: libbpf_rs::Link,
    skel: WatchSkel<'static>,
}

/// Connections that have come to one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// The local address.
    pub ip: IpAddr,
    /// The local port.
    pub port: u16,
    /// Index of the interface that they came over.
    pub ifindex: u32,
    /// How many, since the guard counts.
    pub count: u64,
}

impl Watch {
    /// Counts for no port yet.
    pub fn load() -> Result<Watch> {
        let skel = load_skel()?;
        let link = skel.progs.watch_established.attach();
        Ok(Watch {
            _link: link.map_err(of_libbpf(WHAT))?,
            skel,
        })
    }

    /// Counts for these ports from now on, and no others.
    pub fn set_ports(&mut self, ports: &BTreeSet<u16>) {
        let mut bits = [0u8; weir_core::abi::PORT_BYTES as usize];
        for port in ports {
            bits[usize::from(port >> 3)] |= 1 << (port & 7);
        }
        let bss = self.skel.maps.bss_data.as_deref_mut();
        let bss = bss.expect("its globals are mapped");
        for (to, from) in bss.ports.iter_mut().zip(bits) {
            // SAFETY: mapped and aligned; the program only reads it.
            unsafe { write_volatile(to, from) };
        }
    }

    /// What was counted.
    pub fn established(&self) -> Result<Vec<Established>> {
        let failed = || of_libbpf("read the connections that are established");
        let map = &self.skel.maps.established;
        // A walk begins again where the key before has given way to another.
        let mut all = BTreeMap::new();
        for key in map.keys() {
            // It may give way to another meanwhile.
            let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(failed())? else {
                continue;
            };
            let (Some(key), Some(count)) = (established_key::read(&key), u64::read(&value)) else {
                continue;
            };
            all.insert((key.addr, key.port as u16, key.ifindex), count);
        }
        let established = |((addr, port, ifindex), count)| Established {
            ip: address(addr),
            port,
            ifindex,
            count,
        };
        Ok(all.into_iter().map(established).collect())
    }
}

const WHAT: &str = "count the connections that are established";

/// Gives the program that counts to the kernel; it is not attached.
fn load_skel() -> Result<WatchSkel<'static>> {
    let mut open = open::<WatchSkelBuilder>().map_err(of_libbpf(WHAT))?;
    open.progs.watch_programs.set_autoload(false);
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("it has constants").namespace_inum = namespace()?;
    object::load(open, WHAT)
}

/// Whether the kernel takes these programs. Attaches nothing.
pub(crate) fn try_load() -> Result<()> {
    load_skel()?;
    open_names()?;
    Ok(())
}

/// The name of the BPF program with this id, of at most 15 characters; `a program without a name` where it has none or
/// the kernel does not say. Needs no right to the program itself.
pub fn program_name(id: u32) -> String {
    // The kernel has one list for all namespaces.
    static ITERATOR: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let link = ITERATOR.get_or_init(|| open_names().ok());
    let names = link.as_ref().and_then(|link| names(link).ok());
    let found = names.into_iter().flatten().find(|one| one.id == id);
    let name = found
        .map(|one| one.name.map(|c| c as u8))
        .unwrap_or_default();
    let name = name.split(|c| *c == 0).next().unwrap_or_default();
    match name {
        [] => "a program without a name".to_owned(),
        name => String::from_utf8_lossy(name).into_owned(),
    }
}

fn open_names() -> Result<OwnedFd> {
    const WHAT: &str = "list the BPF programs";
    let mut memory = MaybeUninit::uninit();
    let mut open = open_in::<WatchSkelBuilder>(&mut memory).map_err(of_libbpf(WHAT))?;
    open.progs.watch_established.set_autoload(false);
    let loaded = object::load(open, WHAT)?;
    let link = loaded.progs.watch_programs.attach();
    let link = link.map_err(of_libbpf(WHAT))?;
    let fd = link.as_fd().try_clone_to_owned();
    fd.map_err(|e| Error::Failed {
        what: WHAT.into(),
        cause: e.to_string(),
    })
}

fn names(link: &OwnedFd) -> Result<Vec<program_record>> {
    let bytes = read_all(link.as_fd(), "BPF programs")?;
    Ok(program_record::read_all(&bytes).collect())
}
