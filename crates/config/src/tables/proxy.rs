//! The keys of a `[[proxy]]` table, which are also the flags of `weir proxy`.
//!
//! The types that only proxies have are in [`crate::tables::proxy_types`].

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use crate::address::socket_address;
use crate::error::Fault;
use crate::key::Key;
use crate::names::name;
use crate::table::Table;
use crate::tables::proxy_types::{
    access_log, backends, buffer, check_host, check_path, congestion, finish_on_abort, or_system,
    ports, source, statuses,
};
use crate::types::{Type, duration, flag, prefixes, size, whole, word};
use weir_core::listener::ListenAddress;
use weir_core::proxy::{
    BackendSetting, Forwarded, HealthCheck, MAX_PROXIES, Proxy, ProxyMode, SendClientClose,
    SendProxy,
};
use weir_core::word::Word;

const KIB: u32 = 1 << 10;
const GIB: u64 = 1 << 30;

static KEYS: LazyLock<Vec<Key<Proxy>>> = LazyLock::new(|| {
    let mut keys = keys_of_clients_and_backends();
    keys.extend(keys_of_threads_and_times());
    keys.extend(keys_of_cache_and_log());
    keys.extend(keys_of_sockets());
    keys
});

#[rustfmt::skip] // A key a paragraph.
fn keys_of_clients_and_backends() -> Vec<Key<Proxy>> {
    vec![
        Key::new("name", field!(Proxy, name), name(),
            "The proxy's name in status and metrics; unique")
            .absent("proxy-PORT"),
        Key::new("listen", field!(Proxy, listen), socket_address(),
            "Where it listens; * is every address, IPv4 and IPv6, and port 0 any free port")
            .required("listen = \"*:3128\""),
        Key::new("mode", field!(Proxy, mode), word(),
            "What it does with connections")
            .required("mode = \"reverse\""),
        Key::new("backends", field!(Proxy, backends), backends(),
            "The servers to which mode reverse or tcp connects; weight=N, 1 to 256, is a server's part of the connections; \
             each address of a name is a server"),
        Key::new("resolve_interval", field!(Proxy, resolve_interval), time(ms(100), h(24)),
            "Time from one look-up of a backend's name to the next; it is also looked up when one of its servers does not take a connection")
            .since("0.2.0"),
        Key::new("allow_from", field!(Proxy, allow_from), prefixes(),
            "Clients that may use it; it refuses all others")
            .absent("every client; in mode forward only clients that are not on the Internet"),
        Key::new("deny_from", field!(Proxy, deny_from), prefixes(),
            "Clients that may not use it; of two prefixes that fit the longer one decides, of equal ones this"),
        Key::new("allow_to", field!(Proxy, allow_to), prefixes(),
            "Servers to which mode forward connects although it refuses them by default (loopback, private networks, the link)"),
        Key::new("deny_to", field!(Proxy, deny_to), prefixes(),
            "Servers to which mode forward never connects"),
        Key::new("connect_ports", field!(Proxy, connect_ports), ports(),
            "Ports to which mode forward opens tunnels (CONNECT); [] opens none")
            .since("0.2.0"),
        Key::new("balance", field!(Proxy, balance), word(),
            "Which backend is next"),
        Key::new("health_check", field!(Proxy, health.check), word(),
            "How it checks backends; one that is down gets no new connections, unless all are down"),
        Key::new("health_interval", field!(Proxy, health.interval), time(ms(10), h(1)),
            "Time from one check of a backend to the next"),
        Key::new("health_timeout", field!(Proxy, health.timeout), time(ms(1), min(10)),
            "Time in which a check must pass"),
        Key::new("health_rise", field!(Proxy, health.rise), whole(1..=1000).in_unit("checks"),
            "Checks in a row that pass, after which a backend is up again"),
        Key::new("health_fall", field!(Proxy, health.fall), whole(1..=1000).in_unit("checks"),
            "Checks in a row that fail, after which a backend is down"),
        Key::new("health_path", field!(Proxy, health.path), check_path(),
            "The path that health_check = http asks for"),
        Key::new("health_host", field!(Proxy, health.host), check_host(),
            "The Host that health_check = http names; backend is the backend's address or name, as in backends"),
        Key::new("health_status", field!(Proxy, health.status), statuses(),
            "The status that health_check = http expects"),
        Key::new("max_connections", field!(Proxy, max_connections), whole(0..=1_000_000).in_unit("connections"),
            "Connections to each backend at most, on all threads; 0 is unlimited"),
        Key::new("max_idle", field!(Proxy, max_idle), whole(0..=1_000_000).in_unit("connections"),
            "Connections without a request that it keeps to each backend at most, on all threads; the oldest is closed first")
            .since("0.2.0"),
        Key::new("queue_limit", field!(Proxy, queue_limit), whole(0..=1_000_000).in_unit("clients"),
            "Clients that wait for a connection at most; the lowest class loses first"),
        Key::new("queue_timeout", field!(Proxy, queue_timeout), time(ms(1), h(1)),
            "Time that a client waits for a connection at most"),
        Key::new("abort_on_close", field!(Proxy, abort_on_close), flag(),
            "Stop waiting for a connection when the client closes; a half-close counts as one"),
        Key::new("source", field!(Proxy, source), source(),
            "The local addresses from which it connects to backends, in turn; each has its own ports")
            .absent("the address of the route"),
        Key::new("accept_proxy", field!(Proxy, accept_proxy), flag(),
            "Expect a PROXY header at the start of each client's connection, and reset connections without one"),
        Key::new("send_proxy", field!(Proxy, send_proxy), word(),
            "The PROXY header that begins each connection to a backend"),
        Key::new("forwarded", field!(Proxy, forwarded), word(),
            "The field of each request that names the client"),
        Key::new("odd_field_names", field!(Proxy, odd_field_names), word(),
            "What becomes of a request's fields whose name has another character than letters, digits and -: \
             some servers read X_Forwarded_For as X-Forwarded-For")
            .since("0.2.0"),
        Key::new("accept_client_close", field!(Proxy, accept_client_close), word(),
            "What a client gets for CLIENT_CLOSE, by which it says that it closes its connection")
            .since("0.2.0"),
        Key::new("send_client_close", field!(Proxy, send_client_close), word(),
            "When a server gets CLIENT_CLOSE before weir closes the connection")
            .since("0.2.0"),
        Key::new("trust", field!(Proxy, trust), prefixes(),
            "The proxies in front: weir believes their PROXY header and their list of clients"),
    ]
}

