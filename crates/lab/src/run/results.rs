//! What a run leaves: one format for all experiments. Tables and pictures are made from it alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::statistics::Spread;

/// A case's parameters by name; values as the command line writes them.
pub type Parameters = BTreeMap<String, String>;

/// Parameters from pairs.
pub fn parameters<const N: usize>(pairs: [(&str, String); N]) -> Parameters {
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

/// A run of an experiment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's id.
    pub experiment: String,
    /// What it asks.
    pub question: String,
    /// Where in the papers the question is from.
    pub source: String,
    /// The command that repeats it.
    pub command: String,
    /// Seed of the order and of everything random in a case; `None` if it was not kept.
    pub seed: Option<u64>,
    /// Where it ran.
    pub machine: Machine,
    /// Commit of the program, if it was built in a repository.
    pub commit: Option<String>,
    /// When it began, UTC: a time, or a date only; `None` if it was not kept.
    pub started: Option<String>,
    /// What a reader of the figures must know of how they were made.
    #[serde(default)]
    pub note: Option<String>,
    /// What was found before the first case: the server, the load, its saturation.
    pub facts: Facts,
    /// What the experiment claims, and whether it held.
    pub claims: Vec<Claim>,
    /// How people read it.
    pub show: Show,
    /// In the experiment's order, not that of measuring.
    pub cases: Vec<Case>,
}

/// Facts by name.
pub type Facts = BTreeMap<String, Value>;

/// The machine of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub cpu: String,
    /// Kernel release without its build.
    pub kernel: String,
    /// Processors.
    pub cores: usize,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linux {}, {} × {}", self.kernel, self.cores, self.cpu)
    }
}

/// One case with all its rounds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Case {
    /// Which.
    pub parameters: Parameters,
    /// Rounds measured.
    pub rounds: usize,
    /// Rounds of them that do not count. They are in the metrics only if there are no others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flawed: usize,
    /// Why the first of those does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    /// By name; the unit is in the name.
    pub metrics: BTreeMap<String, Spread>,
    /// Courses over time or order, of the first round that counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
    /// What else was seen, of all rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// One measurement of a case in one round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// By name; the unit is in the name.
    pub metrics: BTreeMap<String, f64>,
    /// Courses over time or order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
    /// What else was seen, and belongs in the summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    /// What only the raw rounds keep.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

impl Sample {
    /// With these metrics.
    pub fn of<const N: usize>(metrics: [(&str, f64); N]) -> Sample {
        let mut sample = Sample::default();
        sample.add(metrics);
        sample
    }

    /// Adds metrics.
    pub fn add<const N: usize>(&mut self, metrics: [(&str, f64); N]) {
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
        self.metrics.extend(metrics);
    }

    /// A metric; NaN if it was not measured.
    pub fn get(&self, metric: &str) -> f64 {
        self.metrics.get(metric).copied().unwrap_or(f64::NAN)
    }
}

/// What is claimed of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// What is claimed.
    pub claim: String,
    /// Of which case.
    pub parameters: Parameters,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Spread>,
    /// What the code decided.
    pub verdict: Verdict,
    /// Why it was not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// Whether a claim held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It did.
    Held,
    /// It did not.
    NotHeld,
    /// It was not measured, or of no case that counts.
    NotJudged,
}

impl Claim {
    /// Judges the median of a metric of a case; not judged if the case has no such metric or does not count.
    pub fn about(
        claim: &str,
        case: &Case,
        metric: &str,
        holds: impl FnOnce(Spread) -> bool,
    ) -> Claim {
        let value = case.metrics.get(metric).copied();
        let because = match value {
            None => Some(format!("{metric} was not measured")),
            Some(_) => case.flaw.clone().filter(|_| case.flawed == case.rounds),
        };
        let verdict = match (value, &because) {
            (Some(value), None) if holds(value) => Verdict::Held,
            (Some(_), None) => Verdict::NotHeld,
            _ => Verdict::NotJudged,
        };
        Claim {
            claim: claim.to_owned(),
            parameters: case.parameters.clone(),
            value,
            verdict,
            because,
        }
    }
}

