//! Loading the guard's programs: what every machine needs at the start, the rest when the first device
//! needs it. The kernel's verifier takes about 0.1 s of CPU time for each.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use libbpf_rs::skel::{OpenSkel, Skel};
use weir_core::abi;

use super::cpus::highest_cpu;
use super::limits::Limits;
use super::skel::{GuardSkel, GuardSkelBuilder, OpenGuardSkel, types};
use crate::error::{Error, Result, of_libbpf};
use crate::namespace::{Namespace, namespace};
use crate::object::{self, Share, SharedMaps, open, open_in};
use crate::probe;
use crate::random::random;
use crate::sysctl;

/// gro_normal_batch where the sysctl cannot be read: the kernel's default.
const DEFAULT_BATCH: i64 = 8;

/// What is done here, in errors.
const GUARD: &str = "load the guard's BPF programs";

/// Loads the maps, the program for tc on Ethernet devices and those that read the listening sockets. `tick_ns`: length of
/// the kernel's tick.
pub(crate) fn load(tick_ns: u32, limits: Limits) -> Result<GuardSkel<'static>> {
    let mut open = open::<GuardSkelBuilder>().map_err(of_libbpf(GUARD))?;
    make_room(&mut open, limits).map_err(of_libbpf(GUARD))?;
    let constants = constants(&mut open);
    constants.nr_cpus = claim_places();
    constants.batch_max = sysctl::read("core/gro_normal_batch")
        .unwrap_or(DEFAULT_BATCH)
        .max(1) as u32;
    constants.tick_ns = tick_ns;
    constants.namespace_inum = namespace()?;
    constants.own_netns = Namespace::current()?.cookie();
    constants.guards_others = u8::from(limits.namespaces > 0);
    constants.queues_mask = limits.sockets - 1;
    // Of the machines that weir runs on, x86-64 keeps loads in order, and stores.
    constants.weakly_ordered = u8::from(!cfg!(target_arch = "x86_64"));
    constants.claims_shared = u8::from(claims_shared());
    constants.cookie_key = types::siphash_key {
        k0: random()?,
        k1: random()?,
    };
    constants.source_secret = source_secret()?;
    constants.kernel_cookies = u8::from(probe::tells_of_kernel_cookies());
    constants.cookies_over_v6 = u8::from(probe::has_ipv6_built_in());
    open.progs.guard_xdp.set_autoload(false);
    object::load(open, GUARD).map_err(because)
}

/// How many places claims may be in. Where CPUs have numbers up to 8, nine: also if there are only five of them.
fn claim_places() -> u32 {
    highest_possible_cpu().map_or(abi::MAX_CPUS, |highest| (highest + 1).min(abi::MAX_CPUS))
}

fn highest_possible_cpu() -> Option<u32> {
    highest_cpu(&sysfs("devices/system/cpu/possible")?)
}

/// Whether a claim may be written by two at once: of CPUs that share a place, those that may come online too, or of softirqs
/// that preempt one another.
fn claims_shared() -> bool {
    let preempted = sysfs("kernel/realtime").is_some_and(|flag| flag.trim() == "1");
    preempted || highest_possible_cpu().is_none_or(|cpu| cpu >= abi::MAX_CPUS)
}

fn sysfs(file: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/sys").join(file)).ok()
}

fn make_room(open: &mut OpenGuardSkel<'_>, limits: Limits) -> libbpf_rs::Result<()> {
    let maps = &mut open.maps;
    maps.counters.set_max_entries(limits.counters())?;
    maps.gates.set_max_entries(limits.counters())?;
    maps.queues.set_max_entries(limits.sockets)?;
    maps.namespaces.set_max_entries(limits.namespaces.max(1))
}

fn source_secret() -> Result<types::source_secret> {
    Ok(types::source_secret {
        start: random()?,
        listener: random()?,
        word: [random()?, random()?, random()?, random()?],
        fold: random()? | 1,
    })
}

/// The programs that not every machine needs. They share the maps of the first ones.
#[derive(Default)]
pub(crate) struct Further {
    tc_bare: OnceLock<OwnedFd>,
    xdp: OnceLock<OwnedFd>,
}

impl Further {
    /// The program for tc on devices without a link header.
    pub(crate) fn tc_bare(&self, first: &GuardSkel<'_>) -> Result<BorrowedFd<'_>> {
        once(&self.tc_bare, || {
            let skel = |open: &mut OpenGuardSkel<'_>| {
                open.progs.guard_xdp.set_autoload(false);
                constants(open).link_header = 0;
            };
            load_beside(first, skel, |loaded| loaded.progs.guard_tc.as_fd())
        })
    }

    /// The program for native XDP.
    pub(crate) fn xdp(&self, first: &GuardSkel<'_>) -> Result<BorrowedFd<'_>> {
        once(&self.xdp, || {
            let skel = |open: &mut OpenGuardSkel<'_>| open.progs.guard_tc.set_autoload(false);
            load_beside(first, skel, |loaded| loaded.progs.guard_xdp.as_fd())
        })
    }
}

fn once(
    cell: &OnceLock<OwnedFd>,
    load: impl FnOnce() -> Result<OwnedFd>,
) -> Result<BorrowedFd<'_>> {
    if let Some(program) = cell.get() {
        return Ok(program.as_fd());
    }
    let program = load()?;
    Ok(cell.get_or_init(|| program).as_fd())
}

/// Loads the object once more, with the maps and constants of the first, and keeps one program of it.
fn load_beside(
    first: &GuardSkel<'_>,
    choose: impl FnOnce(&mut OpenGuardSkel<'_>),
    program: impl for<'s> FnOnce(&'s GuardSkel<'_>) -> BorrowedFd<'s>,
) -> Result<OwnedFd> {
    const WHAT: &str = "load a further program of the guard";
    let failed = || of_libbpf(WHAT);
    let mut storage = MaybeUninit::uninit();
    let mut open = open_in::<GuardSkelBuilder>(&mut storage).map_err(failed())?;
    let theirs = first.maps.rodata_data.expect("the guard has constants");
    *constants(&mut open) = *theirs;
    open.progs.list_listeners.set_autoload(false);
    open.progs.look_again.set_autoload(false);
    open.progs.cookies_renew.set_autoload(false);
    choose(&mut open);
    // Constants differ from program to program.
    SharedMaps::of(first.object())?
        .give_to(open.open_object_mut(), Share::Variables)
        .map_err(failed())?;
    let loaded = object::load(open, WHAT)?;
    program(&loaded)
        .try_clone_to_owned()
        .map_err(|e| Error::Failed {
            what: "keep a further program of the guard".into(),
            cause: e.to_string(),
        })
}

fn constants<'a>(open: &'a mut OpenGuardSkel<'_>) -> &'a mut types::rodata {
    open.maps
        .rodata_data
        .as_deref_mut()
        .expect("the guard has constants")
}

/// The same error, or what this kernel or this user lacks, if that is why.
fn because(error: Error) -> Error {
    if matches!(error, Error::Denied { .. }) && !nix::unistd::geteuid().is_root() {
        return Error::Denied {
            what: "load BPF programs".into(),
            cause: "not root".into(),
        };
    }
    let missing = probe::basics()
        .into_iter()
        .find(|m| m.needed && m.state.is_err());
    match missing {
        Some(m) => Error::Unsupported {
            what: "the guard".into(),
            cause: format!("{} ({})", m.state.expect_err("filtered"), m.name),
            hint: format!(
                "it needs Linux {}; `weir doctor` tells what this kernel has",
                m.min_kernel
            ),
        },
        None => error,
    }
}