#[rustfmt::skip] // A key a paragraph.
fn keys_of_threads_and_times() -> Vec<Key<Proxy>> {
    vec![
        Key::new("engine", field!(Proxy, engine), word(),
            "What moves the bytes of bodies and tunnels"),
        Key::new("threads", field!(Proxy, threads), whole(0..=1024).in_unit("threads"),
            "Threads, each with an event loop of its own; 0 is one per CPU"),
        Key::new("share_port", field!(Proxy, share_port), flag(),
            "Listen also where another process of its user listens; each gets a part of the clients"),
        Key::new("backlog", field!(Proxy, backlog), whole(1..=65535).in_unit("connections"),
            "Accept queue of each thread; net.core.somaxconn caps it"),
        Key::new("max_clients", field!(Proxy, max_clients), whole(1..=10_000_000).in_unit("connections"),
            "Connections of clients at most; more wait in the accept queues"),
        Key::new("max_head", field!(Proxy, max_head), size(KIB..=60 * KIB),
            "The head of a request or a reply at most"),
        Key::new("connect_timeout", field!(Proxy, connect_timeout), time(ms(1), min(10)),
            "Time in which a connection to a server must be established"),
        Key::new("head_timeout", field!(Proxy, head_timeout), time(ms(1), min(10)),
            "Time in which a request's head must arrive once it has begun"),
        Key::new("keep_alive", field!(Proxy, keep_alive), time(ms(1), h(24)),
            "Time for which it keeps a connection without a request"),
        Key::new("idle_timeout", field!(Proxy, idle_timeout), time(ms(1), h(24)),
            "Time in which no byte comes and none is taken, after which it gives a transfer or a tunnel up"),
    ]
}

#[rustfmt::skip] // A key a paragraph.
fn keys_of_cache_and_log() -> Vec<Key<Proxy>> {
    vec![
        Key::new("access_log", field!(Proxy, access_log), access_log(),
            "A JSON line for each request and tunnel that has ended; - is standard error"),
        Key::new("drain_timeout", field!(Proxy, drain_timeout), time(ms(0), h(24)),
            "Time that transfers have to finish after SIGTERM"),
        Key::new("cache", field!(Proxy, cache), size(0..=1024 * GIB),
            "Memory for replies that it keeps (RFC 9111), in modes forward and reverse; 0B keeps none"),
        Key::new("cache_object", field!(Proxy, cache_object), size(u64::from(KIB)..=GIB),
            "The longest body that it keeps; never more than an eighth of cache"),
        Key::new("finish_on_abort", field!(Proxy, finish_on_abort), finish_on_abort(),
            "Which replies for the cache it receives to their end although their clients are gone: those \
             with at most so much left, those with at least so many percent there, or what comes in time"),
    ]
}

