//! The types of values that only proxies have: backends, checks, options of sockets, the access log.

use std::net::{IpAddr, SocketAddr};

use crate::address::{parse_ip, parse_port};
use crate::error::Fault;
use crate::names::parse_name;
use crate::types::{Kind, Type, list, size, text};
use weir_core::proxy::{
    BackendAddress, BackendSetting, FinishOnAbort, HostName, MAX_WEIGHT, Ports, Statuses,
};

/// The servers, each with its weight.
pub(crate) fn backends() -> Type<Vec<BackendSetting>> {
    let values =
        "a list of addresses or names with ports: \"10.0.0.5:80\", \"app.internal:80 weight=3\"";
    let show = BackendSetting::to_string;
    list(Kind::Servers, values, parse_backend, show)
}

fn parse_backend(text: &str) -> Result<BackendSetting, Fault> {
    let (server, weight) = match text.split_once(char::is_whitespace) {
        Some((server, weight)) => (server, parse_weight(weight.trim())?),
        None => (text, 1),
    };
    let address = match server.parse() {
        Ok(address) => BackendAddress::Ip(server_address(text, address)?),
        Err(_) => BackendAddress::Name(parse_host_name(server)?),
    };
    Ok(BackendSetting { address, weight })
}

/// The address, if a server can listen there.
fn server_address(text: &str, address: SocketAddr) -> Result<SocketAddr, Fault> {
    if address.port() == 0 || address.ip().is_unspecified() {
        let cause = format!("{text:?} is not the address of a server");
        let hint = "write the server's own address and port: \"10.0.0.5:80\"";
        return Err(Fault::new(cause, hint));
    }
    Ok(address)
}

/// Reads `NAME:PORT`: a name that a resolver can have (RFC 1123, Section 2.1), with `_` as container runtimes have it.
fn parse_host_name(text: &str) -> Result<HostName, Fault> {
    let (host, port) = match text.rsplit_once(':') {
        // `::1:80` and `[::1]80` are addresses that are written wrongly.
        Some((host, port)) if !host.contains([':', '[', ']', '*']) => (host, parse_port(port)?),
        _ => {
            let cause = format!("{text:?} is not an address or a name with a port");
            let hint =
                "write \"10.0.0.1:80\", \"[2001:db8::1]:80\" or a name, as \"app.internal:80\"";
            return Err(Fault::new(cause, hint));
        }
    };
    let is_of_labels = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(is_of_labels)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let labels = || host.strip_suffix('.').unwrap_or(host).split('.');
    if host.len() > MAX_NAME || !labels().all(is_label) {
        let cause = format!("{host:?} is not a host name");
        let hint = "a name has labels of letters, digits, '-' and '_' with '.' between them; write one in another \
                    script in its form for DNS, xn--…";
        return Err(Fault::new(cause, hint));
    }
    // A name that ends in a number is an address that is written wrongly (URL Standard, ends in a number).
    if labels().next_back().is_some_and(is_number) {
        let cause = format!("{host:?} is neither an IP address nor a name");
        return Err(Fault::new(
            cause,
            "an IPv4 address has four numbers from 0 to 255",
        ));
    }
    let host = host.to_ascii_lowercase();
    Ok(HostName { host, port })
}

/// Characters of a name, and of a part of it, at most (RFC 1035, Section 2.3.4).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
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
