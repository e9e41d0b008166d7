//! Experiments on the command line: a subcommand each, `list`, `run`, `table`, `plot`, `tables`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{ArgMatches, FromArgMatches};
use weir_core::rfc3339::Rfc3339;

use crate::error::{Error, Result};
use crate::experiments;
use crate::plot::picture;
use crate::run::experiment::{Entry, Experiment, Program};
use crate::run::results::{Machine, Results};
use crate::run::scheduler::{self, Plan, label};
use crate::run::store::{self, Store};
use crate::show::{
    self,
    format::{WIDTH, wrapped},
    table,
};

/// Flags of every experiment.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RunFlags {
    /// How often each case is measured; rounds are interleaved [default: the experiment's]
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Seed of the order and of everything random [default: the experiment's, mostly 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Continue what the folder has: rounds that are measured there are kept
    #[arg(long)]
    pub resume: bool,
    /// Measure these rounds on top of those that the folder has
    #[arg(long)]
    pub add: bool,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json, rounds.jsonl and the pictures; with several experiments DIR/ID [default: out/ID]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Flags of `weir-lab run`.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Experiments, as `weir-lab list` names them
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    /// A few seconds, which show that it works; the figures are not worth much
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// As the results in experiments/ were measured (this is the default)
    #[arg(long)]
    pub full: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: RunFlags,
}

/// Ids of this experiment's family are its subcommands: `weir-lab vtfm01 order` is `vtfm01-order`.
const FAMILY: &str = "vtfm01";

/// Adds a subcommand for each experiment.
pub fn with_experiments(command: clap::Command) -> clap::Command {
    let family = format!("{FAMILY}-");
    let mut all = command;
    let mut of_family = clap::Command::new(FAMILY)
        .about("Service classes: the figures and tables of VTFM01, and what weir adds to them")
        .subcommand_required(true)
        .arg_required_else_help(true);
    for entry in experiments::all().filter(|entry| entry.has_command()) {
        match entry.id.strip_prefix(&family) {
            Some(name) => of_family = of_family.subcommand(command_of(entry, name)),
            None => all = all.subcommand(command_of(entry, entry.id)),
        }
    }
    all.subcommand(of_family)
}

fn command_of(entry: &Entry, name: &'static str) -> clap::Command {
    let command = clap::Command::new(name).args_override_self(true);
    // The flags bring a description of themselves, so that of the command comes after them.
    <RunFlags as clap::Args>::augment_args(entry.augment(command)).about(entry.question)
}

/// Runs the experiment of a subcommand; `None` if the subcommand is not one.
pub fn dispatch(name: &str, matches: &ArgMatches) -> Option<Result<()>> {
    let (id, matches) = match (name, matches.subcommand()) {
        (FAMILY, Some((name, matches))) => (format!("{FAMILY}-{name}"), matches),
        _ => (name.to_owned(), matches),
    };
    let entry = experiments::all().find(|entry| entry.id == id && entry.has_command())?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    Some(run_flags(matches).and_then(|flags| run_and_tell(entry, matches, &flags, &words)))
}

/// `weir-lab run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let entries = args.ids.iter().map(|id| experiments::find(id));
    for entry in entries.collect::<Result<Vec<&Entry>>>()? {
        let mut words = split(if args.quick { entry.quick } else { entry.full });
        if let Some(rounds) = args.flags.rounds {
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
        }
        let matches = parse(entry, &words)?;
        let flags = RunFlags {
            rounds: run_flags(&matches)?.rounds,
            out: args.folder(entry.id),
            ..args.flags.clone()
        };
        let command = [split(&entry.subcommand()), words].concat();
        run_and_tell(entry, &matches, &flags, &command)?;
    }
    Ok(())
}

impl RunArgs {
    /// The folder of one of the experiments: several do not share one.
    fn folder(&self, id: &str) -> Option<PathBuf> {
        let out = self.flags.out.as_ref()?;
        Some(match self.ids.len() {
            1 => out.clone(),
            _ => out.join(id),
        })
    }
}

fn run_flags(matches: &ArgMatches) -> Result<RunFlags> {
    RunFlags::from_arg_matches(matches)
        .map_err(|cause| Error::usage("bad flags", cause.to_string()))
}

/// The flags of an experiment.
pub fn parse(entry: &Entry, words: &[String]) -> Result<ArgMatches> {
    let command = command_of(entry, entry.id);
    let words = std::iter::once(entry.id.to_owned()).chain(words.iter().cloned());
    command.try_get_matches_from(words).map_err(|cause| {
        Error::usage(
            format!("bad flags of {}", entry.id),
            cause.render().to_string().trim_end(),
        )
    })
}

