//! The guard's pure C headers, compiled natively (bpf/tests/pure.c), for property tests against the
//! models in weir-models. Not used by weir itself.

use weir_core::aqm::LimitParams;
use weir_core::class::{Bucket, BucketLimit};
use weir_core::queue::{PRIORITIES, ParkingRule};
use weir_core::verdict::{VERDICTS, Verdict};
use weir_models::admit::{QueueSpace, QueueView};
use weir_models::aqm::Control;
use weir_models::gate::GuardGate;
use weir_models::headers::{Found, HEADERS_MAX};
use weir_models::packet::{Packet, TimeWait};
use weir_models::stall::Stall;
use weir_models::steady::{Source, SourceSet};
use weir_models::talk::Talk;
use weir_models::timewait::{Closing, Numbers, Opening, Stamps};
use weir_models::wait::{Wait, WaitRule};

use crate::shape::Classifier;
use crate::shape::skel::types::shape_params;

use super::skel::types::{
    answer, bucket_limit, closing, flow, listener_policy, packet, parking_rule, queue_view,
    residence_gate, siphash_key, source, source_set, stall_state, syn_options, talk, time_wait,
    timewait_record, wait_state,
};

/// `SEGMENT_HEADERS` of bpf/lib/control.h.
const SEGMENT_HEADERS: usize = 80;

unsafe extern "C" {
    fn pure_parse(frame: *const u8, len: u32, l3: u32, ethertype: u16, p: *mut packet) -> i32;
    fn pure_may_be_tcp(frame: *const u8, len: u32, l3: u32, v6: u8) -> u8;
    fn pure_headers(ip: *const u8, len: u32, v6: u8, p: *mut packet) -> i32;
    fn pure_unusual(ip: *const u8, v6: u8) -> u8;
    fn pure_control(bytes: *const u8, len: u32, client: *mut u32) -> u8;
    fn pure_limit_admits(
        params: *const shape_params,
        client_due: *mut u64,
        all_due: *mut u64,
        now_ns: u64,
        len: u32,
    ) -> u8;
    fn pure_bucket_take(next: *mut u64, now_ns: u64, limit: *const bucket_limit) -> u8;
    fn pure_bucket_has(next: *const u64, now_ns: u64, limit: *const bucket_limit) -> u8;
    fn pure_straight_for_all(r: *const parking_rule, length: u32, all_park: u8) -> u8;
    fn pure_straight_as_next(
        r: *const parking_rule,
        length: u32,
        limit: u32,
        priority: u32,
        best_parked: u32,
    ) -> u8;
    fn pure_syn_verdict(
        l: *const listener_policy,
        q: *const queue_view,
        waiting: u8,
        cookies: u8,
        flooded: u8,
    ) -> u8;
    fn pure_time_wait_verdict(
        l: *const listener_policy,
        q: *const queue_view,
        waiting: u8,
        flooded: u8,
    ) -> u8;
    fn pure_time_wait_yields(old: *const time_wait, seq: u32, o: *const syn_options) -> u8;
    fn pure_tw_opens(state: u8, snd_una: u32, write_seq: u32, ack: u32) -> u8;
    fn pure_ends_passive_close(closing: *const closing, seq: u32, ack: u32) -> u8;
    fn pure_record_yields_to_syn(old: *const time_wait, seq: u32, o: *const syn_options) -> u8;
    fn pure_record_yields(
        record: *const timewait_record,
        seq: u32,
        ack: u32,
        o: *const syn_options,
    ) -> u8;
    fn pure_record_hangs(closing_s: u32, now_ns: u64) -> u8;
    fn pure_gate_lets_in(gate: *mut residence_gate, now_ns: u64) -> u8;
    fn pure_outstanding(talk: *const talk) -> u8;
    fn pure_arriving(talk: *const talk, age_ticks: u32, second_ticks: u32) -> u8;
    fn pure_turns(talk: *const talk) -> u32;
    fn pure_first_answer(talk: *const talk) -> u8;
    fn pure_short_answer(talk: *const talk) -> u8;
    fn pure_answer_class(ticks: u32) -> u32;
    fn pure_steady_place(l: *const listener_policy, q: *const queue_view, shared: u8) -> u8;
    fn pure_steady_limit(w: *const wait_state, now: u64, limit: *mut bucket_limit);
    fn pure_source_note(set: *mut source_set, key: u32, window: u16, chance: u32) -> u8;
    fn pure_half_empty(q: *const queue_view) -> u8;
    fn pure_is_filled(q: *const queue_view) -> u8;
    fn pure_cookie_ack_verdict(l: *const listener_policy, q: *const queue_view, waiting: u8) -> u8;
    fn pure_wait_look(
        w: *mut wait_state,
        now: u64,
        q: *const queue_view,
        admitted: u32,
        l: *const listener_policy,
    );
    fn pure_stall_look(
        s: *mut stall_state,
        now: u64,
        q: *const queue_view,
        ended: u32,
        l: *const listener_policy,
    );
    fn pure_wait_refuses(
        w: *mut wait_state,
        now: u64,
        length: u32,
        l: *const listener_policy,
    ) -> u8;
    fn pure_cookie_make(
        f: *const flow,
        isn: u32,
        now_ns: u64,
        o: *const syn_options,
        key: *const siphash_key,
    ) -> u32;
    fn pure_cookie_check(
        f: *const flow,
        isn: u32,
        cookie: u32,
        now_ns: u64,
        o: *mut syn_options,
        key: *const siphash_key,
    ) -> u8;
    fn pure_options(buf: *const u8, len: u32, o: *mut syn_options);
    fn pure_answer(
        frame: *mut u8,
        len: u32,
        l3: u32,
        v6: u8,
        a: *const answer,
        reason: *const u8,
    ) -> i32;
}

