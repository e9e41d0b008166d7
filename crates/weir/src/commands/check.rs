//! `weir check`: is the config file good, and which values are in effect?

mod diff;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use weir_config::{Config, Key, Table, did_you_mean, example};
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::units::format_duration;
use weir_proxy::{LookUp, resolve_all};

use crate::cli::Check;
use crate::daemon::attachment::{missing, named_ports};
use crate::failure::{Cause, Result};
use crate::host::config::read;
use crate::host::environment;
use crate::host::links::{self, Link};
use crate::ipc::dashboard::Token;
use crate::show::output::{print, print_json, warn_text};
use crate::show::settings::{is_name, plain, settings};
use crate::show::table::{Align, table};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Check) -> Result<()> {
    let Some(file) = &args.file else {
        return print(&example());
    };
    let config = read(file)?;
    let mut warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let quic: Vec<Listener> = config.quic.iter().map(place_of).collect();
    let links = links::list()?;
    for (kind, listeners) in [("listener", &config.listeners), ("quic", &quic)] {
        let here = not_here(kind, listeners, &links, environment::has_address);
        let texts = here.iter();
        warnings.extend(texts.map(|text| format!("{}: {text}", file.display())));
    }
    let unresolved = unresolved(&config.proxies, &LookUp::default(), NAMES_PATIENCE);
    let of_file = |text: &String| format!("{}: {text}", file.display());
    warnings.extend(unresolved.iter().map(of_file));
    warnings.extend(token(&config).iter().map(of_file));
    warnings.iter().for_each(warn_text);
    if args.diff {
        return diff::run(runtime_dir, file, &config, args.json);
    }
    if args.json {
        return print_json(&Effective {
            listeners: config.listeners.iter().map(settings).collect(),
            quic: config.quic.iter().map(settings).collect(),
            proxies: config.proxies.iter().map(settings).collect(),
            classes: config.classes.iter().map(settings).collect(),
            destinations: config.destinations.iter().map(settings).collect(),
            shapes: config.shapes.iter().map(settings).collect(),
            controller: config.controller.as_ref().map(settings),
            api: config.api.as_ref().map(settings),
            metrics: config.metrics.as_ref().map(settings),
            dashboard: config.dashboard.as_ref().map(settings),
            events: config.events.as_ref().map(settings),
            warnings,
        });
    }
    print(&text(&config))
}

/// Why the dashboard's token cannot be read here: `weir run` would not start. Who may not read it may check the rest.
fn token(config: &Config) -> Option<String> {
    let file = config.dashboard.as_ref()?.token_file.as_deref()?;
    let failure = Token::read(file).err()?;
    Some(failure.to_string())
}

/// A listener with the name, the address and the interfaces of a QUIC listener.
fn place_of(quic: &QuicListener) -> Listener {
    Listener {
        interfaces: quic.interfaces.clone(),
        ..Listener::new(&*quic.name, quic.address)
    }
}

/// What the listeners name and this network namespace lacks: a slip, unless it comes later or the file is for
/// another one.
fn not_here(
    kind: &str,
    listeners: &[Listener],
    links: &[Link],
    has_address: impl Fn(IpAddr) -> bool,
) -> Vec<String> {
    let there: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let mut texts = Vec::new();
    for listener in listeners {
        for name in missing(std::slice::from_ref(listener), links) {
            let meant = did_you_mean(&name, &there);
            let hint = meant.map_or("`ip link` lists those that do".to_owned(), |meant| {
                format!("did you mean {meant}?")
            });
            texts.push(format!(
                "{kind} {:?}: interface {name} does not exist in this network namespace ({hint})",
                listener.name
            ));
        }
        let ports = named_ports(std::slice::from_ref(listener), links).into_iter();
        texts.extend(ports.map(|Cause { message, hint }| {
            format!("{kind} {:?}: {message} ({hint})", listener.name)
        }));
        if let Some(ip) = listener.address.ip.filter(|ip| !has_address(*ip)) {
            texts.push(format!(
                "{kind} {:?}: no interface here has the address {ip} (`ip address` lists them)",
                listener.name
            ));
        }
    }
    texts
}

/// How long name servers have to answer.
const NAMES_PATIENCE: Duration = Duration::from_secs(5);

/// The names of backends that do not resolve here: a slip, unless they are another machine's or come later. weir proxy
/// starts without them.
fn unresolved(proxies: &[Proxy], look_up: &LookUp, patience: Duration) -> Vec<String> {
    let names = |proxy: &Proxy| -> BTreeSet<String> {
        let hosts = proxy.backends.iter();
        let hosts = hosts.filter_map(|backend| backend.address.host());
        hosts.map(str::to_owned).collect()
    };
    let answered = resolve_all(proxies.iter().flat_map(names), look_up, patience);
    let text = |proxy: &Proxy, name: &String| {
        let why = match answered.get(name) {
            Some(Ok(_)) => return None,
            Some(Err(error)) => error.to_string(),
            None => format!("no answer within {}", format_duration(patience)),
        };
        Some(format!(
            "proxy {:?}: backends: {name} does not resolve here: {why} (`getent ahosts {name}` asks as weir does)",
            proxy.name
        ))
    };
    let of_one = |proxy: &Proxy| -> Vec<String> {
        let names = names(proxy);
        names.iter().filter_map(|name| text(proxy, name)).collect()
    };
    proxies.iter().flat_map(of_one).collect()
}

