//! What holds for any packets, in any order.

use std::net::Ipv4Addr;

use weir_testbed::seed::seed;
use weir_trace::{Options, Report, Tracker};
use weir_wire::{Endpoint, Frame, Packet, Segment, flag};

const NS_PER_S: u64 = 1_000_000_000;

fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(seed())
}

/// Segments of a few ends, whose numbers are near one another or near a wrap, so that they meet.
fn segment(random: &mut fastrand::Rng) -> Segment {
    let end = |random: &mut fastrand::Rng| Endpoint {
        address: Ipv4Addr::new(10, 0, 0, random.u8(0..4)).to_ipv6_mapped(),
        port: random.u16(0..3),
    };
    let near = [0, 1, 1000, 1 << 31, u32::MAX - 1000];
    Segment {
        source: end(random),
        destination: end(random),
        seq: near[random.usize(..near.len())].wrapping_add(random.u32(0..3000)),
        ack: near[random.usize(..near.len())].wrapping_add(random.u32(0..3)),
        flags: match random.u8(0..8) {
            0 | 1 => flag::SYN,
            2 => flag::SYN | flag::ACK,
            3 => random.u8(..),
            _ => flag::ACK,
        },
        window: [0, 1000][random.usize(..2)],
        payload: [0, 0, 1, 100, 1448, u32::MAX / 2][random.usize(..6)],
    }
}

/// What is no segment.
const OTHERS: [Frame; 7] = [
    Frame::Other,
    Frame::Fragment,
    Frame::Cut,
    Frame::Malformed,
    Frame::Copy,
    Frame::UnknownLink,
    Frame::UnknownBlock,
];

fn packets(random: &mut fastrand::Rng, count: usize) -> Vec<Packet> {
    let mut at_ns = 1_700_000_000 * NS_PER_S;
    let mut packet = |_| {
        // Mostly on, at times far on, at times back.
        at_ns = match random.u8(0..50) {
            0 => at_ns + random.u64(0..20_000) * NS_PER_S,
            1 => at_ns.saturating_sub(random.u64(0..NS_PER_S)),
            _ => at_ns + random.u64(0..NS_PER_S / 10),
        };
        let frame = match random.u8(0..30) {
            0 => OTHERS[random.usize(..OTHERS.len())],
            _ => Frame::Tcp(segment(random)),
        };
        Packet { at_ns, frame }
    };
    (0..count).map(&mut packet).collect()
}

fn track(options: Options, packets: &[Packet]) -> Report {
    let mut tracker = Tracker::new(options);
    packets.iter().for_each(|packet| tracker.packet(packet));
    tracker.report()
}

fn is_sound(report: &Report) {
    let counts = &report.counts;
    let others = counts.other + counts.fragments + counts.cut + counts.malformed;
    assert_eq!(
        counts.packets,
        counts.tcp + others + counts.copies + counts.unknown_link
    );
    let counted: u64 = report
        .directions
        .iter()
        .map(|figures| figures.packets)
        .sum();
    assert!(counted + counts.without_syn <= counts.tcp);
    for figures in &report.directions {
        assert!(figures.syn_retransmissions <= figures.retransmissions);
        assert!(figures.retransmissions <= figures.segments);
        assert!(figures.segments <= figures.packets);
        assert!(figures.connections <= figures.syns);
        assert!(figures.connections_with_syn_rtx <= figures.syn_retransmissions);
        assert!(figures.rtx_of_unknown_delay <= figures.retransmissions);
        assert_eq!(
            figures.syns - figures.syn_retransmissions,
            figures.connections
        );
        let shares = [
            figures.packet_rtx_probability,
            figures.syn_share_of_rtx,
            figures.syn_rtx_probability,
            figures.segment_rtx_probability,
            figures.syn_loss_share_of_rtx_delay,
        ];
        assert!(
            shares
                .iter()
                .flatten()
                .all(|share| (0.0..=1.0).contains(share)),
            "{figures:?}"
        );
        let delays = [
            figures.mean_rtx_delay_with_syn_loss_ms,
            figures.mean_rtx_delay_without_syn_loss_ms,
        ];
        assert!(
            delays
                .iter()
                .flatten()
                .all(|ms| (0.0..=45_000.0).contains(ms)),
            "{figures:?}"
        );
    }
}

#[test]
fn figures_are_sound_whatever_the_packets() {
    let mut random = random();
    for _ in 0..300 {
        let count = random.usize(0..2000);
        let packets = packets(&mut random, count);
        let all = track(Options::default(), &packets);
        is_sound(&all);
        assert_eq!(all.counts.judged_early, 0);
        let established = Options {
            established_only: true,
            ..Options::default()
        };
        let established = track(established, &packets);
        is_sound(&established);
        assert!(established.directions[0].connections <= all.directions[0].connections);
        let small = Options {
            connections_max: random.usize(1..40),
            flood_filter: false,
            ..Options::default()
        };
        let small = track(small, &packets);
        is_sound(&small);
        assert!(small.counts.judged_open <= small.counts.judged_early);
    }
}

/// A sender that repeats some of its segments at random, in a path that keeps their order: each repetition is found,
/// and nothing else.
#[test]
fn every_repetition_is_found_and_nothing_else() {
    let mut random = random();
    let end = |last, port| Endpoint {
        address: Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped(),
        port,
    };
    for _ in 0..300 {
        let first = random.u32(..);
        let mut at_ns = 1_700_000_000 * NS_PER_S;
        let mut tracker = Tracker::new(Options::default());
        let mut send = |at_ns, flags, seq, payload| {
            let segment = Segment {
                source: end(1, 1000),
                destination: end(2, 80),
                seq,
                ack: 1,
                flags,
                window: u16::MAX,
                payload,
            };
            tracker.packet(&Packet {
                at_ns,
                frame: Frame::Tcp(segment),
            });
        };
        let (mut repeated, mut delay_ns) = (0_u64, 0_u64);
        send(at_ns, flag::SYN, first, 0);
        let mut sent: Vec<(u64, u32, u32)> = Vec::new();
        let mut next = first.wrapping_add(1);
        for _ in 0..random.usize(1..200) {
            at_ns += random.u64(1_000..20_000_000);
            if random.u8(0..4) == 0 && !sent.is_empty() {
                let (then, seq, payload) = sent[random.usize(..sent.len())];
                send(at_ns, flag::ACK, seq, payload);
                repeated += 1;
                delay_ns += at_ns - then;
            } else {
                let payload = random.u32(2..1448);
                send(at_ns, flag::ACK, next, payload);
                sent.push((at_ns, next, payload));
                next = next.wrapping_add(payload);
            }
        }
        let report = tracker.report();
        let figures = &report.directions[0];
        assert_eq!(figures.retransmissions, repeated);
        if repeated > 0 {
            let (found, expected) = (
                figures.mean_rtx_delay_ms.unwrap(),
                delay_ns as f64 / repeated as f64 / 1e6,
            );
            // Older segments share one time, for a 32nd of their age.
            assert!(
                found >= expected - 0.05 && found <= expected * 33.0 / 32.0 + 0.05,
                "{found} {expected}"
            );
        }
    }
}
