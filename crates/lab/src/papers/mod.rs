//! `weir-lab papers`: does what the five papers report hold on this kernel?
//!
//! [`list`] has every table and figure of the papers, from `experiments/papers.toml`: what the paper says, the experiment
//! that answers it, the numbers to compare, and the limits that decide the verdict. [`measured`] runs the experiments, each
//! once however many parts it answers; their cases, rounds and resumption are those of [`crate::run`]. [`judge`] holds the
//! numbers to the limits, [`page`] and [`terminal`] show what came of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::RunFlags;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::show;
use judge::{JudgedPart, Verdict};
use list::{List, Scale};
use measured::{Outcome, Outcomes};

pub mod html;
pub mod judge;
pub mod list;
pub mod measured;
pub mod page;
pub mod terminal;

/// Arguments of `weir-lab papers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Only these papers and parts, separated by commas, as --list names them: SB06,rr02-fig5
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Few rounds of short windows, 25 minutes in all on two cores (this is the default)
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The papers' points, with rounds enough for intervals; this takes hours
    #[arg(long)]
    pub full: bool,
    /// Measure nothing: a report of the results that are stored in this folder [default of DIR: experiments]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "experiments", conflicts_with_all = ["quick", "full", "resume"])]
    pub stored: Option<PathBuf>,
    /// Go on after a stop: what is measured already is kept
    #[arg(long)]
    pub resume: bool,
    /// Folder for the report, index.html [default: OUT/report]
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Folder for what is measured
    #[arg(long, default_value = "out/papers", value_name = "DIR")]
    pub out: PathBuf,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Only list the parts, what answers each, and how long that takes
    #[arg(long)]
    pub list: bool,
    /// Print the verdicts as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

impl Args {
    fn scale(&self) -> Scale {
        match self.full {
            true => Scale::Full,
            false => Scale::Quick,
        }
    }

    fn report(&self) -> PathBuf {
        let report = self.report.clone();
        report.unwrap_or_else(|| self.out.join("report"))
    }

    fn kind(&self) -> &'static str {
        match self.stored {
            Some(_) => "stored",
            None => self.scale().name(),
        }
    }
}

/// All that a report is made of.
#[derive(Debug)]
pub struct Report {
    /// `quick`, `full` or `stored`.
    pub kind: &'static str,
    /// The papers and parts.
    pub list: List,
    /// What came of the runs.
    pub outcomes: Outcomes,
    /// The parts with their verdicts, in the order of the list.
    pub parts: Vec<JudgedPart>,
}

impl Report {
    /// Judges.
    pub fn of(kind: &'static str, list: List, outcomes: Outcomes) -> Result<Report> {
        Ok(Report {
            kind,
            parts: judge::judge(&list, &outcomes)?,
            list,
            outcomes,
        })
    }

