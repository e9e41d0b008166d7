//! Shapes what an interface sends, in one of two ways: an HTB tree of the kernel's qdiscs and a classifier of ours
//! before it, or one qdisc of ours in BPF.
//!
//! [`tree`] says which qdiscs and classes a discipline is made of, [`own`] what the qdisc in BPF is told. [`install`] puts
//! either on an interface, [`show`] reads it back. [`ingress`] does the same for what an interface receives, on a device of
//! its own; [`interface`] does both.

use weir_kernel::shape::qdisc::KIND;

use crate::host::qdiscs::Node;
use options::htb_default;

pub mod ifb;
pub mod ingress;
pub mod install;
pub mod interface;
pub mod lock;
mod options;
pub mod own;
pub mod show;
pub mod tree;

/// The major number of our root qdisc's handle, by which it is known again: `tc qdisc` shows `3e12:`.
const MAJOR: u32 = 0x3e12 << 16;
/// The same of what `weir run` puts there, and takes off when it ends: `3e13:`.
const MAJOR_OF_RUN: u32 = 0x3e13 << 16;

/// Who takes a shaper off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The user, by `weir shape remove`.
    User,
    /// The `weir run` that put it there; if that was killed, `weir detach` or the next one.
    Run,
}

impl Owner {
    fn major(self) -> u32 {
        match self {
            Owner::User => MAJOR,
            Owner::Run => MAJOR_OF_RUN,
        }
    }

    /// Of a root qdisc; `None`: somebody else's.
    pub fn of(root: &Node) -> Option<Owner> {
        Backend::of(root)?;
        Some(match root.handle {
            MAJOR_OF_RUN => Owner::Run,
            _ => Owner::User,
        })
    }
}

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
            _ if ![MAJOR, MAJOR_OF_RUN].contains(&root.handle) => None,
            // Others may like the number too.
            "htb" if htb_default(&root.options) == Some(tree::LOW) => Some(Backend::Tc),
            kind if kind.starts_with(KIND) => Some(Backend::Bpf),
            _ => None,
        }
    }
}

/// What the name of our classifier begins with; the discipline's name follows.
const CLASSIFIER: &str = "weir-shape:";
