//! What weir reads of a QUIC packet, and whether one more connection may begin: the models of bpf/lib/quic.h and
//! bpf/lib/quic_wait.h; [`flows`] is what it remembers.
//!
//! A datagram is what UDP carries, from its first byte on; a head is what is read of it ([`HEAD`]).

pub mod flows;

use weir_core::abi;
use weir_core::class::{Bucket, BucketLimit, OTHER_PRIORITY, UNITS_PER_NS};
use weir_core::quic::{QuicRefuse, QuicVerdict};

/// So much of a datagram is read at most: flags, version and both connection IDs with their lengths.
pub const HEAD: usize = 1 + 4 + 2 * (1 + MOST_ID);
/// Longest connection ID in versions 1 and 2.
pub const MOST_ID: usize = abi::QUIC_CID_MOST as usize;
/// Datagrams with a client's Initial are at least so long (RFC 9000, Section 14.1).
pub const LEAST_INITIAL: usize = 1200;
/// And its connection ID for the server, until the server has chosen one (Section 7.2).
pub const LEAST_FIRST_ID: usize = 8;
/// The version that a refusal lists, which no client has (Section 6.3).
pub const NO_VERSION: u32 = 0x1a2a_3a4a;
const V1: u32 = 1;
/// RFC 9369.
const V2: u32 = 0x6b33_43cf;

/// What a long packet is (`enum quic_kind` of bpf/lib/quic.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// The first of a client, and the server's answer to it.
    Initial = 1,
    /// Requests of a client that has been there before.
    ZeroRtt,
    /// What follows.
    Handshake,
    /// The server asks the client to prove its address.
    Retry,
    /// Version Negotiation.
    Negotiation,
}

/// The head of a long packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongPacket<'a> {
    /// What it is.
    pub kind: PacketKind,
    /// Destination's connection ID.
    pub to: &'a [u8],
    /// Source's connection ID.
    pub from: &'a [u8],
}

impl LongPacket<'_> {
    /// Reads a datagram's first packet. `None`: it has a short header, an unknown version or ends too soon.
    pub fn read(datagram: &[u8]) -> Option<LongPacket<'_>> {
        let (&flags, rest) = datagram.split_first()?;
        // The form bit. The fixed one may be either (RFC 9287).
        if flags & 0x80 == 0 {
            return None;
        }
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (to, rest) = id(rest)?;
        let (from, _) = id(rest)?;
        let kind = kind_of(u32::from_be_bytes(*version), flags >> 4 & 3)?;
        Some(LongPacket { kind, to, from })
    }

    /// Whether a client's datagram of so many bytes may begin a connection.
    pub fn may_begin(&self, len: usize) -> bool {
        self.kind == PacketKind::Initial && len >= LEAST_INITIAL && self.to.len() >= LEAST_FIRST_ID
    }

    /// The Version Negotiation packet that ends this attempt. Of `chance` six bits are used.
    pub fn refusal(&self, chance: u8) -> Vec<u8> {
        let mut answer = vec![0xc0 | chance & 0x3f, 0, 0, 0, 0];
        for id in [self.from, self.to] {
            answer.push(id.len() as u8);
            answer.extend_from_slice(id);
        }
        answer.extend_from_slice(&NO_VERSION.to_be_bytes());
        answer
    }
}

