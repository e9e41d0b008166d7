//! What an experiment is.

use clap::{ArgMatches, FromArgMatches};

use super::results::{Claim, Facts, Parameters, Results, Sample, Show};
use crate::error::{Error, Result};

/// An experiment with its flags set. The scheduler decides when which case is measured, and keeps what comes of it.
pub trait Experiment {
    /// The cases, from the flags alone. Those of one group are compared with each other, so they are measured one right
    /// after the other.
    fn groups(&self) -> Vec<Vec<Parameters>>;

    /// What the case is measured on, if not all are measured on the same: the rounds of one come before those of the next,
    /// in the order of the groups, because only one of them exists at a time.
    fn bed(&self, _case: &Parameters) -> String {
        String::new()
    }

    /// Builds what stays the same from case to case. What it finds out (a peak, a rate) it writes into the facts; after
    /// a stop the facts are there already, and count.
    fn open(&mut self, facts: &mut Facts) -> Result<()>;

    /// Measures one case once.
    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample>;

    /// Adds the metrics that compare cases of one round, which holds those measured so far.
    fn compare(&self, _round: &mut [(Parameters, Sample)]) {}

    /// What is claimed of the results.
    fn claims(&self, _results: &Results) -> Vec<Claim> {
        Vec::new()
    }

    /// The table's columns and the pictures.
    fn show(&self) -> Show;

    /// Rounds, if `--rounds` does not say.
    fn rounds(&self) -> usize {
        1
    }

    /// The seed, if `--seed` does not say.
    fn seed(&self) -> u64 {
        1
    }
}

/// Which measurement of a case it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// From 1.
    pub round: usize,
    /// Seed of everything random in it: the run's, and another in each round.
    pub seed: u64,
}

/// Flags of an experiment, which the command line fills in.
pub trait Flags: clap::Args + FromArgMatches + Sized {
    /// Checks them, before anything is built.
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>>;
}

/// The program under test.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// weir, if not the one that [`crate::program::find`] finds.
    pub weir: Option<std::path::PathBuf>,
}

impl Program {
    /// Its path, if one was given.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.weir.as_deref()
    }
}

/// A line of the registry: a question and the flags that answer it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name on the command line and in results.
    pub id: &'static str,
    /// What it asks, in one sentence.
    pub question: &'static str,
    /// Paper and figure, or the issue that asks.
    pub source: &'static str,
    /// Flags of the run whose results are in `experiments/`.
    pub full: &'static str,
    /// Flags of a run of a few seconds, which shows that it works and no figure.
    pub quick: &'static str,
    /// Command whose flags these are: its own, or that of the experiment which it sets otherwise.
    pub command: &'static str,
    is_test: bool,
    augment: fn(clap::Command) -> clap::Command,
    build: fn(&ArgMatches, &Program) -> Result<Box<dyn Experiment>>,
}

impl Entry {
    /// An experiment with flags of its own.
    pub const fn new<F: Flags>(id: &'static str, question: &'static str) -> Entry {
        Entry {
            id,
            question,
            source: "",
            full: "",
            quick: "",
            command: id,
            is_test: false,
            augment: F::augment_args,
            build: build::<F>,
        }
    }

    /// The same experiment with other flags.
    pub const fn preset(self, id: &'static str, question: &'static str) -> Entry {
        Entry {
            id,
            question,
            ..self
        }
    }

    /// From where the question is.
    pub const fn source(self, source: &'static str) -> Entry {
        Entry { source, ..self }
    }

    /// Flags of the full run and of the quick one.
    pub const fn flags(self, full: &'static str, quick: &'static str) -> Entry {
        Entry {
            full,
            quick,
            ..self
        }
    }

    /// A claim that is not held is a failure of the command.
    pub const fn test(self) -> Entry {
        Entry {
            is_test: true,
            ..self
        }
    }

    /// Whether a claim that is not held is a failure of the command.
    pub fn is_a_test(&self) -> bool {
        self.is_test
    }

    /// Whether it has a subcommand of its own.
    pub fn has_command(&self) -> bool {
        self.id == self.command
    }

    /// Adds its flags to a command.
    pub fn augment(&self, command: clap::Command) -> clap::Command {
        (self.augment)(command)
    }

    /// The experiment with flags as they were parsed.
    pub fn build(&self, matches: &ArgMatches, program: &Program) -> Result<Box<dyn Experiment>> {
        (self.build)(matches, program)
    }

    /// The subcommand whose flags these are.
    pub fn subcommand(&self) -> String {
        self.command.replacen("vtfm01-", "vtfm01 ", 1)
    }

    /// The command of the full run.
    pub fn recipe(&self) -> String {
        let command = format!("weir-lab {} {}", self.subcommand(), self.full);
        command.trim_end().to_owned()
    }
}

fn build<F: Flags>(matches: &ArgMatches, program: &Program) -> Result<Box<dyn Experiment>> {
    let flags = F::from_arg_matches(matches);
    let flags = flags.map_err(|cause| Error::usage("bad flags", cause.to_string()))?;
    flags.experiment(program)
}

/// A figure that is measured once for several cases of a round, and again when the key changes.
#[derive(Debug)]
pub struct Beside<K, V> {
    last: Option<(K, V)>,
}

impl<K, V> Default for Beside<K, V> {
    fn default() -> Self {
        Beside { last: None }
    }
}

impl<K: PartialEq, V: Clone> Beside<K, V> {
    /// The figure of this key.
    pub fn get(&mut self, key: K, measure: impl FnOnce() -> Result<V>) -> Result<V> {
        if let Some((_, value)) = self.last.as_ref().filter(|(last, _)| *last == key) {
            return Ok(value.clone());
        }
        let value = measure()?;
        self.last = Some((key, value.clone()));
        Ok(value)
    }
}

/// A parameter's value.
pub fn parsed<T: std::str::FromStr>(case: &Parameters, name: &str) -> Result<T> {
    let text = case.get(name).map_or("", String::as_str);
    text.parse().map_err(|_| unknown(name, text))
}

/// A parameter's value, of those that the command line lets one choose.
pub fn chosen<T: clap::ValueEnum>(case: &Parameters, name: &str) -> Result<T> {
    let text = case.get(name).map_or("", String::as_str);
    T::from_str(text, false).map_err(|_| unknown(name, text))
}

fn unknown(name: &str, text: &str) -> Error {
    Error::usage(
        format!("bad parameter {name}"),
        format!("`{text}` is not a value of it"),
    )
}

/// The word of the command line for a value.
pub fn word<T: clap::ValueEnum>(value: &T) -> String {
    let word = value.to_possible_value();
    word.map_or(String::new(), |word| word.get_name().to_owned())
}

/// Refuses a number that is not above 0, or above an hour.
pub fn check_seconds(flag: &str, value: f64) -> Result<()> {
    match value > 0.0 && value <= 3600.0 {
        true => Ok(()),
        false => Err(Error::usage(
            format!("bad {flag} {value}"),
            "it must be above 0 and at most 3600 s",
        )),
    }
}
