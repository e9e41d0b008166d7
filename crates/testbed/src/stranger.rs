//! BPF programs of somebody else on an interface: each returns one value, whatever the packet.

use std::os::fd::OwnedFd;

use nix::net::if_::if_nametoindex;

use crate::error::{Context, Result};
use crate::sys;

/// What a program at tc ingress (tcx) returns; the values are those of linux/bpf.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Tcx {
    /// TCX_NEXT: the next program has its say.
    Next = -1,
    /// TCX_PASS: the packet goes on to the stack, and no further program sees it. Cilium's return it.
    Pass = 0,
    /// TCX_DROP.
    Drop = 2,
}

/// Where among the programs of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Before all that are there.
    First,
    /// Behind all that are there, as Cilium's agent attaches.
    Last,
}

/// An attached program; it goes when this is dropped.
#[derive(Debug)]
pub struct Stranger {
    link: OwnedFd,
    name: String,
}

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;

impl Stranger {
    /// At tc ingress of an interface of this thread's namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn at_tcx(interface: &str, name: &str, returns: Tcx, order: Order) -> Result<Stranger> {
        let what = || format!("cannot attach {name} to {interface}");
        let index = if_nametoindex(interface).context(what())?;
        let program = load(name, returns)?;
        let flags = match order {
            Order::First => BPF_F_BEFORE,
            Order::Last => 0,
        };
        let link = sys::attach_program(&program, index, BPF_TCX_INGRESS, flags);
        let (link, name) = (link.context(what())?, name.to_owned());
        Ok(Stranger { link, name })
    }

    /// Puts a program that returns this in its own place, in one step: what Cilium's agent does when it comes back.
    ///
    /// # Errors
    /// The kernel's.
    pub fn update(&self, returns: Tcx) -> Result<()> {
        let program = load(&self.name, returns)?;
        sys::update_link(&self.link, &program).context(format!("cannot update {}", self.name))
    }

    /// In the driver of an interface of this thread's namespace (native XDP). It passes all, and takes packets of several
    /// buffers (frags).
    ///
    /// # Errors
    /// The kernel's.
    pub fn at_xdp(interface: &str, name: &str) -> Result<Stranger> {
        let what = || format!("cannot attach {name} to {interface}");
        let index = if_nametoindex(interface).context(what())?;
        let flags = BPF_F_XDP_HAS_FRAGS;
        let program = sys::load_constant(name, BPF_PROG_TYPE_XDP, XDP_PASS, flags);
        let program = program.context(what())?;
        let link = sys::attach_program(&program, index, BPF_XDP, XDP_FLAGS_DRV_MODE);
        let (link, name) = (link.context(what())?, name.to_owned());
        Ok(Stranger { link, name })
    }
}

fn load(name: &str, returns: Tcx) -> Result<OwnedFd> {
    let program = sys::load_constant(name, BPF_PROG_TYPE_SCHED_CLS, returns as i32, 0);
    program.context(format!("cannot load {name}"))
}
