//! Passes over the sockets of ports (bpf/residence.bpf.c): which requests are outstanding, and how many were answered.

pub(crate) mod skel;

use std::os::fd::AsFd;
use std::ptr::{read_volatile, write_volatile};
use std::time::Duration;

use weir_core::abi::MAX_RESIDENCES;
use weir_core::residence::{Pass, Request};

use crate::clock::{monotonic, tick_ns};
use crate::error::{Result, of_libbpf};
use crate::namespace::namespace;
use crate::object::iteration::read_all;
use crate::object::{self, Plain, open, plain};
use skel::types::{residence_found, residence_request};
use skel::{ResidenceSkel, ResidenceSkelBuilder};

plain!(residence_request);

const WHAT: &str = "watch the requests of a server";
/// Most ports whose requests can be watched.
pub const MAX_PORTS: usize = MAX_RESIDENCES as usize;

/// Watches the requests of ports while it lives.
pub struct Residences {
    // Before the skeleton: the program leaves its hook first.
    _state: libbpf_rs::Link,
    pass: libbpf_rs::Link,
    skel: ResidenceSkel<'static>,
    ports: Vec<u16>,
}

impl Residences {
    /// Watches these ports, each named once, the first [`MAX_PORTS`] of them.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn load(ports: impl IntoIterator<Item = u16>) -> Result<Residences> {
        let mut skel = load_skel()?;
        let ports: Vec<u16> = ports.into_iter().take(MAX_PORTS).collect();
        let places = &mut bss(&mut skel).places;
        for (place, port) in ports.iter().enumerate() {
            places[usize::from(*port)] = 1 + place as u8;
        }
        let failed = || of_libbpf(WHAT);
        let state = skel.progs.residence_state.attach().map_err(failed())?;
        let pass = skel.progs.residence_pass.attach().map_err(failed())?;
        Ok(Residences {
            _state: state,
            pass,
            skel,
            ports,
        })
    }

    /// The ports that are watched.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Walks the sockets of this network namespace. Gives what it has found of each port, in the order of
    /// [`Residences::ports`].
    ///
    /// # Errors
    /// They cannot be read.
    pub fn pass(&mut self) -> Result<Vec<Pass>> {
        for found in &mut bss(&mut self.skel).found {
            // SAFETY: mapped and aligned; the program writes it only while the iterator is read.
            unsafe { write_volatile(found, residence_found::default()) };
        }
        let at = monotonic();
        let bytes = read_all(self.pass.as_fd(), "connections")?;
        let mut passes = self.found(at);
        for record in residence_request::read_all(&bytes) {
            if let Some(pass) = passes.get_mut(usize::from(record.port)) {
                pass.requests.push(Request {
                    age: tick() * record.age_ticks,
                    queued: record.queued != 0,
                });
            }
        }
        Ok(passes)
    }

    fn found(&mut self, at: Duration) -> Vec<Pass> {
        let bss = bss(&mut self.skel);
        let pass = |place: usize| {
            // SAFETY: mapped and aligned; a counter that changes meanwhile is read before or after.
            let (found, ended) = unsafe {
                (
                    read_volatile(&bss.found[place]),
                    read_volatile(&bss.ended[place]),
                )
            };
            Pass {
                at,
                listening: found.listening > 0,
                connections: found.connections,
                turns: found.turns + ended.turns,
                given_up: ended.given_up,
                opened: ended.opened,
                answers: ended.answers,
                latest: ended.latest,
                first: found.first,
                fresh: found.fresh,
                requests: Vec::new(),
            }
        };
        (0..self.ports.len()).map(pass).collect()
    }
}

/// Length of the kernel's tick, in which the ages of requests are measured.
pub fn tick() -> Duration {
    Duration::from_nanos(tick_ns().into())
}

fn bss<'a>(skel: &'a mut ResidenceSkel<'static>) -> &'a mut skel::types::bss {
    let bss = skel.maps.bss_data.as_deref_mut();
    bss.expect("its globals are mapped")
}

fn load_skel() -> Result<ResidenceSkel<'static>> {
    let mut open = open::<ResidenceSkelBuilder>().map_err(of_libbpf(WHAT))?;
    let constants = open.maps.rodata_data.as_deref_mut();
    let constants = constants.expect("it has constants");
    constants.namespace_inum = namespace()?;
    constants.tick_ns = tick_ns();
    object::load(open, WHAT)
}

/// Whether the kernel takes these programs. Attaches nothing.
pub(crate) fn try_load() -> Result<()> {
    load_skel().map(drop)
}