/// Words of a command line; those between double quotes are one.
pub fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

fn run_and_tell(
    entry: &Entry,
    matches: &ArgMatches,
    flags: &RunFlags,
    words: &[String],
) -> Result<()> {
    let program = Program {
        weir: flags.weir.clone(),
    };
    let mut experiment = entry.build(matches, &program)?;
    let out = flags
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from("out").join(entry.id));
    let store = Store::at(&out)?;
    let results = measure(entry, experiment.as_mut(), flags, words, Some(&store))?;
    picture::write(&results, &out)?;
    eprintln!("weir-lab: wrote {}", out.join("results.json").display());
    match flags.json {
        true => show::print(&store::to_text(&results)?),
        false => show::print(&table::render(&results)?),
    }
    let failed = scheduler::not_held(&results).filter(|_| entry.is_a_test());
    match failed.count() {
        0 => Ok(()),
        count => Err(
            Error::failed(format!("{count} claims are not held"), results.command).hint(format!(
                "repeat it with --seed {}",
                results.seed.unwrap_or(1)
            )),
        ),
    }
}

/// Measures an experiment; progress goes to stderr, one line a measurement.
pub fn measure(
    entry: &Entry,
    experiment: &mut dyn Experiment,
    flags: &RunFlags,
    words: &[String],
    store: Option<&Store>,
) -> Result<Results> {
    let rounds = flags.rounds.unwrap_or_else(|| experiment.rounds());
    if rounds == 0 {
        return Err(Error::usage(
            "bad --rounds 0",
            "at least one round is needed",
        ));
    }
    let seed = flags.seed.unwrap_or_else(|| experiment.seed());
    let frame = Results {
        experiment: entry.id.to_owned(),
        question: entry.question.to_owned(),
        source: entry.source.to_owned(),
        command: command(words),
        seed: Some(seed),
        machine: machine(),
        commit: commit(),
        started: Some(format!("{:.0}", Rfc3339(SystemTime::now()))),
        show: experiment.show(),
        ..Results::default()
    };
    eprintln!("weir-lab: {}: {}", entry.id, frame.command);
    let plan = Plan {
        rounds,
        add: flags.add,
        resume: flags.resume,
        seed,
        store,
        frame,
    };
    scheduler::run(experiment, &plan, &mut |results, case, clock| {
        let line = table::one_line(results, case);
        let line = line.unwrap_or_else(|_| label(&case.parameters));
        eprintln!("  {clock}  {line}");
    })
}

/// The command that repeats a run, without what says where it is kept.
fn command(words: &[String]) -> String {
    let mut command = String::from("weir-lab");
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        match flag {
            "--json" | "--resume" | "--add" => continue,
            "--out" | "--weir" | "--seed" => {
                if !word.contains('=') {
                    words.next();
                }
                continue;
            }
            _ if word.contains(' ') => command += &format!(" \"{word}\""),
            _ => command += &format!(" {word}"),
        }
    }
    command
}

