//! The whole life of connections at once: a site behind a slow link in an overload, with every stage of weir alone, and with
//! all of them.
//!
//! Three classes of clients ask for twice what the server can serve. Beside them come clients that half-close and clients
//! that abort, a SYN flood, and long transfers that fill the link. Each row has fresh namespaces.

mod bulk;
mod rows;
mod samples;
mod site;
mod strangers;
mod trial;

use std::time::Duration;

use self::rows::Row;
use self::samples::GOALS;
use self::site::{CAPACITY_PER_S, HELD, STRANGERS_PER_S, TRANSFERS};
use self::trial::{Pace, STEPS};
use crate::error::{Error, Result};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "whole-life",
    "What does each stage of weir alone, and what do all together, in an overload from every side?",
)
.source("beyond the papers")
.flags("--rounds 3", "--rows plain,all --step 1.5 --timeout 1")];

/// Arguments of `weir-lab whole-life`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rows: nothing, the proxy's limit of clients, each stage alone, all of them
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,max-clients,police,establish,cookies,queue,control,transfer,close,timewait,shape,all"
    )]
    pub rows: Vec<Row>,
    /// Length of a step of the load, in s: of three, the first is not counted
    #[arg(long, default_value_t = 4.0)]
    pub step: f64,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 5.0)]
    pub timeout: f64,
    /// SYNs/s of the flood, each from another address
    #[arg(long, default_value_t = 5000.0)]
    pub flood_per_s: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--step", self.step)?;
        check_seconds("--timeout", self.timeout)?;
        if !(self.flood_per_s > 0.0 && self.flood_per_s <= 20_000.0) {
            let cause = "it must be above 0 and at most 20000";
            return Err(Error::usage("bad --flood-per-s", cause));
        }
        Ok(Box::new(WholeLife {
            args: self,
            program: program.clone(),
        }))
    }
}

struct WholeLife {
    args: Args,
    program: Program,
}

impl Experiment for WholeLife {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |row: &Row| parameters([("row", word(row))]);
        vec![self.args.rows.iter().map(case).collect()]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert("load".into(), self.args.described().into());
        facts.insert("capacity_per_s".into(), CAPACITY_PER_S.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let row: Row = chosen(case, "row")?;
        let pace = Pace {
            step: Duration::from_secs_f64(self.args.step),
            patience: Duration::from_secs_f64(self.args.timeout),
            flood_per_s: self.args.flood_per_s,
            seed: turn.seed,
        };
        let measured = trial::measure(row, pace, self.program.path())?;
        Ok(samples::sample(&measured))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        results.cases.iter().flat_map(claims).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&COLUMNS).picture(picture())
    }

    fn rounds(&self) -> usize {
        3
    }
}

const COLUMNS: [(&str, &str); 18] = [
    ("row", "{row}"),
    ("goals", "{goals|n}"),
    ("gold served", "{gold_served|%}"),
    ("p50 ms", "{gold_p50_ms|ms}"),
    ("p99 ms", "{gold_p99_ms|ms}"),
    ("silver served", "{silver_served|%}"),
    ("p99 ms", "{silver_p99_ms|ms}"),
    ("bronze served", "{bronze_served|%}"),
    ("p99 ms", "{bronze_p99_ms|ms}"),
    ("replies/s", "{replies_per_s:cell|n}"),
    ("RST to the SYN", "{refused|%}"),
    ("RST later", "{reset|%}"),
    ("503", "{busy|%}"),
    ("timed out", "{timed_out|%}"),
    ("in vain", "{in_vain|%}"),
    ("half-closed", "{half_closed|.1}"),
    ("TIME-WAIT", "{time_wait|n}"),
    ("weir's CPU", "{weir_cpu|%}"),
];

/// A point for each row: how many of gold are served, and how late.
fn picture() -> Picture {
    Picture {
        name: "whole-life".into(),
        title: "Each stage alone, and all: to the right is more of gold, below is sooner".into(),
        panels: vec![Panel {
            title: "p99 of gold's served, ms".into(),
            x_title: "gold served, in parts of those who came".into(),
            x: "gold_served".into(),
            y: vec![("gold_p99_ms".into(), String::new())],
            lines: vec!["row".into()],
            logarithmic: true,
            ..Panel::default()
        }],
    }
}

/// All stages together reach every goal. None alone does.
fn claims(case: &Case) -> Vec<Claim> {
    let all = GOALS.len() as f64;
    if case.parameter("row") != word(&Row::All) {
        let claim = "it misses one of the goals at least";
        return vec![Claim::about(claim, case, "goals", |goals| {
            goals.median < all
        })];
    }
    let goal = |goal: &samples::Goal| {
        Claim::about(goal.name, case, goal.metric, |value| {
            (goal.holds)(value.median)
        })
    };
    GOALS.iter().map(goal).collect()
}

impl Args {
    /// The load in words.
    fn described(&self) -> String {
        let class = |class: &site::Class| {
            let per_s = class.offered * CAPACITY_PER_S;
            format!("{} {per_s:.0}/s", class.name)
        };
        let classes: Vec<String> = HELD.iter().map(class).collect();
        format!(
            "{} to a pool of {CAPACITY_PER_S}/s; {STRANGERS_PER_S}/s of each kind of strangers; a flood of {} SYNs/s; \
             {TRANSFERS} long transfers; {STEPS} steps of {} s; patience {} s",
            classes.join(", "),
            self.flood_per_s,
            self.step,
            self.timeout
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::Verdict;
    use crate::run::statistics::Spread;

    fn case(row: &str, metrics: &[(&str, f64)]) -> Case {
        let spread = |(name, value): &(&str, f64)| ((*name).to_owned(), Spread::one(*value));
        Case {
            parameters: parameters([("row", row.to_owned())]),
            rounds: 1,
            metrics: metrics.iter().map(spread).collect(),
            ..Case::default()
        }
    }

    #[test]
    fn all_has_a_claim_for_each_goal_and_a_stage_alone_must_miss_one() {
        let of = |case: &Case, verdict: Verdict| {
            let claims = claims(case).into_iter();
            claims.filter(|claim| claim.verdict == verdict).count()
        };
        let all = case("all", &[("gold_served", 0.99), ("timed_out", 0.5)]);
        assert_eq!(of(&all, Verdict::Held), 1);
        assert_eq!(of(&all, Verdict::NotHeld), 1);
        assert_eq!(of(&all, Verdict::NotJudged), GOALS.len() - 2);
        let alone = |goals| case("queue", &[("goals", goals)]);
        assert_eq!(of(&alone(5.0), Verdict::Held), 1);
        assert_eq!(of(&alone(6.0), Verdict::NotHeld), 1);
    }

    #[test]
    fn a_flood_beyond_what_this_machine_carries_is_refused() {
        let built = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let matches = crate::cli::parse(&ENTRIES[0], &words).unwrap();
            ENTRIES[0].build(&matches, &Program::default())
        };
        assert!(built(&["--flood-per-s", "20001"]).is_err());
        assert!(built(&["--flood-per-s", "20000"]).is_ok());
        assert!(built(&["--step", "0"]).is_err());
    }
}
