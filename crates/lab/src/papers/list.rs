//! `experiments/papers/*.toml`: every table and figure of the papers, what each says, and what answers it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::verdict::{Limits, Range};
use crate::error::{Error, Result};
use crate::run::results::{Parameters, Picture};

/// The committed list; the program carries it, so that it can be run from anywhere.
/// Of `experiments/papers`.
const TEXT: &str = concat!(
    include_str!("../../../../experiments/papers/runs.toml"),
    include_str!("../../../../experiments/papers/sb06.toml"),
    include_str!("../../../../experiments/papers/bhd18.toml"),
    include_str!("../../../../experiments/papers/rr02.toml"),
    include_str!("../../../../experiments/papers/fty99.toml"),
    include_str!("../../../../experiments/papers/vtfm01.toml"),
);

/// All of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The papers, in the order of the report.
    #[serde(rename = "paper")]
    pub papers: Vec<Paper>,
    /// How long a case of an experiment takes, by the experiment's command.
    #[serde(rename = "cost")]
    pub costs: BTreeMap<String, Cost>,
    /// What is measured, by its name: several parts may share a run.
    #[serde(rename = "run")]
    pub runs: BTreeMap<String, Run>,
    /// Tables and figures, in the order of the papers.
    #[serde(rename = "part")]
    pub parts: Vec<Part>,
}

/// A paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its name in weir's pages, as in `SB06`.
    pub key: String,
    /// Authors and title.
    pub title: String,
    /// What it is about, in a sentence.
    pub about: String,
    /// Confidence of its intervals, 0 to 1.
    pub confidence: f64,
    /// Where that confidence is from: the paper, or weir where the paper names none.
    pub confidence_from: String,
}

/// What a case takes, s.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Before the first case: namespaces, servers, the search for a peak.
    #[serde(default)]
    pub open_s: f64,
    /// Each case, besides its windows.
    #[serde(default)]
    pub each_s: f64,
    /// Windows of `--seconds` and `--warm-up` for a case; below 1 if several cases share one, or if time is simulated.
    pub windows: f64,
    /// How much of `--timeout` a case waits for its last clients, on average over the cases.
    #[serde(default)]
    pub timeouts: f64,
}

/// An experiment with its flags.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Its id in the registry.
    pub experiment: String,
    /// Flags of the quick run.
    pub quick: String,
    /// Flags of the full run.
    pub full: String,
    /// Committed results of this experiment, from `experiments/`; they may have fewer cases.
    #[serde(default)]
    pub stored: Option<String>,
    /// What the estimate cannot know from the flags, s in all: quick, full.
    #[serde(default)]
    pub more_s: (f64, f64),
}

/// A table or a figure of a paper.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name on the command line, as in `sb06-fig3`.
    pub key: String,
    /// The paper's key.
    pub paper: String,
    /// Its name in the paper.
    pub part: String,
    /// What the paper says, in a sentence of this project.
    pub says: String,
    /// Runs that answer it; figures that name none are of the first.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Why no experiment answers it.
    #[serde(default)]
    pub not_reproduced: Option<String>,
    /// Why it has no result to compare: it is a diagram, or describes the set-up.
    #[serde(default)]
    pub nothing_to_compare: Option<String>,
    /// What is known of the causes of a difference.
    #[serde(default)]
    pub why: Option<String>,
    /// Page of the repository that has more.
    #[serde(default)]
    pub see: Option<String>,
    /// Cases in its table; values may be several, parted by `|`.
    #[serde(default)]
    pub only: Parameters,
    /// Heads and templates of its table, if not the experiment's.
    #[serde(default)]
    pub columns: Vec<(String, String)>,
    /// Its pictures, if not the experiment's.
    #[serde(default)]
    pub pictures: Vec<Picture>,
    /// The numbers that are compared.
    #[serde(default, rename = "figure")]
    pub figures: Vec<Figure>,
}

/// A number of the paper, and what it is here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What it is.
    pub what: String,
    /// The paper's number.
    pub paper: String,
    /// Reference to what was measured (see [`crate::show::template`]), and behind `|` the format of the number.
    pub ours: String,
    /// The run that it is of, if not the part's first.
    #[serde(default)]
    pub run: Option<String>,
    /// From when to when it holds.
    pub holds: Range,
    /// From when to when the direction is there.
    #[serde(default)]
    pub weaker: Option<Range>,
}

impl Figure {
    /// The reference and the format.
    pub fn reference(&self) -> (&str, &str) {
        self.ours.split_once('|').unwrap_or((&self.ours, "g3"))
    }

    /// The limits of its verdict.
    pub fn limits(&self) -> Limits {
        Limits {
            holds: self.holds,
            weaker: self.weaker,
        }
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Half an hour at most.
    Quick,
    /// As long as figures for a paper need.
    Full,
}

impl Scale {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Quick => "quick",
            Scale::Full => "full",
        }
    }
}

impl Run {
    /// The flags.
    pub fn flags(&self, scale: Scale) -> &str {
        match scale {
            Scale::Quick => &self.quick,
            Scale::Full => &self.full,
        }
    }
}

impl Part {
    /// The run of a figure; none of a part without runs.
    pub fn run_of<'a>(&'a self, figure: &'a Figure) -> Option<&'a str> {
        let first = self.runs.first();
        figure.run.as_deref().or(first.map(String::as_str))
    }
}

impl List {
    /// The committed one.
    pub fn committed() -> Result<List> {
        toml::from_str(TEXT).map_err(|cause| Error::failed("cannot read experiments/papers", cause))
    }

    /// The paper of a part.
    pub fn paper(&self, part: &Part) -> Result<&Paper> {
        let found = self.papers.iter().find(|paper| paper.key == part.paper);
        found.ok_or_else(|| Error::failed(format!("no paper `{}`", part.paper), &part.key))
    }

    /// Keeps papers and parts with these names, whatever the case of their letters; all, if there are none.
    pub fn keep_only(&mut self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let is = |key: &str, name: &str| key.eq_ignore_ascii_case(name.trim());
        for name in names {
            let papers = self.papers.iter().map(|paper| &paper.key);
            let mut keys = papers.chain(self.parts.iter().map(|part| &part.key));
            if !keys.any(|key| is(key, name)) {
                let cause = "neither a paper nor a part has this name";
                let hint = "`weir-lab papers --list` shows the names";
                return Err(Error::usage(format!("bad --only {name}"), cause).hint(hint));
            }
        }
        let mut wanted = |part: &Part| {
            let mut names = names.iter();
            names.any(|name| is(&part.key, name) || is(&part.paper, name))
        };
        self.parts.retain(&mut wanted);
        let parts = &self.parts;
        self.papers
            .retain(|paper| parts.iter().any(|part| part.paper == paper.key));
        Ok(())
    }

    /// The names of the runs that the parts need, each once, in their order.
    pub fn needed(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.parts.iter().flat_map(|part| &part.runs) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// A run.
    pub fn run(&self, name: &str) -> Result<&Run> {
        let found = self.runs.get(name);
        found.ok_or_else(|| {
            Error::failed(format!("no run `{name}`"), "experiments/papers/runs.toml")
        })
    }
}
