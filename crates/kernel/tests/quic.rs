//! QUIC: the C against its model on random input, and the loaded programs on single datagrams (BPF_PROG_TEST_RUN, as
//! root). The seed is printed; set WEIR_SEED to run one again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use weir_core::class::{BucketLimit, Class, OTHER, OverRate};
use weir_core::listener::{ListenAddress, Mode};
use weir_core::quic::{QuicListener, QuicRefuse, QuicVerdict};
use weir_core::refusals::Seen;
use weir_kernel::testing::quic::{CQuicWait, read};
use weir_kernel::{Around, Guard, Quic, monotonic};
use weir_models::quic::{LongPacket, NO_VERSION, PacketKind, QuicRule, QuicWait, id_hash};
use weir_testbed::{needs, netns};

mod seed;
use seed::runner;

const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;
const PORT: u16 = 4433;
const CLIENT: u16 = 5000;

/// Of either version, one that nobody knows, and that of a negotiation.
fn version() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(1u32), 3 => Just(0x6b33_43cf), 1 => Just(0), 1 => any::<u32>()]
}

/// Long packets, most of them sound; some cut off.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let id = || prop::collection::vec(any::<u8>(), 0..=21);
    let parts = (any::<u8>(), version(), id(), id(), 0usize..1400, 0u8..10);
    parts.prop_map(|(flags, version, to, from, len, cut)| {
        let mut all = vec![if flags & 7 == 0 { flags } else { flags | 0xc0 }];
        all.extend(version.to_be_bytes());
        for id in [&to, &from] {
            all.push(id.len() as u8);
            all.extend(id);
        }
        match cut {
            0 => all.truncate(len % (all.len() + 1)),
            _ => all.resize(all.len().max(len), 0xaa),
        }
        all
    })
}

#[test]
fn c_reads_and_refuses_a_long_packet_as_the_model_does() {
    let any_bytes = prop::collection::vec(any::<u8>(), 0..80);
    let input = prop_oneof![5 => datagram(), 1 => any_bytes];
    runner(200_000)
        .run(&(input, any::<u8>()), |(datagram, chance)| {
            let model = LongPacket::read(&datagram);
            let c = read(&datagram, chance);
            prop_assert_eq!(c.is_some(), model.is_some());
            if let (Some(c), Some(model)) = (c, model) {
                prop_assert_eq!(c.kind, model.kind as u8);
                prop_assert_eq!((&*c.to, &*c.from), (model.to, model.from));
                prop_assert_eq!(c.hashes, [id_hash(model.to), id_hash(model.from)]);
                prop_assert_eq!(c.may_begin, model.may_begin(datagram.len()));
                prop_assert_eq!(&c.refusal, &model.refusal(chance));
                // Never longer than what it answers.
                prop_assert!(!c.may_begin || c.refusal.len() < datagram.len());
            }
            Ok(())
        })
        .unwrap();
}

#[derive(Debug, Clone)]
enum Event {
    /// Of a class of this priority.
    Attempt(u8),
    Answer(u64, u32),
    AnswerLate(u64, u32),
    Excuse(u32),
    Buffer(u32),
}

