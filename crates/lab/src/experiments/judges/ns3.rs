//! ns-3 as the judge: a program of ours over its library, `experiments/judges/ns3.cc`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use weir_sim::aqm::pie::Pie;
use weir_sim::aqm::{AnyQueue, Discipline, FlowParams, FqCodel, PieParams, Setup};
use weir_sim::connection::{Job as Wanted, Spec};
use weir_sim::outcome::Record;
use weir_sim::{Outcome, Plan};

use super::arrivals::Arrival;
use super::model::{self, Departures, Numbered};
use super::trial::{Common, DRAIN_S, Job, Judge, RTT_MS, Trial, outcome};
use crate::error::{Context, Error, Result};
use crate::run::experiment::{Entry, Experiment, Flags, Program, check_seconds};
use crate::run::results::Facts;

/// The experiment.
pub const ENTRY: Entry = Entry::new::<Args>(
    "judge-ns3",
    "Do ns-3's queueing disciplines do what those of the simulator do?",
)
.source("beyond the papers")
.flags(
    "--seconds 120 --rounds 6",
    "--what queue --seconds 30 --rounds 1",
);

/// What both have.
const DISCIPLINES: [Discipline; 5] = [
    Discipline::Fifo,
    Discipline::Red,
    Discipline::Codel,
    Discipline::FqCodel,
    Discipline::Pie,
];
/// Of ns-3, what the program uses.
const MODULES: [&str; 5] = [
    "ns3-traffic-control",
    "ns3-internet",
    "ns3-point-to-point",
    "ns3-network",
    "ns3-core",
];

/// Arguments of `weir-lab judge-ns3`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
    /// The program over ns-3
    #[arg(long, value_name = "PATH", default_value = "experiments/judges/ns3.cc")]
    pub source: PathBuf,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.common.seconds)?;
        Ok(Box::new(Trial {
            common: self.common,
            disciplines: DISCIPLINES.to_vec(),
            judge: Ns3 {
                source: self.source,
                folder: None,
            },
        }))
    }
}

#[derive(Debug)]
struct Ns3 {
    source: PathBuf,
    /// With the program, compiled.
    folder: Option<TempDir>,
}

impl Judge for Ns3 {
    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let folder = TempDir::new().context("cannot create a folder")?;
        let (version, libraries) = (pkg_config("--modversion")?, pkg_config("--libs")?);
        // Debian's files name besides, by their paths, what ns-3 itself was linked with.
        let libraries = libraries.split_whitespace();
        let libraries = libraries.filter(|word| word.starts_with("-l"));
        let version = version.lines().next().unwrap_or_default();
        facts.insert("judge".into(), format!("ns-3 {version}").into());
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-o"]);
        compiler.arg(program(folder.path())).arg(&self.source);
        compiler.args(libraries);
        output(compiler, "")?;
        self.folder = Some(folder);
        Ok(())
    }

    /// ns-3's FQ-CoDel drops no last packet of a flow. The kernel's does, and so does the simulator's: to it, the other
    /// flows' packets are behind that packet.
    /// Its PIE is that of RFC 8033.
    fn model(&self, job: Job) -> AnyQueue<Numbered> {
        let setup = Setup::new(job.rates.0 / 8);
        match job.discipline {
            Discipline::FqCodel => AnyQueue::FqCodel(FqCodel::new(FlowParams {
                others_are_behind: false,
                ..setup.flows(setup.codel())
            })),
            Discipline::Pie => AnyQueue::Pie(Pie::new(PieParams {
                is_kernels: false,
                ..setup.pie()
            })),
            other => model::queue(other, job.rates.0),
        }
    }

    fn passes_at_once(&self) -> bool {
        false
    }

    fn departures(&mut self, job: Job, arrivals: &[Arrival]) -> Result<Departures> {
        let line = |one: &Arrival| format!("{} {} {}\n", one.at_ns, one.flow, one.bytes);
        let input: String = arrivals.iter().map(line).collect();
        let words = [
            "queue".to_owned(),
            job.discipline.to_string(),
            job.rates.0.to_string(),
            job.seed.to_string(),
        ];
        let mut departures = vec![None; arrivals.len()];
        for [number, at_ns] in self.run(&words, &input)? {
            let known = usize::try_from(number).ok();
            let place = known.and_then(|number| departures.get_mut(number));
            *place.ok_or_else(|| strange(number))? = u64::try_from(at_ns).ok();
        }
        Ok(departures)
    }

    fn connections(&mut self, job: Job, plan: &Plan) -> Result<Outcome> {
        let specs = plan.connections(job.seed);
        let segments = |spec: &Spec| match spec.job {
            Wanted::Download(segments) => segments,
            Wanted::Upload => 0,
        };
        let line = |spec: &Spec| format!("{} {}\n", spec.start_ns, segments(spec));
        let input: String = specs.iter().map(line).collect();
        let words = [
            "tcp".to_owned(),
            job.discipline.to_string(),
            job.rates.0.to_string(),
            job.rates.1.to_string(),
            RTT_MS.to_string(),
            (plan.seconds + DRAIN_S).to_string(),
            job.seed.to_string(),
        ];
        let mut lines = self.run(&words, &input)?;
        let [sent, dropped, _] = lines.pop().ok_or_else(|| strange(0))?;
        let known = |time_ns: i64| u64::try_from(time_ns).ok();
        let record = |(spec, [connect_ns, response_ns, rtt_ns]): (&Spec, [i64; 3])| Record {
            connect_ns: known(connect_ns),
            response_ns: known(response_ns),
            last_rtt_ns: known(rtt_ns).unwrap_or(0),
            ..Record::new(spec.start_ns, segments(spec))
        };
        let records = specs.iter().zip(lines).map(record).collect();
        Ok(outcome(records, sent as u64, dropped as u64))
    }
}

impl Ns3 {
    /// Runs the program; numbers that a line lacks are 0.
    fn run<const N: usize>(&self, words: &[String], input: &str) -> Result<Vec<[i64; N]>> {
        let folder = self.folder.as_ref().ok_or_else(|| strange(0))?;
        let mut command = Command::new(program(folder.path()));
        command.args(words);
        let text = output(command, input)?;
        let numbers = |line: &str| {
            let mut numbers = [0; N];
            for (place, word) in numbers.iter_mut().zip(line.split_whitespace()) {
                *place = word.parse().context(format!("ns-3 says `{line}`"))?;
            }
            Ok(numbers)
        };
        text.lines().map(numbers).collect()
    }
}

fn program(folder: &Path) -> PathBuf {
    folder.join("ns3")
}

fn strange(number: i64) -> Error {
    Error::failed(
        "cannot understand ns-3",
        format!("unexpected number {number}"),
    )
}

fn pkg_config(what: &str) -> Result<String> {
    let mut command = Command::new("pkg-config");
    command.args(what.split(' ')).args(MODULES);
    output(command, "").map_err(|error| error.hint("scripts/setup judges"))
}

/// What a program prints.
fn output(mut command: Command, input: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let what = || format!("cannot run {name}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().context(what())?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // A program that ends early says why below.
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    });
    let output = output.context(what())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::failed(
            what(),
            String::from_utf8_lossy(&output.stderr).trim(),
        )),
    }
}
