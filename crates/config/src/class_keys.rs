//! The keys of a `[[class]]` table: which connections it is of, what they are worth, and how many may
//! come.

use crate::error::Fault;
use crate::keys::{parse_name, wait};
use crate::table::{Key, Kind, Table, words_of};
use crate::value::{Given, NONE, Setting, list, maybe, mismatch, ranged, shown, text, whole, word};
use weir_core::class::{Class, LOWEST_PRIORITY, MAX_CLASSES, OTHER, OverRate};
use weir_core::prefix::{Prefix, parse_prefix};
use weir_core::units::format_duration;
use weir_core::word::Word;

/// Prefixes in one list at most.
const MAX_PREFIXES: usize = 1024;
/// Connections per second; the bucket's unit allows no more.
const RATES: std::ops::RangeInclusive<f64> = 0.1..=10_000_000.0;
/// Connections of a burst, and of a queue.
const CONNECTIONS: std::ops::RangeInclusive<u64> = 1..=10_000_000;

/// Every key of a `[[class]]` table.
pub static CLASS_KEYS: &[Key<Class>] = &[
    Key {
        name: "name",
        kind: Kind::Name,
        values: "letters, digits, '.', '_', '-'; at most 64",
        text: "The class's name; unique, and not \"other\". Required",
        set: |c, v| text(v).and_then(class_name).map(|name| c.name = name),
        show: |c| Setting::Text(c.name.clone()),
    },
    Key {
        name: "listener",
        kind: Kind::MaybeName,
        values: "the name of a [[listener]], or none",
        text: "The listener whose connections it is of. Left out: all listeners, unless proxy is given",
        set: |c, v| maybe(v, owner).map(|name| c.listener = name),
        show: |c| shown(c.listener.clone(), Setting::Text),
    },
    Key {
        name: "proxy",
        kind: Kind::MaybeName,
        values: "the name of a [[proxy]], or none",
        text: "The proxy whose clients it is of. Left out: all proxies, unless listener is given",
        set: |c, v| maybe(v, owner).map(|name| c.proxy = name),
        show: |c| shown(c.proxy.clone(), Setting::Text),
    },
    Key {
        name: "from",
        kind: Kind::MaybePrefixes,
        values: "a prefix, \"10.1.0.0/16\", an address, a list of them, or none",
        text: "Where the client is. Left out: anywhere",
        set: |c, v| prefixes(v).map(|prefixes| c.from = prefixes),
        show: |c| listed(&c.from),
    },
    Key {
        name: "to",
        kind: Kind::MaybePrefixes,
        values: "a prefix, \"10.1.0.0/16\", an address, a list of them, or none",
        text: "The address that the client connects to. Left out: any",
        set: |c, v| prefixes(v).map(|prefixes| c.to = prefixes),
        show: |c| listed(&c.to),
    },
    Key {
        name: "from_port",
        kind: Kind::Limit,
        values: "1 to 65535, or none",
        text: "The client's port. Left out: any",
        set: |c, v| maybe(v, port).map(|port| c.from_port = port),
        show: |c| shown(c.from_port, |port| Setting::Whole(port.into())),
    },
    Key {
        name: "to_port",
        kind: Kind::Limit,
        values: "1 to 65535, or none",
        text: "The port that the client connects to. Left out: any",
        set: |c, v| maybe(v, port).map(|port| c.to_port = port),
        show: |c| shown(c.to_port, |port| Setting::Whole(port.into())),
    },
    Key {
        name: "priority",
        kind: Kind::Number,
        values: "1 to 63",
        text: "1 is served first; connections of no class come last",
        set: |c, v| whole(v, 1..=LOWEST_PRIORITY.into()).map(|value| c.priority = value as u8),
        show: |c| Setting::Whole(c.priority.into()),
    },
    Key {
        name: "rate",
        kind: Kind::Limit,
        values: "0.1 to 10000000, or none",
        text: "Connections per second that may come. Left out: as many as do",
        set: |c, v| maybe(v, |v| ranged(v, RATES)).map(|rate| c.rate = rate),
        show: |c| shown(c.rate, Setting::Number),
    },
    Key {
        name: "burst",
        kind: Kind::Limit,
        values: "1 to 10000000, or none",
        text: "Connections that may come at once. Left out: a tenth of rate, at least 10",
        set: |c, v| maybe(v, connections).map(|burst| c.burst = burst),
        show: |c| {
            shown(c.burst_in_force().or(c.burst), |burst| {
                Setting::Whole(burst.into())
            })
        },
    },
    Key {
        name: "over_rate",
        kind: Kind::Word(words_of::<OverRate>),
        values: "drop | rst",
        text: "What a SYN over the rate gets",
        set: |c, v| word(v).map(|value| c.over_rate = value),
        show: |c| Setting::Text(c.over_rate.word().into()),
    },
    Key {
        name: "min_rate",
        kind: Kind::Limit,
        values: "0.1 to 10000000, or none",
        text: "Connections per second that the controller leaves it while lower classes can give way",
        set: |c, v| maybe(v, |v| ranged(v, RATES)).map(|rate| c.min_rate = rate),
        show: |c| shown(c.min_rate, Setting::Number),
    },
    Key {
        name: "max_wait",
        kind: Kind::MaybeTime,
        values: "1ms to 10s, or none",
        text: "How long its connections may wait for accept(); lower classes give way first",
        set: |c, v| maybe(v, wait).map(|wait| c.max_wait = wait),
        show: |c| shown(c.max_wait, |wait| Setting::Text(format_duration(wait))),
    },
    Key {
        name: "queue_limit",
        kind: Kind::Limit,
        values: "1 to 10000000, or none",
        text: "Connections of the class that may wait for accept(). Left out: no limit of its own",
        set: |c, v| maybe(v, connections).map(|limit| c.queue_limit = limit),
        show: |c| shown(c.queue_limit, |limit| Setting::Whole(limit.into())),
    },
];

