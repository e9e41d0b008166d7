//! `weir explain`: what a counter counts, what a config key sets, what a column or field of `weir status` and
//! what a metric shows.

use std::collections::BTreeSet;
use std::path::Path;

use weir_api::fields::{self, Field};
use weir_api::metrics::{Metric, guard};
use weir_api::{Question, Status};
use weir_config::did_you_mean;
use weir_config::explain::{Topic, list, topic};
use weir_proxy::metrics::{
    BackendCounters, HealthCounters, ListenerCounters, NameCounters, QueueCounters,
};

use crate::cli::Explain;
use crate::daemon::proxies::metrics_of_proxies;
use crate::failure::{Failure, Result};
use crate::ipc::control;
use crate::show::output::print;
use crate::show::report;
use crate::show::table::{Align, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Explain) -> Result<()> {
    let Some(name) = &args.name else {
        return print(&all());
    };
    let texts = texts(name);
    if texts.is_empty() {
        let found = mentions(name);
        return match found.is_empty() {
            true => Err(unknown(name)),
            false => print(&format!(
                "Nothing is named {name:?}; these names have it in their texts:\n\n{}",
                rows(found.into_iter())
            )),
        };
    }
    let mut text = texts.join("\n");
    if let Ok(Topic::Subject(subject)) = topic(name)
        && subject.name == "controller"
        && let Some(live) = running_controller(runtime_dir)
    {
        text += &format!("\n{}", report::controller::text(&live, usize::MAX));
    }
    print(&text)
}

/// Everything that the name stands for: a metric and what it comes from, counters, keys, columns, fields.
pub fn texts(name: &str) -> Vec<String> {
    let metric = metric(name);
    let name = metric.map_or(name, |metric| metric.of).replace('-', "_");
    let mut texts: Vec<String> = metric.map(metric_text).into_iter().collect();
    texts.extend(counter_texts(&name));
    texts.extend(topic(&name).ok().map(|topic| topic.text()));
    // A field that has a key's name is that key.
    if list()
        .iter()
        .all(|(own, kind, _)| *own != name || *kind == "column")
    {
        texts.extend(field_texts(&name));
    }
    texts
}

/// The names that have a word in their explanation, with kind and text.
fn mentions(word: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    let has = |text: &str| {
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|own| own.eq_ignore_ascii_case(word))
    };
    let mut found = named();
    found.retain(|(name, ..)| texts(name).iter().any(|text| has(text)));
    let mut seen = BTreeSet::new();
    found.retain(|(name, ..)| seen.insert(*name));
    found
}

/// Every name that is explained.
pub fn names() -> BTreeSet<&'static str> {
    named().into_iter().map(|(name, ..)| name).collect()
}

fn unknown(name: &str) -> Failure {
    let names = list().into_iter().map(|(name, ..)| name);
    let names: Vec<&str> = names
        .chain(fields::all().iter().map(|field| &*field.name))
        .collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "`weir explain` lists all names".to_owned(),
    };
    let message = format!("{name:?} is not a counter, a config key or a column of weir status");
    Failure::usage(message, hint)
}

/// What the controller of this namespace does. Without one, or without the right to ask, there is only
/// the explanation.
fn running_controller(runtime_dir: &Path) -> Option<weir_api::Controller> {
    let namespace = control::namespace().ok()?;
    let status = control::ask::<Status>(runtime_dir, namespace, &Question::Status);
    status.ok()??.controller
}

/// The metric of this name, with or without its prefix, or that of a series as a scrape shows it.
fn metric(name: &str) -> Option<&'static Metric> {
    let is_known = !field_texts(name).is_empty() || counters().any(|[own, ..]| own == name);
    let has = |prefix: &str| metrics().find(|metric| metric.has(&format!("{prefix}{name}")));
    match is_known || topic(name).is_ok() {
        true => None,
        false => ["", "weir_", "weir_proxy_"].into_iter().find_map(has),
    }
}

fn metrics() -> impl Iterator<Item = &'static Metric> {
    guard().iter().chain(metrics_of_proxies())
}

fn metric_text(metric: &Metric) -> String {
    let labels = match metric.labels {
        [] => String::new(),
        labels => format!(" by {}", labels.join(", ")),
    };
    let (name, kind) = (&metric.name, metric.kind.word());
    format!("{name} ({kind}{labels})\n  {}\n", metric.help)
}

