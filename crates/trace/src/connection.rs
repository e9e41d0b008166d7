//! A connection: two ends, two directions.

use std::net::Ipv6Addr;

use weir_wire::{Endpoint, Segment, flag};

use crate::direction::{Context, Direction, Seen, had};
use crate::sent::{DELAY_MAX_NS, Sent};
use crate::time::Tick;

/// The two ends of a connection, the smaller first: both directions have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    addresses: [Ipv6Addr; 2],
    ports: [u16; 2],
}

impl Ends {
    /// The ends of a segment, and which of them has sent it.
    pub fn of(segment: &Segment) -> (Ends, usize) {
        let (source, destination) = (segment.source, segment.destination);
        let (ends, from) = match source <= destination {
            true => ([source, destination], 0),
            false => ([destination, source], 1),
        };
        let ends = Ends {
            addresses: ends.map(|end| end.address),
            ports: ends.map(|end: Endpoint| end.port),
        };
        (ends, from)
    }

    /// Their addresses.
    pub fn addresses(&self) -> [Ipv6Addr; 2] {
        self.addresses
    }
}

/// Bits of a connection.
mod is {
    /// The second end has opened it. (The first one, if this is not set.)
    pub const OPENED_BY_SECOND: u8 = 1;
    /// SYN, SYN/ACK and final ACK were seen.
    pub const ESTABLISHED: u8 = 1 << 1;
    /// A RST was seen.
    pub const RESET: u8 = 1 << 2;
    /// The round-trip time is known.
    pub const TIMED: u8 = 1 << 3;
    /// The first end has closed its window; the next bit is for the second one.
    pub const CLOSED_BY_FIRST: u8 = 1 << 4;
}

/// State and counts of one connection. A million of them is what most of the memory is for.
#[derive(Debug)]
pub(crate) struct Connection {
    pub ends: Ends,
    /// Of the last packet, in units of 2^27 ns (0.134 s).
    last: u32,
    /// Round-trip time, once it is known; before, the moment of the last SYN.
    rtt: Tick,
    bits: u8,
    /// By the end that sends.
    pub directions: [Direction; 2],
    /// What each end has sent lately; `None`: nothing, or forgotten.
    sent: Option<Box<[Sent; 2]>>,
}

const LAST_SHIFT: u32 = 27;
const SILENCE_MAX: u32 = (DELAY_MAX_NS >> LAST_SHIFT) as u32 + 1;

/// What an end did with what the other one had sent it to open the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has answered the first SYN, so many nanoseconds after it.
    Given(u64),
    /// The SYN comes again, because the first one got no answer.
    NotGiven,
    /// The SYN/ACK comes again, although the final ACK was there.
    Unheeded,
}

/// What a SYN or SYN/ACK means to a connection between the same ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynMeans {
    /// It belongs to it, for the first time.
    First,
    /// It was there before.
    Again,
    /// It opens another connection.
    Another,
}

impl Connection {
    /// A connection that begins with this SYN or SYN/ACK, sent by the end `from`.
    pub fn open(ends: Ends, from: usize, segment: &Segment, at_ns: u64) -> Connection {
        let opener = match segment.has(flag::ACK) {
            true => 1 - from,
            false => from,
        };
        let mut connection = Connection {
            ends,
            last: 0,
            rtt: Tick(0),
            bits: if opener == 1 { is::OPENED_BY_SECOND } else { 0 },
            directions: Default::default(),
            sent: None,
        };
        connection.syn(from, segment, SynMeans::First, at_ns);
        connection
    }

    /// What a SYN or SYN/ACK by the end `from` means.
    pub fn syn_means(&self, from: usize, segment: &Segment) -> SynMeans {
        let (own, other) = (&self.directions[from], &self.directions[1 - from]);
        if segment.has(flag::ACK) {
            let knows = other.had & (had::SYN | had::ANSWERED_SYN) != 0;
            return match own.has(had::SYN) {
                _ if knows && !other.is_answered_by(segment.ack) => SynMeans::Another,
                true => SynMeans::Again,
                false => SynMeans::First,
            };
        }
        if own.has(had::SYN) {
            return match segment.seq == own.syn_seq {
                true => SynMeans::Again,
                false => SynMeans::Another,
            };
        }
        // Behind the answer to it, where packets are out of order; or both ends open at once.
        let is_late =
            own.has(had::ANSWERED_SYN) && own.syn_seq.wrapping_sub(segment.seq) <= segment.payload;
        let has_only_opened = other.packets == u32::from(other.syns);
        let opens_too = own.packets == 0 && has_only_opened && self.bits & is::RESET == 0;
        match is_late || opens_too && !own.has(had::ANSWERED_SYN) {
            true => SynMeans::First,
            false => SynMeans::Another,
        }
    }

