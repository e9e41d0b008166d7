//! Fills the report of a proxy from its threads, over all generations of its settings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::LazyLock;

use weir_api::metrics::{Metric, ProxyCounters};
use weir_api::{
    Backend, CacheMemory, Connections, Proxy, ProxyName, ProxyQueue, ProxyThread, TimeRange, Times,
};
use weir_core::word::Word;
use weir_proxy::histogram::{self, BOUNDS_US};
use weir_proxy::metrics::{
    BackendCounters, HealthCounters, ListenerCounters, NameCounters, QueueCounters,
};
use weir_proxy::{
    BackendReport as BackendNow, Connections as ConnectionsNow, NameReport, Server, Total, Totals,
};

use crate::show::settings::settings;

/// What the crate of the proxy counts.
pub const COUNTERS: ProxyCounters = ProxyCounters {
    proxy: ListenerCounters::NAMES,
    proxy_times: ListenerCounters::TIMES,
    backend: &[BackendCounters::NAMES, HealthCounters::NAMES],
    backend_times: BackendCounters::TIMES,
    name: NameCounters::NAMES,
    queue: QueueCounters::NAMES,
};

/// Every metric of proxies.
pub fn metrics() -> &'static [Metric] {
    static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| weir_api::metrics::proxies(COUNTERS));
    &METRICS
}

/// `server` with all generations of its name, itself among them, and what earlier ones did.
pub fn of<'a>(
    server: &Server,
    generations: impl Iterator<Item = &'a Server>,
    past: Option<&Totals>,
) -> Proxy {
    let mut totals = Totals::default();
    let mut threads = Vec::new();
    let mut connections = Connections::default();
    let servers = server.servers();
    let (mut now, names) = (servers.backends, servers.names);
    let mut waiting = BTreeMap::<u8, u64>::new();
    let generations: Vec<&Server> = generations.collect();
    for generation in &generations {
        totals.add(&generation.totals());
        for (priority, count) in generation.waiting_by_priority() {
            *waiting.entry(priority).or_default() += u64::from(count);
        }
        let servers = generation.servers();
        add(&mut connections, servers.origins);
        for backend in servers.backends {
            add(&mut connections, backend.connections);
            if generation.settings() != server.settings() {
                add_to(&mut now, backend);
            }
        }
        threads.extend(generation.threads().map(|thread| ProxyThread {
            state: thread.state.word().to_owned(),
            clients: thread.clients,
            restarts: thread.restarts,
        }));
    }
    if let Some(past) = past {
        totals.add(past);
    }
    let mut keys = settings(server.settings());
    // Its fields of the same names say what is, not what was asked for.
    for key in ["name", "mode", "threads", "backends"] {
        keys.remove(key);
    }
    let with_times = |(address, counters): &(SocketAddr, Vec<Total>)| {
        let now = now.iter().find(|now| now.address == *address);
        let mut times = totals.backend_times.iter();
        let times = times.find(|(own, _)| own == address);
        Backend {
            times: times.map_or_else(BTreeMap::new, |(_, times)| times_by_name(times)),
            ..backend(*address, now, counters)
        }
    };
    let all_times = [&totals.listener_times[..], &totals.server_times].concat();
    let queue = |(priority, counters): &(u8, Vec<Total>)| ProxyQueue {
        priority: *priority,
        waiting: waiting.get(priority).copied().unwrap_or(0),
        counters: by_name(counters),
    };
    Proxy {
        name: server.settings().name.clone(),
        pid: std::process::id(),
        config: None,
        last_reload: None,
        unconfirmed_s: None,
        address: server.address().to_string(),
        mode: server.settings().mode.word().to_owned(),
        accepting: server.sockets().is_some(),
        clients: threads.iter().map(|thread| thread.clients).sum(),
        waiting: waiting.values().sum(),
        queue: totals.queue.iter().map(queue).collect(),
        connections,
        cache_memory: cache_memory(&generations),
        times: times_by_name(&all_times),
        counters: by_name(&totals.listener),
        backends: totals.backends.iter().map(with_times).collect(),
        names: names.iter().map(|now| name(now, &totals)).collect(),
        threads,
        settings: keys.into_iter().collect(),
    }
}

