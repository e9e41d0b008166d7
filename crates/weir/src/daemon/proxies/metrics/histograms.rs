//! Histograms that are counted elsewhere: those of the library count themselves.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::show::report::proxy::TimesReport;

/// One metric with its label sets.
#[derive(Debug)]
pub struct Histograms<L> {
    name: String,
    help: &'static str,
    rows: Vec<(L, TimesReport)>,
}

impl<L> Histograms<L> {
    /// The metric `name`, to which `_seconds` is added.
    pub fn new(
        name: String,
        help: &'static str,
        rows: impl Iterator<Item = (L, TimesReport)>,
    ) -> Histograms<L> {
        Histograms {
            name,
            help,
            rows: rows.collect(),
        }
    }
}

impl<L: EncodeLabelSet + fmt::Debug + Send + Sync + 'static> Collector for Histograms<L> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // As the library does for its own.
        let help = format!("{}.", self.help);
        let (unit, kind) = (Some(&Unit::Seconds), MetricType::Histogram);
        let mut metric = encoder.encode_descriptor(&self.name, &help, unit, kind)?;
        for (labels, times) in &self.rows {
            // The library sums them up itself.
            let seconds =
                |up_to_us: Option<u64>| up_to_us.map_or(f64::INFINITY, |us| us as f64 / 1e6);
            let ranges = times.ranges.iter();
            let buckets = ranges.map(|range| (seconds(range.up_to_us), range.count));
            let buckets: Vec<(f64, u64)> = buckets.collect();
            let mut row = metric.encode_family(labels)?;
            let sum = times.sum_us as f64 / 1e6;
            row.encode_histogram::<NoLabelSet>(sum, times.count, &buckets, None)?;
        }
        Ok(())
    }
}
