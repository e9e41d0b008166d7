//! A proxy and what it is to do: the words of the config file and of the flags, once each.

pub mod access;
mod announce;
mod backend;
mod closing;
pub mod descriptors;
mod health;
mod mode;
mod ports;
mod side;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

pub use announce::{Forwarded, OddFieldNames, SendProxy};
pub use backend::{
    BackendAddress, BackendSetting, HostName, MAX_ADDRESSES, MAX_WEIGHT, WeightedTurns,
};
pub use closing::{AcceptClientClose, SendClientClose};
pub use health::{Health, HealthCheck, HealthState, Statuses};
pub use mode::ProxyMode;
pub use ports::Ports;
pub use side::SideOptions;

use crate::class::Class;
use crate::prefix::Prefix;

use serde::{Deserialize, Serialize};

use crate::units::{format_duration, format_size, parse_duration, parse_size};

/// What moves the bytes of bodies and tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Copy for few bytes, splice for many, per transfer.
    Auto,
    /// One receive and one send through a buffer.
    Copy,
    /// splice(2) through a pipe.
    Splice,
    /// As `auto`, and tunnels of short messages inside the kernel. Needs root.
    Sockmap,
}

/// Proxies that one process runs.
pub const MAX_PROXIES: usize = 256;

/// How much of a cacheable reply is still received when no client waits for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishOnAbort {
    /// Nothing.
    Off,
    /// All of it, if so many bytes or fewer were left.
    Left(u64),
    /// All of it, if at least so many percent of it were there, 0 to 100.
    Share(u8),
    /// What comes within this time.
    Time(Duration),
}

impl FromStr for FinishOnAbort {
    type Err = String;

    /// Reads `off`, a size, a share or a time: `"1MiB"`, `"90%"`, `"5s"`.
    fn from_str(text: &str) -> Result<FinishOnAbort, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(FinishOnAbort::Off);
        }
        if let Some(share) = text.strip_suffix('%') {
            let share = share.parse().ok().filter(|share| *share <= 100);
            let share = share.ok_or_else(|| format!("{text:?} is not a share"))?;
            return Ok(FinishOnAbort::Share(share));
        }
        let size = parse_size(text).map(FinishOnAbort::Left);
        size.or_else(|_| parse_duration(text).map(FinishOnAbort::Time))
            .map_err(|_| format!("{text:?} is neither a size, nor a share, nor a time"))
    }
}

impl fmt::Display for FinishOnAbort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FinishOnAbort::Off => f.write_str("off"),
            FinishOnAbort::Left(bytes) => f.write_str(&format_size(*bytes)),
            FinishOnAbort::Share(percent) => write!(f, "{percent}%"),
            FinishOnAbort::Time(time) => f.write_str(&format_duration(*time)),
        }
    }
}

/// Which backend is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// One after the other, by weight.
    Turn,
    /// The one with the fewest connections in use for its weight; of equals, one after the other. Each thread
    /// looks at its own.
    Least,
}

