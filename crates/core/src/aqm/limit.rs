//! The limit of SPA's high queue, for a link: what control segments of one source, and of all sources, may have of it.
//!
//! Token buckets stand before the high queue, one for each source and one for all of them. They count bytes and are shares
//! of the link's rate, so the high queue never takes more than its share.

/// The cost of 1024 bytes is a whole number of ns also at 100 Gb/s.
pub const COST_SHIFT: u32 = 10;
/// SYNs of 64 bytes that pass at once after a pause: of one source, and of all. A page that opens connections to many
/// servers, or a server that accepts a crowd, sends tens.
const BURST_PACKETS: [u64; 2] = [256, 512];
const SYN_BYTES: u64 = 64;
/// At high rates a burst is as long as the share gives in this time, ns.
const BURST_NS: u64 = 50_000_000;
/// What a kind has of the link, as the divisor: for one source, and for all of them together.
const SHARES: [u64; 2] = [40, 20];
const NS_PER_SECOND: u64 = 1_000_000_000;

/// A token bucket of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRate {
    /// Time that 1024 bytes take at the rate, ns.
    pub ns_per_kib: u64,
    /// How far ahead of the rate it may be, ns.
    pub tolerance_ns: u64,
}

impl ByteRate {
    /// A share of a link, 1/`divisor`, which may send so many bytes at once after a pause, or what it has in
    /// [`BURST_NS`] if that is more.
    fn share(rate_bytes_per_s: u64, divisor: u64, burst_bytes: u64) -> ByteRate {
        let rate = (rate_bytes_per_s / divisor).max(1);
        let ns_per_kib = (NS_PER_SECOND << COST_SHIFT) / rate;
        ByteRate {
            ns_per_kib,
            tolerance_ns: ((burst_bytes * ns_per_kib) >> COST_SHIFT).max(BURST_NS),
        }
    }
}

/// The two buckets of a kind of control segments: SYNs, or SYN/ACKs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitParams {
    /// Of one source.
    pub source: ByteRate,
    /// Of all sources together.
    pub all: ByteRate,
}

impl LimitParams {
    /// For a link of this rate: a twentieth of it for all SYNs, and another for all SYN/ACKs. One source has half of each.
    ///
    /// A connection that the link carries in full has one SYN for a few full packets at least: SYNs are 1 % of the
    /// traffic "Short" of BHD18, whose connections have 3 packets on average.
    pub fn for_rate(rate_bytes_per_s: u64) -> LimitParams {
        let [of_source, of_all] = BURST_PACKETS.map(|packets| packets * SYN_BYTES);
        LimitParams {
            source: ByteRate::share(rate_bytes_per_s, SHARES[0], of_source),
            all: ByteRate::share(rate_bytes_per_s, SHARES[1], of_all),
        }
    }
}
