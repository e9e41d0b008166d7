//! The high class in an overloaded listen queue (FINDINGS, section 2): a server of one worker with 1 ms of work
//! for each connection, and a closed loop of 100 low, 10 middle and 2 high clients.
//!
//! Three ways, in turns: the kernel's FIFO; weir's `queue = "priority"`; a fourth on demand, `weir exec
//! --order exact`; and class listeners, the best that a
//! server can do that was written for it: a listening socket for each class, of which the worker always takes
//! the highest that has a connection.

use std::path::Path;

use super::closed::{
    CLASS_NAMES, ClosedLoop, PORT, WindowArgs, address, config, strict, target, unpoliced,
};
use crate::closed_loop::{Demand, Group};
use crate::error::{Context, Result};
use crate::program;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{
    Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, ServerProgram, Spec};

const OVERLOAD: Entry = Entry::new::<Args>(
    "vtfm01-overload",
    "How long does the high class wait in an overloaded listen queue, against class listeners and the plain kernel?",
)
.source("VTFM01 Section 3.2")
.flags("--rounds 9", "--seconds 0.5 --warm-up 0.3");

/// The experiment, and its run with `weir exec`.
pub const ENTRIES: &[Entry] = &[
    OVERLOAD,
    OVERLOAD
        .preset(
            "vtfm01-overload-exec",
            "The same with a server that `weir exec --order exact` started.",
        )
        .flags(
            "--ways fifo,priority,exec,class-listeners --seconds 4 --warm-up 1 --rounds 2",
            OVERLOAD.quick,
        ),
];

/// Clients of the high, the middle and the low class.
const CLIENTS: [usize; 3] = [2, 10, 100];
const SERVICE_US: u32 = 1000;

/// Arguments of `weir-lab vtfm01 overload`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Ways to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,priority,class-listeners"
    )]
    pub ways: Vec<Way>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub window: WindowArgs,
}

/// Ways to order the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The kernel alone
    Fifo,
    /// weir's `queue = "priority"`
    Priority,
    /// A server started with `weir exec --order exact`
    Exec,
    /// A listening socket for each class
    ClassListeners,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Overload {
            args: self,
            program: program.clone(),
            opened: None,
        }))
    }
}

struct Overload {
    args: Args,
    program: Program,
    /// With a folder for `weir exec`.
    opened: Option<(ClosedLoop, tempfile::TempDir)>,
}

