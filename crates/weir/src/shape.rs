//! Shapes what an interface sends, in one of two ways: an HTB tree of the kernel's qdiscs and a classifier of ours
//! before it, or one qdisc of ours in BPF.
//!
//! [`tree`] says which qdiscs and classes a discipline is made of, [`own`] what the qdisc in BPF is told. [`install`] puts
//! either on an interface, [`show`] reads it back.

use weir_kernel::shape::qdisc::KIND;

use crate::host::qdiscs::Node;

pub mod install;
mod options;
pub mod own;
pub mod show;
pub mod tree;

/// The major number of our root qdisc's handle, by which it is known again: `tc qdisc` shows `3e12:`.
const MAJOR: u32 = 0x3e12 << 16;

/// What does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Qdiscs of the kernel under an HTB.
    Tc,
    /// A qdisc in BPF.
    Bpf,
}

impl Backend {
    /// Its name on the command line, in the config and in what is shown.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Tc => "tc",
            Backend::Bpf => "bpf",
        }
    }

    /// Whose root qdisc it is; `None`: somebody else's.
    fn of(root: &Node) -> Option<Backend> {
        match root.kind.as_str() {
            _ if root.handle != MAJOR => None,
            "htb" => Some(Backend::Tc),
            kind if kind.starts_with(KIND) => Some(Backend::Bpf),
            _ => None,
        }
    }
}

/// What the name of our classifier begins with; the discipline's name follows.
const CLASSIFIER: &str = "weir-shape:";