#[test]
fn c_goes_through_the_model_s_states() {
    let back = || prop_oneof![4 => 0u32..4, 1 => any::<u32>()];
    let event = prop_oneof![
        4 => prop_oneof![Just(64), 1u8..64].prop_map(Event::Attempt),
        2 => (0u64..5_000_000_000, back()).prop_map(|(after, behind)| Event::Answer(after, behind)),
        1 => (0u64..5_000_000_000, back()).prop_map(|(after, back)| Event::AnswerLate(after, back)),
        1 => back().prop_map(Event::Excuse),
        1 => (0u32..1200).prop_map(Event::Buffer),
    ];
    // Of a CPU whose clock was read before that of another, back.
    let step = prop_oneof![
        8 => 0i64..3_000_000,
        2 => 0i64..200_000_000,
        1 => 0i64..5_000_000_000,
        1 => -1_000_000i64..0,
    ];
    let rule = (
        1u64..50_000_000,
        1u64..200_000_000,
        0u32..1025,
        0u32..1025,
        any::<bool>(),
    );
    let rule = rule.prop_map(
        |(target_ns, interval_ns, room_1024, floor_1024, vn)| QuicRule {
            target_ns,
            interval_ns,
            room_1024,
            floor_1024,
            refuse: if vn { QuicRefuse::Vn } else { QuicRefuse::Drop },
        },
    );
    let events = prop::collection::vec((step, event), 1..300);
    // Numbers wrap.
    let first = prop_oneof![Just(0u32), u32::MAX - 100..=u32::MAX, any::<u32>()];
    runner(5_000)
        .run(&(first, rule, events), |(first, rule, events)| {
            let (mut c, mut model) = (CQuicWait::default(), QuicWait::default());
            c.begin_at(first);
            (model.admitted, model.answered, model.unsure_to) = (first, first, first);
            let mut now = 1u64;
            for (step, event) in events {
                now = now.saturating_add_signed(step).max(1);
                match event {
                    Event::Attempt(priority) => {
                        model.look(now, &rule);
                        let verdict = model.judge(now, &rule, priority);
                        prop_assert_eq!(c.judge(now, &rule, priority), verdict);
                        if [QuicVerdict::QuicAdmitted, QuicVerdict::QuicFloor].contains(&verdict) {
                            let truesize = u32::from(priority);
                            let is_lost = model.is_lost(truesize);
                            prop_assert_eq!(c.is_lost(truesize), is_lost);
                            match is_lost {
                                true => prop_assert_eq!(c.lose(now), model.lose(now)),
                                false => prop_assert_eq!(c.let_in(now), model.let_in(now)),
                            }
                        }
                    }
                    Event::Answer(after, back) => {
                        let number = model.admitted.wrapping_sub(back);
                        c.answer(number, now, after, back);
                        model.answer(number, now, after, back);
                    }
                    Event::AnswerLate(after, back) => {
                        let number = model.admitted.wrapping_sub(back);
                        // As if the clock had just begun, too: that stands for none.
                        let repeated = now.saturating_sub(after);
                        c.answer_late(number, now, repeated, back);
                        model.answer_late(number, now, repeated, back);
                    }
                    Event::Excuse(back) => {
                        let number = model.admitted.wrapping_sub(back);
                        c.excuse(number, now);
                        model.excuse(number, now);
                    }
                    Event::Buffer(bytes) => {
                        c.set_buffer(bytes, 1000);
                        (model.buffer, model.buffer_limit) = (bytes, 1000);
                    }
                }
                prop_assert_eq!(c.state(), model);
                prop_assert_eq!(c.reported(), (model.pending(), model.least()));
            }
            Ok(())
        })
        .unwrap();
}

/// A QUIC listener on loopback, of which every attempt is refused: any byte in the buffer is too much.
struct World {
    quic: Quic,
    socket: UdpSocket,
}

impl World {
    fn new(change: impl FnOnce(&mut QuicListener)) -> World {
        netns::enter_new().expect("a network namespace of our own");
        let mut quic = Quic::load().expect("the programs load");
        let address = ListenAddress {
            ip: None,
            port: PORT,
        };
        let mut listener = QuicListener::new("h3", address);
        (listener.room, listener.floor) = (0.001, 0.0);
        change(&mut listener);
        quic.apply(&[listener], &Around::default()).unwrap();
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
        World { quic, socket }
    }

    /// Fills the buffer over `room`.
    fn fill(&self) {
        let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        from.send_to(&[0; 1000], (Ipv4Addr::LOCALHOST, PORT))
            .unwrap();
        let mut bytes = [0; 1];
        self.socket.peek(&mut bytes).unwrap();
    }

    fn count(&self, verdict: QuicVerdict) -> u64 {
        self.quic.counters("h3").unwrap().get(verdict)
    }
}

fn initial(to: &[u8], from: &[u8], len: usize) -> Vec<u8> {
    let mut datagram = vec![0xc3, 0, 0, 0, 1];
    for id in [to, from] {
        datagram.push(id.len() as u8);
        datagram.extend(id);
    }
    datagram.resize(len, 0x55);
    datagram
}

fn frame(v6: bool, payload: &[u8]) -> Vec<u8> {
    framed(v6, CLIENT, PORT, payload)
}

fn framed(v6: bool, from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([0; 6], [0; 6]);
    let builder = match v6 {
        true => builder.ipv6(
            Ipv6Addr::LOCALHOST.octets(),
            Ipv6Addr::LOCALHOST.octets(),
            64,
        ),
        false => builder.ipv4([127, 0, 0, 1], [127, 0, 0, 1], 64),
    };
    let mut frame = Vec::new();
    builder.udp(from, to).write(&mut frame, payload).unwrap();
    frame
}

