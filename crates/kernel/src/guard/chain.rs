//! The programs at tc ingress of an interface (tcx), in the order in which they see a packet. One that returns TCX_NEXT, as
//! weir's do for what they let by, hands it to the next; any other value ends the chain.
//!
//! weir goes before all others: behind one that ends the chain it would guard nothing. It takes its place once, and does
//! not take it again from one that goes before it later, which has asked the kernel for that place as weir did: two that
//! each want to be first would push each other for ever. [`neighbours`] tells who they are.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Result, of_errno};
use crate::watch::program_name;

/// Programs in a chain at most (BPF_MPROG_MAX of linux/bpf_mprog.h).
const MOST: usize = 64;

/// weir's own programs at tc ingress, in the order in which they are to see a packet: a SYN that the guard refuses is
/// none that a record of TIME-WAIT has to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The XDP front, which is in no chain.
    Front,
    Guard,
    TimeWait,
    Quic,
}

/// What this process has attached, by the programs' ids: the kernel gives an id again after two thousand million others.
static OWN: Mutex<BTreeMap<u32, Rank>> = Mutex::new(BTreeMap::new());
/// Names of others that were asked for. A program's name never changes.
static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A BPF program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Its id in the kernel.
    pub id: u32,
    /// Its name in the kernel, of at most 15 characters; `a program without a name` where it has none or it cannot be read.
    pub name: String,
}

/// The programs of others around the guard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Neighbours {
    /// Those that see a packet before the guard.
    pub before: Vec<Program>,
    /// Those behind it; where it is not attached, all.
    pub behind: Vec<Program>,
}

/// A chain as it is at one moment.
pub(crate) struct Chain {
    /// Grows with each change.
    pub revision: u64,
    /// The programs' ids, in order.
    pub programs: Vec<u32>,
    /// The ids of the links by which they are there, likewise; 0 of a program without one.
    pub links: Vec<u32>,
}

/// Where a program is to be attached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Before all that are there.
    First,
    /// Behind the program with this id, which is weir's.
    Behind(u32),
}

impl Chain {
    /// Where weir's program of this rank belongs.
    pub fn anchor(&self, rank: Rank) -> Anchor {
        let own = lock(&OWN);
        let lower = |id: &&u32| own.get(id).is_some_and(|other| *other < rank);
        match self.programs.iter().rfind(lower) {
            Some(id) => Anchor::Behind(*id),
            None => Anchor::First,
        }
    }
}

/// Notes that this process has attached a program.
pub(crate) fn note_own(program: BorrowedFd<'_>, rank: Rank) {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: info has len bytes, and asks for no arrays.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    };
    if failed == 0 {
        lock(&OWN).insert(info.id, rank);
    }
}

/// Whether this process has an XDP front anywhere.
pub fn has_front() -> bool {
    lock(&OWN).values().any(|rank| *rank == Rank::Front)
}

/// Whether this process has attached the program with this id.
pub fn is_own(id: u32) -> bool {
    lock(&OWN).contains_key(&id)
}

/// The chain at tc ingress of an interface; none of one that has gone.
pub(crate) fn tcx(ifindex: u32) -> Result<Chain> {
    let (mut ids, mut links) = ([0u32; MOST], [0u32; MOST]);
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    opts.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: opts is initialised, and the arrays that it names have as many entries as it says; all outlive the call.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query_opts(ifindex as i32, libbpf_sys::BPF_TCX_INGRESS, &mut opts)
    };
    match -failed {
        0 => {}
        // Linux 6.6 says ENOENT of an interface that has never had a program.
        libc::ENODEV | libc::ENOENT => {
            return Ok(Chain {
                revision: 0,
                programs: Vec::new(),
                links: Vec::new(),
            });
        }
        _ => {
            return Err(of_errno(format!(
                "ask for the programs at tc ingress of interface {ifindex}"
            )));
        }
    }
    // SAFETY: the kernel has filled the union's one integer in, whichever its name.
    let count = unsafe { opts.__bindgen_anon_1.count } as usize;
    Ok(Chain {
        revision: opts.revision,
        programs: ids[..count.min(MOST)].to_vec(),
        links: links[..count.min(MOST)].to_vec(),
    })
}

/// All programs at tc ingress of an interface, weir's too, in order; none of one that has gone.
///
/// # Errors
/// No right to ask, or no memory.
pub fn chain(ifindex: u32) -> Result<Vec<Program>> {
    Ok(tcx(ifindex)?.programs.into_iter().map(named).collect())
}

/// The programs of others at tc ingress of an interface.
///
/// # Errors
/// As of [`chain`].
pub fn neighbours(ifindex: u32) -> Result<Neighbours> {
    let ids = tcx(ifindex)?.programs;
    let own = lock(&OWN).clone();
    let guard = ids.iter().position(|id| own.get(id) == Some(&Rank::Guard));
    let (before, behind) = ids.split_at(guard.unwrap_or(0));
    let others = |ids: &[u32]| {
        let others = ids.iter().filter(|id| !own.contains_key(id));
        others.map(|id| named(*id)).collect()
    };
    Ok(Neighbours {
        before: others(before),
        behind: others(behind),
    })
}

/// The XDP programs of an interface, each with where it runs: `driver`, `generic` or `device`; none of one that has gone.
///
/// # Errors
/// The kernel does not say.
pub fn xdp(ifindex: u32) -> Result<Vec<(&'static str, Program)>> {
    let mut opts = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: opts is initialised and outlives the call.
    let failed = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &mut opts) };
    match -failed {
        0 => {}
        libc::ENODEV => return Ok(Vec::new()),
        _ => {
            return Err(of_errno(format!(
                "ask for the XDP programs of interface {ifindex}"
            )));
        }
    }
    let all = [
        ("device", opts.hw_prog_id),
        ("driver", opts.drv_prog_id),
        ("generic", opts.skb_prog_id),
    ];
    let there = all.into_iter().filter(|(_, id)| *id != 0);
    Ok(there.map(|(mode, id)| (mode, named(id))).collect())
}

fn named(id: u32) -> Program {
    let known = lock(&NAMES).get(&id).cloned();
    let name = known.unwrap_or_else(|| {
        let name = program_name(id);
        lock(&NAMES).insert(id, name.clone());
        name
    });
    Program { id, name }
}
