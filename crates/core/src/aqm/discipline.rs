//! The disciplines by name, with the parameters that each has by default on a link.

use std::fmt;
use std::str::FromStr;

use super::limit::LimitParams;
use super::params::{CodelParams, FlowParams, PieParams, SfqParams, SpaParams};

const MS: u64 = 1_000_000;
/// Room of weir's low queues. A SYN/ACK that does not wait tells the server a short round-trip time; its timeout is then
/// that and 200 ms (TCP_RTO_MIN). Data that waits longer is sent twice, and under overload the link carries mostly
/// second copies. So nothing waits much longer than that.
const OWN_ROOM_NS: u64 = 250 * MS;
/// The same of flow queues. There only the flow waits that sends so much itself.
const OWN_FLOWS_ROOM_NS: u64 = 300 * MS;
/// The same of the kernel's fq_codel, which throws half of the longest queue away when it has none. CoDel drops before.
const OWN_FQ_CODEL_ROOM_NS: u64 = 2000 * MS;
/// Its flow queues: those whose hash is the same share one, and it looks for no other as CAKE does.
const OWN_FQ_CODEL_FLOWS: u32 = 4096;
/// Bounds of all three, packets.
const OWN_PACKETS: (u64, u64) = (50, 10_240);
/// Room of CoDel, PIE and SPA's high queue, packets; the kernel's codel and pie have as much by default.
pub const DEFAULT_PACKETS: u32 = 1000;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// Names of the disciplines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Discipline {
    /// One queue, limited in packets.
    Fifo,
    /// One queue, limited in bytes.
    Bfifo,
    /// Random early detection.
    Red,
    /// RED with an adaptive probability.
    Ared,
    /// RED that spares SYNs.
    RedFavor,
    /// Controlled delay.
    Codel,
    /// CoDel in each of many flow queues.
    FqCodel,
    /// Proportional integral controller.
    Pie,
    /// Stochastic fair queueing.
    Sfq,
    /// CAKE's queue.
    Cake,
    /// Two FIFOs, SYN first.
    SynPrio,
    /// Two FIFOs, SYN and FIN first.
    SynFinPrio,
    /// weir's SPA over one low queue.
    Spa,
    /// SPA as BHD18 has it.
    SpaPaper,
    /// weir's SPA over flow queues.
    SpaFq,
    /// The same as the kernel's qdiscs have it: over its fq_codel.
    SpaFqTc,
}

impl Discipline {
    /// All, in the order of BHD18, Table III, with CAKE after the other queues by flow, and then weir's own.
    pub const ALL: [Discipline; 16] = [
        Discipline::Fifo,
        Discipline::Bfifo,
        Discipline::Red,
        Discipline::Ared,
        Discipline::RedFavor,
        Discipline::Codel,
        Discipline::FqCodel,
        Discipline::Pie,
        Discipline::Sfq,
        Discipline::Cake,
        Discipline::SynPrio,
        Discipline::SynFinPrio,
        Discipline::SpaPaper,
        Discipline::Spa,
        Discipline::SpaFq,
        Discipline::SpaFqTc,
    ];

    /// Its name on the command line and in the config.
    pub fn name(self) -> &'static str {
        match self {
            Discipline::Fifo => "fifo",
            Discipline::Bfifo => "bfifo",
            Discipline::Red => "red",
            Discipline::Ared => "ared",
            Discipline::RedFavor => "red-favor",
            Discipline::Codel => "codel",
            Discipline::FqCodel => "fq-codel",
            Discipline::Pie => "pie",
            Discipline::Sfq => "sfq",
            Discipline::Cake => "cake",
            Discipline::SynPrio => "syn-prio",
            Discipline::SynFinPrio => "syn-fin-prio",
            Discipline::Spa => "spa",
            Discipline::SpaPaper => "spa-paper",
            Discipline::SpaFq => "spa-fq",
            Discipline::SpaFqTc => "spa-fq-tc",
        }
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No discipline has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no queueing discipline is called `{0}`")]
pub struct UnknownDiscipline(String);

impl FromStr for Discipline {
    type Err = UnknownDiscipline;