/// How people read results: columns of the table and pictures, all by names of parameters and metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Show {
    /// Head and template (see [`crate::show::template`]) of each column.
    pub columns: Vec<(String, String)>,
    /// Pictures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<Picture>,
}

impl Show {
    /// With these columns.
    pub fn columns(columns: &[(&str, &str)]) -> Show {
        let owned = |(head, cell): &(&str, &str)| ((*head).to_owned(), (*cell).to_owned());
        Show {
            columns: columns.iter().map(owned).collect(),
            pictures: Vec::new(),
        }
    }

    /// With one picture more.
    pub fn picture(mut self, picture: Picture) -> Show {
        self.pictures.push(picture);
        self
    }
}

/// A picture of lines in panels.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// File name without its ending.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// At most two, or with `per` three, in a row.
    pub panels: Vec<Panel>,
}

/// A panel, or one for each value of `per`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What the vertical axis is; a template over the panel's first case.
    pub title: String,
    /// What the horizontal axis is.
    pub x_title: String,
    /// Parameter or metric along the horizontal axis; a series' name with `is_course`.
    pub x: String,
    /// Metrics along the vertical axis, each with the name of its line: empty for the values of `lines`.
    pub y: Vec<(String, String)>,
    /// Parameters by which cases belong to different lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Parameters by which cases belong to different panels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per: Vec<String>,
    /// Parameters of the cases that are in it.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub only: Parameters,
    /// Horizontal dashed lines with a word each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<(f64, String)>,
    /// The vertical axis is logarithmic.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logarithmic: bool,
    /// `x` and `y` are series: one line a case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_course: bool,
    /// Points that no line joins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dots: bool,
}

impl Case {
    /// A parameter; empty without it.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// Whether it has all these parameters.
    pub fn is(&self, wanted: &Parameters) -> bool {
        has(&self.parameters, wanted)
    }

    /// The median of a metric; NaN if it was not measured.
    pub fn median(&self, metric: &str) -> f64 {
        self.metrics
            .get(metric)
            .map_or(f64::NAN, |spread| spread.median)
    }
}

/// Whether all of `wanted` are among the parameters.
pub fn has(parameters: &Parameters, wanted: &Parameters) -> bool {
    let mut wanted = wanted.iter();
    wanted.all(|(name, value)| parameters.get(name) == Some(value))
}

impl Results {
    /// The first case with these parameters.
    pub fn find<const N: usize>(&self, wanted: [(&str, &str); N]) -> Option<&Case> {
        let wanted = parameters(wanted.map(|(name, value)| (name, value.to_owned())));
        self.cases.iter().find(|case| case.is(&wanted))
    }

    /// The case with these parameters.
    ///
    /// # Panics
    /// If it was not measured.
    pub fn case<const N: usize>(&self, wanted: [(&str, &str); N]) -> &Case {
        let case = self.find(wanted);
        case.unwrap_or_else(|| panic!("{wanted:?} was not measured: {self:#?}"))
    }

    /// A number among the facts.
    pub fn fact(&self, name: &str) -> Option<f64> {
        self.facts.get(name).and_then(Value::as_f64)
    }
}

/// Adds a distribution of times, measured in µs, in ms: `NAME_mean_ms`, `NAME_p50_ms` and so on. Nothing of none.
pub fn add_times(sample: &mut Sample, name: &str, histogram: &hdrhistogram::Histogram<u64>) {
    if histogram.is_empty() {
        return;
    }
    let ms = |us: u64| us as f64 / 1e3;
    let quantiles = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
    let times = quantiles.map(|(of, share)| (of, ms(histogram.value_at_quantile(share))));
    for (of, value) in times.into_iter().chain([("mean", histogram.mean() / 1e3)]) {
        sample.metrics.insert(format!("{name}_{of}_ms"), value);
    }
}
