//! The keys of a `[[proxy]]` table, which are also the flags of `weir proxy`.
//!
//! A setting is a field of [`Proxy`], its default in [`Proxy::new`], and a row here.

use std::convert::identity;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::address::{parse_ip, parse_socket_address};
use crate::error::Fault;
use crate::keys::parse_name;
use crate::table::{Key, Kind, Table, words_of};
use crate::value::{Given, Setting, flag, list, mismatch, text, whole, word};
use weir_core::listener::ListenAddress;
use weir_core::prefix::{Prefix, parse_prefix};
use weir_core::proxy::{
    Balance, Engine, FinishOnAbort, Forwarded, HealthCheck, MAX_PROXIES, Mode, Proxy, SendProxy,
    Statuses,
};
use weir_core::units::{format_duration, format_size, parse_duration, parse_size};
use weir_core::word::Word;

/// A key whose field has its name and is one of a few words.
macro_rules! words {
    ($field:ident: $type:ty, $values:literal, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Word(words_of::<$type>),
            values: $values,
            text: $text,
            set: |p, v| word(v).map(|value| p.$field = value),
            show: |p| Setting::Text(p.$field.word().into()),
        }
    };
}

/// A key whose field has its name and is a whole number.
macro_rules! number {
    ($field:ident: $low:literal to $high:literal, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Number,
            values: concat!($low, " to ", $high),
            text: $text,
            set: |p, v| whole(v, $low..=$high).map(|value| p.$field = value as _),
            show: |p| Setting::Whole(p.$field.into()),
        }
    };
}

/// A key whose field has its name and is a number of bytes.
macro_rules! size {
    ($field:ident: $low:literal to $high:literal, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Size,
            values: concat!($low, " to ", $high),
            text: $text,
            set: |p, v| bytes(v, $low, $high).map(|value| p.$field = value as _),
            show: |p| Setting::Text(format_size(p.$field.into())),
        }
    };
}

/// A key whose field has its name and is a duration.
macro_rules! time {
    ($field:ident: $low:literal to $high:literal, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Time,
            values: concat!($low, " to ", $high),
            text: $text,
            set: |p, v| duration(v, $low, $high).map(|value| p.$field = value),
            show: |p| Setting::Text(format_duration(p.$field)),
        }
    };
}

/// A key whose field has its name and is on or off.
macro_rules! flag {
    ($field:ident, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Flag,
            values: "true | false",
            text: $text,
            set: |p, v| flag(v).map(|on| p.$field = on),
            show: |p| Setting::Flag(p.$field),
        }
    };
}

/// A key whose field has its name and is a list of prefixes.
macro_rules! prefixes {
    ($field:ident, $text:literal) => {
        Key {
            name: stringify!($field),
            kind: Kind::Prefixes,
            values: "a list of prefixes",
            text: $text,
            set: |p, v| list(v).and_then(parse_prefixes).map(|list| p.$field = list),
            show: |p| Setting::List(p.$field.iter().map(Prefix::to_string).collect()),
        }
    };
}

/// A key that is an option of one side's sockets; the word `system` leaves it to the system.
macro_rules! side {
    ($side:ident . $field:ident: $kind:ident $values:literal, $read:expr, $show:expr, $text:literal) => {
        Key {
            name: concat!(stringify!($side), "_", stringify!($field)),
            kind: Kind::$kind,
            values: concat!("system | ", $values),
            text: $text,
            set: |p, v| or_system(v, $read).map(|value| p.$side.$field = value),
            show: |p| {
                let shown = p.$side.$field.clone().map($show);
                Setting::Text(shown.unwrap_or_else(|| SYSTEM.into()))
            },
        }
    };
}

/// A key of the checks of backends: `health_` and the field's name.
macro_rules! health {
    ($field:ident: $kind:ident $values:expr, $read:expr, $show:expr, $text:literal) => {
        Key {
            name: concat!("health_", stringify!($field)),
            kind: Kind::$kind,
            values: $values,
            text: $text,
            set: |p, v| $read(v).map(|value| p.health.$field = value),
            show: |p| $show(&p.health.$field),
        }
    };
}

