//! Keys of classes that are valid and do nothing in their file, because something that they need is missing
//! from it: a listener of their port, a queue by priority, a controller.

use std::net::IpAddr;

use weir_core::class::Class;
use weir_core::listener::{Listener, QueueOrder};
use weir_core::prefix::Prefix;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::units::count;

/// Classes for which one kind of warning is given; a file may have thousands.
const TOLD: usize = 8;

/// What a file has beside its classes.
pub(crate) struct Around<'a> {
    pub listeners: Vec<&'a Listener>,
    pub quic: &'a [QuicListener],
    pub proxies: Vec<&'a Proxy>,
    pub has_controller: bool,
}

/// A key, or a whole class, without effect.
type Check = fn(&Class, &[&str], &Around<'_>) -> Option<String>;

/// One sentence for each class and key without effect, with the index of the class. `given` names the keys
/// that each class sets.
pub(crate) fn unused(classes: &[(&Class, Vec<&str>)], around: &Around<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for check in [nothing_fits, promises, queue_limit, priority] as [Check; 4] {
        let odd = classes.iter().enumerate().filter_map(|(index, class)| {
            let text = check(class.0, &class.1, around)?;
            Some((index, format!("class {:?}: {text}", class.0.name)))
        });
        let odd: Vec<_> = odd.collect();
        let more = odd.len().saturating_sub(TOLD);
        found.extend(odd.into_iter().take(TOLD));
        if more > 0
            && let Some((_, last)) = found.last_mut()
        {
            *last += &format!(" (and {} like it)", count(more, "more class"));
        }
    }
    found.sort_by_key(|(index, _)| *index);
    found
}

/// An address where connections come in: of a listener or a proxy.
struct Entry<'a> {
    kind: &'static str,
    name: &'a str,
    ip: Option<IpAddr>,
    port: u16,
}

impl Around<'_> {
    /// The addresses whose connections can be of the class by `listener` and `proxy`.
    fn entries<'a>(&'a self, class: &'a Class) -> impl Iterator<Item = Entry<'a>> {
        let listeners = self.listeners_of(class).map(|listener| Entry {
            kind: "listener",
            name: &listener.name,
            ip: listener.address.ip,
            port: listener.address.port,
        });
        let proxies = self.proxies_of(class).map(|proxy| Entry {
            kind: "proxy",
            name: &proxy.name,
            ip: Some(proxy.listen.ip()),
            port: proxy.listen.port(),
        });
        let quic = self.quic_of(class).map(|quic| Entry {
            kind: "quic",
            name: &quic.name,
            ip: quic.address.ip,
            port: quic.address.port,
        });
        listeners.chain(quic).chain(proxies)
    }

    fn listeners_of<'a>(&'a self, class: &'a Class) -> impl Iterator<Item = &'a Listener> {
        let listeners = self.listeners.iter().copied();
        listeners.filter(|listener| class.is_of_listener(&listener.name))
    }

    fn quic_of<'a>(&'a self, class: &'a Class) -> impl Iterator<Item = &'a QuicListener> {
        let quic = self.quic.iter();
        quic.filter(|quic| class.is_of_listener(&quic.name))
    }

    fn proxies_of<'a>(&'a self, class: &'a Class) -> impl Iterator<Item = &'a Proxy> {
        let proxies = self.proxies.iter().copied();
        proxies.filter(|proxy| class.is_of_proxy(&proxy.name))
    }
}

impl Entry<'_> {
    fn takes_port(&self, class: &Class) -> bool {
        class.to_port.is_none_or(|port| port == self.port)
    }

    /// A dual-stack socket takes IPv4 too.
    fn takes_family(&self, prefix: &Prefix) -> bool {
        match self.ip {
            None => true,
            Some(ip) if ip.is_unspecified() => ip.is_ipv6() || prefix.addr().is_ipv4(),
            Some(ip) => ip.is_ipv4() == prefix.addr().is_ipv4(),
        }
    }

    fn takes_from(&self, class: &Class) -> bool {
        class.from.is_empty() || class.from.iter().any(|prefix| self.takes_family(prefix))
    }

    fn takes_to(&self, class: &Class) -> bool {
        let takes = |prefix: &Prefix| {
            let one = self.ip.filter(|ip| !ip.is_unspecified());
            self.takes_family(prefix) && one.is_none_or(|ip| prefix.contains(&ip))
        };
        class.to.is_empty() || class.to.iter().any(takes)
    }
}

