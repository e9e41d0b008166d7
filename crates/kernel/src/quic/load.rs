//! Loading bpf/quic.bpf.c: at once for Ethernet devices, for devices without a link header when the first appears.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use libbpf_rs::skel::{OpenSkel, Skel};

use weir_core::abi;

use super::skel::{OpenQuicSkel, QuicSkel, QuicSkelBuilder, types};
use crate::error::{Error, Result, of_libbpf};
use crate::guard::ClassMaps;
use crate::namespace::Namespace;
use crate::object::{self, Share, SharedMaps, open, open_in};
use crate::random::random;

/// `classes`: those of a guard.
pub(super) fn load(classes: Option<&ClassMaps>) -> Result<QuicSkel<'static>> {
    const WHAT: &str = "load the programs that guard QUIC";
    let mut open = open::<QuicSkelBuilder>().map_err(of_libbpf(WHAT))?;
    constants(&mut open).own_netns = Namespace::current()?.cookie();
    let pairs = flows_remembered() / 2;
    constants(&mut open).flow_pairs = pairs;
    open.maps
        .flows
        .set_max_entries(pairs)
        .map_err(of_libbpf(WHAT))?;
    for key in constants(&mut open).flow_keys.word.as_flattened_mut() {
        *key = random()?;
    }
    if let Some(ClassMaps(maps)) = classes {
        maps.give_to(open.open_object_mut(), Share::Declared)
            .map_err(of_libbpf(WHAT))?;
    }
    object::load(open, WHAT)
}

/// Attempts that are remembered at a time.
fn flows_remembered() -> u32 {
    let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1) as u32;
    let flows = abi::QUIC_FLOWS_PER_CPU.saturating_mul(cpus);
    let most = flows.clamp(abi::QUIC_FLOWS_LEAST, abi::QUIC_FLOWS_MOST);
    most.next_power_of_two()
}

fn constants<'a>(open: &'a mut OpenQuicSkel<'_>) -> &'a mut types::rodata {
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("it has constants")
}

/// The two programs of a device.
pub(crate) struct Programs<'a> {
    /// At tc ingress.
    pub enter: BorrowedFd<'a>,
    /// At tc egress.
    pub leave: BorrowedFd<'a>,
}

/// The programs for devices without a link header. They share the maps of the first ones.
#[derive(Default)]
pub(super) struct Bare(OnceLock<(OwnedFd, OwnedFd)>);

impl Bare {
    pub(super) fn programs(&self, first: &QuicSkel<'_>) -> Result<Programs<'_>> {
        if self.0.get().is_none() {
            let _ = self.0.set(load_beside(first)?);
        }
        let (enter, leave) = self.0.get().expect("set above");
        Ok(Programs {
            enter: enter.as_fd(),
            leave: leave.as_fd(),
        })
    }
}

fn load_beside(first: &QuicSkel<'_>) -> Result<(OwnedFd, OwnedFd)> {
    const WHAT: &str = "load further programs that guard QUIC";
    let failed = || of_libbpf(WHAT);
    let mut storage = MaybeUninit::uninit();
    let mut open = open_in::<QuicSkelBuilder>(&mut storage).map_err(failed())?;
    *constants(&mut open) = *first.maps.rodata_data.expect("it has constants");
    constants(&mut open).link_header = 0;
    SharedMaps::of(first.object())?
        .give_to(open.open_object_mut(), Share::Variables)
        .map_err(failed())?;
    let loaded = object::load(open, WHAT)?;
    let keep = |program: BorrowedFd<'_>| {
        program.try_clone_to_owned().map_err(|e| Error::Failed {
            what: "keep a further program that guards QUIC".into(),
            cause: e.to_string(),
        })
    };
    Ok((
        keep(loaded.progs.quic_in.as_fd())?,
        keep(loaded.progs.quic_out.as_fd())?,
    ))
}
