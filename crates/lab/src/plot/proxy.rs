//! The picture of a comparison of proxies: CPU time per reply over the size, in shares of a reference's, one
//! line a contender, one panel a kind of transfer.

use std::path::Path;

use plotters::prelude::*;

use super::{
    Area, Axes, FAILED, colour, draw_axes, draw_header, draw_legend, draw_markers, drawing_failed,
    panel,
};
use crate::error::{Context, Result};
use crate::experiments::proxy_bench::{Kind, Results, Size, Summary};
use crate::proxy::contender::Contender;

const SIZE: (u32, u32) = (1280, 520);
const HEADER_HEIGHT: u32 = 76;
const LEGEND_HEIGHT: u32 = 52;
/// A panel needs two sizes at least to have a line.
const LEAST_SIZES: usize = 2;

/// Writes `proxy-bench.svg` and `proxy-bench.png` into a folder that exists; nothing if no kind of transfer
/// was measured at more than one size.
pub fn write(results: &Results, out: &Path) -> Result<()> {
    match draw(results)? {
        Some(svg) => super::write_both(&svg, out, "proxy-bench"),
        None => Ok(()),
    }
}

/// One panel: a kind of transfer at one number of clients.
struct Panel<'a> {
    kind: Kind,
    summaries: Vec<&'a Summary>,
    sizes: Vec<Size>,
}

fn panels(summaries: &[Summary]) -> Vec<Panel<'_>> {
    let clients = summaries.first().map_or(0, |first| first.case.clients);
    let of_kind = |kind: Kind| {
        let summaries: Vec<&Summary> = summaries
            .iter()
            .filter(|summary| summary.case.kind == kind && summary.case.clients == clients)
            .collect();
        let mut sizes: Vec<Size> = summaries.iter().map(|summary| summary.case.size).collect();
        sizes.sort();
        sizes.dedup();
        Panel {
            kind,
            summaries,
            sizes,
        }
    };
    let kinds = [Kind::Get, Kind::Tunnel].map(of_kind).into_iter();
    kinds
        .filter(|panel| panel.sizes.len() >= LEAST_SIZES)
        .collect()
}

impl Panel<'_> {
    fn of(&self, contender: Contender, size: Size) -> Option<&Summary> {
        let found = self
            .summaries
            .iter()
            .find(|summary| summary.contender == contender && summary.case.size == size);
        found.copied()
    }

    /// Place of each size on the axis, and the share of the reference's CPU time.
    fn line(&self, contender: Contender, reference: Contender) -> Vec<(f64, f64)> {
        let points = self.sizes.iter().enumerate().filter_map(|(place, &size)| {
            let reference = self.of(reference, size)?;
            let share = self.of(contender, size)?.ratio(reference, |row| row.cpu_us);
            Some((place as f64, share.median))
        });
        points.collect()
    }
}

fn draw(results: &Results) -> Result<Option<String>> {
    let panels = panels(&results.summaries);
    let mut contenders: Vec<Contender> = results
        .summaries
        .iter()
        .map(|summary| summary.contender)
        .collect();
    contenders.sort();
    contenders.dedup();
    // Copying is what splicing is held against; without it the one that is measured last.
    let reference = contenders
        .iter()
        .find(|&&contender| contender == Contender::Copy)
        .or(contenders.last());
    let (Some(&reference), false) = (reference, panels.is_empty()) else {
        return Ok(None);
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).context(FAILED)?;
        let (header, rest) = root.split_vertically(HEADER_HEIGHT);
        let (charts, legend) = rest.split_vertically(SIZE.1 - HEADER_HEIGHT - LEGEND_HEIGHT);
        let title = format!(
            "CPU time on the proxy's core per reply, {} = 1",
            reference.name()
        );
        let note = format!("{}; {}", results.machine, results.load);
        draw_header(&header, &title, &note).context(FAILED)?;
        for (area, panel) in charts.split_evenly((1, panels.len())).iter().zip(&panels) {
            draw_panel(area, panel, &contenders, reference).map_err(drawing_failed)?;
        }
        let names: Vec<&str> = contenders
            .iter()
            .map(|contender| contender.name())
            .collect();
        draw_legend(&legend, &names).context(FAILED)?;
        root.present().context(FAILED)?;
    }
    Ok(Some(svg))
}

fn draw_panel(
    area: &Area,
    shown: &Panel,
    contenders: &[Contender],
    reference: Contender,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<Vec<(f64, f64)>> = contenders
        .iter()
        .map(|&contender| shown.line(contender, reference))
        .collect();
    let shares = lines.iter().flatten().map(|(_, share)| *share);
    let top = shares.fold(1.0, f64::max) * 1.1;
    let last = shown.sizes.len() as f64 - 1.0;
    let caption = match shown.kind {
        Kind::Get => "GET on kept connections",
        _ => "Tunnels",
    };
    let mut chart = panel(area, caption).build_cartesian_2d(-0.2..last + 0.2, 0.0..top)?;
    let label = |place: &f64| {
        let size = shown.sizes.get(place.round() as usize);
        let whole = (place - place.round()).abs() < 0.01;
        size.filter(|_| whole)
            .map_or(String::new(), Size::to_string)
    };
    let axes = Axes {
        x_title: "Bytes of a reply",
        x_labels: shown.sizes.len() * 2,
        x_label: &label,
        y_label: &|share| format!("{share:.1}"),
    };
    draw_axes(&mut chart, &axes)?;
    for (index, line) in lines.iter().enumerate() {
        let stroke = colour(index).stroke_width(2);
        chart.draw_series(LineSeries::new(line.iter().copied(), stroke))?;
        draw_markers(&mut chart, index, line)?;
    }
    Ok(())
}
