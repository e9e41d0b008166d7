//! Which new connection goes straight to the server's queue, and which one is parked: the model of
//! `bpf/lib/steer.h`.

use weir_core::queue::ParkingRule;

/// How many the server's queue may hold for one of this priority to go there.
fn room(rule: &ParkingRule, priority: u8, limit: u32) -> u32 {
    match priority <= rule.top {
        true => limit,
        false => rule.depth,
    }
}

/// Whether whoever comes goes straight to the server. `length`: of its queue, handshakes under way
/// included. `all_park`: others wait, and it might overtake them.
pub fn straight_for_all(rule: &ParkingRule, length: u32, all_park: bool) -> bool {
    length < rule.depth && !all_park
}

/// Whether one of this priority does, because it would be the next of all that are parked. `limit`: of
/// the server's queue. `best_parked`: the highest priority of those that are sent to parking listeners.
pub fn straight_as_next(
    rule: &ParkingRule,
    length: u32,
    limit: u32,
    priority: u8,
    best_parked: Option<u8>,
) -> bool {
    length < room(rule, priority, limit)
        && priority < rule.before
        && best_parked.is_none_or(|best| priority < best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use weir_core::queue::ReleaseOrder;

    const MS: Duration = Duration::from_millis(1);

    fn waiting(priorities: &[u8], ageing: Option<Duration>) -> ReleaseOrder<u8> {
        let mut order = ReleaseOrder::new(&[1, 5, 6], ageing);
        for (i, &priority) in priorities.iter().enumerate() {
            order.push(priority, 0, priority, MS * i as u32);
        }
        order
    }

    #[test]
    fn the_highest_class_fills_the_server_s_queue_while_lower_ones_wait_for_a_place_in_its_depth() {
        let order = waiting(&[64, 64], None);
        let rule = ParkingRule::of(&order, MS, 2, false);
        assert!(straight_as_next(&rule, 127, 128, 1, Some(64)));
        assert!(!straight_as_next(&rule, 128, 128, 1, Some(64)));
        assert!(straight_as_next(&rule, 1, 128, 5, Some(64)));
        assert!(!straight_as_next(&rule, 2, 128, 5, Some(64)));
        assert!(!straight_as_next(&rule, 0, 128, 64, Some(64)));
    }

    #[test]
    fn a_highest_class_of_which_only_some_may_wait_is_parked_where_it_can_be_counted() {
        let rule = ParkingRule::of(&waiting(&[], None), MS, 1, true);
        assert!(straight_as_next(&rule, 0, 128, 1, None));
        assert!(!straight_as_next(&rule, 1, 128, 1, None));
    }

    #[test]
    fn who_has_aged_to_the_highest_priority_is_before_those_of_it_who_come() {
        let order = waiting(&[64], Some(MS * 10));
        assert_eq!(order.before(MS * 9), 64);
        assert_eq!(order.before(MS * 19), 6);
        let rule = ParkingRule::of(&order, MS * 30, 1, false);
        assert_eq!(rule.before, 1);
        assert!(!straight_as_next(&rule, 0, 128, 1, Some(64)));
    }

    proptest! {
        #[test]
        fn who_goes_straight_is_whom_the_order_would_have_released_next(
            parked in prop::collection::vec(prop_oneof![Just(1u8), Just(5), Just(6), Just(64)], 0..8),
            priority in prop_oneof![Just(1u8), Just(5), Just(6), Just(64)],
            ageing in prop::option::of(1..40u32),
            later in 0..60u32,
            length in 0..4u32,
        ) {
            let mut order = waiting(&parked, ageing.map(|ms| MS * ms));
            let now = MS * (parked.len() as u32 + later);
            let rule = ParkingRule::of(&order, now, 2, false);
            let best = parked.iter().min().copied();
            if straight_as_next(&rule, length, 100, priority, best) {
                order.push(99, 0, priority, now);
                prop_assert_eq!(order.pop(now).unwrap().item, 99);
                // And nobody who comes later would be before it while it waits in the server's queue.
                prop_assert!(length < 2 || priority == 1);
            }
        }
    }
}