/// The hash of a connection ID. Never 0.
pub fn id_hash(id: &[u8]) -> u32 {
    let mut bytes = [0; 24];
    bytes[..id.len()].copy_from_slice(id);
    let (words, _) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(0u64, |hash, word| {
        (hash ^ hash >> 32 ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    ((hash >> 32) as u32).max(1)
}

/// A connection ID behind its length, and what follows.
fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    (usize::from(len) <= MOST_ID).then(|| rest.split_at_checked(len.into()))?
}

fn kind_of(version: u32, kind: u8) -> Option<PacketKind> {
    use PacketKind::{Handshake, Initial, Negotiation, Retry, ZeroRtt};
    let order = match version {
        0 => return Some(Negotiation),
        V1 => [Initial, ZeroRtt, Handshake, Retry],
        V2 => [Retry, Initial, ZeroRtt, Handshake],
        _ => return None,
    };
    Some(order[usize::from(kind)])
}

/// So long after the last answer, attempts that wait for one are forgotten.
pub const FORGOTTEN_NS: u64 = abi::QUIC_FORGOTTEN_MS as u64 * 1_000_000;
/// So long without an answer, a server counts as stopped.
pub const STOPPED_NS: u64 = 1_000_000_000;
/// An answer that takes longer is none of a busy server's.
pub const SERVICE_MAX_NS: u64 = 4_000_000_000;
/// Answers for which the wait must be over the target before it counts as standing.
const STANDING_ANSWERS: u64 = 8;
/// The most time that [`STANDING_ANSWERS`] make, ns.
const STANDING_MAX_NS: u64 = 500_000_000;
/// A wait that is too long for any client, however few make it, ns.
const BEARABLE_NS: u64 = 1_000_000_000;
/// Answers take so much longer, in 1/1024, if others wait before them, than at a server that answers several at a time.
const PARALLEL_1024: u64 = 1280;
/// And so much where more wait than it takes at a time.
const QUEUES_1024: u64 = 2048;
/// Fewest attempts that may wait where one answer takes longer than the target.
pub const LEAST_MIN: u32 = abi::QUIC_LEAST_MIN;
/// The most of them.
pub const LEAST_MAX: u32 = abi::QUIC_LEAST_MAX;
/// The most of them at a server that answers several at a time.
pub const LEAST_PARALLEL: u32 = abi::QUIC_LEAST_PARALLEL;
/// A time without an answer that is so many times as long as usual is a stop of the server.
const STOP_ANSWERS: u64 = 4;
/// It has so many times as long to catch up.
const CATCH_UP: u64 = 8;
/// And no more than this, ns.
const CATCH_UP_MAX_NS: u64 = 900_000_000;
/// Answers of a sample.
const SAMPLE_ANSWERS: u32 = 32;

/// The part of a policy that judges an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicRule {
    /// The wait from which on it refuses, ns.
    pub target_ns: u64,
    /// How long the wait must stand over the target before, ns.
    pub interval_ns: u64,
    /// Share of the receive buffer above which it refuses, in 1/1024; 0: the buffer does not count.
    pub room_1024: u32,
    /// Share of the server's answers that new attempts have all the same, in 1/1024.
    pub floor_1024: u32,
    /// What a refused one gets.
    pub refuse: QuicRefuse,
}

impl QuicRule {
    /// The share of the buffer above which it is refused, in 1/1024: for the highest half of the rest too.
    pub fn room_of(&self, priority: u8) -> u32 {
        let higher = u32::from(OTHER_PRIORITY - priority);
        self.room_1024 + (1024 - self.room_1024) * higher / (2 * u32::from(OTHER_PRIORITY))
    }
}

/// How a socket's server answers new connections (struct quic_state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuicWait {
    /// From one answer to the next of a busy server, a moving mean; 0: not known.
    pub service_ns: u64,
    /// How long the newest answer took.
    pub latency_ns: u64,
    /// Since when the wait is over the target; 0: it is not.
    pub above_ns: u64,
    /// When it was last seen over the target.
    pub last_above_ns: u64,
    /// When an attempt was last let in.
    pub admitted_ns: u64,
    /// Since when no answer has come though attempts wait for one.
    pub silent_ns: u64,
    /// When the floor has its next one.
    pub floor: Bucket,
    /// Attempts let in, ever; wraps.
    pub admitted: u32,
    /// The newest of them that the server has answered; wraps.
    pub answered: u32,
    /// Of those after it, the ones that the server has sent a Retry.
    pub excused: u32,
    /// It refuses while the wait is over the target.
    pub standing: bool,
    /// Bytes in the receive buffer.
    pub buffer: u32,
    /// Bytes that may be there.
    pub buffer_limit: u32,
    /// When this sample of the server's answers began; 0: at the next one.
    pub sample_ns: u64,
    /// Of it, the time in which no attempt waited.
    pub idle_ns: u64,
    /// Answers of it.
    pub answers: u32,
    /// Fewest that waited after one of them.
    pub low_mark: u32,
    /// So many may wait, however slow the server; 0: [`LEAST_MIN`].
    pub least: u32,
    /// An attempt of the sample was refused for the wait.
    pub turned_away: bool,
    /// How long answers take when nobody waits before them, a moving mean; 0: not known.
    pub alone_ns: u64,
    /// Of that in 1/1024, how long the others take, a moving mean; 0: not known.
    pub crowded_1024: u64,
    /// Longest time without an answer that led to this wait over the target, ns; 0: none.
    pub stop_ns: u64,
}

