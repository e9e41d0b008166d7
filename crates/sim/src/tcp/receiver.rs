//! The receiver: what has arrived, and when it is acknowledged (RFC 5681, RFC 2018, RFC 7323, RFC 3168).

use crate::aqm::Ecn;

use crate::segment::{SACK_BLOCKS, Segment};

/// A delayed ACK waits so long at most, ns (TCP_DELACK_MIN of Linux).
const DELAYED_ACK_NS: u64 = 40_000_000;
/// So many segments are acknowledged at once at the beginning (TCP_MAX_QUICKACKS of Linux).
const QUICK_ACKS: u32 = 16;

/// What has arrived at one end.
#[derive(Debug, Clone, Default)]
pub struct Receiver {
    /// The next number expected.
    pub next: u32,
    /// Ranges behind it, the newest first.
    ahead: Vec<(u32, u32)>,
    /// Segments since the last ACK, and since the beginning.
    unacknowledged: u32,
    seen: u32,
    /// When a delayed ACK is due, ns.
    pub ack_at_ns: Option<u64>,
    /// Timestamp to echo, ns, and the number of the last ACK.
    echo_ns: u64,
    last_ack: u32,
    /// A mark has come and the sender has not answered it yet.
    echoes_mark: bool,
}

/// The fields of an ACK.
#[derive(Debug, Clone, Copy)]
pub struct AckFields {
    /// The next number expected.
    pub ack: u32,
    /// Ranges behind it.
    pub sack: [(u32, u32); SACK_BLOCKS],
    /// Timestamp that it echoes, ns.
    pub echo_ns: u64,
    /// Whether it echoes a mark.
    pub ece: bool,
}

impl Receiver {
    /// A segment with payload or FIN arrived. Whether it is acknowledged at once; if not, `ack_at_ns` is set.
    pub fn arrived(&mut self, segment: &Segment, now_ns: u64) -> bool {
        if segment.cwr {
            self.echoes_mark = false;
        }
        self.echoes_mark |= segment.ecn == Ecn::Ce;
        if segment.seq <= self.last_ack {
            self.echo_ns = segment.sent_ns;
        }
        self.seen += 1;
        self.unacknowledged += 1;
        let had_a_hole = !self.ahead.is_empty();
        let in_order = segment.seq == self.next;
        if in_order {
            self.next += 1;
            self.close_hole();
        } else if segment.seq > self.next {
            self.note_ahead(segment.seq);
        }
        let at_once = !in_order
            || had_a_hole
            || self.unacknowledged >= 2
            || self.seen <= QUICK_ACKS
            || self.echoes_mark;
        if !at_once && self.ack_at_ns.is_none() {
            self.ack_at_ns = Some(now_ns + DELAYED_ACK_NS);
        }
        at_once
    }

    /// What was ahead follows now.
    fn close_hole(&mut self) {
        let next = self.next;
        if let Some(at) = self.ahead.iter().position(|(from, _)| *from == next) {
            self.next = self.ahead.remove(at).1;
        }
    }

    /// Joins a number to the ranges it touches, and puts the result first.
    fn note_ahead(&mut self, seq: u32) {
        let (mut from, mut to) = (seq, seq + 1);
        self.ahead.retain(|&(first, end)| {
            let touches = first <= to && from <= end;
            if touches {
                (from, to) = (from.min(first), to.max(end));
            }
            !touches
        });
        self.ahead.insert(0, (from, to));
    }

    /// The fields of the ACK that leaves now.
    pub fn acknowledge(&mut self) -> AckFields {
        self.unacknowledged = 0;
        self.ack_at_ns = None;
        self.last_ack = self.next;
        let mut sack = [(0, 0); SACK_BLOCKS];
        for (block, range) in sack.iter_mut().zip(&self.ahead) {
            *block = *range;
        }
        AckFields {
            ack: self.next,
            sack,
            echo_ns: self.echo_ns,
            ece: self.echoes_mark,
        }
    }
}
