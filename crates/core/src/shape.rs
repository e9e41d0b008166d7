//! Settings of a shaped interface: `[[shape]]` and `weir shape install`.

use crate::aqm::Discipline;

/// What does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// `tc`; where the kernel lacks one of its qdiscs, `bpf`.
    Auto,
    /// Qdiscs of the kernel under an HTB, with a BPF classifier.
    Tc,
    /// One qdisc in BPF.
    Bpf,
}

/// An interface before a slow link, and how its traffic is shaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The interface's name.
    pub dev: String,
    /// What the link carries of what the interface sends, bit/s; [`LEAST_RATE`]..=[`MOST_RATE`].
    pub rate_bits_per_s: u64,
    /// The same of what it receives; `None`: that is not shaped.
    pub ingress_bits_per_s: Option<u64>,
    /// The queueing discipline, one of [`DISCIPLINES`].
    pub discipline: Discipline,
    /// What does the work.
    pub backend: Backend,
}

/// Below this, one full packet takes longer than a second.
pub const LEAST_RATE: u64 = 12_000;
/// 100 Gbit/s.
pub const MOST_RATE: u64 = 100_000_000_000;
/// Interfaces that one file can shape.
pub const MAX_SHAPES: usize = 64;

/// The disciplines that a kernel can run, weir's own first.
pub const DISCIPLINES: [Discipline; 11] = [
    Discipline::SpaFq,
    Discipline::Spa,
    Discipline::SpaPaper,
    Discipline::SynPrio,
    Discipline::SynFinPrio,
    Discipline::FqCodel,
    Discipline::Codel,
    Discipline::Pie,
    Discipline::Sfq,
    Discipline::Fifo,
    Discipline::Bfifo,
];

/// Those of them that the qdisc in BPF has.
pub const DISCIPLINES_IN_BPF: [Discipline; 5] = [
    Discipline::SpaFq,
    Discipline::Spa,
    Discipline::SpaPaper,
    Discipline::SynPrio,
    Discipline::SynFinPrio,
];

impl Shape {
    /// An interface with the default discipline.
    pub fn new(dev: impl Into<String>, rate_bits_per_s: u64) -> Shape {
        Shape {
            dev: dev.into(),
            rate_bits_per_s,
            ingress_bits_per_s: None,
            discipline: Discipline::SpaFq,
            backend: Backend::Auto,
        }
    }
}