/// The datagram of an answer, whose ports, addresses and sums are right.
fn answer(frame: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Udp(udp)) = sliced.transport else {
        panic!("no UDP: {frame:02x?}");
    };
    assert_eq!((udp.source_port(), udp.destination_port()), (PORT, CLIENT));
    let header = udp.to_header();
    let sum = match sliced.net.unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            header.calc_checksum_ipv4(&ip, udp.payload())
        }
        etherparse::NetSlice::Ipv6(ip) => {
            header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
        }
        _ => panic!("no IP"),
    };
    assert_eq!(sum.unwrap(), udp.checksum());
    udp.payload().to_vec()
}

fn as_root() -> bool {
    needs::root("BPF_PROG_TEST_RUN")
}

#[test]
fn an_attempt_that_finds_no_room_gets_a_version_negotiation_packet() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    world.fill();
    for v6 in [false, true] {
        for (to, from) in [(8, 0), (20, 20), (9, 3)] {
            let (to, from) = (vec![1; to], vec![2; from]);
            let attempt = frame(v6, &initial(&to, &from, 1200));
            let judged = world.quic.judge_in(&attempt).unwrap();
            assert_eq!(judged.action, REDIRECT, "{v6} {to:?} {from:?}");
            let datagram = answer(&judged.frame);
            let read = LongPacket::read(&datagram).unwrap();
            assert_eq!(read.kind, PacketKind::Negotiation);
            assert_eq!((read.to, read.from), (&*from, &*to));
            assert!(datagram.ends_with(&NO_VERSION.to_be_bytes()));
        }
    }
    assert_eq!(world.count(QuicVerdict::QuicVnRoom), 6);
}

#[test]
fn only_an_initial_of_a_refused_attempt_is_answered() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    world.fill();
    let refused = initial(&[1; 8], &[2; 4], 1200);
    let mut zero_rtt = refused.clone();
    zero_rtt[0] = 0xd3;
    let short = initial(&[1; 8], &[2; 4], 1199);
    for (action, sent) in [
        (REDIRECT, &refused),
        (REDIRECT, &refused),
        (DROP, &zero_rtt),
        (DROP, &short),
    ] {
        let sent = frame(false, sent);
        assert_eq!(world.quic.judge_in(&sent).unwrap().action, action);
    }
    assert_eq!(world.count(QuicVerdict::QuicRefusedAgain), 3);
}

#[test]
fn what_is_no_attempt_passes_whatever_the_server() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    world.fill();
    let long = |flags: u8, version: u32, to: usize, len: usize| {
        let mut datagram = initial(&vec![1; to], &[2; 4], len);
        datagram[0] = flags;
        datagram[1..5].copy_from_slice(&version.to_be_bytes());
        datagram
    };
    for v6 in [false, true] {
        for (what, datagram) in [
            ("a short header", vec![0x43; 1200]),
            ("a short datagram", long(0xc3, 1, 8, 1199)),
            ("an unknown version", long(0xc3, 0x0a0a_0a0a, 8, 1200)),
            ("a Handshake packet", long(0xe3, 1, 8, 1200)),
            ("an Initial to the server's own ID", long(0xc3, 1, 4, 1200)),
            ("0-RTT of an unknown attempt", long(0xd3, 1, 8, 1200)),
            ("an ID that is too long", long(0xc3, 1, 21, 1200)),
            ("nothing", Vec::new()),
        ] {
            let sent = frame(v6, &datagram);
            let judged = world.quic.judge_in(&sent).unwrap();
            assert_eq!(judged.action, PASS, "{what}");
            assert_eq!(judged.frame, sent, "{what}");
        }
        // It says that it has 1200 bytes: an answer would be longer.
        let mut short = frame(v6, &initial(&[1; 8], &[2; 4], 40));
        let length = if v6 { 14 + 40 + 4 } else { 14 + 20 + 4 };
        short[length..length + 2].copy_from_slice(&1208u16.to_be_bytes());
        assert_eq!(world.quic.judge_in(&short).unwrap().action, PASS);
        let elsewhere = framed(v6, CLIENT, PORT + 1, &initial(&[1; 8], &[2; 4], 1200));
        assert_eq!(world.quic.judge_in(&elsewhere).unwrap().action, PASS);
    }
    assert_eq!(world.quic.counters("h3").unwrap().let_in(), 0);
    assert_eq!(world.quic.counters("h3").unwrap().refused(), 0);
}

