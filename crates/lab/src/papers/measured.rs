//! What came of each run: results and their single rounds, or why there are none.

use std::collections::BTreeMap;
use std::path::Path;

use super::list::{List, Run, Scale};
use crate::cli::{self, RunFlags};
use crate::error::{Error, Kind, Result};
use crate::experiments;
use crate::interrupt;
use crate::run::experiment::{Experiment, Program};
use crate::run::results::Results;
use crate::run::scheduler::summarize;
use crate::run::store::{self, Measurement, Store};

/// Of all runs, by their names.
pub type Outcomes = BTreeMap<String, Outcome>;

/// What came of a run.
#[derive(Debug)]
pub enum Outcome {
    /// It was measured.
    Measured(Box<Measured>),
    /// It ended with this error.
    Failed(String),
    /// This machine lacks something.
    NotPossible(String),
    /// There are no results, for this reason.
    NotMeasured(String),
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct Measured {
    /// The summary.
    pub results: Results,
    /// Each round by itself; empty if the single rounds were not kept.
    pub rounds: Vec<Results>,
}

impl Outcome {
    /// Of an error. A missing program or a missing right is the machine's, an interruption the user's.
    fn of(error: &Error) -> Outcome {
        let mut text = error.to_string();
        if !error.hint.is_empty() {
            text += &format!(" ({})", error.hint);
        }
        let needs_root = !nix::unistd::geteuid().is_root();
        match error.kind {
            _ if interrupt::interrupted() => {
                Outcome::NotMeasured("it was stopped; --resume goes on".into())
            }
            Kind::Unsupported => Outcome::NotPossible(text),
            _ if needs_root => Outcome::NotPossible(format!("without root: {text}")),
            _ => Outcome::Failed(text),
        }
    }
}

/// Measures a run into a folder, or goes on with what the folder has.
pub fn measure(run: &Run, scale: Scale, folder: &Path, flags: &RunFlags) -> Outcome {
    let tried = std::panic::AssertUnwindSafe(|| tried(run, scale, folder, flags));
    match std::panic::catch_unwind(tried) {
        Ok(Ok(measured)) => Outcome::Measured(Box::new(measured)),
        Ok(Err(error)) => Outcome::of(&error),
        // The panic has said where; the other experiments are as good as before.
        Err(_) => Outcome::Failed("it panicked".into()),
    }
}

fn tried(run: &Run, scale: Scale, folder: &Path, flags: &RunFlags) -> Result<Measured> {
    let store = Store::at(folder)?;
    let (experiment, results) =
        cli::measure_into(&run.experiment, run.flags(scale), flags, &store)?;
    let measured = store
        .earlier()?
        .map_or(Vec::new(), |(_, measured)| measured);
    Ok(Measured {
        rounds: rounds(experiment.as_ref(), &results, &measured),
        results,
    })
}

/// Results of each round by itself.
fn rounds(
    experiment: &dyn Experiment,
    results: &Results,
    measured: &[Measurement],
) -> Vec<Results> {
    let cases: Vec<_> = results
        .cases
        .iter()
        .map(|case| case.parameters.clone())
        .collect();
    let last = measured.iter().map(|one| one.round).max().unwrap_or(0);
    let of_round = |round| {
        let of_round = measured.iter().filter(|one| one.round == round);
        Results {
            cases: summarize(experiment, &cases, &of_round.cloned().collect::<Vec<_>>()),
            ..Results::default()
        }
    };
    (1..=last).map(of_round).collect()
}

/// Committed results, from the folder `experiments`.
pub fn stored(run: &Run, experiments: &Path) -> Outcome {
    let Some(file) = &run.stored else {
        return Outcome::NotMeasured("no results of it are stored in experiments/".into());
    };
    match store::read(&experiments.join(file)) {
        Ok(results) => Outcome::Measured(Box::new(Measured {
            results,
            rounds: Vec::new(),
        })),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// How long a run takes, s, by its flags and the costs of its experiment.
pub fn estimate_s(list: &List, run: &Run, scale: Scale) -> Result<f64> {
    let entry = experiments::find(&run.experiment)?;
    let matches = cli::parse(entry, &cli::split(run.flags(scale)))?;
    let experiment = entry.build(&matches, &Program::default())?;
    let cases: usize = experiment.groups().iter().map(Vec::len).sum();
    let flag = |name: &str| matches.try_get_one::<f64>(name).ok().flatten().copied();
    let rounds = matches.try_get_one::<usize>("rounds").ok().flatten();
    let rounds = rounds.copied().unwrap_or_else(|| experiment.rounds());
    let cost = list.costs.get(entry.command).ok_or_else(|| {
        Error::failed(
            format!("no [cost.{}]", entry.command),
            "experiments/papers/runs.toml",
        )
    })?;
    let window = flag("seconds").unwrap_or(0.0) + flag("warm_up").unwrap_or(0.0);
    let timeout = flag("timeout").unwrap_or(0.0);
    let each = cost.windows * window + cost.timeouts * timeout + cost.each_s;
    let more = match scale {
        Scale::Quick => run.more_s.0,
        Scale::Full => run.more_s.1,
    };
    Ok(cost.open_s + more + each * (cases * rounds) as f64)
}
