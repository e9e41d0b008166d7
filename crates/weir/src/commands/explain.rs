//! `weir explain`: what a counter counts, what a config key sets, what a column of `weir status` shows.

use std::path::Path;

use weir_config::explain::{Topic, list, topic};
use weir_proxy::metrics::{BackendCounters, HealthCounters, ListenerCounters, QueueCounters};

use crate::cli::Explain;
use crate::failure::{Failure, Result};
use crate::ipc::control::{self, Answer, Request};
use crate::show::output::print;
use crate::show::report;
use crate::show::table::{Align, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Explain) -> Result<()> {
    let Some(name) = &args.name else {
        return print(&all());
    };
    let name = of_metric(name).unwrap_or_else(|| name.clone());
    if let Some(text) = counter_text(&name) {
        return print(&text);
    }
    let topic = topic(&name).map_err(|unknown| {
        let hint = match unknown.did_you_mean {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`weir explain` lists all names".to_owned(),
        };
        Failure::usage(unknown.to_string(), hint)
    })?;
    let mut text = topic.text();
    if let Topic::Subject(_) = topic
        && let Some(live) = running_controller(runtime_dir)
    {
        text += &format!("\n{}", report::controller::text(&live, usize::MAX));
    }
    print(&text)
}

/// What the controller of this namespace does. Without one, or without the right to ask, there is only
/// the explanation.
fn running_controller(runtime_dir: &Path) -> Option<weir_client::Controller> {
    let namespace = control::namespace().ok()?;
    match control::ask(runtime_dir, namespace, Request::Status) {
        Ok(Some(Answer::Status(report))) => report.controller,
        _ => None,
    }
}

/// What a metric is called in `weir status`, where it has no prefix of whose it is and no unit. `None`: it is no metric.
fn of_metric(name: &str) -> Option<String> {
    let series = name.split('{').next()?;
    let name = series.strip_prefix("weir_")?;
    let of_series = ["_total", "_bucket", "_sum", "_count"];
    let family = of_series.iter().find_map(|end| name.strip_suffix(end));
    let without = |name: &'_ str, prefixes: &[&str]| {
        let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        rest.map(str::to_owned)
    };
    let mut names = vec![name.to_owned()];
    names.extend(family.map(str::to_owned));
    for prefixes in [["proxy_", "class_"], ["backend_", "queue_"]] {
        let shorter: Vec<_> = names
            .iter()
            .filter_map(|name| without(name, &prefixes))
            .collect();
        names.extend(shorter);
    }
    let bare: Vec<_> = names
        .iter()
        .filter_map(|name| Some(name.strip_suffix("_seconds")?.to_owned()))
        .collect();
    names.extend(bare);
    names.into_iter().find(|name| is_known(name))
}

fn is_known(name: &str) -> bool {
    counter_text(name).is_some() || topic(name).is_ok()
}

/// The counters of proxies, by the names of `weir status` and the metrics. `None`: it is none of them alone.
fn counter_text(name: &str) -> Option<String> {
    let name = name.replace('-', "_");
    let mut texts: Vec<String> = counters()
        .filter(|[own, ..]| *own == name)
        .map(|[name, kind, of, text]| format!("{name} ({kind} of {of})\n  {text}\n"))
        .collect();
    if texts.is_empty() {
        return None;
    }
    texts.extend(topic(&name).ok().map(|topic| topic.text()));
    Some(texts.join("\n"))
}

/// Name, kind, whose it is, and text.
fn counters() -> impl Iterator<Item = [&'static str; 4]> {
    let of = [
        ("counter", "a proxy", ListenerCounters::NAMES),
        ("counter", "a proxy's backend", BackendCounters::NAMES),
        ("counter", "a proxy's backend", HealthCounters::NAMES),
        ("counter", "a proxy's queue", QueueCounters::NAMES),
        ("histogram", "a proxy", ListenerCounters::TIMES),
        ("histogram", "a proxy's backend", BackendCounters::TIMES),
    ];
    of.into_iter().flat_map(|(kind, of, names)| {
        let names = names.iter();
        names.map(move |(name, text)| [*name, kind, of, *text])
    })
}

