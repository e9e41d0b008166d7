//! weir's own queue before a link, and what is told of a queue's work.

use weir_sim::aqm::control::control_of;
use weir_sim::aqm::{AnyQueue, Aqm, Cause, Control, Discipline, Ecn, Hooks, Packet, Setup};

use super::arrivals::{Arrival, FULL_BYTES};
use crate::experiments::sim::sample::{mean_ms, p95_ms};

/// When each packet's transmission began, ns, in the order of coming; `None`: it was dropped.
pub type Departures = Vec<Option<u64>>;

/// A packet of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Numbered {
    number: usize,
    arrival: Arrival,
}

impl Packet for Numbered {
    fn len_bytes(&self) -> u32 {
        self.arrival.bytes
    }

    fn flow_hash(&self) -> u32 {
        self.arrival.flow_hash
    }

    fn source_hash(&self) -> u32 {
        // One server and one client, as the judges have them.
        0
    }

    fn destination_hash(&self) -> u32 {
        0
    }

    fn control(&self) -> Control {
        let payload = u32::from(self.arrival.bytes == FULL_BYTES);
        control_of(self.arrival.flags, payload)
    }

    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    fn set_ce(&mut self) {}
}

struct Surroundings(fastrand::Rng);

impl Hooks<Numbered> for Surroundings {
    fn random(&mut self) -> u32 {
        self.0.u32(..)
    }

    fn dropped(&mut self, _packet: Numbered, _cause: Cause) {}
}

/// A discipline of `weir_sim::aqm`, as the simulator has it on a link of this rate.
pub fn queue(discipline: Discipline, bits_per_s: u64) -> AnyQueue<Numbered> {
    AnyQueue::new(&Setup::new(bits_per_s / 8), discipline)
}

/// A queue before a link of this rate, which sends one packet after the other.
pub fn departures(
    arrivals: &[Arrival],
    mut queue: AnyQueue<Numbered>,
    bits_per_s: u64,
    seed: u64,
) -> Departures {
    let mut surroundings = Surroundings(fastrand::Rng::with_seed(seed));
    let mut departures = vec![None; arrivals.len()];
    let mut coming = arrivals.iter().copied().enumerate().peekable();
    // While the link is free, nothing waits.
    let mut free_ns = None;
    loop {
        let arrives = |arrival: &Arrival| free_ns.is_none_or(|free_ns| arrival.at_ns <= free_ns);
        let now_ns = match (coming.next_if(|(_, arrival)| arrives(arrival)), free_ns) {
            (Some((number, arrival)), _) => {
                let packet = Numbered { number, arrival };
                queue.enqueue(packet, arrival.at_ns, &mut surroundings);
                arrival.at_ns
            }
            (None, Some(free_ns)) => free_ns,
            (None, None) => return departures,
        };
        if free_ns.is_some_and(|free_ns| now_ns < free_ns) {
            continue;
        }
        free_ns = queue.dequeue(now_ns, &mut surroundings).map(|packet| {
            departures[packet.number] = Some(now_ns);
            now_ns + u64::from(packet.arrival.bytes) * 8_000_000_000 / bits_per_s
        });
    }
}

/// What is compared of two queues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Mean delay of the packets that left, ms.
    pub delay_mean_ms: f64,
    /// Share of the packets that was dropped.
    pub lost: f64,
    /// 95th percentile of the time from a connection's first packet to its last one that left, ms.
    pub response_p95_ms: f64,
}

/// Of a queue's work.
pub fn figures(arrivals: &[Arrival], departures: &[Option<u64>]) -> Figures {
    let mut delays_ns = Vec::new();
    // By connection: when its first packet came, and when its last one left.
    let mut spans = std::collections::BTreeMap::<u32, (u64, u64)>::new();
    for (arrival, departure) in arrivals.iter().zip(departures) {
        let (_, last_ns) = spans
            .entry(arrival.flow)
            .or_insert((arrival.at_ns, arrival.at_ns));
        if let Some(at_ns) = departure {
            delays_ns.push(at_ns.saturating_sub(arrival.at_ns));
            *last_ns = (*last_ns).max(*at_ns);
        }
    }
    let responses = spans.values().map(|(first, last)| last - first).collect();
    let lost = arrivals.len() - delays_ns.len();
    Figures {
        delay_mean_ms: mean_ms(&delays_ns).unwrap_or(f64::NAN),
        lost: lost as f64 / arrivals.len().max(1) as f64,
        response_p95_ms: p95_ms(responses).unwrap_or(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(at_ms: u64, flow: u32) -> Arrival {
        Arrival {
            at_ns: at_ms * 1_000_000,
            flow,
            flow_hash: flow.wrapping_mul(0x9e37_79b1),
            bytes: FULL_BYTES,
            flags: 0x10,
        }
    }

    /// 1514 bytes take 10 ms.
    const RATE: u64 = 1_211_200;

    #[test]
    fn a_link_sends_one_packet_after_the_other_and_then_waits() {
        let arrivals = [(0, 1), (1, 1), (1, 2), (100, 1)].map(|(at, flow)| arrival(at, flow));
        let left = departures(&arrivals, queue(Discipline::Fifo, RATE), RATE, 1);
        let ms: Vec<u64> = left.iter().map(|at| at.unwrap() / 1_000_000).collect();
        assert_eq!(ms, [0, 10, 20, 100]);
        let figures = figures(&arrivals, &left);
        assert_eq!(figures.delay_mean_ms, (9.0 + 19.0) / 4.0);
        assert_eq!(figures.lost, 0.0);
    }

    #[test]
    fn what_finds_no_room_is_lost_and_ends_no_connection() {
        let arrivals: Vec<Arrival> = (0..150).map(|_| arrival(0, 1)).collect();
        let left = departures(&arrivals, queue(Discipline::Fifo, RATE), RATE, 1);
        let figures = figures(&arrivals, &left);
        // One is being sent, 100 wait.
        assert!((figures.lost - 49.0 / 150.0).abs() < 1e-9);
        assert_eq!(figures.response_p95_ms, 1000.0);
    }
}