fn raw_view(q: &QueueView) -> queue_view {
    let QueueView {
        length,
        limit,
        half_open,
        young,
        claims,
        stalled,
    } = *q;
    queue_view {
        length,
        limit,
        half_open,
        young,
        claims,
        stalled: stalled.into(),
    }
}

fn raw_rule(rule: ParkingRule) -> parking_rule {
    parking_rule {
        depth: rule.depth,
        before: rule.before.into(),
        top: rule.top.into(),
    }
}

fn raw_policy(room: &QueueSpace) -> listener_policy {
    listener_policy {
        overbook_1024: room.overbook_1024,
        establish: room.establish as u8,
        reject_syn: room.reject_syn as u8,
        admit: room.admit as u8,
        draining: room.draining.into(),
        ..Default::default()
    }
}

fn raw_wait_rule(rule: &WaitRule) -> listener_policy {
    listener_policy {
        target_wait_ns: rule.target_ns,
        interval_ns: rule.interval_ns,
        least_length: rule.least_length,
        ..Default::default()
    }
}

fn verdict(index: u8) -> Verdict {
    VERDICTS[usize::from(index)].verdict
}

/// `packet_parse()` of bpf/lib/packet.h.
pub fn parse(frame: &[u8], l3: u32, ethertype: u16) -> Option<Packet> {
    let mut p = packet::default();
    // SAFETY: frame is as long as said, p is writable, and the C side keeps neither.
    let ours = unsafe { pure_parse(frame.as_ptr(), frame.len() as u32, l3, ethertype, &mut p) };
    (ours == 0).then(|| Packet {
        v6: p.v6 != 0,
        source_port: u16::from_be(p.sport),
        destination_port: u16::from_be(p.dport),
        flags: p.flags,
        header_len: p.header_len,
        tcp_len: p.tcp_len,
    })
}

