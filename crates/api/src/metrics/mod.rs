//! The metrics: each is declared once with its name, type, HELP and labels, over the types of the
//! schema. The names are those of `weir status` and `weir explain`.
//!
//! To add one, add a line to [`mod@guard`] or [`mod@proxies`]. A counter that is added to the verdicts
//! (`GUARD_VERDICTS`, `QUIC_VERDICTS`) or to the counters of the proxy is a metric without any further line.

mod destinations;
mod guard;
mod process;
mod proxies;
mod quic;
mod render;
mod residence;
mod shapes;
#[cfg(test)]
mod tests;

use crate::fields::Field;
use crate::{
    Class, Destination, LastReload, Listener, Process, Proxy, Quic, Shape, TimeWait, Times,
};

pub use guard::{guard, target_wait};
pub use proxies::{ProxyCounters, proxies};
pub use render::{classic, text};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of [`classic`].
pub const CLASSIC_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the metrics are read from, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The listeners under guard.
    pub listeners: Vec<Listener>,
    /// The QUIC listeners under guard.
    pub quic: Vec<Quic>,
    /// All classes, those of no listener too.
    pub classes: Vec<Class>,
    /// The destinations.
    pub destinations: Vec<Destination>,
    /// TIME-WAIT of connections that only their application has negotiate; `None` where no application may ask.
    pub timewait_asked: Option<TimeWait>,
    /// The shaped interfaces.
    pub shapes: Vec<Shape>,
    /// The proxies of the process.
    pub proxies: Vec<Proxy>,
    /// The process.
    pub process: Process,
    /// The last reload; `None` if there was none since the process started.
    pub last_reload: Option<LastReload>,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises; the names of its series end in `_total`.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts of times in seconds; the names of its series end in `_bucket`, `_sum` and `_count`.
    Histogram,
}

/// A metric: one series, or one set of series, for each set of label values.
pub struct Metric {
    /// The full name, without the ending of a series: `weir_queue_length`.
    pub name: String,
    /// The type.
    pub kind: Kind,
    /// What it is, in one line.
    pub help: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The name of the field or counter in `weir status` that it comes from.
    pub of: &'static str,
    samples: Box<Samples>,
}

/// Adds all samples of a metric.
type Samples = dyn Fn(&Figures, &mut Add<'_>) + Send + Sync;

/// Takes the values of the labels and the value of a sample.
type Add<'a> = dyn FnMut(Vec<String>, Value) + 'a;

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    /// Of a counter.
    Count(u64),
    /// Of a gauge.
    Level(f64),
    /// Of a gauge of whole numbers.
    Whole(u64),
    /// Of a histogram.
    Times(Times),
}

impl Value {
    fn kind(&self) -> Kind {
        match self {
            Value::Count(_) => Kind::Counter,
            Value::Level(_) | Value::Whole(_) => Kind::Gauge,
            Value::Times(_) => Kind::Histogram,
        }
    }
}

impl Metric {
    /// Whether `series` is one of this metric's, as a scrape shows it: `weir_syn_admitted_total{…}`.
    /// The name of the metric itself is one too.
    pub fn has(&self, series: &str) -> bool {
        let series = series.split('{').next().unwrap_or_default();
        let Some(ending) = series.strip_prefix(&self.name) else {
            return false;
        };
        let endings: &[&str] = match self.kind {
            Kind::Counter => &["", "_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["", "_bucket", "_sum", "_count"],
        };
        endings.contains(&ending)
    }
}

impl Kind {
    /// The type as the text has it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// What has metrics, with the labels that tell one from another.
trait Labelled: 'static {
    /// The names of the labels.
    const LABELS: &'static [&'static str];

    /// Passes each one with the values of its labels.
    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self));
}

/// Where a metric's text is declared.
#[derive(Clone, Copy)]
struct Source {
    /// The name in `weir status`.
    of: &'static str,
    help: &'static str,
}

impl From<&'static Field> for Source {
    fn from(field: &'static Field) -> Source {
        Source {
            of: &field.name,
            help: &field.text,
        }
    }
}

/// Declares a metric. `value` gives `None` where there is no sample.
fn metric<T: Labelled>(
    name: impl Into<String>,
    kind: Kind,
    source: impl Into<Source>,
    value: impl Fn(&T) -> Option<Value> + Send + Sync + 'static,
) -> Metric {
    let Source { of, help } = source.into();
    Metric {
        name: name.into(),
        kind,
        help,
        labels: T::LABELS,
        of,
        samples: Box::new(move |figures, add| {
            T::each(figures, &mut |labels, one| {
                if let Some(value) = value(one) {
                    debug_assert_eq!(value.kind(), kind);
                    add(labels, value);
                }
            });
        }),
    }
}