impl QuicWait {
    /// Attempts that were let in and wait for an answer.
    pub fn pending(&self) -> u32 {
        let pending = self.admitted.wrapping_sub(self.answered);
        (pending.wrapping_sub(self.excused) as i32).max(0) as u32
    }

    /// How long the next attempt waits for its answer, ns; 0: not known.
    pub fn wait_ns(&self) -> u64 {
        u64::from(self.pending()).wrapping_mul(self.service_ns)
    }

    /// So many attempts may wait, whatever the wait.
    fn least(&self) -> u32 {
        self.least.max(LEAST_MIN)
    }

    fn interval(&self, rule: &QuicRule) -> i64 {
        let answers = STANDING_ANSWERS.wrapping_mul(self.service_ns);
        rule.interval_ns.max(answers.min(STANDING_MAX_NS)) as i64
    }

    fn patience(&self, rule: &QuicRule) -> i64 {
        let catch_up = CATCH_UP * self.stop_ns.min(rule.interval_ns);
        let patience = (rule.interval_ns + catch_up).min(CATCH_UP_MAX_NS);
        self.interval(rule).max(patience as i64)
    }

    fn is_over(&self, now: u64, rule: &QuicRule) -> bool {
        let stopped = since(now, self.silent_ns) >= STOPPED_NS as i64;
        self.pending() >= self.least()
            && self.wait_ns() >= rule.target_ns
            && (self.latency_ns >= rule.target_ns || stopped)
    }

    /// One look, when an attempt comes.
    pub fn look(&mut self, now: u64, rule: &QuicRule) {
        let interval = self.interval(rule);
        if since(now, self.silent_ns) > FORGOTTEN_NS as i64 {
            (self.answered, self.excused) = (self.admitted, 0);
            self.latency_ns = 0;
            self.sample_ns = 0;
        }
        if self.is_over(now, rule) {
            match self.above_ns {
                0 => self.above_ns = now,
                above => self.standing |= since(now, above) >= self.patience(rule),
            }
            self.last_above_ns = now;
        } else if !self.standing || since(now, self.last_above_ns) >= interval {
            self.standing = false;
            self.above_ns = 0;
            self.stop_ns = 0;
        }
    }

    /// What becomes of an attempt of a class of this priority, 1..=64, after a look.
    pub fn judge(&mut self, now: u64, rule: &QuicRule, priority: u8) -> QuicVerdict {
        let fill = u64::from(self.buffer) << 10;
        let room = u64::from(self.buffer_limit) * u64::from(rule.room_of(priority));
        let full = rule.room_1024 > 0 && fill > room;
        let late = self.is_late(rule, priority);
        if !full && !late {
            return QuicVerdict::QuicAdmitted;
        }
        self.turned_away |= late;
        if self.floor_lets_in(now, rule) {
            return QuicVerdict::QuicFloor;
        }
        match (full, rule.refuse) {
            (true, QuicRefuse::Vn) => QuicVerdict::QuicVnRoom,
            (true, QuicRefuse::Drop) => QuicVerdict::QuicDroppedRoom,
            (false, QuicRefuse::Vn) => QuicVerdict::QuicVnWait,
            (false, QuicRefuse::Drop) => QuicVerdict::QuicDroppedWait,
        }
    }

    fn is_late(&self, rule: &QuicRule, priority: u8) -> bool {
        self.standing
            && u64::from(self.pending()) >= of_priority(self.least().into(), priority)
            && self.wait_ns() >= of_priority(rule.target_ns, priority)
    }

