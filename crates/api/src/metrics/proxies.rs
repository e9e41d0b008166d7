//! The metrics of proxies: clients, backends, queues, caches and threads.

use std::collections::BTreeMap;

use super::process::process;
use super::{Figures, Kind, Labelled, Metric, Source, Value, metric};
use crate::fields::{Field, of};
use crate::{Backend, CacheMemory, Proxy, ProxyName, ProxyQueue, ProxyThread, Times};

/// Names of counters or histograms with their texts.
type Names = [(&'static str, &'static str)];

/// What a proxy counts, by the names in its report. The crate of the proxy declares them.
#[derive(Debug, Clone, Copy)]
pub struct ProxyCounters {
    /// Counters of a proxy.
    pub proxy: &'static Names,
    /// Histograms of a proxy. Those of backends are also summed over all servers of a proxy.
    pub proxy_times: &'static Names,
    /// Counters of a backend.
    pub backend: &'static [&'static Names],
    /// Histograms of a backend.
    pub backend_times: &'static Names,
    /// Counters of a name of backends.
    pub name: &'static Names,
    /// Counters of the queue for a connection to a backend, by priority.
    pub queue: &'static Names,
}

/// Every metric of proxies.
pub fn proxies(counters: ProxyCounters) -> Vec<Metric> {
    let proxy = counted::<Proxy>("weir_proxy_", counters.proxy, |proxy| &proxy.counters);
    let backend = counters
        .backend
        .iter()
        .flat_map(|names| counted::<Backend>("weir_proxy_backend_", names, |it| &it.counters));
    let proxy_times = [counters.proxy_times, counters.backend_times]
        .into_iter()
        .flat_map(|names| timed::<Proxy>("weir_proxy_", names, |proxy| &proxy.times));
    let backend_times = timed::<Backend>("weir_proxy_backend_", counters.backend_times, |it| {
        &it.times
    });
    let name = counted::<ProxyName>("weir_proxy_name_", counters.name, |it| &it.counters);
    let queue = counted::<ProxyQueue>("weir_proxy_queue_", counters.queue, |it| &it.counters);
    proxy
        .chain(backend)
        .chain(proxy_times)
        .chain(backend_times)
        .chain(caches())
        .chain(connections())
        .chain(name)
        .chain(names())
        .chain(queue)
        .chain(queues_and_threads())
        .chain(process("weir_proxy_"))
        .collect()
}

/// Absent of a proxy without a cache.
fn caches() -> [Metric; 3] {
    fn gauge(field: &str, value: fn(&CacheMemory) -> u64) -> Metric {
        let name = format!("weir_proxy_cache_{}", field);
        let value = move |proxy: &Proxy| proxy.cache_memory.as_ref().map(value).map(Value::Whole);
        metric(name, Kind::Gauge, of("CacheMemory", field), value)
    }
    [
        gauge("held_bytes", |memory| memory.held_bytes),
        gauge("limit_bytes", |memory| memory.limit_bytes),
        gauge("objects", |memory| memory.objects),
    ]
}

fn connections() -> [Metric; 6] {
    let field = |name| of("Connections", name);
    let up = Source {
        of: "health",
        help: "1 if the backend passes its health checks, else 0; absent if it is not checked",
    };
    let is_up = |it: &Backend| match it.health.as_str() {
        "unchecked" => None,
        health => Some((health == "up").into()),
    };
    [
        gauge::<Backend>("weir_proxy_backend_in_use", field("in_use"), |it| {
            Some(it.connections.in_use)
        }),
        gauge::<Backend>("weir_proxy_backend_idle", field("idle"), |it| {
            Some(it.connections.idle)
        }),
        gauge("weir_proxy_backend_up", up, is_up),
        gauge::<Backend>("weir_proxy_backend_weight", of("Backend", "weight"), |it| {
            Some(it.weight.into())
        }),
        gauge::<Proxy>("weir_proxy_in_use", field("in_use"), |proxy| {
            Some(proxy.connections.in_use)
        }),
        gauge::<Proxy>("weir_proxy_idle", field("idle"), |proxy| {
            Some(proxy.connections.idle)
        }),
    ]
}

