//! Metrics as OpenMetrics text. The encoder of the Prometheus project writes it; the values come from
//! the report instead of from that library's own counters.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{Figures, Kind, Metric, Value};
use crate::Times;

/// The metrics with what the figures say, ending with `# EOF`. A metric without a sample is absent.
pub fn text<'a>(metrics: impl IntoIterator<Item = &'a Metric>, figures: &Figures) -> String {
    let metrics = metrics.into_iter();
    let families = metrics.map(|metric| Family::of(metric, figures));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families.collect())));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes every metric");
    text
}

/// The same in Prometheus' older text format, for programs that do not ask for OpenMetrics. There a counter is described by the
/// name of its series, nothing has a unit of its own, and the text just ends.
pub fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let ending = |type_line: &str| match type_line.ends_with(" counter") {
            true => "_total",
            false => "",
        };
        let described = line.splitn(4, ' ').collect::<Vec<_>>();
        match described[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", "TYPE", name, kind] => {
                classic += &format!("# TYPE {name}{} {kind}", ending(line));
            }
            // The encoder writes TYPE right behind.
            ["#", "HELP", name, help] => {
                let ending = ending(lines.peek().copied().unwrap_or_default());
                classic += &format!("# HELP {name}{ending} {help}");
            }
            _ => classic += line,
        }
        classic.push('\n');
    }
    classic
}

#[derive(Debug)]
struct Families(Vec<Family>);

#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    kind: Kind,
    samples: Vec<(Vec<(&'static str, String)>, Value)>,
}

impl Family {
    fn of(metric: &Metric, figures: &Figures) -> Family {
        let mut samples = Vec::new();
        (metric.samples)(figures, &mut |values, value| {
            // Without a value: the same to Prometheus, and shorter.
            let labels = metric.labels.iter().copied().zip(values);
            let labels = labels.filter(|(_, value)| !value.is_empty());
            samples.push((labels.collect(), value));
        });
        Family {
            name: metric.name.clone(),
            help: format!("{}.", metric.help),
            kind: metric.kind,
            samples,
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, unit, kind) = match self.kind {
            Kind::Counter => (self.name.as_str(), None, MetricType::Counter),
            Kind::Gauge => (self.name.as_str(), None, MetricType::Gauge),
            // The encoder appends the unit to the name.
            Kind::Histogram => {
                let name = self.name.strip_suffix("_seconds").unwrap_or(&self.name);
                (name, Some(&Unit::Seconds), MetricType::Histogram)
            }
        };
        let mut metric = encoder.encode_descriptor(name, &self.help, unit, kind)?;
        for (labels, value) in &self.samples {
            match labels.is_empty() {
                true => encode_value(&mut metric, value)?,
                false => encode_value(&mut metric.encode_family(labels)?, value)?,
            }
        }
        Ok(())
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families = self.0.iter().filter(|family| !family.samples.is_empty());
        families
            .into_iter()
            .try_for_each(|family| family.encode(&mut encoder))
    }
}

fn encode_value(metric: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Count(count) => metric.encode_counter::<NoLabelSet, _, u64>(count, None),
        Value::Level(level) => metric.encode_gauge(level),
        Value::Whole(number) => metric.encode_gauge(number),
        Value::Times(times) => {
            let sum = times.sum_us as f64 / 1e6;
            metric.encode_histogram::<NoLabelSet>(sum, times.count, &buckets(times), None)
        }
    }
}

/// Upper bounds in seconds with the counts between them; the encoder adds them up.
fn buckets(times: &Times) -> Vec<(f64, u64)> {
    let seconds = |up_to_us: Option<u64>| up_to_us.map_or(f64::INFINITY, |us| us as f64 / 1e6);
    let ranges = times.ranges.iter();
    ranges
        .map(|range| (seconds(range.up_to_us), range.count))
        .collect()
}
