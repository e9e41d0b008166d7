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
    /// Data with the SYN.
    pub const SYN_DATA: u16 = 1 << 6;
    /// SYN/ACKs with several first sequence numbers. What follows them shows which one counts.
    pub const SEVERAL_FIRST: u16 = 1 << 7;
    /// A byte into a closed window, which the other end may have taken.
    pub const PROBE: u16 = 1 << 8;
}

/// How late a packet may be for it to be out of order, where the round-trip time is not known, ns. As in Wireshark.
const REORDERING_NS: u64 = 3_000_000;
/// No window is larger (RFC 7323, 2.2). What is further ahead does not belong to the connection.
const WINDOW_MAX: i32 = 1 << 30;
/// How far a packet without data may be ahead, or acknowledge ahead, for what is between to count as lost: what kernels
/// have for a window at most, as they come. A packet of an older connection is seldom so near.
const UNSEEN_MAX: i32 = 8 << 20;
/// What a SYN carries at most, and how far the first packet behind several SYN/ACKs may be from the one that counts. No
/// initial window is larger.
const FIRST_MAX: u32 = 1 << 16;

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
    /// Sent again, so many nanoseconds after the first transmission; `None`: nobody knows.
    Again(Option<u64>),
    /// It fills a hole too soon to have been sent again.
    OutOfOrder,
    /// It asks whether the other end is there (RFC 9293, 3.8.4), or takes data by now (3.8.6.1).
    Probe,
    /// It is not within any window.
    Stray,
}