/// One proxy: where it listens and what it does.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    /// Its name in status and metrics; unique.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// What it does with connections.
    pub mode: ProxyMode,
    /// Where `reverse` and `tcp` hand them to; at least one. `forward` has none.
    pub backends: Vec<BackendSetting>,
    /// Time from one look-up of a backend's name to the next.
    pub resolve_interval: Duration,
    /// How backends take turns.
    pub balance: Balance,
    /// How backends are checked.
    pub health: Health,
    /// Connections to each backend at most, idle ones too, on all threads; 0: no limit. A client that finds
    /// none free waits.
    pub max_connections: u32,
    /// Connections to each backend that are kept without a request at most, on all threads; 0: none is.
    pub max_idle: u32,
    /// How many clients wait at most. The lowest class loses first, and of it the client that came last.
    pub queue_limit: u32,
    /// How long a client waits at most.
    pub queue_timeout: Duration,
    /// A client that ends its half of the connection while it waits has gone: see `docs/proxy-connections.md`.
    pub abort_on_close: bool,
    /// Classes of clients, in any order: waiting clients are served by the priority of their class.
    pub classes: Vec<Class>,
    /// Clients that may use it; empty: see [`access`].
    pub allow_from: Vec<Prefix>,
    /// Clients that may not.
    pub deny_from: Vec<Prefix>,
    /// Servers that mode `forward` takes clients to, though by default it would not.
    pub allow_to: Vec<Prefix>,
    /// Servers that it connects no client to.
    pub deny_to: Vec<Prefix>,
    /// Ports to which mode `forward` opens tunnels (CONNECT); empty: it opens none.
    pub connect_ports: Vec<Ports>,
    /// Local addresses that backends are connected from, in turn; empty: the route's. Each has
    /// local ports of its own for each backend.
    pub source: Vec<IpAddr>,
    /// It listens also where another process of its user does; each has its part of the clients.
    pub share_port: bool,
    /// Each connection of a client begins with a PROXY header, version 1 or 2, which names the client. A connection
    /// without one is reset.
    pub accept_proxy: bool,
    /// The proxies in front: only they may send a PROXY header (empty: all that connect), and only
    /// their lists of clients are kept (empty: no list is).
    pub trust: Vec<Prefix>,
    /// The PROXY header that begins each connection to a backend.
    pub send_proxy: SendProxy,
    /// The field of each request that names the client's address.
    pub forwarded: Forwarded,
    /// What becomes of a request's fields whose name has another character than letters, digits and `-`.
    pub odd_field_names: OddFieldNames,
    /// What becomes of a client's CLIENT_CLOSE. Modes `forward` and `reverse`.
    pub accept_client_close: AcceptClientClose,
    /// When a connection to a server ends with CLIENT_CLOSE. Modes `forward` and `reverse`.
    pub send_client_close: SendClientClose,
    /// TCP options of the clients' connections.
    pub client: SideOptions,
    /// TCP options of the connections to servers.
    pub server: SideOptions,
    /// What moves the bytes.
    pub engine: Engine,
    /// Threads, each with its own listening socket and event loop; 0: one per CPU that the process
    /// may run on.
    pub threads: u32,
    /// Accept queue of each listening socket.
    pub backlog: u32,
    /// Connections of clients at most, on all threads.
    pub max_clients: u32,
    /// Bytes of a request's or a reply's head at most.
    pub max_head: u32,
    /// Time for a connection to a backend to be established.
    pub connect_timeout: Duration,
    /// Time for a request's head to arrive once its first byte is due or there.
    pub head_timeout: Duration,
    /// Time that a connection without a request is kept.
    pub keep_alive: Duration,
    /// Time in which no byte comes and none is taken, after which a transfer or a tunnel is given up.
    pub idle_timeout: Duration,
    /// Time that transfers have to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Bytes of memory for replies that are kept; 0: none is. Modes `forward` and `reverse`.
    pub cache: u64,
    /// Bytes of a body that is kept at most; an eighth of `cache` if that is less.
    pub cache_object: u64,
    /// What becomes of a reply for the cache when its clients are gone.
    pub finish_on_abort: FinishOnAbort,
    /// Where each request and each tunnel is logged at its end: a path, or `-` for standard error.
    pub access_log: Option<String>,
}

impl Proxy {
    /// A proxy with every setting at its default and no backend.
    pub fn new(name: impl Into<String>, listen: SocketAddr, mode: ProxyMode) -> Proxy {
        Proxy {
            name: name.into(),
            listen,
            mode,
            backends: Vec::new(),
            resolve_interval: Duration::from_secs(10),
            balance: Balance::Turn,
            health: Health::default(),
            max_connections: 0,
            max_idle: 1024,
            queue_limit: 1024,
            queue_timeout: Duration::from_secs(5),
            abort_on_close: false,
            classes: Vec::new(),
            allow_from: Vec::new(),
            deny_from: Vec::new(),
            allow_to: Vec::new(),
            deny_to: Vec::new(),
            connect_ports: vec![Ports::one(443)],
            source: Vec::new(),
            share_port: false,
            accept_proxy: false,
            trust: Vec::new(),
            send_proxy: SendProxy::Off,
            forwarded: Forwarded::Off,
            odd_field_names: OddFieldNames::Drop,
            accept_client_close: AcceptClientClose::Off,
            send_client_close: SendClientClose::Off,
            client: SideOptions::default(),
            server: SideOptions::default(),
            engine: Engine::Auto,
            threads: 0,
            backlog: 4096,
            max_clients: 100_000,
            max_head: 32 * 1024,
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(30),
            access_log: None,
            cache: 0,
            cache_object: 8 << 20,
            finish_on_abort: FinishOnAbort::Left(1 << 20),
        }
    }
}

impl Proxy {
    /// The clients that may use it.
    pub fn clients(&self) -> access::Rules<'_> {
        access::Rules {
            allow: &self.allow_from,
            deny: &self.deny_from,
        }
    }

    /// Whether mode `forward` opens tunnels to this port.
    pub fn may_connect(&self, port: u16) -> bool {
        self.connect_ports.iter().any(|ports| ports.contains(port))
    }

    /// The servers that mode `forward` may connect to.
    pub fn destinations(&self) -> access::Rules<'_> {
        access::Rules {
            allow: &self.allow_to,
            deny: &self.deny_to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_is_finished_is_a_size_a_share_or_a_time() {
        for (text, expected) in [
            ("off", FinishOnAbort::Off),
            ("1MiB", FinishOnAbort::Left(1 << 20)),
            ("0B", FinishOnAbort::Left(0)),
            ("90%", FinishOnAbort::Share(90)),
            ("5s", FinishOnAbort::Time(Duration::from_secs(5))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        for not in ["", "on", "101%", "-1%", "5", "5 apples"] {
            assert!(not.parse::<FinishOnAbort>().is_err(), "{not:?}");
        }
    }
}
