//! FQ-CoDel (RFC 8290), as the kernel's `net/sched/sch_fq_codel.c` has it: [`Flows`] and nothing else.

use weir_core::aqm::FlowParams;

use super::flows::Flows;
use super::subqueue::Single;

/// The discipline.
pub type FqCodel<P> = Single<P, Flows>;

impl<P> FqCodel<P> {
    /// An empty one.
    pub fn new(params: FlowParams) -> FqCodel<P> {
        Single::over(Flows::new(params))
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Aqm;
    use super::super::testing::{Segment, World};
    use super::*;
    use weir_core::aqm::CodelParams;

    const PARAMS: FlowParams = FlowParams {
        flows: 1024,
        in_sets: false,
        quantum_bytes: 1514,
        fresh_bytes: 1514,
        crowd_packets: u32::MAX,
        crowd_bytes: 1514,
        limit_packets: 10_240,
        codel: CodelParams {
            target_ns: 5_000_000,
            interval_ns: 100_000_000,
            mtu_bytes: 1514,
            ecn: false,
        },
        others_are_behind: true,
    };

    fn order(queue: &mut FqCodel<Segment>, world: &mut World, count: usize) -> Vec<u32> {
        let next = |_| queue.dequeue(1_000_000, world).map(|packet| packet.flow);
        (0..count).filter_map(next).collect()
    }

    /// RFC 8290, Section 1.3: a queue is new for one quantum and then old.
    #[test]
    fn a_new_flow_is_served_before_the_old_ones_for_one_quantum() {
        let (mut queue, mut world) = (FqCodel::new(PARAMS), World::new(1));
        for n in 0..20 {
            queue.enqueue(Segment::data(1, n), 0, &mut world);
            queue.enqueue(Segment::data(2, n), 0, &mut world);
        }
        // 1514 bytes of quantum let a second packet of 1500 begin.
        assert_eq!(order(&mut queue, &mut world, 6), [1, 1, 2, 2, 1, 2]);
        queue.enqueue(Segment::syn(3), 0, &mut world);
        queue.enqueue(Segment::data(3, 1), 0, &mut world);
        queue.enqueue(Segment::data(3, 2), 0, &mut world);
        // 60 + 1500 bytes end its quantum: its last packet waits for its turn among the old.
        assert_eq!(order(&mut queue, &mut world, 5), [3, 3, 1, 3, 2]);
    }

    /// As `spa-fq` has it on a slow link.
    #[test]
    fn a_new_flow_sends_full_packets_where_an_old_one_has_short_turns() {
        let sent_first = |fresh_bytes| {
            let params = FlowParams {
                quantum_bytes: 300,
                fresh_bytes,
                ..PARAMS
            };
            let (mut queue, mut world) = (FqCodel::new(params), World::new(1));
            for n in 0..20 {
                for flow in 1..=3 {
                    queue.enqueue(Segment::data(flow, n), 0, &mut world);
                }
            }
            order(&mut queue, &mut world, 6);
            for n in 0..4 {
                queue.enqueue(Segment::data(9, n), 0, &mut world);
            }
            order(&mut queue, &mut world, 5)
        };
        assert_eq!(sent_first(1514), [9, 9, 1, 2, 3]);
        assert_eq!(sent_first(300), [9, 1, 2, 9, 3]);
    }

    #[test]
    fn an_empty_new_flow_waits_among_the_old_before_it_is_new_again() {
        let (mut queue, mut world) = (FqCodel::new(PARAMS), World::new(1));
        for n in 0..20 {
            queue.enqueue(Segment::data(1, n), 0, &mut world);
        }
        assert_eq!(order(&mut queue, &mut world, 3), [1, 1, 1]);
        queue.enqueue(Segment::syn(2), 0, &mut world);
        assert_eq!(order(&mut queue, &mut world, 2), [2, 1]);
        // It is empty and old now: what comes next waits for a turn.
        queue.enqueue(Segment::data(2, 1), 0, &mut world);
        assert_eq!(order(&mut queue, &mut world, 2), [2, 1]);
    }

    /// RFC 8290, Section 4.1.2: half of the longest queue is dropped, from its head.
    #[test]
    fn an_overflow_drops_from_the_head_of_the_fattest_flow() {
        let params = FlowParams {
            limit_packets: 100,
            ..PARAMS
        };
        let (mut queue, mut world) = (FqCodel::new(params), World::new(1));
        for n in 0..60 {
            queue.enqueue(Segment::data(1, n), 0, &mut world);
        }
        for n in 0..40 {
            queue.enqueue(Segment::data(2, n), 0, &mut world);
        }
        assert_eq!(world.dropped, []);
        queue.enqueue(Segment::syn(3), 0, &mut world);
        let dropped: Vec<_> = world.dropped.iter().map(|(packet, _)| packet).collect();
        assert_eq!(dropped.len(), 30);
        assert!(
            dropped
                .iter()
                .all(|packet| packet.flow == 1 && packet.number < 30)
        );
        assert_eq!(queue.backlog().packets, 71);
    }
}
