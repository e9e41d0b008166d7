//! The frame of all experiments, with a toy experiment and with a real one.

mod toy;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use clap::FromArgMatches;
use weir_lab::cli::{self, RunFlags};
use weir_lab::error::Result;
use weir_lab::experiments;
use weir_lab::plot::picture;
use weir_lab::run::experiment::{Entry, Program};
use weir_lab::run::results::{Results, Verdict};
use weir_lab::run::scheduler::steps;
use weir_lab::run::store::{self, Store};
use weir_lab::show::table;
use weir_testbed::{needs, program};

/// Two slow pools at a time take each other's CPU.
static POOL: Mutex<()> = Mutex::new(());

/// As the registry of `weir-lab`: one line an experiment.
const REGISTRY: &[&[Entry]] = &[toy::ENTRIES];

fn run(
    entry: &Entry,
    flags: &str,
    folder: &Path,
    weir: Option<std::path::PathBuf>,
) -> Result<Results> {
    let words = cli::split(flags);
    let matches = cli::parse(entry, &words)?;
    let mut experiment = entry.build(&matches, &Program { weir })?;
    let flags = RunFlags::from_arg_matches(&matches).unwrap();
    let store = Store::at(folder)?;
    cli::measure(entry, experiment.as_mut(), &flags, &words, Some(&store))
}

fn toy(flags: &str, folder: &Path) -> Result<Results> {
    run(&REGISTRY[0][0], flags, folder, None)
}

/// In the order of measuring: round and case.
fn measured(folder: &Path) -> Vec<(usize, String)> {
    let (_, all) = Store::at(folder).unwrap().earlier().unwrap().unwrap();
    all.iter()
        .map(|one| (one.round, format!("{:?}", one.parameters)))
        .collect()
}

/// What a run leaves that two runs must have in common.
fn lasting(results: &Results) -> String {
    let results = Results {
        started: None,
        ..results.clone()
    };
    store::to_text(&results).unwrap()
}

#[test]
fn a_run_that_was_stopped_and_resumed_measures_what_an_unbroken_one_measures() {
    let [whole, broken] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let flags = "--sides 2,6,20 --rounds 4 --seed 7";
    let unbroken = toy(flags, whole.path()).unwrap();
    // The program dies in the middle of a round, and of a line.
    toy(&format!("{flags} --fail-at 11"), broken.path()).unwrap_err();
    let rounds = broken.path().join("rounds.jsonl");
    let text = std::fs::read_to_string(&rounds).unwrap();
    let text = text.replace(" --fail-at 11", "");
    std::fs::write(&rounds, &text[..text.len() - 20]).unwrap();
    assert_eq!(measured(broken.path()).len(), 9);
    let resumed = toy(&format!("{flags} --resume"), broken.path()).unwrap();
    assert_eq!(lasting(&resumed), lasting(&unbroken));
    assert_eq!(measured(broken.path()), measured(whole.path()));
    assert_eq!(measured(whole.path()).len(), 4 * 6);
}

#[test]
fn the_summary_is_there_after_every_measurement() {
    let folder = tempfile::tempdir().unwrap();
    toy("--sides 2,6 --fail-at 3", folder.path()).unwrap_err();
    let results = store::read(&folder.path().join("results.json")).unwrap();
    assert_eq!(results.cases.len(), 2);
    assert_eq!(results.claims.len(), 2);
}

#[test]
fn another_run_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    toy("--sides 6 --seed 1", folder.path()).unwrap();
    for flags in ["--sides 6 --seed 2 --resume", "--sides 2 --seed 1 --resume"] {
        let error = toy(flags, folder.path()).unwrap_err();
        assert!(error.what.contains("another run"), "{flags}: {error}");
    }
    let more = toy("--sides 6 --seed 1 --rounds 3 --resume", folder.path()).unwrap();
    assert_eq!(more.cases[0].rounds, 3);
    let added = toy("--sides 6 --seed 1 --rounds 2 --add", folder.path()).unwrap();
    assert_eq!(added.cases[0].rounds, 5);
}

#[test]
fn a_toy_has_table_picture_and_claims_as_any_experiment() {
    let folder = tempfile::tempdir().unwrap();
    let results = toy(REGISTRY[0][0].full, folder.path()).unwrap();
    assert!(
        results
            .claims
            .iter()
            .all(|claim| claim.verdict == Verdict::Held),
        "{results:#?}"
    );
    let read = store::read(&folder.path().join("results.json")).unwrap();
    let text = table::render(&read).unwrap();
    assert!(text.contains("the mean is the middle"), "{text}");
    let pictures = folder.path().join("a folder/that is not there");
    picture::write(&read, &pictures).unwrap();
    assert!(pictures.join("toy.png").exists());
}

