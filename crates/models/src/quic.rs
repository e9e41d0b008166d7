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
/// An answer with nobody before it counts so many times the mean at most.
const ALONE_TIMES: u64 = 4;
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
/// An overtaken attempt is waited for so many times as long as the newest answer to one took.
const OVERTAKEN_TIMES: u64 = 4;
/// And within these bounds, ns.
const OVERTAKEN_LEAST_NS: u64 = 100_000_000;
const OVERTAKEN_MOST_NS: u64 = 1_000_000_000;
/// Where the server answers so many attempts for each that it does not, those without an answer wait.
const TRUST_TIMES: u64 = 7;
/// And so many at least.
const TRUST_LEAST: u32 = 16;
/// What is older than so many attempts counts less.
const TRUST_MOST: u32 = 256;
/// Answers that it takes to be trusted again.
const DOUBTS: u32 = 32;
/// So long a crowd is taken for one before its first answer, ns.
const CROWD_MAX_NS: u64 = 500_000_000;
/// What was lost counts so many times as much at most as what else is known of those overtaken.
const LOST_TIMES: u64 = 8;
/// An attempt that is so many behind is not waited for.
const OLD: u32 = 1 << 30;
/// Of an attempt that waits for nothing.
const NO_NUMBER: u32 = 0;
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
    /// 1: those who waited were forgotten, and no answer has come since; 2: one has.
    pub unsure: u32,
    /// Then: up to this number, more may have waited before them than is known.
    pub unsure_to: u32,
    /// Attempts that the answer to a later one has overtaken, since `overtaken_ns`, and that have none themselves.
    pub overtaken: u32,
    /// The same of the time before.
    pub overtaken_before: u32,
    /// Of such attempts, how many were answered after all, of late.
    pub overtaken_answered: u32,
    /// And how many were not.
    pub overtaken_lost: u32,
    /// When this time began.
    pub overtaken_ns: u64,
    /// How long the newest answer to one of them took; 0: there was none of late.
    pub overtaken_latency_ns: u64,
    /// Attempts that were answered of late.
    pub trust_answered: u32,
    /// And attempts that were not.
    pub trust_lost: u32,
    /// So many more have to be answered before the server is trusted.
    pub doubts: u32,
    /// Time for each answer while attempts waited, in the newest half of a sample, ns; 0: not known.
    pub pace_ns: u64,
    /// And in the one before.
    pub pace_before_ns: u64,
}

impl QuicWait {
    /// Attempts that were let in and wait for an answer.
    pub fn pending(&self) -> u32 {
        self.newest().saturating_add(self.still_waiting())
    }

    /// Of them, those that came after all that were answered: the share that the server answered of late.
    fn newest(&self) -> u32 {
        let newest = self.admitted.wrapping_sub(self.answered);
        let newest = (newest.wrapping_sub(self.excused) as i32).max(0) as u32;
        let share = u64::from(self.trust_answered);
        let all = share + u64::from(self.trust_lost);
        match self.trust_lost > 0 && all >= TRUST_LEAST.into() {
            true => (u64::from(newest) * share).div_ceil(all) as u32,
            false => newest,
        }
    }

    /// Of those that were overtaken, how many wait for an answer, by what became of such attempts of late.
    fn still_waiting(&self) -> u32 {
        let overtaken = u64::from(self.overtaken) + u64::from(self.overtaken_before);
        let known = u64::from(self.overtaken_answered) + u64::from(self.overtaken_lost);
        let waiting = overtaken.wrapping_mul(self.overtaken_answered.into());
        waiting.checked_div(known).unwrap_or(0) as u32
    }

    /// How long the next attempt waits for its answer, ns; 0: not known.
    pub fn wait_ns(&self) -> u64 {
        u64::from(self.pending()).wrapping_mul(self.service_ns)
    }

    /// So many attempts may wait, whatever the wait.
    pub fn least(&self) -> u32 {
        let bearable = BEARABLE_NS.checked_div(self.service_ns);
        let least = u64::from(self.least).min(bearable.unwrap_or(u64::MAX));
        (least as u32).max(LEAST_MIN)
    }

    fn interval(&self, rule: &QuicRule) -> i64 {
        let answers = STANDING_ANSWERS.wrapping_mul(self.service_ns);
        rule.interval_ns.max(answers.min(STANDING_MAX_NS)) as i64
    }

