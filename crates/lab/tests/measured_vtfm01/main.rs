//! The figures of VTFM01 in short (`weir-lab vtfm01 …`), on the real kernel.
//!
//! The servers wait and do not compute, so a busy machine changes little; bounds are far from what a quiet
//! machine shows (experiments/vtfm01), and near enough that a mechanism which does nothing fails them.

mod classes;

use std::path::PathBuf;
use std::sync::OnceLock;

use weir_lab::experiments::vtfm01::order::Queue;
use weir_lab::experiments::vtfm01::overload::{self, Way};
use weir_lab::experiments::vtfm01::preferred::{self, Protection};
use weir_lab::experiments::vtfm01::priorities::{self, Order};
use weir_lab::experiments::vtfm01::{accuracy, controller, order};
use weir_testbed::{needs, program};

/// Whether the test can run; says why not.
fn can_run() -> bool {
    needs::root("a network namespace")
}

fn weir() -> Option<PathBuf> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    Some(
        PROGRAM
            .get_or_init(|| program::find_or_build("weir").unwrap())
            .clone(),
    )
}

/// Of its throughput alone, what a protected client keeps at least.
const KEPT: f64 = 0.85;

/// Measures until the preferred client keeps [`KEPT`], three times at most: programs beside the test take the CPU
/// from single rounds, but no round gives a client what nothing protects.
fn protected(protection: Protection) -> preferred::Results {
    let mut tried = Vec::new();
    for _ in 0..3 {
        let results = preferred::measure(&preferred::short(&[protection], weir())).unwrap();
        tried.push(results.least_kept(protection));
        if tried.last() > Some(&KEPT) {
            return results;
        }
    }
    panic!("{protection:?} kept {tried:.2?}");
}

#[test]
fn greedy_clients_take_an_unprotected_server_from_a_preferred_one() {
    if !can_run() {
        return;
    }
    let results = preferred::measure(&preferred::short(&[Protection::None], weir())).unwrap();
    let kept = results.least_kept(Protection::None);
    assert!((0.05..0.6).contains(&kept), "kept {kept:.2}: {results:#?}");
}

#[test]
fn without_priority_equal_classes_get_equal_shares() {
    if !can_run() {
        return;
    }
    let results = priorities::measure(&priorities::short(&[Order::Fifo], weir())).unwrap();
    let shares = results.fullest(Order::Fifo).unwrap().replies_per_s;
    let least = shares
        .iter()
        .map(|share| share.median)
        .fold(f64::MAX, f64::min);
    let most = shares.iter().map(|share| share.median).fold(0.0, f64::max);
    assert!(least > 0.7 * most, "{results:#?}");
}

#[test]
fn a_stopped_server_of_the_kernel_s_queue_accepts_in_the_order_of_arrival() {
    if !can_run() {
        return;
    }
    let args = order::Args {
        queues: vec![Queue::Fifo],
        ..order::short(weir())
    };
    let row = &order::measure(&args).unwrap().rows[0];
    assert_eq!(row.accepted, row.arrived);
    assert!(row.inversions > 800, "{row:?}");
}

#[test]
fn class_listeners_serve_the_high_class_at_once_and_the_kernel_s_queue_does_not() {
    if !can_run() {
        return;
    }
    let args = overload::Args {
        ways: vec![Way::Fifo, Way::ClassListeners],
        ..overload::short(weir())
    };
    let results = overload::measure(&args).unwrap();
    let [fifo, listeners] = &results.summaries[..] else {
        panic!("two ways: {results:#?}");
    };
    assert!(
        listeners.p50_ms[0].median < 0.2 * fifo.p50_ms[0].median,
        "{results:#?}"
    );
}

#[test]
fn twice_its_saturation_fills_the_kernel_s_accept_queue() {
    if !can_run() {
        return;
    }
    let args = controller::Args {
        step_seconds: 0.0,
        burst_seconds: 0.0,
        controlled: vec![false],
        ..controller::short(weir())
    };
    let results = controller::measure(&args).unwrap();
    let seen = &results.rows[0].seen;
    assert!(seen.wait.p99_ms > 200.0, "{results:#?}");
    assert!(seen.wait.count > 500, "{results:#?}");
}

