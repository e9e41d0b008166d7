//! The flash crowd: policies × rates, interleaved in rounds.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::point::Stage;
use super::policy::{self, Policy};
use super::saturation::{self, Peak};
use crate::bed::{Bed, Layout};
use crate::client::tcp::Kind;
use crate::client::{Generator, Load, Pattern};
use crate::error::{Error, Result};
use crate::report::{self, Row, Summary, count, ms};
use crate::server::{Program, Spec};

/// Spread of the connections' beginnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PatternName {
    /// Equal distances.
    Constant,
    /// Exponential distances.
    Poisson,
    /// Bursts of --burst-factor for --burst-ms every --burst-period-ms.
    Burst,
}

/// Rates to offer.
#[derive(Debug, Clone, PartialEq)]
pub enum Rates {
    /// Multiples of the saturation, which is measured first.
    Multiples(Vec<f64>),
    /// Connections/s.
    PerSecond(Vec<f64>),
}

impl FromStr for Rates {
    type Err = String;

    /// `0.5,1,2,4x` (an `x` anywhere means multiples of the saturation) or `5000,20000`.
    fn from_str(text: &str) -> std::result::Result<Rates, String> {
        let number = |part: &str| match part.trim().trim_end_matches('x').parse::<f64>() {
            Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
            _ => Err(format!(
                "`{part}` is no rate above 0 (5000 for connections/s, 2x for twice saturation)"
            )),
        };
        let values = text
            .split(',')
            .map(number)
            .collect::<std::result::Result<_, _>>()?;
        Ok(if text.contains('x') {
            Rates::Multiples(values)
        } else {
            Rates::PerSecond(values)
        })
    }
}

/// Server under test and where weir is; the same for every experiment.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Server under test: built-in, nginx, or a shell command that stays in the foreground
    #[arg(
        long,
        default_value = "built-in",
        value_name = "built-in|nginx|COMMAND"
    )]
    pub server: Program,
    /// Port on which it listens
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// Length of its listen queue (built-in and nginx)
    #[arg(long, default_value_t = 128)]
    pub backlog: u32,
    /// CPU time that the built-in server spends on each request, in µs
    #[arg(long, default_value_t = 0)]
    pub work_us: u32,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
}

impl ServerArgs {
    /// The server as these arguments describe it.
    pub fn spec(&self) -> Spec {
        let program = match &self.server {
            Program::BuiltIn { .. } => Program::BuiltIn {
                work_us: self.work_us,
            },
            other => other.clone(),
        };
        Spec {
            program,
            port: self.port,
            backlog: self.backlog,
        }
    }

    /// Builds the bed for it.
    pub fn stage(&self) -> Result<Stage> {
        Ok(Stage {
            bed: Bed::build(Layout::of_this_machine())?,
            server: self.spec(),
            weir: self.weir.clone(),
            generator: Generator::new(),
        })
    }
}

/// Arguments of `weir-lab flash-crowd`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates: connections/s (5000,20000), or multiples of the measured saturation (0.5,1,2,4x)
    #[arg(long, default_value = "0.5,1,2,4x")]
    pub rates: Rates,
    /// Policies, separated by commas; each is words: default | kernel-abort | abort | reserv |
    /// no-syn-drop, with rst-syn, rst-fin, admit=queue|wait, target-wait=20ms, overbook=F, front=tc|xdp
    #[arg(long, default_value = "default,reserv rst-syn,no-syn-drop", value_parser = policy::parse_list)]
    pub policies: std::vec::Vec<Policy>,
    /// Length of the measuring window of each point, in s
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Load offered before the window, not counted, in s
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// How often each point is measured; rounds are interleaved (A B C A B C)
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Kind of client
    #[arg(long, value_enum, default_value = "rfc793")]
    pub client: Kind,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
    /// Spread of the connections' beginnings
    #[arg(long, value_enum, default_value = "constant")]
    pub pattern: PatternName,
    /// Seed of the Poisson pattern
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Rate in a burst over rate outside
    #[arg(long, default_value_t = 4.0)]
    pub burst_factor: f64,
    /// Length of a burst, in ms
    #[arg(long, default_value_t = 50)]
    pub burst_ms: u64,
    /// Distance between the beginnings of bursts, in ms
    #[arg(long, default_value_t = 500)]
    pub burst_period_ms: u64,
    /// Offer the load over IPv6
    #[arg(long)]
    pub ipv6: bool,
    /// Ask the server to close each connection first (`Connection: close`)
    #[arg(long)]
    pub server_closes_first: bool,
    /// Front of every weir policy that does not say front= itself
    #[arg(long, value_parser = ["tc", "xdp"])]
    pub front: Option<String>,
    /// Folder for results.json and the pictures
    #[arg(long, default_value = "out/flash-crowd", value_name = "DIR")]
    pub out: PathBuf,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// All that an experiment found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server.
    pub server: String,
    /// Clients and pattern.
    pub load: String,
    /// Peak throughput of the unprotected server, replies/s; `None` with absolute rates.
    pub saturation_per_s: Option<f64>,
    /// One summary a policy and rate, by policy, then rate.
    pub summaries: Vec<Summary>,
    /// Every round of every point.
    pub rows: Vec<Row>,
}

