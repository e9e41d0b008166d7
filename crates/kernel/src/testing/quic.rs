//! The pure C of QUIC (bpf/lib/quic.h, quic_wait.h), compiled natively, and test runs of its programs.

use std::cell::UnsafeCell;
use std::os::fd::AsFd;

use weir_core::class::Bucket;
use weir_core::quic::{QUIC_VERDICTS, QuicVerdict};
use weir_models::quic::flows::{CLIENT_WORDS, Fate, FlowKeys};
use weir_models::quic::{HEAD, QuicRule, QuicWait};

use super::run::{Judged, judge};
use super::skel::types::{quic_client, quic_flow_keys, quic_id, quic_packet, quic_pair, quic_slot};
use crate::error::Result;
use crate::object::{Plain, plain};
use crate::quic::Quic;
use crate::quic::skel::types::{quic_policy, quic_state};

plain!(quic_client);

/// `QUIC_BUFFER` of bpf/lib/quic.h.
const BUFFER: usize = 64;

unsafe extern "C" {
    fn pure_quic_read(head: *const u8, len: u32, packet: *mut quic_packet);
    fn pure_quic_may_begin(packet: *const quic_packet, len: u32) -> u8;
    fn pure_quic_refuse(
        to: *mut u8,
        head: *const u8,
        packet: *const quic_packet,
        chance: u8,
    ) -> u32;
    fn pure_quic_id(id: *mut quic_id, head: *const u8, at: u32, len: u32) -> u32;
    fn pure_quic_client_hash(client: *const quic_client, keys: *const quic_flow_keys) -> u64;
    fn pure_quic_pair_of(client: u64, pairs: u32) -> u32;
    fn pure_quic_slot_find(pair: *mut quic_pair, client: u64) -> i32;
    fn pure_quic_slot_write(
        pair: *mut quic_pair,
        client: u64,
        now: u64,
        what: *const quic_slot,
    ) -> u8;
    fn pure_quic_slot_answer(
        pair: *mut quic_pair,
        client: u64,
        retry: u8,
        server_id: u32,
        was: *mut quic_slot,
    ) -> u8;
    fn pure_quic_look(state: *mut quic_state, now: u64, policy: *const quic_policy);
    fn pure_quic_judge(
        state: *mut quic_state,
        now: u64,
        policy: *const quic_policy,
        priority: u32,
    ) -> u8;
    fn pure_quic_let_in(state: *mut quic_state, now: u64) -> u32;
    fn pure_quic_is_lost(state: *const quic_state, truesize: u32) -> bool;
    fn pure_quic_lose(state: *mut quic_state, now: u64) -> u32;
    fn pure_quic_answer(state: *mut quic_state, number: u32, now: u64, after_ns: u64, behind: u32);
    fn pure_quic_answer_late(
        state: *mut quic_state,
        number: u32,
        now: u64,
        repeated_ns: u64,
        behind: u32,
    );
    fn pure_quic_excuse(state: *mut quic_state, number: u32, now: u64);
}

/// What the C reads of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CPacket {
    /// `enum quic_kind`.
    pub kind: u8,
    /// Destination's connection ID.
    pub to: Vec<u8>,
    /// Source's connection ID.
    pub from: Vec<u8>,
    /// It may begin a connection.
    pub may_begin: bool,
    /// The answer that refuses it.
    pub refusal: Vec<u8>,
    /// Hashes of both connection IDs.
    pub hashes: [u32; 2],
}

