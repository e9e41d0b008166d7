//! The picture of a flash crowd: throughput and response time over the offered rate, one line a policy.

use std::path::Path;

use plotters::chart::ChartContext;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{
    Area, Axes, Coordinates, FAILED, FAINT, colour, decade_above, draw_axes, draw_header,
    draw_legend, draw_markers, drawing_failed, panel, text,
};
use crate::error::{Context, Result};
use crate::experiments::flash_crowd::Results;
use crate::report::{Summary, count};

const SIZE: (u32, u32) = (1280, 560);
const HEADER_HEIGHT: u32 = 76;
const LEGEND_HEIGHT: u32 = 64;

/// One policy's points: offered rate, then the measured values.
struct Line<'a> {
    policy: &'a str,
    index: usize,
    points: Vec<&'a Summary>,
}

impl Line<'_> {
    fn colour(&self) -> RGBColor {
        colour(self.index)
    }

    fn values(&self, value: impl Fn(&Summary) -> f64) -> Vec<(f64, f64)> {
        self.points
            .iter()
            .map(|point| (point.rate_per_s, value(point)))
            .collect()
    }
}

/// Writes `flash-crowd.svg` and `flash-crowd.png` into a folder that exists.
pub fn write(results: &Results, out: &Path) -> Result<()> {
    super::write_both(&draw(results)?, out, "flash-crowd")
}

/// The picture as SVG.
pub fn draw(results: &Results) -> Result<String> {
    let lines = lines(&results.summaries);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).context(FAILED)?;
        let (header, rest) = root.split_vertically(HEADER_HEIGHT);
        let (panels, legend) = rest.split_vertically(SIZE.1 - HEADER_HEIGHT - LEGEND_HEIGHT);
        let (left, right) = panels.split_horizontally(SIZE.0 / 2);
        let title = format!("Flash crowd: {}", results.server);
        draw_header(&header, &title, &note(results)).context(FAILED)?;
        draw_throughput(&left, results, &lines).map_err(drawing_failed)?;
        draw_response(&right, results, &lines).map_err(drawing_failed)?;
        let names: Vec<&str> = lines.iter().map(|line| line.policy).collect();
        draw_legend(&legend, &names).context(FAILED)?;
        root.present().context(FAILED)?;
    }
    Ok(svg)
}

fn lines(summaries: &[Summary]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line> = Vec::new();
    for summary in summaries {
        match lines.iter_mut().find(|line| line.policy == summary.policy) {
            Some(line) => line.points.push(summary),
            None => {
                let index = lines.len();
                lines.push(Line {
                    policy: &summary.policy,
                    index,
                    points: vec![summary],
                });
            }
        }
    }
    for line in &mut lines {
        line.points
            .sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    }
    lines
}

fn note(results: &Results) -> String {
    let flawed = results
        .summaries
        .iter()
        .any(|point| point.median.flaw.is_some());
    let flaws = match flawed {
        true => "; a white dot marks points measured on a busy machine",
        false => "",
    };
    format!("{}; {}{flaws}", results.machine, results.load)
}

fn largest(lines: &[Line], value: impl Fn(&Summary) -> f64 + Copy) -> f64 {
    lines
        .iter()
        .flat_map(|line| line.points.iter().map(move |point| value(point)))
        .fold(1.0, f64::max)
}

fn rate_end(lines: &[Line]) -> f64 {
    largest(lines, |point| point.rate_per_s) * 1.04
}

fn draw_throughput(
    area: &Area,
    results: &Results,
    lines: &[Line],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let top = largest(lines, |point| point.replies_range_per_s.1)
        .max(results.saturation_per_s.unwrap_or(0.0));
    let top = top * 1.12;
    let mut chart =
        panel(area, "Throughput, replies/s").build_cartesian_2d(0.0..rate_end(lines), 0.0..top)?;
    configure(&mut chart, |y| count(*y))?;
    mark_saturation(&mut chart, results, 0.0, top)?;
    for line in lines {
        let spread = line
            .points
            .iter()
            .filter(|point| point.rounds.0 > 1)
            .map(|point| {
                let (least, most) = point.replies_range_per_s;
                PathElement::new(
                    vec![(point.rate_per_s, least), (point.rate_per_s, most)],
                    line.colour().stroke_width(2),
                )
            });
        chart.draw_series(spread)?;
        draw_line(
            &mut chart,
            line,
            &line.values(|point| point.median.replies_per_s),
        )?;
    }
    Ok(())
}

fn draw_response(
    area: &Area,
    results: &Results,
    lines: &[Line],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let top = decade_above(largest(lines, |point| point.median.response.p99_ms));
    let least = lines
        .iter()
        .flat_map(|line| line.values(|point| point.median.response.mean_ms))
        .map(|(_, mean)| mean)
        .filter(|mean| *mean > 0.0)
        .fold(top / 10.0, f64::min);
    // Room below the lowest marker, which would else lie on the axis.
    let bottom = decade_above(least / 1.3) / 10.0;
    let mut chart = panel(
        area,
        "Response time of the served: mean, and 99th percentile (dashed)",
    )
    .build_cartesian_2d(0.0..rate_end(lines), (bottom..top).log_scale())?;
    configure(&mut chart, |y| time_label(*y))?;
    mark_saturation(&mut chart, results, bottom, top)?;
    for line in lines {
        let p99 = line.values(|point| point.median.response.p99_ms.max(bottom));
        chart.draw_series([DashedPathElement::new(
            p99,
            5,
            4,
            line.colour().mix(0.75).stroke_width(1),
        )])?;
        draw_line(
            &mut chart,
            line,
            &line.values(|point| point.median.response.mean_ms.max(bottom)),
        )?;
    }
    Ok(())
}

fn time_label(ms: f64) -> String {
    match ms {
        ms if ms >= 999.0 => format!("{:.0} s", ms / 1e3),
        ms if ms >= 0.99 => format!("{ms:.0} ms"),
        ms => format!("{:.0} µs", ms * 1e3),
    }
}

fn configure<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
    label: impl Fn(&f64) -> String,
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let axes = Axes {
        x_title: "Offered load, connections/s",
        x_labels: 6,
        x_label: &|x| count(*x),
        y_label: &label,
    };
    draw_axes(chart, &axes)
}

fn mark_saturation<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
    results: &Results,
    bottom: f64,
    top: f64,
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let Some(saturation) = results.saturation_per_s else {
        return Ok(());
    };
    let path = [(saturation, bottom), (saturation, top)];
    chart.draw_series([DashedPathElement::new(path, 2, 4, FAINT.stroke_width(1))])?;
    let style = text(12, FAINT).pos(Pos::new(HPos::Left, VPos::Bottom));
    chart.draw_series([
        EmptyElement::at((saturation, bottom)) + Text::new("saturation", (5, -4), style)
    ])?;
    Ok(())
}

/// A line and its markers, with a white dot in those of points that do not count. Their shapes differ as the colours do, for prints in grey.
fn draw_line<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
    line: &Line,
    points: &[(f64, f64)],
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart.draw_series(LineSeries::new(
        points.iter().copied(),
        line.colour().stroke_width(2),
    ))?;
    let flawed = line
        .points
        .iter()
        .zip(points)
        .filter(|(point, _)| point.median.flaw.is_some());
    let flawed: Vec<(f64, f64)> = flawed.map(|(_, &at)| at).collect();
    draw_markers(chart, line.index, points)?;
    chart.draw_series(
        flawed
            .into_iter()
            .map(|at| Circle::new(at, 2, WHITE.filled())),
    )?;
    Ok(())
}
