//! Arrivals at a bottleneck that do not depend on what it does: what the servers would send if nothing were lost.

use weir_sim::aqm::control::{ACK, FIN, SYN};
use weir_sim::connection::Job;
use weir_sim::traffic::{Law, Zipf};
use weir_sim::{Kind, Plan};

/// IP and TCP headers with timestamps, bytes; and those of a SYN/ACK.
const HEADERS: u32 = 52;
const SYN_HEADERS: u32 = 60;
/// A full packet on the link, bytes: as long as [`weir_sim::aqm::Setup`] has it.
pub const FULL_BYTES: u32 = 1514;
/// Segments in the first round trip, and in each after it.
const FIRST_WINDOW: u32 = 10;
const WINDOW: u32 = 16;
/// Time of a round trip, and from one segment of a window to the next: the servers have 100 Mb/s.
const ROUND_NS: u64 = 100_000_000;
const SPACING_NS: u64 = 121_120;
/// Most segments of a reply. A longer one, which nothing slows down, would fill the link for many seconds.
const MOST: u32 = 300;
/// What comes, of the link's rate.
const LOAD: f64 = 0.92;

/// A packet comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, ns.
    pub at_ns: u64,
    /// Its connection, from 0.
    pub flow: u32,
    /// Hash of its 5-tuple.
    pub flow_hash: u32,
    /// Length on the link, bytes.
    pub bytes: u32,
    /// TCP flags.
    pub flags: u8,
}

/// Connections of "Real" over so many seconds, as many as such a link carries with short queues, in the order of
/// coming. Each sends a SYN/ACK, windows of full segments, and a FIN.
pub fn of_link(bits_per_s: u64, seconds: f64, seed: u64) -> Vec<Arrival> {
    let exponent = Kind::Real.law().exponent;
    let mean_bytes = Zipf::new(exponent, MOST).mean() * f64::from(FULL_BYTES);
    let bytes = mean_bytes + f64::from(HEADERS + SYN_HEADERS);
    let law = Law {
        between_s: bytes * 8.0 / (LOAD * bits_per_s as f64),
        exponent,
        most: MOST,
    };
    let plan = Plan {
        law,
        ..Plan::of(Kind::Real, seconds)
    };
    let mut all = Vec::new();
    for (flow, spec) in (0..).zip(plan.connections(seed)) {
        let Job::Download(segments) = spec.job else {
            continue;
        };
        let mut add = |at_ns, bytes, flags| {
            all.push(Arrival {
                at_ns,
                flow,
                flow_hash: spec.flow_hash,
                bytes,
                flags,
            });
        };
        add(spec.start_ns, SYN_HEADERS, SYN | ACK);
        let (mut round_ns, mut window, mut left) = (spec.start_ns, FIRST_WINDOW, segments);
        while left > 0 {
            round_ns += ROUND_NS;
            let sent = left.min(window);
            for n in 0..sent {
                add(round_ns + u64::from(n) * SPACING_NS, FULL_BYTES, ACK);
            }
            (window, left) = (WINDOW, left - sent);
        }
        add(
            round_ns + u64::from(WINDOW) * SPACING_NS,
            HEADERS,
            FIN | ACK,
        );
    }
    all.sort_by_key(|arrival| arrival.at_ns);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_list_in_order_and_of_the_load() {
        let (rate, seconds) = (2_400_000, 2000.0);
        let arrivals = of_link(rate, seconds, 1);
        assert_eq!(arrivals, of_link(rate, seconds, 1));
        assert_ne!(arrivals, of_link(rate, seconds, 2));
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_ns));
        let bits: f64 = arrivals.iter().map(|one| f64::from(one.bytes) * 8.0).sum();
        let load = bits / seconds / rate as f64;
        assert!((load - LOAD).abs() < 0.07, "{load}");
    }
}