impl Args {
    /// Refuses senseless values before anything is built.
    pub fn check(&self) -> Result<()> {
        let positive = [("--seconds", self.seconds), ("--timeout", self.timeout)];
        for (flag, value) in positive {
            if !(value > 0.0 && value <= 3600.0) {
                return Err(Error::usage(
                    format!("bad {flag} {value}"),
                    "it must be above 0 and at most 3600 s",
                ));
            }
        }
        if !(0.0..=3600.0).contains(&self.warm_up) {
            return Err(Error::usage(
                format!("bad --warm-up {}", self.warm_up),
                "it must be 0 to 3600 s",
            ));
        }
        if self.rounds == 0 {
            return Err(Error::usage(
                "bad --rounds 0",
                "at least one round is needed",
            ));
        }
        if self.burst_factor < 1.0 || self.burst_ms == 0 || self.burst_ms >= self.burst_period_ms {
            return Err(Error::usage(
                "bad burst",
                "--burst-factor must be at least 1, and --burst-ms above 0 and below --burst-period-ms",
            ));
        }
        Ok(())
    }

    fn pattern(&self) -> Pattern {
        match self.pattern {
            PatternName::Constant => Pattern::Constant,
            PatternName::Poisson => Pattern::Poisson { seed: self.seed },
            PatternName::Burst => Pattern::Bursts {
                factor: self.burst_factor,
                length: Duration::from_millis(self.burst_ms),
                period: Duration::from_millis(self.burst_period_ms),
            },
        }
    }

    /// The load without its rate.
    pub fn base_load(&self, stage: &Stage) -> Load {
        Load {
            target: (stage.bed.server_address(self.ipv6), self.server.port).into(),
            rate_per_s: 0.0,
            pattern: self.pattern(),
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
            timeout: Duration::from_secs_f64(self.timeout),
            kind: self.client,
            server_closes_first: self.server_closes_first,
            drain: true,
        }
    }

    fn describe_load(&self) -> String {
        let pattern = match self.pattern() {
            Pattern::Constant => "constant rate".to_string(),
            Pattern::Poisson { seed } => format!("Poisson, seed {seed}"),
            Pattern::Step { factor, at } => format!("{factor}× from {at:?} on"),
            Pattern::Bursts {
                factor,
                length,
                period,
            } => {
                format!("bursts of {factor}× for {length:?} every {period:?}")
            }
        };
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        format!(
            "{} clients over {family}, {pattern}, time-out {} s",
            self.client.name(),
            self.timeout
        )
    }

    fn policies(&self) -> Result<Vec<Policy>> {
        let Some(front) = &self.front else {
            return Ok(self.policies.clone());
        };
        let with_front = |policy: &Policy| {
            let plain = !matches!(policy.protection, policy::Protection::Weir(_));
            if plain || policy.label.contains("front=") {
                return Ok(policy.clone());
            }
            let label = format!("{} front={front}", policy.label);
            label
                .parse()
                .map_err(|cause| Error::usage("bad policy", cause as String))
        };
        self.policies.iter().map(with_front).collect()
    }
}