#[rustfmt::skip] // A key a paragraph.
fn keys_of_sockets() -> Vec<Key<Proxy>> {
    vec![
        Key::new("client_congestion", field!(Proxy, client.congestion), congestion(),
            "Congestion control of the clients' connections"),
        Key::new("client_tcp_keepalive", field!(Proxy, client.tcp_keepalive), keepalive(),
            "Time without a segment after which the kernel probes a client"),
        Key::new("client_user_timeout", field!(Proxy, client.user_timeout), user_timeout(),
            "Time that bytes sent to a client may go unacknowledged"),
        Key::new("client_send_buffer", field!(Proxy, client.send_buffer), buffer(),
            "The kernel's send buffer of a client's connection"),
        Key::new("client_receive_buffer", field!(Proxy, client.receive_buffer), buffer(),
            "The kernel's receive buffer of a client's connection"),
        Key::new("server_congestion", field!(Proxy, server.congestion), congestion(),
            "Congestion control of the connections to servers"),
        Key::new("server_tcp_keepalive", field!(Proxy, server.tcp_keepalive), keepalive(),
            "Time without a segment after which the kernel probes a server"),
        Key::new("server_user_timeout", field!(Proxy, server.user_timeout), user_timeout(),
            "Time that bytes sent to a server may go unacknowledged"),
        Key::new("server_send_buffer", field!(Proxy, server.send_buffer), buffer(),
            "The kernel's send buffer of a connection to a server"),
        Key::new("server_receive_buffer", field!(Proxy, server.receive_buffer), buffer(),
            "The kernel's receive buffer of a connection to a server"),
    ]
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn min(min: u64) -> Duration {
    Duration::from_secs(60 * min)
}

const fn h(h: u64) -> Duration {
    min(60 * h)
}

fn time(low: Duration, high: Duration) -> Type<Duration> {
    duration(low..=high, "20s")
}

fn keepalive() -> Type<Option<Duration>> {
    or_system(time(ms(1000), h(9)))
}

fn user_timeout() -> Type<Option<Duration>> {
    or_system(time(ms(1), h(24)))
}

impl Table for Proxy {
    const NAME: &'static str = "proxy";
    const TITLE: &'static str = "A proxy";
    const TEXT: &'static str =
        "A proxy that `weir proxy` runs: it forwards HTTP or TCP between clients and servers.";
    const MOST: (usize, &'static str) = (MAX_PROXIES, "run the others in another process");
    const COLLISION_HINT: &'static str =
        "one proxy for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";

    fn keys() -> &'static [Key<Proxy>] {
        &KEYS
    }

    fn blank() -> Proxy {
        Proxy::new("", SocketAddr::from(([0, 0, 0, 0], 0)), ProxyMode::Tcp)
    }

    fn example() -> Proxy {
        let listen = SocketAddr::from(([0, 0, 0, 0], 8080));
        let mut proxy = Proxy::new("edge", listen, ProxyMode::Reverse);
        proxy.backends = vec![SocketAddr::from(([10, 0, 0, 5], 8080)).into()];
        proxy
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {
        self.name = format!("proxy-{}", self.listen.port());
    }

    fn address(&self) -> String {
        self.listen.to_string()
    }

    fn collides(&self, other: &Proxy) -> bool {
        // Port 0 is any free port: never the same one.
        self.listen.port() != 0 && listens_on(self).conflicts(&listens_on(other))
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.mode == ProxyMode::Tcp && self.cache > 0 {
            let cause = "mode tcp does not see replies, so it cannot keep them";
            let fault = Fault::new(cause, "remove it, or use mode reverse");
            return Err(("cache", fault));
        }
        if self.mode == ProxyMode::Forward && self.health.check != HealthCheck::Off {
            let cause = "mode forward does not have backends to check";
            return Err(("health_check", Fault::new(cause, "remove it")));
        }
        if self.mode != ProxyMode::Forward {
            let blank = Self::blank();
            let changed = [
                ("allow_to", self.allow_to != blank.allow_to),
                ("deny_to", self.deny_to != blank.deny_to),
                ("connect_ports", self.connect_ports != blank.connect_ports),
            ];
            if let Some((key, _)) = changed.into_iter().find(|(_, changed)| *changed) {
                let cause = format!("mode {} connects to its backends only", self.mode.word());
                return Err((key, Fault::new(cause, "remove it")));
            }
        }
        let fault = match (self.mode, self.backends.is_empty()) {
            (ProxyMode::Forward, false) => Fault::new(
                "mode forward connects where the client says",
                "remove it, or use mode reverse",
            ),
            (mode @ (ProxyMode::Reverse | ProxyMode::Tcp), true) => Fault::new(
                format!("mode {} needs a server to connect to", mode.word()),
                "name a server, for example 10.0.0.5:80",
            ),
            _ => return check_announcement(self),
        };
        Err(("backends", fault))
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        let unused = |key: &&str| match self.health.check {
            HealthCheck::Off => key.starts_with("health_") && *key != "health_check",
            HealthCheck::Tcp => ["health_path", "health_host", "health_status"].contains(key),
            HealthCheck::Http => false,
        };
        let check = self.health.check.word();
        let say = |key: &str| {
            format!(
                "proxy {:?}: {key} is unused: health_check = {check}",
                self.name
            )
        };
        let unused = given.iter().copied().filter(|key| unused(key));
        let open = format!(
            "proxy {:?}: every client on the Internet may use it to connect anywhere: allow_from has a \
             prefix of length 0",
            self.name
        );
        let is_open = self
            .allow_from
            .iter()
            .any(|prefix| prefix.prefix_len() == 0);
        let open = (self.mode == ProxyMode::Forward && is_open).then_some(open);
        let mut backends = self.backends.iter();
        let has_names = backends.any(|backend| backend.address.host().is_some());
        let unasked = (given.contains(&"resolve_interval") && !has_names).then(|| {
            format!(
                "proxy {:?}: resolve_interval is unused: no backend is a name",
                self.name
            )
        });
        let is_repeated = |(at, backend): &(usize, &BackendSetting)| {
            let mut before = self.backends[..*at].iter();
            before.any(|other| other.address == backend.address)
        };
        let repeated = self.backends.iter().enumerate().filter(is_repeated);
        let repeated = repeated.map(|(_, backend)| {
            format!(
                "proxy {:?}: backends has {} more than once, which counts once: weight=N gives it a larger part",
                self.name, backend.address
            )
        });
        let repeated: Vec<String> = repeated.collect();
        let of_requests = [
            "odd_field_names",
            "accept_client_close",
            "send_client_close",
        ];
        let is_tcp = self.mode == ProxyMode::Tcp;
        let is_unread = |key: &&str| is_tcp && of_requests.contains(key);
        let unread = given.iter().filter(|key| is_unread(key)).map(|key| {
            format!(
                "proxy {:?}: {key} is unused: mode tcp does not read requests",
                self.name
            )
        });
        let always = self.send_client_close == SendClientClose::Always && !is_tcp;
        let unasked_for = always.then(|| {
            format!(
                "proxy {:?}: send_client_close = always: a server that does not know CLIENT_CLOSE replies with an error \
                 (400, 405, 501), which weir throws away and the server may log",
                self.name
            )
        });
        unused
            .map(say)
            .chain(open)
            .chain(unasked)
            .chain(repeated)
            .chain(unread)
            .chain(unasked_for)
            .collect()
    }
}

fn check_announcement(proxy: &Proxy) -> Result<(), (&'static str, Fault)> {
    match (proxy.mode, proxy.send_proxy, proxy.forwarded) {
        (ProxyMode::Forward, SendProxy::V1 | SendProxy::V2, _) => {
            let cause = "mode forward connects to servers that do not expect a PROXY header";
            Err(("send_proxy", Fault::new(cause, "remove it")))
        }
        (ProxyMode::Tcp, _, Forwarded::XForwardedFor | Forwarded::Forwarded) => {
            let cause = "mode tcp does not read requests";
            let hint = "remove it, or tell the server by send_proxy";
            Err(("forwarded", Fault::new(cause, hint)))
        }
        _ => Ok(()),
    }
}

/// The proxy's address as listeners have it: its IPv6 socket takes IPv4 too.
fn listens_on(proxy: &Proxy) -> ListenAddress {
    let ip = proxy.listen.ip().to_canonical();
    let both_families = ip.is_ipv6() && ip.is_unspecified();
    ListenAddress {
        ip: (!both_families).then_some(ip),
        port: proxy.listen.port(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::parse_socket_address;

    #[test]
    fn only_addresses_that_one_socket_would_take_from_the_other_collide() {
        let at =
            |listen: &str| Proxy::new("", parse_socket_address(listen).unwrap(), ProxyMode::Tcp);
        let collide = |a, b| at(a).collides(&at(b));
        assert!(collide("*:80", "[::]:80"));
        assert!(collide("[::]:80", "0.0.0.0:80"));
        assert!(collide("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!collide("*:80", "10.0.0.1:80"));
        assert!(!collide("*:80", "*:81"));
        assert!(!collide("*:0", "*:0"));
    }
}
