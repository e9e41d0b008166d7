//! Which end of a connection remembers it once it is closed (FTY99), for the connections of a `[[destination]]`.
//! The decisions are the Rust side of bpf/lib/timewait.h; the property tests of weir-kernel hold the two equal.

pub mod negotiate;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::packet::TimeWait;
use crate::prefix::Prefix;

/// What weir does about TIME-WAIT on the connections of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum TimeWaitMode {
    /// Nothing: the end that closes first is in TIME-WAIT.
    Off = abi::TIMEWAIT_OFF,
    /// Where the server has closed first, its TIME-WAIT is ended by a RST, and a record here stands for it (FTY99,
    /// Section 4.1).
    ClientRst = abi::TIMEWAIT_CLIENT_RST,
    /// The ends agree at the handshake which of them is in TIME-WAIT (FTY99, Section 3).
    Negotiate = abi::TIMEWAIT_NEGOTIATE,
}

/// What weir does about TIME-WAIT on the connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerTimeWait {
    /// Nothing.
    Off,
    /// As [`TimeWaitMode::Negotiate`]: this end chooses.
    Negotiate,
}

/// Which end a listener chooses to hold TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Holder {
    /// The client.
    Client = abi::HOLDER_CLIENT,
    /// The server.
    Server = abi::HOLDER_SERVER,
}

/// Which holders a destination agrees to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Accept {
    /// The one that the server chooses.
    Any = abi::ACCEPT_ANY,
    /// The server.
    Server = abi::ACCEPT_SERVER,
    /// The client, which is this end.
    Client = abi::ACCEPT_CLIENT,
    /// None: servers that negotiate are refused.
    None = abi::ACCEPT_NONE,
}

/// Connections that this machine opens, by where they go, and what is done about their TIME-WAIT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Its name in status and metrics; unique.
    pub name: String,
    /// Addresses of the servers; empty: every address.
    pub to: Vec<Prefix>,
    /// Port of the servers, 1..=65535; `None`: every port.
    pub to_port: Option<u16>,
    /// What is done about TIME-WAIT.
    pub timewait: TimeWaitMode,
    /// Which holders are agreed to, with [`TimeWaitMode::Negotiate`].
    pub accept: Accept,
    /// How long a record stays: 2 MSL. 1 s..=10 min.
    pub timewait_length: Duration,
    /// Applications may choose for single sockets.
    pub per_socket: bool,
}

/// Destinations that one network namespace can have.
pub const MAX_DESTINATIONS: usize = abi::MAX_DESTINATIONS as usize;
/// Prefixes of all destinations together.
pub const MAX_PREFIXES: usize = abi::MAX_DESTINATION_PREFIXES as usize;
/// The kernel's TCP_TIMEWAIT_LEN.
pub const DEFAULT_LENGTH: Duration = Duration::from_secs(60);

impl Destination {
    /// A destination with every server, that changes nothing.
    pub fn new(name: impl Into<String>) -> Destination {
        Destination {
            name: name.into(),
            to: Vec::new(),
            to_port: None,
            timewait: TimeWaitMode::Off,
            accept: Accept::Any,
            timewait_length: DEFAULT_LENGTH,
            per_socket: false,
        }
    }

    /// Its prefixes as the kernel half has them: of both families if it names none.
    pub fn prefixes(&self) -> Vec<Prefix> {
        match self.to.is_empty() {
            true => ["0.0.0.0/0", "::/0"]
                .map(|every| every.parse().expect("a prefix"))
                .to_vec(),
            false => self.to.clone(),
        }
    }

    /// A prefix that both name for the same port: nothing says to which of the two a connection there belongs.
    pub fn tie(&self, other: &Destination) -> Option<Prefix> {
        let theirs = other.prefixes();
        let mut both = self
            .prefixes()
            .into_iter()
            .filter(|prefix| theirs.contains(prefix));
        (self.to_port == other.to_port)
            .then(|| both.next())
            .flatten()
    }
}

/// `include/net/tcp_states.h`: this end has closed after the other one, and its FIN is not acknowledged yet.
pub const LAST_ACK: u8 = 9;

/// The socket for which a segment comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// The next sequence number of this end, its FIN counted.
    pub write_seq: u32,
    /// The next one of the other end.
    pub rcv_nxt: u32,
    /// The kernel's number of its state.
    pub state: u8,
    /// A subflow of MPTCP, whose closing is not TCP's.
    pub mptcp: bool,
}

impl Closing {
    /// Whether an ACK without data ends a passive close: the other end has closed first, this end has closed too, and
    /// the other end has all, its FIN included.
    pub fn is_ended_by(&self, seq: u32, ack: u32) -> bool {
        let is_last = self.state == LAST_ACK && !self.mptcp;
        is_last && ack == self.write_seq && seq == self.rcv_nxt
    }
}

/// Timestamps of the two ends (RFC 7323): the last ones of an old connection, or those of a SYN/ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamps {
    /// Of this end; in a SYN/ACK the one that it echoes.
    pub sent: u32,
    /// Of the other end.
    pub received: u32,
}

/// Where the two directions of a connection are: how far an old one came, or what a SYN/ACK has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The next sequence number of this end, a FIN counted; in a SYN/ACK the number that it acknowledges.
    pub snd_nxt: u32,
    /// The next one of the other end; in a SYN/ACK its own number.
    pub rcv_nxt: u32,
    /// Its timestamps, if it has any.
    pub stamps: Option<Stamps>,
}