/// Measures all and returns the results; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    args.check()?;
    let policies = args.policies()?;
    let mut stage = args.server.stage()?;
    let base = args.base_load(&stage);
    eprintln!(
        "weir-lab: {}\nweir-lab: {}",
        stage.server.describe(),
        args.describe_load()
    );
    let constant = Load {
        pattern: Pattern::Constant,
        ..base.clone()
    };
    let (saturation, rates) = rates(args, &mut stage, &constant)?;
    let labels = Labels::of(&policies);
    eprintln!("{}", labels.progress_head());
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        for &(rate_per_s, multiple) in &rates {
            let peak_per_s = peak_beside(args, &mut stage, &constant, saturation)?;
            for policy in &policies {
                let load = Load {
                    rate_per_s,
                    ..base.clone()
                };
                let measured = stage.measure(policy, &load)?;
                let row = Row {
                    peak_per_s,
                    ..Row::of(&policy.label, rate_per_s, args.seconds, measured)
                };
                eprintln!("{}", labels.progress(&row, round, args.rounds, multiple));
                rows.push(row);
            }
        }
    }
    let summaries = summarize(&policies, &rates, &rows);
    Ok(Results {
        machine: report::machine(),
        server: stage.server.describe(),
        load: args.describe_load(),
        saturation_per_s: saturation.map(|peak| peak.replies_per_s),
        summaries,
        rows,
    })
}

/// The peak that the points of one rate and round are compared with. With several rounds it is
/// measured anew, beside them.
fn peak_beside(
    args: &Args,
    stage: &mut Stage,
    base: &Load,
    saturation: Option<Peak>,
) -> Result<Option<f64>> {
    match saturation {
        Some(peak) if args.rounds > 1 => {
            saturation::again(stage, base, peak, report_saturation).map(Some)
        }
        peak => Ok(peak.map(|peak| peak.replies_per_s)),
    }
}

fn report_saturation(offered_per_s: f64, replies_per_s: f64) {
    eprintln!(
        "  saturation: offered {:>7}/s, served {:>7}/s",
        count(offered_per_s),
        count(replies_per_s)
    );
}

type RateList = Vec<(f64, Option<f64>)>;

fn rates(args: &Args, stage: &mut Stage, base: &Load) -> Result<(Option<Peak>, RateList)> {
    match &args.rates {
        Rates::PerSecond(rates) => Ok((None, rates.iter().map(|&rate| (rate, None)).collect())),
        Rates::Multiples(multiples) => {
            let peak = saturation::find(stage, base, 2000.0, report_saturation)?;
            eprintln!(
                "weir-lab: the unprotected server peaks at {} replies/s",
                count(peak.replies_per_s)
            );
            let rates = multiples
                .iter()
                .map(|&multiple| (peak.replies_per_s * multiple, Some(multiple)))
                .collect();
            Ok((Some(peak), rates))
        }
    }
}

/// Policies as tables name them. A front that all of weir's have is said once, for lines of 80 columns.
pub struct Labels {
    /// What all of weir's policies have, as ` front=xdp`; empty if they differ.
    pub shared: &'static str,
    width: usize,
}

impl Labels {
    /// Of these policies.
    pub fn of(policies: &[Policy]) -> Labels {
        const FRONTS: [&str; 2] = [" front=xdp", " front=tc"];
        let of_weir = |policy: &&Policy| matches!(policy.protection, policy::Protection::Weir(_));
        let have = |front: &str| {
            let mut all = policies.iter().filter(of_weir);
            all.all(|policy| policy.label.ends_with(front))
        };
        let shared = FRONTS.into_iter().find(|front| have(front)).unwrap_or("");
        let mut labels = Labels { shared, width: 0 };
        let widths = policies
            .iter()
            .map(|policy| labels.short(&policy.label).len());
        labels.width = widths.max().unwrap_or(0).max("policy".len());
        labels
    }

    /// A policy's name.
    pub fn short<'a>(&self, label: &'a str) -> &'a str {
        label.strip_suffix(self.shared).unwrap_or(label)
    }

    /// What all of weir's policies have, as a line; empty if they differ.
    pub fn shared_line(&self) -> String {
        match self.shared {
            "" => String::new(),
            shared => format!("All of weir's policies with{shared}.\n"),
        }
    }

    /// Columns of the lines that are shown while the experiment runs.
    fn progress_head(&self) -> String {
        let shared = self.shared_line();
        let width = self.width;
        format!(
            "{shared}     offered/s  {:<width$}  replies/s mean ms p99 ms refused   reset gave up",
            "policy"
        )
    }

    fn progress(&self, row: &Row, round: usize, rounds: usize, multiple: Option<f64>) -> String {
        let round = if rounds > 1 {
            format!("  round {round}/{rounds}")
        } else {
            String::new()
        };
        let multiple = multiple.map_or(String::new(), |multiple| format!("{multiple}×"));
        let width = self.width;
        let mut line = format!(
            "{multiple:>4} {:>9}  {:<width$}  {:>9} {:>7} {:>6} {:>7} {:>7} {:>7}{round}",
            count(row.offered_per_s),
            self.short(&row.policy),
            count(row.replies_per_s),
            ms(row.response.mean_ms),
            ms(row.response.p99_ms),
            count(row.fate.refused as f64),
            count(row.fate.reset as f64),
            count(row.fate.timed_out as f64),
        );
        if let Some(flaw) = &row.flaw {
            let text = format!("! THIS POINT DOES NOT COUNT: {flaw}");
            let text = report::wrapped(74, &text).replace('\n', "\n       ");
            line += &format!("\n     {text}");
        }
        line
    }
}

