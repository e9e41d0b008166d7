//! How long things took in a proxy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_proxy::Total;
use weir_proxy::histogram::{BOUNDS_US, Times};

/// How long something took, since the process began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TimesReport {
    /// How often it happened.
    pub count: u64,
    /// All together, in µs.
    pub sum_us: u64,
    /// Half of them took no longer, in µs, as far as the ranges tell; left out if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// 99 of 100 took no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// How many fell into each range of time.
    pub ranges: Vec<Range>,
}

/// Times between the bound of the range before it and its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Range {
    /// The longest, in µs; left out of the last range, which has what is longer than the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_us: Option<u64>,
    /// How many.
    pub count: u64,
}

impl TimesReport {
    fn of(times: &Times) -> TimesReport {
        let quantile = |share| times.quantile(share).map(|time| time.as_micros() as u64);
        let bounds = BOUNDS_US.into_iter().map(Some).chain([None]);
        let ranges = bounds.zip(times.counts);
        TimesReport {
            count: times.count(),
            sum_us: times.sum_us,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            ranges: ranges
                .map(|(up_to_us, count)| Range { up_to_us, count })
                .collect(),
        }
    }
}

pub(super) fn by_name(times: &[Total<Times>]) -> BTreeMap<String, TimesReport> {
    let rows = times
        .iter()
        .map(|total| (total.name.to_owned(), TimesReport::of(&total.value)));
    rows.collect()
}

/// `connect p50 0.2 ms, p99 1.8 ms; …` of what has happened; `None` if nothing has.
pub(super) fn line(times: &BTreeMap<String, TimesReport>) -> Option<String> {
    let part = |(name, times): (&String, &TimesReport)| {
        let (p50, p99) = (millis(times.p50_us?), millis(times.p99_us?));
        Some(format!("{name} p50 {p50} ms, p99 {p99} ms"))
    };
    let parts: Vec<String> = times.iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Two digits: the ranges tell no more.
fn millis(time_us: u64) -> String {
    let ms = time_us as f64 / 1000.0;
    match ms {
        ..1.0 => format!("{ms:.2}"),
        ..10.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proxy::histogram::Histogram;

    #[test]
    fn a_line_names_the_median_and_the_99th_percentile_of_what_has_happened() {
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.observe(150));
        histogram.observe(30_000);
        let times = |name: &str, times: Times| (name.to_owned(), TimesReport::of(&times));
        let times = [
            times("connect", Times::default()),
            times("first_byte", histogram.times()),
        ];
        let text = line(&times.into()).unwrap();
        assert_eq!(text, "first_byte p50 0.15 ms, p99 0.20 ms");
        assert_eq!(line(&BTreeMap::new()), None);
    }
}