    /// How many parts have each verdict, those that none has left out.
    pub fn counts(&self) -> Vec<(Verdict, usize)> {
        let count = |verdict| {
            self.parts
                .iter()
                .filter(|part| part.verdict == verdict)
                .count()
        };
        let counts = Verdict::ALL
            .into_iter()
            .map(|verdict| (verdict, count(verdict)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// `weir-lab papers`.
pub fn run(args: &Args) -> Result<()> {
    let mut list = List::committed()?;
    list.keep_only(&args.only)?;
    if args.list {
        let text = match args.json {
            true => terminal::list_as_json(&list)?,
            false => terminal::list(&list)?,
        };
        show::print(&text);
        return Ok(());
    }
    let outcomes = match &args.stored {
        Some(folder) => stored(&list, folder)?,
        None => measure(&list, args)?,
    };
    let report = Report::of(args.kind(), list, outcomes)?;
    let page = write(&report, &args.report())?;
    show::print(&match args.json {
        true => terminal::as_json(&report)?,
        false => terminal::summary(&report),
    });
    eprintln!("weir-lab: wrote {}", page.display());
    end(&report)
}

fn write(report: &Report, folder: &Path) -> Result<PathBuf> {
    let what = || format!("cannot create folder {}", folder.display());
    std::fs::create_dir_all(folder).context(what())?;
    let path = folder.join("index.html");
    let what = || format!("cannot write {}", path.display());
    std::fs::write(&path, page::of(report)?).context(what())?;
    Ok(path)
}

/// A stop and failed experiments are errors of the command; verdicts are not.
fn end(report: &Report) -> Result<()> {
    if interrupt::interrupted() {
        let hint = "the same command with --resume goes on";
        return Err(Error::interrupted().hint(hint));
    }
    let failed = report.outcomes.iter();
    let failed = failed.filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let names: Vec<&str> = failed.map(|(name, _)| name.as_str()).collect();
    match names.len() {
        0 => Ok(()),
        count => Err(
            Error::failed(format!("{count} experiments failed"), names.join(", "))
                .hint("the report has their errors; --resume tries them again"),
        ),
    }
}

fn stored(list: &List, folder: &Path) -> Result<Outcomes> {
    if !folder.is_dir() {
        let what = format!("cannot read the stored results in {}", folder.display());
        let hint = "run it in weir's sources, or give their folder: --stored WEIR/experiments";
        return Err(Error::usage(what, "there is no such folder").hint(hint));
    }
    let of = |name: &str| Ok((name.to_owned(), measured::stored(list.run(name)?, folder)));
    list.needed().into_iter().map(of).collect()
}

/// Measures all runs that the parts need, one after the other. After a stop those that are left have no results.
fn measure(list: &List, args: &Args) -> Result<Outcomes> {
    let scale = args.scale();
    let flags = RunFlags {
        resume: args.resume,
        weir: args.weir.clone(),
        ..RunFlags::default()
    };
    let names = list.needed();
    let mut clock = Clock::new(list, &names, scale)?;
    eprintln!(
        "weir-lab: papers: {} runs for {} parts, about {} on two cores",
        names.len(),
        list.parts.len(),
        in_words(clock.left())
    );
    let mut outcomes = Outcomes::new();
    for (index, name) in names.iter().enumerate() {
        if interrupt::interrupted() {
            let why = "it was stopped; --resume goes on";
            outcomes.insert((*name).to_owned(), Outcome::NotMeasured(why.into()));
            continue;
        }
        eprintln!(
            "\nweir-lab: papers {}/{}: {name}, for {}; about {}, {} left in all",
            index + 1,
            names.len(),
            parts_of(list, name),
            in_words(clock.of(index)),
            in_words(clock.left())
        );
        let begun = Instant::now();
        let folder = args.out.join(scale.name()).join(name);
        let outcome = measured::measure(list.run(name)?, scale, &folder, &flags);
        if let Outcome::Failed(why) | Outcome::NotPossible(why) = &outcome {
            eprintln!("weir-lab: papers: {name}: {why}");
        }
        clock.done(index, begun.elapsed());
        outcomes.insert((*name).to_owned(), outcome);
    }
    Ok(outcomes)
}

/// The parts that a run answers.
fn parts_of(list: &List, run: &str) -> String {
    let parts = list.parts.iter();
    let parts = parts.filter(|part| part.runs.iter().any(|name| name == run));
    let keys: Vec<&str> = parts.map(|part| part.key.as_str()).collect();
    keys.join(", ")
}

/// How long it takes still: the estimates of what is left, times how much longer than estimated what is done took.
struct Clock {
    estimates: Vec<f64>,
    /// Estimated and taken of what is done, s.
    done: (f64, f64),
    next: usize,
}

/// A machine that is faster or slower than this is not believed: a resumed run takes no time.
const FACTORS: (f64, f64) = (0.5, 4.0);

impl Clock {
    fn new(list: &List, names: &[&str], scale: Scale) -> Result<Clock> {
        let estimate = |name: &&str| measured::estimate_s(list, list.run(name)?, scale);
        Ok(Clock {
            estimates: names.iter().map(estimate).collect::<Result<_>>()?,
            done: (0.0, 0.0),
            next: 0,
        })
    }

    fn factor(&self) -> f64 {
        match self.done {
            (estimated, taken) if estimated > 0.0 => {
                (taken / estimated).clamp(FACTORS.0, FACTORS.1)
            }
            _ => 1.0,
        }
    }

    fn of(&self, index: usize) -> Duration {
        Duration::from_secs_f64(self.estimates[index] * self.factor())
    }

    fn left(&self) -> Duration {
        let left: f64 = self.estimates[self.next..].iter().sum();
        Duration::from_secs_f64(left * self.factor())
    }

    fn done(&mut self, index: usize, taken: Duration) {
        self.done.0 += self.estimates[index];
        self.done.1 += taken.as_secs_f64();
        self.next = index + 1;
    }
}

/// Minutes, or seconds of less than two minutes, or hours of more than two.
pub fn in_words(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s.div_ceil(60)),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests;