fn class_name(name: &str) -> Result<String, Fault> {
    match parse_name(name)? {
        name if name == OTHER => Err(Fault::new(
            "\"other\" is the class of the connections that no rule fits",
            "choose another name",
        )),
        name => Ok(name),
    }
}

fn owner(value: &Given) -> Result<String, Fault> {
    text(value).and_then(parse_name)
}

fn port(value: &Given) -> Result<u16, Fault> {
    whole(value, 1..=u16::MAX.into()).map(|port| port as u16)
}

fn connections(value: &Given) -> Result<u32, Fault> {
    whole(value, CONNECTIONS).map(|connections| connections as u32)
}

/// One prefix, a list of them, or none, which is every address.
fn prefixes(value: &Given) -> Result<Vec<Prefix>, Fault> {
    let texts = match value {
        Given::Text(word) if word == NONE => return Ok(Vec::new()),
        Given::Text(text) => std::slice::from_ref(text),
        Given::List(_) => list(value)?,
        _ => {
            let hint = "write \"10.1.0.0/16\", or a list: [\"10.1.0.0/16\", \"10.2.0.0/16\"]";
            return Err(mismatch(value, "a prefix or a list of prefixes", hint));
        }
    };
    if texts.len() > MAX_PREFIXES {
        let cause = format!("{} prefixes are too many", texts.len());
        return Err(Fault::new(cause, format!("at most {MAX_PREFIXES}")));
    }
    texts.iter().map(|text| Ok(parse_prefix(text)?)).collect()
}

fn listed(prefixes: &[Prefix]) -> Setting {
    let show = |prefix: &Prefix| match prefix.prefix_len() == prefix.max_prefix_len() {
        true => prefix.addr().to_string(),
        false => prefix.to_string(),
    };
    Setting::List(prefixes.iter().map(show).collect())
}

