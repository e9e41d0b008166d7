//! When a record of TIME-WAIT begins and what it yields to: the model of bpf/lib/timewait.h. [`negotiate`] is that of
//! bpf/lib/negotiate.h.

pub mod negotiate;

use weir_core::timewait::state;

use crate::packet::TimeWait;

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
        let is_last = self.state == state::LAST_ACK && !self.mptcp;
        is_last && ack == self.write_seq && seq == self.rcv_nxt
    }
}

/// A socket that opens a connection, or another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The number of its SYN, as long as that is not acknowledged.
    pub snd_una: u32,
    /// The next one, behind the SYN and its data (TCP Fast Open). The kernel's `snd_nxt` lags while the SYN is being sent.
    pub write_seq: u32,
    /// The kernel's number of its state.
    pub state: u8,
}

impl Opening {
    /// Whether a SYN/ACK that acknowledges this number is for it. The kernel takes no other.
    pub fn is_answered_by(&self, ack: u32) -> bool {
        let is_after = |this: u32, that: u32| this.wrapping_sub(that) as i32 > 0;
        let opens = [state::SYN_SENT, state::SYN_RECV].contains(&self.state);
        opens && is_after(ack, self.snd_una) && !is_after(ack, self.write_seq)
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

/// TCP has given up nearly every connection that has been closing for so long (`tcp_retries2`: 15 min).
const CLOSING_MOST_S: i64 = 1200;

/// Whether a record seems to wait for the end of a connection that has ended: it has been closing since then (s, which wrap) for
/// longer than TCP lets one. `now_ns`: CLOCK_MONOTONIC.
pub fn record_hangs(closing_s: u32, now_ns: u64) -> bool {
    let now_s = (now_ns / 1_000_000_000) as u32;
    i64::from(now_s.wrapping_sub(closing_s) as i32) > CLOSING_MOST_S
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
    fn a_record_hangs_once_its_connection_has_been_closing_for_twenty_minutes() {
        let second = 1_000_000_000;
        assert!(!record_hangs(100, 1300 * second));
        assert!(record_hangs(100, 1301 * second));
        // Of another CPU, whose clock is ahead.
        assert!(!record_hangs(101, 100 * second));
        // Seconds wrap after 136 years.
        assert!(record_hangs(u32::MAX, (1201 + (1 << 32)) * second));
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
    fn only_the_number_behind_a_syn_answers_it() {
        let opening = Opening {
            snd_una: u32::MAX,
            write_seq: 0,
            state: state::SYN_SENT,
        };
        assert!(opening.is_answered_by(0));
        for ack in [u32::MAX, 1, 1 << 31] {
            assert!(!opening.is_answered_by(ack), "{ack}");
        }
        let with_data = Opening {
            write_seq: 9,
            ..opening
        };
        assert!(with_data.is_answered_by(0) && with_data.is_answered_by(9));
        for state in (0..13).filter(|state| ![state::SYN_SENT, state::SYN_RECV].contains(state)) {
            assert!(!Opening { state, ..opening }.is_answered_by(0), "{state}");
        }
    }

    #[test]
    fn only_the_ack_of_the_last_fin_ends_a_passive_close() {
        let last = Closing {
            write_seq: 7,
            rcv_nxt: 9,
            state: state::LAST_ACK,
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
