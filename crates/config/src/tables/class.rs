//! The keys of a `[[class]]` table: which connections it has, their priority, and how many may come.
//!
//! `weir class add` and `weir class set` have them as flags, and the API takes them as fields.

use std::sync::LazyLock;

use crate::error::Fault;
use crate::key::Key;
use crate::names::{name, parse_name};
use crate::table::Table;
use crate::tables::listener::wait;
use crate::types::{Kind, Type, number, text, whole, word};
use crate::value::{Given, NONE, Setting};
use weir_core::class::{Class, LOWEST_PRIORITY, MAX_CLASSES, OTHER};
use weir_core::prefix::{Prefix, parse_prefix};

/// Prefixes in one list at most.
const MAX_PREFIXES: usize = 1024;

static KEYS: LazyLock<Vec<Key<Class>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Class>> {
    vec![
        Key::new("name", field!(Class, name), class_name(),
            "The class's name; unique, and not \"other\"")
            .required("name = \"gold\""),
        Key::new("listener", field!(Class, listener), owner("the name of a [[listener]] or a [[quic]]"),
            "The listener or QUIC listener whose connections it has")
            .absent("all listeners, unless proxy is given"),
        Key::new("proxy", field!(Class, proxy), owner("the name of a [[proxy]]"),
            "The proxy whose clients it has")
            .absent("all proxies, unless listener is given"),
        Key::new("from", field!(Class, from), places(),
            "The client's address")
            .absent("any").empty("any"),
        Key::new("to", field!(Class, to), places(),
            "The address that the client connects to")
            .absent("any").empty("any"),
        Key::new("from_port", field!(Class, from_port), port(),
            "The client's port")
            .absent("any"),
        Key::new("to_port", field!(Class, to_port), port(),
            "The port that the client connects to")
            .absent("any"),
        Key::new("priority", field!(Class, priority), whole(1..=LOWEST_PRIORITY),
            "1 is served first; connections that fit no class come last"),
        Key::new("rate", field!(Class, rate), rate(),
            "Connections per second that weir lets in")
            .absent("no limit"),
        Key::new("burst", field!(Class, burst), connections(),
            "Connections that may come at once after a pause")
            .absent("a tenth of rate, at least 10")
            .shown(shown_burst),
        Key::new("over_rate", field!(Class, over_rate), word(),
            "What answers a SYN over the rate; over QUIC rst is a Version Negotiation packet"),
        Key::new("min_rate", field!(Class, min_rate), rate(),
            "Connections per second that the controller leaves the class while it can hold lower classes"),
        Key::new("max_wait", field!(Class, max_wait), wait().or_none(),
            "How long its connections may wait for accept(); the controller holds lower classes first"),
        Key::new("queue_limit", field!(Class, queue_limit), connections(),
            "Connections of the class that may wait for accept()")
            .absent("no limit of its own"),
    ]
}

fn class_name() -> Type<String> {
    let values = name().form.values;
    text(Kind::Name, values, parse_class_name, String::clone)
}

fn parse_class_name(name: &str) -> Result<String, Fault> {
    match parse_name(name)? {
        name if name == OTHER => Err(Fault::new(
            "\"other\" is the class of the connections that fit no rule",
            "choose another name",
        )),
        name => Ok(name),
    }
}

fn owner(values: &str) -> Type<Option<String>> {
    text(Kind::Name, values, parse_name, String::clone).or_none()
}

pub(crate) fn port() -> Type<Option<u16>> {
    whole(1..=u16::MAX).or_none()
}

/// The bucket's unit allows no higher rate.
fn rate() -> Type<Option<f64>> {
    number(0.1..=10_000_000.0)
        .in_unit("connections/s")
        .or_none()
}

fn connections() -> Type<Option<u32>> {
    whole(1..=10_000_000).in_unit("connections").or_none()
}

/// The burst in effect, which the rate gives if the key does not.
fn shown_burst(class: &Class) -> Setting {
    let burst = class.burst_in_force().or(class.burst);
    burst.map_or(Setting::None, |burst| Setting::Whole(burst.into()))
}

/// One prefix, a list of them, or `none`, which is every address.
pub(crate) fn places() -> Type<Vec<Prefix>> {
    let values = "a prefix, \"10.1.0.0/16\", an address, a list of them, or none";
    let mut places = Type::new(Kind::Prefixes, values, read_places, |prefixes| {
        Setting::List(prefixes.iter().map(shown_place).collect())
    });
    places.form.instead = Some(NONE);
    places
}

