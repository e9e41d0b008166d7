//! The guard's C decisions against the Rust models, on random input. The seed is printed; set
//! WEIR_SEED to run one again.

use std::cell::Cell;

use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use proptest::prelude::*;
use weir_core::class::{Bucket, BucketLimit};
use weir_core::listener::{Admit, Establish, RejectSyn};
use weir_core::queue::ParkingRule;
use weir_core::residence::{Gate, GateState};
use weir_kernel::testing::pure::{self, CGate, CSources, CStall, CWait, CookieJar, Options};
use weir_models::admit::{QueueSpace, QueueView};
use weir_models::gate::GuardGate;
use weir_models::headers;
use weir_models::packet;
use weir_models::stall::Stall;
use weir_models::steady::{self, SourceSet};
use weir_models::steer;
use weir_models::talk::{self, Talk};
use weir_models::wait::{Wait, WaitRule};

mod seed;
use seed::runner;

fn view() -> impl Strategy<Value = QueueView> {
    // Small numbers, so that every edge is met often.
    let numbers = (0u32..12, 0u32..12, 0u32..12, 0u32..12, 0u32..6);
    (numbers, any::<bool>()).prop_map(|((length, limit, half_open, young, claims), stalled)| {
        QueueView {
            length,
            limit,
            half_open,
            young: young.min(half_open),
            claims,
            stalled,
        }
    })
}

fn room() -> impl Strategy<Value = QueueSpace> {
    let establish = prop::sample::select(vec![
        Establish::Default,
        Establish::Abort,
        Establish::Reserv,
        Establish::NoSynDrop,
    ]);
    let reject_syn = prop::sample::select(vec![RejectSyn::Drop, RejectSyn::Rst]);
    let admit = prop::sample::select(vec![Admit::Queue, Admit::Wait]);
    (establish, reject_syn, admit, 0u16..3000, any::<bool>()).prop_map(
        |(establish, reject_syn, admit, overbook_1024, draining)| QueueSpace {
            establish,
            reject_syn,
            admit,
            overbook_1024,
            draining,
        },
    )
}

#[test]
fn verdicts_on_syn_and_final_ack_are_those_of_the_model() {
    runner(200_000)
        .run(
            &(room(), view(), any::<[bool; 3]>()),
            |(room, q, [waiting, cookies, flooded])| {
                prop_assert_eq!(
                    pure::syn_verdict(&room, &q, waiting, cookies, flooded),
                    room.syn_verdict(&q, waiting, cookies, flooded)
                );
                prop_assert_eq!(
                    pure::cookie_ack_verdict(&room, &q, waiting),
                    room.cookie_ack_verdict(&q, waiting)
                );
                prop_assert_eq!(
                    pure::steady_place(&room, &q, waiting),
                    room.steady_place(&q, waiting)
                );
                prop_assert_eq!(
                    pure::time_wait_verdict(&room, &q, waiting, flooded),
                    room.time_wait_verdict(&q, waiting, flooded)
                );
                Ok(())
            },
        )
        .unwrap();
}