    /// What a SYN or SYN/ACK that belongs to the connection tells of the server; it is not noted yet.
    pub fn answer(&self, from: usize, means: SynMeans, at_ns: u64) -> Option<Answer> {
        let (own, other) = (&self.directions[from], &self.directions[1 - from]);
        let by_opener = from == self.opener();
        match means {
            SynMeans::First if !by_opener && other.has(had::SYN) && other.syn_rtx == 0 => {
                Some(Answer::Given(other.syn_at.age_ns(Tick::of(at_ns))))
            }
            SynMeans::Again if by_opener && !other.has(had::SYN) && self.bits & is::RESET == 0 => {
                Some(Answer::NotGiven)
            }
            SynMeans::Again
                if !by_opener && self.bits & is::ESTABLISHED != 0 && !own.has(had::DATA) =>
            {
                Some(Answer::Unheeded)
            }
            _ => None,
        }
    }

    /// A SYN or SYN/ACK that belongs to the connection.
    pub fn syn(&mut self, from: usize, segment: &Segment, means: SynMeans, at_ns: u64) -> Seen {
        self.touch(at_ns);
        let now = Tick::of(at_ns);
        let direction = &mut self.directions[from];
        let seen = match means {
            SynMeans::Again => direction.syn_again(segment, now),
            _ => {
                direction.first_syn(segment, now);
                Seen::New
            }
        };
        if segment.payload > 0 {
            direction.syn_data(segment);
        }
        if from == self.opener() {
            self.rtt = now;
            self.bits &= !is::TIMED;
        }
        if segment.has(flag::ACK) {
            let other = &mut self.directions[1 - from];
            if !other.has(had::SYN) {
                other.syn_seq = segment.ack.wrapping_sub(1);
                other.had |= had::ANSWERED_SYN;
            }
        }
        seen
    }

    /// Any other packet by the end `from`. `may_remember`: memory for what is sent may be taken.
    pub fn segment(
        &mut self,
        from: usize,
        segment: &Segment,
        at_ns: u64,
        may_remember: bool,
    ) -> Seen {
        self.touch(at_ns);
        let now = Tick::of(at_ns);
        self.handshake(from, segment, now);
        if segment.has(flag::RST) {
            self.bits |= is::RESET;
        }
        let to_remember = segment.sequence_len() > 0 || self.directions[from].lacks(segment.seq);
        if self.sent.is_none() && may_remember && to_remember {
            self.sent = Some(Box::default());
        }
        let closed_by = |end: usize| is::CLOSED_BY_FIRST << end;
        let context = Context {
            now,
            rtt_ns: match self.bits & is::TIMED {
                0 => 0,
                _ => Tick(0).age_ns(self.rtt),
            },
            is_closed: self.bits & closed_by(1 - from) != 0,
        };
        let sent = self.sent.as_mut().map(|sent| &mut sent[from]);
        let seen = self.directions[from].segment(segment, context, sent);
        if segment.has(flag::ACK) && !segment.has(flag::RST) && seen != Seen::Stray {
            match segment.window {
                0 => self.bits |= closed_by(from),
                _ => self.bits &= !closed_by(from),
            }
        }
        seen
    }

    /// Whether a segment by the end `from` acknowledges what was not seen of the other end: the capture has lost it.
    pub fn acknowledges_unseen(
        &mut self,
        from: usize,
        segment: &Segment,
        at_ns: u64,
        may_remember: bool,
    ) -> bool {
        let other = 1 - from;
        let is_sound = segment.has(flag::ACK)
            && !segment.has(flag::RST)
            && self.directions[from].has(had::NEXT);
        if !is_sound || !self.directions[other].lacks(segment.ack) {
            return false;
        }
        if self.sent.is_none() && may_remember {
            self.sent = Some(Box::default());
        }
        // Without memory for the hole, what fills it would be taken for sent again.
        if let Some(sent) = &mut self.sent {
            self.directions[other].skip_to(segment.ack, Tick::of(at_ns), &mut sent[other]);
        }
        true
    }

