//! Reports as rows: what is shown of each proxy and backend, sorted and filtered.

use std::collections::BTreeMap;

use weir_api::{Backend, Proxy, Status, Times};

use super::rates::Pair;
use super::rows::{Sort, has, in_order, turn};

/// A proxy or, below it, one of its backends.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyRow<'a> {
    /// `None`: the proxy itself.
    pub backend: Option<&'a Backend>,
    /// The name of the proxy, or the address of the backend.
    pub name: &'a str,
    /// accepting, full, draining; up, down, unchecked.
    pub state: &'a str,
    /// Clients now; `None` of a backend.
    pub clients: Option<u64>,
    /// Clients that wait for a connection; `None` of a backend.
    pub waiting: Option<u64>,
    /// Requests and tunnels per second; of a backend, connections opened and used again.
    pub rate: Option<f64>,
    /// Replies with 5xx per second; of a backend, failures.
    pub failures: Option<f64>,
    /// Connections to servers that carry something, and that wait.
    pub connections: weir_api::Connections,
    /// The 99th percentile of requests, of a backend of first bytes, since the start; in µs.
    pub p99_us: Option<u64>,
}

/// The proxies that have the filter in their name or address or in that of a backend, each with its backends.
pub fn proxies<'a>(
    status: &'a Status,
    pair: &Pair<'a>,
    filter: &str,
    sort: Sort,
    reverse: bool,
) -> Vec<ProxyRow<'a>> {
    let fits = |proxy: &&Proxy| {
        let backends = proxy
            .backends
            .iter()
            .map(|backend| backend.address.as_str());
        has(
            filter,
            [proxy.name.as_str(), proxy.address.as_str()]
                .into_iter()
                .chain(backends),
        )
    };
    let mut groups: Vec<_> = status
        .proxies
        .iter()
        .filter(fits)
        .map(|p| proxy_rows(p, pair))
        .collect();
    groups.sort_by(|a: &Vec<ProxyRow<'_>>, b| {
        let figure = |rows: &[ProxyRow<'_>]| match sort {
            Sort::Name => 0.0,
            Sort::Queue | Sort::Wait => rows[0].waiting.unwrap_or(0) as f64,
            Sort::Admitted => rows[0].rate.unwrap_or(0.0),
            Sort::Refused => rows[0].failures.unwrap_or(0.0),
        };
        in_order(figure(a), figure(b), a[0].name, b[0].name)
    });
    turn(&mut groups, reverse);
    groups.into_iter().flatten().collect()
}

fn proxy_rows<'a>(proxy: &'a Proxy, pair: &Pair<'a>) -> Vec<ProxyRow<'a>> {
    let p99 = |times: &'a BTreeMap<String, Times>, name: &str| {
        times.get(name).and_then(|times| times.p99_us)
    };
    let interval = pair.proxy(proxy);
    let state = match proxy.accepting {
        true if proxy.threads.iter().any(|thread| thread.state == "full") => "full",
        true => "accepting",
        false => "draining",
    };
    let itself = ProxyRow {
        backend: None,
        name: &proxy.name,
        state,
        clients: Some(proxy.clients),
        waiting: Some(proxy.waiting),
        rate: interval.map(|interval| interval.rates(["requests", "tunnels"])),
        failures: interval.map(|interval| interval.rate("replies_5xx")),
        connections: proxy.connections,
        p99_us: p99(&proxy.times, "request_duration"),
    };
    let backend = |backend: &'a Backend| {
        let interval = pair.backend(proxy, backend);
        let failures = ["connects_failed", "failures"];
        ProxyRow {
            backend: Some(backend),
            name: &backend.address,
            state: &backend.health,
            clients: None,
            waiting: None,
            rate: interval.map(|interval| interval.rates(["connects", "reused"])),
            failures: interval.map(|interval| interval.rates(failures)),
            connections: backend.connections,
            p99_us: p99(&backend.times, "first_byte"),
        }
    };
    let backends = proxy.backends.iter().map(backend);
    [itself].into_iter().chain(backends).collect()
}