/// Few keys and short pauses, so that sources become steady; long pauses too, so that some are forgotten.
#[test]
fn sources_are_as_steady_as_the_model_s() {
    let pause = prop_oneof![8 => 0u16..2, 4 => 0u16..40, 1 => 120u16..140, 1 => any::<u16>()];
    let notes = prop::collection::vec((0u32..14, pause, any::<u32>()), 1..400);
    runner(5_000)
        .run(&(any::<u16>(), notes), |(mut window, notes)| {
            let (mut c, mut model) = (CSources::default(), SourceSet::default());
            for (key, pause, chance) in notes {
                window = window.wrapping_add(pause);
                let is = c.note(key, window, chance);
                prop_assert_eq!(is, model.note(key, window, chance) as u8);
                prop_assert_eq!(c.state(), model);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn in_a_half_empty_queue_no_claim_stands_between_anybody_and_a_place() {
    runner(200_000)
        .run(
            &(room(), view(), any::<[bool; 3]>(), 0u32..4),
            |(room, q, [waiting, cookies, flooded], odd)| {
                // The limits of view() are small: of most of these the queue would be half full.
                let q = QueueView {
                    limit: q.limit * 4 + odd,
                    ..q
                };
                let bare = QueueView { claims: 0, ..q };
                if pure::half_empty(&q) {
                    prop_assert_eq!(
                        room.syn_verdict(&q, waiting, cookies, flooded),
                        room.syn_verdict(&bare, waiting, cookies, flooded)
                    );
                    prop_assert_eq!(
                        room.cookie_ack_verdict(&q, waiting),
                        room.cookie_ack_verdict(&bare, waiting)
                    );
                }
                Ok(())
            },
        )
        .unwrap();
}

/// So one that was half empty when it was looked at, and is half empty still, need not be looked at again.
#[test]
fn half_empty_queues_are_all_alike_to_a_connection() {
    runner(200_000)
        .run(
            &(room(), view(), view(), any::<[bool; 3]>(), 0u32..4),
            |(room, one, other, [waiting, cookies, flooded], odd)| {
                let [one, other] = [one, other].map(|q| QueueView {
                    limit: q.limit * 4 + odd,
                    ..q
                });
                if !pure::half_empty(&one) || !pure::half_empty(&other) {
                    return Ok(());
                }
                let verdicts = [one, other].map(|q| {
                    (
                        room.syn_verdict(&q, waiting, cookies, flooded),
                        room.time_wait_verdict(&q, waiting, flooded),
                        room.cookie_ack_verdict(&q, waiting),
                    )
                });
                prop_assert_eq!(verdicts[0], verdicts[1]);
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn in_a_filled_queue_claims_change_no_verdict() {
    runner(200_000)
        .run(
            &(room(), view(), any::<[bool; 3]>(), 0u32..200),
            |(room, q, [waiting, cookies, flooded], claims)| {
                let other = QueueView { claims, ..q };
                if pure::is_filled(&q) {
                    prop_assert_eq!(
                        room.syn_verdict(&q, waiting, cookies, flooded),
                        room.syn_verdict(&other, waiting, cookies, flooded)
                    );
                    prop_assert_eq!(
                        room.cookie_ack_verdict(&q, waiting),
                        room.cookie_ack_verdict(&other, waiting)
                    );
                }
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn the_estimator_goes_through_the_model_s_states() {
    let look = (0u64..200_000_000, view(), 0u32..40);
    let looks = prop::collection::vec(look, 1..200);
    runner(5_000)
        .run(
            &(looks, 1u64..50_000_000, 1u64..200_000_000, 0u16..14),
            |(looks, target_ns, interval_ns, least_length)| {
                let rule = WaitRule {
                    target_ns,
                    interval_ns,
                    least_length,
                };
                let (mut c, mut model) = (CWait::default(), Wait::default());
                let (mut now, mut admitted) = (1u64, u32::MAX - 500);
                for (step, q, more) in looks {
                    now += step;
                    admitted = admitted.wrapping_add(more);
                    c.look(now, &q, admitted, &rule);
                    model.look(now, &q, admitted, &rule);
                    prop_assert_eq!(c.state(), model);
                    // With the time of the look before.
                    c.look(now - step, &q, admitted, &rule);
                    model.look(now - step, &q, admitted, &rule);
                    prop_assert_eq!(c.state(), model);
                    prop_assert_eq!(
                        c.refuses(now, q.length, &rule),
                        model.refuses(now, q.length, &rule)
                    );
                    prop_assert_eq!(c.steady_limit(now), steady::limit(&model, now));
                }
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn a_gate_lets_the_same_connections_in_as_the_model() {
    let gate = (-50f64..200.0, 0.1f64..1e7, 1f64..300.0);
    let gaps = prop::collection::vec(prop_oneof![0u64..3_000_000, 0u64..400_000_000], 1..200);
    runner(2_000)
        .run(&(gate, gaps), |((room, per_s, burst), gaps)| {
            let gate = Gate {
                room,
                per_s,
                burst,
                probes: 0.0,
                probes_per_s: 0.0,
            };
            let mut now = 5_000_000_000;
            let mut model = GuardGate::from(&GateState::new(&gate, now));
            let mut c = CGate::new(&model);
            for gap in gaps {
                now += gap;
                prop_assert_eq!(c.lets_in(now), model.lets_in(now));
            }
            Ok(())
        })
        .unwrap();
}

/// Near each other, and around where they wrap.
fn near() -> impl Strategy<Value = u32> {
    (prop::sample::select(vec![0u32, 1 << 31, 5000]), 0u32..6)
        .prop_map(|(base, more)| base.wrapping_add(more).wrapping_sub(3))
}

#[test]
fn requests_are_outstanding_in_c_when_they_are_in_the_model() {
    let talk = (
        (near(), near()),
        (0u32..40, 0u32..20),
        (near(), near()),
        (near(), near()),
    );
    runner(200_000)
        .run(&(talk, any::<u32>(), 0u32..32), |(talk, ticks, shift)| {
            let (times, segments, theirs, ours) = talk;
            let talk = Talk {
                received: times.0,
                sent: times.1,
                segments_in: segments.0,
                segments_out: segments.1,
                rcv_nxt: theirs.0,
                snd_wl1: theirs.1,
                write_seq: ours.0,
                snd_una: ours.1,
            };
            let age = ticks % 200;
            let model = (
                talk.is_outstanding(),
                talk.is_arriving(age, 250),
                talk.turns(),
                [talk.is_short_answer(), talk.is_first_answer()],
            );
            prop_assert_eq!(pure::talk_says(&talk, age, 250), model);
            let ticks = ticks >> shift;
            prop_assert_eq!(pure::answer_class(ticks), talk::answer_class(ticks));
            Ok(())
        })
        .unwrap();
}

#[test]
fn handshakes_stall_in_c_when_they_do_in_the_model() {
    let looks = prop::collection::vec((0u64..1_500_000, view(), 0u32..5), 1..200);
    runner(5_000)
        .run(&(room(), looks), |(room, looks)| {
            let (mut c, mut model) = (CStall::default(), Stall::default());
            let (mut now, mut ended) = (1u64, u32::MAX - 50);
            for (step, q, more) in looks {
                now += step;
                // Two CPUs may read in another order than they count.
                ended = ended.wrapping_add(more).wrapping_sub(1);
                for now in [now, now - step] {
                    c.look(now, &q, ended, &room);
                    model.look(now, &q, ended, &room);
                    prop_assert_eq!(c.state(), model);
                }
            }
            Ok(())
        })
        .unwrap();
}

/// A TCP frame, or one that nearly is: a valid one with some bytes changed and the end cut off.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let mutation = prop::collection::vec((0usize..80, any::<u8>()), 0..4);
    (
        any::<bool>(),
        any::<u16>(),
        any::<u16>(),
        0usize..30,
        mutation,
        0usize..100,
    )
        .prop_map(|(v6, source, destination, payload, mutation, cut)| {
            let eth = PacketBuilder::ethernet2([1; 6], [2; 6]);
            let ip = match v6 {
                true => eth.ipv6([3; 16], [4; 16], 64),
                false => eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
            };
            let mut frame = Vec::new();
            let builder = ip.tcp(source, destination, 77, 1000).syn();
            builder
                .write(&mut frame, &vec![9; payload])
                .expect("a vector takes it");
            for (at, byte) in mutation {
                if let Some(b) = frame.get_mut(at) {
                    *b = byte;
                }
            }
            if cut < 40 {
                frame.truncate(frame.len() - cut);
            }
            frame
        })
}

#[test]
fn packets_are_read_as_the_model_reads_them() {
    let random = prop::collection::vec(any::<u8>(), 0..120);
    runner(200_000)
        .run(&prop_oneof![9 => frame(), 1 => random], |frame| {
            let ethertype = frame
                .get(12..14)
                .map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
            for ethertype in [ethertype, 0x0800, 0x86dd] {
                prop_assert_eq!(
                    pure::parse(&frame, 14, ethertype),
                    packet::parse(&frame, 14, ethertype)
                );
            }
            Ok(())
        })
        .unwrap();
}

/// A driver that splits headers leaves those of a datagram in one piece, and no more: 42 bytes.
#[test]
fn headers_are_put_into_one_piece_for_tcp_only() {
    const ETHERNET: usize = 14;
    for v6 in [false, true] {
        let (ip, protocol) = if v6 { (40, 6) } else { (20, 9) };
        for (number, is_tcp) in [(6u8, true), (17, false), (50, false), (58, false)] {
            let mut frame = [0u8; 128];
            frame[ETHERNET] = if v6 { 0x60 } else { 0x45 };
            frame[ETHERNET + protocol] = number;
            for in_one_piece in ETHERNET..frame.len() {
                let is_known = in_one_piece >= ETHERNET + ip;
                assert_eq!(
                    pure::may_be_tcp(&frame[..in_one_piece], ETHERNET as u32, v6),
                    is_tcp || !is_known,
                    "protocol {number}, v6: {v6}, {in_one_piece} bytes"
                );
            }
        }
    }
}

/// A packet from its IP header on: options or extension headers, a fragment or not, TCP, and now and then a bent byte.
fn unusual() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let extension = (
        prop::sample::select(vec![0u8, 43, 44, 60, 60, 51]),
        0u8..3,
        0u16..24,
    );
    let extensions = prop::collection::vec(extension, 0..5);
    let bent = prop::collection::vec((0usize..100, any::<u8>()), 0..3);
    let fragment = prop::sample::select(vec![0u16, 0x4000, 0x2000, 0x2001, 1]);
    let tcp = (any::<[u8; 24]>(), 0usize..25, 4u8..7);
    (any::<bool>(), extensions, 5u8..16, fragment, tcp, bent).prop_map(
        |(v6, extensions, ihl, fragment, (mut tcp, keep, offset), bent)| {
            tcp[12] = offset << 4;
            let mut ip = vec![0u8; if v6 { 40 } else { usize::from(ihl) * 4 }];
            let mut nexts: Vec<u8> = extensions.iter().map(|e| e.0).collect();
            nexts.push(6);
            for (index, (kind, words, offset)) in extensions.iter().enumerate().filter(|_| v6) {
                let size = if *kind == 44 {
                    8
                } else {
                    (usize::from(*words) + 1) * 8
                };
                let mut header = vec![0u8; size];
                (header[0], header[1]) = (nexts[index + 1], *words);
                if *kind == 44 {
                    // Mostly of a first fragment.
                    let of_fragment = if *offset < 20 { offset & 1 } else { offset * 8 };
                    header[2..4].copy_from_slice(&of_fragment.to_be_bytes());
                }
                ip.extend(header);
            }
            ip.extend(&tcp[..if keep < 8 { 24 } else { keep }]);
            let len = ip.len() as u16;
            if v6 {
                (ip[0], ip[6]) = (0x60, nexts[0]);
                ip[4..6].copy_from_slice(&(len - 40).to_be_bytes());
            } else {
                (ip[0], ip[9]) = (0x40 | ihl, 6);
                ip[2..4].copy_from_slice(&len.to_be_bytes());
                ip[6..8].copy_from_slice(&fragment.to_be_bytes());
            }
            for (at, byte) in bent {
                if let Some(b) = ip.get_mut(at) {
                    *b = byte;
                }
            }
            ip.resize(ip.len().max(40), 0);
            (ip, v6)
        },
    )
}

#[test]
fn tcp_behind_options_and_extension_headers_is_found_as_the_model_finds_it() {
    let found = std::cell::Cell::new(0);
    runner(200_000)
        .run(&unusual(), |(ip, v6)| {
            let model = headers::find(&ip, v6);
            prop_assert_eq!(pure::find_headers(&ip, v6), model);
            prop_assert_eq!(pure::is_unusual(&ip, v6), headers::is_unusual(&ip, v6));
            found.set(found.get() + usize::from(model.is_some()));
            Ok(())
        })
        .unwrap();
    assert!(found.get() > 30_000, "{} were found", found.get());
}

fn jar() -> impl Strategy<Value = CookieJar> {
    (
        any::<[[u32; 4]; 2]>(),
        any::<[u16; 2]>(),
        any::<bool>(),
        any::<[u64; 2]>(),
    )
        .prop_map(|(addresses, ports, v6, key)| CookieJar {
            addresses,
            ports,
            v6,
            elsewhere: 0,
            key,
        })
}

fn offered() -> impl Strategy<Value = Options> {
    (any::<u16>(), 0u8..16, any::<bool>()).prop_map(|(mss, wscale, sack)| {
        let wscale = if wscale == 15 { 15 } else { wscale.min(14) };
        Options {
            mss,
            wscale,
            sack,
            timestamps: None,
        }
    })
}

#[test]
fn a_cookie_gives_back_what_the_client_offered() {
    // One in 2^23 is good again by chance: of two times that its bits may stand for.
    let good_by_chance = Cell::new(0);
    runner(50_000)
        .run(
            &(jar(), any::<u32>(), 0u64..1 << 50, offered()),
            |(jar, isn, now, o)| {
                let cookie = jar.make(isn, now, &o);
                for age in [0, 1_000_000_000, 68_000_000_000] {
                    let back = jar
                        .check(isn, cookie, now + age)
                        .expect("a fresh cookie is good");
                    prop_assert_eq!((back.wscale, back.sack), (o.wscale, o.sack));
                    let smallest = if jar.v6 { 1220 } else { 536 };
                    prop_assert!(back.mss <= o.mss.max(smallest), "{} of {}", back.mss, o.mss);
                    if o.mss >= 1460 {
                        prop_assert_eq!(back.mss, if jar.v6 { 1440 } else { 1460 });
                    }
                }
                let too_old = jar.check(isn, cookie, now + 138_000_000_000);
                good_by_chance.set(good_by_chance.get() + u32::from(too_old.is_some()));
                prop_assert!(good_by_chance.get() < 3, "of those that are too old");
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn a_cookie_is_good_for_its_flow_key_and_namespace_only() {
    // By chance one in 2^24 fits; over 20 000 cases times 5 two of them do in less than one in 20 000 runs.
    let chance = std::cell::Cell::new(0);
    runner(20_000)
        .run(
            &(jar(), any::<u32>(), 0u64..1 << 50, offered()),
            |(jar, isn, now, o)| {
                let cookie = jar.make(isn, now, &o);
                let other_key = CookieJar {
                    key: [jar.key[0] ^ 1, jar.key[1]],
                    ..jar
                };
                let other_port = CookieJar {
                    ports: [jar.ports[0] ^ 1, jar.ports[1]],
                    ..jar
                };
                let other_namespace = CookieJar {
                    elsewhere: 256,
                    ..jar
                };
                let fits = [
                    other_key.check(isn, cookie, now),
                    other_namespace.check(isn, cookie, now),
                    other_port.check(isn, cookie, now),
                    jar.check(isn ^ 1, cookie, now),
                    jar.check(isn, cookie ^ 0x100, now),
                ];
                chance.set(chance.get() + fits.iter().flatten().count());
                prop_assert!(
                    chance.get() <= 1,
                    "{} foreign cookies were good",
                    chance.get()
                );
                Ok(())
            },
        )
        .unwrap();
}

/// RFC 8684, Section 3: of the MPTCP option, the upper four bits of its third byte.
#[test]
fn a_new_path_of_mptcp_is_told_from_a_new_connection_and_from_what_is_cut_off() {
    let join = [30, 12, 0x10, 7, 1, 2, 3, 4, 5, 6, 7, 8];
    let join_ack = [&[30, 24, 0x10, 0][..], &[9; 20]].concat();
    let capable = [30, 4, 0x01, 0x81];
    let before = [2, 4, 5, 0xb4, 4, 2, 1, 1];
    assert!(pure::adds_path(&join));
    assert!(pure::adds_path(&join_ack));
    assert!(pure::adds_path(&[&before[..], &join].concat()));
    assert!(!pure::adds_path(&capable));
    assert!(!pure::adds_path(&before));
    assert!(!pure::adds_path(&join[..11]), "longer than the header");
    assert!(
        !pure::adds_path(&[30, 2, 0x10, 0]),
        "too short for a subtype"
    );
    assert!(
        !pure::adds_path(&[&[0], &join[..]].concat()),
        "behind the end"
    );
}

#[test]
fn options_are_read_as_etherparse_reads_them() {
    use TcpOptionElement::*;
    let element = prop_oneof![
        Just(Noop),
        any::<u16>().prop_map(MaximumSegmentSize),
        (0u8..20).prop_map(WindowScale),
        Just(SelectiveAcknowledgementPermitted),
        any::<(u32, u32)>().prop_map(|(a, b)| Timestamp(a, b)),
    ];
    runner(50_000)
        .run(&prop::collection::vec(element, 0..5), |elements| {
            let Ok(bytes) = etherparse::TcpOptions::try_from_elements(&elements) else {
                return Ok(());
            };
            let mut expected = Options {
                wscale: 15,
                ..Default::default()
            };
            for e in elements {
                match e {
                    MaximumSegmentSize(mss) => expected.mss = mss,
                    WindowScale(shift) => expected.wscale = shift.min(14),
                    SelectiveAcknowledgementPermitted => expected.sack = true,
                    Timestamp(value, echo) => expected.timestamps = Some((value, echo)),
                    _ => {}
                }
            }
            prop_assert_eq!(pure::options(bytes.as_slice()), expected);
            Ok(())
        })
        .unwrap();
}

#[test]
fn an_answer_is_a_sound_packet_the_other_way() {
    runner(50_000)
        .run(
            &(any::<bool>(), any::<[u16; 2]>(), any::<[u32; 2]>(), 0u8..11),
            |case| {
                let (v6, [client, server], [seq, ack], option_words) = case;
                let eth = PacketBuilder::ethernet2([1; 6], [2; 6]);
                let ip = match v6 {
                    true => eth.ipv6([3; 16], [4; 16], 64),
                    false => eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
                };
                let nops = vec![1u8; usize::from(option_words) * 4];
                let mut frame = Vec::new();
                let builder = ip.tcp(client, server, 77, 1000).syn();
                builder
                    .options_raw(&nops)
                    .unwrap()
                    .write(&mut frame, &[])
                    .unwrap();
                prop_assert!(pure::answer_rst(
                    &mut frame,
                    v6,
                    seq,
                    ack,
                    20 + option_words * 4
                ));

                let sliced = SlicedPacket::from_ethernet(&frame).expect("a packet");
                let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
                    panic!("TCP")
                };
                prop_assert!(tcp.rst() && tcp.ack() && !tcp.syn());
                prop_assert_eq!(
                    (tcp.source_port(), tcp.destination_port()),
                    (server, client)
                );
                prop_assert_eq!(
                    (tcp.sequence_number(), tcp.acknowledgment_number()),
                    (seq, ack)
                );
                prop_assert!(tcp.options().iter().all(|&b| b == 0));
                let read =
                    packet::parse(&frame, 14, if v6 { 0x86dd } else { 0x0800 }).expect("ours");
                prop_assert!(
                    packet::answerable(&frame, 14, &read),
                    "its checksums are right"
                );
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn the_buckets_of_c_and_rust_let_the_same_connections_in() {
    let rate = prop_oneof![Just(0.1), 0.1f64..10.0, 10.0..100_000.0, Just(1e7)];
    let limit = (rate, 1u32..1000).prop_map(|(rate, burst)| BucketLimit::new(rate, burst));
    let pause = prop_oneof![0u64..1000, 0u64..20_000_000_000];
    // Now and then the other limit is in force.
    let steps = prop::collection::vec((pause, prop::bool::weighted(0.1)), 1..200);
    let start = prop_oneof![Just(0u64), 0u64..1 << 58];
    let input = (limit.clone(), limit, start, steps);
    runner(10_000)
        .run(&input, |(limit, other, start, steps)| {
            let (mut model, mut c) = (Bucket::default(), Bucket::default());
            let mut now = start;
            for (pause, is_other) in steps {
                now += pause;
                let limit = if is_other { other } else { limit };
                let has = pure::bucket_has(&c, now, &limit);
                prop_assert_eq!(has, c.clone().take(now, &limit));
                prop_assert_eq!(
                    pure::bucket_take(&mut c, now, &limit),
                    model.take(now, &limit)
                );
                prop_assert_eq!(c, model);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn c_and_rust_send_the_same_connections_straight_to_the_server() {
    // Small numbers, so that every edge is met often; priorities as they are, and nobody's.
    let priority = || prop_oneof![1u8..5, 62u8..=64];
    let or_none = |of| prop_oneof![of, Just(65u8)];
    let rule = (
        0u32..5,
        or_none(priority().boxed()),
        prop_oneof![Just(0u8), 1u8..5],
    )
        .prop_map(|(depth, before, top)| ParkingRule { depth, before, top });
    let best = prop::option::of(priority());
    let input = (rule, 0u32..8, 0u32..8, priority(), best, any::<bool>());
    runner(100_000)
        .run(&input, |(rule, length, limit, priority, best, all_park)| {
            prop_assert_eq!(
                pure::straight_for_all(rule, length, all_park),
                steer::straight_for_all(&rule, length, all_park)
            );
            prop_assert_eq!(
                pure::straight_as_next(rule, length, limit, priority, best),
                steer::straight_as_next(&rule, length, limit, priority, best)
            );
            Ok(())
        })
        .unwrap();
}