/// `may_be_tcp()` of bpf/lib/packet.h, on what of a frame lies in one piece.
pub fn may_be_tcp(in_one_piece: &[u8], l3: u32, v6: bool) -> bool {
    let len = in_one_piece.len() as u32;
    // SAFETY: the frame is as long as said, and the C side does not keep it.
    unsafe { pure_may_be_tcp(in_one_piece.as_ptr(), len, l3, v6.into()) != 0 }
}

/// `headers_begin()` to `headers_end()` of bpf/lib/headers.h, on a packet of 40 bytes or more.
pub fn find_headers(ip: &[u8], v6: bool) -> Option<Found> {
    const CUT: i32 = 1;
    const TCP: i32 = 2;
    let (mut p, mut buffer) = (packet::default(), [0; HEADERS_MAX]);
    let known = ip.len().min(HEADERS_MAX);
    buffer[..known].copy_from_slice(&ip[..known]);
    // SAFETY: the buffer has the bytes that the C side may read, p is writable, and the C side keeps neither.
    let found = unsafe { pure_headers(buffer.as_ptr(), ip.len() as u32, v6.into(), &mut p) };
    (found == CUT || found == TCP).then(|| Found {
        source_port: u16::from_be(p.sport),
        destination_port: u16::from_be(p.dport),
        flags: (found == TCP).then_some(p.flags),
    })
}

/// `unusual4()` and `unusual6()` of bpf/lib/headers.h, on a packet of 40 bytes or more.
pub fn is_unusual(ip: &[u8], v6: bool) -> bool {
    assert!(ip.len() >= 40, "the C side reads an IP header");
    // SAFETY: as asserted.
    unsafe { pure_unusual(ip.as_ptr(), v6.into()) != 0 }
}

/// `segment_read()` and `control_of()` of bpf/lib/control.h, on a packet from its IP header on, with the client's hash.
pub fn control(packet: &[u8]) -> (Control, u32) {
    let mut bytes = [0; SEGMENT_HEADERS];
    let len = packet.len().min(bytes.len());
    bytes[..len].copy_from_slice(&packet[..len]);
    let mut client = 0;
    // SAFETY: the buffer has SEGMENT_HEADERS bytes, of which len are the packet's.
    let control = match unsafe { pure_control(bytes.as_ptr(), len as u32, &mut client) } {
        0 => Control::None,
        1 => Control::Syn,
        2 => Control::SynAck,
        _ => Control::Fin,
    };
    (control, client)
}

/// `limit_admits()` of bpf/lib/control.h; the buckets are the client's and that of all.
pub fn limit_admits(
    limit: &LimitParams,
    client_due: &mut u64,
    all_due: &mut u64,
    now_ns: u64,
    len_bytes: u32,
) -> bool {
    let classifier = Classifier {
        high: 0,
        low: 0,
        demoted: 0,
        fin: false,
        limit: Some(*limit),
    };
    let params = classifier.params(0);
    // SAFETY: the words are exclusively ours, the parameters live through the call.
    unsafe { pure_limit_admits(&params, client_due, all_due, now_ns, len_bytes) != 0 }
}

fn raw_limit(limit: &BucketLimit) -> bucket_limit {
    bucket_limit {
        interval: limit.interval,
        tolerance: limit.tolerance,
    }
}

/// `bucket_take()` of bpf/lib/bucket.h.
pub fn bucket_take(bucket: &mut Bucket, now_ns: u64, limit: &BucketLimit) -> bool {
    // SAFETY: the word is exclusively ours, the limit lives through the call.
    unsafe { pure_bucket_take(&mut bucket.next, now_ns, &raw_limit(limit)) != 0 }
}

/// `bucket_has()` of bpf/lib/bucket.h.
pub fn bucket_has(bucket: &Bucket, now_ns: u64, limit: &BucketLimit) -> bool {
    // SAFETY: the word and the limit live through the call.
    unsafe { pure_bucket_has(&bucket.next, now_ns, &raw_limit(limit)) != 0 }
}

