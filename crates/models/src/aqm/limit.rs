//! The limit of SPA's high queue: which control segments may overtake data.
//!
//! Strict priority for SYNs lets a SYN flood starve everything else (BHD18, Section V, leaves it to the place of the
//! queue). Here token buckets stand before the high queue, one for each source and one for all of them. They count
//! bytes and are shares of the link's rate, so the high queue never takes more than its share. A SYN over either is
//! *demoted*: it waits in a queue of its own behind the data. It is never dropped for that.
//!
//! SYNs and SYN/ACKs have buckets apart. A flood of SYNs whose sources are forged uses up what all sources share, and
//! nothing tells its SYNs from others; the SYN/ACKs of connections that were opened from behind the link are not held up
//! by it.
//!
//! A source over its share takes no token of the others: the bucket for all is asked last. Integers only; the kernel
//! half has the same in C.

use weir_core::abi;
use weir_core::aqm::{ByteRate, COST_SHIFT, LimitParams};

use super::control::Control;

/// Sources with a bucket of their own for each kind. Those with the same index share one. A power of two.
pub const SOURCES: usize = abi::SHAPE_SOURCES as usize;
/// Kinds of control segments with buckets apart.
pub const KINDS: usize = abi::SHAPE_KINDS as usize;

/// Whether a packet may pass at this rate, given when the bucket's next byte is due. Then it has taken its tokens.
pub fn take(rate: &ByteRate, due_ns: &mut u64, now_ns: u64, len_bytes: u32) -> bool {
    let at = (*due_ns).max(now_ns);
    if at - now_ns > rate.tolerance_ns {
        return false;
    }
    *due_ns = at + ((u64::from(len_bytes) * rate.ns_per_kib) >> COST_SHIFT);
    true
}

/// Which buckets a control segment takes from.
pub fn kind_of(control: Control) -> usize {
    usize::from(control == Control::SynAck)
}

/// When each bucket's next byte is due, ns.
#[derive(Debug, Clone)]
pub struct LimitVars {
    sources: Box<[[u64; SOURCES]; KINDS]>,
    all: [u64; KINDS],
}

impl Default for LimitVars {
    fn default() -> Self {
        LimitVars {
            sources: Box::new([[0; SOURCES]; KINDS]),
            all: [0; KINDS],
        }
    }
}

impl LimitVars {
    /// Bytes of its table.
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.sources)
    }

    /// Whether a control segment of this source may go to the high queue.
    pub fn admits(
        &mut self,
        params: &LimitParams,
        control: Control,
        source_hash: u32,
        len_bytes: u32,
        now_ns: u64,
    ) -> bool {
        let kind = kind_of(control);
        let source = &mut self.sources[kind][source_hash as usize % SOURCES];
        take(&params.source, source, now_ns, len_bytes)
            && take(&params.all, &mut self.all[kind], now_ns, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// 2.4 Mb/s.
    const RATE: u64 = 300_000;

    /// Bytes admitted in ten seconds, of segments of 60 bytes, `per_s` of each of these kinds, from `sources`.
    fn admitted(rate: u64, per_s: u64, sources: u32, kinds: &[Control]) -> u64 {
        let (params, mut vars) = (LimitParams::for_rate(rate), LimitVars::default());
        let mut admits = |n: u64, control| {
            let source = (n as u32) % sources;
            vars.admits(&params, control, source, 60, SECOND + n * SECOND / per_s)
        };
        let all = (0..10 * per_s).flat_map(|n| kinds.iter().map(move |kind| (n, *kind)));
        all.filter(|(n, kind)| admits(*n, *kind)).count() as u64 * 60
    }

    #[test]
    fn all_sources_together_have_a_tenth_of_the_link_and_one_has_a_twentieth() {
        for rate in [50_000, RATE, 1_250_000, 125_000_000] {
            let per_s = rate / 60;
            let burst = |divisor| 2 * ((512 * 64).max(rate / divisor / 20) + 120);
            for (sources, divisor) in [(1, 20), (512, 10)] {
                let both = [Control::Syn, Control::SynAck];
                let (got, wanted) = (admitted(rate, per_s, sources, &both), 10 * rate / divisor);
                assert!(
                    got >= wanted * 99 / 100,
                    "{rate} {sources}: {got} of {wanted}"
                );
                assert!(
                    got <= wanted + burst(divisor),
                    "{rate} {sources}: {got} of {wanted}"
                );
            }
        }
    }

    #[test]
    fn a_flood_of_one_kind_from_all_sources_leaves_the_other_kind_its_share() {
        let flood = |flooded, other| {
            let (params, mut vars) = (LimitParams::for_rate(RATE), LimitVars::default());
            let mut refused = [0; 2];
            for n in 0..100_000u64 {
                let now = SECOND + n * SECOND / 10_000;
                let source = n as u32;
                refused[0] += u32::from(!vars.admits(&params, flooded, source, 60, now));
                // 100/s: 6 kB/s of the 15 kB/s that the kind has.
                let refuses = n % 100 == 0 && !vars.admits(&params, other, source, 60, now);
                refused[1] += u32::from(refuses);
            }
            refused
        };
        for (flooded, other) in [
            (Control::Syn, Control::SynAck),
            (Control::SynAck, Control::Syn),
        ] {
            let [of_flood, of_other] = flood(flooded, other);
            assert!(of_flood > 90_000, "{flooded:?}: {of_flood} of 100000");
            assert_eq!(of_other, 0, "{other:?} beside a flood of {flooded:?}");
        }
    }

    #[test]
    fn a_source_over_its_share_takes_nothing_from_the_others() {
        let (params, mut vars) = (LimitParams::for_rate(RATE), LimitVars::default());
        let mut refused = 0;
        for n in 0..100_000u64 {
            let now = SECOND + n * SECOND / 10_000;
            vars.admits(&params, Control::Syn, 7, 60, now);
            // 100/s of another: 6 kB/s of the 7.5 kB/s that the first leaves.
            let refuses = n % 100 == 0 && !vars.admits(&params, Control::Syn, 8, 60, now);
            refused += u32::from(refuses);
        }
        assert_eq!(refused, 0);
    }

    #[test]
    fn a_burst_of_a_source_passes_after_a_pause() {
        let (params, mut vars) = (LimitParams::for_rate(RATE), LimitVars::default());
        for pause in [3, 10, 1000] {
            let at = SECOND + pause * SECOND;
            let admits = |_: &u32| vars.admits(&params, Control::Syn, 3, 64, at);
            let passed = (0..400).filter(admits).count();
            assert_eq!(passed, 257);
        }
    }
}
