//! What the guard's estimate of the wait goes by (bpf/lib/wait.h) and forecasts go by too. `weir-models` has the estimate.

/// Fewest accepts that make a sample.
pub const SAMPLE_ACCEPTS: u32 = 6;
/// The most accepts of a turn.
pub const TURN_MAX: u32 = 64;
/// A service time above this is a stopped server, ns.
pub const SERVICE_MAX_NS: u64 = 100_000_000_000;
/// Accepts for which the wait must be over the target before it counts as standing.
pub const STANDING_ACCEPTS: u64 = 8;
/// A server that stood still has so many times as long for it and for catching up, and [`BEARABLE_NS`] at most; a stop counts
/// as an `interval` at most.
pub const CATCH_UP: u32 = 8;
/// A wait over this stands however few accepts the time for it was: no client is kept for so long, ns.
pub const BEARABLE_NS: u64 = 5_000_000_000;
/// A queue that is this much shorter than it was drains.
pub const DRAINS: u32 = 4;
/// Fewest that may wait where one service takes longer than the target.
pub const LEAST_MIN: u32 = 2;
/// Most of them.
pub const LEAST_MAX: u32 = 256;
