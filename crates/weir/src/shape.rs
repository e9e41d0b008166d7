//! Shapes what an interface sends: an HTB tree of the kernel's qdiscs and a classifier of ours before it.
//!
//! [`tree`] says which qdiscs and classes a discipline is made of, [`install`] puts them on an interface, [`show`]
//! reads them back.

use crate::host::qdiscs::Node;

pub mod install;
mod options;
pub mod show;
pub mod tree;

/// The major number of our root qdisc's handle, by which it is known again: `tc qdisc` shows `3e12:`.
const MAJOR: u32 = 0x3e12 << 16;

/// Whether it is the root of a tree of ours.
fn is_ours(root: &Node) -> bool {
    root.kind == "htb" && root.handle == MAJOR
}

/// What the name of our classifier begins with; the discipline's name follows.
const CLASSIFIER: &str = "weir-shape:";
