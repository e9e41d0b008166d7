//! What could keep a packet from its socket here (bpf/filters.bpf.c), and the rules of the kernel's own iptables.

pub(crate) mod skel;
mod xtables;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use weir_core::abi;

use crate::error::{Error, Result, of_errno, of_libbpf};
use crate::object::{self, open_in};
use crate::sysctl;
use skel::FiltersSkelBuilder;
pub use xtables::{is_mere_target, nat_ends, nat_target, tables_that_drop, tcp_match};

/// What the calling thread's network namespace has on the way of packets to its sockets and back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketFilters {
    /// Conntrack follows connections, because some rule needs it.
    pub conntrack: bool,
    /// There may be base chains of nftables.
    pub nftables: bool,
    /// A BPF program is at a hook of netfilter.
    pub bpf: bool,
    /// There may be IPsec policies.
    pub ipsec: bool,
    /// IPsec blocks whatever no policy allows.
    pub ipsec_blocks: bool,
    /// Why the kernel's lists cannot be read. The rest is then a guess.
    pub unread: Option<String>,
}

/// What there is in the calling thread's network namespace. Takes some microseconds, and the first call of a process
/// some milliseconds. Where the kernel's lists cannot be read, conntrack is told by the connections that it knows at
/// the moment, BPF programs are not seen, and the others may be there.
pub fn packet_filters() -> PacketFilters {
    match program().and_then(run) {
        Ok(found) => {
            let has = |bit| found >> bit & 1 != 0;
            PacketFilters {
                conntrack: has(abi::FILTER_CONNTRACK),
                nftables: has(abi::FILTER_NFTABLES),
                bpf: has(abi::FILTER_BPF),
                ipsec: has(abi::FILTER_IPSEC),
                ipsec_blocks: has(abi::FILTER_IPSEC_BLOCKS),
                unread: None,
            }
        }
        Err(error) => PacketFilters {
            conntrack: has_entries(),
            nftables: true,
            bpf: false,
            ipsec: true,
            ipsec_blocks: false,
            unread: Some(error.to_string()),
        },
    }
}

/// The program is the same for every namespace: it looks at the caller's. One that could not be loaded is tried again at
/// the next call.
fn program() -> Result<&'static OwnedFd> {
    static PROGRAM: OnceLock<OwnedFd> = OnceLock::new();
    match PROGRAM.get() {
        Some(program) => Ok(program),
        None => load().map(|program| PROGRAM.get_or_init(|| program)),
    }
}

pub(crate) fn load() -> Result<OwnedFd> {
    const WHAT: &str = "load the program that reads the lists of netfilter's hooks";
    let mut memory = MaybeUninit::uninit();
    let open = open_in::<FiltersSkelBuilder>(&mut memory).map_err(of_libbpf(WHAT))?;
    let loaded = object::load(open, WHAT)?;
    let program = loaded.progs.packet_filters.as_fd();
    program.try_clone_to_owned().map_err(|e| Error::Failed {
        what: WHAT.into(),
        cause: e.to_string(),
    })
}

/// What the program says.
fn run(program: &OwnedFd) -> Result<u32> {
    let mut run = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: the options are initialised, outlive the call and name no buffers.
    let failed = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut run) };
    match failed {
        0 => Ok(run.retval),
        _ => Err(of_errno("read the lists of netfilter's hooks")),
    }
}

fn has_entries() -> bool {
    sysctl::read("netfilter/nf_conntrack_count").is_some_and(|count| count > 0)
}
