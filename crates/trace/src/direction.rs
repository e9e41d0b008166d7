//! One direction of a connection: which of its segments are sent again, and after how long.

use weir_wire::{Segment, flag};

use crate::sent::{DELAY_MAX_NS, Known, Sent, is_before};
use crate::time::Tick;

/// What a direction has had.
pub(crate) mod had {
    /// A SYN or SYN/ACK.
    pub const SYN: u16 = 1;
    /// Data.
    pub const DATA: u16 = 1 << 1;
    /// A FIN.
    pub const FIN: u16 = 1 << 2;
    /// Something sent again so late that the connection does not count.
    pub const LATE: u16 = 1 << 3;
    /// A segment, so that the next sequence number is known.
    pub const NEXT: u16 = 1 << 4;
    /// No SYN, but an answer to it, so that its sequence number is known.
    pub const ANSWERED_SYN: u16 = 1 << 5;
}

/// How late a packet may be for it to be out of order, where the round-trip time is not known, ns. As in Wireshark.
const REORDERING_NS: u64 = 3_000_000;
/// No window is larger (RFC 7323, 2.2). What is further ahead does not belong to the connection.
const WINDOW_MAX: i32 = 1 << 30;

/// State and counts of one direction. Counts saturate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Direction {
    /// Sum of the delays of what was sent again, ns.
    pub delay_ns: u64,
    /// The sequence number behind all that was seen.
    pub next: u32,
    /// Sequence number of the SYN or SYN/ACK.
    pub syn_seq: u32,
    /// When it was first seen.
    pub syn_at: Tick,
    /// All packets.
    pub packets: u32,
    /// Those with data, SYN or FIN.
    pub segments: u32,
    /// Those of them that were sent again, SYNs among them.
    pub rtx: u32,
    /// SYNs and SYN/ACKs, also those sent again.
    pub syns: u16,
    /// SYNs and SYN/ACKs sent again.
    pub syn_rtx: u16,
    /// Sent again, but nobody knows when it was sent first.
    pub untimed: u16,
    /// [`had`].
    pub had: u16,
}

/// What a segment turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// New, or without a sequence number of its own.
    New,
    /// Sent again.
    Again,
    /// It fills a hole too soon to have been sent again.
    OutOfOrder,
    /// It asks whether the other end is there (RFC 9293, 3.8.4).
    KeepAlive,
    /// It is not within any window.
    Stray,
}

impl Direction {
    /// Whether it has had all of these.
    pub fn has(&self, bits: u16) -> bool {
        self.had & bits == bits
    }

    /// The first SYN or SYN/ACK.
    pub fn first_syn(&mut self, segment: &Segment, now: Tick) {
        self.count_syn();
        self.had |= had::SYN;
        self.syn_at = now;
        self.take_syn(segment);
    }

    /// A SYN or SYN/ACK that has been there before. A server that answers with SYN cookies may have changed its
    /// sequence number.
    pub fn syn_again(&mut self, segment: &Segment, now: Tick) {
        self.count_syn();
        self.syn_rtx = self.syn_rtx.saturating_add(1);
        self.again(self.syn_at.age_ns(now));
        if segment.seq != self.syn_seq && !self.has(had::DATA) {
            self.take_syn(segment);
        }
    }

    fn count_syn(&mut self) {
        self.packets = self.packets.saturating_add(1);
        self.segments = self.segments.saturating_add(1);
        self.syns = self.syns.saturating_add(1);
    }

    fn take_syn(&mut self, segment: &Segment) {
        self.syn_seq = segment.seq;
        self.next = segment.seq.wrapping_add(1);
        self.had |= had::NEXT;
    }

    /// Any other packet. `rtt_ns` is the round-trip time, 0 if it is not known; `sent` is `None` where memory is short.
    pub fn segment(
        &mut self,
        segment: &Segment,
        now: Tick,
        rtt_ns: u64,
        sent: Option<&mut Sent>,
    ) -> Seen {
        self.packets = self.packets.saturating_add(1);
        let len = match segment.has(flag::RST) {
            true => 0,
            false => segment.sequence_len(),
        };
        if len == 0 {
            return Seen::New;
        }
        let seen = self.place(segment, len, now, rtt_ns, sent);
        if !matches!(seen, Seen::KeepAlive | Seen::Stray) {
            self.segments = self.segments.saturating_add(1);
            self.had |= if segment.payload > 0 { had::DATA } else { 0 };
            self.had |= if segment.has(flag::FIN) { had::FIN } else { 0 };
        }
        seen
    }

    fn place(
        &mut self,
        segment: &Segment,
        len: u32,
        now: Tick,
        rtt_ns: u64,
        sent: Option<&mut Sent>,
    ) -> Seen {
        let (seq, end) = (segment.seq, segment.seq.wrapping_add(len));
        if !self.has(had::NEXT) {
            self.had |= had::NEXT;
            self.next = seq;
        }
        let ahead = seq.wrapping_sub(self.next) as i32;
        if ahead >= 0 {
            if ahead > WINDOW_MAX {
                return Seen::Stray;
            }
            if let Some(sent) = sent {
                if ahead > 0 {
                    sent.skip(self.next, now);
                }
                sent.push(seq, now);
            }
            self.next = end;
            return Seen::New;
        }
        let known = match &sent {
            Some(sent) => sent.look_up(seq, now),
            None => Known::Nothing,
        };
        if is_keep_alive(segment, ahead, &sent) {
            return Seen::KeepAlive;
        }
        let (is_new_data, next) = (is_before(self.next, end), self.next);
        if let Some(sent) = sent {
            sent.fill(seq, end, next, now);
            if is_new_data {
                sent.push(next, now);
            }
        }
        if is_new_data {
            self.next = end;
        }
        // What is sent again comes a round trip later. Half of one: that of the handshake may be longer than others.
        let reordering = if rtt_ns == 0 {
            REORDERING_NS
        } else {
            rtt_ns / 2
        };
        match known {
            Known::Hole(age) if age <= reordering => return Seen::OutOfOrder,
            Known::Hole(age) | Known::Seen(age) => self.again(age),
            Known::Nothing => {
                self.rtx = self.rtx.saturating_add(1);
                self.untimed = self.untimed.saturating_add(1);
            }
        }
        Seen::Again
    }

    fn again(&mut self, delay_ns: u64) {
        self.rtx = self.rtx.saturating_add(1);
        self.delay_ns = self.delay_ns.saturating_add(delay_ns);
        if delay_ns > DELAY_MAX_NS {
            self.had |= had::LATE;
        }
    }

    /// Retransmissions whose delay is known.
    pub fn timed(&self) -> u32 {
        self.rtx.saturating_sub(u32::from(self.untimed))
    }
}

/// The byte before the next one, or nothing at its place. A segment of one byte that was sent as one byte before may be
/// either: it counts as sent again.
fn is_keep_alive(segment: &Segment, ahead: i32, sent: &Option<&mut Sent>) -> bool {
    let probes = ahead == -1 && segment.payload <= 1 && !segment.has(flag::FIN);
    probes
        && sent
            .as_ref()
            .is_none_or(|sent| sent.last_start() != Some(segment.seq))
}
