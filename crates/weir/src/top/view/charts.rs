//! The charts of the chosen listener: wait, queue, refused, admitted, on one axis of time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::cells::{both_ends, refused_style};
use super::chart::Chart;
use crate::top::data::Sample;
use crate::top::model::Model;
use crate::top::rows::{self, ListenerRow};
use crate::top::theme::Theme;

/// Columns before the charts: a name and a figure.
const LABEL: u16 = 21;

/// Rows of each chart by the room there is, the most first. The row with the listener's name comes on top.
const PLANS: [[u16; 4]; 4] = [[5, 4, 4, 2], [3, 2, 2, 1], [2, 1, 1, 1], [1, 0, 1, 0]];
/// Rows that a pane keeps.
const PANE: u16 = 6;

/// Rows of all charts where table, charts and pane have so many together.
pub fn height(room: u16) -> u16 {
    plan(room).map_or(0, |plan| 1 + plan.iter().sum::<u16>())
}

fn plan(room: u16) -> Option<[u16; 4]> {
    let fits = |plan: &&[u16; 4]| 1 + plan.iter().sum::<u16>() + PANE <= room;
    PLANS.iter().find(fits).copied()
}

/// Draws them.
pub fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme, row: &ListenerRow<'_>) {
    // The plan with exactly these rows.
    let Some(plan) = PLANS
        .iter()
        .find(|plan| 1 + plan.iter().sum::<u16>() == area.height)
    else {
        return;
    };
    let [head_at, wait_at, queue_at, refused_at, admitted_at] =
        Layout::vertical([1, plan[0], plan[1], plan[2], plan[3]].map(Constraint::Length))
            .areas(area);
    head(frame, head_at, model, theme, row);
    let width = area.width.saturating_sub(LABEL).into();
    let history = model.data().history(&row.key(), width);
    let series = |value: fn(&Sample) -> Option<f64>| -> Vec<Option<f64>> {
        history
            .iter()
            .map(|sample| sample.as_ref().and_then(value))
            .collect()
    };
    let waits = series(|sample| Some(sample.wait_us.unwrap_or(0) as f64));
    let queues = series(|sample| Some(sample.queue_length.into()));
    let refused = series(|sample| sample.flow.map(|flow| flow.refused));
    let admitted = series(|sample| sample.flow.map(|flow| flow.admitted));
    let highest = |values: &[Option<f64>]| values.iter().flatten().copied().fold(0.0, f64::max);
    let wait_style = if row.is_over_target() {
        theme.bad()
    } else {
        Style::new()
    };
    let queue = match row.is_quic() {
        true => "pending",
        false => "queue",
    };
    let refused_now = row.flow.map(|flow| flow.refused);
    let charts = [
        One {
            at: wait_at,
            labels: vec![
                label("wait", row.wait(), wait_style),
                label("target", rows::time(row.target_us), theme.faint()),
                label(
                    "highest",
                    rows::time(Some(highest(&waits) as u64)),
                    theme.faint(),
                ),
            ],
            values: &waits,
            line: row.target_us.map(|us| us as f64),
            style: theme.good(),
        },
        One {
            at: queue_at,
            labels: vec![
                label(queue, row.queue(), Style::new()),
                label("highest", format!("{:.0}", highest(&queues)), theme.faint()),
            ],
            values: &queues,
            line: None,
            style: theme.notable(),
        },
        One {
            at: refused_at,
            labels: vec![
                label(
                    "refused/s",
                    rows::rate(refused_now),
                    refused_style(refused_now, theme),
                ),
                label(
                    "highest",
                    rows::rate(Some(highest(&refused))),
                    theme.faint(),
                ),
            ],
            values: &refused,
            line: None,
            style: theme.bad(),
        },
        One {
            at: admitted_at,
            labels: vec![
                label(
                    "admitted/s",
                    rows::rate(row.flow.map(|flow| flow.admitted)),
                    Style::new(),
                ),
                label(
                    "highest",
                    rows::rate(Some(highest(&admitted))),
                    theme.faint(),
                ),
            ],
            values: &admitted,
            line: None,
            style: theme.good(),
        },
    ];
    for one in charts {
        let [label_at, chart_at] =
            Layout::horizontal([Constraint::Length(LABEL), Constraint::Fill(1)]).areas(one.at);
        frame.render_widget(Paragraph::new(one.labels), label_at);
        let chart = Chart {
            values: one.values,
            line: one.line,
            style: one.style,
            over: theme.bad(),
            faint: theme.faint(),
        };
        frame.render_widget(chart, chart_at);
    }
}

struct One<'a> {
    at: Rect,
    labels: Vec<Line<'a>>,
    values: &'a [Option<f64>],
    line: Option<f64>,
    style: Style,
}

/// `wait         508 ms  `
fn label(name: &str, figure: String, style: Style) -> Line<'static> {
    Line::from(vec![
        Span::raw(format!("{name:<10}")),
        Span::styled(format!("{figure:>10} "), style),
    ])
}

/// The name and the policy, and whom the controller holds.
fn head(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme, row: &ListenerRow<'_>) {
    let buffer = match row.is_quic() {
        true => format!("; buffer {}", row.buffer()),
        false => String::new(),
    };
    let left = vec![
        Span::styled(row.label(), theme.strong()),
        Span::styled(
            format!("  {}  {}{buffer}", row.address(), row.policy()),
            theme.faint(),
        ),
    ];
    // The controller holds nobody for a server of QUIC.
    let status = model.data().status().filter(|_| !row.is_quic());
    let held = status.into_iter().flat_map(rows::held);
    let held: Vec<String> = held
        .map(|class| format!("{} at {}/s", class.name, rows::rate(class.controlled_rate)))
        .collect();
    let right = match held.as_slice() {
        [] => Span::raw(""),
        [one] => Span::styled(format!("held: {one}"), theme.notable()),
        [one, more @ ..] => Span::styled(
            format!("held: {one} and {} more", more.len()),
            theme.notable(),
        ),
    };
    both_ends(frame, area, Line::from(left), Line::from(right));
}
