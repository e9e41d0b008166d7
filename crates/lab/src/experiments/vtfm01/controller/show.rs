//! What the controller's experiment tells: progress, tables and the picture.

use super::{
    BEFORE_STEP, BURSTS_MULTIPLE, Bin, Results, Row, STEP_AFTER, STEP_BEFORE, Step, Summary,
};
use crate::experiments::vtfm01::{Spread, line};
use crate::plot::lines::{Line, Panel, Picture};
use crate::report::{ms, table};

pub(super) fn name(controlled: bool) -> &'static str {
    if controlled {
        "controller"
    } else {
        "kernel alone"
    }
}

pub(super) fn progress(row: &Row) -> String {
    let flaw = row.seen.flaw.as_ref();
    format!(
        "  {:>4}× {:<12} {:>6.0} replies/s ({:>3.0} % of the peak), wait p99 {:>7} ms, gold served {:>3.0} %{}",
        row.multiple,
        name(row.controlled),
        row.seen.replies_per_s,
        row.of_peak * 100.0,
        ms(row.seen.wait.p99_ms),
        row.seen.gold_served * 100.0,
        flaw.map_or(String::new(), |flaw| format!(
            "\n      ! THIS POINT DOES NOT COUNT: {flaw}"
        ))
    )
}

pub(super) fn tables(results: &Results) -> String {
    let head = [
        "load",
        "",
        "replies/s",
        "of peak",
        "wait p99 ms",
        "gold served",
        "turned away",
        "CPU",
    ];
    let row = |summary: &Summary| {
        vec![
            format!("{}×", summary.multiple),
            name(summary.controlled).to_string(),
            summary.replies_per_s.cell(0),
            summary.of_peak.percent_cell(),
            summary.wait_p99_ms.cell(1),
            summary.gold_served.percent_cell(),
            summary.turned_away.cell(0),
            summary.cpu.percent_cell(),
        ]
    };
    let rows: Vec<Vec<String>> = results.summaries.iter().map(row).collect();
    let mut text = format!(
        "{}\n{}: peak {:.0} replies/s; {}\n\n{}",
        results.machine,
        results.server,
        results.saturation_per_s,
        results.objective(),
        table(&head, &rows)
    );
    for step in &results.steps {
        text += &format!(
            "\nstep {STEP_BEFORE} to {STEP_AFTER}×, {}: settled after {:.1} s",
            name(step.controlled),
            step.settled_after_s
        );
    }
    for seen in &results.bursts {
        text += &format!(
            "\nbursts at {BURSTS_MULTIPLE}×: {} turned away, {} SYNs policed, {:.0} connections/s",
            seen.turned_away, seen.policed, seen.offered_per_s
        );
    }
    text + "\n"
}

pub(super) fn picture(results: &Results) -> Picture {
    let steps = || results.steps.iter();
    let course = |value: fn(&Bin) -> f64| {
        let line = |step: &Step| Line {
            name: usize::from(step.controlled),
            points: step
                .bins
                .iter()
                .map(|bin| (bin.at_s + BEFORE_STEP.as_secs_f64(), value(bin)))
                .collect(),
            ..Line::default()
        };
        steps().map(line).collect::<Vec<_>>()
    };
    let by_load = |value: fn(&Summary) -> Spread| {
        let line = |controlled: bool| {
            let of = results
                .summaries
                .iter()
                .filter(|s| s.controlled == controlled);
            line(usize::from(controlled), of.map(|s| (s.multiple, value(s))))
        };
        vec![line(false), line(true)]
    };
    let step_at = format!(
        "Seconds; the load rises from {STEP_BEFORE} to {STEP_AFTER} × saturation at {}",
        BEFORE_STEP.as_secs()
    );
    let loads = "Load, multiples of saturation";
    let throughput = Panel {
        title: "Throughput over the peak".into(),
        x_title: loads.into(),
        lines: by_load(|s| s.of_peak),
        marks: match results.max_cpu {
            Some(_) => Vec::new(),
            None => vec![(0.97, "97 %".into())],
        },
        ..Panel::default()
    };
    let accepts = Panel {
        title: "Accepts/s".into(),
        x_title: step_at.clone(),
        lines: course(|bin| bin.accepts_per_s),
        ..Panel::default()
    };
    let limit = f64::from(2 * results.target_wait_ms);
    let (what, of_bin, by_load, course, mark) = match results.max_cpu {
        Some(most) => (
            "Share of all CPUs that is used",
            "",
            by_load(|s| s.cpu),
            course(|bin| bin.cpu),
            (most, "max_cpu".to_string()),
        ),
        None => (
            "Wait in the accept queue in ms, 99th percentile",
            " of 100 ms",
            by_load(|s| s.wait_p99_ms),
            course(|bin| bin.wait_p99_ms),
            (limit, "twice the target".to_string()),
        ),
    };
    let held_by_load = Panel {
        title: what.into(),
        x_title: loads.into(),
        lines: by_load,
        marks: vec![mark.clone()],
        logarithmic: results.max_cpu.is_none(),
    };
    let held_over_time = Panel {
        title: format!("{what}{of_bin}"),
        x_title: step_at,
        lines: course,
        marks: vec![mark],
        logarithmic: results.max_cpu.is_none(),
    };
    Picture {
        title: "The controller: an objective, no rate set by hand".into(),
        note: format!(
            "{}; {}; {}",
            results.machine,
            results.server,
            results.objective()
        ),
        panels: vec![throughput, held_by_load, accepts, held_over_time],
        names: vec!["kernel alone".into(), "controller".into()],
    }
}
