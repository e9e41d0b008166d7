//! What a run is judged by.
//!
//! Two kinds of counts, and they answer different questions:
//! - by time: what happened inside the measuring window, whoever began when. Throughput and the
//!   packet counts of SB06's Table II are such.
//! - by fate: what became of the connections that *began* inside the window, however late. Refused,
//!   timed out, response times are such; their sum is the number of connections begun.

use std::ops::Range;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::tcp::{Event, Retransmission};

/// Longest time that a histogram keeps apart, µs; client time-outs are far below.
const LONGEST_US: u64 = 600_000_000;

/// Counts by time: inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Replies completed. Throughput is this over the window.
    pub replies: u64,
    /// SYNs sent, with retransmissions and retries.
    pub syns: u64,
    /// ACKs sent in answer to SYN/ACKs.
    pub syn_ack_acks: u64,
    /// SYNs sent again by timer.
    pub syn_retransmissions: u64,
    /// Requests sent again by timer.
    pub request_retransmissions: u64,
    /// FINs sent again by timer.
    pub fin_retransmissions: u64,
}

/// Counts by fate: of the connections that began inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// Begun.
    pub started: u64,
    /// Got the whole reply.
    pub served: u64,
    /// Got a RST to the SYN.
    pub refused: u64,
    /// Got a RST after the SYN/ACK.
    pub reset: u64,
    /// Gave up at the client's time-out.
    pub timed_out: u64,
    /// Got a reply that is no use.
    pub bad_reply: u64,
    /// Of those: with status 429 or 503.
    pub busy: u64,
    /// Of those reset or timed out: had a SYN/ACK, but no byte of the request was acknowledged.
    pub false_establishments: u64,
    /// Of the served: SYN sent again by timer before.
    pub waited_for_syn: u64,
    /// Of the served: request sent again by timer before.
    pub waited_for_request: u64,
    /// Of the served: FIN sent again by timer after the reply.
    pub waited_for_fin: u64,
    /// RSTs that did not fit the connection's state and were not believed.
    pub ignored_resets: u64,
}

/// All results of one run of the generator.
#[derive(Debug, Clone)]
pub struct Tally {
    window_ns: Range<u64>,
    /// Counts by time.
    pub wire: Wire,
    /// Counts by fate.
    pub fate: Fate,
    /// First SYN to first SYN/ACK, µs, of all that began in the window and got one.
    pub connect_us: Histogram<u64>,
    /// First SYN to the RST that ended it, µs, of the refused that began in the window.
    pub refusal_us: Histogram<u64>,
    /// First SYN to the end of the reply, µs, of the served that began in the window.
    pub response_us: Histogram<u64>,
}

impl Tally {
    /// An empty tally for this window (ns since the run's beginning).
    pub fn new(window_ns: Range<u64>) -> Tally {
        Tally {
            window_ns,
            wire: Wire::default(),
            fate: Fate::default(),
            connect_us: new_histogram(),
            refusal_us: new_histogram(),
            response_us: new_histogram(),
        }
    }

    /// A connection begins.
    pub fn begin(&mut self, now_ns: u64) {
        self.fate.started += u64::from(self.window_ns.contains(&now_ns));
    }

    /// Something happened to a connection that began at `start_ns`.
    pub fn note(&mut self, event: Event, start_ns: u64, now_ns: u64) {
        if self.window_ns.contains(&now_ns) {
            self.wire.note(event);
        }
        if !self.window_ns.contains(&start_ns) {
            return;
        }
        self.fate.note(event);
        let elapsed_us = (now_ns.saturating_sub(start_ns) / 1000).max(1);
        match event {
            Event::Connected => self.connect_us.saturating_record(elapsed_us),
            Event::Refused => self.refusal_us.saturating_record(elapsed_us),
            Event::Served { .. } => self.response_us.saturating_record(elapsed_us),
            _ => {}
        }
    }
}

/// A histogram of µs with three significant digits.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, 3).expect("constant bounds are valid")
}

impl Wire {
    fn note(&mut self, event: Event) {
        match event {
            Event::Served { .. } => self.replies += 1,
            Event::SynSent => self.syns += 1,
            Event::SynAckAcked => self.syn_ack_acks += 1,
            Event::Retransmitted(Retransmission::Syn) => self.syn_retransmissions += 1,
            Event::Retransmitted(Retransmission::Request) => self.request_retransmissions += 1,
            Event::Retransmitted(Retransmission::Fin) => self.fin_retransmissions += 1,
            _ => {}
        }
    }
}

impl Fate {
    fn note(&mut self, event: Event) {
        match event {
            Event::Served {
                waited_syn,
                waited_request,
            } => {
                self.served += 1;
                self.waited_for_syn += u64::from(waited_syn);
                self.waited_for_request += u64::from(waited_request);
            }
            Event::Refused => self.refused += 1,
            Event::Reset {
                false_establishment,
            } => {
                self.reset += 1;
                self.false_establishments += u64::from(false_establishment);
            }
            Event::TimedOut {
                false_establishment,
            } => {
                self.timed_out += 1;
                self.false_establishments += u64::from(false_establishment);
            }
            Event::BadReply { busy } => {
                self.bad_reply += 1;
                self.busy += u64::from(busy);
            }
            Event::WaitedForFin => self.waited_for_fin += 1,
            Event::IgnoredReset => self.ignored_resets += 1,
            _ => {}
        }
    }

    /// Connections of which the end is known.
    pub fn finished(&self) -> u64 {
        self.served + self.refused + self.reset + self.timed_out + self.bad_reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_counts_by_reply_time_and_fate_by_beginning() {
        let mut tally = Tally::new(100..200);
        let served = Event::Served {
            waited_syn: true,
            waited_request: false,
        };
        tally.note(served, 50, 150);
        tally.note(served, 150, 250);
        assert_eq!(
            tally.wire.replies, 1,
            "the first, which began before the window"
        );
        assert_eq!(
            (tally.fate.served, tally.fate.waited_for_syn),
            (1, 1),
            "the second"
        );
        assert_eq!(tally.response_us.len(), 1);
    }
}