#[test]
fn what_follows_a_refused_initial_has_its_fate_and_what_follows_an_admitted_one_too() {
    if !as_root() {
        return;
    }
    let world = World::new(|listener| listener.refuse = QuicRefuse::Drop);
    let admitted = frame(false, &initial(&[1; 8], &[1; 4], 1200));
    assert_eq!(world.quic.judge_in(&admitted).unwrap().action, PASS);
    world.fill();
    let refused = frame(false, &initial(&[1; 8], &[2; 4], 1200));
    let mut zero_rtt = initial(&[1; 8], &[2; 4], 600);
    zero_rtt[0] = 0xd3;
    for (action, sent) in [
        (PASS, &admitted),
        (DROP, &refused),
        (DROP, &refused),
        (DROP, &frame(false, &zero_rtt)),
        (PASS, &admitted),
    ] {
        assert_eq!(world.quic.judge_in(sent).unwrap().action, action);
    }
    assert_eq!(world.count(QuicVerdict::QuicAdmitted), 1);
    assert_eq!(world.count(QuicVerdict::QuicDroppedRoom), 1);
    assert_eq!(world.count(QuicVerdict::QuicRefusedAgain), 2);
}

#[test]
fn a_flood_of_refused_attempts_makes_none_forgotten_that_was_let_in() {
    if !as_root() {
        return;
    }
    let world = World::new(|listener| listener.refuse = QuicRefuse::Drop);
    let admitted = frame(false, &initial(&[1; 8], &[1; 4], 1200));
    assert_eq!(world.quic.judge_in(&admitted).unwrap().action, PASS);
    world.fill();
    // More than are remembered on a machine of this size.
    let flood = 8 * weir_core::abi::QUIC_FLOWS_LEAST;
    for n in 0..flood {
        let id = n.to_be_bytes();
        let judged = world.quic.judge_in(&frame(
            false,
            &initial(&[1; 8], &[&id[..], b"flood"].concat(), 1200),
        ));
        assert_eq!(judged.unwrap().action, DROP, "{n}");
    }
    assert_eq!(world.quic.judge_in(&admitted).unwrap().action, PASS);
    assert_eq!(world.count(QuicVerdict::QuicAdmitted), 1);
    assert_eq!(world.count(QuicVerdict::QuicDroppedRoom), u64::from(flood));
    // Its answer is seen.
    let answer = framed(false, PORT, CLIENT, &initial(&[1; 4], &[9; 8], 1200));
    world.quic.judge_out(&answer).unwrap();
    assert_eq!(world.count(QuicVerdict::QuicAnswered), 1);
}

/// The kernel gives the memory of a socket that is closed to the next one.
#[test]
fn a_server_that_starts_again_inherits_nothing() {
    const STARTS: usize = 4000;
    if !as_root() {
        return;
    }
    let World { quic, socket } = World::new(|listener| listener.room = 1.0);
    drop(socket);
    for n in 0..STARTS {
        let _socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
        let attempt = frame(false, &initial(&[1; 8], &(n as u32).to_be_bytes(), 1200));
        assert_eq!(quic.judge_in(&attempt).unwrap().action, PASS);
    }
    let pending: Vec<u32> = quic.sockets().unwrap()["h3"]
        .iter()
        .map(|socket| socket.pending)
        .collect();
    assert_eq!(pending, [1; STARTS]);
}

#[test]
fn in_observe_mode_all_pass_and_are_counted() {
    if !as_root() {
        return;
    }
    let world = World::new(|listener| listener.mode = Mode::Observe);
    world.fill();
    let sent = frame(true, &initial(&[1; 8], &[2; 4], 1200));
    let judged = world.quic.judge_in(&sent).unwrap();
    assert_eq!((judged.action, judged.frame), (PASS, sent));
    assert_eq!(world.count(QuicVerdict::QuicVnRoom), 1);
}