/// Of the values the one in the middle: a busy machine spoils single tenths of a second.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Fails with what was seen unless it is so.
fn claim(is_so: bool, seen: &impl std::fmt::Debug) -> Result<(), String> {
    is_so.then_some(()).ok_or_else(|| format!("{seen:#?}"))
}

fn controller_claims(args: &controller::Args, results: &controller::Results) -> Result<(), String> {
    let (peak, target_ms) = (results.saturation_per_s, f64::from(results.target_wait_ms));
    let settled = &results.rows[0];
    claim(settled.of_peak > 0.75, settled)?;
    claim(settled.seen.wait.p50_ms < 2.0 * target_ms, settled)?;
    claim(settled.seen.gold_served > 0.9, settled)?;

    let bins = &results.steps[0].bins;
    let late = bins.iter().filter(|bin| bin.at_s >= 2.0);
    let wait_ms = median(late.map(|bin| bin.wait_p99_ms));
    claim(wait_ms < 2.0 * target_ms, bins)?;
    // Also while the queue of the first moments drains: that takes the low class out, not the server's work.
    let overload: Vec<_> = bins.iter().filter(|bin| bin.at_s >= 0.0).collect();
    for some in overload.windows(5) {
        let accepts_per_s = median(some.iter().map(|bin| bin.accepts_per_s));
        claim(accepts_per_s > 0.7 * peak, bins)?;
    }

    let bursts = &results.bursts[0];
    let came = bursts.offered_per_s * args.burst_seconds;
    claim((bursts.policed as f64) < 0.01 * came, bursts)
}

/// Whether the generator itself says of a point that the machine was too busy for it to count: a load at 0.8 of
/// what the server did a minute ago is overload for one that is kept from its CPU.
fn is_flawed(results: &controller::Results) -> bool {
    let rows = results.rows.iter().map(|row| &row.seen);
    let steps = results.steps.iter().map(|step| &step.seen);
    let mut all = rows.chain(steps).chain(&results.bursts);
    all.any(|seen| seen.flaw.is_some())
}

#[test]
fn the_controller_holds_the_wait_at_full_throughput_from_two_seconds_after_a_step_and_leaves_bursts_alone()
 {
    if !can_run() {
        return;
    }
    let args = controller::Args {
        controlled: vec![true],
        ..controller::short(weir())
    };
    for attempt in 1.. {
        let results = controller::measure(&args).unwrap();
        match controller_claims(&args, &results) {
            Ok(()) => return,
            Err(seen) if attempt < 4 && is_flawed(&results) => {
                eprintln!("attempt {attempt}, on a busy machine: {seen}");
            }
            Err(seen) => panic!("{seen}"),
        }
    }
}

#[test]
fn policing_the_greedy_class_gives_the_preferred_client_its_throughput_back() {
    if !can_run() {
        return;
    }
    let results = protected(Protection::Policing);
    let greedy = results.rows[0].greedy.replies_per_s;
    assert!(greedy > 0.0, "policed, not shut out: {results:#?}");
}

#[test]
fn policing_admits_the_rate_that_is_asked_for_and_exactly_the_burst() {
    if !can_run() {
        return;
    }
    let mut args = accuracy::short(weir());
    // A busy machine stops the sender for longer than the bucket holds, or drops what it sends. That is chance; a
    // bucket that is wrong is wrong each time.
    for _ in 0..3 {
        let results = accuracy::measure(&args).unwrap();
        for row in &results.bursts {
            // What the rate of 1/s adds meanwhile is below one connection in less than a second.
            assert!(row.seconds < 0.5, "{results:#?}");
            assert_eq!(row.admitted, i64::from(row.burst), "{results:#?}");
        }
        for row in &results.rates {
            assert!(row.error < 0.02, "never more than the rate: {results:#?}");
        }
        let less = results.rates.iter().filter(|row| row.error <= -0.02);
        args.rates = less.map(|row| row.rate_per_s).collect();
        if args.rates.is_empty() {
            return;
        }
        args.bursts.clear();
    }
    panic!("too few at {:?}/s", args.rates);
}
