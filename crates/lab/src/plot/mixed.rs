//! The picture of cache hits and passed transfers together: median latency of one side over how much of the other
//! is there, one line an engine, one panel a side and size, one row a pace.

use std::path::Path;

use plotters::prelude::*;

use super::{
    Area, Axes, FAILED, colour, draw_axes, draw_header, draw_legend, draw_markers, drawing_failed,
    panel,
};
use crate::error::{Context, Result};
use crate::experiments::proxy_mixed::{Pace, Results, Summary};
use crate::proxy::contender::Contender;

const PANEL_SIZE: (u32, u32) = (360, 320);
const HEADER_HEIGHT: u32 = 76;
const LEGEND_HEIGHT: u32 = 52;
const LEAST_WIDTH: u32 = 1100;

/// Writes `proxy-mixed.svg` and `proxy-mixed.png` into a folder that exists.
pub fn write(results: &Results, out: &Path) -> Result<()> {
    super::write_both(&draw(results)?, out, "proxy-mixed")
}

/// Lines that differ in the engine only.
type Panel<'a> = Vec<&'a Summary>;

/// Panels of a pace, in the order of the summaries.
fn panels(summaries: &[Summary], pace: Pace) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel> = Vec::new();
    for summary in summaries.iter().filter(|summary| summary.line.pace == pace) {
        let key = |summary: &Summary| (summary.line.size, summary.line.watched);
        match panels.last_mut() {
            Some(panel) if key(panel[0]) == key(summary) => panel.push(summary),
            _ => panels.push(vec![summary]),
        }
    }
    panels
}

fn draw(results: &Results) -> Result<String> {
    let summaries = &results.summaries;
    let rows: Vec<(Pace, Vec<Panel>)> = [Pace::Closed, Pace::Paced]
        .into_iter()
        .map(|pace| (pace, panels(summaries, pace)))
        .filter(|(_, panels)| !panels.is_empty())
        .collect();
    let mut contenders: Vec<Contender> = summaries.iter().map(|one| one.line.contender).collect();
    contenders.sort();
    contenders.dedup();
    let columns = rows
        .iter()
        .map(|(_, panels)| panels.len())
        .max()
        .unwrap_or(1);
    let width = (columns as u32 * PANEL_SIZE.0).max(LEAST_WIDTH);
    let charts_height = rows.len() as u32 * PANEL_SIZE.1;
    let mut svg = String::new();
    {
        let size = (width, HEADER_HEIGHT + charts_height + LEGEND_HEIGHT);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).context(FAILED)?;
        let (header, rest) = root.split_vertically(HEADER_HEIGHT);
        let (charts, legend) = rest.split_vertically(charts_height);
        let title = "Median latency of cache hits and passed transfers, the one beside the other";
        let note = format!("{}; {}", results.machine, results.load);
        draw_header(&header, title, &note).context(FAILED)?;
        for (area, (pace, panels)) in charts.split_evenly((rows.len(), 1)).iter().zip(&rows) {
            for (area, panel) in area.split_evenly((1, panels.len())).iter().zip(panels) {
                draw_panel(area, panel, *pace, &contenders).map_err(drawing_failed)?;
            }
        }
        let names: Vec<&str> = contenders.iter().map(|one| one.name()).collect();
        draw_legend(&legend, &names).context(FAILED)?;
        root.present().context(FAILED)?;
    }
    Ok(svg)
}

fn draw_panel(
    area: &Area,
    shown: &Panel,
    pace: Pace,
    contenders: &[Contender],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let Some(first) = shown.first().map(|summary| summary.line) else {
        return Ok(());
    };
    let all = || shown.iter().flat_map(|summary| &summary.steps);
    let top = all().map(|step| step.p50_us.median).fold(1.0, f64::max) * 1.1;
    let last = all().map(|step| step.added).fold(0.0, f64::max);
    let caption = format!("{} of {}, µs", first.watched.name(), first.size);
    let (from, to) = (-0.05 * last, 1.05 * last);
    let mut chart = panel(area, &caption).build_cartesian_2d(from..to, 0.0..top)?;
    let unit = match pace {
        Pace::Closed => "clients of",
        Pace::Paced => "share of the core for",
    };
    let axes = Axes {
        x_title: &format!("added: {unit} {}", first.watched.other().name()),
        x_labels: 5,
        x_label: &|added| pace.amount(*added),
        y_label: &|us| format!("{us:.0}"),
    };
    draw_axes(&mut chart, &axes)?;
    for (index, contender) in contenders.iter().enumerate() {
        let line = shown.iter().find(|one| one.line.contender == *contender);
        let steps = line.into_iter().flat_map(|one| &one.steps);
        let points: Vec<(f64, f64)> = steps.map(|step| (step.added, step.p50_us.median)).collect();
        let stroke = colour(index).stroke_width(2);
        chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?;
        draw_markers(&mut chart, index, &points)?;
    }
    Ok(())
}