#[test]
fn a_refused_attempt_is_told_once_with_its_client_and_what_was_seen() {
    if !as_root() {
        return;
    }
    for (v6, observe) in [(false, false), (true, false), (true, true)] {
        let world = World::new(|listener| {
            if observe {
                listener.mode = Mode::Observe;
            }
        });
        let send = |from: u8| {
            let attempt = frame(v6, &initial(&[1; 8], &[from; 4], 1200));
            world.quic.judge_in(&attempt).unwrap();
        };
        send(1);
        assert_eq!(
            world.quic.refusals(BTreeMap::new).unwrap(),
            [],
            "it was let in"
        );
        world.fill();
        let before = monotonic();
        send(2);
        // What follows it is no second refusal.
        send(2);
        let told = world.quic.refusals(BTreeMap::new).unwrap();
        let [refusal] = told.as_slice() else {
            panic!("{told:?}");
        };
        let ip: IpAddr = match v6 {
            true => Ipv6Addr::LOCALHOST.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        };
        assert_eq!(refusal.source, (ip, CLIENT).into());
        assert_eq!(refusal.destination, (ip, PORT).into());
        assert_eq!((&*refusal.listener, refusal.observe), ("h3", observe));
        assert_eq!(refusal.reason, QuicVerdict::QuicVnRoom.into());
        assert!(refusal.at + Duration::from_millis(1) >= before && refusal.at <= monotonic());
        let socket = world.quic.sockets().unwrap()["h3"][0];
        let seen = Seen::Quic {
            pending: 1,
            // The server has answered nobody.
            wait: None,
            buffer: socket.buffer,
            buffer_limit: socket.buffer_limit,
        };
        assert_eq!(refusal.seen, seen);
        assert!(socket.buffer > 0);
        assert_eq!(
            world.quic.refusals(BTreeMap::new).unwrap(),
            [],
            "each is told once"
        );
    }
}

#[test]
fn of_a_flood_a_bounded_sample_is_told() {
    if !as_root() {
        return;
    }
    let world = World::new(|listener| listener.refuse = QuicRefuse::Drop);
    world.fill();
    let sent = 4_000u32;
    let begun = Instant::now();
    for number in 0..sent {
        let attempt = frame(false, &initial(&[1; 8], &number.to_be_bytes(), 1200));
        world.quic.judge_in(&attempt).unwrap();
    }
    let took = begun.elapsed().as_secs_f64();
    let told = world.quic.refusals(BTreeMap::new).unwrap().len();
    assert_eq!(world.count(QuicVerdict::QuicDroppedRoom), u64::from(sent));
    // A burst of 1000, then 1000 a second of all and 20 of each socket.
    let most = 1000.0 + 1020.0 * took + 2.0;
    assert!(told >= 1000 && told as f64 <= most, "{told} in {took} s");
}

#[test]
fn an_answer_is_seen_when_it_leaves() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    let sent = frame(false, &initial(&[1; 8], &[2; 4], 1200));
    world.quic.judge_in(&sent).unwrap();
    let pending = || world.quic.sockets().unwrap()["h3"][0].pending;
    assert_eq!(pending(), 1);
    // To another client; then to this one.
    for (id, left) in [([9; 4], 1), ([2; 4], 0)] {
        let mut answer = initial(&id, &[7; 8], 1200);
        // Without the fixed bit, as servers may (RFC 9287).
        answer[0] = 0x81;
        let leaves = framed(false, PORT, CLIENT, &answer);
        assert_eq!(world.quic.judge_out(&leaves).unwrap().action, PASS);
        assert_eq!(pending(), left);
    }
    assert_eq!(world.count(QuicVerdict::QuicAnswered), 1);
    assert!(world.quic.sockets().unwrap()["h3"][0].service.is_some());
}

/// A hello of two datagrams has two Retries, and the client goes by the first one (RFC 9000, Section 17.2.5.2).
#[test]
fn a_client_whom_the_server_sends_two_retries_is_judged_once() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    let send = |to: &[u8]| {
        let sent = frame(false, &initial(to, &[2; 4], 1200));
        assert_eq!(world.quic.judge_in(&sent).unwrap().action, PASS);
    };
    let answer = |flags: u8, from: &[u8]| {
        let mut packet = initial(&[2; 4], from, 1200);
        packet[0] = flags;
        world
            .quic
            .judge_out(&framed(false, PORT, CLIENT, &packet))
            .unwrap();
        world.quic.sockets().unwrap()["h3"][0].pending
    };
    const RETRY: u8 = 0xf0;
    const INITIAL: u8 = 0xc0;
    send(&[1; 8]);
    assert_eq!(answer(RETRY, &[7; 8]), 0);
    send(&[1; 8]);
    assert_eq!(answer(RETRY, &[8; 8]), 0);
    send(&[7; 8]);
    send(&[7; 8]);
    assert_eq!(world.quic.sockets().unwrap()["h3"][0].pending, 1);
    assert_eq!(answer(INITIAL, &[7; 8]), 0);
    assert_eq!(world.count(QuicVerdict::QuicAdmitted), 1);
    assert_eq!(world.count(QuicVerdict::QuicAnswered), 1);
}