impl Experiment for Overload {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |way: &Way| parameters([("way", word(way))]);
        vec![self.args.ways.iter().map(case).collect()]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert("server".into(), spec(1).describe().into());
        let folder = tempfile::TempDir::with_prefix("weir-lab-exec-")
            .context("cannot create a directory for weir exec")?;
        self.opened = Some((ClosedLoop::build(&self.args.window, &self.program)?, folder));
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let (bed, folder) = self.opened.as_ref().expect("opened first");
        let way = chosen(case, "way")?;
        let config = (way == Way::Priority).then(|| config(&strict(), &unpoliced(3)));
        let spec = match way {
            Way::Exec => spec_under_exec(self.program.path(), folder.path())?,
            Way::ClassListeners => spec(3),
            _ => spec(1),
        };
        let outcomes = bed.clients(&spec, config.as_deref(), &groups(way))?;
        let accepts = outcomes
            .iter()
            .map(|outcome| bed.replies_per_s(outcome))
            .sum();
        let mut sample = Sample::of([("accepts_per_s", accepts)]);
        bed.add_classes(&mut sample, &outcomes);
        Ok(sample)
    }

    /// Against class listeners and the kernel, round by round.
    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let of = |way: &str| {
            round
                .iter()
                .find(|(case, _)| case["way"] == way)
                .map(|(_, sample)| sample.clone())
        };
        let (listeners, fifo) = (of("class-listeners"), of("fifo"));
        for (_, sample) in round {
            let ratio =
                |metric: &str, other: &Sample| sample.get(metric) / other.get(metric).max(1e-9);
            let high = listeners.as_ref().map(|other| ratio("high_p50_ms", other));
            let accepts = fifo.as_ref().map(|other| ratio("accepts_per_s", other));
            for (name, ratio) in [
                ("high_p50_of_class_listeners", high),
                ("accepts_of_fifo", accepts),
            ] {
                sample
                    .metrics
                    .extend(ratio.map(|ratio| (name.to_owned(), ratio)));
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let Some(weir) = results.find([("way", "priority")]) else {
            return Vec::new();
        };
        // weir's own limits: no paper states any. Class listeners are the best that a server can do which was written for
        // classes. What weir may cost against them, or against the plain kernel, so that a server need not be: a quarter
        // of the high class's wait, and a tenth of the throughput.
        vec![
            Claim::about(
                "the high class waits hardly longer than with a listening socket of its own",
                weir,
                "high_p50_of_class_listeners",
                |ratio| ratio.median < 1.25,
            ),
            Claim::about(
                "the server accepts nine tenths of what it accepts without weir",
                weir,
                "accepts_of_fifo",
                |ratio| ratio.median >= 0.9,
            ),
        ]
    }

    fn show(&self) -> Show {
        let panel = |class: &str| Panel {
            title: format!("{class} class: median response time, ms"),
            x_title: "Way to order the queue".into(),
            x: "way".into(),
            y: vec![(format!("{class}_p50_ms"), String::new())],
            lines: vec!["way".into()],
            logarithmic: true,
            ..Panel::default()
        };
        Show::columns(&[
            ("queue", "{way}"),
            ("high p50 ms", "{high_p50_ms:cell|.2}"),
            ("middle p50 ms", "{middle_p50_ms:cell|.2}"),
            ("low p50 ms", "{low_p50_ms:cell|.2}"),
            (
                "high p50 / class listeners",
                "{high_p50_of_class_listeners:cell|.2}",
            ),
            ("accepts/s", "{accepts_per_s:cell|n}"),
            ("accepts/s / FIFO", "{accepts_of_fifo:cell|.2}"),
            ("low replies/s", "{low_replies_per_s:cell|n}"),
        ])
        .picture(Picture {
            name: "overload".into(),
            title: "2 high, 10 middle and 100 low clients at a server of 1 ms".into(),
            panels: vec![panel(CLASS_NAMES[0]), panel(CLASS_NAMES[2])],
        })
    }
}

fn spec(listeners: u16) -> Spec {
    Spec {
        program: ServerProgram::Pool {
            workers: 1,
            service_us: SERVICE_US,
            occupation: Occupation::Spin,
            body_bytes: FILE_BYTES,
            listeners,
        },
        port: PORT,
        backlog: super::closed::BACKLOG,
    }
}

/// The same server with its accept() calls answered. The folder has the config file.
fn spec_under_exec(weir: Option<&Path>, folder: &Path) -> Result<Spec> {
    let file = folder.join("weir.toml");
    let text = config(&strict(), &unpoliced(3));
    std::fs::write(&file, text).context(format!("cannot write {}", file.display()))?;
    let weir = weir.map_or_else(|| program::find("weir"), |path| Ok(path.to_path_buf()))?;
    let lab = program::find("weir-lab")?;
    let plain = spec(1);
    let command = format!(
        "exec {} exec --order exact --config {} -- {} pool --occupation spin --record /dev/null \
         --port {} --backlog {} --workers 1 --service-us {SERVICE_US} --body-bytes {FILE_BYTES} \
         --listeners 1",
        weir.display(),
        file.display(),
        lab.display(),
        plain.port,
        plain.backlog,
    );
    Ok(Spec {
        program: ServerProgram::Command(command),
        ..plain
    })
}

fn groups(way: Way) -> Vec<Group> {
    let group = |(class, clients): (u8, usize)| Group {
        source: address(class),
        target: target(match way {
            Way::ClassListeners => PORT + u16::from(class) - 1,
            _ => PORT,
        }),
        demand: Demand::Greedy { clients },
    };
    (1..).zip(CLIENTS).map(group).collect()
}