/// What the connection knows when a segment comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    /// Now.
    pub now: Tick,
    /// The round-trip time, ns; 0 if it is not known.
    pub rtt_ns: u64,
    /// The receiver has closed its window.
    pub is_closed: bool,
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
        self.syn_seq = segment.seq;
        self.reach(segment.seq.wrapping_add(1));
    }

    /// A SYN or SYN/ACK that has been there before. A server that answers with SYN cookies may have changed its
    /// sequence number, and so may one that has forgotten the first one.
    pub fn syn_again(&mut self, segment: &Segment, now: Tick) -> Seen {
        self.count_syn();
        self.syn_rtx = self.syn_rtx.saturating_add(1);
        if segment.seq != self.syn_seq && !self.has(had::DATA) {
            self.syn_seq = segment.seq;
            self.next = segment.seq.wrapping_add(1);
            self.had |= had::SEVERAL_FIRST;
        }
        self.again(self.syn_at.age_ns(now))
    }

    /// Data that a SYN carries (TCP Fast Open, RFC 7413).
    pub fn syn_data(&mut self, segment: &Segment) {
        self.had |= had::DATA | had::SYN_DATA;
        self.reach(segment.seq.wrapping_add(segment.sequence_len()));
    }

    /// Whether an acknowledgement number answers the SYN: it alone, or with data that it carried.
    pub fn is_answered_by(&self, ack: u32) -> bool {
        let first = self.syn_seq.wrapping_add(1);
        let data = match self.has(had::SYN_DATA) {
            true => self.next.wrapping_sub(first).min(FIRST_MAX),
            false => 0,
        };
        ack.wrapping_sub(first) <= data
    }

    /// Whether something before a number that an end tells was not seen.
    pub fn lacks(&mut self, next: u32) -> bool {
        let unseen = next.wrapping_sub(self.next) as i32;
        if !self.has(had::NEXT) || self.has(had::SEVERAL_FIRST) || unseen <= 0 {
            return false;
        }
        if self.has(had::PROBE) && unseen == 1 {
            self.had &= !had::PROBE;
            self.next = next;
            return false;
        }
        unseen <= UNSEEN_MAX
    }

    /// Takes all up to `next` for sent: what was not seen by now is a hole.
    pub fn skip_to(&mut self, next: u32, now: Tick, sent: &mut Sent) {
        sent.skip(self.next, now);
        self.next = next;
    }

    fn count_syn(&mut self) {
        self.packets = self.packets.saturating_add(1);
        self.segments = self.segments.saturating_add(1);
        self.syns = self.syns.saturating_add(1);
    }

    /// Moves the next sequence number on.
    fn reach(&mut self, next: u32) {
        if !self.has(had::NEXT) || is_before(self.next, next) {
            self.next = next;
        }
        self.had |= had::NEXT;
    }

    /// Any other packet. `sent` is `None` where memory is short.
    pub fn segment(
        &mut self,
        segment: &Segment,
        context: Context,
        sent: Option<&mut Sent>,
    ) -> Seen {
        self.packets = self.packets.saturating_add(1);
        if segment.has(flag::RST) {
            return Seen::New;
        }
        if self.has(had::SEVERAL_FIRST) {
            self.settle_first(segment.seq);
        }
        let len = segment.sequence_len();
        if len == 0 {
            return self.place_empty(segment.seq, context.now, sent);
        }
        let seen = self.place(segment, len, context, sent);
        if !matches!(seen, Seen::Probe | Seen::Stray) {
            self.segments = self.segments.saturating_add(1);
            self.had |= if segment.payload > 0 { had::DATA } else { 0 };
            self.had |= if segment.has(flag::FIN) { had::FIN } else { 0 };
        }
        seen
    }

    /// A packet without data has the number of what its sender sends next: what was not seen by then was lost before the
    /// capture, or is late.
    fn place_empty(&mut self, seq: u32, now: Tick, sent: Option<&mut Sent>) -> Seen {
        if self.has(had::NEXT) && seq == self.next.wrapping_sub(1) {
            return Seen::Probe;
        }
        // As an acknowledgement of it would, it shows what is missing.
        if let Some(sent) = sent
            && self.lacks(seq)
        {
            self.skip_to(seq, now, sent);
        }
        Seen::New
    }

    /// Behind SYN/ACKs with several first sequence numbers: the connection has the one that this packet continues.
    fn settle_first(&mut self, seq: u32) {
        self.had &= !had::SEVERAL_FIRST;
        if seq.wrapping_sub(self.next) > FIRST_MAX {
            self.syn_seq = seq.wrapping_sub(1);
            self.next = seq;
        }
    }

    fn place(
        &mut self,
        segment: &Segment,
        len: u32,
        context: Context,
        sent: Option<&mut Sent>,
    ) -> Seen {
        let now = context.now;
        let (seq, end) = (segment.seq, segment.seq.wrapping_add(len));
        if !self.has(had::NEXT) {
            self.had |= had::NEXT;
            self.next = seq;
        }
        if self.is_window_probe(segment, context.is_closed) {
            return Seen::Probe;
        }
        let ahead = seq.wrapping_sub(self.next) as i32;
        if ahead.unsigned_abs() > WINDOW_MAX as u32 {
            return Seen::Stray;
        }
        if ahead >= 0 {
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
            return Seen::Probe;
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
        let reordering = match context.rtt_ns {
            0 => REORDERING_NS,
            rtt_ns => rtt_ns / 2,
        };
        match known {
            Known::Hole(age) if age <= reordering => Seen::OutOfOrder,
            Known::Hole(age) | Known::Seen(age) => self.again(age),
            Known::Nothing if self.is_syn_data(seq) => self.again(self.syn_at.age_ns(now)),
            Known::Nothing => {
                self.rtx = self.rtx.saturating_add(1);
                self.untimed = self.untimed.saturating_add(1);
                Seen::Again(None)
            }
        }
    }

    /// Whether a segment is one byte into a window that is closed. The receiver does not take it as a rule: the next
    /// segment has it again, and that is no retransmission. Where the next one has it not, it was taken.
    fn is_window_probe(&mut self, segment: &Segment, is_closed: bool) -> bool {
        if self.has(had::PROBE) && segment.seq == self.next.wrapping_add(1) {
            self.next = segment.seq;
        }
        self.had &= !had::PROBE;
        let probes = is_closed && segment.seq == self.next && segment.sequence_len() == 1;
        if !probes || segment.payload == 0 {
            return false;
        }
        self.had |= had::PROBE;
        true
    }

    /// Whether a sequence number is of data that the SYN carried.
    fn is_syn_data(&self, seq: u32) -> bool {
        let first = self.syn_seq.wrapping_add(1);
        self.has(had::SYN_DATA) && seq.wrapping_sub(first) < FIRST_MAX
    }

    fn again(&mut self, delay_ns: u64) -> Seen {
        self.rtx = self.rtx.saturating_add(1);
        self.delay_ns = self.delay_ns.saturating_add(delay_ns);
        if delay_ns > DELAY_MAX_NS {
            self.had |= had::LATE;
        }
        Seen::Again(Some(delay_ns))
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
