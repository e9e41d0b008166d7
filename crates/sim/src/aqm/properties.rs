//! What holds for every discipline, on random traffic. The seed is printed; WEIR_SEED runs one again.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use weir_testbed::seed::seed;

use super::any::AnyQueue;
use weir_core::aqm::{Discipline, Setup};
use weir_models::aqm::control::Control;
use weir_models::aqm::packet::Ecn;
use weir_models::aqm::queue::{Aqm, Count, Stats};
use weir_models::aqm::testing::{Segment, World};

/// What happens at a queue.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A packet comes.
    Enqueue(Segment),
    /// The link is free.
    Dequeue,
    /// Time goes by, ns.
    Wait(u64),
}

fn segment() -> impl Strategy<Value = Segment> {
    let control = prop_oneof![
        6 => Just(Control::None),
        1 => Just(Control::Syn),
        1 => Just(Control::SynAck),
        1 => Just(Control::Fin)
    ];
    let ecn = prop::sample::select(vec![Ecn::NotEct, Ecn::Ect, Ecn::Ce]);
    // A few flows with long queues, and many with short ones.
    let flow = prop_oneof![0u32..3, 0u32..5000];
    (control, ecn, flow, 40u32..=1514).prop_map(|(control, ecn, flow, len)| Segment {
        len: if control == Control::None { len } else { 60 },
        control,
        ecn,
        flow,
        source: None,
        number: 0,
    })
}

/// Steps of a queue that fills and drains, and is idle now and then.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let phase = (0u32..=4, 1usize..400).prop_flat_map(|(load, count)| {
        let step = prop_oneof![
            load => segment().prop_map(Step::Enqueue),
            2 => Just(Step::Dequeue),
            2 => (0u64..8_000_000).prop_map(Step::Wait)
        ];
        prop::collection::vec(step, count)
    });
    let idle = (0u64..20_000_000_000).prop_map(|ns| vec![Step::Wait(ns)]);
    prop::collection::vec(prop_oneof![6 => phase, 1 => idle], 1..8)
        .prop_map(|phases| phases.concat())
}

/// What a run leaves.
#[derive(Debug, PartialEq)]
struct Course {
    sent: Vec<Segment>,
    dropped: Vec<(Segment, weir_models::aqm::Cause)>,
    stats: Stats,
}

/// Runs the steps, drains the queue, and checks the account at each step.
fn run(discipline: Discipline, setup: &Setup, steps: &[Step], seed: u64) -> Course {
    let mut queue = AnyQueue::new(setup, discipline);
    let (mut world, mut sent) = (World::new(seed), Vec::new());
    let (mut now_ns, mut numbers) = (1_000_000_000u64, HashMap::new());
    let mut received = Count::default();
    for step in steps {
        match *step {
            Step::Wait(ns) => now_ns += ns,
            Step::Dequeue => sent.extend(queue.dequeue(now_ns, &mut world)),
            Step::Enqueue(packet) => {
                let number = numbers.entry(packet.flow).or_insert(0);
                *number += 1;
                received.add(packet.len);
                let packet = Segment {
                    number: *number,
                    ..packet
                };
                queue.enqueue(packet, now_ns, &mut world);
            }
        }
        let waiting = queue.backlog().packets;
        let accounted = sent.len() as u64 + world.dropped.len() as u64 + waiting;
        assert_eq!(accounted, received.packets, "{discipline}: after {step:?}");
    }
    while let Some(packet) = queue.dequeue(now_ns, &mut world) {
        sent.push(packet);
        now_ns += 1_000_000;
    }
    let bytes = |packets: &mut dyn Iterator<Item = &Segment>| {
        packets.map(|packet| u64::from(packet.len)).sum::<u64>()
    };
    let out = bytes(&mut sent.iter()) + bytes(&mut world.dropped.iter().map(|(packet, _)| packet));
    assert_eq!(queue.backlog(), Count::default(), "{discipline}: drained");
    assert_eq!(out, received.bytes, "{discipline}: bytes");
    let stats = *queue.stats();
    assert_eq!(stats.received, received, "{discipline}");
    assert_eq!(stats.sent.packets, sent.len() as u64, "{discipline}");
    assert_eq!(stats.dropped(), world.dropped.len() as u64, "{discipline}");
    Course {
        sent,
        dropped: world.dropped,
        stats,
    }
}

/// Whether packets of each flow leave in the order in which they came. Control segments of the disciplines that put
/// them first are left out: they may overtake.
fn keeps_the_order(discipline: Discipline, sent: &[Segment]) -> bool {
    use Discipline::{Spa, SpaFq, SpaFqTc, SpaPaper, SynFinPrio, SynPrio};
    let overtakes = |control| match (discipline, control) {
        (_, Control::None) => false,
        (SynPrio | Spa | SpaFq | SpaFqTc, control) => control != Control::Fin,
        (SynFinPrio | SpaPaper, _) => true,
        _ => false,
    };
    let mut last = HashMap::new();
    let mut rest = sent.iter().filter(|packet| !overtakes(packet.control));
    rest.all(|packet| {
        last.insert(packet.flow, packet.number)
            .is_none_or(|before| before < packet.number)
    })
}

fn check(cases: u32, property: impl Fn(Discipline, &Setup, &[Step], u64)) {
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let setup = (50_000u64..2_000_000, 5u32..120, any::<bool>(), 1u64..30).prop_map(
        |(rate, buffer_packets, ecn, target_ms)| Setup {
            buffer_packets,
            ecn,
            target_ns: target_ms * 1_000_000,
            ..Setup::new(rate)
        },
    );
    let input = (setup, steps(), any::<u64>());
    TestRunner::new(config)
        .run(&input, |(setup, steps, seed)| {
            for discipline in Discipline::ALL {
                property(discipline, &setup, &steps, seed);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_packet_and_byte_is_sent_or_dropped_or_waits() {
    check(300, |discipline, setup, steps, seed| {
        run(discipline, setup, steps, seed);
    });
}

#[test]
fn no_flow_is_reordered_but_by_its_own_control_segments() {
    check(300, |discipline, setup, steps, seed| {
        let course = run(discipline, setup, steps, seed);
        assert!(
            keeps_the_order(discipline, &course.sent),
            "{discipline}: {:?}",
            course.sent
        );
    });
}

#[test]
fn one_seed_gives_one_course() {
    check(100, |discipline, setup, steps, seed| {
        let [one, other] = [(); 2].map(|()| run(discipline, setup, steps, seed));
        assert_eq!(one, other, "{discipline}");
    });
}

#[test]
fn only_what_understands_marks_is_marked() {
    check(100, |discipline, setup, steps, seed| {
        let course = run(discipline, setup, steps, seed);
        let came = |ecn| {
            let is = |step: &&Step| matches!(step, Step::Enqueue(packet) if packet.ecn == ecn);
            steps.iter().filter(is).count()
        };
        let all: Vec<Segment> = course
            .sent
            .iter()
            .copied()
            .chain(course.dropped.iter().map(|(packet, _)| *packet))
            .collect();
        let left = |ecn| all.iter().filter(|packet| packet.ecn == ecn).count();
        assert_eq!(left(Ecn::NotEct), came(Ecn::NotEct), "{discipline}");
        let marks = setup.ecn
            || matches!(
                discipline,
                Discipline::Cake | Discipline::Spa | Discipline::SpaFq | Discipline::SpaFqTc
            );
        if !marks {
            assert_eq!(course.stats.marked, 0, "{discipline}");
        }
    });
}