/// `straight_for_all()` of bpf/lib/steer.h.
pub fn straight_for_all(rule: ParkingRule, length: u32, all_park: bool) -> bool {
    // SAFETY: the rule lives through the call.
    unsafe { pure_straight_for_all(&raw_rule(rule), length, all_park.into()) != 0 }
}

/// `straight_as_next()` of bpf/lib/steer.h.
pub fn straight_as_next(
    rule: ParkingRule,
    length: u32,
    limit: u32,
    priority: u8,
    best_parked: Option<u8>,
) -> bool {
    let best = best_parked.unwrap_or(PRIORITIES + 1);
    let rule = raw_rule(rule);
    // SAFETY: the rule lives through the call.
    unsafe { pure_straight_as_next(&rule, length, limit, priority.into(), best.into()) != 0 }
}

/// `syn_verdict()` of bpf/lib/admit.h.
pub fn syn_verdict(
    room: &QueueSpace,
    q: &QueueView,
    waiting: bool,
    cookies: bool,
    flooded: bool,
) -> Verdict {
    // SAFETY: both structures live through the call.
    let index = unsafe {
        pure_syn_verdict(
            &raw_policy(room),
            &raw_view(q),
            waiting.into(),
            cookies.into(),
            flooded.into(),
        )
    };
    verdict(index)
}

/// `time_wait_verdict()` of bpf/lib/admit.h.
pub fn time_wait_verdict(
    room: &QueueSpace,
    q: &QueueView,
    waiting: bool,
    flooded: bool,
) -> Verdict {
    let (policy, view) = (raw_policy(room), raw_view(q));
    // SAFETY: both structures live through the call.
    verdict(unsafe { pure_time_wait_verdict(&policy, &view, waiting.into(), flooded.into()) })
}

/// `time_wait_yields()` of bpf/lib/packet.h.
pub fn time_wait_yields(old: &TimeWait, seq: u32, timestamp: Option<u32>) -> bool {
    let options = stamped_syn(timestamp);
    // SAFETY: both structures live through the call.
    unsafe { pure_time_wait_yields(&raw_time_wait(old), seq, &options.raw()) != 0 }
}

/// What bpf/lib/residence.h reads of a connection whose last data came so many ticks ago: whether a request is outstanding,
/// whether it still comes in, how many were answered, and whether the last answer was short.
pub fn talk_says(of: &Talk, age_ticks: u32, second_ticks: u32) -> (bool, bool, u32, [bool; 2]) {
    let c = talk {
        received: of.received,
        sent: of.sent,
        segments_in: of.segments_in,
        segments_out: of.segments_out,
        rcv_nxt: of.rcv_nxt,
        snd_wl1: of.snd_wl1,
        write_seq: of.write_seq,
        snd_una: of.snd_una,
    };
    // SAFETY: `c` outlives the calls, which only read it.
    unsafe {
        (
            pure_outstanding(&c) != 0,
            pure_arriving(&c, age_ticks, second_ticks) != 0,
            pure_turns(&c),
            [pure_short_answer(&c) != 0, pure_first_answer(&c) != 0],
        )
    }
}

/// A gate of bpf/lib/gate.h, which keeps its state between calls.
pub struct CGate(residence_gate);

impl CGate {
    /// As user space sets it.
    pub fn new(of: &GuardGate) -> CGate {
        CGate(residence_gate {
            until_ns: of.until_ns,
            since_ns: of.since_ns,
            room: of.room,
            rate: of.rate,
            burst: of.burst,
            taken: of.taken as i64,
        })
    }

    /// `gate_lets_in()`.
    pub fn lets_in(&mut self, now_ns: u64) -> bool {
        // SAFETY: the gate outlives the call.
        unsafe { pure_gate_lets_in(&mut self.0, now_ns) != 0 }
    }
}

/// `answer_class()` of bpf/lib/residence.h.
pub fn answer_class(ticks: u32) -> usize {
    // SAFETY: takes no pointers.
    unsafe { pure_answer_class(ticks) as usize }
}

