//! Tables of verdicts: of a listener, and of a QUIC listener.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_core::quic::QUIC_VERDICTS;
use weir_core::verdict::VERDICTS;

use crate::show::table::{Align, table};

/// Counters by the names of their verdicts.
type Counters = BTreeMap<String, u64>;

/// What a table shows.
#[derive(Clone, Copy, Default)]
pub struct Shown<'a> {
    /// Zero counters too.
    pub all: bool,
    /// The sentence of each verdict.
    pub explain: bool,
    /// Rates since then: the counters before, and how long ago they were so.
    pub before: Option<(&'a Counters, Duration)>,
}

/// `name count` lines in the order of the verdicts; empty if none has fallen.
pub fn counter_table(counters: &Counters) -> String {
    verdict_table(counters, &Shown::default())
}

/// The same of a QUIC listener.
pub fn quic_counter_table(counters: &Counters) -> String {
    quic_verdict_table(counters, &Shown::default())
}

/// As [`counter_table`], with more columns.
pub fn verdict_table(counters: &Counters, shown: &Shown<'_>) -> String {
    let verdicts = VERDICTS.iter().map(|row| (row.name, row.text));
    table_of(verdicts, counters, shown)
}

/// The same of a QUIC listener.
pub fn quic_verdict_table(counters: &Counters, shown: &Shown<'_>) -> String {
    let verdicts = QUIC_VERDICTS.iter().map(|row| (row.name, row.text));
    table_of(verdicts, counters, shown)
}

/// Of verdicts with their sentences.
fn table_of(
    verdicts: impl Iterator<Item = (&'static str, &'static str)>,
    counters: &Counters,
    shown: &Shown<'_>,
) -> String {
    let mut head = vec![("verdict", Align::Left), ("count", Align::Right)];
    if shown.before.is_some() {
        head.push(("count/s", Align::Right));
    }
    if shown.explain {
        head.push(("text", Align::Left));
    }
    let rate = |name: &str, n: u64| {
        shown.before.map(|(counters, time)| {
            let more = n.saturating_sub(counters.get(name).copied().unwrap_or(0));
            format!("{:.0}", more as f64 / time.as_secs_f64().max(1e-3))
        })
    };
    let rows: Vec<Vec<String>> = verdicts
        .map(|(name, text)| (name, text, counters.get(name).copied().unwrap_or(0)))
        .filter(|(.., n)| shown.all || *n > 0)
        .map(|(name, text, n)| {
            let cells = [name.to_owned(), n.to_string()].into_iter();
            let text = shown.explain.then(|| text.to_owned());
            cells.chain(rate(name, n)).chain(text).collect()
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}