#[test]
fn the_seed_gives_the_order_and_each_case_is_first_as_often_as_any_other() {
    let order = |seed| {
        let group = |name: &str| {
            let case = |n: usize| [(name.to_owned(), n.to_string())].into();
            (0..3).map(case).collect::<Vec<_>>()
        };
        steps(
            &["a", "b", "c", "d"].map(group),
            |_| String::new(),
            1..=6,
            seed,
        )
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    let all = order(1);
    assert_eq!(all.len(), 6 * 12);
    for n in 0..3 {
        let is_n = |case: &std::collections::BTreeMap<String, String>| {
            case.values().any(|v| *v == n.to_string())
        };
        let groups = all.chunks(3);
        assert_eq!(
            groups.filter(|group| is_n(&group[0].case)).count(),
            8,
            "{n}"
        );
        for m in (0..3).filter(|m| *m != n) {
            let follows = |a: usize, b: usize| {
                let is = |case: &std::collections::BTreeMap<String, String>, n: usize| {
                    case.values().any(|v| *v == n.to_string())
                };
                let pairs = all.chunks(3).flat_map(|group| group.windows(2));
                pairs
                    .filter(|pair| is(&pair[0].case, a) && is(&pair[1].case, b))
                    .count()
            };
            assert_eq!(follows(n, m), follows(m, n));
        }
    }
}

#[test]
fn the_rounds_on_one_bed_come_before_those_on_the_next() {
    let groups =
        ["slow", "fast", "slow"].map(|bed| vec![[("bed".to_owned(), bed.to_owned())].into()]);
    let steps = steps(&groups, |case| case["bed"].clone(), 1..=2, 1);
    let seen: Vec<_> = steps
        .iter()
        .map(|step| (step.case["bed"].as_str(), step.round))
        .collect();
    let slow = [("slow", 1), ("slow", 1), ("slow", 2), ("slow", 2)];
    assert_eq!(seen, [&slow[..], &[("fast", 1), ("fast", 2)]].concat());
}

#[test]
fn a_real_experiment_is_resumed_with_the_same_cases() {
    if !needs::root("a network namespace") {
        return;
    }
    let weir = program::find_or_build("weir").unwrap();
    let entry = experiments::find("bursts").unwrap();
    let [whole, broken] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let flags = "--bursts 2 --size 16 --policies \"default,reserv rst-syn\" --rounds 2 --seed 5";
    let unbroken = run(entry, flags, whole.path(), Some(weir.clone())).unwrap();
    // As if the first run had been stopped after one measurement.
    let text = std::fs::read_to_string(whole.path().join("rounds.jsonl")).unwrap();
    let text: String = text.split_inclusive('\n').take(2).collect();
    std::fs::write(broken.path().join("rounds.jsonl"), text).unwrap();
    let resumed = run(
        entry,
        &format!("{flags} --resume"),
        broken.path(),
        Some(weir),
    )
    .unwrap();
    assert_eq!(measured(broken.path()), measured(whole.path()));
    let cases = |results: &Results| {
        let cases = results.cases.iter();
        cases
            .map(|case| (case.parameters.clone(), case.rounds))
            .collect::<Vec<_>>()
    };
    assert_eq!(cases(&resumed), cases(&unbroken));
    assert_eq!(resumed.facts, unbroken.facts);
}

#[test]
fn a_server_that_queues_inside_is_measured_with_each_guard_before_it() {
    if !needs::root("a network namespace") || !needs::programs(&["go", "haproxy"]) {
        return;
    }
    let weir = program::find_or_build("weir").unwrap();
    let entry = experiments::find("residence").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = entry.quick.replace("plain,weir", "plain,weir,haproxy");
    let results = run(entry, &flags, folder.path(), Some(weir)).unwrap();
    let of = |guard: &str, metric: &str| {
        let case = results.case([("guard", guard)]);
        assert_eq!(case.flaw, None);
        case.median(metric)
    };
    for guard in ["plain", "weir", "haproxy"] {
        assert!(of(guard, "clients") > 0.0, "{results:#?}");
        // Eight in 50 ms, of a machine that may be busy.
        let capacity = of(guard, "capacity_per_s");
        assert!((50.0..=170.0).contains(&capacity), "{capacity}");
    }
    assert_eq!(of("plain", "refused"), 0.0);
    assert!(of("haproxy", "refused") > 0.0, "{results:#?}");
    assert_eq!(results.claims.len(), 3, "{:#?}", results.claims);
}

#[test]
fn a_crowd_is_refused_by_each_guard_in_its_own_way() {
    let programs = ["nginx", "gunicorn", "nft"];
    if !needs::root("a network namespace") || !needs::programs(&programs) {
        return;
    }
    let _turn = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let weir = program::find_or_build("weir").unwrap();
    let entry = experiments::find("instead").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = "--servers pool --guards plain,limit-req,nft-limit,weir --loads 4 --pool-step 0.75 --timeout 1";
    let results = run(entry, flags, folder.path(), Some(weir)).unwrap();
    let shares = |guard: &str| {
        let case = results.case([("guard", guard)]);
        ["refused", "busy"].map(|share| case.median(share))
    };
    assert_eq!(shares("plain"), [0.0, 0.0], "{results:#?}");
    if results.facts["guards_skipped"] != 0 {
        return needs::lacking("nftables' limit");
    }
    for guard in ["nft-limit", "weir"] {
        let [refused, busy] = shares(guard);
        assert!(refused > 0.3 && busy == 0.0, "{guard}: {results:#?}");
    }
    let [refused, busy] = shares("limit-req");
    assert!(busy > 0.3 && refused == 0.0, "{results:#?}");
}

#[test]
fn polite_users_are_served_beside_greedy_ones_that_have_a_limit() {
    let programs = ["nginx", "gunicorn"];
    if !needs::root("a network namespace") || !needs::programs(&programs) {
        return;
    }
    let _turn = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let weir = program::find_or_build("weir").unwrap();
    let entry = experiments::find("instead-greedy").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = "--servers pool --guards weir,weir-class,limit-req-each --loads 4+greedy --pool-step 1 --timeout 1";
    let results = run(entry, flags, folder.path(), Some(weir)).unwrap();
    let of = |guard: &str, share: &str| results.case([("guard", guard)]).median(share);
    assert!(of("weir", "refused") > 0.3, "{results:#?}");
    assert!(of("weir-class", "served") > 0.8, "{results:#?}");
    for guard in ["weir-class", "limit-req-each"] {
        let served = of(guard, "greedy_served");
        assert!(served > 0.0 && served < 0.5, "{guard}: {results:#?}");
    }
    assert_eq!(results.claims.len(), 5, "{:#?}", results.claims);
}

#[test]
fn all_stages_together_serve_gold_in_an_overload_from_every_side_and_a_plain_server_does_not() {
    if !needs::root("an emulated link") {
        return;
    }
    let _turn = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let weir = program::find_or_build("weir").unwrap();
    let entry = experiments::find("whole-life").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let results = run(entry, entry.quick, folder.path(), Some(weir)).unwrap();
    let of = |row: &str, metric: &str| results.case([("row", row)]).median(metric);
    // Short steps, and a machine that may be busy: all would have 0.95 at least.
    assert!(of("all", "gold_served") > 0.8, "{results:#?}");
    assert!(of("plain", "gold_served") < 0.6, "{results:#?}");
    for metric in ["timed_out", "in_vain", "time_wait", "half_closed"] {
        let [plain, all] = ["plain", "all"].map(|row| of(row, metric));
        assert!(all < plain, "{metric}: {all} and {plain}: {results:#?}");
    }
}

#[test]
fn a_capture_of_a_congested_link_is_measured_whole_and_the_filter_finds_the_flood_in_it() {
    if !needs::root("an emulated link") {
        return;
    }
    let entry = experiments::find("trace-links").unwrap();
    let [folder, captures] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let flags = format!("{} --keep {}", entry.quick, captures.path().display());
    let results = run(entry, &flags, folder.path(), None).unwrap();
    let of = |counted: &str| {
        let case = results.case([("counted", counted), ("direction", "to-server")]);
        // It would if the capture lacked a packet.
        assert_eq!(case.flaw, None);
        ["connections", "packets", "flood_hosts"].map(|metric| case.median(metric))
    };
    let [connections, packets, _] = of("all");
    assert!(connections > 10.0 && packets > 4.0 * connections);
    assert_eq!(of("flood"), [connections + 1000.0, packets + 1000.0, 0.0]);
    assert_eq!(of("filtered"), [connections, packets, 1.0]);
    assert_eq!(std::fs::read_dir(captures.path()).unwrap().count(), 2);
}

#[test]
fn the_syns_of_the_kernel_and_of_the_lab_are_seen_when_they_come() {
    if !needs::root("a network namespace") {
        return;
    }
    let entry = experiments::find("syn-timeouts").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = "--seconds 4 --clients linux-before-6.5,lab";
    let results = run(entry, flags, folder.path(), None).unwrap();
    for client in ["linux-before-6.5", "lab"] {
        let case = results.case([("client", client)]);
        let waits = ["wait_1_s", "wait_2_s"].map(|metric| case.median(metric));
        // A time-out is never early. How late it is depends on the machine.
        assert!(waits[0] > 0.9 && waits[1] > 1.9, "{client}: {waits:?}");
        assert_eq!(case.median("within_10_s"), 2.0, "{client}");
    }
}

#[test]
fn a_reader_that_has_closed_the_pipe_is_no_error() {
    let results = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../experiments/proxy/results.json"
    );
    for words in [vec!["list"], vec!["table", results]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir-lab"));
        let status = command.args(&words).stdout(writer).status().unwrap();
        assert!(status.success(), "{words:?}: {status}");
    }
}
