//! The picture of a run: what happened in each second, and how long the served waited.

use super::clients::Outcome;
use super::tally::Second;
use crate::plot::lines::{Line, Panel, Picture};

type Count = fn(&Second) -> u64;

/// What the panel of counts shows. The place of each is its colour.
const COUNTS: [(&str, Count); 6] = [
    ("refused", |second| second.refused),
    ("due", |second| second.due),
    ("served", |second| second.served),
    ("timed out", |second| second.timed_out),
    ("other", |second| second.other),
    ("reset", |second| second.reset),
];
/// Its colour is that of `served`.
const SERVED: usize = 2;

/// Of a run at this target.
pub fn picture(target: &str, patience_s: f64, outcome: &Outcome) -> Picture {
    let tally = &outcome.tally;
    let counts = COUNTS.iter().enumerate().filter_map(|(name, (_, of))| {
        let points = tally.seconds.iter().enumerate();
        let points: Vec<(f64, f64)> = points
            .map(|(second, counts)| (second as f64, of(counts) as f64))
            .collect();
        let is_seen = points.iter().any(|(_, y)| *y > 0.0);
        is_seen.then(|| Line {
            name,
            points,
            ..Line::default()
        })
    });
    let waits = Line {
        name: SERVED,
        points: tally.points.clone(),
        dots: true,
        ..Line::default()
    };
    let rates: Vec<String> = tally
        .steps
        .iter()
        .map(|step| step.rate_per_s.to_string())
        .collect();
    Picture {
        title: format!("{} new connections/s at {target}", rates.join(", ")),
        note: format!(
            "Poisson arrivals, a new connection for each request, clients give up after {patience_s} s"
        ),
        panels: vec![
            Panel {
                title: "Clients, each second".into(),
                x_title: "Time, s".into(),
                lines: counts.collect(),
                ..Panel::default()
            },
            Panel {
                title: "Response time of the served, s".into(),
                x_title: "When they were due, s".into(),
                marks: vec![(patience_s, "patience".into())],
                logarithmic: true,
                lines: vec![waits],
                ..Panel::default()
            },
        ],
        names: COUNTS.map(|(name, _)| name.to_owned()).into(),
    }
}
