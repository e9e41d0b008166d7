//! Pictures of results: drawn as SVG (plotters) and, rendered from it with an embedded font, as PNG (resvg).

pub mod lines;
pub mod picture;

use std::path::Path;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::{Context, Error, Result};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Coordinates<X, Y> = Cartesian2d<X, Y>;

/// PNG pixels for one unit of the SVG.
const PNG_SCALE: f32 = 1.5;
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Okabe and Ito's colours, which stay apart for the colour-blind; yellow is too faint on white. And two that are apart
/// from them by their marker.
const COLOURS: [RGBColor; 9] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 86, 75),
    RGBColor(127, 127, 127),
];

/// Colour of the line with this index.
fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Marker of the line with this index: a circle, a square, a triangle. Lines that share a colour have different ones.
fn marker(index: usize) -> usize {
    (index + index / COLOURS.len()) % 3
}

/// Writes `NAME.svg` and `NAME.png` into a folder that exists.
fn write_both(svg: &str, out: &Path, name: &str) -> Result<()> {
    let svg_path = out.join(format!("{name}.svg"));
    std::fs::write(&svg_path, svg).context(format!("cannot write {}", svg_path.display()))?;
    let png_path = out.join(format!("{name}.png"));
    std::fs::write(&png_path, render(svg)?)
        .context(format!("cannot write {}", png_path.display()))?;
    eprintln!(
        "weir-lab: wrote {} and {}",
        svg_path.display(),
        png_path.display()
    );
    Ok(())
}

/// Renders an SVG as PNG, with DejaVu Sans for all text: no font of the system is needed.
pub fn render(svg: &str) -> Result<Vec<u8>> {
    use resvg::{tiny_skia, usvg};
    let mut options = usvg::Options {
        font_family: "DejaVu Sans".into(),
        ..usvg::Options::default()
    };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = usvg::Tree::from_str(svg, &options).context("cannot read the picture's SVG")?;
    let size = tree.size();
    let pixels = |units: f32| (units * PNG_SCALE).round() as u32;
    let mut pixmap = tiny_skia::Pixmap::new(pixels(size.width()), pixels(size.height()))
        .ok_or_else(|| Error::failed("cannot render the picture", "it has no size"))?;
    let transform = tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE);
    resvg::render(&tree, transform, &mut pixmap.as_mut());
    pixmap
        .encode_png()
        .context("cannot encode the picture as PNG")
}

const FAILED: &str = "cannot draw the picture";

fn drawing_failed(cause: Box<dyn std::error::Error>) -> Error {
    Error::failed(FAILED, cause)
}

fn text(size: u32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

/// An empty panel under a title; its margins are the same in all pictures.
fn panel<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, text(15, INK))
        .margin_left(16)
        .margin_right(28)
        .x_label_area_size(46)
        .y_label_area_size(64);
    builder
}

/// What is written along a panel's axes.
struct Axes<'a> {
    /// What the horizontal axis is.
    x_title: &'a str,
    /// Labels along it, at most.
    x_labels: usize,
    x_label: &'a dyn Fn(&f64) -> String,
    y_label: &'a dyn Fn(&f64) -> String,
}

/// Axes, labels and grid, in the style of all pictures.
fn draw_axes<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
    axes: &Axes<'_>,
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(axes.x_title)
        .x_label_formatter(&axes.x_label)
        .y_label_formatter(&axes.y_label)
        .x_labels(axes.x_labels)
        .y_labels(7)
        .axis_style(FAINT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(13, INK))
        .axis_desc_style(text(13, INK))
        .draw()?;
    Ok(())
}

/// Title and, smaller, what the picture shows.
fn draw_header(
    area: &Area,
    title: &str,
    note: &str,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let style = FontDesc::new(FontFamily::SansSerif, 21.0, FontStyle::Bold).color(&INK);
    area.draw_text(title, &style, (24, 14))?;
    area.draw_text(note, &text(13, FAINT), (24, 46))?;
    Ok(())
}

/// Markers whose shapes differ as the colours do, for prints in grey.
fn draw_markers<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates<X, Y>>,
    index: usize,
    points: &[(f64, f64)],
) -> std::result::Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let (at, colour) = (points.iter().copied(), colour(index).filled());
    match marker(index) {
        0 => drop(chart.draw_series(at.map(|at| Circle::new(at, 5, colour)))?),
        1 => drop(chart.draw_series(at.map(|at| EmptyElement::at(at) + square((0, 0), colour)))?),
        _ => drop(chart.draw_series(at.map(|at| TriangleMarker::new(at, 7, colour)))?),
    }
    Ok(())
}

fn square((x, y): (i32, i32), colour: ShapeStyle) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], colour)
}

fn draw_legend(area: &Area, names: &[&str]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut x = 80;
    let mut y = 24;
    for (index, name) in names.iter().enumerate() {
        let width = 64 + 9 * name.chars().count() as i32;
        if x + width > area.dim_in_pixel().0 as i32 - 20 {
            (x, y) = (80, y + 24);
        }
        area.draw(&PathElement::new(
            vec![(x, y), (x + 32, y)],
            colour(index).stroke_width(2),
        ))?;
        let (at, style) = ((x + 16, y), colour(index).filled());
        match marker(index) {
            0 => area.draw(&Circle::new(at, 5, style))?,
            1 => area.draw(&square(at, style))?,
            _ => area.draw(&TriangleMarker::new(at, 7, style))?,
        }
        let style = text(14, INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(name, &style, (x + 42, y))?;
        x += width;
    }
    Ok(())
}