impl Table for Class {
    const NAME: &'static str = "class";
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("name", "name = \"gold\"")];
    const MOST: (usize, &'static str) = (MAX_CLASSES, "shorter prefixes cover more clients");
    const HAS_ADDRESS: bool = false;
    const ONE_ADDRESS_HINT: &'static str = "";

    fn keys() -> &'static [Key<Class>] {
        CLASS_KEYS
    }

    fn blank() -> Class {
        Class::new("")
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    /// Classes may overlap: the most specific decides.
    fn collides(&self, _other: &Class) -> bool {
        false
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.listener.is_some() && self.proxy.is_some() {
            let hint = "leave one out; a class of neither is of all listeners and proxies";
            let fault = Fault::new("a class is of one listener or of one proxy", hint);
            return Err(("proxy", fault));
        }
        let is_v4 = |prefix: &Prefix| prefix.addr().is_ipv4();
        let meets = |from: &Prefix| self.to.iter().any(|to| is_v4(to) == is_v4(from));
        if !self.to.is_empty() && !self.from.is_empty() && !self.from.iter().any(meets) {
            let hint = "no connection goes from IPv4 to IPv6: name prefixes of one family";
            let fault = Fault::new(
                "its prefixes are of another family than those of from",
                hint,
            );
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
                    say(format!("{key} is unused: proxies know priorities only"));
                }
            }
        }
        odd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{change, parse};

    fn problems(file: &str) -> Vec<String> {
        let shown = |p: &crate::Problem| format!("{}{} | {}", p.object, p.cause, p.hint);
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
        let shown =
            |name: &str| Key::<Class>::by_name(name).map(|key| (key.show)(class).to_string());
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
        for key in CLASS_KEYS.iter().filter(|key| key.kind.may_be_none()) {
            let without = change(class, [(key.name, &none)]).unwrap();
            let shown = match key.name {
                // What is in effect without one, at this rate.
                "burst" => Setting::Whole(10),
                "from" | "to" => Setting::List(Vec::new()),
                _ => Setting::None,
            };
            assert_eq!((key.show)(&without), shown, "{}", key.name);
        }
    }

    #[test]
    fn mistakes_in_a_class_are_hinted() {
        for (keys, expected) in [
            (
                "from = []",
                "class \"gold\": from: is an empty list, which would be every address | name a prefix, or leave from out for every address",
            ),
            (
                "to = [\"none\"]",
                "class \"gold\": to: \"none\" is no prefix | write a prefix, \"10.1.0.0/16\" or \"2001:db8::/32\", or one address",
            ),
            (
                "from = 10",
                "class \"gold\": from: is a number, not a prefix or a list of prefixes | write \"10.1.0.0/16\", or a list: [\"10.1.0.0/16\", \"10.2.0.0/16\"]",
            ),
            (
                "rate = 0.01",
                "class \"gold\": rate: 0.01 is out of range | a number from 0.1 to 10000000",
            ),
            (
                "burst = 1.5",
                "class \"gold\": burst: 1.5 is out of range | a whole number from 1 to 10000000",
            ),
            (
                "to_port = 0",
                "class \"gold\": to_port: 0 is out of range | a whole number from 1 to 65535",
            ),
            (
                "from = \"10.0.0.0/8\"\nto = \"2001:db8::1\"",
                "class \"gold\": to: its prefixes are of another family than those of from | no connection goes from IPv4 to IPv6: name prefixes of one family",
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
        assert!(problems(other)[0].contains("is the class of the connections that no rule fits"));
    }

    #[test]
    fn ties_are_told_with_both_names_and_a_connection_that_fits_both() {
        let file = class("from = \"10.1.0.0/16\"")
            + "[[class]]\nname = \"web-rest\"\nlistener = \"web\"\n";
        assert_eq!(
            problems(&file),
            [
                "class \"web-rest\": it ties with class \"gold\": 10.1.0.1:40000 > 192.0.2.1:80 fits both, \
              and neither is the more specific | give one of them all that the other names, or add a \
              class for exactly what fits both"
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