fn summarize(policies: &[Policy], rates: &RateList, rows: &[Row]) -> Vec<Summary> {
    let points = policies
        .iter()
        .flat_map(|policy| rates.iter().map(move |rate| (policy, rate)));
    let summary = |(policy, &(rate_per_s, multiple)): (&Policy, &(f64, Option<f64>))| {
        let rounds: Vec<Row> = rows
            .iter()
            .filter(|row| row.policy == policy.label && row.rate_per_s == rate_per_s)
            .cloned()
            .collect();
        Summary::of(&rounds, multiple)
    };
    points.filter_map(summary).collect()
}

/// Runs the experiment of the command line: tables or JSON on stdout, files in --out.
pub fn run(args: &Args) -> Result<()> {
    let labels = Labels::of(&args.policies()?);
    let results = measure(args)?;
    let json = write_files(&results, &args.out)?;
    report::show(&json, args.json, || tables(&results, &labels));
    Ok(())
}

/// All tables with a title.
pub fn tables(results: &Results, labels: &Labels) -> String {
    let saturation = results.saturation_per_s.map_or(String::new(), |peak| {
        format!(
            "Saturation (peak of the unprotected server): {} replies/s\n",
            count(peak)
        )
    });
    let summaries = &results.summaries;
    let name = |policy: &str| labels.short(policy).to_owned();
    format!(
        "{}\n{}\n{saturation}{}\n{}\n{}\n{}\nTable II of SB06, inside the window:\n{}",
        results.machine,
        report::wrapped(
            report::WIDTH,
            &format!("{}, {}", results.server, results.load)
        ),
        labels.shared_line(),
        report::served(summaries, &name),
        report::fate(summaries, &name),
        report::lost(summaries, &name),
        report::table_two(summaries, &name),
    )
}

/// Writes results.json and the pictures into a folder, which is created; returns the JSON.
pub fn write_files(results: &Results, out: &Path) -> Result<String> {
    let json = report::write_json(results, out)?;
    crate::plot::flash_crowd::write(results, out)?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_fits_80_columns_and_a_front_of_all_is_said_once() {
        let policies = |text| policy::parse_list(text).unwrap();
        let policies = policies("default,reserv rst-syn front=xdp,no-syn-drop front=xdp");
        let labels = Labels::of(&policies);
        assert_eq!(labels.shared, " front=xdp");
        let mut row = Row {
            policy: "reserv rst-syn front=xdp".into(),
            offered_per_s: 123_456.0,
            replies_per_s: 45_678.0,
            ..Row::default()
        };
        row.response.mean_ms = 9_999.0;
        row.fate.refused = 987_654;
        let line = labels.progress(&row, 1, 1, Some(0.5));
        let head = labels.progress_head();
        let head = head.lines().last().unwrap();
        assert_eq!(line.chars().count(), head.chars().count(), "{head}\n{line}");
        assert!(head.chars().count() <= 80, "{head}");
        assert!(line.contains("  reserv rst-syn  "), "{line}");
        let mixed = policy::parse_list("reserv front=xdp,reserv front=tc").unwrap();
        assert_eq!(Labels::of(&mixed).shared, "");
    }

    #[test]
    fn an_x_anywhere_makes_rates_multiples() {
        assert_eq!(
            "0.5,1,4x".parse(),
            Ok(Rates::Multiples(vec![0.5, 1.0, 4.0]))
        );
        assert_eq!(
            "5000,2e4".parse(),
            Ok(Rates::PerSecond(vec![5000.0, 20_000.0]))
        );
        assert!("5000,-1".parse::<Rates>().is_err());
        assert!("".parse::<Rates>().is_err());
    }
}