    fn patience(&self, rule: &QuicRule) -> i64 {
        let is_of_the_stop = self.latency_ns <= 2 * self.stop_ns + rule.target_ns
            && !(self.is_trusted() && self.is_more_than_a_stop(self.stop_ns, rule));
        let stop = if is_of_the_stop { self.stop_ns } else { 0 };
        let catch_up = CATCH_UP * stop.min(rule.interval_ns);
        let patience = (rule.interval_ns + catch_up).min(CATCH_UP_MAX_NS);
        self.interval(rule).max(patience as i64)
    }

    fn is_over(&self, now: u64, rule: &QuicRule) -> bool {
        let silent = since(now, self.silent_ns);
        self.pending() >= self.least()
            && self.wait_ns() >= rule.target_ns
            && (self.longest_answer_ns() >= self.confirms(rule)
                || silent >= STOPPED_NS as i64
                || self.has_crowd(silent, rule))
    }

    /// Whether more wait than the server has answered of late in a time without an answer.
    fn is_more_than_a_stop(&self, stop_ns: u64, rule: &QuicRule) -> bool {
        let pace_ns = self.pace_ns.min(self.pace_before_ns);
        let work_ns = u64::from(self.pending()).wrapping_mul(pace_ns);
        work_ns > stop_ns + stop_ns / 2 + rule.target_ns
    }

    /// Whether a server that has not answered for so long has a crowd before it.
    fn has_crowd(&self, silent: i64, rule: &QuicRule) -> bool {
        self.is_trusted()
            && silent >= rule.target_ns as i64
            && silent < CROWD_MAX_NS as i64
            && (self.standing || self.is_more_than_a_stop(silent as u64, rule))
    }

    /// How long an answer has to take so that it confirms the wait, ns.
    fn confirms(&self, rule: &QuicRule) -> u64 {
        let anyway = self.alone_ns.wrapping_mul(2);
        match self.standing && self.alone_ns > 0 {
            true => anyway.clamp(rule.target_ns / 2, rule.target_ns),
            false => rule.target_ns,
        }
    }

    /// Whether nearly all attempts were answered of late.
    fn is_trusted(&self) -> bool {
        self.doubts == 0
            && self.trust_answered >= TRUST_LEAST
            && u64::from(self.trust_answered) >= TRUST_TIMES * u64::from(self.trust_lost)
    }

    /// Of the newest answer, and of the newest to one that was overtaken.
    fn longest_answer_ns(&self) -> u64 {
        self.latency_ns.max(self.overtaken_latency_ns)
    }

