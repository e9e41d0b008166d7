//! Runs experiments: in interleaved rounds, in an order that the seed gives, each measurement stored as it is made.

use std::time::{Duration, Instant};

use super::experiment::{Experiment, Turn};
use super::results::{Case, Claim, Facts, Parameters, Results, Sample};
use super::statistics::Spread;
use super::store::{Head, Measurement, Store};
use crate::error::{Error, Result};
use crate::interrupt;

/// What is to be run, and where it is kept.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Rounds in the end, those of an earlier run included.
    pub rounds: usize,
    /// Rounds on top of those of an earlier run instead.
    pub add: bool,
    /// Continue what the folder has.
    pub resume: bool,
    /// The seed.
    pub seed: u64,
    /// The folder; `None` keeps nothing.
    pub store: Option<&'a Store>,
    /// The results, without cases.
    pub frame: Results,
}

/// One step of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// From 1.
    pub round: usize,
    /// Which case.
    pub case: Parameters,
}

/// All steps in the order in which they are measured: bed by bed, on each of them round by round, in each round the
/// groups shuffled by the seed. Over two rounds for each case of a group, each is the first as often as any other, for
/// that one pays for caches which the group before has filled, and each follows another as often as it precedes it.
pub fn steps(
    groups: &[Vec<Parameters>],
    bed: impl Fn(&Parameters) -> String,
    rounds: std::ops::RangeInclusive<usize>,
    seed: u64,
) -> Vec<Step> {
    let bed_of = |group: &[Parameters]| group.first().map_or(String::new(), &bed);
    let mut beds: Vec<String> = groups.iter().map(|group| bed_of(group)).collect();
    let mut seen = std::collections::HashSet::new();
    beds.retain(|bed| seen.insert(bed.clone()));
    let on = |bed: &String| {
        let groups = groups.iter().filter(|group| bed_of(group) == *bed);
        rounds_of(
            &groups.map(Vec::as_slice).collect::<Vec<_>>(),
            rounds.clone(),
            seed,
        )
    };
    beds.iter().flat_map(on).collect()
}

/// The steps of groups on one bed.
fn rounds_of(
    groups: &[&[Parameters]],
    rounds: std::ops::RangeInclusive<usize>,
    seed: u64,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in rounds {
        let mut order: Vec<usize> = (0..groups.len()).collect();
        fastrand::Rng::with_seed(seed.wrapping_add(round as u64)).shuffle(&mut order);
        for group in order.into_iter().map(|index| groups[index]) {
            let cases = in_turn(group.len(), round, seed).into_iter();
            steps.extend(cases.map(|index| Step {
                round,
                case: group[index].clone(),
            }));
        }
    }
    steps
}