/// Chromium's clients have no ID of their own, and a port is used again.
#[test]
fn a_client_without_an_id_is_judged_again_when_it_begins_again() {
    if !as_root() {
        return;
    }
    let world = World::new(|_| {});
    let send = |to: &[u8]| {
        let sent = frame(false, &initial(to, &[], 1200));
        assert_eq!(world.quic.judge_in(&sent).unwrap().action, PASS);
        world.count(QuicVerdict::QuicAdmitted)
    };
    assert_eq!(send(&[1; 8]), 1);
    let answer = framed(false, PORT, CLIENT, &initial(&[], &[7; 8], 1200));
    world.quic.judge_out(&answer).unwrap();
    // What repeats its first packet, and what goes to the server's ID, goes on.
    assert_eq!(send(&[1; 8]), 1);
    assert_eq!(send(&[7; 8]), 1);
    assert_eq!(send(&[3; 8]), 2);
}

#[test]
fn where_nobody_listens_an_attempt_passes() {
    if !as_root() {
        return;
    }
    let world = World::new(|listener| listener.address.port = PORT + 2);
    let sent = framed(false, CLIENT, PORT + 2, &initial(&[1; 8], &[2; 4], 1200));
    assert_eq!(world.quic.judge_in(&sent).unwrap().action, PASS);
    assert_eq!(world.count(QuicVerdict::QuicUnheard), 1);
}

#[test]
fn an_attempt_over_the_rate_of_its_class_is_refused_as_the_class_says() {
    if !as_root() {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let mut guard = Guard::load().unwrap();
    let around = Around {
        owners: guard.quic_owners(&["h3"]),
        ..Around::default()
    };
    let mut quic = Quic::load_beside(&guard.class_maps().unwrap()).unwrap();
    let address = ListenAddress {
        ip: None,
        port: PORT,
    };
    let listener = QuicListener::new("h3", address);
    quic.apply(&[listener], &around).unwrap();
    let _socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    let class = |name: &str, over_rate| Class {
        listener: Some("h3".to_owned()),
        rate: Some(0.1),
        burst: Some(1),
        over_rate,
        ..Class::new(name)
    };
    for (over_rate, action, verdict) in [
        (OverRate::Rst, REDIRECT, QuicVerdict::QuicVnRate),
        (OverRate::Drop, DROP, QuicVerdict::QuicDroppedRate),
    ] {
        let name = format!("{over_rate:?}");
        let other = Class {
            listener: Some("another".to_owned()),
            ..Class::new("another")
        };
        guard.apply(&[], &[class(&name, over_rate), other]).unwrap();
        for (client, action) in [(1u8, PASS), (2, action)] {
            let id = [client, over_rate as u8, 0, 0];
            let sent = frame(true, &initial(&[1; 8], &id, 1200));
            assert_eq!(quic.judge_in(&sent).unwrap().action, action, "{name}");
        }
        assert_eq!(quic.counters("h3").unwrap().get(verdict), 1);
        let counters = guard.class_counters().unwrap()[&name].quic;
        assert_eq!((counters.let_in(), counters.get(verdict)), (1, 1));
        assert_eq!(guard.class_counters().unwrap()["another"].quic.let_in(), 0);
    }
}

#[test]
fn a_rate_that_the_controller_has_set_holds_for_quic_until_it_is_lifted() {
    if !as_root() {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let mut guard = Guard::load().unwrap();
    let mut quic = Quic::load_beside(&guard.class_maps().unwrap()).unwrap();
    let address = ListenAddress {
        ip: None,
        port: PORT,
    };
    let listener = QuicListener::new("h3", address);
    quic.apply(&[listener], &Around::default()).unwrap();
    let _socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    guard.apply(&[], &[]).unwrap();
    let limit = BucketLimit::new(0.1, 1);
    let limits = BTreeMap::from([(OTHER.to_owned(), Some(limit))]);
    let mut client = 0;
    let mut come = || {
        client += 1;
        let sent = frame(false, &initial(&[1; 8], &[client; 4], 1200));
        quic.judge_in(&sent).unwrap().action
    };
    assert_eq!([come(), come()], [PASS, PASS]);
    guard.set_controlled_rates(&limits).unwrap();
    assert_eq!([come(), come()], [PASS, REDIRECT]);
    let counters = quic.counters("h3").unwrap();
    assert_eq!(counters.get(QuicVerdict::QuicVnHeld), 1);
    guard
        .set_controlled_rates(&BTreeMap::from([(OTHER.to_owned(), None)]))
        .unwrap();
    assert_eq!(come(), PASS);
}