    fn floor_lets_in(&mut self, now: u64, rule: &QuicRule) -> bool {
        let service = match self.service_ns {
            0 => rule.target_ns,
            known => known,
        };
        let each = (service << 10).checked_div(rule.floor_1024.into());
        let interval = each.unwrap_or(0) * UNITS_PER_NS;
        let tolerance = 0;
        let limit = BucketLimit {
            interval,
            tolerance,
        };
        interval > 0 && self.floor.take(now, &limit)
    }

    /// Whether the socket drops a packet that takes so many bytes of memory (0 before Linux 6.18): nobody waits then.
    pub fn is_lost(&self, truesize: u32) -> bool {
        self.buffer > 0 && u64::from(self.buffer) + u64::from(truesize) > self.buffer_limit.into()
    }

    /// The number of an attempt that is let in now.
    pub fn let_in(&mut self, now: u64) -> u32 {
        self.admitted_ns = now;
        if self.pending() == 0 {
            self.ends_idle(now);
        }
        self.admitted = self.admitted.wrapping_add(1);
        self.admitted
    }

    /// That of one which the socket drops. Its client may repeat it; then it has waited for nothing.
    pub fn lose(&mut self, now: u64) -> u32 {
        self.admitted_ns = now;
        self.answered
    }

    fn ends_idle(&mut self, now: u64) {
        let idle = since(now, self.silent_ns);
        if idle > 0 {
            self.idle_ns = self.idle_ns.wrapping_add(idle as u64);
            self.silent_ns = now;
        }
    }

    /// The server has answered the attempt with this number, now.
    pub fn settle(&mut self, number: u32, now: u64) {
        if (self.admitted.wrapping_sub(number) as i32) < 0 {
            return;
        }
        self.ends_silence(now);
        if number.wrapping_sub(self.answered) as i32 > 0 {
            (self.answered, self.excused) = (number, 0);
        }
        self.learn(now);
    }

    fn ends_silence(&mut self, now: u64) {
        let silent = since(now, self.silent_ns);
        let usual = STOP_ANSWERS.wrapping_mul(self.service_ns) as i64;
        if self.service_ns > 0 && silent > usual && silent > self.stop_ns as i64 {
            self.stop_ns = silent as u64;
        }
        self.silent_ns = now;
    }

    fn learn(&mut self, now: u64) {
        let pending = self.pending();
        let elapsed = since(now, self.sample_ns);
        if self.sample_ns != 0 && self.answers < SAMPLE_ANSWERS {
            self.answers += 1;
            self.low_mark = self.low_mark.min(pending);
            return;
        }
        let turned_away = std::mem::take(&mut self.turned_away);
        if turned_away && self.sample_ns != 0 && elapsed > 0 {
            let least = u64::from(self.least_learnt(elapsed as u64));
            let bearable = BEARABLE_NS.checked_div(self.service_ns);
            self.least = least.min(bearable.unwrap_or(u64::MAX)) as u32;
        }
        (self.sample_ns, self.idle_ns) = (now, 0);
        (self.answers, self.low_mark) = (0, pending);
    }

    fn least_learnt(&self, elapsed: u64) -> u32 {
        let least = self.least();
        let more = least.saturating_add(least / 2 + 1);
        match self.crowded_1024 {
            1..PARALLEL_1024 => more.min(LEAST_PARALLEL),
            1..QUEUES_1024 if self.low_mark >= LEAST_MIN => least,
            _ if self.low_mark >= LEAST_MIN => least.saturating_sub(self.low_mark / 2),
            _ if self.idle_ns <= elapsed / 16 || least >= LEAST_MAX => least,
            _ => more.min(LEAST_MAX),
        }
    }

    fn compare(&mut self, after_ns: u64, behind: u32) {
        let mean = |known: u64, sample: u64| match known {
            0 => sample.max(1),
            known => (known - known / 16 + sample / 16).max(1),
        };
        if behind == 0 {
            self.alone_ns = mean(self.alone_ns, after_ns);
        } else if let Some(times) = (after_ns << 10).checked_div(self.alone_ns) {
            self.crowded_1024 = mean(self.crowded_1024, times);
        }
    }