/// `quic_read()`, `quic_may_begin()` and `quic_refuse()`. `None`: it is not read.
pub fn read(datagram: &[u8], chance: u8) -> Option<CPacket> {
    let (mut head, mut packet) = ([0; BUFFER], quic_packet::default());
    let take = datagram.len().min(HEAD);
    head[..take].copy_from_slice(&datagram[..take]);
    let len = datagram.len() as u32;
    // SAFETY: the buffer has as many bytes as the C reads.
    unsafe { pure_quic_read(head.as_ptr(), len, &mut packet) };
    if packet.kind == 0 {
        return None;
    }
    let mut refusal = [0xff; BUFFER];
    // SAFETY: both buffers have as many bytes as the C reads and writes.
    let written = unsafe { pure_quic_refuse(refusal.as_mut_ptr(), head.as_ptr(), &packet, chance) };
    assert!(refusal[written as usize..].iter().all(|byte| *byte == 0));
    let (to, from) = (usize::from(packet.to_len), usize::from(packet.from_len));
    let hash = |at: usize, len: usize| {
        let mut id = quic_id::default();
        // SAFETY: the buffer has as many bytes as the C reads.
        let hash = unsafe { pure_quic_id(&mut id, head.as_ptr(), at as u32, len as u32) };
        let bytes: Vec<u8> = id.word.into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(bytes[..len], head[at..at + len]);
        assert!(bytes[len..].iter().all(|byte| *byte == 0));
        hash
    };
    Some(CPacket {
        kind: packet.kind,
        to: head[6..6 + to].to_vec(),
        from: head[7 + to..7 + to + from].to_vec(),
        // SAFETY: the packet lives through the call.
        may_begin: unsafe { pure_quic_may_begin(&packet, len) != 0 },
        refusal: refusal[..written as usize].to_vec(),
        hashes: [hash(6, to), hash(7 + to, from)],
    })
}

/// `quic_client_hash()`.
pub fn client_hash(client: &[u32; CLIENT_WORDS], keys: &FlowKeys) -> u64 {
    let mut c = quic_client::default();
    let bytes: Vec<u8> = client.iter().flat_map(|word| word.to_ne_bytes()).collect();
    c.bytes_mut().copy_from_slice(&bytes);
    let keys = quic_flow_keys { word: *keys };
    // SAFETY: both live through the call.
    unsafe { pure_quic_client_hash(&c, &keys) }
}

/// `quic_pair_of()`.
pub fn pair_of(client: u64, pairs: u32) -> u32 {
    // SAFETY: it takes numbers.
    unsafe { pure_quic_pair_of(client, pairs) }
}

/// `struct quic_pair` and what is done with it, by as many threads as there are.
#[derive(Default)]
pub struct CPair(UnsafeCell<quic_pair>);

// SAFETY: the C takes a slot by compare and swap before it writes, and says whether what it has read is whole.
unsafe impl Sync for CPair {}

impl CPair {
    /// `quic_slot_find()`: the slot that has the client.
    pub fn find(&self, client: u64) -> Option<usize> {
        // SAFETY: the pair lives through the call.
        let way = unsafe { pure_quic_slot_find(self.0.get(), client) };
        usize::try_from(way).ok()
    }

    /// `quic_slot_write()` of an attempt with this number and fate. All other fields are `mark`. False: there is no slot for it.
    pub fn write(&self, client: u64, now: u64, number: u32, fate: Fate, mark: u32) -> bool {
        let mut what = quic_slot {
            // quic_turn()
            turn: u64::from(number) << 32 | client & 0xffff_fff8 | fate as u64,
            behind: mark,
            first_id: mark,
            server_id: mark,
            verdict: mark,
            ..Default::default()
        };
        (what.server.socket, what.server.counters) = (mark.into(), mark);
        // SAFETY: both live through the call.
        unsafe { pure_quic_slot_write(self.0.get(), client, now, &what) != 0 }
    }

    /// `quic_slot_answer()`, with a packet that is no Retry: the number of the attempt, when it was judged, and the marks of its
    /// other fields that were read. None: it did not wait for an answer.
    pub fn answer(&self, client: u64) -> Option<(u32, u64, [u32; 3])> {
        let mut was = quic_slot::default();
        // SAFETY: both live through the call.
        let waited = unsafe { pure_quic_slot_answer(self.0.get(), client, 0, 1, &mut was) != 0 };
        let marks = [was.server.socket as u32, was.server.counters, was.behind];
        waited.then_some(((was.turn >> 32) as u32, was.at_ns, marks))
    }
}

/// `struct quic_state` and what is done with it.
#[derive(Default)]
pub struct CQuicWait(quic_state);

impl CQuicWait {
    /// Says how full the receive buffer is.
    pub fn set_buffer(&mut self, buffer: u32, limit: u32) {
        (self.0.buffer, self.0.buffer_limit) = (buffer, limit);
    }