impl Numbers {
    /// Whether a new connection of the same 4-tuple may begin at once, by its SYN/ACK. In each direction old duplicates are
    /// dropped for their sequence numbers, if the new ones begin behind them (RFC 1122, Section 4.2.2.13), or by PAWS for
    /// their timestamps (RFC 6191).
    pub fn yield_to(&self, syn_ack: &Numbers) -> bool {
        let is_behind = |new: u32, old: u32| new.wrapping_sub(old) as i32 > 0;
        let is_stamped = |of: fn(Stamps) -> u32| match (self.stamps, syn_ack.stamps) {
            (Some(old), Some(new)) => paws_drops(of(old), of(new)),
            _ => false,
        };
        (is_behind(syn_ack.rcv_nxt, self.rcv_nxt) || is_stamped(|stamps| stamps.received))
            && (is_behind(syn_ack.snd_nxt, self.snd_nxt) || is_stamped(|stamps| stamps.sent))
    }
}

/// Whether a record of a listener's connection, seen as the kernel's TIME-WAIT, yields to a SYN with this sequence number
/// and timestamp: where the kernel's would, but not to a timestamp alone by which PAWS would let old duplicates through.
/// The kernel yields to that.
pub fn record_yields_to_syn(old: &TimeWait, seq: u32, timestamp: Option<u32>) -> bool {
    let is_after = seq.wrapping_sub(old.rcv_nxt) as i32 > 0;
    let is_proved =
        matches!((old.ts_recent, timestamp), (Some(old), Some(new)) if paws_drops(old, new));
    old.yields(seq, timestamp) && (is_after || is_proved)
}

/// PAWS lets a segment through whose timestamp is older than the last one by so much (include/net/tcp.h).
const TCP_PAWS_WINDOW: i32 = 1;

/// Whether PAWS (RFC 7323, Section 5) of a connection that begins with timestamp `new` drops all segments with timestamps
/// up to `old`: `tcp_paws_check()`, for which 0 is no timestamp.
fn paws_drops(old: u32, new: u32) -> bool {
    new != 0 && new.wrapping_sub(old) as i32 > TCP_PAWS_WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(to: &[&str], to_port: Option<u16>) -> Destination {
        let to = to.iter().map(|prefix| prefix.parse().unwrap()).collect();
        Destination {
            to,
            to_port,
            ..Destination::new("backends")
        }
    }

    #[test]
    fn destinations_tie_if_they_name_one_prefix_for_one_port() {
        let web = destination(&["10.0.0.0/8", "10.1.0.0/16"], Some(80));
        let tie = |to: &[&str], port| web.tie(&destination(to, port)).map(|p| p.to_string());
        assert_eq!(tie(&["10.1.0.0/16"], Some(80)).unwrap(), "10.1.0.0/16");
        assert_eq!(tie(&["10.1.0.0/16"], Some(81)), None);
        assert_eq!(tie(&["10.1.0.0/16"], None), None, "the port decides");
        assert_eq!(tie(&["10.1.0.0/17"], Some(80)), None, "the longer one wins");
        let all = destination(&[], None);
        assert_eq!(
            all.tie(&destination(&["::/0"], None)).unwrap().to_string(),
            "::/0"
        );
    }

    #[test]
    fn a_record_yields_if_old_duplicates_are_shut_out_in_both_directions() {
        let numbers = |snd_nxt, rcv_nxt, stamps: Option<(u32, u32)>| Numbers {
            snd_nxt,
            rcv_nxt,
            stamps: stamps.map(|(sent, received)| Stamps { sent, received }),
        };
        let old = numbers(1000, u32::MAX, Some((100, u32::MAX)));
        for (snd_nxt, rcv_nxt, stamps, yields) in [
            // By sequence numbers.
            (1001, 0, None, true),
            (1000, 0, None, false),
            (1001, u32::MAX, None, false),
            // By timestamps.
            (7, 7 << 29, Some((102, 1)), true),
            (7, 7 << 29, Some((101, 1)), false),
            (7, 7 << 29, Some((102, 0)), false),
            (7, 7 << 29, Some((99, 5)), false),
            // Each direction by its own.
            (1001, 7 << 29, Some((99, 1)), true),
            (7, 0, Some((102, 7 << 29)), true),
        ] {
            let new = numbers(snd_nxt, rcv_nxt, stamps);
            assert_eq!(old.yield_to(&new), yields, "{new:?}");
        }
        let unstamped = numbers(1000, u32::MAX, None);
        assert!(!unstamped.yield_to(&numbers(7, 7 << 29, Some((102, 1)))));
    }

    #[test]
    fn a_listener_s_record_yields_to_a_sequence_number_or_a_timestamp_that_shuts_the_old_ones_out()
    {
        let old = TimeWait {
            rcv_nxt: 1000,
            ts_recent: Some(u32::MAX - 1),
            fin_wait2: false,
        };
        for (seq, timestamp, yields) in [
            (1001, None, true),
            (1000, None, false),
            (1001, Some(u32::MAX), true),
            (1000, Some(u32::MAX), false),
            (1000, Some(0), false),
            (1000, Some(1), true),
            (1001, Some(u32::MAX - 2), false),
        ] {
            let did = record_yields_to_syn(&old, seq, timestamp);
            assert_eq!(did, yields, "{seq} {timestamp:?}");
        }
    }

    #[test]
    fn only_the_ack_of_the_last_fin_ends_a_passive_close() {
        let last = Closing {
            write_seq: 7,
            rcv_nxt: 9,
            state: LAST_ACK,
            mptcp: false,
        };
        assert!(last.is_ended_by(9, 7));
        assert!(!last.is_ended_by(9, 6), "the FIN is not acknowledged");
        assert!(!last.is_ended_by(8, 7), "an old duplicate");
        let others = [
            Closing { state: 8, ..last },
            Closing {
                mptcp: true,
                ..last
            },
        ];
        assert!(others.iter().all(|other| !other.is_ended_by(9, 7)));
    }
}
