//! What `weir status` shows of proxies.

pub mod times;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_core::units::about_size;
use weir_core::word::Word;
use weir_proxy::{BackendReport as BackendNow, Connections, Server, Total, Totals};

pub use self::times::TimesReport;
use crate::commands::check::settings;
use crate::show::describe::count;
use crate::show::table::{Align, indent, table};

/// One proxy, over all generations of its settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The config file of the process.
    pub config: Option<String>,
    /// Where it listens.
    pub address: String,
    /// `forward`, `reverse` or `tcp`.
    pub mode: String,
    /// Whether it accepts connections; if not, it serves those that it has.
    pub accepting: bool,
    /// Connections of clients now.
    pub clients: u64,
    /// Clients that wait for a connection to a backend (`max_connections`).
    pub waiting: u64,
    /// The same by their class's priority, and what became of those before them; only the priorities
    /// of which anybody had to wait.
    pub queue: Vec<QueueReport>,
    /// Connections to all servers now.
    pub connections: ConnectionsNow,
    /// What its cache holds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_memory: Option<CacheMemoryReport>,
    /// How long what takes time took, by its name; that of all servers together too.
    pub times: BTreeMap<String, TimesReport>,
    /// Every counter by its name.
    pub counters: BTreeMap<String, u64>,
    /// Its backends.
    pub backends: Vec<BackendReport>,
    /// Its threads; those of earlier settings follow.
    pub threads: Vec<ThreadLine>,
    /// The config keys in effect.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// Clients of one priority that wait, or had to, for a connection to a backend.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct QueueReport {
    /// 1 to 64; 64 is that of clients of no class.
    pub priority: u8,
    /// How many wait now.
    pub waiting: u64,
    /// Every counter by its name.
    pub counters: BTreeMap<String, u64>,
}

/// Connections to servers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ConnectionsNow {
    /// Those that carry something, or are being made.
    pub in_use: u64,
    /// Those that are kept for the next request.
    pub idle: u64,
}

/// The memory of a proxy's cache, and of those that clients of earlier settings still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheMemoryReport {
    /// Bytes of what is kept, of what is being received, and of what was evicted while someone reads it.
    pub held_bytes: u64,
    /// At most so many.
    pub limit_bytes: u64,
    /// Replies, of these three kinds.
    pub objects: u64,
}

impl CacheMemoryReport {
    /// Each cache once: generations of settings share theirs.
    fn of(generations: &[&Server]) -> Option<CacheMemoryReport> {
        let mut sum = None::<CacheMemoryReport>;
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

    /// `cache: 12.0 MiB of 256.0 MiB, 331 objects`
    fn line(&self) -> String {
        format!(
            "  cache: {} of {}, {}\n",
            about_size(self.held_bytes),
            about_size(self.limit_bytes),
            count(self.objects as usize, "object")
        )
    }
}

impl ConnectionsNow {
    fn add(&mut self, more: Connections) {
        self.in_use += more.in_use;
        self.idle += more.idle;
    }
}

/// One backend of a proxy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BackendReport {
    /// Where it is.
    pub address: String,
    /// `up` or `down` by health checks; `unchecked` without them, or before the first.
    pub health: String,
    /// What the last health check came to; empty if there was none.
    pub last_check: String,
    /// Connections to it now.
    pub connections: ConnectionsNow,
    /// How long what takes time took, by its name.
    pub times: BTreeMap<String, TimesReport>,
    /// Every counter by its name.
    pub counters: BTreeMap<String, u64>,
}

/// One thread of a proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadLine {
    /// `accepting`, `full`, `draining` or `ended`.
    pub state: String,
    /// Connections of clients now.
    pub clients: u64,
    /// How often it fell and was started again.
    pub falls: u64,
}