#[derive(Serialize)]
struct Effective {
    listeners: Vec<serde_json::Map<String, serde_json::Value>>,
    quic: Vec<serde_json::Map<String, serde_json::Value>>,
    proxies: Vec<serde_json::Map<String, serde_json::Value>>,
    classes: Vec<serde_json::Map<String, serde_json::Value>>,
    destinations: Vec<serde_json::Map<String, serde_json::Value>>,
    shapes: Vec<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dashboard: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<serde_json::Map<String, serde_json::Value>>,
    warnings: Vec<String>,
}

/// What the file has of one kind stands side by side in one table; more would not fit a terminal.
const COLUMNS: usize = 4;

/// Tables with a row per key and a column per listener or proxy.
fn text(config: &Config) -> String {
    let listeners = config.listeners.chunks(COLUMNS).map(columns);
    let quic = config.quic.chunks(COLUMNS).map(columns);
    let proxies = config.proxies.chunks(COLUMNS).map(columns);
    let classes = config.classes.chunks(COLUMNS).map(columns);
    let destinations = config.destinations.chunks(COLUMNS).map(columns);
    let shapes = config.shapes.chunks(COLUMNS).map(columns);
    listeners
        .chain(quic)
        .chain(proxies)
        .chain(classes)
        .chain(destinations)
        .chain(shapes)
        .chain(config.controller.as_slice().chunks(1).map(columns))
        .chain(config.api.as_slice().chunks(1).map(columns))
        .chain(config.metrics.as_slice().chunks(1).map(columns))
        .chain(config.dashboard.as_slice().chunks(1).map(columns))
        .chain(config.events.as_slice().chunks(1).map(columns))
        .collect::<Vec<_>>()
        .join("\n")
}

fn columns<T: Table>(tables: &[T]) -> String {
    let mut head = vec![(T::NAME, Align::Left)];
    head.extend(tables.iter().map(|table| (table.name(), Align::Left)));
    let row = |key: &Key<T>| {
        let values = tables.iter().map(|table| plain(key, key.show(table)));
        [key.name.to_owned()].into_iter().chain(values).collect()
    };
    let keys = T::keys().iter().filter(|key| !is_name(key));
    table(&head, &keys.map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::links::fake::link;

    #[test]
    fn what_a_listener_names_and_this_machine_lacks_is_warned_of() {
        let file = "[[listener]]\naddress = \"192.0.2.1:80\"\ninterfaces = [\"eth0\", \"eht0\", \"wlan7\"]\n\
                    [[listener]]\naddress = \"*:81\"\n";
        let config = weir_config::parse("f", file).unwrap();
        let links = [link(1, "lo"), link(2, "eth0")];
        let texts = not_here("listener", &config.listeners, &links, |_| false);
        assert_eq!(texts.len(), 3, "{texts:?}");
        let first = "listener \"port-80\": interface eht0 does not exist in this network namespace (did you mean eth0?)";
        assert_eq!(texts[0], first);
        assert!(texts[1].contains("wlan7") && texts[1].contains("`ip link`"));
        assert!(texts[2].contains("192.0.2.1"), "{texts:?}");
        assert!(not_here("listener", &config.listeners[1..], &links, |_| false).is_empty());
    }

    #[test]
    fn what_a_quic_listener_names_is_looked_for_too() {
        let file = "[[quic]]\naddress = \"192.0.2.1:443\"\ninterfaces = [\"eht0\"]\n";
        let config = weir_config::parse("f", file).unwrap();
        let listeners: Vec<Listener> = config.quic.iter().map(place_of).collect();
        let texts = not_here("quic", &listeners, &[link(2, "eth0")], |_| false);
        assert_eq!(
            texts,
            [
                "quic \"quic-443\": interface eht0 does not exist in this network namespace (did you mean eth0?)",
                "quic \"quic-443\": no interface here has the address 192.0.2.1 (`ip address` lists them)",
            ]
        );
    }

    #[test]
    fn names_that_do_not_resolve_are_warned_of_and_one_that_hangs_is_not_waited_for() {
        let file = "[[proxy]]\nname = \"edge\"\nlisten = \"*:80\"\nmode = \"reverse\"\n\
                    backends = [\"good.example:80\", \"bad.example:80\", \"bad.example:81\", \"10.0.0.1:80\"]\n\
                    [[proxy]]\nname = \"db\"\nlisten = \"*:81\"\nmode = \"tcp\"\nbackends = [\"slow.example:5432\"]\n";
        let config = weir_config::parse("f", file).unwrap();
        let (_release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let look_up = LookUp::by(move |name| match name {
            "good.example" => Ok(vec![IpAddr::from([10, 0, 0, 5])]),
            "bad.example" => Err(std::io::Error::other("Name or service not known")),
            _ => {
                // Nothing is ever sent.
                let _ = held.lock().unwrap().recv();
                Ok(Vec::new())
            }
        });
        let texts = unresolved(&config.proxies, &look_up, Duration::from_millis(200));
        assert_eq!(
            texts,
            [
                "proxy \"edge\": backends: bad.example does not resolve here: Name or service not known \
                 (`getent ahosts bad.example` asks as weir does)",
                "proxy \"db\": backends: slow.example does not resolve here: no answer within 200ms \
                 (`getent ahosts slow.example` asks as weir does)",
            ]
        );
    }
}