/// Each cache once: generations of settings share theirs.
fn cache_memory(generations: &[&Server]) -> Option<CacheMemory> {
    let mut sum = None::<CacheMemory>;
    for (index, server) in generations.iter().enumerate() {
        let earlier = &generations[..index];
        if let Some(memory) = server.cache_memory()
            && !earlier.iter().any(|other| other.shares_cache_with(server))
        {
            let sum = sum.get_or_insert_default();
            sum.held_bytes += memory.held_bytes;
            sum.limit_bytes += memory.limit_bytes;
            sum.objects += memory.objects;
        }
    }
    sum
}

/// A backend that only earlier settings had has no `now`.
fn backend(address: SocketAddr, now: Option<&BackendNow>, counters: &[Total]) -> Backend {
    let state = now.map(|now| now.state).unwrap_or_default();
    let mut connections = Connections::default();
    if let Some(now) = now {
        add(&mut connections, now.connections);
    }
    Backend {
        address: address.to_string(),
        resolved_from: now.and_then(|now| now.name.clone()),
        weight: now.map_or(0, |now| now.weight),
        health: state.word().to_owned(),
        last_check: now.map(|now| now.last_check.clone()).unwrap_or_default(),
        connections,
        times: BTreeMap::new(),
        counters: by_name(counters),
    }
}

fn name(now: &NameReport, totals: &Totals) -> ProxyName {
    let mut counted = totals.names.iter();
    let counted = counted.find(|(name, _)| *name == now.name);
    ProxyName {
        name: now.name.clone(),
        resolved: now.is_resolved,
        lookup_error: now.error.clone(),
        failing_seconds: now.fails_for.map(|time| time.as_secs()),
        addresses: now.addresses.iter().map(ToString::to_string).collect(),
        counters: counted.map_or_else(BTreeMap::new, |(_, totals)| by_name(totals)),
    }
}

fn add(sum: &mut Connections, more: ConnectionsNow) {
    sum.in_use += more.in_use;
    sum.idle += more.idle;
}

/// Adds the connections that an earlier generation still has. Its health is no news: it checks no
/// more.
fn add_to(now: &mut Vec<BackendNow>, backend: BackendNow) {
    match now.iter_mut().find(|own| own.address == backend.address) {
        Some(own) => own.connections.add(backend.connections),
        None => now.push(BackendNow {
            weight: 0,
            ..backend
        }),
    }
}

fn by_name(totals: &[Total]) -> BTreeMap<String, u64> {
    let rows = totals
        .iter()
        .map(|total| (total.name.to_owned(), total.value));
    rows.collect()
}

fn times(times: &histogram::Times) -> Times {
    let quantile = |share| times.quantile(share).map(|time| time.as_micros() as u64);
    let bounds = BOUNDS_US.into_iter().map(Some).chain([None]);
    let ranges = bounds.zip(times.counts);
    Times {
        count: times.count(),
        sum_us: times.sum_us,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        ranges: ranges
            .map(|(up_to_us, count)| TimeRange { up_to_us, count })
            .collect(),
    }
}

fn times_by_name(totals: &[Total<histogram::Times>]) -> BTreeMap<String, Times> {
    let rows = totals.iter();
    rows.map(|total| (total.name.to_owned(), times(&total.value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use weir_proxy::histogram::Histogram;

    use super::*;

    #[test]
    fn the_median_and_the_99th_percentile_are_those_of_the_histogram() {
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.observe(150));
        histogram.observe(30_000);
        let times = times(&histogram.times());
        assert_eq!(
            (times.count, times.p50_us, times.p99_us),
            (100, Some(150), Some(200))
        );
        assert_eq!(times.ranges.len(), BOUNDS_US.len() + 1);
    }
}