/// The fields with this name, each with the type that has it in the OpenAPI document.
fn field_texts(name: &str) -> Vec<String> {
    let fields = fields::all().iter().filter(|field| field.name == name);
    let text = |field: &Field| {
        let note = match field.note.as_str() {
            "" => String::new(),
            note => format!("\n  {note}\n"),
        };
        format!("{name} (field of {})\n  {}\n{note}", field.of, field.text)
    };
    fields.map(text).collect()
}

/// The counters and histograms of proxies with this name.
fn counter_texts(name: &str) -> Vec<String> {
    counters()
        .filter(|[own, ..]| *own == name)
        .map(|[name, kind, of, text]| format!("{name} ({kind} of {of})\n  {text}\n"))
        .collect()
}

/// Name, kind, whose it is, and text.
fn counters() -> impl Iterator<Item = [&'static str; 4]> {
    let of = [
        ("counter", "a proxy", ListenerCounters::NAMES),
        ("counter", "a proxy's backend", BackendCounters::NAMES),
        ("counter", "a proxy's backend", HealthCounters::NAMES),
        ("counter", "a proxy's queue", QueueCounters::NAMES),
        ("counter", "a name of backends", NameCounters::NAMES),
        ("histogram", "a proxy", ListenerCounters::TIMES),
        ("histogram", "a proxy's backend", BackendCounters::TIMES),
    ];
    of.into_iter().flat_map(|(kind, of, names)| {
        let names = names.iter();
        names.map(move |(name, text)| [*name, kind, of, *text])
    })
}

fn all() -> String {
    rows(named().into_iter())
}

fn rows<'a>(rows: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> String {
    let head = [
        ("name", Align::Left),
        ("kind", Align::Left),
        ("text", Align::Left),
    ];
    let row = |(name, kind, text): (&str, &str, &str)| vec![name.into(), kind.into(), text.into()];
    table(&head, &rows.map(row).collect::<Vec<_>>())
}

