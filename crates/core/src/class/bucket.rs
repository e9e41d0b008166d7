//! The token bucket of a class, as bpf/lib/bucket.h has it: one word, and time as an argument.

/// Units of the bucket's clock in a nanosecond (BUCKET_SHIFT).
pub const UNITS_PER_NS: u64 = 16;
const NS_PER_SECOND: f64 = 1e9;
/// By how much a CPU that has been kept from running may misjudge a bucket (BUCKET_STALE).
const STALE: u64 = 10_000_000 * UNITS_PER_NS;

/// A rate and a burst, in units of 1/16 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketLimit {
    /// Between two connections.
    pub interval: u64,
    /// How far ahead of its time a connection may be.
    pub tolerance: u64,
}

impl BucketLimit {
    /// `rate` in connections per second, 0.1..=10 million; a burst of 0 is one of 1.
    pub fn new(rate: f64, burst: u32) -> BucketLimit {
        let interval = (NS_PER_SECOND * UNITS_PER_NS as f64 / rate)
            .round()
            .max(1.0) as u64;
        let ahead = u64::from(burst.max(1)) - 1;
        BucketLimit {
            interval,
            tolerance: ahead.saturating_mul(interval),
        }
    }
}

/// The burst of a rate without one: a tenth of a second's, and at least so much that one client that opens its
/// connections together, as browsers do, is not refused at a low rate.
pub fn default_burst(rate: f64) -> u32 {
    (rate / 10.0).max(10.0) as u32
}

/// When the next connection is due, in units of 1/16 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// 0 is a full bucket.
    pub next: u64,
}

impl Bucket {
    /// Whether a connection may come in now. Then it has taken its token. What is further ahead than this
    /// limit can have made it is cut to a bucket with one token left.
    pub fn take(&mut self, now_ns: u64, limit: &BucketLimit) -> bool {
        let now = now_ns.wrapping_mul(UNITS_PER_NS);
        let mut at = self.next.max(now);
        if at - now > limit.tolerance {
            if at - now - limit.tolerance <= limit.interval + STALE {
                return false;
            }
            at = now + limit.tolerance;
        }
        self.next = at.wrapping_add(limit.interval);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Connections that get in of those that come evenly at `offered` per second.
    fn admitted(
        limit: BucketLimit,
        offered: f64,
        seconds: u64,
        bucket: &mut Bucket,
        from: u64,
    ) -> u64 {
        let count = (offered * seconds as f64) as u64;
        let at = |n: u64| from + (n as f64 * 1e9 / offered) as u64;
        (0..count).filter(|n| bucket.take(at(*n), &limit)).count() as u64
    }

    #[test]
    fn ten_seconds_admit_the_rate_within_a_thousandth_at_every_rate() {
        for rate in [1.0, 3.0, 7.3, 100.0, 999.0, 10_000.0, 100_000.0] {
            for factor in [1.5, 2.0, 10.0] {
                let (limit, mut bucket) = (BucketLimit::new(rate, 1), Bucket::default());
                let offered = (rate * factor).max(1000.0);
                // The first of all is the burst.
                let got = admitted(limit, offered, 10, &mut bucket, SECOND) as f64 - 1.0;
                // A connection that is due waits for the next arrival.
                let slack = rate / offered * rate * 10.0 + 1.0;
                let wanted = rate * 10.0;
                assert!(got <= wanted * 1.001 + 1.0, "{rate} x {factor}: {got}");
                assert!(got >= wanted - slack, "{rate} x {factor}: {got}");
            }
        }
    }

    #[test]
    fn with_a_burst_the_rate_is_exact_whenever_more_come() {
        for rate in [1.0, 10.0, 333.3, 1000.0, 10_000.0, 100_000.0] {
            let burst = default_burst(rate);
            for factor in [1.02, 1.5, 2.0, 4.0, 10.0] {
                let (limit, mut bucket) = (BucketLimit::new(rate, burst), Bucket::default());
                let offered = (rate * factor).max(200.0);
                // Until the burst is used up.
                let warm_up = 60;
                admitted(limit, offered, warm_up, &mut bucket, SECOND);
                let from = (1 + warm_up) * SECOND;
                let got = admitted(limit, offered, 10, &mut bucket, from) as f64;
                let wanted = rate * 10.0;
                let off = (got - wanted).abs() / wanted;
                assert!(
                    off < 0.02 || (got - wanted).abs() <= 1.0,
                    "{rate} x {factor}: {got}"
                );
            }
        }
    }

    #[test]
    fn after_any_pause_exactly_a_burst_comes_at_once() {
        for (rate, burst) in [(0.1, 1), (1.0, 5), (300.0, 30), (1e7, 1_000_000)] {
            let (limit, mut bucket) = (BucketLimit::new(rate, burst), Bucket::default());
            for pause in [0, 10_000 * SECOND, 20_000 * SECOND, 500_000 * SECOND] {
                let at_once = |b: &mut Bucket| {
                    (0..2 * u64::from(burst))
                        .filter(|_| b.take(SECOND + pause, &limit))
                        .count()
                };
                assert_eq!(at_once(&mut bucket), burst as usize, "{rate} {burst}");
            }
        }
    }

    #[test]
    fn a_raised_rate_holds_at_once_and_a_bucket_that_was_used_up_stays_so() {
        for (low, high, burst) in [(1.0, 1000.0, 10), (0.1, 50.0, 1), (5.0, 100_000.0, 100)] {
            let mut bucket = Bucket::default();
            let slow = BucketLimit::new(low, 1);
            assert!(bucket.take(SECOND, &slow));
            let fast = BucketLimit::new(high, burst);
            let got = admitted(fast, high * 10.0, 1, &mut bucket, SECOND + 1) as f64;
            assert!((got - high).abs() <= 2.0, "{low} to {high}: {got}");
        }
    }

    #[test]
    fn a_clock_that_was_read_early_is_no_other_limit() {
        let limit = BucketLimit::new(1e6, 10);
        let mut bucket = Bucket::default();
        while bucket.take(SECOND, &limit) {}
        for early in [1, 1000, 5_000_000, 9_999_999] {
            assert!(!bucket.take(SECOND - early, &limit), "{early} ns");
        }
    }

    #[test]
    fn what_is_refused_costs_those_that_come_later_nothing() {
        let limit = BucketLimit::new(10.0, 1);
        let mut bucket = Bucket::default();
        assert!(bucket.take(SECOND, &limit));
        for n in 1..100_000 {
            assert!(!bucket.take(SECOND + n * 1000 - 1, &limit));
        }
        assert!(bucket.take(SECOND + SECOND / 10, &limit));
    }

    #[test]
    fn a_burst_that_is_left_out_is_a_tenth_of_the_rate_and_at_least_ten() {
        for (rate, burst) in [(0.1, 10), (99.0, 10), (300.0, 30), (1e7, 1_000_000)] {
            assert_eq!(default_burst(rate), burst);
        }
    }
}
