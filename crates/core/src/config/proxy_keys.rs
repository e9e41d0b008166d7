//! The keys of a `[[proxy]]` table, which are also the flags of `weir proxy`.
//!
//! A setting is a field of [`Proxy`], its default in [`Proxy::new`], and a row here.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::address::parse_socket_address;
use super::error::Fault;
use super::keys::parse_name;
use super::table::{Key, Kind, Table, words_of};
use super::value::{Given, Setting, list, mismatch, number, text, word};
use super::word::Word;
use crate::listener::ListenAddress;
use crate::proxy::{Engine, MAX_PROXIES, Mode, Proxy};
use crate::units::{format_duration, format_size, parse_duration, parse_size};

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
    words!(engine: Engine, "auto | copy | splice", "What moves the bytes of bodies and tunnels"),
    number!(threads: 0 to 1024, "Threads, each with an event loop of its own; 0 is one per CPU"),
    number!(backlog: 1 to 65535, "Accept queue of each thread; net.core.somaxconn caps it"),
    number!(max_clients: 1 to 10000000, "Connections of clients at most; more wait in the accept queues"),
    size!(max_head: "1KiB" to "60KiB", "A request's or a reply's head at most"),
    time!(connect_timeout: "1ms" to "10min", "Time for a connection to a server to be established"),
    time!(head_timeout: "1ms" to "10min", "Time for a request's head to arrive once it has begun"),
    time!(keep_alive: "1ms" to "24h", "Time that a connection without a request is kept"),
    time!(idle_timeout: "1ms" to "24h", "Time without a byte after which a transfer or a tunnel is given up"),
    time!(drain_timeout: "0s" to "24h", "Time that transfers have to finish after SIGTERM"),
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
        let fault = match (self.mode, self.backends.is_empty()) {
            (Mode::Forward, false) => Fault::new(
                "mode forward goes where the client says",
                "leave it out, or use mode reverse",
            ),
            (mode @ (Mode::Reverse | Mode::Tcp), true) => Fault::new(
                format!("mode {} has nowhere to go", mode.word()),
                "name a server, for example 10.0.0.5:80",
            ),
            _ => return Ok(()),
        };
        Err(("backends", fault))
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        Vec::new()
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

/// Reads a whole number of this range.
fn whole(value: &Given, range: RangeInclusive<u64>) -> Result<u64, Fault> {
    let number = number(value)?;
    let whole = number as u64;
    if whole as f64 == number && range.contains(&whole) {
        return Ok(whole);
    }
    let hint = format!("a whole number from {} to {}", range.start(), range.end());
    Err(Fault::new(format!("{number} is out of range"), hint))
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
