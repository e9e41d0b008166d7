//! Options of the kernel's qdiscs, as linux/pkt_sched.h lays them out. Integers in host order.

use weir_core::aqm::{CodelParams, FlowParams, PieParams, SfqParams};

use crate::host::qdiscs::{attribute, find};

/// TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64
const HTB_PARAMS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
/// TC_HTB_PROTOVER
const HTB_VERSION: u32 = 3;
/// TC_LINKLAYER_ETHERNET: the kernel then computes times itself and needs no table.
const LINK_LAYER_ETHERNET: u8 = 1;
/// A tick of the packet scheduler, ns (PSCHED_SHIFT of net/pkt_sched.h).
const TICK_NS: u64 = 64;

/// A class of an HTB. Rates are bytes/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Htb {
    /// What it has in any case.
    pub rate: u64,
    /// What it may have if the others leave it.
    pub ceil: u64,
    /// 0 is served first.
    pub priority: u32,
    /// Bytes that it sends in one turn at most: a full packet.
    pub quantum: u32,
    /// Bytes that it may send at once after a pause.
    pub burst: u32,
}

/// Of an HTB whose packets go to this minor class by default.
pub fn htb_root(default_minor: u32) -> Vec<u8> {
    // struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
    attribute(HTB_INIT, &words(&[HTB_VERSION, 10, default_minor, 0, 0]))
}

/// The minor class to which packets of an HTB go by default, from its options.
pub fn htb_default(options: &[u8]) -> Option<u32> {
    let word = find(options, HTB_INIT)?.get(8..12)?.try_into().ok()?;
    Some(u32::from_ne_bytes(word))
}

impl Htb {
    /// Of its class.
    pub fn options(&self) -> Vec<u8> {
        // struct tc_htb_opt: rate, ceil, buffer, cbuffer, quantum, level, prio
        let mut params = [rate_spec(self.rate), rate_spec(self.ceil)].concat();
        let ticks = |rate: u64| (u64::from(self.burst) * 1_000_000_000 / rate / TICK_NS) as u32;
        params.extend(words(&[
            ticks(self.rate),
            ticks(self.ceil),
            self.quantum,
            0,
            self.priority,
        ]));
        let mut options = attribute(HTB_PARAMS, &params);
        // Where 32 bits do not hold them.
        for (kind, rate) in [(HTB_RATE64, self.rate), (HTB_CEIL64, self.ceil)] {
            if rate >= u64::from(u32::MAX) {
                options.extend(attribute(kind, &rate.to_ne_bytes()));
            }
        }
        options
    }
}

/// The ceil of a class, bytes/s, from its options.
pub fn htb_ceil(options: &[u8]) -> Option<u64> {
    if let Some(ceil) = find(options, HTB_CEIL64) {
        return Some(u64::from_ne_bytes(ceil.try_into().ok()?));
    }
    // The second rate's last word.
    let params = find(options, HTB_PARAMS)?;
    let word = params.get(20..24)?.try_into().ok()?;
    Some(u32::from_ne_bytes(word).into())
}

/// struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
fn rate_spec(rate: u64) -> Vec<u8> {
    let mut bytes = vec![0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    bytes.extend(u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// struct tc_fifo_qopt: of pfifo in packets, of bfifo in bytes.
pub fn fifo(limit: u32) -> Vec<u8> {
    words(&[limit])
}

/// TCA_CODEL_TARGET to TCA_CODEL_ECN, of a queue of so many packets; those of FQ-CoDel are the same. Times in µs.
pub fn codel(params: &CodelParams, limit_packets: u32) -> Vec<u8> {
    numbered(&[
        (1, us(params.target_ns)),
        (2, limit_packets),
        (3, us(params.interval_ns)),
        (4, params.ecn.into()),
    ])
}

/// The same with TCA_FQ_CODEL_FLOWS and TCA_FQ_CODEL_QUANTUM.
pub fn fq_codel(params: &FlowParams) -> Vec<u8> {
    let own = [(5, params.flows), (6, params.quantum_bytes)];
    [codel(&params.codel, params.limit_packets), numbered(&own)].concat()
}

/// TCA_PIE_TARGET to TCA_PIE_TUPDATE and TCA_PIE_ECN; alpha and beta are the kernel's defaults, which are those of
/// RFC 8033.
pub fn pie(params: &PieParams) -> Vec<u8> {
    numbered(&[
        (1, us(params.target_ns)),
        (2, params.limit_packets),
        (3, us(params.update_ns)),
        (6, params.ecn.into()),
    ])
}

fn us(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}

/// struct tc_sfq_qopt: quantum, perturb_period, limit, divisor, flows
pub fn sfq(params: &SfqParams) -> Vec<u8> {
    words(&[params.quantum_bytes, 0, params.limit_packets, 0, 0])
}

fn numbered(values: &[(u16, u32)]) -> Vec<u8> {
    let attributes = values
        .iter()
        .map(|(kind, value)| attribute(*kind, &value.to_ne_bytes()));
    attributes.collect::<Vec<_>>().concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceil_of_a_class_is_read_back_also_beyond_32_bits() {
        for ceil in [1_000, 1_250_000, u64::from(u32::MAX), 12_500_000_000] {
            let class = Htb {
                rate: ceil / 2,
                ceil,
                priority: 1,
                quantum: 1514,
                burst: 1600,
            };
            assert_eq!(htb_ceil(&class.options()), Some(ceil));
        }
    }
}