/// Every key of a `[[proxy]]` table, in the order of the example file.
pub static PROXY_KEYS: &[Key<Proxy>] = &[
    Key {
        name: "name",
        kind: Kind::Name,
        values: "letters, digits, '.', '_', '-'; at most 64",
        text: "The proxy's name in status and metrics; unique. Left out: proxy-PORT",
        set: |p, v| text(v).and_then(parse_name).map(|name| p.name = name),
        show: |p| Setting::Text(p.name.clone()),
    },
    Key {
        name: "listen",
        kind: Kind::Address,
        values: "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"",
        text: "Where it listens; * is every address, IPv4 and IPv6, and port 0 any free port. Required",
        set: |p, v| {
            text(v)
                .and_then(parse_socket_address)
                .map(|address| p.listen = address)
        },
        show: |p| Setting::Text(p.listen.to_string()),
    },
    words!(mode: Mode, "forward | reverse | tcp", "What it does with connections. Required"),
    Key {
        name: "backends",
        kind: Kind::Addresses,
        values: "a list of addresses with ports",
        text: "The servers that mode reverse or tcp hands them to",
        set: |p, v| {
            list(v)
                .and_then(parse_backends)
                .map(|backends| p.backends = backends)
        },
        show: |p| Setting::List(p.backends.iter().map(SocketAddr::to_string).collect()),
    },
    prefixes!(
        allow_from,
        "Clients that may use it, and no others. Left out: everybody; in mode forward whoever is not of the Internet"
    ),
    prefixes!(
        deny_from,
        "Clients that may not use it; of two prefixes that fit the longer one holds, of equal ones this"
    ),
    prefixes!(
        allow_to,
        "Servers that mode forward goes to for all clients, though by default it does not (loopback, private networks, the link)"
    ),
    prefixes!(deny_to, "Servers that mode forward goes to for nobody"),
    words!(balance: Balance, "turn | least", "Which backend is next"),
    Key {
        name: "health_check",
        kind: Kind::Word(words_of::<HealthCheck>),
        values: "off | tcp | http",
        text: "How backends are checked; one that is down gets nothing new, unless all are",
        set: |p, v| word(v).map(|check| p.health.check = check),
        show: |p| Setting::Text(p.health.check.word().into()),
    },
    health!(interval: Time "10ms to 1h", |v| duration(v, "10ms", "1h"), shown_time, "Time from one check of a backend to the next"),
    health!(timeout: Time "1ms to 10min", |v| duration(v, "1ms", "10min"), shown_time, "Time that a check has to pass"),
    health!(rise: Number "1 to 1000", times, shown_times, "Checks in a row that pass, after which a backend is up again"),
    health!(fall: Number "1 to 1000", times, shown_times, "Checks in a row that fail, after which a backend is down"),
    health!(path: UriPath "a path, from /", |v| text(v).and_then(parse_check_path), |path: &String| Setting::Text(path.clone()), "What health_check = http asks for"),
    health!(host: Name "backend | a host", |v| text(v).and_then(parse_check_host), shown_host, "The Host that health_check = http names; backend is the backend's address"),
    health!(status: Range "a status | two with - between", |v| text(v).and_then(parse_statuses), |statuses: &Statuses| Setting::Text(statuses.to_string()), "The status that health_check = http expects"),
    number!(max_connections: 0 to 1000000, "Connections to each backend at most, on all threads; 0 is no limit"),
    number!(queue_limit: 0 to 1000000, "Clients that wait for a connection at most; the lowest class loses first"),
    time!(queue_timeout: "1ms" to "1h", "Time that a client waits for a connection at most"),
    flag!(
        abort_on_close,
        "A client that closes while it waits for a connection waits no longer; one that closes only its half is taken for such a one"
    ),
    Key {
        name: "source",
        kind: Kind::Ips,
        values: "a list of addresses of this machine",
        text: "The local addresses that backends are connected from, in turn; each has ports of its own. Left out: the route's",
        set: |p, v| {
            list(v)
                .and_then(parse_source)
                .map(|source| p.source = source)
        },
        show: |p| Setting::List(p.source.iter().map(IpAddr::to_string).collect()),
    },
    flag!(
        accept_proxy,
        "Each client's connection begins with a PROXY header; one without is reset"
    ),
    words!(send_proxy: SendProxy, "off | v1 | v2", "The PROXY header that begins each connection to a backend"),
    words!(forwarded: Forwarded, "off | x-forwarded-for | forwarded", "The field of each request that names the client"),
    prefixes!(
        trust,
        "The proxies in front: whose PROXY header and whose list of clients is believed"
    ),
    words!(engine: Engine, "auto | copy | splice | sockmap", "What moves the bytes of bodies and tunnels"),
    number!(threads: 0 to 1024, "Threads, each with an event loop of its own; 0 is one per CPU"),
    flag!(
        share_port,
        "It listens also where another process of its user does; each has its part of the clients"
    ),
    number!(backlog: 1 to 65535, "Accept queue of each thread; net.core.somaxconn caps it"),
    number!(max_clients: 1 to 10000000, "Connections of clients at most; more wait in the accept queues"),
    size!(max_head: "1KiB" to "60KiB", "A request's or a reply's head at most"),
    time!(connect_timeout: "1ms" to "10min", "Time for a connection to a server to be established"),
    time!(head_timeout: "1ms" to "10min", "Time for a request's head to arrive once it has begun"),
    time!(keep_alive: "1ms" to "24h", "Time that a connection without a request is kept"),
    time!(idle_timeout: "1ms" to "24h", "Time in which no byte comes and none is taken, after which a transfer or a tunnel is given up"),
    Key {
        name: "access_log",
        kind: Kind::Path,
        values: "off | - | a path",
        text: "A JSON line for each request and tunnel that has ended; - is standard error",
        set: |p, v| text(v).and_then(parse_log).map(|log| p.access_log = log),
        show: |p| Setting::Text(p.access_log.clone().unwrap_or(OFF.to_owned())),
    },
    time!(drain_timeout: "0s" to "24h", "Time that transfers have to finish after SIGTERM"),
    size!(cache: "0B" to "1024GiB", "Memory for replies that are kept (RFC 9111), in modes forward and reverse; 0B keeps none"),
    size!(cache_object: "1KiB" to "1GiB", "The longest body that is kept; never more than an eighth of cache"),
    Key {
        name: "finish_on_abort",
        kind: Kind::Amount,
        values: "off | a size | a share | a time",
        text: "Which replies for the cache are received to their end though their clients are gone: those \
               with at most so much left, those with at least so many percent there, or what comes in time",
        set: |p, v| {
            text(v)
                .and_then(parse_amount)
                .map(|amount| p.finish_on_abort = amount)
        },
        show: |p| Setting::Text(p.finish_on_abort.to_string()),
    },
    side!(client.congestion: Name "a congestion control", congestion, identity, "Congestion control of the clients' connections"),
    side!(client.tcp_keepalive: Time "1s to 9h", keepalive, format_duration, "Time without a segment after which a client is probed"),
    side!(client.user_timeout: Time "1ms to 24h", user_timeout, format_duration, "Time that bytes sent to a client may go unacknowledged"),
    side!(client.send_buffer: Size "4KiB to 1GiB", buffer, format_buffer, "The kernel's send buffer of a client's connection"),
    side!(client.receive_buffer: Size "4KiB to 1GiB", buffer, format_buffer, "The kernel's receive buffer of a client's connection"),
    side!(server.congestion: Name "a congestion control", congestion, identity, "Congestion control of the connections to servers"),
    side!(server.tcp_keepalive: Time "1s to 9h", keepalive, format_duration, "Time without a segment after which a server is probed"),
    side!(server.user_timeout: Time "1ms to 24h", user_timeout, format_duration, "Time that bytes sent to a server may go unacknowledged"),
    side!(server.send_buffer: Size "4KiB to 1GiB", buffer, format_buffer, "The kernel's send buffer of a connection to a server"),
    side!(server.receive_buffer: Size "4KiB to 1GiB", buffer, format_buffer, "The kernel's receive buffer of a connection to a server"),
];