    /// The same, and it tells how fast the server is: the answer took so long, and so many waited before it.
    pub fn answer(&mut self, number: u32, now: u64, after_ns: u64, behind: u32) {
        self.settle(number, now);
        if after_ns > SERVICE_MAX_NS {
            return;
        }
        let sample = after_ns / (u64::from(behind) + 1);
        let mean = match self.service_ns {
            0 => sample,
            known => known - known / 8 + sample / 8,
        };
        self.service_ns = mean.max(1);
        self.latency_ns = after_ns;
        self.compare(after_ns, behind);
    }

    /// The server has sent a Retry: the attempt with this number waits for its client now.
    pub fn excuse(&mut self, number: u32, now: u64) {
        self.silent_ns = now;
        if number.wrapping_sub(self.answered) as i32 > 0 {
            self.excused = self.excused.wrapping_add(1);
        }
    }
}

/// A limit of the wait for an attempt of this priority, 1..=64: up to twice as much for the highest.
fn of_priority(limit: u64, priority: u8) -> u64 {
    limit + (limit * u64::from(OTHER_PRIORITY - priority)).div_ceil(OTHER_PRIORITY.into())
}

/// Below 0 if `then` is later.
fn since(now: u64, then: u64) -> i64 {
    now.wrapping_sub(then) as i64
}