/// Everything that is explained: name, kind and text.
fn named() -> Vec<(&'static str, &'static str, &'static str)> {
    let counters = counters().map(|[name, kind, _, text]| (name, kind, text));
    let listed = list();
    let mut names: BTreeSet<&str> = listed.iter().map(|(name, ..)| *name).collect();
    let fields = fields::all()
        .iter()
        .filter(|field| names.insert(&field.name));
    let fields = fields.map(|field| (&*field.name, "field", &*field.text));
    listed
        .iter()
        .copied()
        .chain(fields)
        .chain(counters)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use weir_api::{
        Backend, CacheMemory, ClassStatistics, Connections, Controller, Decision, Interface,
        ListenerStatistics, Process, ProxyName, ProxyQueue, ProxyThread, Socket, Statistics,
        Status, TimeRange, Times,
    };
    use weir_config::Table;
    use weir_core::class::Class;
    use weir_core::listener::{ListenAddress, Listener};
    use weir_core::proxy::Proxy;
    use weir_core::quic::{QuicCounters, QuicListener, QuicSocket};

    use super::*;
    use crate::daemon::report::counters_by_name;

    /// A status in which everything stands that there is.
    fn report() -> Status {
        let address = ListenAddress { ip: None, port: 80 };
        let class = weir_api::Class {
            name: "other".into(),
            rate: Some(5.0),
            burst: Some(10),
            controlled_rate: Some(4.0),
            waiting: Some(1),
            settings: crate::show::settings::settings(&Class::new("other"))
                .into_iter()
                .collect(),
            ..weir_api::Class::default()
        };
        let socket = Socket {
            address: "0.0.0.0:80".into(),
            queue_length: 1,
            queue_limit: 2,
            half_open: 3,
            wait_us: Some(4),
            mptcp: true,
        };
        let listener = weir_api::Listener {
            name: "web".into(),
            queue_way_because: Some("it runs with MPTCP".into()),
            not_in_force_because: Some("weir is attached to none of its interfaces".into()),
            wait_us: Some(1),
            residence: Some(weir_api::Residence::default()),
            fallback: Some("reserv".into()),
            fallback_because: Some("cookies are off".into()),
            counters: counters_by_name(&Default::default()),
            classes: vec![class],
            sockets: vec![socket.clone(), socket],
            workloads: vec![weir_api::Workload {
                not_in_force_because: Some("it has ended".into()),
                counters: counters_by_name(&Default::default()),
                ..weir_api::Workload::default()
            }],
            settings: crate::show::settings::settings(&Listener::new("web", address))
                .into_iter()
                .collect(),
            ..weir_api::Listener::default()
        };
        let listen = "127.0.0.1:3128".parse().unwrap();
        let settings = Proxy::new("edge", listen, weir_core::proxy::ProxyMode::Forward);
        let times = Times {
            ranges: vec![TimeRange::default()],
            ..Times::default()
        };
        let proxy = weir_api::Proxy {
            queue: vec![ProxyQueue::default()],
            connections: Connections::default(),
            cache_memory: Some(CacheMemory::default()),
            times: [("connect".to_owned(), times)].into(),
            backends: vec![Backend {
                resolved_from: Some("app.internal".into()),
                ..Backend::default()
            }],
            names: vec![ProxyName {
                failing_seconds: Some(1),
                ..ProxyName::default()
            }],
            threads: vec![ProxyThread {
                state: "accepting".into(),
                clients: 1,
                restarts: 0,
            }],
            settings: crate::show::settings::settings(&settings)
                .into_iter()
                .collect(),
            ..weir_api::Proxy::default()
        };
        Status {
            process: Some(Process::default()),
            interfaces: vec![Interface {
                name: "eth0".into(),
                index: 2,
                xdp: true,
            }],
            listeners: vec![listener],
            quic: vec![quic()],
            controller: Some(controller()),
            proxies: vec![proxy],
            ..Status::default()
        }
    }

    fn quic() -> weir_api::Quic {
        let address = ListenAddress {
            ip: None,
            port: 443,
        };
        let socket = QuicSocket {
            pending: 1,
            wait: None,
            service: None,
            buffer: 2,
            buffer_limit: 3,
            standing: true,
            least: 2,
        };
        let listener = QuicListener::new("h3", address);
        let (counters, warning) = (QuicCounters::default(), Some("…".to_owned()));
        crate::show::quic::report(&listener, &counters, &[socket, socket], true, warning)
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

    fn is_known(name: &str) -> bool {
        !texts(name).is_empty()
    }

    /// The names of all fields, however deep.
    fn names_in(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    into.insert(name.clone());
                    names_in(value, into);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| names_in(value, into)),
            _ => {}
        }
    }

    /// The heads of all tables: lines whose first word is a table's.
    fn heads(text: &str) -> impl Iterator<Item = String> {
        let first = [
            "listener", "quic", "class", "verdict", "proxy", "priority", "counter",
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

    #[test]
    fn every_word_of_status_and_of_the_metrics_is_explained() {
        let mut report = report();
        report.listeners[0].classes_left_out = 1;
        let mut names = BTreeSet::new();
        names_in(&serde_json::to_value(&report).unwrap(), &mut names);
        let view = report::View {
            all: true,
            explain: true,
            before: Some((&report, std::time::Duration::from_secs(1))),
        };
        let text = report::text(&report, &view)
            + &crate::show::report::class_list(&report.listeners[0].classes);
        let mut data = crate::top::data::Data::default();
        data.take(crate::top::data::Report {
            status: report.clone(),
            ..Default::default()
        });
        let order = crate::top::once::Order {
            sort: Default::default(),
            filter: "",
        };
        names.extend(heads(&(text + &crate::top::once::text(&data, order))));
        assert!(names.len() > 120, "{names:?}");
        for words in ["held at", "overtook", "queue_way", "SYN/s"] {
            assert!(names.contains(words), "{words}: {names:?}");
        }
        let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(metrics().count() > 60);
        let unknown: Vec<_> = metrics().filter(|metric| !is_known(metric.of)).collect();
        let unknown: Vec<_> = unknown.iter().map(|metric| &metric.name).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn a_word_finds_the_names_that_have_it_in_their_text() {
        let found: Vec<&str> = mentions("rst").into_iter().map(|(name, ..)| name).collect();
        for name in ["syn_reset_wait", "reject_syn", "over_rate", "reason"] {
            assert!(found.contains(&name), "{name}: {found:?}");
        }
        assert!(!found.contains(&"queue_length"), "{found:?}");
        assert!(mentions("syn_admited").is_empty());
    }

    #[test]
    fn a_series_is_explained_as_it_is_scraped() {
        for (series, name) in [
            ("weir_proxy_retries_total{proxy=\"edge\"}", "retries"),
            ("weir_proxy_connect_seconds_bucket", "connect"),
            ("weir_proxy_backend_up", "health"),
            ("weir_queue_length", "queue_length"),
            ("weir_class_syn_admitted_total", "syn_admitted"),
        ] {
            assert_eq!(
                metric(series).map(|metric| metric.of),
                Some(name),
                "{series}"
            );
        }
        assert!(metric("weir_rats_total").is_none());
        assert!(metric("requests").is_none());
    }

    #[test]
    fn the_name_of_every_class_that_status_makes_up_is_explained() {
        assert!(is_known(weir_core::class::OTHER) && is_known(Class::NAME));
    }
}
