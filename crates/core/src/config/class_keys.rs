//! The keys of a `[[class]]` table: which clients it is of, and what they are worth.

use super::error::Fault;
use super::keys::parse_name;
use super::table::{Key, Kind, Table};
use super::value::{Given, Setting, text, whole};
use crate::prefix::{Prefix, parse_prefix};
use crate::proxy::{Class, LOWEST_PRIORITY};

/// Classes in one file at most.
const MAX_CLASSES: usize = 1024;

/// Every key of a `[[class]]` table.
pub static CLASS_KEYS: &[Key<Class>] = &[
    Key {
        name: "name",
        kind: Kind::Name,
        values: "letters, digits, '.', '_', '-'; at most 64",
        text: "The class's name; unique. Required",
        set: |c, v| text(v).and_then(parse_name).map(|name| c.name = name),
        show: |c| Setting::Text(c.name.clone()),
    },
    Key {
        name: "proxy",
        kind: Kind::Name,
        values: "the name of a [[proxy]]",
        text: "The proxy whose clients it is of. Left out: all proxies",
        set: |c, v| {
            let name = text(v).and_then(parse_name)?;
            c.proxy = Some(name);
            Ok(())
        },
        show: |c| Setting::Text(c.proxy.clone().unwrap_or_default()),
    },
    Key {
        name: "from",
        kind: Kind::Name,
        values: "a prefix, \"10.1.0.0/16\", or an address",
        text: "Where the client is. Left out: anywhere",
        set: |c, v| prefix(v).map(|prefix| c.from = Some(prefix)),
        show: |c| shown(c.from),
    },
    Key {
        name: "to",
        kind: Kind::Name,
        values: "a prefix, \"10.1.0.0/16\", or an address",
        text: "The address that the client connected to. Left out: any",
        set: |c, v| prefix(v).map(|prefix| c.to = Some(prefix)),
        show: |c| shown(c.to),
    },
    Key {
        name: "priority",
        kind: Kind::Number,
        values: "1 to 63",
        text: "1 is served first; clients of no class come last. Required",
        set: |c, v| whole(v, 1..=LOWEST_PRIORITY.into()).map(|value| c.priority = value as u8),
        show: |c| Setting::Whole(c.priority.into()),
    },
];

fn prefix(value: &Given) -> Result<Prefix, Fault> {
    text(value).and_then(parse_prefix)
}

fn shown(prefix: Option<Prefix>) -> Setting {
    Setting::Text(prefix.map(|prefix| prefix.to_string()).unwrap_or_default())
}

impl Table for Class {
    const NAME: &'static str = "class";
    const REQUIRED: &'static [(&'static str, &'static str)] =
        &[("name", "name = \"gold\""), ("priority", "priority = 1")];
    const MOST: (usize, &'static str) = (MAX_CLASSES, "shorter prefixes cover more clients");
    const ONE_ADDRESS_HINT: &'static str = "";

    fn keys() -> &'static [Key<Class>] {
        CLASS_KEYS
    }

    fn blank() -> Class {
        Class {
            name: String::new(),
            proxy: None,
            from: None,
            to: None,
            priority: LOWEST_PRIORITY,
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    /// Classes may overlap: the first that fits decides.
    fn collides(&self, _other: &Class) -> bool {
        false
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        Ok(())
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        Vec::new()
    }
}
