//! A screenshot: what a terminal shows, as SVG.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

/// Width and height of a cell, in px.
const CELL: (u16, u16) = (8, 17);
const BACKGROUND: &str = "#1d1f21";
const TEXT: &str = "#d8dee9";
/// The first eight colours of a terminal: black, red, green, yellow, blue, magenta, cyan, white.
const COLOURS: [&str; 8] = [
    "#1d1f21", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
];

/// The whole screen. `title` is for those who do not see it.
pub fn of(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let (width, height) = (columns * CELL.0 + 16, rows * CELL.1 + 16);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <title>{}</title>\n<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n",
        escaped(title)
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let first = screen.cell(row, column).unwrap();
            let run = run(screen, row, column);
            draw(&mut svg, row, column, first, &run);
            column += run.chars().count() as u16;
        }
    }
    svg + "</svg>\n"
}

/// Cells of one look from here on; bars stand alone, so that they fill their cells whatever the font.
fn run(screen: &Screen, row: u16, column: u16) -> String {
    let look = |cell: &Cell| {
        (
            cell.fgcolor(),
            cell.bgcolor(),
            cell.bold(),
            cell.dim(),
            cell.inverse(),
        )
    };
    let first = screen.cell(row, column).unwrap();
    let mut text = String::new();
    for at in column..screen.size().1.get() {
        let cell = screen.cell(row, at).unwrap();
        if look(cell) != look(first) || (!text.is_empty() && (eighths(cell) + eighths(first) > 0)) {
            break;
        }
        text += if cell.has_contents() {
            cell.contents()
        } else {
            " "
        };
    }
    text
}

/// Of a bar: how many eighths of its cell it fills; 0 of other cells.
fn eighths(cell: &Cell) -> u16 {
    let bar = "▁▂▃▄▅▆▇█"
        .chars()
        .position(|bar| cell.contents().starts_with(bar));
    bar.map_or(0, |at| at as u16 + 1)
}

fn draw(svg: &mut String, row: u16, column: u16, cell: &Cell, text: &str) {
    let (x, y) = (8 + column * CELL.0, 8 + row * CELL.1);
    let colour = |colour: Color, default| match colour {
        Color::Idx(index) => COLOURS[usize::from(index % 8)],
        _ => default,
    };
    let (mut ink, mut paper) = (
        colour(cell.fgcolor(), TEXT),
        colour(cell.bgcolor(), BACKGROUND),
    );
    if cell.inverse() {
        std::mem::swap(&mut ink, &mut paper);
    }
    let width = text.chars().count() as u16 * CELL.0;
    if paper != BACKGROUND {
        let height = CELL.1;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{paper}\"/>"
        );
    }
    match eighths(cell) {
        0 if text.trim().is_empty() => {}
        0 => {
            let weight = if cell.bold() {
                " font-weight=\"bold\""
            } else {
                ""
            };
            let faint = if cell.dim() { " opacity=\"0.65\"" } else { "" };
            let (baseline, text) = (y + 13, escaped(text));
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{baseline}\" fill=\"{ink}\" textLength=\"{width}\" \
                 xml:space=\"preserve\"{weight}{faint}>{text}</text>"
            );
        }
        part => {
            let height = f32::from(CELL.1 * part) / 8.0;
            let top = f32::from(y + CELL.1) - height;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{top:.1}\" width=\"{}\" height=\"{height:.1}\" fill=\"{ink}\"/>",
                CELL.0
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
