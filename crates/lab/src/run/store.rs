//! The folder of a run: `results.json`, the summary that may be committed, and `rounds.jsonl`, every measurement.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::results::{Facts, Parameters, Results, Sample};
use super::statistics::STATISTICS;
use crate::error::{Context, Error, Result};

/// A measurement as it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Number of the round, from 1.
    pub round: usize,
    /// The case.
    pub parameters: Parameters,
    /// What was measured.
    #[serde(flatten)]
    pub sample: Sample,
}

/// First line of `rounds.jsonl`: what the measurements below it belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The command.
    pub command: String,
    /// The seed.
    pub seed: Option<u64>,
    /// When it began.
    pub started: Option<String>,
    /// What was found before the first case.
    pub facts: Facts,
}

/// The folder.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// In a folder, which is created.
    pub fn at(folder: &Path) -> Result<Store> {
        let what = || format!("cannot create folder {}", folder.display());
        std::fs::create_dir_all(folder).context(what())?;
        Ok(Store {
            folder: folder.to_owned(),
        })
    }

    fn rounds(&self) -> PathBuf {
        self.folder.join("rounds.jsonl")
    }

    /// What an earlier run has measured; `None` without one. A line that a stop cut short is left out.
    pub fn earlier(&self) -> Result<Option<(Head, Vec<Measurement>)>> {
        let path = self.rounds();
        if !path.exists() {
            return Ok(None);
        }
        let what = || format!("cannot resume from {}", path.display());
        let text = std::fs::read_to_string(&path).context(what())?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let Some(first) = lines.next() else {
            return Ok(None);
        };
        let head = serde_json::from_str(first).context(what())?;
        let measured = lines
            .map(serde_json::from_str)
            .collect::<serde_json::Result<_>>();
        Ok(Some((head, measured.context(what())?)))
    }

    /// Begins `rounds.jsonl` anew with these measurements.
    pub fn begin(&self, head: &Head, measured: &[Measurement]) -> Result<()> {
        let mut text = line(head)?;
        for one in measured {
            text += &line(one)?;
        }
        write_whole(&self.rounds(), &text)
    }

    /// Adds a measurement to `rounds.jsonl`.
    pub fn add(&self, measurement: &Measurement) -> Result<()> {
        let path = self.rounds();
        let what = || format!("cannot add to {}", path.display());
        let mut file = OpenOptions::new()
            .append(true)
            .open(&path)
            .context(what())?;
        file.write_all(line(measurement)?.as_bytes())
            .context(what())
    }

    /// Writes `results.json`.
    pub fn write(&self, results: &Results) -> Result<()> {
        write_whole(&self.folder.join("results.json"), &to_text(results)?)
    }
}

fn line(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).context("cannot write JSON")?;
    Ok(json + "\n")
}

/// Writes a file so that a reader finds the old one or the new one, whole.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let new = path.with_extension("new");
    std::fs::write(&new, text).context(what())?;
    std::fs::rename(&new, path).context(what())
}

/// Reads a results file.
pub fn read(path: &Path) -> Result<Results> {
    let what = || format!("cannot read the results of {}", path.display());
    let text = std::fs::read_to_string(path).context(what())?;
    serde_json::from_str(&text).map_err(|cause| {
        Error::failed(what(), cause).hint("it must be a results.json that `weir-lab run` wrote")
    })
}

/// JSON with a line for each metric, claim and fact: differences are read line by line, and a file is not mostly
/// spaces.
pub fn to_text(results: &Results) -> Result<String> {
    let value = short(serde_json::to_value(results).context("cannot write JSON")?);
    // The order of the fields is the declaration's; serde_json's map has its own.
    let order: Vec<&str> = FIELDS.to_vec();
    let mut text = String::from("{\n");
    for (index, field) in order.iter().enumerate() {
        if *field == "cases" {
            let statistics = serde_json::json!(STATISTICS);
            text += &format!("  \"statistics\": {statistics},\n");
        }
        let comma = if index + 1 < order.len() { "," } else { "" };
        text += &format!("  \"{field}\": {}{comma}\n", lines(&value[*field], 1));
    }
    Ok(text + "}\n")
}

/// Fields of [`Results`], in order.
const FIELDS: [&str; 13] = [
    "experiment",
    "question",
    "source",
    "command",
    "seed",
    "machine",
    "commit",
    "started",
    "note",
    "facts",
    "claims",
    "show",
    "cases",
];
/// Whole numbers without `.0`.
fn short(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(whole) if whole == whole.trunc() && whole.abs() < 1e15 => (whole as i64).into(),
            _ => number.into(),
        },
        Value::Array(items) => items.into_iter().map(short).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields.map(|(name, value)| (name, short(value))).collect()
        }
        other => other,
    }
}

/// What is short stands on one line.
const LINE: usize = 170;

fn lines(value: &serde_json::Value, depth: usize) -> String {
    let short = value.to_string();
    if short.len() <= LINE {
        return short;
    }
    let indent = "  ".repeat(depth + 1);
    let end = "  ".repeat(depth);
    let join = |items: Vec<String>| items.join(&format!(",\n{indent}"));
    match value {
        // Numbers of a course stay together.
        serde_json::Value::Array(items) if items.iter().all(serde_json::Value::is_number) => short,
        serde_json::Value::Array(items) => {
            let items = items.iter().map(|item| lines(item, depth + 1)).collect();
            format!("[\n{indent}{}\n{end}]", join(items))
        }
        serde_json::Value::Object(fields) => {
            let field = |(name, value): (&String, &serde_json::Value)| {
                format!("\"{name}\": {}", lines(value, depth + 1))
            };
            format!(
                "{{\n{indent}{}\n{end}}}",
                join(fields.iter().map(field).collect())
            )
        }
        _ => short,
    }
}