    /// Notes the final ACK of the handshake, and the round-trip time: from the last SYN on, as Wireshark has it. Where the
    /// answer is to an earlier one it is too short, and less counts as out of order.
    fn handshake(&mut self, from: usize, segment: &Segment, now: Tick) {
        if from != self.opener() || !segment.has(flag::ACK) {
            return;
        }
        let (own, other) = (&self.directions[from], &self.directions[1 - from]);
        if !own.has(had::SYN) {
            return;
        }
        if self.bits & is::TIMED == 0 {
            // A round trip of 0 would count as not known.
            self.rtt = Tick(now.0.wrapping_sub(self.rtt.0).max(1));
            self.bits |= is::TIMED;
        }
        if other.has(had::SYN) && !segment.has(flag::RST) {
            self.bits |= is::ESTABLISHED;
        }
    }

    /// Moves the time of the last packet on. What was sent before a long silence cannot be sent again in time, and its
    /// moments would wrap.
    fn touch(&mut self, at_ns: u64) {
        if self.silence(at_ns) > SILENCE_MAX {
            self.sent = None;
        }
        self.last = (at_ns >> LAST_SHIFT) as u32;
    }

    fn silence(&self, at_ns: u64) -> u32 {
        ((at_ns >> LAST_SHIFT) as u32).saturating_sub(self.last)
    }

    /// The end that has opened it.
    pub fn opener(&self) -> usize {
        usize::from(self.bits & is::OPENED_BY_SECOND)
    }

    /// When its last packet came; to compare only.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Whether an end has sent data.
    pub fn has_data(&self) -> bool {
        self.directions
            .iter()
            .any(|direction| direction.has(had::DATA))
    }

    /// Whether both ends have sent something.
    pub fn has_both_directions(&self) -> bool {
        self.directions
            .iter()
            .all(|direction| direction.packets > 0)
    }

    /// Whether the handshake was seen whole, and data after it.
    pub fn is_established(&self) -> bool {
        self.bits & is::ESTABLISHED != 0 && self.has_data()
    }

    /// Whether it has ended: by a RST, or by a FIN of both ends.
    pub fn has_ended(&self) -> bool {
        self.bits & is::RESET != 0
            || self
                .directions
                .iter()
                .all(|direction| direction.has(had::FIN))
    }

    /// Bytes of memory that it holds beside itself.
    pub fn held_bytes(&self) -> usize {
        self.sent.as_ref().map_or(0, |sent| {
            let both: usize = sent.iter().map(Sent::held_bytes).sum();
            both + size_of::<[Sent; 2]>() + ALLOCATOR_BYTES
        })
    }

    /// Forgets what was sent; the bytes that this gives back.
    pub fn drop_sent(&mut self) -> usize {
        let held = self.held_bytes();
        self.sent = None;
        held
    }

    /// Forgets what was sent, if nothing of it is likely to be sent again.
    pub fn forget_sent(&mut self, now_ns: u64) {
        if self.has_ended() || self.silence(now_ns) > SILENCE_MAX {
            self.sent = None;
        }
    }

    /// Remembers what was sent less precisely, in less memory.
    pub fn coarsen_sent(&mut self, now_ns: u64) {
        if let Some(sent) = &mut self.sent {
            for sent in sent.iter_mut() {
                sent.join(RESOLUTION_SHORT, Tick::of(now_ns));
                sent.shrink();
            }
        }
    }
}

/// What an allocator adds to three pieces.
const ALLOCATOR_BYTES: usize = 3 * 16;
/// The reciprocal of a run's length as a share of its age, where memory is short.
const RESOLUTION_SHORT: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_connections_fit_into_their_memory() {
        assert!(
            size_of::<Connection>() <= 136,
            "{}",
            size_of::<Connection>()
        );
    }
}