    /// One look, when an attempt comes.
    pub fn look(&mut self, now: u64, rule: &QuicRule) {
        let interval = self.interval(rule);
        self.forget_overtaken(now);
        if since(now, self.silent_ns) >= CROWD_MAX_NS as i64 && self.pending() >= self.least() {
            self.doubts = DOUBTS;
        }
        if since(now, self.silent_ns) > FORGOTTEN_NS as i64 {
            if self.pending() > 0 {
                self.unsure = 1;
            }
            (self.answered, self.excused) = (self.admitted, 0);
            (self.overtaken, self.overtaken_before) = (0, 0);
            (self.latency_ns, self.overtaken_latency_ns) = (0, 0);
            self.sample_ns = 0;
        }
        if self.is_over(now, rule) {
            let patience = match since(now, self.silent_ns) >= STOPPED_NS as i64 {
                true => self.patience(rule).min(STANDING_MAX_NS as i64),
                false => self.patience(rule),
            };
            match self.above_ns {
                0 => self.above_ns = now,
                above => self.standing |= since(now, above) >= patience,
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
        if self.admitted == NO_NUMBER {
            self.admitted = self.admitted.wrapping_add(1);
        }
        self.admitted
    }

    /// That of one which the socket drops. Its client may repeat it; then it has waited for nothing.
    pub fn lose(&mut self, now: u64) -> u32 {
        self.admitted_ns = now;
        NO_NUMBER
    }

    fn ends_idle(&mut self, now: u64) {
        let idle = since(now, self.silent_ns);
        if idle > 0 {
            self.idle_ns = self.idle_ns.wrapping_add(idle as u64);
            self.silent_ns = now;
        }
    }

    /// Whether the attempt with this number was let in, ever.
    fn knows(&self, number: u32) -> bool {
        number == NO_NUMBER || self.admitted.wrapping_sub(number) as i32 >= 0
    }

    /// Whether it is known how many waited before this attempt.
    fn is_sure(&mut self, number: u32) -> bool {
        let is_forgotten = self.unsure != 0 && self.unsure_to.wrapping_sub(number) as i32 >= 0;
        let is_sure = number != NO_NUMBER && !is_forgotten;
        if is_sure {
            self.unsure = 0;
        }
        is_sure
    }

    fn settle(&mut self, number: u32, now: u64, after_ns: u64) {
        self.ends_silence(now);
        if self.unsure == 1 {
            (self.unsure, self.unsure_to) = (2, self.admitted);
        }
        self.count_overtaken(number, now, after_ns);
        self.learn(now);
    }

    /// A server may answer later attempts first. Who was overtaken waits still, or was dropped: what becomes of them tells.
    fn count_overtaken(&mut self, number: u32, now: u64, after_ns: u64) {
        self.forget_overtaken(now);
        self.learn_trust(1, 0);
        let ahead = number.wrapping_sub(self.answered) as i32;
        if number == NO_NUMBER {
            return;
        }
        if ahead > 0 {
            let passed = ahead as u32 - 1;
            let overtaken = passed.saturating_sub(self.excused);
            self.overtaken = self.overtaken.saturating_add(overtaken);
            self.answered = number;
            self.excused = self.excused.saturating_sub(passed);
        } else {
            self.answers_overtaken(number, after_ns);
        }
    }

    fn answers_overtaken(&mut self, number: u32, after_ns: u64) {
        if self.unsure != 0 || self.unsure_to.wrapping_sub(number) as i32 >= 0 {
            return;
        }
        if after_ns as i64 >= 0 {
            self.overtaken_latency_ns = after_ns;
        }
        self.overtaken_answered = self.overtaken_answered.saturating_add(1);
        if !self.take_overtaken() {
            self.overtaken_lost = self.overtaken_lost.saturating_sub(1);
            self.trust_lost = self.trust_lost.saturating_sub(1);
        }
    }

    /// One of those that were overtaken waits no longer. False: it counts as lost, if at all.
    fn take_overtaken(&mut self) -> bool {
        match (self.overtaken_before, self.overtaken) {
            (0, 0) => return false,
            (0, _) => self.overtaken -= 1,
            _ => self.overtaken_before -= 1,
        }
        true
    }

    fn learn_trust(&mut self, answered: u32, lost: u32) {
        self.trust_answered = self.trust_answered.wrapping_add(answered);
        self.doubts = self.doubts.saturating_sub(answered.min(1));
        self.trust_lost = self.trust_lost.wrapping_add(lost.min(TRUST_MOST));
        if self.trust_answered.wrapping_add(self.trust_lost) > TRUST_MOST {
            self.trust_answered /= 2;
            self.trust_lost /= 2;
        }
    }

    /// So long an overtaken attempt is waited for, and up to twice as long.
    fn overtaken_for(&self) -> u64 {
        let long = OVERTAKEN_TIMES.saturating_mul(self.overtaken_latency_ns);
        long.clamp(OVERTAKEN_LEAST_NS, OVERTAKEN_MOST_NS)
    }

    /// When their time is over, and twice when it is over twice.
    fn forget_overtaken(&mut self, now: u64) {
        let (since, time) = (since(now, self.overtaken_ns), self.overtaken_for() as i64);
        if since < time {
            return;
        }
        self.overtaken_ns = now;
        self.turn_overtaken();
        if since / 2 >= time {
            self.turn_overtaken();
        }
    }

    /// Those of the time before are lost.
    fn turn_overtaken(&mut self) {
        let less = |count: u32| count - count.div_ceil(8);
        let (overtaken, lost) = (self.overtaken, self.overtaken_before);
        let answered = less(self.overtaken_answered);
        let most = LOST_TIMES * (u64::from(overtaken) + u64::from(lost) + u64::from(answered));
        self.learn_trust(0, lost);
        let lost = less(self.overtaken_lost).saturating_add(lost);
        self.overtaken_answered = answered;
        self.overtaken_lost = u64::from(lost).min(most) as u32;
        (self.overtaken_before, self.overtaken) = (overtaken, 0);
        if self.still_waiting() == 0 {
            self.overtaken_latency_ns = 0;
        }
        if self.answered.wrapping_sub(self.unsure_to) as i32 > OLD as i32 {
            self.unsure_to = self.answered.wrapping_sub(OLD);
        }
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
        let pending = self.newest();
        let elapsed = since(now, self.sample_ns);
        if self.sample_ns != 0 && self.answers < SAMPLE_ANSWERS {
            self.answers += 1;
            self.low_mark = self.low_mark.min(pending);
            self.learn_pace(elapsed);
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

    fn learn_pace(&mut self, elapsed: i64) {
        const HALF: u64 = SAMPLE_ANSWERS as u64 / 2;
        let answers = u64::from(self.answers);
        if answers % HALF != 0 {
            return;
        }
        let first = match answers > HALF {
            true => HALF.wrapping_mul(self.pace_ns),
            false => 0,
        };
        let before = self.idle_ns.wrapping_add(first) as i64;
        let busy = elapsed.wrapping_sub(before).max(0) as u64;
        self.pace_before_ns = self.pace_ns;
        self.pace_ns = busy / HALF;
        if self.pace_before_ns == 0 {
            self.pace_before_ns = self.pace_ns;
        }
    }

    fn least_learnt(&self, elapsed: u64) -> u32 {
        let least = self.least();
        let more = least.saturating_add(least / 2 + 1);
        match self.crowded_1024 {
            1..PARALLEL_1024 => more.min(LEAST_PARALLEL),
            1..QUEUES_1024 if self.low_mark >= LEAST_MIN => least,
            _ if self.low_mark >= LEAST_MIN => {
                let fewer = least.saturating_sub(self.low_mark / 2);
                fewer.max(self.at_a_time(elapsed).min(least))
            }
            _ if self.idle_ns <= elapsed / 16 || least >= LEAST_MAX => least,
            _ => more.min(LEAST_MAX),
        }
    }

    /// How many it had to answer at a time in this sample, if each took as long as alone (Little's law).
    fn at_a_time(&self, elapsed: u64) -> u32 {
        let alone_ns = self.alone_ns.min(SERVICE_MAX_NS);
        let many = (u64::from(self.answers) * alone_ns).checked_div(elapsed);
        many.unwrap_or(0).min(LEAST_PARALLEL.into()) as u32
    }

    fn compare(&mut self, after_ns: u64, behind: u32) {
        if behind == 0 {
            let most = match self.alone_ns {
                0 => u64::MAX,
                known => ALONE_TIMES * known,
            };
            self.alone_ns = mean_of_16(self.alone_ns, after_ns.min(most));
        } else if let Some(times) = (after_ns << 10).checked_div(self.alone_ns) {
            self.crowded_1024 = mean_of_16(self.crowded_1024, times);
        }
    }

    /// The server has answered the attempt with this number, now. It took so long, and so many waited before it.
    pub fn answer(&mut self, number: u32, now: u64, after_ns: u64, behind: u32) {
        if !self.knows(number) {
            return;
        }
        if after_ns as i64 >= 0 {
            self.latency_ns = after_ns;
        }
        self.settle(number, now, after_ns);
        if after_ns > SERVICE_MAX_NS || !self.is_sure(number) {
            return;
        }
        let is_known = self.service_ns > 0;
        let sample = after_ns / (u64::from(behind) + 1);
        let mean = match self.service_ns {
            0 => sample,
            known => known - known / 8 + sample / 8,
        };
        self.service_ns = mean.max(1);
        if is_known {
            self.compare(after_ns, behind);
        }
    }

    /// The same of an attempt that its client had repeated, then (0: not known when).
    pub fn answer_late(&mut self, number: u32, now: u64, repeated_ns: u64, behind: u32) {
        if !self.knows(number) {
            return;
        }
        let took = match repeated_ns {
            0 => 0,
            then => since(now, then).max(0) as u64,
        };
        self.latency_ns = self.latency_ns.max(took);
        self.settle(number, now, took.max(self.overtaken_latency_ns));
        let is_sure = self.is_sure(number);
        if is_sure && (1..=SERVICE_MAX_NS).contains(&took) && self.service_ns == 0 {
            self.service_ns = (took / (u64::from(behind) + 1)).max(1);
        }
    }

    /// The server has sent a Retry: the attempt with this number waits for its client now.
    pub fn excuse(&mut self, number: u32, now: u64) {
        self.silent_ns = now;
        if number == NO_NUMBER {
            return;
        }
        match number.wrapping_sub(self.answered) as i32 > 0 {
            true => self.excused = self.excused.wrapping_add(1),
            false => _ = self.take_overtaken(),
        }
    }
}

fn mean_of_16(known: u64, sample: u64) -> u64 {
    match known {
        0 => sample.max(1),
        known => (known - known / 16 + sample / 16).max(1),
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
mod tests;