/// The order of a group's cases in a round.
fn in_turn(cases: usize, round: usize, seed: u64) -> Vec<usize> {
    let first = round / 2 + (seed % cases.max(1) as u64) as usize;
    let mut order: Vec<usize> = (0..cases).map(|index| (index + first) % cases).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Runs an experiment and returns its results; progress goes to stderr through `progress`.
pub fn run(
    experiment: &mut dyn Experiment,
    plan: &Plan,
    progress: &mut dyn FnMut(&Results, &Case, &str),
) -> Result<Results> {
    let groups = experiment.groups();
    let mut results = plan.frame.clone();
    let mut measured = begin(plan, &mut results)?;
    let before = measured.iter().map(|one| one.round).max().unwrap_or(0);
    let last = if plan.add {
        before + plan.rounds
    } else {
        plan.rounds
    };
    let bed = |case: &Parameters| experiment.bed(case);
    let all = steps(&groups, bed, 1..=last, plan.seed);
    let is_done = |step: &Step| {
        let mut measured = measured.iter();
        measured.any(|one| (one.round, &one.parameters) == (step.round, &step.case))
    };
    let left: Vec<&Step> = all.iter().filter(|step| !is_done(step)).collect();
    if !left.is_empty() {
        let before = results.facts.clone();
        experiment.open(&mut results.facts)?;
        check_same(&before, &results.facts)?;
    }
    if let Some(store) = plan.store {
        store.begin(&head(&results), &measured)?;
    }
    let mut clock = Clock::new(left.len());
    for step in left {
        interrupt::check()?;
        let turn = Turn {
            round: step.round,
            seed: plan.seed.wrapping_add(step.round as u64 - 1),
        };
        let sample = experiment.measure(&step.case, turn);
        let sample = sample.map_err(|error| Error {
            what: format!("{}: {}", label(&step.case), error.what),
            ..error
        })?;
        let measurement = Measurement {
            round: step.round,
            parameters: step.case.clone(),
            sample,
        };
        let alone = summarize(
            experiment,
            std::slice::from_ref(&step.case),
            std::slice::from_ref(&measurement),
        );
        progress(&results, &alone[0], &clock.tick(step.round, last));
        if let Some(store) = plan.store {
            store.add(&measurement)?;
        }
        measured.push(measurement);
        finish(experiment, &groups, &measured, &mut results);
        if let Some(store) = plan.store {
            store.write(&results)?;
        }
    }
    finish(experiment, &groups, &measured, &mut results);
    Ok(results)
}

/// What an earlier run has measured, if it is to be continued; its beginning and facts go into the results.
fn begin(plan: &Plan, results: &mut Results) -> Result<Vec<Measurement>> {
    let Some(store) = plan.store.filter(|_| plan.resume || plan.add) else {
        return Ok(Vec::new());
    };
    let Some((head, measured)) = store.earlier()? else {
        return Ok(Vec::new());
    };
    let same = (without_rounds(&head.command), head.seed)
        == (without_rounds(&results.command), results.seed);
    if !same && !plan.add {
        let seed = head.seed.map_or("unknown".into(), |seed| seed.to_string());
        let cause = format!("the folder has `{}`, seed {seed}", head.command);
        let error = Error::usage("cannot resume another run", cause);
        return Err(error.hint("give the same flags, or another folder with --out"));
    }
    (results.facts, results.started) = (head.facts, head.started);
    Ok(measured)
}

/// A command without what may differ between a run and its continuation.
fn without_rounds(command: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    while let Some(at) = words.iter().position(|word| *word == "--rounds") {
        words.drain(at..(at + 2).min(words.len()));
    }
    words.retain(|word| !word.starts_with("--rounds="));
    words.join(" ")
}

/// Refuses to add to what was measured of another server or with another objective.
fn check_same(before: &Facts, now: &Facts) -> Result<()> {
    for name in ["server", "objective"] {
        if let (Some(before), Some(now)) = (before.get(name), now.get(name))
            && before != now
        {
            let cause = format!("{name}: it has {before}, this is {now}");
            return Err(Error::usage("cannot add to the folder", cause));
        }
    }
    Ok(())
}

fn head(results: &Results) -> Head {
    Head {
        command: results.command.clone(),
        seed: results.seed,
        started: results.started.clone(),
        facts: results.facts.clone(),
    }
}

fn finish(
    experiment: &dyn Experiment,
    groups: &[Vec<Parameters>],
    measured: &[Measurement],
    results: &mut Results,
) {
    let mut cases: Vec<Parameters> = groups.iter().flatten().cloned().collect();
    // Of rounds that were measured with other flags, and are added to.
    for one in measured {
        if !cases.contains(&one.parameters) {
            cases.push(one.parameters.clone());
        }
    }
    results.cases = summarize(experiment, &cases, measured);
    results.claims = experiment.claims(results);
}

/// Summarizes what was measured of some cases. Samples with a flaw count only where a case has no others.
pub fn summarize(
    experiment: &dyn Experiment,
    cases: &[Parameters],
    measured: &[Measurement],
) -> Vec<Case> {
    let last = measured.iter().map(|one| one.round).max().unwrap_or(0);
    let mut samples: Vec<(Parameters, Sample)> = Vec::new();
    for round in 1..=last {
        let of_round = measured.iter().filter(|one| one.round == round);
        let mut of_round: Vec<_> = of_round
            .map(|one| (one.parameters.clone(), one.sample.clone()))
            .collect();
        experiment.compare(&mut of_round);
        samples.extend(of_round);
    }
    let case = |case: &Parameters| {
        let of_case = samples.iter().filter(|(parameters, _)| parameters == case);
        summary(case, &of_case.map(|(_, sample)| sample).collect::<Vec<_>>())
    };
    cases.iter().filter_map(case).collect()
}

fn summary(parameters: &Parameters, all: &[&Sample]) -> Option<Case> {
    let sound: Vec<&Sample> = all
        .iter()
        .copied()
        .filter(|sample| sample.flaw.is_none())
        .collect();
    let used = if sound.is_empty() { all } else { &sound };
    let first = used.first()?;
    let mut names: Vec<&String> = used
        .iter()
        .flat_map(|sample| sample.metrics.keys())
        .collect();
    names.sort();
    names.dedup();
    let spread = |name: &String| {
        let values = used
            .iter()
            .filter_map(|sample| sample.metrics.get(name).copied());
        Some((name.clone(), Spread::of(values)?))
    };
    Some(Case {
        parameters: parameters.clone(),
        rounds: all.len(),
        flawed: all.len() - sound.len(),
        flaw: all.iter().find_map(|sample| sample.flaw.clone()),
        metrics: names.into_iter().filter_map(spread).collect(),
        series: first.series.clone(),
        notes: all.iter().flat_map(|sample| sample.notes.clone()).collect(),
    })
}

/// A case's parameters in one line.
pub fn label(case: &Parameters) -> String {
    let words = case.iter().map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(" ")
}

/// How long it takes still, from how long it has taken.
struct Clock {
    begun: Instant,
    done: usize,
    all: usize,
}

impl Clock {
    fn new(all: usize) -> Clock {
        Clock {
            begun: Instant::now(),
            done: 0,
            all,
        }
    }

    fn tick(&mut self, round: usize, rounds: usize) -> String {
        self.done += 1;
        let each = self.begun.elapsed() / self.done as u32;
        let left = each * (self.all - self.done) as u32;
        format!(
            "round {round}/{rounds}, {}/{}, {} left",
            self.done,
            self.all,
            short(left)
        )
    }
}

fn short(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

/// Those that did not hold.
pub fn not_held(results: &Results) -> impl Iterator<Item = &Claim> {
    let claims = results.claims.iter();
    claims.filter(|claim| claim.verdict == super::results::Verdict::NotHeld)
}

/// Runs an experiment with its own rounds and seed, and keeps nothing.
pub fn once(experiment: &mut dyn Experiment) -> Result<Results> {
    let plan = Plan {
        rounds: experiment.rounds(),
        add: false,
        resume: false,
        seed: experiment.seed(),
        store: None,
        frame: Results {
            show: experiment.show(),
            ..Results::default()
        },
    };
    run(experiment, &plan, &mut |_, _, _| {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_may_be_continued_with_other_rounds_than_its_recipe_has() {
        let commands = ["a --rounds 7 -x --rounds 2", "a -x --rounds=3", "a -x"];
        assert_eq!(commands.map(without_rounds), ["a -x"; 3].map(String::from));
    }
}