/// `record_yields_to_syn()` of bpf/lib/timewait.h.
pub fn record_yields_to_syn(old: &TimeWait, seq: u32, timestamp: Option<u32>) -> bool {
    let options = stamped_syn(timestamp);
    // SAFETY: both structures live through the call.
    unsafe { pure_record_yields_to_syn(&raw_time_wait(old), seq, &options.raw()) != 0 }
}

fn raw_time_wait(old: &TimeWait) -> time_wait {
    let mut raw = time_wait {
        rcv_nxt: old.rcv_nxt,
        ts_recent: old.ts_recent.unwrap_or_default(),
        ..Default::default()
    };
    raw.stamped = old.ts_recent.is_some().into();
    raw.fin_wait2 = old.fin_wait2.into();
    raw
}

fn stamped_syn(timestamp: Option<u32>) -> Options {
    Options {
        timestamps: timestamp.map(|value| (value, 0)),
        ..Options::default()
    }
}

/// `opens()` of bpf/lib/timewait.h.
pub fn opens(socket: &Opening, ack: u32) -> bool {
    // SAFETY: it takes no pointers.
    unsafe { pure_tw_opens(socket.state, socket.snd_una, socket.write_seq, ack) != 0 }
}

/// `ends_passive_close()` of bpf/lib/timewait.h.
pub fn ends_passive_close(socket: &Closing, seq: u32, ack: u32) -> bool {
    let mut raw = closing {
        write_seq: socket.write_seq,
        rcv_nxt: socket.rcv_nxt,
        ..Default::default()
    };
    raw.state = socket.state;
    raw.mptcp = socket.mptcp.into();
    // SAFETY: the structure lives through the call.
    unsafe { pure_ends_passive_close(&raw, seq, ack) != 0 }
}

/// `record_yields()` of bpf/lib/timewait.h.
pub fn record_yields(old: &Numbers, new: &Numbers) -> bool {
    let mut raw = timewait_record::default();
    (raw.snd_nxt, raw.rcv_nxt) = (old.snd_nxt, old.rcv_nxt);
    if let Some(Stamps { sent, received }) = old.stamps {
        (raw.sent, raw.received, raw.stamped) = (sent, received, 1);
    }
    let options = Options {
        timestamps: new.stamps.map(|new| (new.received, new.sent)),
        ..Options::default()
    };
    // SAFETY: both structures live through the call.
    unsafe { pure_record_yields(&raw, new.rcv_nxt, new.snd_nxt, &options.raw()) != 0 }
}

/// `record_hangs()` of bpf/lib/timewait.h.
pub fn record_hangs(closing_s: u32, now_ns: u64) -> bool {
    // SAFETY: it takes no pointers.
    unsafe { pure_record_hangs(closing_s, now_ns) != 0 }
}

/// `steady_place()` of bpf/lib/admit.h.
pub fn steady_place(room: &QueueSpace, q: &QueueView, shared: bool) -> bool {
    let (policy, view) = (raw_policy(room), raw_view(q));
    // SAFETY: both structures live through the call.
    unsafe { pure_steady_place(&policy, &view, shared.into()) != 0 }
}

/// A set of sources of bpf/lib/steady.h.
#[derive(Default)]
pub struct CSources(source_set);

impl CSources {
    /// `source_note()`: 0 not steady, 1 short, 2 long.
    pub fn note(&mut self, key: u32, window: u16, chance: u32) -> u8 {
        // SAFETY: the set is exclusively ours.
        unsafe { pure_source_note(&mut self.0, key, window, chance) }
    }

    /// Its sources, in the model's words.
    pub fn state(&self) -> SourceSet {
        let source = |s: source| Source {
            key: s.key,
            window: s.window,
            count: s.count,
            streak: s.streak,
        };
        SourceSet(self.0.source.map(source))
    }
}

