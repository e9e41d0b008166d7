//! Draws lines in panels.

use std::path::Path;

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{
    Area, Axes, Coordinates, FAILED, FAINT, colour, draw_axes, draw_header, draw_legend,
    draw_markers, drawing_failed, panel, text,
};
use crate::error::{Context, Result};
use crate::show::format::count;

const PANEL_WIDTH: u32 = 640;
/// Of three in a row.
const NARROW_PANEL_WIDTH: u32 = 480;
const PANEL_HEIGHT: u32 = 420;
const HEADER_HEIGHT: u32 = 76;
const LEGEND_HEIGHT: u32 = 64;

/// A picture.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// What it shows.
    pub title: String,
    /// Machine and load.
    pub note: String,
    /// Side by side, at most two in a row.
    pub panels: Vec<Panel>,
    /// Names of the lines, in the order of their index; shared by all panels.
    pub names: Vec<String>,
}

/// One panel.
#[derive(Debug, Clone, Default)]
pub struct Panel {
    /// What its vertical axis is.
    pub title: String,
    /// What its horizontal axis is.
    pub x_title: String,
    /// Lines, by the index of their name.
    pub lines: Vec<Line>,
    /// Horizontal dashed lines with a word each.
    pub marks: Vec<(f64, String)>,
    /// The vertical axis is logarithmic.
    pub logarithmic: bool,
    /// Words along the horizontal axis, at 0, 1, 2 …; without any its numbers.
    pub words: Vec<String>,
}

/// One line.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Index of its name.
    pub name: usize,
    /// Points; (x, y).
    pub points: Vec<(f64, f64)>,
    /// Least and most of the rounds, at the same x.
    pub spread: Vec<(f64, f64, f64)>,
    /// A marker at each point.
    pub markers: bool,
    /// Small dots that nothing joins, instead of a line.
    pub dots: bool,
}

impl Picture {
    /// Writes `NAME.svg` and `NAME.png` into a folder that exists.
    pub fn write(&self, out: &Path, name: &str) -> Result<()> {
        super::write_both(&self.draw()?, out, name)
    }

    /// As SVG.
    pub fn draw(&self) -> Result<String> {
        let columns = match self.panels.len() {
            0 | 1 => 1,
            2..=4 => 2,
            _ => 3,
        };
        let rows = self.panels.len().div_ceil(columns).max(1);
        let width = match columns {
            3 => NARROW_PANEL_WIDTH * 3,
            _ => PANEL_WIDTH * 2,
        };
        let height = HEADER_HEIGHT + LEGEND_HEIGHT + PANEL_HEIGHT * rows as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            root.fill(&WHITE).context(FAILED)?;
            let (header, rest) = root.split_vertically(HEADER_HEIGHT);
            let (panels, legend) = rest.split_vertically(PANEL_HEIGHT * rows as u32);
            draw_header(&header, &self.title, &self.note).context(FAILED)?;
            let areas = panels.split_evenly((rows, columns));
            for (area, panel) in areas.iter().zip(&self.panels) {
                panel.draw(area).map_err(drawing_failed)?;
            }
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            draw_legend(&legend, &names).context(FAILED)?;
            root.present().context(FAILED)?;
        }
        Ok(svg)
    }
}

impl Panel {
    fn draw(&self, area: &Area) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let right = largest(&mut points().map(|(x, _)| *x)).max(1e-3) * 1.03;
        let spreads = self.lines.iter().flat_map(|line| &line.spread);
        let tops = points()
            .map(|(_, y)| *y)
            .chain(spreads.map(|(_, _, most)| *most));
        let top = largest(&mut tops.chain(self.marks.iter().map(|(y, _)| *y))).max(1e-3);
        let (left, right) = match self.words.len() {
            0 => (0.0, right),
            words => (-0.2, words as f64 - 0.8),
        };
        let mut builder = panel(area, &self.title);
        if self.logarithmic {
            let positive = points().map(|(_, y)| *y).filter(|y| *y > 0.0);
            let bottom = positive.fold(top, f64::min).min(top / 10.0) / 1.5;
            let range = (bottom..top * 2.0).log_scale();
            self.fill(&mut builder.build_cartesian_2d(left..right, range)?, bottom)
        } else {
            self.fill(
                &mut builder.build_cartesian_2d(left..right, 0.0..top * 1.12)?,
                0.0,
            )
        }
    }

    fn fill<X, Y>(
        &self,
        chart: &mut plotters::chart::ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
        bottom: f64,
    ) -> std::result::Result<(), Box<dyn std::error::Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let word = |x: &f64| {
            let is_whole = (x - x.round()).abs() < 0.01;
            let word = self.words.get(x.round() as usize).filter(|_| is_whole);
            word.cloned().unwrap_or_default()
        };
        let axes = Axes {
            x_title: &self.x_title,
            x_labels: 8,
            x_label: match self.words.is_empty() {
                true => &|x| number(*x),
                false => &word,
            },
            y_label: &|y| number(*y),
        };
        draw_axes(chart, &axes)?;
        let right = chart.x_range().end;
        for (y, word) in &self.marks {
            let path = [(chart.x_range().start, *y), (right, *y)];
            chart.draw_series([DashedPathElement::new(path, 2, 4, FAINT.stroke_width(1))])?;
            let style = text(12, FAINT).pos(Pos::new(HPos::Right, VPos::Bottom));
            let label = Text::new(word.clone(), (-4, -2), style);
            chart.draw_series([EmptyElement::at((right, *y)) + label])?;
        }
        for line in &self.lines {
            let stroke = colour(line.name).stroke_width(2);
            // A logarithmic axis has no place for 0: nothing was served, for example.
            let has_place = |(_, y): &(f64, f64)| !self.logarithmic || *y > 0.0;
            let points: Vec<(f64, f64)> = line.points.iter().copied().filter(has_place).collect();
            if line.dots {
                let dot = |at| Circle::new(at, 3, colour(line.name).filled());
                chart.draw_series(points.iter().copied().map(dot))?;
                continue;
            }
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?;
            let spread = line.spread.iter().map(|&(x, least, most)| {
                PathElement::new(vec![(x, least.max(bottom)), (x, most.max(bottom))], stroke)
            });
            chart.draw_series(spread)?;
            if line.markers {
                draw_markers(chart, line.name, &points)?;
            }
        }
        Ok(())
    }
}

/// Small numbers keep their fractions.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 10.0 || (v - v.round()).abs() < 1e-9 => count(value),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