/// A class that no connection can fit.
fn nothing_fits(class: &Class, _given: &[&str], around: &Around<'_>) -> Option<String> {
    let entries: Vec<Entry<'_>> = around.entries(class).collect();
    let fits = |entry: &Entry<'_>| {
        entry.takes_port(class) && entry.takes_from(class) && entry.takes_to(class)
    };
    // A file of proxies alone may have classes of listeners to come.
    let first = entries.first()?;
    if entries.iter().any(fits) {
        return None;
    }
    let whose = match entries.as_slice() {
        [one] => format!("{} {:?} has", one.kind, one.name),
        _ => "the listeners and proxies have".to_owned(),
    };
    if let Some(port) = class
        .to_port
        .filter(|_| !entries.iter().any(|entry| entry.takes_port(class)))
    {
        let ports = match entries.as_slice() {
            [one] => format!("port {}", one.port),
            _ => "other ports".to_owned(),
        };
        return Some(format!(
            "to_port is unused: connections never go to port {port}, {whose} {ports}"
        ));
    }
    let key = if entries.iter().any(|entry| entry.takes_from(class)) {
        "to"
    } else {
        "from"
    };
    let at = first
        .ip
        .map_or("other addresses".to_owned(), |ip| match entries.len() {
            1 => format!("address {ip}"),
            _ => "other addresses".to_owned(),
        });
    Some(format!(
        "{key} is unused: connections never fit it, {whose} {at}"
    ))
}

/// Objectives, which need a controller to keep them.
fn promises(class: &Class, given: &[&str], around: &Around<'_>) -> Option<String> {
    if around.has_controller || !class.is_guarded() {
        return None;
    }
    let keys = ["min_rate", "max_wait"]
        .into_iter()
        .filter(|key| given.contains(key));
    let keys: Vec<&str> = keys.collect();
    let (are, they, need) = match keys.len() {
        0 => return None,
        1 => ("is", "it", "needs"),
        _ => ("are", "they", "need"),
    };
    Some(format!(
        "{} {are} unused: {they} {need} a [controller]",
        keys.join(" and ")
    ))
}

fn queue_limit(class: &Class, given: &[&str], around: &Around<'_>) -> Option<String> {
    let is_used = !class.is_guarded() || has_order(class, around);
    (given.contains(&"queue_limit") && !is_used).then(|| {
        let listener = wanted_listener(class);
        format!("queue_limit is unused: it needs queue = \"priority\" of {listener}")
    })
}

fn priority(class: &Class, given: &[&str], around: &Around<'_>) -> Option<String> {
    let is_used = around.has_controller
        || has_order(class, around)
        || around.proxies_of(class).next().is_some()
        || around.quic_of(class).next().is_some();
    (given.contains(&"priority") && !is_used).then(|| {
        let listener = wanted_listener(class);
        format!(
            "priority is unused: it needs queue = \"priority\" of {listener}, or a [controller]"
        )
    })
}

fn has_order(class: &Class, around: &Around<'_>) -> bool {
    around
        .listeners_of(class)
        .any(|listener| listener.queue == QueueOrder::Priority)
}

