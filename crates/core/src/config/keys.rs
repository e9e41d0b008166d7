//! The keys of a `[[listener]]` table: each is declared once, and `weir check`, the example file,
//! `weir explain`, the flags' help and `weir status` all read this list.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::error::Fault;
use super::suggest::did_you_mean;
use super::word::Word;
use crate::listener::{Listener, MAX_INTERFACES};
use crate::units::{format_duration, parse_duration};

/// A value as the file has it, with the types that keys can have.
#[derive(Debug, Clone, PartialEq)]
pub enum Given {
    /// A string.
    Text(String),
    /// An integer or a float.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
    /// An array of strings.
    List(Vec<String>),
    /// Anything else, by the name of its type.
    Other(&'static str),
}

impl Given {
    fn type_name(&self) -> &'static str {
        match self {
            Given::Text(_) => "a string",
            Given::Number(_) => "a number",
            Given::Flag(_) => "true or false",
            Given::List(_) => "a list of strings",
            Given::Other(name) => name,
        }
    }
}

/// A setting in force. Its `Display` is TOML, its serde form the plain value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// A word, a name, an address or a value with its unit.
    Text(String),
    /// A share.
    Number(f64),
    /// On or off.
    Flag(bool),
    /// Names.
    List(Vec<String>),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Text(text) => write!(f, "{text:?}"),
            Setting::Number(number) => write!(f, "{number:?}"),
            Setting::Flag(flag) => write!(f, "{flag}"),
            Setting::List(list) => write!(f, "{list:?}"),
        }
    }
}

/// One key of a `[[listener]]` table.
pub struct Key {
    /// Its name in the file; flags have `-` for `_`.
    pub name: &'static str,
    /// The values it takes, in words.
    pub values: &'static str,
    /// What it sets, in one line.
    pub text: &'static str,
    /// Checks the value and sets it.
    pub(super) set: fn(&mut Listener, &Given) -> Result<(), Fault>,
    /// The value in force.
    pub show: fn(&Listener) -> Setting,
}

impl Key {
    /// The key with this name.
    pub fn by_name(name: &str) -> Option<&'static Key> {
        LISTENER_KEYS.iter().find(|key| key.name == name)
    }
}

/// Every key of a `[[listener]]` table, in the order of the example file.
pub static LISTENER_KEYS: [Key; 13] = [
    Key {
        name: "name",
        values: "letters, digits, '.', '_', '-'; at most 64",
        text: "The listener's name in status and metrics; unique. Left out: port-PORT",
        set: |l, v| text(v).and_then(parse_name).map(|name| l.name = name),
        show: |l| Setting::Text(l.name.clone()),
    },
    Key {
        name: "address",
        values: "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"",
        text: "The address and port to guard; * is every address, IPv4 and IPv6. Required",
        set: |l, v| {
            crate::listener::ListenAddress::parse(text(v)?).map(|address| l.address = address)
        },
        show: |l| Setting::Text(l.address.to_string()),
    },
    Key {
        name: "interfaces",
        values: "a list of at most 8 interface names",
        text: "The interfaces on which it is guarded. Left out: all, also those that appear later",
        set: |l, v| {
            list(v)
                .and_then(parse_interfaces)
                .map(|names| l.interfaces = names)
        },
        show: |l| Setting::List(l.interfaces.clone()),
    },
    Key {
        name: "establish",
        values: "default | abort | reserv | no-syn-drop",
        text: "How connections are established when the listen queue is short of room",
        set: |l, v| word(v).map(|value| l.establish = value),
        show: |l| Setting::Text(l.establish.word().into()),
    },
    Key {
        name: "reject_syn",
        values: "drop | rst",
        text: "What a SYN that cannot be served gets",
        set: |l, v| word(v).map(|value| l.reject_syn = value),
        show: |l| Setting::Text(l.reject_syn.word().into()),
    },
    Key {
        name: "overbook",
        values: "0.0 to 16.0",
        text: "Share of the listen queue that reserv may promise beyond it, for clients that never send their final ACK",
        set: |l, v| {
            number(v)
                .and_then(check_overbook)
                .map(|share| l.overbook = share)
        },
        show: |l| Setting::Number(l.overbook),
    },
    Key {
        name: "admit",
        values: "queue | wait",
        text: "When the listen queue counts as having no room",
        set: |l, v| word(v).map(|value| l.admit = value),
        show: |l| Setting::Text(l.admit.word().into()),
    },
    Key {
        name: "target_wait",
        values: "1ms to 10s",
        text: "Wait in the listen queue above which admit = wait refuses once it stands",
        set: |l, v| wait(v).map(|wait| l.target_wait = wait),
        show: |l| Setting::Text(format_duration(l.target_wait)),
    },
    Key {
        name: "interval",
        values: "1ms to 10s",
        text: "How long the wait must stand over target_wait before it refuses; shorter bursts pass",
        set: |l, v| wait(v).map(|wait| l.interval = wait),
        show: |l| Setting::Text(format_duration(l.interval)),
    },
    Key {
        name: "half_close",
        values: "keep | reset",
        text: "What a client's FIN without data does",
        set: |l, v| word(v).map(|value| l.half_close = value),
        show: |l| Setting::Text(l.half_close.word().into()),
    },
    Key {
        name: "reason",
        values: "true | false",
        text: "Put a short text that says why into each RST (RFC 1122, 4.2.2.12)",
        set: |l, v| flag(v).map(|on| l.reason = on),
        show: |l| Setting::Flag(l.reason),
    },
    Key {
        name: "mode",
        values: "enforce | observe",
        text: "Whether verdicts are carried out or only counted",
        set: |l, v| word(v).map(|value| l.mode = value),
        show: |l| Setting::Text(l.mode.word().into()),
    },
    Key {
        name: "front",
        values: "tc | xdp",
        text: "Where packets are first looked at",
        set: |l, v| word(v).map(|value| l.front = value),
        show: |l| Setting::Text(l.front.word().into()),
    },
];