    /// `quic_look()` and `quic_judge()`, for a class of this priority.
    pub fn judge(&mut self, now: u64, rule: &QuicRule, priority: u8) -> QuicVerdict {
        let policy = quic_policy {
            target_wait_ns: rule.target_ns,
            interval_ns: rule.interval_ns,
            room_1024: rule.room_1024,
            floor_1024: rule.floor_1024,
            refuse: rule.refuse as u8,
            ..Default::default()
        };
        // SAFETY: the state is exclusively ours, and the policy lives through the calls.
        let verdict = unsafe {
            pure_quic_look(&mut self.0, now, &policy);
            pure_quic_judge(&mut self.0, now, &policy, priority.into())
        };
        QUIC_VERDICTS[usize::from(verdict)].verdict
    }

    /// `quic_let_in()`.
    pub fn let_in(&mut self, now: u64) -> u32 {
        // SAFETY: the state is exclusively ours.
        unsafe { pure_quic_let_in(&mut self.0, now) }
    }

    /// `quic_is_lost()`.
    pub fn is_lost(&self, truesize: u32) -> bool {
        // SAFETY: the state is only read.
        unsafe { pure_quic_is_lost(&self.0, truesize) }
    }

    /// `quic_lose()`.
    pub fn lose(&mut self, now: u64) -> u32 {
        // SAFETY: the state is exclusively ours.
        unsafe { pure_quic_lose(&mut self.0, now) }
    }

    /// `quic_answer()`.
    pub fn answer(&mut self, number: u32, now: u64, after_ns: u64, behind: u32) {
        // SAFETY: the state is exclusively ours.
        unsafe { pure_quic_answer(&mut self.0, number, now, after_ns, behind) }
    }

    /// `quic_answer_late()`.
    pub fn answer_late(&mut self, number: u32, now: u64, repeated_ns: u64, behind: u32) {
        // SAFETY: the state is exclusively ours.
        unsafe { pure_quic_answer_late(&mut self.0, number, now, repeated_ns, behind) }
    }

    /// `quic_excuse()`.
    pub fn excuse(&mut self, number: u32, now: u64) {
        // SAFETY: the state is exclusively ours.
        unsafe { pure_quic_excuse(&mut self.0, number, now) }
    }

    /// Has its attempts begin behind this number.
    pub fn begin_at(&mut self, number: u32) {
        (self.0.admitted, self.0.answered, self.0.unsure_to) = (number, number, number);
    }

    /// What status says of it: how many wait, and how many may.
    pub fn reported(&self) -> (u32, u32) {
        (crate::quic::pending(&self.0), crate::quic::least(&self.0))
    }

    /// Its fields, in the model's words.
    pub fn state(&self) -> QuicWait {
        QuicWait {
            service_ns: self.0.service_ns,
            latency_ns: self.0.latency_ns,
            above_ns: self.0.above_ns,
            last_above_ns: self.0.last_above_ns,
            admitted_ns: self.0.admitted_ns,
            silent_ns: self.0.silent_ns,
            floor: Bucket {
                next: self.0.floor_next,
            },
            admitted: self.0.admitted,
            answered: self.0.answered,
            excused: self.0.excused,
            standing: self.0.standing != 0,
            buffer: self.0.buffer,
            buffer_limit: self.0.buffer_limit,
            sample_ns: self.0.sample_ns,
            idle_ns: self.0.idle_ns,
            answers: self.0.answers,
            low_mark: self.0.low_mark,
            least: self.0.least,
            turned_away: self.0.turned_away != 0,
            alone_ns: self.0.alone_ns,
            crowded_1024: self.0.crowded_1024,
            stop_ns: self.0.stop_ns,
            unsure: self.0.unsure,
            unsure_to: self.0.unsure_to,
            overtaken: self.0.overtaken,
            overtaken_before: self.0.overtaken_before,
            overtaken_answered: self.0.overtaken_answered,
            overtaken_lost: self.0.overtaken_lost,
            overtaken_ns: self.0.overtaken_ns,
            overtaken_latency_ns: self.0.overtaken_latency_ns,
            trust_answered: self.0.trust_answered,
            trust_lost: self.0.trust_lost,
            doubts: self.0.doubts,
            pace_ns: self.0.pace_ns,
            pace_before_ns: self.0.pace_before_ns,
        }
    }
}

impl Quic {
    /// Runs the program for tc ingress once on a frame of at least 14 bytes.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn judge_in(&self, frame: &[u8]) -> Result<Judged> {
        judge(self.programs().enter.as_fd(), frame)
    }

    /// The same for tc egress.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn judge_out(&self, frame: &[u8]) -> Result<Judged> {
        judge(self.programs().leave.as_fd(), frame)
    }
}
