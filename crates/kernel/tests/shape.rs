//! The classifier of `weir shape`: its C against the models in weir_models::aqm, and the loaded program on packets.
//! The seed is printed; set WEIR_SEED to run one again.

use std::os::fd::AsFd;

use etherparse::{PacketBuilder, TcpHeader};
use proptest::prelude::*;
use weir_core::aqm::LimitParams;
use weir_kernel::shape::Classifier;
use weir_kernel::testing::pure;
use weir_kernel::testing::run::classify;
use weir_models::aqm::Control;
use weir_models::aqm::control::{FIN, RST, SYN, control_of, control_of_packet};
use weir_models::aqm::limit::take;
use weir_testbed::needs;

mod seed;
use seed::runner;

const ACK: u8 = 0x10;
const HIGH: u32 = 0x3e12_0010;
const LOW: u32 = 0x3e12_0020;
const DEMOTED: u32 = 0x3e12_0030;

/// A TCP segment, and how it travels.
#[derive(Debug, Clone)]
struct Segment {
    v6: bool,
    flags: u8,
    payload: usize,
    /// Words of TCP options.
    options: u8,
    client: u8,
}

impl Segment {
    fn syn(client: u8) -> Segment {
        Segment {
            v6: false,
            flags: SYN,
            payload: 0,
            options: 0,
            client,
        }
    }

    /// As a frame of Ethernet.
    fn frame(&self) -> Vec<u8> {
        let mut tcp = TcpHeader::new(40_000, 80, 1, 1000);
        let set = |bit| self.flags & bit != 0;
        (tcp.fin, tcp.syn, tcp.rst) = (set(FIN), set(SYN), set(RST));
        (tcp.psh, tcp.ack, tcp.urg) = (set(0x08), set(ACK), set(0x20));
        tcp.set_options_raw(&vec![1; usize::from(self.options) * 4])
            .unwrap();
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let (client, server) = ([10, 0, 0, self.client], [10, 0, 1, 1]);
        // Who opens the connection is the destination of what answers.
        let (from, to) = if set(ACK) {
            (server, client)
        } else {
            (client, server)
        };
        let ip = match self.v6 {
            false => link.ipv4(from, to, 64),
            true => link.ipv6(in_v6(from), in_v6(to), 64),
        };
        let mut bytes = Vec::new();
        let payload = vec![0; self.payload];
        ip.tcp_header(tcp).write(&mut bytes, &payload).unwrap();
        bytes
    }
}

/// Each in a /64 of its own.
fn in_v6([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0x20, 1, 0xd, 0xb8, a, b, c, d, 9, 9, 9, 9, 9, 9, 9, 9]
}

fn segment() -> impl Strategy<Value = Segment> {
    let payload = prop_oneof![Just(0usize), 1usize..3, 3usize..1400];
    (any::<bool>(), 0u8..64, payload, 0u8..=10, any::<u8>()).prop_map(
        |(v6, flags, payload, options, client)| Segment {
            v6,
            flags,
            payload,
            options,
            client,
        },
    )
}

#[test]
fn c_and_rust_take_the_same_segments_for_control() {
    runner(100_000)
        .run(&segment(), |segment| {
            let control = control_of(segment.flags, segment.payload as u32);
            let frame = segment.frame();
            prop_assert_eq!(pure::control(&frame[14..]).0, control);
            prop_assert_eq!(control_of_packet(&frame[14..]), control);
            Ok(())
        })
        .unwrap();
}

