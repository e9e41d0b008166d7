//! Times as the state of a connection has them.

/// A moment in units of 8.192 µs (2^13 ns), which wraps after 9.7 hours. Two moments of one connection are less than
/// that apart, because a connection that was silent for so long has forgotten what it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tick(pub u32);

const NS_SHIFT: u32 = 13;

impl Tick {
    /// The tick of a time, ns.
    pub fn of(at_ns: u64) -> Tick {
        Tick((at_ns >> NS_SHIFT) as u32)
    }

    /// How long it is ago at `now`, ns. Captures of several queues may be out of order: what is later than `now` is
    /// 0 ago.
    pub fn age_ns(self, now: Tick) -> u64 {
        let ticks = now.0.wrapping_sub(self.0);
        match ticks > u32::MAX - LATER_MAX {
            true => 0,
            false => u64::from(ticks) << NS_SHIFT,
        }
    }
}

/// How far packets of a capture are out of order at most: a minute.
const LATER_MAX: u32 = (60_000_000_000_u64 >> NS_SHIFT) as u32;