/// `half_empty()` of bpf/lib/admit.h.
pub fn half_empty(q: &QueueView) -> bool {
    // SAFETY: the view lives through the call.
    unsafe { pure_half_empty(&raw_view(q)) != 0 }
}

/// `is_filled()` of bpf/lib/admit.h.
pub fn is_filled(q: &QueueView) -> bool {
    // SAFETY: the view lives through the call.
    unsafe { pure_is_filled(&raw_view(q)) != 0 }
}

/// `cookie_ack_verdict()` of bpf/lib/admit.h.
pub fn cookie_ack_verdict(room: &QueueSpace, q: &QueueView, waiting: bool) -> Verdict {
    // SAFETY: both structures live through the call.
    verdict(unsafe { pure_cookie_ack_verdict(&raw_policy(room), &raw_view(q), waiting.into()) })
}

/// The estimator of bpf/lib/wait.h.
#[derive(Default)]
pub struct CWait(wait_state);

impl CWait {
    /// `wait_look()`.
    pub fn look(&mut self, now: u64, q: &QueueView, admitted: u32, rule: &WaitRule) {
        // SAFETY: the state is exclusively ours, the view and the policy live through the call.
        unsafe {
            pure_wait_look(
                &mut self.0,
                now,
                &raw_view(q),
                admitted,
                &raw_wait_rule(rule),
            );
        }
    }

    /// `wait_refuses()`.
    pub fn refuses(&mut self, now: u64, length: u32, rule: &WaitRule) -> bool {
        // SAFETY: the state is exclusively ours, the policy lives through the call.
        unsafe { pure_wait_refuses(&mut self.0, now, length, &raw_wait_rule(rule)) != 0 }
    }

    /// `steady_limit()` of bpf/lib/admit.h.
    pub fn steady_limit(&self, now: u64) -> BucketLimit {
        let mut limit = bucket_limit::default();
        // SAFETY: both structures live through the call.
        unsafe { pure_steady_limit(&self.0, now, &mut limit) };
        BucketLimit {
            interval: limit.interval,
            tolerance: limit.tolerance,
        }
    }

    /// Its fields, in the model's words.
    pub fn state(&self) -> Wait {
        Wait {
            looked_ns: self.0.looked_ns,
            service_ns: self.0.service_ns,
            sample_ns: self.0.sample_ns,
            idle_ns: self.0.idle_ns,
            accepted_ns: self.0.accepted_ns,
            gap_ns: self.0.gap_ns,
            last_gap_ns: self.0.last_gap_ns,
            above_ns: self.0.above_ns,
            last_above_ns: self.0.last_above_ns,
            sample_accepts: self.0.sample_accepts,
            accepts: self.0.accepts,
            length: self.0.length,
            low_mark: self.0.low_mark,
            high_mark: self.0.high_mark,
            samples: self.0.samples,
            turn: self.0.turn,
            least: self.0.least,
            standing: self.0.standing != 0,
            stop_ms: self.0.stop_ms,
            catching_up: self.0.catching_up != 0,
        }
    }
}

/// The watch over handshakes of bpf/lib/admit.h.
#[derive(Default)]
pub struct CStall(stall_state);

impl CStall {
    /// `stall_look()`.
    pub fn look(&mut self, now: u64, q: &QueueView, ended: u32, space: &QueueSpace) {
        // SAFETY: the state is exclusively ours, the view and the policy live through the call.
        unsafe { pure_stall_look(&mut self.0, now, &raw_view(q), ended, &raw_policy(space)) }
    }

    /// Its fields, in the model's words.
    pub fn state(&self) -> Stall {
        Stall {
            since_ns: self.0.since_ns,
            ended: self.0.ended,
            stalled: self.0.stalled != 0,
        }
    }
}

/// What a handshake agrees on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// 0: not given.
    pub mss: u16,
    /// 15: not given.
    pub wscale: u8,
    /// SACK permitted.
    pub sack: bool,
    /// Timestamp value and echo.
    pub timestamps: Option<(u32, u32)>,
}