#[test]
fn cut_and_broken_packets_are_no_control_segments_or_read_within_bounds() {
    let broken = (segment(), 0usize..120, 0usize..60, any::<u8>());
    runner(100_000)
        .run(&broken, |(segment, len, at, byte)| {
            let mut packet = segment.frame()[14..].to_vec();
            packet.truncate(len);
            if len < 40 || (segment.v6 && len < 60) {
                prop_assert_eq!(pure::control(&packet).0, Control::None);
            }
            if let Some(hit) = packet.get_mut(at) {
                *hit = byte;
            }
            prop_assert_eq!(pure::control(&packet).0, control_of_packet(&packet));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_syn_and_its_answer_count_for_the_same_client() {
    for v6 in [false, true] {
        let client = |flags, client| {
            let segment = Segment {
                v6,
                flags,
                ..Segment::syn(client)
            };
            pure::control(&segment.frame()[14..]).1
        };
        assert_eq!(client(SYN, 7), client(SYN | ACK, 7));
        assert_ne!(client(SYN, 7), client(SYN, 8));
    }
}

#[test]
fn the_limits_of_c_and_rust_admit_the_same_segments() {
    let rate = prop_oneof![
        1_000u64..100_000,
        100_000u64..20_000_000,
        Just(12_500_000_000u64)
    ];
    let step = (prop_oneof![0u64..1000, 0u64..50_000_000], 40u32..1600);
    let input = (rate, 0u64..1 << 60, prop::collection::vec(step, 1..400));
    runner(5_000)
        .run(&input, |(rate, start, steps)| {
            let limit = LimitParams::for_rate(rate);
            let (mut now, mut c, mut model) = (start, [0, 0], [0, 0]);
            for (pause, len) in steps {
                now += pause;
                let [client, all] = &mut c;
                let in_c = pure::limit_admits(&limit, client, all, now, len);
                let [client, all] = &mut model;
                let in_rust =
                    take(&limit.source, client, now, len) && take(&limit.all, all, now, len);
                prop_assert_eq!(in_c, in_rust);
                prop_assert_eq!(c, model);
            }
            Ok(())
        })
        .unwrap();
}

fn classifier(fin: bool, limit: Option<LimitParams>) -> Classifier {
    Classifier {
        high: HIGH,
        low: LOW,
        demoted: DEMOTED,
        fin,
        limit,
    }
}

#[test]
fn the_program_sends_control_segments_to_the_high_class() {
    if !needs::root("loading BPF programs") {
        return;
    }
    for fin in [false, true] {
        let program = classifier(fin, None).load().expect("it loads");
        let class = |segment: &Segment| classify(program.as_fd(), &segment.frame()).unwrap();
        for v6 in [false, true] {
            for (flags, payload, options, wanted) in [
                (SYN, 0, 0, HIGH),
                (SYN, 0, 10, HIGH),
                (SYN | ACK, 0, 5, HIGH),
                (SYN, 1, 5, LOW),
                (SYN | ACK, 1400, 10, LOW),
                (FIN | ACK, 0, 3, if fin { HIGH } else { LOW }),
                (FIN | ACK, 1, 3, LOW),
                (ACK, 0, 3, LOW),
                (ACK, 1400, 3, LOW),
                (RST, 0, 0, LOW),
            ] {
                let segment = Segment {
                    v6,
                    flags,
                    payload,
                    options,
                    client: 1,
                };
                assert_eq!(class(&segment), wanted, "{segment:?} fin {fin}");
            }
        }
        // UDP, and a protocol that is not IP.
        let mut udp = Vec::new();
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        ip.udp(1, 2).write(&mut udp, &[2; 40]).unwrap();
        assert_eq!(classify(program.as_fd(), &udp).unwrap(), LOW);
        udp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(classify(program.as_fd(), &udp).unwrap(), LOW);
    }
}

#[test]
fn the_program_demotes_the_syns_of_a_client_over_the_limit_and_not_the_others() {
    if !needs::root("loading BPF programs") {
        return;
    }
    // 2.4 Mb/s: 256 SYNs pass at once, and then 7.5 kB/s.
    let limit = LimitParams::for_rate(300_000);
    let program = classifier(false, Some(limit)).load().expect("it loads");
    let class = |client| classify(program.as_fd(), &Segment::syn(client).frame()).unwrap();
    let flood: Vec<u32> = (0..1000).map(|_| class(1)).collect();
    let high = flood.iter().filter(|class| **class == HIGH).count();
    assert!(flood.iter().all(|class| [HIGH, DEMOTED].contains(class)));
    // A slow run lets some more in: 7.5 kB/s are 140 SYNs/s.
    assert!((257..700).contains(&high), "{high} of 1000 were high");
    assert!(demoted_at_the_end(&flood) > 20);
    assert_eq!(class(2), HIGH);
}

/// Of the last 100: the bucket fills again meanwhile, and one of them may pass.
fn demoted_at_the_end(flood: &[u32]) -> usize {
    let last = flood.iter().rev().take(100);
    last.filter(|class| **class == DEMOTED).count()
}

/// What all clients share is used up by SYNs; SYN/ACKs have buckets of their own, and the other way round.
#[test]
fn the_program_lets_syn_acks_pass_beside_a_flood_of_syns_from_all_clients() {
    if !needs::root("loading BPF programs") {
        return;
    }
    let limit = LimitParams::for_rate(300_000);
    for (flooded, other) in [(SYN, SYN | ACK), (SYN | ACK, SYN)] {
        let program = classifier(false, Some(limit)).load().expect("it loads");
        let class = |flags, client| {
            let segment = Segment {
                flags,
                ..Segment::syn(client)
            };
            classify(program.as_fd(), &segment.frame()).unwrap()
        };
        let flood: Vec<u32> = (0..2000u32).map(|n| class(flooded, n as u8)).collect();
        assert!(demoted_at_the_end(&flood) > 20);
        for client in 0..100 {
            assert_eq!(class(other, client), HIGH, "{other:#x} beside {flooded:#x}");
        }
    }
}
