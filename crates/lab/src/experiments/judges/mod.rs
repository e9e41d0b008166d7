//! Judges of the simulator that weir did not write: ns-3 ([`ns3`]) and the kernel's own qdiscs ([`linux`]). [`trial`] is
//! what both share.

pub mod arrivals;
pub mod linux;
pub mod model;
pub mod ns3;
pub mod trial;

use crate::run::experiment::Entry;

/// The experiments.
pub const ENTRIES: &[Entry] = &[
    ns3::ENTRY,
    linux::judge::ENTRY,
    linux::contest::ENTRY,
    linux::instructions::ENTRY,
];