    fn from_str(name: &str) -> Result<Discipline, UnknownDiscipline> {
        let mut all = Discipline::ALL.into_iter();
        all.find(|discipline| discipline.name() == name)
            .ok_or_else(|| UnknownDiscipline(name.to_owned()))
    }
}

/// A link, and what of the disciplines' parameters depends on it or is often changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Rate of the link, bytes/s; 1000..=12.5 billion.
    pub rate_bytes_per_s: u64,
    /// Full packet, bytes, as the link counts them.
    pub mtu_bytes: u32,
    /// Room of FIFO, RED and the two-FIFO disciplines: so many full packets.
    pub buffer_packets: u32,
    /// Delay that CoDel, FQ-CoDel and SPA keep, ns.
    pub target_ns: u64,
    /// Mark ECN-capable packets instead of dropping them, where the discipline can. weir's own always do.
    pub ecn: bool,
}

impl Setup {
    /// A link of this rate with a buffer of 100 full packets of 1514 bytes, and a target of 5 ms.
    pub fn new(rate_bytes_per_s: u64) -> Setup {
        Setup {
            rate_bytes_per_s,
            mtu_bytes: 1514,
            buffer_packets: 100,
            target_ns: 5 * MS,
            ecn: false,
        }
    }

    /// The same for a link that counts packets without a link header, as PPP and TUN devices do: a full one has 1500
    /// bytes.
    pub fn of_ip(rate_bytes_per_s: u64) -> Setup {
        Setup {
            mtu_bytes: 1500,
            ..Setup::new(rate_bytes_per_s)
        }
    }

    /// Time of a full packet on the link, ns.
    pub fn packet_ns(&self) -> u64 {
        u64::from(self.mtu_bytes) * NS_PER_SECOND / self.rate_bytes_per_s.max(1)
    }

    /// CoDel as RFC 8289 has it.
    pub fn codel(&self) -> CodelParams {
        CodelParams {
            target_ns: self.target_ns,
            interval_ns: 100 * MS,
            mtu_bytes: self.mtu_bytes,
            ecn: self.ecn,
        }
    }

    /// CoDel of weir's own disciplines. On a slow link a full packet takes longer than 5 ms, and no queue can be
    /// shorter than that: the target is at least one and a half full packets (as in CAKE, cake_set_rate()).
    pub fn own_codel(&self) -> CodelParams {
        let target_ns = self.target_ns.max(self.packet_ns() * 3 / 2);
        CodelParams {
            target_ns,
            interval_ns: (100 * MS).max(2 * target_ns),
            mtu_bytes: self.mtu_bytes,
            ecn: true,
        }
    }

    /// Flow queues as RFC 8290 has them, with this CoDel in each.
    pub fn flows(&self, codel: CodelParams) -> FlowParams {
        FlowParams {
            flows: 1024,
            in_sets: false,
            quantum_bytes: self.mtu_bytes,
            fresh_bytes: self.mtu_bytes,
            crowd_packets: u32::MAX,
            crowd_bytes: self.mtu_bytes,
            limit_packets: 10_240,
            codel,
            others_are_behind: true,
        }
    }

    /// Room of weir's low queues, packets: what the link sends in [`OWN_ROOM_NS`].
    pub fn own_packets(&self) -> u32 {
        self.packets_in(OWN_ROOM_NS)
    }

    fn packets_in(&self, time_ns: u64) -> u32 {
        let (least, most) = OWN_PACKETS;
        (time_ns / self.packet_ns().max(1)).clamp(least, most) as u32
    }