fn wanted_listener(class: &Class) -> String {
    match &class.listener {
        Some(name) => format!("listener {name:?}"),
        None => "a listener".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    fn warnings(listener: &str, class: &str, rest: &str) -> Vec<String> {
        let file = format!(
            "[[listener]]\nname = \"web\"\n{listener}\n[[class]]\nname = \"gold\"\n{class}\n{rest}\n"
        );
        let config = parse("f", &file).unwrap_or_else(|problems| panic!("{file}{problems:?}"));
        config
            .warnings
            .into_iter()
            .map(|warning| warning.text)
            .collect()
    }

    const ANY: &str = "address = \"*:80\"";
    const ORDERED: &str = "address = \"*:80\"\nqueue = \"priority\"";
    const CONTROLLER: &str = "[controller]\ntarget_wait = \"20ms\"";
    const PROXY: &str = "[[proxy]]\nname = \"edge\"\nlisten = \"*:443\"\nmode = \"forward\"";

    #[test]
    fn each_key_without_effect_is_named_with_what_it_needs() {
        for (listener, class, expected) in [
            (
                ANY,
                "min_rate = 5",
                "min_rate is unused: it needs a [controller]",
            ),
            (
                ANY,
                "max_wait = \"9ms\"",
                "max_wait is unused: it needs a [controller]",
            ),
            (
                ANY,
                "min_rate = 5\nmax_wait = \"9ms\"",
                "min_rate and max_wait are unused: they need a [controller]",
            ),
            (
                ANY,
                "queue_limit = 5",
                "queue_limit is unused: it needs queue = \"priority\" of a listener",
            ),
            (
                ANY,
                "listener = \"web\"\nqueue_limit = 5",
                "queue_limit is unused: it needs queue = \"priority\" of listener \"web\"",
            ),
            (
                ANY,
                "priority = 1",
                "priority is unused: it needs queue = \"priority\" of a listener, or a [controller]",
            ),
            (
                ANY,
                "to_port = 443",
                "to_port is unused: connections never go to port 443, listener \"web\" has port 80",
            ),
            (
                "address = \"0.0.0.0:80\"",
                "from = \"2001:db8::/32\"",
                "from is unused: connections never fit it, listener \"web\" has address 0.0.0.0",
            ),
            (
                "address = \"[2001:db8::1]:80\"",
                "from = \"10.0.0.0/8\"",
                "from is unused: connections never fit it, listener \"web\" has address 2001:db8::1",
            ),
            (
                "address = \"192.0.2.1:80\"",
                "to = \"198.51.100.0/24\"",
                "to is unused: connections never fit it, listener \"web\" has address 192.0.2.1",
            ),
        ] {
            let said = warnings(listener, class, "");
            assert_eq!(said, [format!("class \"gold\": {expected}")], "{class}");
        }
        assert_eq!(
            warnings("address = \"*:80\"\nageing = \"1s\"", "rate = 5", ""),
            ["listener \"web\": ageing is unused: it belongs to queue = priority"]
        );
    }

    #[test]
    fn a_key_with_what_it_needs_is_not_odd() {
        for (listener, class, rest) in [
            (
                ANY,
                "min_rate = 5\nmax_wait = \"9ms\"\npriority = 2",
                CONTROLLER,
            ),
            (ORDERED, "queue_limit = 5\npriority = 2", ""),
            (ORDERED, "listener = \"web\"\nqueue_limit = 5", ""),
            (
                "address = \"*:80\"\nqueue = \"priority\"\nageing = \"1s\"",
                "rate = 5",
                "",
            ),
            (ANY, "to_port = 443\npriority = 2", PROXY),
            ("address = \"[::]:80\"", "from = \"10.0.0.0/8\"", ""),
            ("address = \"192.0.2.1:80\"", "to = \"192.0.2.0/24\"", ""),
            (
                ANY,
                "from = [\"10.0.0.0/8\", \"2001:db8::/32\"]\nto_port = 80",
                "",
            ),
        ] {
            assert_eq!(
                warnings(listener, class, rest),
                Vec::<String>::new(),
                "{class}"
            );
        }
    }

    #[test]
    fn thousands_of_classes_are_a_few_warnings() {
        let class = |n: u32| {
            format!("[[class]]\nname = \"c{n}\"\nfrom = \"10.0.{n}.0/24\"\nqueue_limit = 5\n")
        };
        let file = format!("[[listener]]\n{ANY}\n") + &(0..100).map(class).collect::<String>();
        let said = parse("f", &file).unwrap().warnings;
        assert_eq!(said.len(), 8);
        assert!(
            said[7].text.ends_with("(and 92 more classes like it)"),
            "{}",
            said[7].text
        );
    }
}
