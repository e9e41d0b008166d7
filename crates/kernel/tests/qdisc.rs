//! The qdisc in BPF: the C of its queues against the model in weir_models::aqm. The seed is printed; set WEIR_SEED to run
//! one again.

use proptest::prelude::*;
use weir_core::aqm::{CodelParams, FlowParams, Setup, SpaParams};
use weir_kernel::shape::qdisc::{Low, Spec};
use weir_kernel::testing::qdisc::{self, Queue};
use weir_models::aqm::spa::Spa;
use weir_models::aqm::{Aqm, Cause, Control, Ecn, Hooks, Packet};

mod seed;
use seed::runner;

/// A packet for both.
#[derive(Debug, Clone, Copy)]
struct Segment(qdisc::Packet);

impl Packet for Segment {
    fn len_bytes(&self) -> u32 {
        self.0.len
    }

    fn flow_hash(&self) -> u32 {
        self.0.flow
    }

    fn source_hash(&self) -> u32 {
        self.0.client
    }

    fn destination_hash(&self) -> u32 {
        unreachable!("SPA has no use for it")
    }

    fn control(&self) -> Control {
        self.0.control
    }

    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    fn set_ce(&mut self) {
        unreachable!("nobody understands marks");
    }
}

/// What the model drops.
#[derive(Default)]
struct Dropped(Vec<u32>);

impl Hooks<Segment> for Dropped {
    fn random(&mut self) -> u32 {
        unreachable!("SPA has nothing random")
    }

    fn dropped(&mut self, packet: Segment, _cause: Cause) {
        self.0.push(packet.0.number);
    }
}

/// What happens at a queue.
#[derive(Debug, Clone, Copy)]
enum Step {
    Enqueue {
        control: Control,
        client: u32,
        flow: u32,
        len: u32,
    },
    Dequeue,
    /// Time goes by, ns.
    Wait(u64),
}

fn packet() -> impl Strategy<Value = Step> {
    let control = prop_oneof![
        6 => Just(Control::None),
        1 => Just(Control::Syn),
        1 => Just(Control::SynAck),
        1 => Just(Control::Fin)
    ];
    // A few flows with long queues, many with short ones, and more in one set than it has queues.
    let spread = |flow: u32| flow.wrapping_mul(0x9e37_79b1);
    let flow = prop_oneof![
        (0u32..3).prop_map(spread),
        (0u32..5000).prop_map(spread),
        (0u32..24).prop_map(|flow| flow << 20)
    ];
    // GSO packets are long.
    let len = prop_oneof![6 => 40u32..=1514, 1 => 1514u32..=65_535];
    (control, 0u32..600, flow, len).prop_map(|(control, client, flow, len)| Step::Enqueue {
        control,
        client,
        flow,
        len: if control == Control::None { len } else { 60 },
    })
}

/// Steps of a queue that fills and drains, and is idle now and then.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let phase = (0u32..=5, 1usize..400).prop_flat_map(|(load, count)| {
        let step = prop_oneof![
            load => packet(),
            2 => Just(Step::Dequeue),
            2 => (0u64..8_000_000).prop_map(Step::Wait)
        ];
        prop::collection::vec(step, count)
    });
    let idle = (0u64..20_000_000_000).prop_map(|ns| vec![Step::Wait(ns)]);
    prop::collection::vec(prop_oneof![6 => phase, 1 => idle], 1..8)
        .prop_map(|phases| phases.concat())
}

/// Parameters: of a link, with room for more or fewer packets.
fn spec() -> impl Strategy<Value = Spec> {
    let rate = 50_000u64..2_000_000;
    let shape = (any::<bool>(), any::<bool>(), any::<bool>());
    (rate, shape, 1u64..30, 5u32..200, 1u32..40).prop_map(
        |(rate, (flows, fin, limited), target_ms, packets, control_packets)| {
            let setup = Setup {
                target_ns: target_ms * 1_000_000,
                ..Setup::new(rate)
            };
            let codel = CodelParams {
                ecn: false,
                ..setup.own_codel()
            };
            let spa = SpaParams {
                fin,
                limit: setup.spa().limit.filter(|_| limited),
                limit_packets: control_packets,
                demoted_packets: control_packets,
                ..setup.spa()
            };
            let of_flows = FlowParams {
                codel,
                limit_packets: packets,
                // Some have one quantum for new flows and old ones.
                fresh_bytes: if fin {
                    setup.mtu_bytes
                } else {
                    setup.own_flows().quantum_bytes
                },
                crowd_packets: packets * 2 / 5,
                ..setup.own_flows()
            };
            Spec {
                rate_bytes_per_s: rate,
                discipline: "spa",
                spa,
                low: match flows {
                    true => Low::Flows(of_flows),
                    false => Low::One(codel, packets),
                },
            }
        },
    )
}

/// Runs the steps through both, and compares them after each.
fn compare<Q: Aqm<Segment>>(
    mut model: Q,
    spec: &Spec,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let (mut queue, mut dropped) = (Queue::begin(spec), Dropped::default());
    let mut now_ns = 1_000_000_000u64;
    for (number, step) in (0u32..).zip(steps) {
        match *step {
            Step::Wait(ns) => now_ns += ns,
            Step::Dequeue => {
                let left = model.dequeue(now_ns, &mut dropped);
                prop_assert_eq!(queue.dequeue(now_ns), left.map(|packet| packet.0.number));
            }
            Step::Enqueue {
                control,
                client,
                flow,
                len,
            } => {
                let packet = qdisc::Packet {
                    number,
                    control,
                    client,
                    flow,
                    len,
                };
                queue.enqueue(&packet, now_ns);
                model.enqueue(Segment(packet), now_ns, &mut dropped);
            }
        }
        prop_assert_eq!(queue.dropped(), std::mem::take(&mut dropped.0));
        prop_assert_eq!(queue.backlog(), model.backlog());
    }
    while let Some(packet) = model.dequeue(now_ns, &mut dropped) {
        prop_assert_eq!(queue.dequeue(now_ns), Some(packet.0.number));
        now_ns += 1_000_000;
    }
    prop_assert_eq!(queue.dequeue(now_ns), None);
    let (counts, stats) = (queue.counts().queues, model.stats());
    let sum =
        |of: fn(&weir_kernel::shape::qdisc::Counts) -> u64| counts.iter().map(of).sum::<u64>();
    prop_assert_eq!(sum(|queue| queue.sent_packets), stats.sent.packets);
    prop_assert_eq!(sum(|queue| queue.sent_bytes), stats.sent.bytes);
    prop_assert_eq!(sum(|queue| queue.dropped_packets), stats.dropped());
    prop_assert_eq!(sum(|queue| queue.waiting_packets), 0);
    Ok(())
}

#[test]
fn c_and_rust_send_and_drop_the_same_packets() {
    runner(1_000)
        .run(&(spec(), steps()), |(spec, steps)| match spec.low {
            Low::One(codel, packets) => compare(Spa::new(spec.spa, codel, packets), &spec, &steps),
            Low::Flows(flows) => compare(Spa::with_flows(spec.spa, flows), &spec, &steps),
        })
        .unwrap();
}