fn read_places(given: &Given) -> Result<Vec<Prefix>, Fault> {
    let texts = match given {
        Given::Text(word) if word == NONE => return Ok(Vec::new()),
        Given::Text(text) => std::slice::from_ref(text),
        Given::List(list) => list,
        other => {
            let hint = "write \"10.1.0.0/16\", or a list: [\"10.1.0.0/16\", \"10.2.0.0/16\"]";
            return Err(other.mismatch("a prefix or a list of prefixes", hint));
        }
    };
    if texts.len() > MAX_PREFIXES {
        let cause = format!("{} prefixes are too many", texts.len());
        return Err(Fault::new(cause, format!("at most {MAX_PREFIXES}")));
    }
    texts.iter().map(|text| Ok(parse_prefix(text)?)).collect()
}

/// A prefix of full length as the address.
fn shown_place(prefix: &Prefix) -> String {
    match prefix.prefix_len() == prefix.max_prefix_len() {
        true => prefix.addr().to_string(),
        false => prefix.to_string(),
    }
}

impl Table for Class {
    const NAME: &'static str = "class";
    const TITLE: &'static str = "A class of connections";
    const TEXT: &'static str = "Some of the connections to a listener or of the clients of a proxy, with their priority and \
                                limits. Of several classes that fit a connection the most specific has it.";
    const MOST: (usize, &'static str) = (MAX_CLASSES, "shorter prefixes cover more clients");

    fn keys() -> &'static [Key<Class>] {
        &KEYS
    }

    fn blank() -> Class {
        Class::new("")
    }

