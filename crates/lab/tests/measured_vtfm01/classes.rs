//! What the prioritized listen queue gives the high class, and what gives the low ones something back.

use weir_lab::run::results::Case;

use crate::{ORDER, OVERLOAD, PRIORITIES, can_run, classes, measure, protected};

#[test]
fn priority_alone_gives_the_preferred_client_its_throughput_back() {
    if !can_run() {
        return;
    }
    let results = protected("priority");
    let greedy = results.cases[0].median("greedy_replies_per_s");
    assert!(
        greedy > 0.4 * results.fact("capacity_per_s").unwrap(),
        "what is left is theirs: {results:#?}"
    );
}

#[test]
fn strict_priority_starves_the_low_class_and_ageing_does_not() {
    if !can_run() {
        return;
    }
    let results = measure("priorities", PRIORITIES, "--orders strict,ageing");
    let strict = results.case([("order", "strict")]);
    assert!(
        strict.median("of_alone") > 0.8,
        "the high class is unharmed: {results:#?}"
    );
    let [high, _, low] = classes(strict);
    assert!(low < 0.05 * high, "{results:#?}");
    let [high, _, low] = classes(results.case([("order", "ageing")]));
    assert!(low > 0.1 * high, "{results:#?}");
}

#[test]
fn policing_the_high_class_brings_the_low_ones_back() {
    if !can_run() {
        return;
    }
    // The bucket is full at first: the burst must be over when the window begins.
    let short =
        "--clients 60,20,20 --rates 0,200 --workers 20 --service-ms 20 --seconds 2 --warm-up 2.5";
    let results = measure("police-high", short, "");
    let case = |rate| results.case([("paper_rate", rate)]);
    let (unpoliced, policed) = (case("0"), case("200"));
    let of_capacity = |case: &Case| case.median("middle_of_capacity");
    assert!(of_capacity(unpoliced) < 0.2, "{results:#?}");
    assert!(of_capacity(policed) > 0.25, "{results:#?}");
    let [high, ..] = classes(policed);
    assert!(high < 1.1 * policed.median("rate_per_s"), "{results:#?}");
}

#[test]
fn a_stopped_server_accepts_the_highest_class_first() {
    if !can_run() {
        return;
    }
    let results = measure("order", ORDER, "--queues priority");
    // Only what the server's own queue held already can be out of order.
    assert!(
        results.cases[0].median("out_of_order") <= 2.0,
        "{results:#?}"
    );
}

#[test]
fn the_high_class_waits_hardly_longer_than_with_class_listeners() {
    if !can_run() {
        return;
    }
    let results = measure("overload", OVERLOAD, "");
    let priority = results.case([("way", "priority")]);
    assert!(
        priority.median("high_p50_of_class_listeners") < 4.0,
        "{results:#?}"
    );
    assert!(priority.median("accepts_of_fifo") > 0.5, "{results:#?}");
}
