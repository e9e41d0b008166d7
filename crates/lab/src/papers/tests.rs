//! The list holds what the papers have, and the report what the list has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock::Clock;
use super::command::{Args, end, run, stored};
use super::list::{self, List, Scale};
use super::measured::Outcome;
use super::report::Report;
use super::verdict::Verdict;
use super::{page, terminal};
use crate::cli;
use crate::experiments;
use crate::run::experiment::Program;
use crate::run::results::{Parameters, has};
use crate::run::store;
use crate::show::template::parts;

const SCALES: [Scale; 2] = [Scale::Quick, Scale::Full];
/// Metrics of experiments of which no results are stored.
const NOT_STORED: [(&str, &[&str]); 1] = [("proxy-bench", &["data_per_ack", "saved_of_squid"])];

fn committed() -> List {
    List::committed().unwrap()
}

fn experiments_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments"))
}

/// Of the stored results.
fn report() -> Report {
    let list = committed();
    let outcomes = stored(&list, &experiments_folder()).unwrap();
    Report::of("stored", list, outcomes).unwrap()
}

/// The cases of a run.
fn cases(run: &list::Run, scale: Scale) -> Vec<Parameters> {
    let entry = experiments::find(&run.experiment).unwrap();
    let matches = cli::parse(entry, &cli::split(run.flags(scale))).unwrap();
    let experiment = entry.build(&matches, &Program::default()).unwrap();
    experiment.groups().into_iter().flatten().collect()
}

/// Metrics by the command of the experiments that have them.
fn known_metrics(list: &List) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut known: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for run in list.runs.values() {
        let command = experiments::find(&run.experiment).unwrap().command;
        let of_command = known.entry(command).or_default();
        if let Some(file) = &run.stored {
            let results = store::read(&experiments_folder().join(file)).unwrap();
            let cases = results.cases.into_iter();
            of_command.extend(cases.flat_map(|case| case.metrics.into_keys()));
        }
        for (_, metrics) in NOT_STORED.iter().filter(|(of, _)| *of == command) {
            of_command.extend(metrics.iter().map(|metric| (*metric).to_owned()));
        }
    }
    known
}