/// Checks a listener's name.
///
/// # Errors
/// Empty, over 64 characters, or with a character that metrics and shells would need quoted.
pub fn parse_name(name: &str) -> Result<String, Fault> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(good) {
        return Ok(name.to_owned());
    }
    let hint = "a name has 1 to 64 letters, digits, '.', '_' or '-'";
    Err(Fault::new(format!("{name:?} is no name"), hint))
}

/// Checks the name of one interface (not whether it exists).
///
/// # Errors
/// A name that the kernel never gives (dev_valid_name: 1..=15 bytes, no '/', ':' or space).
pub fn parse_interface(name: &str) -> Result<String, Fault> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
    if name.is_empty() || name.len() > 15 || name.contains(bad) || name == "." || name == ".." {
        let hint =
            "an interface name has 1 to 15 characters; `ip link` lists those of this machine";
        return Err(Fault::new(format!("{name:?} is no interface name"), hint));
    }
    Ok(name.to_owned())
}

/// Checks a list of interfaces: 1..=[`MAX_INTERFACES`] names, each once.
///
/// # Errors
/// What is wrong with which name.
pub fn parse_interfaces(names: &[String]) -> Result<Vec<String>, Fault> {
    if names.is_empty() {
        return Err(Fault::new(
            "the list is empty",
            "leave the key out to guard every interface",
        ));
    }
    if names.len() > MAX_INTERFACES {
        let hint = format!("at most {MAX_INTERFACES}; leave the key out to guard every interface");
        return Err(Fault::new(
            format!("{} interfaces are too many", names.len()),
            hint,
        ));
    }
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return Err(Fault::new(
                format!("{name:?} stands there twice"),
                "name it once",
            ));
        }
    }
    names.iter().map(|name| parse_interface(name)).collect()
}

/// Checks `overbook`: 0.0..=16.0.
///
/// # Errors
/// Out of that range, or not a number.
pub fn check_overbook(share: f64) -> Result<f64, Fault> {
    if (0.0..=16.0).contains(&share) {
        return Ok(share);
    }
    let hint = "0.0 to 16.0: 0.5 promises one and a half times the listen queue";
    Err(Fault::new(format!("{share:?} is out of range"), hint))
}

const WAIT_HINT: &str = "a duration with its unit from 1ms to 10s, for example \"20ms\"";

/// Reads `target_wait` or `interval`: 1 ms..=10 s with a unit.
///
/// # Errors
/// No duration, no unit, or out of that range.
pub fn parse_wait(text: &str) -> Result<Duration, Fault> {
    let wait = parse_duration(text).map_err(|cause| Fault::new(cause, WAIT_HINT))?;
    if wait < Duration::from_millis(1) || wait > Duration::from_secs(10) {
        return Err(Fault::new(format!("{text:?} is out of range"), WAIT_HINT));
    }
    Ok(wait)
}

/// Reads one of a setting's words.
///
/// # Errors
/// Not one of them; the hint lists them, or names the one that was probably meant.
pub fn parse_word<T: Word>(text: &str) -> Result<T, Fault> {
    T::from_word(text).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|row| row.word).collect();
        let hint = match did_you_mean(text, &words) {
            Some(word) => format!("did you mean {word:?}?"),
            None => format!("one of {}", words.join(", ")),
        };
        Fault::new(format!("{text:?} is not known"), hint)
    })
}

fn word<T: Word>(value: &Given) -> Result<T, Fault> {
    text(value).and_then(parse_word)
}

fn mismatch(value: &Given, wanted: &str, hint: &str) -> Fault {
    Fault::new(format!("is {}, not {wanted}", value.type_name()), hint)
}

fn text(value: &Given) -> Result<&str, Fault> {
    match value {
        Given::Text(text) => Ok(text),
        _ => Err(mismatch(
            value,
            "a string",
            "write the value in double quotes",
        )),
    }
}

fn wait(value: &Given) -> Result<Duration, Fault> {
    match value {
        Given::Text(text) => parse_wait(text),
        _ => Err(mismatch(value, "a duration", WAIT_HINT)),
    }
}

fn number(value: &Given) -> Result<f64, Fault> {
    match value {
        Given::Number(number) => Ok(*number),
        _ => Err(mismatch(
            value,
            "a number",
            "write the number without quotes",
        )),
    }
}

fn flag(value: &Given) -> Result<bool, Fault> {
    match value {
        Given::Flag(on) => Ok(*on),
        _ => Err(mismatch(
            value,
            "true or false",
            "write true or false without quotes",
        )),
    }
}

fn list(value: &Given) -> Result<&[String], Fault> {
    match value {
        Given::List(list) => Ok(list),
        _ => Err(mismatch(
            value,
            "a list of strings",
            "write a list: [\"eth0\"]",
        )),
    }
}
