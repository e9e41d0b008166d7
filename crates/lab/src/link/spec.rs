//! What a link is.

use weir_sim::LinkSpec;

/// What the packets of a direction share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lanes {
    /// All have one queue, one rate, and one state of the losses.
    #[default]
    Shared,
    /// Those of each connection (addresses and ports) have their own, as if each came by a modem of its own (RR02,
    /// Section 3.2).
    Each,
}

/// The two directions of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    /// From the far side to the near one.
    pub down: LinkSpec,
    /// From the near side to the far one.
    pub up: LinkSpec,
    /// What their packets share.
    pub lanes: Lanes,
    /// The near and the far side ask for ECN.
    pub ecn: bool,
    /// Seed of everything random in the link.
    pub seed: u64,
}