impl ProxyReport {
    /// `server` with all generations of its name, itself among them, and what earlier ones did.
    pub fn of<'a>(
        server: &Server,
        generations: impl Iterator<Item = &'a Server>,
        past: Option<&Totals>,
    ) -> ProxyReport {
        let mut totals = Totals::default();
        let mut threads = Vec::new();
        let mut connections = ConnectionsNow::default();
        let mut now = server.servers().backends;
        let mut waiting = BTreeMap::<u8, u64>::new();
        let generations: Vec<&Server> = generations.collect();
        for generation in &generations {
            totals.add(&generation.totals());
            for (priority, count) in generation.waiting_by_priority() {
                *waiting.entry(priority).or_default() += u64::from(count);
            }
            let servers = generation.servers();
            connections.add(servers.origins);
            for backend in servers.backends {
                connections.add(backend.connections);
                if generation.settings() != server.settings() {
                    add_to(&mut now, backend);
                }
            }
            threads.extend(generation.threads().map(|thread| ThreadLine {
                state: thread.state.word().to_owned(),
                clients: thread.clients,
                falls: thread.falls,
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
        let backend = |(address, counters): &(SocketAddr, Vec<Total>)| {
            let now = now.iter().find(|now| now.address == *address);
            let mut times = totals.backend_times.iter();
            let times = times.find(|(own, _)| own == address);
            BackendReport {
                times: times.map_or_else(BTreeMap::new, |(_, times)| times::by_name(times)),
                ..BackendReport::of(*address, now, counters)
            }
        };
        let all_times = [&totals.listener_times[..], &totals.server_times].concat();
        let queue = |(priority, counters): &(u8, Vec<Total>)| QueueReport {
            priority: *priority,
            waiting: waiting.get(priority).copied().unwrap_or(0),
            counters: by_name(counters),
        };
        ProxyReport {
            name: server.settings().name.clone(),
            pid: std::process::id(),
            config: None,
            address: server.address().to_string(),
            mode: server.settings().mode.word().to_owned(),
            accepting: server.sockets().is_some(),
            clients: threads.iter().map(|thread| thread.clients).sum(),
            waiting: waiting.values().sum(),
            queue: totals.queue.iter().map(queue).collect(),
            connections,
            cache_memory: CacheMemoryReport::of(&generations),
            times: times::by_name(&all_times),
            counters: by_name(&totals.listener),
            backends: totals.backends.iter().map(backend).collect(),
            threads,
            settings: keys,
        }
    }
}

impl BackendReport {
    /// A backend that only earlier settings had has no `now`.
    fn of(address: SocketAddr, now: Option<&BackendNow>, counters: &[Total]) -> BackendReport {
        let state = now.map(|now| now.state).unwrap_or_default();
        let mut connections = ConnectionsNow::default();
        if let Some(now) = now {
            connections.add(now.connections);
        }
        BackendReport {
            address: address.to_string(),
            health: state.word().to_owned(),
            last_check: now.map(|now| now.last_check.clone()).unwrap_or_default(),
            connections,
            times: BTreeMap::new(),
            counters: by_name(counters),
        }
    }

    /// `up; 3 in use, 1 idle`, why it is down, and how long it takes.
    fn line(&self) -> String {
        let ConnectionsNow { in_use, idle } = self.connections;
        let mut line = format!("  backend {}: ", self.address);
        match self.health.as_str() {
            "unchecked" => {}
            "down" => line += &format!("down ({}); ", self.last_check),
            health => line += &format!("{health}; "),
        }
        let times = times::line(&self.times);
        let times = times.map_or(String::new(), |times| format!("; {times}"));
        line + &format!("{in_use} in use, {idle} idle{times}\n")
    }
}

/// Adds the connections that an earlier generation still has. Its health is no news: it checks no
/// more.
fn add_to(now: &mut Vec<BackendNow>, backend: BackendNow) {
    match now.iter_mut().find(|own| own.address == backend.address) {
        Some(own) => own.connections.add(backend.connections),
        None => now.push(backend),
    }
}

fn by_name(totals: &[Total]) -> BTreeMap<String, u64> {
    let rows = totals
        .iter()
        .map(|total| (total.name.to_owned(), total.value));
    rows.collect()
}

/// Tables for people: the proxies, and below them what each counted. `all` shows zeros too.
pub fn text(proxies: &[ProxyReport], all: bool) -> String {
    use Align::{Left, Right};
    let head = [
        ("proxy", Left),
        ("address", Left),
        ("mode", Left),
        ("state", Left),
        ("clients", Right),
        ("threads", Right),
        ("pid", Right),
    ];
    let row = |proxy: &ProxyReport| {
        vec![
            proxy.name.clone(),
            proxy.address.clone(),
            proxy.mode.clone(),
            proxy.state().to_owned(),
            proxy.clients.to_string(),
            proxy.threads.len().to_string(),
            proxy.pid.to_string(),
        ]
    };
    let mut text = table(&head, &proxies.iter().map(row).collect::<Vec<_>>());
    for proxy in proxies {
        text += &format!("\n{}\n", proxy.name);
        text += &proxy
            .cache_memory
            .map_or(String::new(), |cache| cache.line());
        if let Some(times) = times::line(&proxy.times) {
            text += &format!("  {times}\n");
        }
        text += &indent(&counters(&proxy.counters, all));
        text += &indent(&queue(&proxy.queue));
        for backend in &proxy.backends {
            text += &backend.line();
            text += &indent(&indent(&counters(&backend.counters, all)));
        }
    }
    text
}

impl ProxyReport {
    fn state(&self) -> &'static str {
        match self.accepting {
            true if self.threads.iter().any(|thread| thread.state == "full") => "full",
            true => "accepting",
            false => "draining",
        }
    }
}

/// Who had to wait for a connection to a backend; nothing if nobody had to.
fn queue(queue: &[QueueReport]) -> String {
    use Align::Right;
    if queue.is_empty() {
        return String::new();
    }
    let count = |of: &QueueReport, name: &str| of.counters.get(name).copied().unwrap_or(0);
    let row = |of: &QueueReport| {
        let served = count(of, "served").max(1);
        let mean_ms = count(of, "wait_ns") as f64 / 1e6 / served as f64;
        vec![
            of.priority.to_string(),
            of.waiting.to_string(),
            count(of, "waited").to_string(),
            count(of, "served").to_string(),
            format!("{mean_ms:.1}"),
            count(of, "refused").to_string(),
            count(of, "late").to_string(),
            count(of, "gone").to_string(),
        ]
    };
    let head = [
        ("priority", Right),
        ("waiting", Right),
        ("waited", Right),
        ("served", Right),
        ("mean wait ms", Right),
        ("refused", Right),
        ("late", Right),
        ("gone", Right),
    ];
    table(&head, &queue.iter().map(row).collect::<Vec<_>>())
}

fn counters(counters: &BTreeMap<String, u64>, all: bool) -> String {
    let rows = counters.iter().filter(|(_, n)| all || **n > 0);
    let rows: Vec<Vec<String>> = rows
        .map(|(name, n)| vec![name.clone(), n.to_string()])
        .collect();
    if rows.is_empty() {
        return "nothing yet\n".to_owned();
    }
    table(&[("counter", Align::Left), ("count", Align::Right)], &rows)
}
