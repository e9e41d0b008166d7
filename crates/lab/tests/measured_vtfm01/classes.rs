//! What the prioritized listen queue gives the high class, and what gives the low ones something back.

use weir_lab::experiments::vtfm01::order::{self, Queue};
use weir_lab::experiments::vtfm01::overload;
use weir_lab::experiments::vtfm01::police_high::{self, Summary};
use weir_lab::experiments::vtfm01::preferred::Protection;
use weir_lab::experiments::vtfm01::priorities::{self, Order};

use crate::{can_run, protected, weir};

#[test]
fn priority_alone_gives_the_preferred_client_its_throughput_back() {
    if !can_run() {
        return;
    }
    let results = protected(Protection::Priority);
    let greedy = results.rows[0].greedy.replies_per_s;
    assert!(
        greedy > 0.4 * results.capacity_per_s,
        "what is left is theirs: {results:#?}"
    );
}

#[test]
fn strict_priority_starves_the_low_class_and_ageing_does_not() {
    if !can_run() {
        return;
    }
    let args = priorities::short(&[Order::Strict, Order::Ageing], weir());
    let results = priorities::measure(&args).unwrap();
    let strict = results.fullest(Order::Strict).unwrap();
    assert!(
        strict.of_alone.median > 0.8,
        "the high class is unharmed: {results:#?}"
    );
    let [high, _, low] = strict.replies_per_s.map(|share| share.median);
    assert!(low < 0.05 * high, "{results:#?}");
    let ageing = results.fullest(Order::Ageing).unwrap();
    let [high, _, low] = ageing.replies_per_s.map(|share| share.median);
    assert!(low > 0.1 * high, "{results:#?}");
}

#[test]
fn policing_the_high_class_brings_the_low_ones_back() {
    if !can_run() {
        return;
    }
    let results = police_high::measure(&police_high::short(weir())).unwrap();
    let [unpoliced, policed] = &results.summaries[..] else {
        panic!("two rates: {results:#?}");
    };
    let of_capacity = |summary: &Summary, class: usize| {
        summary.replies_per_s[class].median / results.capacity_per_s
    };
    assert!(of_capacity(unpoliced, 1) < 0.2, "{results:#?}");
    assert!(of_capacity(policed, 1) > 0.25, "{results:#?}");
    let high = policed.replies_per_s[0].median;
    assert!(high < 1.1 * policed.rate_per_s, "{results:#?}");
}

#[test]
fn a_stopped_server_accepts_the_highest_class_first() {
    if !can_run() {
        return;
    }
    let args = order::Args {
        queues: vec![Queue::Priority],
        ..order::short(weir())
    };
    let row = &order::measure(&args).unwrap().rows[0];
    // Only what the server's own queue held already can be out of order.
    assert!(row.out_of_order <= 2, "{row:?}");
}

#[test]
fn the_high_class_waits_hardly_longer_than_with_class_listeners() {
    if !can_run() {
        return;
    }
    let results = overload::measure(&overload::short(weir())).unwrap();
    let priority = results.priority().unwrap();
    assert!(
        priority.high_p50_of_class_listeners.median < 4.0,
        "{results:#?}"
    );
    assert!(priority.accepts_of_fifo.median > 0.5, "{results:#?}");
}