    fn example() -> Class {
        Class {
            listener: Some("web".into()),
            from: vec!["10.1.0.0/16".parse().expect("a prefix")],
            priority: 1,
            rate: Some(300.0),
            burst: Some(100),
            ..Class::new("gold")
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.listener.is_some() && self.proxy.is_some() {
            let hint =
                "remove one; a class of neither has connections to all listeners and proxies";
            let fault = Fault::new("a class has one listener or one proxy, not both", hint);
            return Err(("proxy", fault));
        }
        let is_v4 = |prefix: &Prefix| prefix.addr().is_ipv4();
        let meets = |from: &Prefix| self.to.iter().any(|to| is_v4(to) == is_v4(from));
        if !self.to.is_empty() && !self.from.is_empty() && !self.from.iter().any(meets) {
            let hint = "a connection has one family at both ends: name prefixes of the same family";
            let cause = "its prefixes have another address family than those of from";
            let fault = Fault::new(cause, hint);
            return Err(("to", fault));
        }
        Ok(())
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        let mut odd = Vec::new();
        let mut say = |text: String| odd.push(format!("class {:?}: {text}", self.name));
        if self.rate.is_none() {
            for key in ["burst", "over_rate"] {
                if given.contains(&key) {
                    say(format!("{key} is unused: it belongs to rate"));
                }
            }
        }
        if let (Some(rate), Some(min)) = (self.rate, self.min_rate)
            && min > rate
        {
            say(format!("min_rate {min} is above its rate {rate}"));
        }
        if self.proxy.is_some() {
            for key in ["rate", "min_rate", "max_wait", "queue_limit"] {
                if given.contains(&key) {
                    say(format!(
                        "{key} is unused: proxies use only the priority of a class"
                    ));
                }
            }
        }
        odd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;
    use crate::table::change;

    fn problems(file: &str) -> Vec<String> {
        let shown = |p: &crate::error::Problem| format!("{}{} | {}", p.object, p.cause, p.hint);
        match parse("f", file) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.0.iter().map(shown).collect(),
        }
    }

    fn class(keys: &str) -> String {
        format!(
            "[[listener]]\nname = \"web\"\naddress = \"*:80\"\n[[class]]\nname = \"gold\"\n{keys}\n"
        )
    }

    #[test]
    fn every_key_can_be_set_shown_and_taken_away_again() {
        let file = class(
            "listener = \"web\"\nfrom = [\"10.1.0.0/16\", \"10.2.0.1\"]\nto = \"192.0.2.0/24\"\n\
             from_port = 1024\nto_port = 80\npriority = 1\nrate = 0.5\nburst = 100\n\
             over_rate = \"rst\"\nmin_rate = 0.1\nmax_wait = \"50ms\"\nqueue_limit = 10",
        )
        .replace("*:80\"", "*:80\"\nqueue = \"priority\"")
            + "[controller]\ntarget_wait = \"20ms\"\n";
        let config = parse("f", &file).unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let class = &config.classes[0];
        let shown = |name: &str| Class::key(name).map(|key| key.show(class).to_string());
        for (name, value) in [
            ("listener", "\"web\""),
            ("proxy", "\"none\""),
            ("from", "[\"10.1.0.0/16\", \"10.2.0.1\"]"),
            ("to", "[\"192.0.2.0/24\"]"),
            ("from_port", "1024"),
            ("to_port", "80"),
            ("priority", "1"),
            ("rate", "0.5"),
            ("burst", "100"),
            ("over_rate", "\"rst\""),
            ("min_rate", "0.1"),
            ("max_wait", "\"50ms\""),
            ("queue_limit", "10"),
        ] {
            assert_eq!(shown(name).as_deref(), Some(value), "{name}");
        }
        let none = Given::Text("none".into());
        for key in Class::keys().iter().filter(|key| key.form.may_be_none()) {
            let without = change(class, [(key.name, &none)]).unwrap();
            let shown = match key.name {
                // What is in effect without one, at this rate.
                "burst" => Setting::Whole(10),
                "from" | "to" => Setting::List(Vec::new()),
                _ => Setting::None,
            };
            assert_eq!(key.show(&without), shown, "{}", key.name);
        }
    }

    #[test]
    fn mistakes_in_a_class_are_hinted() {
        for (keys, expected) in [
            (
                "from = []",
                "class \"gold\": from: is an empty list, which would be every address | name a prefix, or remove from for every address",
            ),
            (
                "to = [\"none\"]",
                "class \"gold\": to: \"none\" is not a prefix | write a prefix, \"10.1.0.0/16\" or \"2001:db8::/32\", or one address",
            ),
            (
                "from = 10",
                "class \"gold\": from: is a number, not a prefix or a list of prefixes | write \"10.1.0.0/16\", or a list: [\"10.1.0.0/16\", \"10.2.0.0/16\"]",
            ),
            (
                "rate = 0.01",
                "class \"gold\": rate: 0.01 is out of range | a number from 0.1 to 10000000, or \"none\"",
            ),
            (
                "burst = 1.5",
                "class \"gold\": burst: 1.5 is out of range | a whole number from 1 to 10000000, or \"none\"",
            ),
            (
                "to_port = 0",
                "class \"gold\": to_port: 0 is out of range | a whole number from 1 to 65535, or \"none\"",
            ),
            (
                "from = \"10.0.0.0/8\"\nto = \"2001:db8::1\"",
                "class \"gold\": to: its prefixes have another address family than those of from | a connection has one family at both ends: name prefixes of the same family",
            ),
            (
                "listener = \"wbe\"",
                "class \"gold\": listener: no listener is named \"wbe\" | did you mean \"web\"?",
            ),
            (
                "rats = 5",
                "class \"gold\": unknown key \"rats\" | did you mean rate?",
            ),
        ] {
            assert_eq!(problems(&class(keys)), [expected], "{keys}");
        }
        let other = "[[listener]]\naddress = \"*:80\"\n[[class]]\nname = \"other\"\n";
        assert!(problems(other)[0].contains("is the class of the connections that fit no rule"));
    }

    #[test]
    fn ties_are_told_with_both_names_and_a_connection_that_fits_both() {
        let file = class("from = \"10.1.0.0/16\"")
            + "[[class]]\nname = \"web-rest\"\nlistener = \"web\"\n";
        assert_eq!(
            problems(&file),
            [
                "class \"web-rest\": it ties with class \"gold\": 10.1.0.1:40000 > 192.0.2.1:80 fits both, \
              and neither is the more specific | give one of them everything that the other names, or \
              add a class for exactly the connections that fit both"
            ]
        );
        let decided =
            file + "[[class]]\nname = \"both\"\nlistener = \"web\"\nfrom = \"10.1.0.0/16\"\n";
        assert_eq!(problems(&decided), Vec::<String>::new());
    }

    #[test]
    fn unused_keys_are_named() {
        for (keys, part) in [
            ("burst = 5", "burst is unused"),
            ("over_rate = \"rst\"", "over_rate is unused"),
            ("rate = 5\nmin_rate = 6", "min_rate 6 is above its rate 5"),
        ] {
            let warnings = parse("f", &class(keys)).unwrap().warnings;
            assert!(warnings[0].text.contains(part), "{keys}: {warnings:?}");
        }
    }
}