fn names() -> [Metric; 2] {
    let resolved = Source {
        of: "resolved",
        help: "1 if the last look-up of the name found addresses, else 0: it keeps those that it had",
    };
    let addresses = of("ProxyName", "addresses");
    [
        gauge::<ProxyName>("weir_proxy_name_resolved", resolved, |it| {
            Some(it.resolved.into())
        }),
        gauge::<ProxyName>("weir_proxy_name_addresses", addresses, |it| {
            Some(it.addresses.len() as u64)
        }),
    ]
}

fn queues_and_threads() -> [Metric; 3] {
    let thread = |name| -> &'static Field { of("ProxyThread", name) };
    [
        gauge::<ProxyQueue>(
            "weir_proxy_queue_waiting",
            of("ProxyQueue", "waiting"),
            |it| Some(it.waiting),
        ),
        gauge::<ProxyThread>("weir_proxy_clients", thread("clients"), |it| {
            Some(it.clients)
        }),
        metric(
            "weir_proxy_restarts",
            Kind::Counter,
            thread("restarts"),
            |it: &ProxyThread| Some(Value::Count(it.restarts)),
        ),
    ]
}

fn gauge<T: Labelled>(
    name: &str,
    source: impl Into<Source>,
    value: fn(&T) -> Option<u64>,
) -> Metric {
    let value = move |one: &T| value(one).map(Value::Whole);
    metric(name, Kind::Gauge, source, value)
}

fn counted<T: Labelled>(
    prefix: &'static str,
    names: &'static Names,
    counters: fn(&T) -> &BTreeMap<String, u64>,
) -> impl Iterator<Item = Metric> {
    names.iter().map(move |&(of, help)| {
        let value = move |one: &T| counters(one).get(of).copied().unwrap_or(0);
        let value = move |one: &T| Some(Value::Count(value(one)));
        let name = format!("{prefix}{of}");
        metric(name, Kind::Counter, Source { of, help }, value)
    })
}

fn timed<T: Labelled>(
    prefix: &'static str,
    names: &'static Names,
    times: fn(&T) -> &BTreeMap<String, Times>,
) -> impl Iterator<Item = Metric> {
    names.iter().map(move |&(of, help)| {
        let value = move |one: &T| times(one).get(of).cloned().map(Value::Times);
        let name = format!("{prefix}{of}_seconds");
        metric(name, Kind::Histogram, Source { of, help }, value)
    })
}

impl Labelled for Proxy {
    const LABELS: &'static [&'static str] = &["proxy"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for proxy in &figures.proxies {
            take(vec![proxy.name.clone()], proxy);
        }
    }
}

impl Labelled for Backend {
    const LABELS: &'static [&'static str] = &["proxy", "backend"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for proxy in &figures.proxies {
            for backend in &proxy.backends {
                take(vec![proxy.name.clone(), backend.address.clone()], backend);
            }
        }
    }
}

impl Labelled for ProxyName {
    const LABELS: &'static [&'static str] = &["proxy", "name"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for proxy in &figures.proxies {
            for name in &proxy.names {
                take(vec![proxy.name.clone(), name.name.clone()], name);
            }
        }
    }
}

impl Labelled for ProxyQueue {
    const LABELS: &'static [&'static str] = &["proxy", "priority"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for proxy in &figures.proxies {
            for queue in &proxy.queue {
                take(vec![proxy.name.clone(), queue.priority.to_string()], queue);
            }
        }
    }
}

impl Labelled for ProxyThread {
    const LABELS: &'static [&'static str] = &["proxy", "thread"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for proxy in &figures.proxies {
            for (number, thread) in proxy.threads.iter().enumerate() {
                take(vec![proxy.name.clone(), number.to_string()], thread);
            }
        }
    }
}