impl Options {
    fn raw(&self) -> syn_options {
        let (tsval, tsecr) = self.timestamps.unwrap_or_default();
        let mut o = syn_options {
            mss: self.mss,
            wscale: self.wscale,
            ..Default::default()
        };
        o.sack = self.sack.into();
        o.tstamp = self.timestamps.is_some().into();
        (o.tsval, o.tsecr) = (tsval, tsecr);
        o
    }

    fn of(o: &syn_options) -> Options {
        Options {
            mss: o.mss,
            wscale: o.wscale,
            sack: o.sack != 0,
            timestamps: (o.tstamp != 0).then_some((o.tsval, o.tsecr)),
        }
    }
}

/// Reads TCP options (at most 40 bytes) as the guard does.
pub fn options(bytes: &[u8]) -> Options {
    Options::of(&raw_options(bytes))
}

/// Whether the guard takes a handshake with these TCP options for a new path of an MPTCP connection.
pub fn adds_path(bytes: &[u8]) -> bool {
    raw_options(bytes).join != 0
}

pub(super) fn raw_options(bytes: &[u8]) -> syn_options {
    let mut o = syn_options::default();
    // SAFETY: the C side reads `len` bytes at most and writes `o`.
    unsafe { pure_options(bytes.as_ptr(), bytes.len().min(40) as u32, &mut o) };
    o
}

/// A flow and the key under which cookies for it are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieJar {
    /// Client and server address, in words as in packets; IPv4 in the first.
    pub addresses: [[u32; 4]; 2],
    /// Client and server port.
    pub ports: [u16; 2],
    /// Over IPv6.
    pub v6: bool,
    /// Number of the listener in another namespace; 0: in weir's own.
    pub elsewhere: u16,
    /// SipHash key.
    pub key: [u64; 2],
}

impl CookieJar {
    fn raw(&self) -> (flow, siphash_key) {
        let [saddr, daddr] = self.addresses;
        let [sport, dport] = self.ports.map(u16::to_be);
        let flow = flow {
            saddr,
            daddr,
            sport,
            dport,
            v6: self.v6.into(),
            elsewhere: self.elsewhere,
        };
        (
            flow,
            siphash_key {
                k0: self.key[0],
                k1: self.key[1],
            },
        )
    }

    /// `cookie_make()` of bpf/lib/cookie.h.
    pub fn make(&self, isn: u32, now_ns: u64, options: &Options) -> u32 {
        let (flow, key) = self.raw();
        // SAFETY: all three structures live through the call.
        unsafe { pure_cookie_make(&flow, isn, now_ns, &options.raw(), &key) }
    }

    /// `cookie_check()` of bpf/lib/cookie.h.
    pub fn check(&self, isn: u32, cookie: u32, now_ns: u64) -> Option<Options> {
        let (flow, key) = self.raw();
        let mut o = syn_options::default();
        // SAFETY: all three structures live through the call.
        let good = unsafe { pure_cookie_check(&flow, isn, cookie, now_ns, &mut o, &key) };
        (good != 0).then(|| Options::of(&o))
    }
}

/// `answer_write()` of bpf/lib/reply.h for a RST without text: turns the frame around in place.
/// Returns false when the frame is too short.
pub fn answer_rst(frame: &mut [u8], v6: bool, seq: u32, ack: u32, header_len: u8) -> bool {
    const RST_ACK: u8 = 0x14;
    let a = answer {
        seq,
        ack,
        flags: RST_ACK,
        partial: 0,
        header_len,
        reason_len: 0,
        options: [0; 5],
    };
    let none = std::ptr::null();
    // SAFETY: frame is writable and as long as said; reason is not read for such an answer.
    let failed = unsafe {
        let len = frame.len() as u32;
        pure_answer(frame.as_mut_ptr(), len, 14, v6.into(), &a, none)
    };
    failed == 0
}
