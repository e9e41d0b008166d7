//! The types of values that only proxies have: backends, checks, options of sockets, the access log.

use std::net::IpAddr;

use crate::address::{parse_ip, parse_socket_address};
use crate::error::Fault;
use crate::names::parse_name;
use crate::types::{Kind, Type, list, size, text};
use weir_core::proxy::{Backend, FinishOnAbort, MAX_WEIGHT, Ports, Statuses};

/// The servers, each with its weight.
pub(crate) fn backends() -> Type<Vec<Backend>> {
    let values =
        "a list of addresses with ports, each as \"10.0.0.5:80\" or \"10.0.0.5:80 weight=3\"";
    list(Kind::Addresses, values, parse_backend, Backend::to_string)
}

fn parse_backend(text: &str) -> Result<Backend, Fault> {
    let (place, weight) = match text.split_once(char::is_whitespace) {
        Some((place, weight)) => (place, parse_weight(weight.trim())?),
        None => (text, 1),
    };
    let address = parse_socket_address(place)?;
    if address.port() == 0 || address.ip().is_unspecified() {
        let cause = format!("{text:?} is not the address of a server");
        let hint = "write the server's own address and port: \"10.0.0.5:80\"";
        return Err(Fault::new(cause, hint));
    }
    Ok(Backend { address, weight })
}

fn parse_weight(text: &str) -> Result<u16, Fault> {
    let weight = text.strip_prefix("weight=").map(str::parse);
    match weight {
        Some(Ok(weight)) if (1..=MAX_WEIGHT).contains(&weight) => Ok(weight),
        _ => {
            let cause = format!("{text:?} is not a weight");
            let hint = format!("write a weight from 1 to {MAX_WEIGHT}: \"10.0.0.5:80 weight=3\"");
            Err(Fault::new(cause, hint))
        }
    }
}

/// Local addresses to connect from.
pub(crate) fn source() -> Type<Vec<IpAddr>> {
    let values = "a list of addresses of this machine";
    list(Kind::Ips, values, parse_source, IpAddr::to_string)
}

fn parse_source(text: &str) -> Result<IpAddr, Fault> {
    match parse_ip(text)? {
        Some(ip) if !ip.is_unspecified() => Ok(ip),
        _ => {
            let cause = format!("{text:?} is not an address to connect from");
            let hint = "write addresses of this machine: \"10.0.0.2\"";
            Err(Fault::new(cause, hint))
        }
    }
}

/// The path of a health check. It goes into a request line as it is.
pub(crate) fn check_path() -> Type<String> {
    let parse = |path: &str| {
        if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(path.to_owned());
        }
        let hint = "write what follows the host in a URL, without spaces: \"/health\"";
        Err(Fault::new(format!("{path:?} is not a path"), hint))
    };
    text(Kind::UriPath, "a path, from /", parse, String::clone)
}

/// The host that a health check names. It goes into a field of a request as it is.
pub(crate) fn check_host() -> Type<Option<String>> {
    let parse = |host: &str| {
        let is_of_hosts = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if !host.is_empty() && host.bytes().all(is_of_hosts) {
            return Ok(host.to_owned());
        }
        let hint = "write the host's name, with a port if that is not 80: \"web.example\"";
        Err(Fault::new(format!("{host:?} is not a host"), hint))
    };
    text(Kind::Name, "a host", parse, String::clone).or("backend")
}

/// The statuses that a health check expects.
pub(crate) fn statuses() -> Type<Statuses> {
    let parse = |text: &str| {
        let fault = |cause: String| Fault::new(cause, "as \"200\" or \"200-399\"");
        text.parse().map_err(fault)
    };
    let values = "a status, or two with - between";
    text(Kind::Range, values, parse, Statuses::to_string)
}

/// TCP ports.
pub(crate) fn ports() -> Type<Vec<Ports>> {
    let parse = |text: &str| {
        let fault = |cause: String| Fault::new(cause, "as \"443\" or \"8000-8999\"");
        text.parse().map_err(fault)
    };
    let values = "a list of ports, or of two with - between";
    list(Kind::Ranges, values, parse, Ports::to_string)
}

/// How much of a reply is received although nobody waits for it.
pub(crate) fn finish_on_abort() -> Type<FinishOnAbort> {
    let parse = |text: &str| {
        let fault = |cause: String| {
            let hint = "\"off\", or as \"1MiB\", \"90%\" or \"5s\"";
            Fault::new(cause, hint)
        };
        text.parse().map_err(fault)
    };
    let values = "off | a size | a share | a time";
    text(Kind::Amount, values, parse, FinishOnAbort::to_string)
}

/// The path of the access log, or `-`.
pub(crate) fn access_log() -> Type<Option<String>> {
    let parse = |path: &str| match path {
        "" => Err(Fault::new("the path is empty", "write a path, or \"-\"")),
        path => Ok(path.to_owned()),
    };
    text(Kind::Path, "a path, -", parse, String::clone).or("off")
}

/// This type, or the word that leaves an option of a socket to the system.
pub(crate) fn or_system<V: 'static>(option: Type<V>) -> Type<Option<V>> {
    option.or("system")
}

/// A congestion control. Which there are, only the kernel knows: the proxy asks it at start.
pub(crate) fn congestion() -> Type<Option<String>> {
    let values = "a congestion control";
    or_system(text(Kind::Name, values, parse_name, String::clone))
}

/// A buffer of the kernel for one connection.
pub(crate) fn buffer() -> Type<Option<u32>> {
    or_system(size(4 << 10..=1 << 30))
}
