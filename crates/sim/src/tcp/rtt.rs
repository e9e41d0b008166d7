//! Round-trip time and retransmission timeout (RFC 6298, with Linux's least timeout).

/// Before a round-trip time is known, ns (RFC 6298, Section 2.1).
pub const INITIAL_RTO_NS: u64 = 1_000_000_000;
/// TCP_RTO_MIN of Linux, ns.
pub const MIN_RTO_NS: u64 = 200_000_000;
/// TCP_RTO_MAX of Linux, ns.
const MAX_RTO_NS: u64 = 120_000_000_000;

/// What is known of the round-trip time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rtt {
    /// Smoothed, ns; 0: none known.
    pub smoothed_ns: u64,
    /// Mean deviation, ns.
    deviation_ns: u64,
    /// Least seen, ns; 0: none.
    pub least_ns: u64,
    /// Timeouts in a row.
    backoff: u32,
}

impl Rtt {
    /// Takes a measured time in, ns.
    pub fn measured(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        self.backoff = 0;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.deviation_ns, self.least_ns) = (rtt_ns, rtt_ns / 2, rtt_ns);
            return;
        }
        let off = self.smoothed_ns.abs_diff(rtt_ns);
        self.deviation_ns = (3 * self.deviation_ns + off) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
        self.least_ns = self.least_ns.min(rtt_ns);
    }

    /// The timeout, ns. Linux sets the least on the deviation's part.
    pub fn timeout_ns(&self) -> u64 {
        let base = match self.smoothed_ns {
            0 => INITIAL_RTO_NS,
            smoothed => smoothed + (4 * self.deviation_ns).max(MIN_RTO_NS),
        };
        (base << self.backoff.min(16)).min(MAX_RTO_NS)
    }

    /// Doubles the timeout until the next measurement.
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_timeout_follows_rfc_6298_and_doubles() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_ns(), 1000 * MS);
        rtt.measured(100 * MS);
        assert_eq!(rtt.timeout_ns(), 300 * MS);
        for _ in 0..100 {
            rtt.measured(100 * MS);
        }
        assert_eq!(rtt.timeout_ns() / MS, 300);
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout_ns() / MS, 1200);
        rtt.measured(100 * MS);
        assert_eq!(rtt.timeout_ns() / MS, 300);
    }
}
