//! What the figures of a row are made from.

use std::time::Duration;

use serde_json::json;

use super::site::{CAPACITY_PER_S, HELD};
use super::trial::Measured;
use crate::client::new_histogram;
use crate::experiments::flood;
use crate::load::clients::Outcome;
use crate::load::tally::Step;
use crate::run::results::{Sample, add_times};

/// Share of the clients that came more than 10 ms late above which a row does not count.
const MAX_LATE_SHARE: f64 = 0.05;
/// A link that delivers one packet in a hundred later than this is not the one that was asked for, ms.
const MAX_LINK_LATE_MS: f64 = 5.0;

/// A goal, and whether a sample reaches it.
pub struct Goal {
    /// What it is about, in a word.
    pub name: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// What it is to be.
    pub holds: fn(f64) -> bool,
}

/// What a site wants of an overload, of this pool and this link.
pub const GOALS: [Goal; 6] = [
    Goal {
        name: "gold is served",
        metric: "gold_served",
        holds: |share| share >= 0.95,
    },
    Goal {
        name: "gold is served soon",
        metric: "gold_p99_ms",
        holds: |ms| ms <= 500.0,
    },
    Goal {
        name: "nobody waits in vain",
        metric: "timed_out",
        holds: |share| share <= 0.02,
    },
    Goal {
        name: "the server works for clients",
        metric: "of_capacity",
        holds: |share| share >= 0.85,
    },
    Goal {
        name: "no half-closed connection stands",
        metric: "half_closed",
        holds: |count| count <= 1.0,
    },
    Goal {
        name: "nothing is remembered at the server",
        metric: "time_wait",
        holds: |count| count <= 100.0,
    },
];

/// How many of the goals a sample reaches.
fn reached(sample: &Sample) -> f64 {
    let is_reached = |goal: &&Goal| (goal.holds)(sample.get(goal.metric));
    GOALS.iter().filter(is_reached).count() as f64
}

fn counted(outcome: &Outcome) -> &[Step] {
    outcome.tally.steps.get(1..).unwrap_or_default()
}

fn sum(outcomes: &[Outcome], of: impl Fn(&Step) -> u64) -> f64 {
    let steps = outcomes.iter().flat_map(counted);
    steps.map(of).sum::<u64>() as f64
}

/// Shares are of the clients that came in the steps that count.
pub fn sample(measured: &Measured) -> Sample {
    let mut sample = Sample::default();
    for (class, outcome) in HELD.iter().zip(&measured.classes) {
        add_class(&mut sample, class.name, outcome);
    }
    let classes = &measured.classes;
    let begun = sum(classes, |step| step.begun).max(1.0);
    let share = |of: fn(&Step) -> u64| sum(classes, of) / begun;
    let seconds = seconds(classes);
    let replies = sum(classes, |step| step.served_in_time);
    sample.add([
        ("offered_per_s", begun / seconds),
        ("replies_per_s", replies / seconds),
        ("of_capacity", replies / seconds / CAPACITY_PER_S),
        ("refused", share(|step| step.refused)),
        ("reset", share(|step| step.reset)),
        ("busy", share(Step::error_replies)),
        ("timed_out", share(|step| step.timed_out)),
        ("in_vain", in_vain(measured, replies)),
    ]);
    add_server(&mut sample, measured, seconds);
    add_strangers(&mut sample, measured);
    let late = classes.iter().map(|one| one.late_share).fold(0.0, f64::max);
    sample.add([("late", late), ("goals", reached(&sample))]);
    sample.flaw = flaw(late, measured.link.down.late.p99_ms);
    flood::note_unsent(&mut sample, measured.unsent);
    sample.detail = json!({ "status": measured.status, "link": measured.link });
    sample
}

/// Length of the steps that count.
fn seconds(classes: &[Outcome]) -> f64 {
    let steps = classes.first().map_or(&[][..], counted);
    let length: Duration = steps.iter().map(|step| step.length).sum();
    length.as_secs_f64().max(1e-9)
}

fn flaw(late_share: f64, link_late_ms: f64) -> Option<String> {
    if late_share > MAX_LATE_SHARE {
        let percent = late_share * 100.0;
        return Some(format!(
            "{percent:.0} % of the clients came late: other programs took their CPU"
        ));
    }
    (link_late_ms > MAX_LINK_LATE_MS).then(|| {
        format!("the link delivered one packet in a hundred over {link_late_ms:.0} ms late")
    })
}