/// Kernel and processors.
fn machine() -> Machine {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": "));
    let kernel = read("/proc/sys/kernel/osrelease");
    Machine {
        cpu: model
            .map_or("unknown processor", |(_, model)| model)
            .to_owned(),
        kernel: kernel
            .trim()
            .split('-')
            .next()
            .unwrap_or_default()
            .to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// The commit of the repository in which the program lies.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let mut command = std::process::Command::new("git");
    command.arg("-C").arg(program.parent()?).args([
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]);
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `weir-lab list`.
pub fn list() {
    let mut text = String::new();
    for entry in experiments::all() {
        text += &format!("{} ({})\n", entry.id, entry.source);
        for line in wrapped(WIDTH - 4, entry.question).lines() {
            text += &format!("    {line}\n");
        }
        text += &format!("    $ {}\n", entry.recipe());
    }
    show::print(&text);
}

/// `weir-lab table`: a results file as tables.
pub fn show_table(path: &Path) -> Result<()> {
    show::print(&table::render(&store::read(path)?)?);
    Ok(())
}

/// `weir-lab plot`: draws a results file's pictures into a folder, or beside it.
pub fn plot(path: &Path, out: Option<&Path>) -> Result<()> {
    let beside = path.parent().unwrap_or(Path::new("."));
    picture::write(&store::read(path)?, out.unwrap_or(beside))
}

/// `weir-lab judge`: claims and presentation of a results file as the code of today has them.
pub fn judge(path: &Path) -> Result<()> {
    let text = store::to_text(&judged(store::read(path)?)?)?;
    std::fs::write(path, text)
        .map_err(|cause| Error::failed(format!("cannot write {}", path.display()), cause))
}

fn judged(mut results: Results) -> Result<Results> {
    let entry = experiments::find(&results.experiment)?;
    let words = split(&results.command);
    let flags = words.iter().skip_while(|word| !word.starts_with("--"));
    let matches = parse(entry, &flags.cloned().collect::<Vec<_>>())?;
    let experiment = entry.build(&matches, &Program::default())?;
    results.show = experiment.show();
    results.claims = experiment.claims(&results);
    Ok(results)
}

/// Measures an experiment with these flags into a store, or goes on with what that has; the experiment knows how its rounds
/// compare.
pub fn measure_into(
    id: &str,
    words: &str,
    flags: &RunFlags,
    store: &Store,
) -> Result<(Box<dyn Experiment>, Results)> {
    let entry = experiments::find(id)?;
    let words = split(words);
    let matches = parse(entry, &words)?;
    let program = Program {
        weir: flags.weir.clone(),
    };
    let mut experiment = entry.build(&matches, &program)?;
    let flags = RunFlags {
        rounds: run_flags(&matches)?.rounds,
        ..flags.clone()
    };
    let command = [split(&entry.subcommand()), words].concat();
    let results = measure(entry, experiment.as_mut(), &flags, &command, Some(store))?;
    Ok((experiment, results))
}

/// Runs an experiment with these flags, and keeps nothing.
pub fn once(id: &str, flags: &str, weir: Option<PathBuf>) -> Result<Results> {
    let entry = experiments::find(id)?;
    let words = split(flags);
    let matches = parse(entry, &words)?;
    let mut experiment = entry.build(&matches, &Program { weir })?;
    let command = [split(&entry.subcommand()), words].concat();
    let flags = run_flags(&matches)?;
    measure(entry, experiment.as_mut(), &flags, &command, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_s_flags_are_valid_and_its_cases_follow_from_them() {
        for entry in experiments::all() {
            for flags in [entry.full, entry.quick] {
                let matches = parse(entry, &split(flags)).unwrap();
                let experiment = entry.build(&matches, &Program::default()).unwrap();
                let groups = experiment.groups();
                assert!(
                    !groups.is_empty() && groups.iter().all(|group| !group.is_empty()),
                    "{}",
                    entry.id
                );
                let mut cases: Vec<_> = groups.iter().flatten().collect();
                let all = cases.len();
                cases.sort();
                cases.dedup();
                assert_eq!(cases.len(), all, "{}: two cases are one", entry.id);
            }
        }
    }

    #[test]
    fn the_help_of_an_experiment_is_its_question() {
        let all = with_experiments(clap::Command::new("weir-lab"));
        for entry in experiments::all().filter(|entry| entry.has_command()) {
            let found = match entry.id.strip_prefix("vtfm01-") {
                Some(name) => all.find_subcommand(FAMILY).unwrap().find_subcommand(name),
                None => all.find_subcommand(entry.id),
            };
            let command = found.unwrap();
            assert_eq!(command.get_about().unwrap().to_string(), entry.question);
            assert!(command.get_long_about().is_none(), "{}", entry.id);
        }
    }

    #[test]
    fn a_command_says_what_was_measured_and_not_where_it_is_kept() {
        let words = split(
            "flash-crowd --policies \"default,reserv rst-syn\" --out x --json --rates=2x --seed 3",
        );
        assert_eq!(
            command(&words),
            "weir-lab flash-crowd --policies \"default,reserv rst-syn\" --rates=2x"
        );
    }

    #[test]
    fn committed_results_are_judged_by_the_code_of_today() {
        let mut folders = vec![PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../experiments"
        ))];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "json") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let today = judged(store::read(&path).unwrap()).unwrap();
                    let is_same = store::to_text(&today).unwrap() == text;
                    assert!(is_same, "run `weir-lab judge {}`", path.display());
                    files += 1;
                }
            }
        }
        assert!(files > 0);
    }

    #[test]
    fn several_experiments_do_not_share_a_folder() {
        let folder = |ids: &[&str], id| {
            let args = RunArgs {
                ids: ids.iter().map(|id| (*id).to_owned()).collect(),
                quick: true,
                full: false,
                flags: RunFlags {
                    out: Some("d".into()),
                    ..RunFlags::default()
                },
            };
            args.folder(id)
        };
        assert_eq!(folder(&["bursts"], "bursts"), Some("d".into()));
        let two = ["bursts", "crosscheck"].map(|id| folder(&["bursts", "crosscheck"], id));
        assert_eq!(two, [Some("d/bursts".into()), Some("d/crosscheck".into())]);
    }
}
