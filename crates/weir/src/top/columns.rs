//! The columns of the tables: one list for the screen and for `--once`.

use weir_api::TopSource;
use weir_core::verdict::Kind;

use super::proxy_rows::ProxyRow;
use super::rows::{self, ClassRow, VerdictRow};
use crate::show::describe::percent;
use crate::show::table::Align;

/// A column of a table whose rows are `R`.
pub struct Column<R> {
    /// Its head.
    pub head: &'static str,
    /// On which side its cells stand.
    pub align: Align,
    /// Its places on the screen; `None`: a part of what the others leave.
    pub width: Option<u16>,
    /// What a row has there.
    pub text: fn(&R) -> String,
    /// How that looks on the screen.
    pub look: fn(&R) -> Look,
}

/// How a cell looks on the screen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Look {
    /// As all text.
    Plain,
    /// What a row is about.
    Strong,
    /// What explains.
    Faint,
    /// As it should be.
    Good,
    /// Worth a look.
    Notable,
    /// Not as it should be.
    Bad,
}

impl Look {
    /// Refusals stand out, unless there are none.
    fn of_refused(rate: Option<f64>) -> Look {
        match rate {
            Some(rate) if rate > 0.0 => Look::Bad,
            _ => Look::Plain,
        }
    }
}

impl<R> Column<R> {
    fn look(self, look: fn(&R) -> Look) -> Column<R> {
        Column { look, ..self }
    }
}

fn left<R>(head: &'static str, width: impl Into<Option<u16>>, text: fn(&R) -> String) -> Column<R> {
    Column {
        head,
        align: Align::Left,
        width: width.into(),
        text,
        look: |_| Look::Plain,
    }
}

fn right<R>(head: &'static str, width: u16, text: fn(&R) -> String) -> Column<R> {
    Column {
        align: Align::Right,
        ..left(head, width, text)
    }
}

fn number(n: Option<u64>) -> String {
    n.map_or("-".to_owned(), |n| n.to_string())
}

/// The columns of a listener's verdicts.
pub fn verdicts() -> [Column<VerdictRow>; 3] {
    let look = |row: &VerdictRow| match row.kind {
        Kind::Refuse => Look::of_refused(row.rate),
        _ => Look::Plain,
    };
    [
        left("verdict", 20, |row: &VerdictRow| row.name.to_owned()).look(look),
        right("count", 12, |row| row.count.to_string()),
        right("count/s", 8, |row: &VerdictRow| rows::rate(row.rate)).look(look),
    ]
}

/// What a verdict means: a column of the screen only.
pub fn meaning() -> Column<VerdictRow> {
    left("", None, |row: &VerdictRow| row.text.to_owned()).look(|_| Look::Faint)
}

/// The columns of classes; the listener is the second.
pub fn classes<'a>() -> [Column<ClassRow<'a>>; 8] {
    [
        left("class", None, |row: &ClassRow<'a>| row.class.name.clone()).look(|_| Look::Strong),
        left("listener", None, |row| {
            row.listener.unwrap_or("all").to_owned()
        }),
        right("priority", 8, |row| row.class.priority.to_string()),
        right("rate", 7, |row| rows::rate(row.class.rate)),
        right("held at", 7, |row: &ClassRow<'a>| {
            rows::rate(row.class.controlled_rate)
        })
        .look(|row| match row.class.controlled_rate {
            Some(_) => Look::Notable,
            None => Look::Plain,
        }),
        right("waiting", 7, |row| number(row.class.waiting.map(u64::from))),
        right("admitted/s", 10, |row| {
            rows::rate(row.flow.map(|flow| flow.admitted))
        }),
        right("refused/s", 9, |row: &ClassRow<'a>| {
            rows::rate(row.flow.map(|flow| flow.refused))
        })
        .look(|row| Look::of_refused(row.flow.map(|flow| flow.refused))),
    ]
}

/// Why the controller holds a class: a column of a wide screen only.
pub fn because<'a>() -> Column<ClassRow<'a>> {
    left("because", None, |row| {
        row.reason.unwrap_or_default().to_owned()
    })
}

/// The columns of sources; the source is the first.
pub fn sources<'a>() -> [Column<&'a TopSource>; 6] {
    [
        left("source", None, |row: &&TopSource| row.source.clone()).look(|_| Look::Strong),
        right("mean/s", 8, |row: &&TopSource| {
            rows::rate(Some(row.per_second))
        })
        .look(|row| Look::of_refused(Some(row.per_second))),
        right("share", 6, |row| percent(row.share)),
        left("listener", None, |row| row.listener.clone()),
        left("class", None, |row| {
            row.class.clone().unwrap_or_else(|| "-".to_owned())
        }),
        left("last verdict", 17, |row| row.verdict.clone()),
    ]
}

/// The columns of proxies, and of the backends below each.
pub fn proxies<'a>() -> [Column<ProxyRow<'a>>; 9] {
    [
        left("proxy", None, |row: &ProxyRow<'a>| match row.backend {
            Some(_) => format!("  {}", row.name),
            None => row.name.to_string(),
        })
        .look(|row| match row.backend {
            Some(_) => Look::Plain,
            None => Look::Strong,
        }),
        left("state", 9, |row: &ProxyRow<'a>| row.state.to_owned()).look(|row| match row.state {
            "up" => Look::Good,
            "down" => Look::Bad,
            "full" | "draining" => Look::Notable,
            _ => Look::Plain,
        }),
        right("clients", 7, |row| number(row.clients)),
        right("waiting", 7, |row| number(row.waiting)),
        right("requests/s", 10, |row| rows::rate(row.rate)),
        right("failed/s", 8, |row: &ProxyRow<'a>| rows::rate(row.failures))
            .look(|row| Look::of_refused(row.failures)),
        right("in_use", 6, |row| row.connections.in_use.to_string()),
        right("idle", 5, |row| row.connections.idle.to_string()),
        right("p99", 7, |row| rows::time(row.p99_us)),
    ]
}
