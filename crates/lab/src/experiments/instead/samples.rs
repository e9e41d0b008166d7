//! What the figures of a case are made from.

use serde_json::json;

use crate::client::new_histogram;
use crate::experiments::point::Measured;
use crate::load::clients::Outcome;
use crate::load::tally::Step;
use crate::run::results::{Sample, add_times};

/// Share of the clients that came more than 10 ms late above which a case does not count.
const MAX_LATE_SHARE: f64 = 0.05;

/// Shares are of the clients that came in the window.
pub fn fast_sample(measured: &Measured, window_s: f64, peak_per_s: f64) -> Sample {
    let (fate, wire) = (measured.run.tally.fate, measured.run.tally.wire);
    let share = |count: u64| count as f64 / fate.started.max(1) as f64;
    let replies_per_s = wire.replies as f64 / window_s;
    let mut sample = Sample::of([
        ("offered_per_s", measured.run.offered_per_s),
        ("replies_per_s", replies_per_s),
        ("peak_per_s", peak_per_s),
        ("of_peak", replies_per_s / peak_per_s.max(1.0)),
        ("served", share(fate.served)),
        ("refused", share(fate.refused)),
        ("reset", share(fate.reset)),
        ("busy", share(fate.busy)),
        ("timed_out", share(fate.timed_out)),
        ("other", share(fate.bad_reply - fate.busy)),
        ("cpu", measured.cpu_used),
    ]);
    add_times(&mut sample, "response", &measured.run.tally.response_us);
    add_times(&mut sample, "refusal", &measured.run.tally.refusal_us);
    sample.flaw = measured.run.flaw.clone();
    let account = measured.account.clone().unwrap_or_default();
    sample.detail = json!({
        "wire": wire,
        "fate": fate,
        "weir_status": account.status,
        "kernel": measured.in_all.0,
    });
    sample
}

fn counted(outcome: &Outcome) -> &[Step] {
    outcome.tally.steps.get(1..).unwrap_or_default()
}

/// So many in the steps that count, by their length.
fn per_s(outcome: &Outcome, of: fn(&Step) -> u64) -> f64 {
    let steps = counted(outcome);
    let seconds: f64 = steps.iter().map(|step| step.length.as_secs_f64()).sum();
    steps.iter().map(of).sum::<u64>() as f64 / seconds.max(1e-9)
}

/// Whole replies in time.
pub fn replies_per_s(outcome: &Outcome) -> f64 {
    per_s(outcome, |step| step.served_in_time)
}

fn share(outcome: &Outcome, of: impl Fn(&Step) -> u64) -> f64 {
    let sum = |of: &dyn Fn(&Step) -> u64| counted(outcome).iter().map(of).sum::<u64>() as f64;
    sum(&of) / sum(&|step| step.begun).max(1.0)
}

fn busy(step: &Step) -> u64 {
    let status = |status| step.errors.get(status).copied().unwrap_or(0);
    status(&429) + status(&503)
}

/// Rates are of all clients that came in the steps that count. Shares and times are of the first part of them; of the
/// second part, the greedy, is what was served.
pub fn pool_sample(outcomes: &[Outcome], peak_per_s: f64) -> Sample {
    let all = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>();
    let replies = all(replies_per_s);
    let late_share = outcomes
        .iter()
        .map(|one| one.late_share)
        .fold(0.0, f64::max);
    let mut sample = Sample::of([
        ("offered_per_s", all(|one| per_s(one, |step| step.begun))),
        ("replies_per_s", replies),
        ("peak_per_s", peak_per_s),
        ("of_peak", replies / peak_per_s.max(1e-9)),
        ("late", late_share),
    ]);
    add_fates(&mut sample, &outcomes[0]);
    if let Some(greedy) = outcomes.get(1) {
        sample.add([
            ("greedy_served", share(greedy, |step| step.served)),
            ("greedy_replies_per_s", replies_per_s(greedy)),
        ]);
    }
    if late_share > MAX_LATE_SHARE {
        let percent = late_share * 100.0;
        sample.flaw = Some(format!(
            "{percent:.0} % of the clients came late: other programs took their CPU"
        ));
    }
    sample
}

fn add_fates(sample: &mut Sample, outcome: &Outcome) {
    let shares = [
        ("served", share(outcome, |step| step.served)),
        ("refused", share(outcome, |step| step.refused)),
        ("reset", share(outcome, |step| step.reset)),
        ("busy", share(outcome, busy)),
        ("timed_out", share(outcome, |step| step.timed_out)),
    ];
    let named: f64 = shares.iter().map(|(_, share)| share).sum();
    sample.add(shares);
    sample.add([("other", (1.0 - named).max(0.0))]);
    for (name, of) in [
        ("response", (|step| &step.response_us) as fn(&Step) -> &_),
        ("refusal", |step| &step.refusal_us),
    ] {
        let mut all = new_histogram();
        for step in counted(outcome) {
            all.add(of(step)).expect("the bounds are the same");
        }
        add_times(sample, name, &all);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::pool::STEPS;
    use super::*;
    use crate::load::tally::{Fate, Tally};

    const SECOND: Duration = Duration::from_secs(1);

    /// These fates, in the second step.
    fn outcome(fates: &[Fate]) -> Outcome {
        let mut tally = Tally::new(&[10.0; STEPS], SECOND);
        for fate in fates {
            tally.end(1, SECOND, SECOND * 3 / 2, *fate);
        }
        Outcome {
            tally,
            late_share: 0.0,
            interrupted: false,
        }
    }

    #[test]
    fn shares_of_the_pool_are_of_the_clients_behind_the_first_step() {
        let mut outcome = outcome(&[
            Fate::Served,
            Fate::Refused,
            Fate::Reset,
            Fate::Error(503),
            Fate::Error(429),
            Fate::TimedOut,
            Fate::Error(502),
            Fate::CutShort,
        ]);
        let tally = &mut outcome.tally;
        tally.end(0, Duration::ZERO, SECOND / 2, Fate::Refused);
        let sample = pool_sample(&[outcome], 1.0);
        let eighths = |name: &str| (sample.get(name) * 8.0).round();
        for (name, expected) in [
            ("served", 1.0),
            ("refused", 1.0),
            ("reset", 1.0),
            ("busy", 2.0),
            ("timed_out", 1.0),
            ("other", 2.0),
        ] {
            assert_eq!(eighths(name), expected, "{name}");
        }
        assert!((sample.get("of_peak") - 1.0 / 3.0).abs() < 1e-9);
        assert!(sample.get("greedy_served").is_nan());
        assert_eq!(sample.flaw, None);
    }

    #[test]
    fn shares_are_of_the_polite_and_replies_are_of_all() {
        let polite = outcome(&[Fate::Served, Fate::Served, Fate::Refused, Fate::TimedOut]);
        let greedy = Outcome {
            late_share: 0.2,
            ..outcome(&[
                Fate::Served,
                Fate::Error(429),
                Fate::Error(429),
                Fate::Reset,
            ])
        };
        let sample = pool_sample(&[polite, greedy], 1.0);
        let of = |name| sample.get(name);
        assert_eq!((of("served"), of("busy"), of("reset")), (0.5, 0.0, 0.0));
        assert_eq!((of("of_peak"), of("offered_per_s")), (1.0, 8.0 / 3.0));
        assert_eq!(of("greedy_served"), 0.25);
        assert!((of("greedy_replies_per_s") - 1.0 / 3.0).abs() < 1e-9);
        assert!(sample.flaw.is_some(), "the greedy came late");
    }
}