fn add_class(sample: &mut Sample, name: &str, outcome: &Outcome) {
    let one = std::slice::from_ref(outcome);
    let begun = sum(one, |step| step.begun).max(1.0);
    let mut times = new_histogram();
    for step in counted(outcome) {
        times
            .add(&step.response_us)
            .expect("the bounds are the same");
    }
    let mut share = |what: &str, of: fn(&Step) -> u64| {
        let share = sum(one, of) / begun;
        sample.metrics.insert(format!("{name}_{what}"), share);
    };
    share("served", |step| step.served);
    share("refused", |step| {
        step.refused + step.reset + step.error_replies()
    });
    share("timed_out", |step| step.timed_out);
    add_times(sample, name, &times);
}

/// The part of what the pool began in the steps that count of which no client had a reply in time.
fn in_vain(measured: &Measured, replies: f64) -> f64 {
    let (first, last) = measured.watched.window;
    let is_within = |at: Duration| first <= at && at < last;
    let accepts = measured.accepts.iter();
    let begun = accepts.filter(|one| is_within(one.accepted)).count() as f64;
    (1.0 - replies / begun.max(1.0)).max(0.0)
}

fn add_server(sample: &mut Sample, measured: &Measured, seconds: f64) {
    let (watched, down) = (&measured.watched, &measured.link.down);
    sample.add([
        ("server_cpu", watched.server_cpu),
        ("weir_cpu", watched.weir_cpu),
        ("half_closed", watched.half_closed),
        ("time_wait", watched.time_wait),
        (
            "bulk_mbit_per_s",
            watched.bulk_bytes as f64 * 8e-6 / seconds,
        ),
        ("link_queue_p50_ms", down.queue_delay.p50_ms),
        ("link_syns_dropped", down.dropped_syns as f64),
    ]);
}

fn add_strangers(sample: &mut Sample, measured: &Measured) {
    let strangers = &measured.strangers;
    let ended = &strangers.ended_us;
    sample.add([
        ("strangers", strangers.begun as f64),
        (
            "strangers_refused",
            strangers.refused as f64 / strangers.begun.max(1) as f64,
        ),
        (
            "half_closed_answered",
            strangers.answered as f64 / strangers.asked.max(1) as f64,
        ),
        ("half_closed_left", strangers.left as f64),
    ]);
    if !ended.is_empty() {
        let p99 = ended.value_at_quantile(0.99) as f64 / 1e3;
        sample.add([("half_closed_p99_ms", p99)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tally::{Fate, Tally};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn shares_of_a_class_are_of_the_steps_that_count() {
        let mut tally = Tally::new(&[1.0; 3], SECOND);
        tally.end(0, Duration::ZERO, SECOND, Fate::TimedOut);
        for fate in [Fate::Served, Fate::Refused, Fate::Reset, Fate::Error(503)] {
            tally.end(1, SECOND, SECOND * 3 / 2, fate);
        }
        let outcome = Outcome {
            tally,
            late_share: 0.0,
            interrupted: false,
        };
        let mut sample = Sample::default();
        add_class(&mut sample, "gold", &outcome);
        let of = |name| sample.get(name);
        assert_eq!(of("gold_served"), 0.25);
        assert_eq!(of("gold_refused"), 0.75);
        assert_eq!(of("gold_timed_out"), 0.0);
        assert!((of("gold_p50_ms") - 500.0).abs() < 1.0);
        assert_eq!(seconds(&[outcome]), 2.0);
    }

    #[test]
    fn a_goal_of_which_nothing_was_measured_is_not_reached() {
        assert_eq!(reached(&Sample::default()), 0.0);
        let good = Sample::of([
            ("gold_served", 1.0),
            ("gold_p99_ms", 200.0),
            ("timed_out", 0.0),
            ("of_capacity", 0.9),
            ("half_closed", 0.0),
            ("time_wait", 0.0),
        ]);
        assert_eq!(reached(&good), GOALS.len() as f64);
    }

    #[test]
    fn a_late_link_or_late_clients_are_a_flaw() {
        assert_eq!(flaw(0.01, 1.0), None);
        assert!(flaw(0.2, 1.0).unwrap().contains("20 % of the clients"));
        assert!(flaw(0.0, 30.0).unwrap().contains("30 ms late"));
    }
}