fn all() -> String {
    let head = [
        ("name", Align::Left),
        ("kind", Align::Left),
        ("text", Align::Left),
    ];
    let row = |(name, kind, text): (&str, &str, &str)| vec![name.into(), kind.into(), text.into()];
    let counters = counters().map(|[name, kind, _, text]| (name, kind, text));
    let all = list().into_iter().chain(counters);
    table(&head, &all.map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use weir_client::{ClassStatistics, Controller, Decision, ListenerStatistics, Statistics};
    use weir_config::Table;
    use weir_core::class::Class;
    use weir_core::listener::{ListenAddress, Listener};
    use weir_core::proxy::Proxy;

    use super::*;
    use crate::show::report::proxy::times::{Range, TimesReport};
    use crate::show::report::proxy::{
        BackendReport, CacheMemoryReport, ConnectionsNow, QueueReport, ThreadLine,
    };
    use crate::show::report::{
        ClassReport, InterfaceReport, ListenerReport, Process, SocketReport,
    };
    use crate::show::report::{ProxyReport, Report, counters_by_name};

    /// A status in which everything stands that there is.
    fn report() -> Report {
        let address = ListenAddress { ip: None, port: 80 };
        let class = ClassReport {
            name: "other".into(),
            rate: Some(5.0),
            burst: Some(10),
            controlled_rate: Some(4.0),
            waiting: Some(1),
            settings: super::super::check::settings(&Class::new("other")),
            ..ClassReport::default()
        };
        let socket = SocketReport {
            address: "0.0.0.0:80".into(),
            queue_length: 1,
            queue_limit: 2,
            half_open: 3,
            wait_us: Some(4),
            mptcp: true,
        };
        let listener = ListenerReport {
            name: "web".into(),
            queue_way_because: Some("it runs with MPTCP".into()),
            wait_us: Some(1),
            fallback: Some("reserv".into()),
            fallback_because: Some("cookies are off".into()),
            counters: counters_by_name(&Default::default()),
            classes: vec![class],
            sockets: vec![socket.clone(), socket],
            settings: super::super::check::settings(&Listener::new("web", address)),
            ..ListenerReport::default()
        };
        let listen = "127.0.0.1:3128".parse().unwrap();
        let settings = Proxy::new("edge", listen, weir_core::proxy::Mode::Forward);
        let times = TimesReport {
            ranges: vec![Range::default()],
            ..TimesReport::default()
        };
        let proxy = ProxyReport {
            queue: vec![QueueReport::default()],
            connections: ConnectionsNow::default(),
            cache_memory: Some(CacheMemoryReport::default()),
            times: [("connect".to_owned(), times)].into(),
            backends: vec![BackendReport::default()],
            threads: vec![ThreadLine {
                state: "accepting".into(),
                clients: 1,
                falls: 0,
            }],
            settings: super::super::check::settings(&settings),
            ..ProxyReport::default()
        };
        Report {
            process: Some(Process::default()),
            interfaces: vec![InterfaceReport {
                name: "eth0".into(),
                index: 2,
                xdp: true,
            }],
            listeners: vec![listener],
            controller: Some(controller()),
            proxies: vec![proxy],
            ..Report::default()
        }
    }

    fn controller() -> Controller {
        Controller {
            mode: "enforce".into(),
            target_wait: Some("20ms".into()),
            max_cpu: Some(0.9),
            interval: "100ms".into(),
            samples: 5,
            statistics: Statistics {
                cpu: Some(0.5),
                cgroup_cpu: Some(0.5),
                listeners: vec![ListenerStatistics::default()],
                classes: vec![ClassStatistics {
                    controlled_rate: Some(5.0),
                    reason: Some("…".into()),
                    ..ClassStatistics::default()
                }],
            },
            decisions: vec![Decision {
                at_unix_ms: 0,
                class: "other".into(),
                from: Some(2.0),
                to: Some(1.0),
                observed: false,
                reason: "…".into(),
            }],
        }
    }

    /// The names of all fields, however deep.
    fn fields(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    into.insert(name.clone());
                    fields(value, into);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| fields(value, into)),
            _ => {}
        }
    }

    /// The heads of all tables: lines whose first word is a table's.
    fn heads(text: &str) -> impl Iterator<Item = String> {
        let first = [
            "listener", "class", "verdict", "proxy", "priority", "counter",
        ];
        let is_head = move |line: &&str| {
            let mut words = line.trim().split("  ");
            words.next().is_some_and(|word| first.contains(&word)) && words.next().is_some()
        };
        let heads: Vec<String> = text
            .lines()
            .filter(is_head)
            .flat_map(|line| line.trim().split("  "))
            .map(|head| head.trim().to_owned())
            .filter(|head| !head.is_empty())
            .collect();
        heads.into_iter()
    }

    /// The names of all metrics.
    fn metrics(report: &Report) -> Vec<String> {
        let listener = &report.listeners[0];
        let text = crate::ipc::api::metrics_text(&report.listeners, &listener.classes, 0)
            + &crate::daemon::proxies::metrics_text(&report.proxies, 0);
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        names
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn every_word_of_status_and_of_the_metrics_is_explained() {
        let mut report = report();
        report.listeners[0].classes_left_out = 1;
        let mut names = BTreeSet::new();
        fields(&serde_json::to_value(&report).unwrap(), &mut names);
        let text =
            report.text(true) + &crate::show::report::class_list(&report.listeners[0].classes);
        names.extend(heads(&text));
        assert!(names.len() > 120, "{names:?}");
        for words in ["held at", "overtook", "queue_way", "SYN/s"] {
            assert!(names.contains(words), "{words}: {names:?}");
        }
        let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let metrics = metrics(&report);
        assert!(metrics.len() > 60, "{metrics:?}");
        let cache_hits = "weir_proxy_cache_hits".to_owned();
        assert!(metrics.contains(&cache_hits), "{metrics:?}");
        let unknown: Vec<_> = metrics
            .iter()
            .filter(|name| of_metric(name).is_none())
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn a_series_is_explained_as_it_is_scraped() {
        for (series, name) in [
            (
                "weir_proxy_backend_retries_total{proxy=\"edge\"}",
                "retries",
            ),
            ("weir_proxy_connect_seconds_bucket", "connect"),
            ("weir_proxy_backend_up", "backend_up"),
            ("weir_queue_length", "queue_length"),
            ("weir_class_syn_admitted_total", "syn_admitted"),
        ] {
            assert_eq!(of_metric(series).as_deref(), Some(name), "{series}");
        }
        assert_eq!(of_metric("weir_rats_total"), None);
        assert_eq!(of_metric("requests"), None);
    }

    #[test]
    fn the_name_of_every_class_that_status_makes_up_is_explained() {
        assert!(is_known(weir_core::class::OTHER) && is_known(Class::NAME));
    }
}