impl Table for Proxy {
    const NAME: &'static str = "proxy";
    const REQUIRED: &'static [(&'static str, &'static str)] = &[
        ("listen", "listen = \"*:3128\""),
        ("mode", "mode = \"reverse\""),
    ];
    const MOST: (usize, &'static str) = (MAX_PROXIES, "run the others in a process of their own");
    const ONE_ADDRESS_HINT: &'static str =
        "one proxy for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";

    fn keys() -> &'static [Key<Proxy>] {
        PROXY_KEYS
    }

    fn blank() -> Proxy {
        Proxy::new("", SocketAddr::from(([0, 0, 0, 0], 0)), Mode::Tcp)
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
        // Any free port is never the same one.
        self.listen.port() != 0 && listens_on(self).conflicts(&listens_on(other))
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.mode == Mode::Tcp && self.cache > 0 {
            let fault = Fault::new(
                "mode tcp knows no replies that it could keep",
                "leave it out, or use mode reverse",
            );
            return Err(("cache", fault));
        }
        if self.mode == Mode::Forward && self.health.check != HealthCheck::Off {
            let cause = "mode forward has no backends that it could check";
            return Err(("health_check", Fault::new(cause, "leave it out")));
        }
        if self.mode != Mode::Forward {
            let given = [("allow_to", &self.allow_to), ("deny_to", &self.deny_to)];
            if let Some((key, _)) = given.into_iter().find(|(_, list)| !list.is_empty()) {
                let cause = format!("mode {} goes to its backends only", self.mode.word());
                return Err((key, Fault::new(cause, "leave it out")));
            }
        }
        let fault = match (self.mode, self.backends.is_empty()) {
            (Mode::Forward, false) => Fault::new(
                "mode forward goes where the client says",
                "leave it out, or use mode reverse",
            ),
            (mode @ (Mode::Reverse | Mode::Tcp), true) => Fault::new(
                format!("mode {} has nowhere to go", mode.word()),
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
            "proxy {:?}: everybody on the Internet may use it to go anywhere: allow_from has a prefix \
             of length 0",
            self.name
        );
        let is_open = self
            .allow_from
            .iter()
            .any(|prefix| prefix.prefix_len() == 0);
        let open = (self.mode == Mode::Forward && is_open).then_some(open);
        unused.map(say).chain(open).collect()
    }
}