#[cfg(test)]
mod forecast;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: u64 = 1_000_000;
    const RULE: QuicRule = QuicRule {
        target_ns: 20 * MS,
        interval_ns: 100 * MS,
        room_1024: 512,
        floor_1024: 128,
        refuse: QuicRefuse::Vn,
    };

    fn initial(version: u32, to: &[u8], from: &[u8]) -> Vec<u8> {
        let flags = if version == V2 { 0xd0 } else { 0xc0 };
        let mut datagram = vec![flags];
        datagram.extend(version.to_be_bytes());
        for id in [to, from] {
            datagram.push(id.len() as u8);
            datagram.extend(id);
        }
        datagram.resize(1200, 7);
        datagram
    }

    #[test]
    fn an_initial_of_either_version_may_begin_a_connection() {
        for version in [V1, V2] {
            let datagram = initial(version, &[1; 8], &[2; 5]);
            let packet = LongPacket::read(&datagram).unwrap();
            assert_eq!((packet.to, packet.from), (&[1; 8][..], &[2; 5][..]));
            assert!(packet.may_begin(1200) && !packet.may_begin(1199));
        }
        // After a Retry the server has chosen.
        let later = initial(V1, &[1; 4], &[2; 5]);
        assert!(!LongPacket::read(&later).unwrap().may_begin(1200));
        assert_eq!(LongPacket::read(&initial(5, &[1; 8], &[])), None);
    }

    #[test]
    fn a_refusal_lists_no_version_of_the_client_and_names_it_by_its_id() {
        let datagram = initial(V1, &[1; 20], &[2; 20]);
        let answer = LongPacket::read(&datagram).unwrap().refusal(0xff);
        let read = LongPacket::read(&answer).unwrap();
        assert_eq!(read.kind, PacketKind::Negotiation);
        assert_eq!((read.to, read.from), (&[2; 20][..], &[1; 20][..]));
        assert!(answer.ends_with(&NO_VERSION.to_be_bytes()) && answer.len() == 51);
    }

    /// One worker that answers in its order, each in the same time.
    struct Server {
        wait: QuicWait,
        service_ns: u64,
        /// Number, when it came, how many before it.
        queue: VecDeque<(u32, u64, u32)>,
        free_at: u64,
        let_in: usize,
        refused: usize,
        longest: u64,
    }

    impl Server {
        fn new(service_ns: u64) -> Server {
            Server {
                wait: QuicWait {
                    buffer_limit: 1 << 20,
                    ..QuicWait::default()
                },
                service_ns,
                queue: VecDeque::new(),
                free_at: 0,
                let_in: 0,
                refused: 0,
                longest: 0,
            }
        }

        fn work(&mut self, now: u64) {
            while let Some(&(number, came, behind)) = self.queue.front() {
                let done = self.free_at.max(came) + self.service_ns;
                if done > now {
                    return;
                }
                self.queue.pop_front();
                self.free_at = done;
                self.longest = self.longest.max(done - came);
                self.wait.answer(number, done, done - came, behind);
            }
        }

        /// Attempts each so many ns, for so long.
        fn offer(&mut self, from: u64, each: u64, until: u64) {
            for now in (from..until).step_by(each as usize) {
                match self.attempt(now, OTHER_PRIORITY) {
                    true => self.let_in += 1,
                    false => self.refused += 1,
                }
            }
        }

        /// One attempt; whether it is let in.
        fn attempt(&mut self, now: u64, priority: u8) -> bool {
            self.work(now);
            self.wait.look(now, &RULE);
            let verdict = self.wait.judge(now, &RULE, priority);
            let lets_in = [QuicVerdict::QuicAdmitted, QuicVerdict::QuicFloor].contains(&verdict);
            if lets_in {
                let behind = self.wait.pending();
                let number = self.wait.let_in(now);
                self.queue.push_back((number, now, behind));
            }
            lets_in
        }
    }

    #[test]
    fn below_capacity_and_in_bursts_nobody_is_refused() {
        let mut server = Server::new(2 * MS);
        server.offer(MS, 5 * MS / 2, 20_000 * MS);
        // 60 in 20 ms, on an idle server.
        server.offer(30_000 * MS, MS / 3, 30_020 * MS);
        assert_eq!(server.refused, 0);
    }

    #[test]
    fn a_higher_priority_gets_in_while_lower_ones_are_refused() {
        let mut server = Server::new(2 * MS);
        // Four times what it can serve, an eighth of that by a class of its own.
        let (mut let_in, mut of) = ([0; 2], [0; 2]);
        for attempt in 0..20_000u64 {
            let class = usize::from(attempt % 8 == 0);
            let now = MS + attempt * MS / 2;
            let in_time = server.attempt(now, [OTHER_PRIORITY, 1][class]);
            // Once the wait stands.
            if attempt > 2000 {
                of[class] += 1;
                let_in[class] += usize::from(in_time);
            }
        }
        assert_eq!(let_in[1], of[1], "of the higher class");
        assert!(let_in[0] * 3 < of[0], "{let_in:?} of {of:?}");
    }

    #[test]
    fn in_overload_the_server_stays_busy_and_its_wait_near_the_target() {
        for times in [2, 4, 20] {
            let mut server = Server::new(2 * MS);
            server.offer(MS, 2 * MS / times, 10_000 * MS);
            // As many as it can serve in ten seconds, and those that wait.
            assert!((4950..5100).contains(&server.let_in), "{}", server.let_in);
            let refused = server.refused;
            server.longest = 0;
            server.offer(10_000 * MS, 2 * MS / times, 20_000 * MS);
            assert!(server.refused > refused);
            assert!(server.longest < 60 * MS, "{} ns", server.longest);
        }
    }

    /// A server of 4 ms that stands still now and then, for longer than `interval`, at 0.8 of what it can answer.
    #[test]
    fn a_server_that_stops_for_moments_refuses_nobody() {
        for stop in [50, 100, 150, 200] {
            let mut server = Server::new(4 * MS);
            for stops in 0..20 {
                let begins = stops * 3_000 * MS + MS;
                let ends = begins + 3_000 * MS;
                server.offer(begins, 5 * MS, ends);
                server.free_at = server.free_at.max(ends) + stop * MS;
            }
            assert_eq!(server.refused, 0, "{stop} ms");
        }
    }

    #[test]
    fn it_lets_in_again_when_the_load_has_gone() {
        let mut server = Server::new(2 * MS);
        server.offer(MS, MS / 2, 5_000 * MS);
        assert!(server.wait.standing);
        server.offer(5_300 * MS, 5 * MS / 2, 5_500 * MS);
        let refused = server.refused;
        server.offer(5_500 * MS, 5 * MS / 2, 10_000 * MS);
        assert_eq!(server.refused, refused);
    }

    #[test]
    fn a_server_that_never_answers_refuses_nobody_for_the_wait() {
        let mut server = Server::new(u64::MAX >> 2);
        server.offer(MS, MS, 1_000 * MS);
        assert_eq!(server.refused, 0);
    }

    /// Half of the time nobody but the floor: without an answer no restriction lasts.
    #[test]
    fn a_server_that_has_stopped_is_not_offered_everything() {
        for each in [5 * MS, MS] {
            let mut server = Server::new(2 * MS);
            server.offer(MS, each, 1_000 * MS);
            server.service_ns = u64::MAX >> 2;
            let before = server.let_in;
            server.offer(1_000 * MS, 5 * MS, 21_000 * MS);
            let share = (server.let_in - before) as f64 / 4000.0;
            assert!((0.4..0.75).contains(&share), "{share}");
        }
    }

    /// However slow it was.
    #[test]
    fn a_slow_server_that_has_stopped_is_not_offered_everything_either() {
        let mut server = Server::new(200 * MS);
        server.offer(MS, 150 * MS, 10_000 * MS);
        server.service_ns = u64::MAX >> 2;
        let before = server.let_in;
        server.offer(10_000 * MS, 20 * MS, 40_000 * MS);
        let share = (server.let_in - before) as f64 / 1500.0;
        assert!((0.4..0.9).contains(&share), "{share}");
    }

    /// A firewall behind weir drops a flood: what real clients wait for is answered at once.
    #[test]
    fn what_is_dropped_before_the_server_sees_it_refuses_nobody() {
        let mut wait = QuicWait::default();
        for now in (MS..10_000 * MS).step_by(MS as usize / 5) {
            wait.look(now, &RULE);
            assert_eq!(
                wait.judge(now, &RULE, OTHER_PRIORITY),
                QuicVerdict::QuicAdmitted
            );
            let (behind, number) = (wait.pending(), wait.let_in(now));
            if now % (200 * MS) < MS / 5 {
                wait.answer(number, now, MS, behind.min(1));
            }
        }
    }

    #[test]
    fn an_answer_to_an_attempt_of_another_life_of_the_state_says_nothing() {
        let mut wait = QuicWait::default();
        wait.let_in(MS);
        wait.settle(1_000_000, 2 * MS);
        assert_eq!(wait.pending(), 1);
    }

    #[test]
    fn a_retry_excuses_the_server_and_those_before_it_still_wait() {
        let mut wait = QuicWait::default();
        for _ in 0..3 {
            wait.let_in(MS);
        }
        wait.excuse(2, 2 * MS);
        assert_eq!(wait.pending(), 2);
    }

    #[test]
    fn the_floor_lets_in_before_the_speed_of_the_server_is_known() {
        let mut wait = QuicWait {
            buffer: 900,
            buffer_limit: 1000,
            ..QuicWait::default()
        };
        let verdicts = [1, 2].map(|n| wait.judge(n * MS, &RULE, OTHER_PRIORITY));
        assert_eq!(verdicts, [QuicVerdict::QuicFloor, QuicVerdict::QuicVnRoom]);
    }

    #[test]
    fn what_the_socket_drops_waits_for_no_answer() {
        let mut wait = QuicWait {
            buffer: 800,
            buffer_limit: 1000,
            ..QuicWait::default()
        };
        assert!(wait.is_lost(201) && !wait.is_lost(200));
        let number = wait.let_in(MS);
        assert_ne!(wait.lose(2 * MS), number);
        assert_eq!(wait.pending(), 1);
        // However much memory it takes: an empty socket takes it.
        (wait.buffer, wait.buffer_limit) = (0, 100);
        assert!(!wait.is_lost(201));
    }

    #[test]
    fn a_full_buffer_refuses_whatever_the_wait() {
        let mut wait = QuicWait {
            buffer: 600,
            buffer_limit: 1000,
            ..QuicWait::default()
        };
        let mut judge = |room_1024| {
            wait.judge(
                MS,
                &QuicRule {
                    room_1024,
                    floor_1024: 0,
                    ..RULE
                },
                OTHER_PRIORITY,
            )
        };
        assert_eq!(judge(512), QuicVerdict::QuicVnRoom);
        assert_eq!(judge(700), QuicVerdict::QuicAdmitted);
        assert_eq!(judge(0), QuicVerdict::QuicAdmitted);
    }
}
