//! `weir proxy --metrics`: what `weir status` shows of proxies, as OpenMetrics text over HTTP.
//!
//! The loop of the process takes the connection and makes the text; a thread of its own reads the
//! request and answers, so that a slow reader holds nobody up but others like it. Threads that move
//! data are not involved: their counters are read as they stand.

mod histograms;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_proxy::metrics::{BackendCounters, HealthCounters, ListenerCounters, QueueCounters};

use self::histograms::Histograms;
use crate::ipc::api::add_log;
use crate::show::log;
use crate::show::report::ProxyReport;
use crate::show::report::proxy::{BackendReport, ConnectionsNow, QueueReport};

/// Who is slower than this to send its request or to take its answer is not served.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request, in bytes.
const REQUEST_BYTES: usize = 8 * 1024;
/// Scrapes that wait for those before them; more are turned away.
const WAITING: usize = 16;

/// Where metrics are asked for.
pub struct Metrics {
    listener: TcpListener,
    answers: SyncSender<(TcpStream, String)>,
}

impl Metrics {
    /// Listens, and starts the thread that answers.
    ///
    /// # Errors
    /// As bind(2), or the kernel gives no thread.
    pub fn listen(address: SocketAddr) -> io::Result<Metrics> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (answers, scrapes) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("weir-metrics".to_owned())
            .spawn(move || answer_all(&scrapes))?;
        Ok(Metrics { listener, answers })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes the next scrape, if one waits, and has it answered with what is now.
    pub fn serve(&self, reports: impl FnOnce() -> Vec<ProxyReport>) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        if self
            .answers
            .try_send((stream, text(&reports(), log::lost())))
            .is_err()
        {
            tracing::warn!("metrics: a scrape was turned away, {WAITING} wait already");
        }
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn answer_all(scrapes: &Receiver<(TcpStream, String)>) {
    for (stream, text) in scrapes {
        if let Err(error) = answer(stream, &text) {
            tracing::debug!("metrics: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, text: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text),
        false => ("404 Not Found", "GET /metrics\n"),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\n\
         Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Reads to the end of a head: what is unread at close would reset the answer.
fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        if read == 0 || request.len() > REQUEST_BYTES {
            return Err(io::Error::other("the request has no end"));
        }
        request.extend_from_slice(&buffer[..read]);
    }
    Ok(request)
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfProxy {
    proxy: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfBackend {
    proxy: String,
    backend: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPriority {
    proxy: String,
    priority: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfThread {
    proxy: String,
    thread: u64,
}

type Count = Counter<u64, AtomicU64>;

/// Every counter of every proxy, by the names of `weir status`. `log_lost` are lines of the process.
pub fn text(proxies: &[ProxyReport], log_lost: u64) -> String {
    let mut registry = Registry::with_prefix("weir_proxy");
    add_listeners(&mut registry, proxies);
    add_backends(&mut registry, proxies);
    add_times(&mut registry, proxies);
    add_caches(&mut registry, proxies);
    add_connections(&mut registry, proxies);
    add_queues(&mut registry, proxies);
    add_threads(&mut registry, proxies);
    add_log(&mut registry, log_lost);
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes every metric");
    text
}

fn add_listeners(registry: &mut Registry, proxies: &[ProxyReport]) {
    for (name, help) in ListenerCounters::NAMES {
        let family = Family::<OfProxy, Count>::default();
        for proxy in proxies {
            let labels = OfProxy {
                proxy: proxy.name.clone(),
            };
            let value = proxy.counters.get(*name).copied().unwrap_or(0);
            family.get_or_create(&labels).inc_by(value);
        }
        registry.register(*name, *help, family);
    }
}

fn add_backends(registry: &mut Registry, proxies: &[ProxyReport]) {
    for (name, help) in BackendCounters::NAMES.iter().chain(HealthCounters::NAMES) {
        let family = Family::<OfBackend, Count>::default();
        for (labels, backend) in backends(proxies) {
            let value = backend.counters.get(*name).copied().unwrap_or(0);
            family.get_or_create(&labels).inc_by(value);
        }
        registry.register(format!("backend_{name}"), *help, family);
    }
}

/// By proxy and by backend; what is the servers' also of all servers of a proxy together.
fn add_times(registry: &mut Registry, proxies: &[ProxyReport]) {
    for (name, help) in ListenerCounters::TIMES.iter().chain(BackendCounters::TIMES) {
        let rows = proxies.iter().filter_map(|proxy| {
            let labels = OfProxy {
                proxy: proxy.name.clone(),
            };
            Some((labels, proxy.times.get(*name)?.clone()))
        });
        let histograms = Histograms::new((*name).to_owned(), help, rows);
        registry.register_collector(Box::new(histograms));
    }
    for (name, help) in BackendCounters::TIMES {
        let rows = backends(proxies).filter_map(|(labels, backend)| {
            let times = backend.times.get(*name)?;
            Some((labels, times.clone()))
        });
        let histograms = Histograms::new(format!("backend_{name}"), help, rows);
        registry.register_collector(Box::new(histograms));
    }
}

fn backends(proxies: &[ProxyReport]) -> impl Iterator<Item = (OfBackend, &BackendReport)> {
    proxies.iter().flat_map(|proxy| {
        let labels = |backend: &BackendReport| OfBackend {
            proxy: proxy.name.clone(),
            backend: backend.address.clone(),
        };
        let backends = proxy.backends.iter();
        backends.map(move |backend| (labels(backend), backend))
    })
}

/// What caches hold; absent of a proxy without one.
fn add_caches(registry: &mut Registry, proxies: &[ProxyReport]) {
    let [held, limit, objects] = [(); 3].map(|()| Family::<OfProxy, Gauge>::default());
    for proxy in proxies {
        let Some(memory) = proxy.cache_memory else {
            continue;
        };
        let labels = OfProxy {
            proxy: proxy.name.clone(),
        };
        held.get_or_create(&labels).set(memory.held_bytes as i64);
        limit.get_or_create(&labels).set(memory.limit_bytes as i64);
        objects.get_or_create(&labels).set(memory.objects as i64);
    }
    let text = "bytes of memory that the cache holds";
    registry.register("cache_held_bytes", text, held);
    let text = "bytes of memory that the cache holds at most";
    registry.register("cache_limit_bytes", text, limit);
    let text = "replies that the cache holds";
    registry.register("cache_objects", text, objects);
}

/// Connections to servers, who waits for one, and which backends are up.
fn add_connections(registry: &mut Registry, proxies: &[ProxyReport]) {
    let [in_use, idle, up] = [(); 3].map(|()| Family::<OfBackend, Gauge>::default());
    for (labels, backend) in backends(proxies) {
        let ConnectionsNow {
            in_use: busy,
            idle: kept,
        } = backend.connections;
        in_use.get_or_create(&labels).set(busy as i64);
        idle.get_or_create(&labels).set(kept as i64);
        if backend.health != "unchecked" {
            up.get_or_create(&labels)
                .set((backend.health == "up").into());
        }
    }
    let text = "connections to the backend that carry something, or are being made";
    registry.register("backend_in_use", text, in_use);
    let text = "connections to the backend that are kept for the next request";
    registry.register("backend_idle", text, idle);
    let text = "1 if the backend passes its health checks, else 0; absent if it is not checked";
    registry.register("backend_up", text, up);
    let [in_use, idle] = [(); 2].map(|()| Family::<OfProxy, Gauge>::default());
    for proxy in proxies {
        let labels = OfProxy {
            proxy: proxy.name.clone(),
        };
        in_use
            .get_or_create(&labels)
            .set(proxy.connections.in_use as i64);
        idle.get_or_create(&labels)
            .set(proxy.connections.idle as i64);
    }
    let text = "connections to servers that carry something, or are being made";
    registry.register("in_use", text, in_use);
    let text = "connections to servers that are kept for the next request";
    registry.register("idle", text, idle);
}

/// Who waits for a connection to a backend, and who had to.
fn add_queues(registry: &mut Registry, proxies: &[ProxyReport]) {
    let queues = || {
        proxies.iter().flat_map(|proxy| {
            let labels = |queue: &QueueReport| OfPriority {
                proxy: proxy.name.clone(),
                priority: queue.priority.into(),
            };
            let queues = proxy.queue.iter();
            queues.map(move |queue| (labels(queue), queue))
        })
    };
    let waiting = Family::<OfPriority, Gauge>::default();
    for (labels, queue) in queues() {
        waiting.get_or_create(&labels).set(queue.waiting as i64);
    }
    let text = "clients that wait for a connection to a backend";
    registry.register("queue_waiting", text, waiting);
    for (name, help) in QueueCounters::NAMES {
        let family = Family::<OfPriority, Count>::default();
        for (labels, queue) in queues() {
            let value = queue.counters.get(*name).copied().unwrap_or(0);
            family.get_or_create(&labels).inc_by(value);
        }
        registry.register(format!("queue_{name}"), *help, family);
    }
}

fn add_threads(registry: &mut Registry, proxies: &[ProxyReport]) {
    let clients = Family::<OfThread, Gauge>::default();
    let falls = Family::<OfThread, Count>::default();
    for proxy in proxies {
        for (thread, line) in (0..).zip(&proxy.threads) {
            let labels = OfThread {
                proxy: proxy.name.clone(),
                thread,
            };
            clients.get_or_create(&labels).set(line.clients as i64);
            falls.get_or_create(&labels).inc_by(line.falls);
        }
    }
    registry.register("clients", "connections of clients now", clients);
    registry.register("falls", "threads that fell and were started again", falls);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::report::proxy::times::{Range, TimesReport};
    use crate::show::report::proxy::{CacheMemoryReport, ThreadLine};

    /// So many of 50 µs, and one of 90 s.
    fn times(short: u64) -> TimesReport {
        let range = |up_to_us, count| Range { up_to_us, count };
        TimesReport {
            count: short + 1,
            sum_us: short * 50 + 90_000_000,
            ranges: vec![range(Some(100), short), range(Some(200), 0), range(None, 1)],
            ..TimesReport::default()
        }
    }

    #[test]
    fn every_counter_is_a_metric_with_its_text() {
        let backend = BackendReport {
            address: "10.0.0.5:80".into(),
            health: "down".into(),
            connections: ConnectionsNow { in_use: 4, idle: 5 },
            counters: [("connects".to_owned(), 3)].into(),
            times: [("connect".to_owned(), times(12))].into(),
            ..BackendReport::default()
        };
        let thread = ThreadLine {
            state: "accepting".into(),
            clients: 2,
            falls: 1,
        };
        let proxy = ProxyReport {
            name: "edge".into(),
            times: [("request_duration".to_owned(), times(11))].into(),
            queue: vec![QueueReport {
                priority: 64,
                waiting: 6,
                counters: [("late".to_owned(), 8)].into(),
            }],
            counters: [("requests".to_owned(), 7)].into(),
            cache_memory: Some(CacheMemoryReport {
                held_bytes: 5,
                limit_bytes: 10,
                objects: 2,
            }),
            backends: vec![backend],
            threads: vec![thread],
            ..ProxyReport::default()
        };
        let text = text(&[proxy], 9);
        for line in [
            "weir_proxy_requests_total{proxy=\"edge\"} 7",
            "weir_proxy_backend_connects_total{proxy=\"edge\",backend=\"10.0.0.5:80\"} 3",
            "weir_proxy_backend_up{proxy=\"edge\",backend=\"10.0.0.5:80\"} 0",
            "weir_proxy_backend_in_use{proxy=\"edge\",backend=\"10.0.0.5:80\"} 4",
            "weir_proxy_backend_idle{proxy=\"edge\",backend=\"10.0.0.5:80\"} 5",
            "weir_proxy_backend_checks_total{proxy=\"edge\",backend=\"10.0.0.5:80\"} 0",
            "weir_proxy_queue_waiting{proxy=\"edge\",priority=\"64\"} 6",
            "weir_proxy_queue_late_total{proxy=\"edge\",priority=\"64\"} 8",
            "weir_proxy_clients{proxy=\"edge\",thread=\"0\"} 2",
            "weir_proxy_falls_total{proxy=\"edge\",thread=\"0\"} 1",
            "# TYPE weir_proxy_request_duration_seconds histogram",
            "weir_proxy_request_duration_seconds_count{proxy=\"edge\"} 12",
            "weir_proxy_request_duration_seconds_sum{proxy=\"edge\"} 90.00055",
            "weir_proxy_request_duration_seconds_bucket{le=\"0.0001\",proxy=\"edge\"} 11",
            "weir_proxy_request_duration_seconds_bucket{le=\"0.0002\",proxy=\"edge\"} 11",
            "weir_proxy_request_duration_seconds_bucket{le=\"+Inf\",proxy=\"edge\"} 12",
            "weir_proxy_backend_connect_seconds_count{proxy=\"edge\",backend=\"10.0.0.5:80\"} 13",
            "weir_proxy_cache_held_bytes{proxy=\"edge\"} 5",
            "weir_proxy_cache_limit_bytes{proxy=\"edge\"} 10",
            "weir_proxy_cache_objects{proxy=\"edge\"} 2",
            "# HELP weir_proxy_requests HTTP requests whose head was read.",
            "weir_proxy_log_lost_total 9",
            "# EOF",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        for (name, _) in ListenerCounters::NAMES {
            assert!(
                text.contains(&format!("weir_proxy_{name}_total{{")),
                "{name}"
            );
        }
    }
}
