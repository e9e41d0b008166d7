//! The clocks of the BPF programs.

use std::time::Duration;

/// The time on CLOCK_MONOTONIC, as [`weir_core::refusals::Refusal::at`] of a guard's refusals.
pub fn monotonic() -> Duration {
    Duration::from_nanos(now_ns())
}

/// Nanoseconds on CLOCK_MONOTONIC: what the programs get from `bpf_ktime_get_ns()`.
pub(crate) fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
    })
}

/// Length of the kernel's tick in nanoseconds: what the coarse clock resolves (1 / CONFIG_HZ).
pub(crate) fn tick_ns() -> u32 {
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    tick.map_or(1, |tick| tick.tv_nsec().max(1) as u32)
}
