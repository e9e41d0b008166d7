//! The page `docs/metrics.md`: every metric, made from the declarations of weir-api.

use std::fmt::Write;

use weir_api::metrics::{Kind, Metric, guard};

use crate::daemon::proxies::metrics_of_proxies;

const HEAD: &str = "\
# Metrics

<!-- Made by `weir generate reference DIR` from the metrics in crates/api/src/metrics: change them there. -->

Every metric that Prometheus finds: of the guard at `[metrics] listen`, of the proxies at `[metrics] proxy_listen`.
Names, types and labels are stable: a later version adds some. If it changes or removes one, the changelog says so under
*Changed*. [prometheus.md](prometheus.md) has the alerts, the dashboard and what to look at first.

A counter rises from 0 since its process started (`weir_start_time_seconds`), and its name ends in `_total`. The names
of a histogram's series end in `_bucket`, `_sum` and `_count`. A label without a value is absent: a class of all
listeners has no `listener`. `weir explain NAME` explains one metric.
";

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, metrics) in [
        ("The guard (`weir run`)", guard()),
        ("The proxies (`weir proxy`)", metrics_of_proxies()),
    ] {
        let _ = write!(
            page,
            "\n## {title}\n\n| metric | type | labels | what it is |\n|---|---|---|---|\n"
        );
        page.extend(metrics.iter().map(line));
    }
    page
}

fn line(metric: &Metric) -> String {
    let ending = match metric.kind {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "",
    };
    let labels: Vec<String> = metric
        .labels
        .iter()
        .map(|label| format!("`{label}`"))
        .collect();
    let (name, kind, labels) = (&metric.name, metric.kind.word(), labels.join(", "));
    let help = metric.help.replace('|', "\\|");
    format!("| `{name}{ending}` | {kind} | {labels} | {help} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_metrics_is_what_the_metrics_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, page(), "{path}: WEIR_BLESS=1 writes it anew");
    }
}
