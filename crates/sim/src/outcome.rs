//! What a run leaves.

use crate::aqm::Stats;

/// What became of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// When its first SYN was sent, ns.
    pub start_ns: u64,
    /// Full segments of its reply.
    pub segments: u32,
    /// From the first SYN to the SYN/ACK's arrival, ns; `None`: it did not arrive.
    pub connect_ns: Option<u64>,
    /// From the first SYN to the last segment's arrival, ns; `None`: it did not arrive.
    pub response_ns: Option<u64>,
    /// SYNs and SYN/ACKs sent again.
    pub syn_repeats: u32,
    /// Segments sent again.
    pub repeats: u32,
    /// Of those that arrived: how many, and ns from first to last sending together.
    pub repeat_delay: (u32, u64),
    /// Timeouts of either end, without those of SYNs.
    pub timeouts: u32,
    /// Whether it is of a burst.
    pub of_burst: bool,
    /// The server's round-trip times: how many, and ns together.
    pub rtt: (u64, u64),
    /// The server's smoothed round-trip time at the end, ns; 0: none known.
    pub last_rtt_ns: u64,
}

impl Record {
    /// Of a connection that starts.
    pub fn new(start_ns: u64, segments: u32) -> Record {
        Record {
            start_ns,
            segments,
            ..Record::default()
        }
    }
}

/// What a run leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// In the order of starting.
    pub records: Vec<Record>,
    /// What the two queues have counted: of the downlink, of the uplink.
    pub queues: [Stats; 2],
    /// SYNs and SYN/ACKs that the two queues have dropped.
    pub dropped_syns: [u64; 2],
    /// Full segments that clients had received in order at each mark of the scenario.
    pub received_at: Vec<u64>,
}