    /// Flow queues of weir's own `spa-fq`. On a slow link an old flow sends less than a full packet in its turn, so that
    /// the other flows' short packets do not wait for those of all bulk transfers (as in CAKE, cake_set_rate()); a new
    /// one sends a full packet, as in FQ-CoDel, so that short replies are through at once. While two fifths of the room are in
    /// use it has two turns instead: where short replies fill the link, long ones would have little else.
    pub fn own_flows(&self) -> FlowParams {
        const LEAST_QUANTUM: u64 = 300;
        let mtu = u64::from(self.mtu_bytes);
        let quantum = (self.rate_bytes_per_s >> 12).max(LEAST_QUANTUM).min(mtu);
        let limit_packets = self.packets_in(OWN_FLOWS_ROOM_NS);
        FlowParams {
            in_sets: true,
            others_are_behind: false,
            limit_packets,
            quantum_bytes: quantum as u32,
            crowd_packets: limit_packets * 2 / 5,
            crowd_bytes: (2 * quantum).min(mtu) as u32,
            ..self.flows(self.own_codel())
        }
    }

    /// What comes nearest to them in the kernel's fq_codel. It has one quantum for new flows and old ones: the short one.
    /// And it drops a flow's last packet too, whose loss only a time-out mends; so it waits longer before it drops. The
    /// target is four full packets, for less than which CAKE does not drop either. The interval is ten times that, since
    /// the target is to be 5 to 10 % of it (RFC 8289), but at most 200 ms while that is twice the target.
    pub fn own_fq_codel(&self) -> FlowParams {
        let target_ns = self.target_ns.max(4 * self.packet_ns());
        let usual_ns = (10 * target_ns).clamp(100 * MS, 200 * MS);
        let codel = CodelParams {
            target_ns,
            interval_ns: usual_ns.max(2 * target_ns),
            ..self.own_codel()
        };
        let quantum_bytes = self.own_flows().quantum_bytes;
        FlowParams {
            flows: OWN_FQ_CODEL_FLOWS,
            quantum_bytes,
            fresh_bytes: quantum_bytes,
            limit_packets: self.packets_in(OWN_FQ_CODEL_ROOM_NS),
            ..self.flows(codel)
        }
    }

    /// PIE as the kernel has it, with the values of RFC 8033.
    pub fn pie(&self) -> PieParams {
        PieParams {
            target_ns: 15 * MS,
            update_ns: 15 * MS,
            burst_ns: 150 * MS,
            alpha_16: 2,
            beta_16: 20,
            mtu_bytes: self.mtu_bytes,
            limit_packets: DEFAULT_PACKETS,
            is_kernels: true,
            ecn: self.ecn,
        }
    }

    /// SFQ as the kernel has it by default.
    pub fn sfq(&self) -> SfqParams {
        SfqParams {
            limit_packets: 127,
            quantum_bytes: self.mtu_bytes,
        }
    }

    /// SPA as BHD18 has it: no limit.
    pub fn spa_paper(&self) -> SpaParams {
        SpaParams {
            fin: true,
            high: self.codel(),
            limit_packets: DEFAULT_PACKETS,
            limit: None,
            demoted_packets: 0,
            demoted_log: 0,
        }
    }

    /// weir's SPA.
    pub fn spa(&self) -> SpaParams {
        SpaParams {
            fin: false,
            high: CodelParams {
                ecn: false,
                ..self.own_codel()
            },
            limit_packets: DEFAULT_PACKETS,
            limit: Some(LimitParams::for_rate(self.rate_bytes_per_s)),
            demoted_packets: 256,
            demoted_log: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_fq_codel_drops_after_four_packets_or_five_ms() {
        let of = |bits_per_s: u64| {
            let params = Setup::new(bits_per_s / 8).own_fq_codel();
            let ms = |ns: u64| ns.div_ceil(MS);
            let codel = params.codel;
            (
                ms(codel.target_ns),
                ms(codel.interval_ns),
                params.quantum_bytes,
                params.limit_packets,
            )
        };
        assert_eq!(of(400_000), (122, 243, 300, 66));
        assert_eq!(of(2_400_000), (21, 200, 300, 396));
        assert_eq!(of(10_000_000), (5, 100, 305, 1651));
        assert_eq!(of(1_000_000_000), (5, 100, 1514, 10_240));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for discipline in Discipline::ALL {
            assert_eq!(discipline.name().parse(), Ok(discipline));
        }
        assert!("tbf".parse::<Discipline>().is_err());
    }
}
