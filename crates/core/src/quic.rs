//! Servers of QUIC under guard: new connections are held to what the server answers, as SYNs are to its listen queue.
//!
//! QUIC has no listen queue: what waits does so in the receive buffer of a UDP socket, or in the server. So weir goes by
//! the attempts that it has let in and that the server has not answered yet, and by how long an answer takes. What the
//! kernel half decides, bpf/lib/quic.h, has its model in `weir-models`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::listener::{ListenAddress, Listener, Mode};
use crate::verdict::Kind;
use crate::workload::Where;

/// What an attempt to open a connection gets that the server cannot answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum QuicRefuse {
    /// Nothing; the client repeats its Initial and gives up after seconds, or takes TCP.
    Drop = abi::QUIC_REFUSE_DROP,
    /// A Version Negotiation packet that offers no version: clients give the attempt up at once (RFC 9000, Section 6.2),
    /// and most take TCP.
    Vn = abi::QUIC_REFUSE_VN,
}

/// A QUIC server under guard: where it is and its whole policy.
#[derive(Debug, Clone, PartialEq)]
pub struct QuicListener {
    /// Its name in status and metrics; unique.
    pub name: String,
    /// Where it listens, by UDP.
    pub address: ListenAddress,
    /// In which network namespaces. In others than weir's own it is guarded where a listener with the same `where` and port is in
    /// force, for that one's servers are found.
    pub location: Where,
    /// Interfaces on which it is guarded; empty: all. At most [`QuicListener::MOST_INTERFACES`].
    pub interfaces: Vec<String>,
    /// What a refused attempt gets.
    pub refuse: QuicRefuse,
    /// Wait for an answer above which it refuses once it stands. 1 ms..=10 s.
    pub target_wait: Duration,
    /// How long the wait must stand over the target before it refuses. 1 ms..=10 s.
    pub interval: Duration,
    /// Share of the socket's receive buffer above which it refuses, 0.0..=1.0; 0: the buffer does not count.
    pub room: f64,
    /// Share of what the server can answer that new attempts have although it refuses, 0.0..=1.0. Established connections
    /// alone can keep a server busy.
    pub floor: f64,
    /// Whether verdicts are carried out.
    pub mode: Mode,
}

/// Default of [`QuicListener::target_wait`].
pub const DEFAULT_TARGET_WAIT: Duration = Duration::from_millis(20);
/// Default of [`QuicListener::interval`].
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(100);
/// Default of [`QuicListener::room`]: a burst of 60 attempts in 20 ms finds room in half of 1 MiB.
pub const DEFAULT_ROOM: f64 = 0.5;
/// Default of [`QuicListener::floor`].
pub const DEFAULT_FLOOR: f64 = 0.125;

impl QuicListener {
    /// QUIC listeners that can be guarded in one network namespace.
    pub const MOST: usize = abi::MAX_QUIC as usize;
    /// Interfaces that one can name.
    pub const MOST_INTERFACES: usize = abi::QUIC_INTERFACES as usize;

    /// One with the default policy.
    pub fn new(name: impl Into<String>, address: ListenAddress) -> QuicListener {
        QuicListener {
            name: name.into(),
            address,
            location: Where::Here,
            interfaces: Vec::new(),
            refuse: QuicRefuse::Vn,
            target_wait: DEFAULT_TARGET_WAIT,
            interval: DEFAULT_INTERVAL,
            room: DEFAULT_ROOM,
            floor: DEFAULT_FLOOR,
            mode: Mode::Enforce,
        }
    }

    /// Whether it is in other network namespaces too.
    pub fn is_elsewhere(&self) -> bool {
        self.location != Where::Here
    }

    /// Whether it is guarded where this listener is in force.
    pub fn goes_with(&self, listener: &Listener) -> bool {
        (&self.location, self.address.port) == (&listener.location, listener.address.port)
    }
}

/// A verdict's row in bpf/abi/quic.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicVerdictInfo {
    /// The verdict.
    pub verdict: QuicVerdict,
    /// Its name in counters, metrics and `weir explain`.
    pub name: &'static str,
    /// How it treats the attempt.
    pub kind: Kind,
    /// One line that explains it.
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/quic_verdicts.rs"));

/// How often each verdict fell on one QUIC listener, summed over the CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicCounters(pub [u64; QUIC_VERDICTS.len()]);

impl Default for QuicCounters {
    fn default() -> QuicCounters {
        QuicCounters([0; QUIC_VERDICTS.len()])
    }
}

impl QuicCounters {
    /// The count of one verdict.
    pub fn get(&self, verdict: QuicVerdict) -> u64 {
        self.0[verdict as usize]
    }

    /// Every verdict with its count, in the order of bpf/abi/quic.h.
    pub fn rows(&self) -> impl Iterator<Item = (&'static QuicVerdictInfo, u64)> + '_ {
        QUIC_VERDICTS.iter().map(|row| (row, self.get(row.verdict)))
    }

    /// What was counted since these were.
    pub fn since(&self, before: &QuicCounters) -> QuicCounters {
        let mut counters = *self;
        for (n, before) in counters.0.iter_mut().zip(before.0) {
            *n = n.saturating_sub(before);
        }
        counters
    }

    /// Attempts of this kind.
    fn of(&self, kind: Kind) -> u64 {
        let its = self.rows().filter(|(row, _)| row.kind == kind);
        its.map(|(_, count)| count).sum()
    }

    /// Attempts that were refused; in observe mode, that would have been.
    pub fn refused(&self) -> u64 {
        self.of(Kind::Refuse)
    }

    /// Attempts that were let in.
    pub fn let_in(&self) -> u64 {
        self.of(Kind::Pass)
    }
}

/// How the server of one UDP socket answers new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicSocket {
    /// Attempts that were let in and are not answered.
    pub pending: u32,
    /// How long the next one waits for its answer; `None`: the server has answered none yet.
    pub wait: Option<Duration>,
    /// From one answer to the next of the busy server; `None`: not known.
    pub service: Option<Duration>,
    /// Bytes in the receive buffer at the last attempt.
    pub buffer: u32,
    /// Bytes that may be there.
    pub buffer_limit: u32,
    /// Attempts over the target are refused.
    pub standing: bool,
    /// But not while fewer wait than this: as many as keep the server busy.
    pub least: u32,
}

impl QuicSocket {
    /// The share of the receive buffer that was taken, 0 to 1.
    pub fn fullness(&self) -> f64 {
        f64::from(self.buffer) / f64::from(self.buffer_limit.max(1))
    }
}

/// One look at a QUIC listener.
#[derive(Debug, Clone, Copy)]
pub struct QuicLook<'a> {
    /// When.
    pub at: Duration,
    /// Its policy.
    pub listener: &'a QuicListener,
    /// What was done since it is guarded.
    pub counters: &'a QuicCounters,
    /// The sockets to which attempts have come of late.
    pub sockets: &'a [QuicSocket],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_let_in_or_refused_and_a_note_is_neither() {
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicAdmitted as usize] = 5;
        counters.0[QuicVerdict::QuicFloor as usize] = 1;
        counters.0[QuicVerdict::QuicVnWait as usize] = 3;
        counters.0[QuicVerdict::QuicRefusedAgain as usize] = 7;
        assert_eq!((counters.let_in(), counters.refused()), (6, 3));
    }
}