fn check_announcement(proxy: &Proxy) -> Result<(), (&'static str, Fault)> {
    match (proxy.mode, proxy.send_proxy, proxy.forwarded) {
        (Mode::Forward, SendProxy::V1 | SendProxy::V2, _) => {
            let cause = "mode forward goes to servers that expect no PROXY header";
            Err(("send_proxy", Fault::new(cause, "leave it out")))
        }
        (Mode::Tcp, _, Forwarded::XForwardedFor | Forwarded::Forwarded) => {
            let cause = "mode tcp reads no requests";
            let hint = "leave it out, or tell the server by send_proxy";
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

/// The word for a log that is not kept.
const OFF: &str = "off";

fn parse_log(path: &str) -> Result<Option<String>, Fault> {
    match path {
        OFF => Ok(None),
        "" => Err(Fault::new(
            "the path is empty",
            "write a path, \"-\" or \"off\"",
        )),
        path => Ok(Some(path.to_owned())),
    }
}

fn parse_backends(texts: &[String]) -> Result<Vec<SocketAddr>, Fault> {
    texts.iter().map(|text| parse_backend(text)).collect()
}

fn parse_backend(text: &str) -> Result<SocketAddr, Fault> {
    let address = parse_socket_address(text)?;
    if address.port() == 0 || address.ip().is_unspecified() {
        let hint = "write the server's own address and port: \"10.0.0.5:80\"";
        return Err(Fault::new(format!("{text:?} is no server's address"), hint));
    }
    Ok(address)
}

fn parse_source(texts: &[String]) -> Result<Vec<IpAddr>, Fault> {
    let read = |text: &String| match parse_ip(text)? {
        Some(ip) if !ip.is_unspecified() => Ok(ip),
        _ => {
            let hint = "write addresses of this machine: \"10.0.0.2\"";
            Err(Fault::new(
                format!("{text:?} is no address to connect from"),
                hint,
            ))
        }
    };
    texts.iter().map(read).collect()
}

fn parse_prefixes(texts: &[String]) -> Result<Vec<Prefix>, Fault> {
    texts.iter().map(|text| Ok(parse_prefix(text)?)).collect()
}

fn times(value: &Given) -> Result<u32, Fault> {
    whole(value, 1..=1000).map(|times| times as u32)
}

fn shown_times(times: &u32) -> Setting {
    Setting::Whole((*times).into())
}

fn shown_time(time: &Duration) -> Setting {
    Setting::Text(format_duration(*time))
}

/// It goes into a request line as it is.
fn parse_check_path(path: &str) -> Result<String, Fault> {
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(path.to_owned());
    }
    let hint = "write what follows the host in a URL, without spaces: \"/health\"";
    Err(Fault::new(format!("{path:?} is no path"), hint))
}

/// The word for a check that names the backend's address.
const BACKEND: &str = "backend";

/// It goes into a field of a request as it is.
fn parse_check_host(host: &str) -> Result<Option<String>, Fault> {
    let is_of_hosts = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    match host {
        BACKEND => Ok(None),
        _ if !host.is_empty() && host.bytes().all(is_of_hosts) => Ok(Some(host.to_owned())),
        _ => {
            let hint = "write the host's name, with a port if that is not 80: \"web.example\"";
            Err(Fault::new(format!("{host:?} is no host"), hint))
        }
    }
}

fn shown_host(host: &Option<String>) -> Setting {
    Setting::Text(host.clone().unwrap_or_else(|| BACKEND.to_owned()))
}

fn parse_statuses(text: &str) -> Result<Statuses, Fault> {
    let hint = "as \"200\" or \"200-399\"";
    text.parse()
        .map_err(|cause: String| Fault::new(cause, hint))
}

/// The word that leaves an option of a socket to the system.
const SYSTEM: &str = "system";

fn or_system<T>(value: &Given, read: fn(&Given) -> Result<T, Fault>) -> Result<Option<T>, Fault> {
    match value {
        Given::Text(text) if text == SYSTEM => Ok(None),
        value => read(value).map(Some),
    }
}

/// Which there are, only the kernel knows: it is asked at start.
fn congestion(value: &Given) -> Result<String, Fault> {
    text(value).and_then(parse_name)
}

fn keepalive(value: &Given) -> Result<Duration, Fault> {
    duration(value, "1s", "9h")
}

fn user_timeout(value: &Given) -> Result<Duration, Fault> {
    duration(value, "1ms", "24h")
}

fn buffer(value: &Given) -> Result<u32, Fault> {
    bytes(value, "4KiB", "1GiB").map(|bytes| bytes as u32)
}

fn format_buffer(bytes: u32) -> String {
    format_size(bytes.into())
}

fn parse_amount(text: &str) -> Result<FinishOnAbort, Fault> {
    let hint = "\"off\", or as \"1MiB\", \"90%\" or \"5s\"";
    text.parse()
        .map_err(|cause: String| Fault::new(cause, hint))
}

/// Reads a number of bytes from `low` to `high`, which have their units too.
fn bytes(value: &Given, low: &str, high: &str) -> Result<u64, Fault> {
    let hint = || format!("a size with its unit from {low} to {high}, for example \"{low}\"");
    let limit = |text| parse_size(text).expect("the limits of a key are sizes");
    let Given::Text(text) = value else {
        return Err(mismatch(value, "a size", &hint()));
    };
    let size = parse_size(text).map_err(|cause| Fault::new(cause, hint()))?;
    match (limit(low)..=limit(high)).contains(&size) {
        true => Ok(size),
        false => Err(Fault::new(format!("{text:?} is out of range"), hint())),
    }
}

/// Reads a duration from `low` to `high`, which have their units too.
fn duration(value: &Given, low: &str, high: &str) -> Result<Duration, Fault> {
    let hint = || format!("a duration with its unit from {low} to {high}, for example \"20s\"");
    let limit = |text| parse_duration(text).expect("the limits of a key are durations");
    let Given::Text(text) = value else {
        return Err(mismatch(value, "a duration", &hint()));
    };
    let time = parse_duration(text).map_err(|cause| Fault::new(cause, hint()))?;
    match (limit(low)..=limit(high)).contains(&time) {
        true => Ok(time),
        false => Err(Fault::new(format!("{text:?} is out of range"), hint())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_every_key_can_be_read_and_contain_its_default() {
        let default = Proxy::new("edge", "10.0.0.1:80".parse().unwrap(), Mode::Forward);
        for key in PROXY_KEYS {
            let given = match (key.show)(&default) {
                Setting::Text(text) => Given::Text(text),
                Setting::Whole(number) => Given::Number(number as f64),
                Setting::Number(number) => Given::Number(number),
                Setting::Flag(on) => Given::Flag(on),
                Setting::List(list) => Given::List(list),
                Setting::None => Given::Text("none".into()),
            };
            let mut read = default.clone();
            assert_eq!((key.set)(&mut read, &given), Ok(()), "{}", key.name);
            assert_eq!(read, default, "{}", key.name);
        }
    }

    #[test]
    fn the_words_of_a_key_are_those_of_its_setting() {
        for key in PROXY_KEYS {
            let words: Vec<&str> = key.words().iter().map(|(word, _)| *word).collect();
            assert!(
                words.is_empty() || words.join(" | ") == key.values,
                "{}",
                key.name
            );
        }
    }

    #[test]
    fn only_addresses_that_one_socket_would_take_from_the_other_collide() {
        let at = |listen: &str| Proxy::new("", parse_socket_address(listen).unwrap(), Mode::Tcp);
        let collide = |a, b| at(a).collides(&at(b));
        assert!(collide("*:80", "[::]:80"));
        assert!(collide("[::]:80", "0.0.0.0:80"));
        assert!(collide("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!collide("*:80", "10.0.0.1:80"));
        assert!(!collide("*:80", "*:81"));
        assert!(!collide("*:0", "*:0"));
    }
}