fn wanted(filter: &str) -> Parameters {
    let pairs = filter.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn every_table_and_figure_of_the_papers_is_in_the_list() {
    let roman = ["I", "II", "III"];
    let papers: [(&str, usize, Vec<String>); 5] = [
        ("SB06", 5, roman.map(String::from).into()),
        ("BHD18", 10, roman.map(String::from).into()),
        ("RR02", 21, (1..=4).map(|n| n.to_string()).collect()),
        ("FTY99", 7, (1..=4).map(|n| n.to_string()).collect()),
        ("VTFM01", 7, (1..=2).map(|n| n.to_string()).collect()),
    ];
    let list = committed();
    let mut expected = BTreeSet::new();
    for (paper, figures, tables) in papers {
        expected.extend((1..=figures).map(|n| format!("{paper} Figure {n}")));
        expected.extend(tables.iter().map(|table| format!("{paper} Table {table}")));
    }
    let names: Vec<String> = list
        .parts
        .iter()
        .map(|part| format!("{} {}", part.paper, part.part))
        .collect();
    let listed: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(listed, expected);
    assert_eq!(names.len(), listed.len(), "a part is there twice");
    let keys: BTreeSet<&String> = list.parts.iter().map(|part| &part.key).collect();
    assert_eq!(keys.len(), names.len(), "two parts have one key");
}

#[test]
fn every_part_is_answered_by_registered_experiments_or_says_why_not() {
    let list = committed();
    for part in &list.parts {
        let reasons = [&part.not_reproduced, &part.nothing_to_compare];
        let reasons = reasons.into_iter().flatten().count();
        let is_answered = !part.runs.is_empty() && !part.figures.is_empty();
        assert_eq!(reasons + usize::from(is_answered), 1, "{}", part.key);
        assert!(
            list.paper(part).is_ok() && part.says.len() > 20,
            "{}",
            part.key
        );
        for figure in &part.figures {
            let run = part.run_of(figure).unwrap();
            assert!(part.runs.iter().any(|name| name == run), "{}", part.key);
        }
        if let Some(see) = &part.see {
            assert!(experiments_folder().join("..").join(see).exists(), "{see}");
        }
    }
    let needed: BTreeSet<&str> = list.needed().into_iter().collect();
    let there: BTreeSet<&str> = list.runs.keys().map(String::as_str).collect();
    assert_eq!(
        needed, there,
        "runs that no part needs, or that are not there"
    );
    for run in list.runs.values() {
        for scale in SCALES {
            assert!(!cases(run, scale).is_empty(), "{}", run.experiment);
        }
    }
}

#[test]
fn every_number_refers_to_one_measured_case_and_to_a_metric_that_there_is() {
    let list = committed();
    let known = known_metrics(&list);
    for part in &list.parts {
        for figure in &part.figures {
            let run = list.run(part.run_of(figure).unwrap()).unwrap();
            let command = experiments::find(&run.experiment).unwrap().command;
            for (metric, filter) in parts(figure.reference().0) {
                let of = format!("{}: {metric}[{filter}]", part.key);
                assert!(known[command].contains(metric), "{of}: no such metric");
                let wanted = wanted(filter);
                for scale in SCALES {
                    let cases = cases(run, scale);
                    let found = cases.iter().filter(|case| has(case, &wanted)).count();
                    assert_eq!(found, 1, "{of}: cases of the {} run", scale.name());
                }
            }
        }
    }
}

#[test]
fn the_quick_run_takes_at_most_25_minutes_on_two_cores() {
    let list = committed();
    let clock = Clock::new(&list, &list.needed(), Scale::Quick).unwrap();
    assert!(
        clock.left() <= Duration::from_secs(25 * 60),
        "{:?}",
        clock.left()
    );
}

#[test]
fn the_time_left_follows_from_what_has_been_done() {
    let list = committed();
    let mut clock = Clock::new(&list, &["delay", "delay", "delay"], Scale::Quick).unwrap();
    let one = clock.of(0);
    assert!(clock.left().abs_diff(one * 3) < Duration::from_millis(1));
    clock.done(0, one * 2);
    assert!(clock.left().abs_diff(one * 4) < Duration::from_millis(1));
}

#[test]
fn only_the_chosen_papers_and_parts_are_in_a_report() {
    let chosen = |names: &[&str]| {
        let mut list = committed();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        list.keep_only(&names).map(|()| list)
    };
    let list = chosen(&["vtfm01", "RR02-fig5"]).unwrap();
    assert_eq!(list.parts.len(), 10);
    assert_eq!(
        list.needed(),
        ["get", "preferred", "priorities", "police-high"]
    );
    let error = chosen(&["rr02-fig99"]).unwrap_err();
    assert!(error.hint.contains("--list"), "{error}");
}

#[test]
fn the_page_is_well_formed_and_refers_to_nothing_but_itself() {
    let page = page::of(&report()).unwrap();
    let markup = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let document = roxmltree::Document::parse(markup).unwrap();
    let elements = || document.descendants().filter(|node| node.is_element());
    let name = |node: &roxmltree::Node| node.tag_name().name().to_owned();
    let ids: Vec<&str> = elements().filter_map(|node| node.attribute("id")).collect();
    assert_eq!(
        ids.iter().collect::<BTreeSet<_>>().len(),
        ids.len(),
        "an id is there twice"
    );
    for node in elements() {
        let tag = name(&node);
        assert!(
            !["script", "link", "img", "iframe", "object"].contains(&tag.as_str()),
            "{tag}"
        );
        assert_eq!(node.attribute("src"), None);
        if let Some(target) = node.attribute("href") {
            assert!(
                ids.contains(&target.trim_start_matches('#')) && target.starts_with('#'),
                "{target}"
            );
        }
        if tag == "th" {
            assert!(node.has_attribute("scope"));
        }
        if tag == "svg" {
            assert!(
                node.first_element_child()
                    .is_some_and(|first| name(&first) == "title")
            );
        }
    }
    let style = elements().find(|node| name(node) == "style").unwrap();
    let style = style.text().unwrap();
    assert!(!style.contains("url(") && !style.contains("@import"));
    assert!(style.contains("prefers-color-scheme: dark"));
    for part in &committed().parts {
        assert!(ids.contains(&part.key.as_str()), "{}", part.key);
    }
    assert!(elements().filter(|node| name(node) == "svg").count() > 5);
}

#[test]
fn what_experiments_say_is_escaped() {
    let list = committed();
    let hostile = "<script>alert('&')</script>\u{1b}[31m";
    let mut outcomes = stored(&list, &experiments_folder()).unwrap();
    if let Some(Outcome::Measured(measured)) = outcomes.get_mut("get") {
        measured.results.note = Some(hostile.into());
        measured
            .results
            .facts
            .insert(hostile.into(), hostile.into());
        measured.results.cases[0].flaw = Some(hostile.into());
    }
    outcomes.insert("win-emu".into(), Outcome::Failed(hostile.into()));
    let report = Report::of("stored", list, outcomes).unwrap();
    let page = page::of(&report).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(&#39;&amp;&#39;)"));
    let markup = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    assert!(roxmltree::Document::parse(markup).is_ok());
}

#[test]
fn a_failed_experiment_is_a_row_and_the_others_are_judged() {
    let list = committed();
    let mut outcomes = stored(&list, &experiments_folder()).unwrap();
    outcomes.insert("win-emu".into(), Outcome::Failed("the server died".into()));
    outcomes.insert("mixed".into(), Outcome::NotPossible("no second CPU".into()));
    let report = Report::of("stored", list, outcomes).unwrap();
    let of = |key: &str| {
        let part = report.parts.iter().find(|part| part.key == key).unwrap();
        (part.verdict, part.why.clone().unwrap_or_default())
    };
    assert_eq!(of("sb06-fig4"), (Verdict::Failed, "the server died".into()));
    assert_eq!(
        of("rr02-fig18"),
        (Verdict::NotPossible, "no second CPU".into())
    );
    assert_eq!(of("vtfm01-fig5").0, Verdict::Holds);
    let summary = terminal::summary(&report);
    assert!(summary.contains("the server died") && summary.contains("no second CPU"));
    assert!(end(&report).unwrap_err().to_string().contains("win-emu"));
}

#[test]
fn a_verdict_by_some_of_a_part_s_numbers_says_by_how_many() {
    let report = report();
    let summary = terminal::summary(&report);
    let page = page::of(&report).unwrap();
    let mut partly = 0;
    for part in &report.parts {
        let judged = part.figures.iter();
        let judged = judged.filter(|figure| figure.verdict.is_judged()).count();
        let words = part.judged_by().unwrap_or_default();
        if judged == 0 || judged == part.figures.len() {
            assert_eq!(words, "", "{}", part.key);
            continue;
        }
        partly += 1;
        assert_eq!(
            words,
            format!("by {judged} of {} numbers", part.figures.len())
        );
        assert!(summary.contains(&format!("{}, {words}", part.verdict.words())));
        assert!(page.contains(&words));
    }
    assert!(partly > 0, "no part has a number without a result");
}

#[test]
fn the_json_has_every_part_with_its_verdict() {
    let report = report();
    let json: serde_json::Value =
        serde_json::from_str(&terminal::as_json(&report).unwrap()).unwrap();
    assert_eq!(json["parts"].as_array().unwrap().len(), report.parts.len());
    let total: u64 = json["counts"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(|n| n.as_u64())
        .sum();
    assert_eq!(total as usize, report.parts.len());
    let part = &json["parts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|part| part["key"] == "rr02-tab4")
        .unwrap();
    assert_eq!(part["verdict"], "holds-weaker");
    assert_eq!(part["figures"][0]["certainty"]["kind"], "interval");
    assert_eq!(json["runs"]["delay"]["machine"]["cores"], 2);
}

/// Of BHD18 Figure 3, which is computed: it needs no root and no time.
fn args(out: &Path, resume: bool) -> Args {
    Args {
        only: vec!["bhd18-fig3".into()],
        quick: true,
        full: false,
        stored: None,
        resume,
        report: None,
        out: out.to_owned(),
        weir: None,
        list: false,
        json: true,
    }
}

#[test]
fn a_resumed_report_keeps_what_is_measured_and_needs_no_root() {
    let out = tempfile::tempdir().unwrap();
    run(&args(out.path(), false)).unwrap();
    let rounds = out.path().join("quick/response-time/rounds.jsonl");
    let measured = std::fs::read_to_string(&rounds).unwrap();
    // A number that nothing computes shows that it was kept.
    let line = measured
        .lines()
        .find(|line| line.contains("\"segments\":\"25\""))
        .unwrap();
    let value = line
        .split("\"increase\":")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    std::fs::write(&rounds, measured.replacen(value, "77.0", 1)).unwrap();
    run(&args(out.path(), true)).unwrap();
    let page = std::fs::read_to_string(out.path().join("report/index.html")).unwrap();
    assert!(page.contains("7700 %"));
    run(&args(out.path(), false)).unwrap();
    let page = std::fs::read_to_string(out.path().join("report/index.html")).unwrap();
    assert!(
        !page.contains("7700 %"),
        "without --resume it is measured again"
    );
}
