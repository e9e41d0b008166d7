//! The keys of a `[[listener]]` table: each is declared once, and `weir check`, the example file,
//! `weir explain`, the flags' help and `weir status` all read this list.

use std::time::Duration;

use crate::error::Fault;
use crate::lint::lint;
use crate::table::{Key, Kind, Table, words_of};
use crate::value::{Given, Setting, flag, list, mismatch, number, text, word};
use weir_core::listener::{
    Admit, Establish, Front, HalfClose, ListenAddress, Listener, MAX_INTERFACES, MAX_LISTENERS,
    Mode, QueueOrder, RejectSyn,
};
use weir_core::units::{format_duration, parse_duration};
use weir_core::word::Word;

/// Every key of a `[[listener]]` table, in the order of the example file.
pub static LISTENER_KEYS: [Key<Listener>; 15] = [
    Key {
        name: "name",
        kind: Kind::Name,
        values: "letters, digits, '.', '_', '-'; at most 64",
        text: "The listener's name in status and metrics; unique. Left out: port-PORT",
        set: |l, v| text(v).and_then(parse_name).map(|name| l.name = name),
        show: |l| Setting::Text(l.name.clone()),
    },
    Key {
        name: "address",
        kind: Kind::Address,
        values: "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"",
        text: "The address and port to guard; * is every address, IPv4 and IPv6. Required",
        set: |l, v| crate::parse_listen_address(text(v)?).map(|address| l.address = address),
        show: |l| Setting::Text(l.address.to_string()),
    },
    Key {
        name: "interfaces",
        kind: Kind::Names,
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
        kind: Kind::Word(words_of::<Establish>),
        values: "default | abort | reserv | no-syn-drop",
        text: "How connections are established when the listen queue is short of room",
        set: |l, v| word(v).map(|value| l.establish = value),
        show: |l| Setting::Text(l.establish.word().into()),
    },
    Key {
        name: "reject_syn",
        kind: Kind::Word(words_of::<RejectSyn>),
        values: "drop | rst",
        text: "What a SYN that cannot be served gets",
        set: |l, v| word(v).map(|value| l.reject_syn = value),
        show: |l| Setting::Text(l.reject_syn.word().into()),
    },
    Key {
        name: "overbook",
        kind: Kind::Number,
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
        kind: Kind::Word(words_of::<Admit>),
        values: "queue | wait",
        text: "When the listen queue counts as having no room",
        set: |l, v| word(v).map(|value| l.admit = value),
        show: |l| Setting::Text(l.admit.word().into()),
    },
    Key {
        name: "target_wait",
        kind: Kind::Time,
        values: "1ms to 10s",
        text: "Wait in the listen queue above which admit = wait refuses once it stands",
        set: |l, v| wait(v).map(|wait| l.target_wait = wait),
        show: |l| Setting::Text(format_duration(l.target_wait)),
    },
    Key {
        name: "interval",
        kind: Kind::Time,
        values: "1ms to 10s",
        text: "How long the wait must stand over target_wait before it refuses; shorter bursts pass",
        set: |l, v| wait(v).map(|wait| l.interval = wait),
        show: |l| Setting::Text(format_duration(l.interval)),
    },
    Key {
        name: "queue",
        kind: Kind::Word(words_of::<QueueOrder>),
        values: "fifo | priority",
        text: "Which waiting connection the server accepts next",
        set: |l, v| word(v).map(|value| l.queue = value),
        show: |l| Setting::Text(l.queue.word().into()),
    },
    Key {
        name: "ageing",
        kind: Kind::Time,
        values: "1ms to 1h | off",
        text: "Wait after which a connection counts as of the next higher priority, with queue = priority; off: the lowest may starve",
        set: |l, v| {
            text(v)
                .and_then(parse_ageing)
                .map(|ageing| l.ageing = ageing)
        },
        show: |l| Setting::Text(l.ageing.map_or_else(|| "off".into(), format_duration)),
    },
    Key {
        name: "half_close",
        kind: Kind::Word(words_of::<HalfClose>),
        values: "keep | reset",
        text: "What a client's FIN without data does",
        set: |l, v| word(v).map(|value| l.half_close = value),
        show: |l| Setting::Text(l.half_close.word().into()),
    },
    Key {
        name: "reason",
        kind: Kind::Flag,
        values: "true | false",
        text: "Put a short text that says why into each RST (RFC 1122, 4.2.2.12)",
        set: |l, v| flag(v).map(|on| l.reason = on),
        show: |l| Setting::Flag(l.reason),
    },
    Key {
        name: "mode",
        kind: Kind::Word(words_of::<Mode>),
        values: "enforce | observe",
        text: "Whether verdicts are carried out or only counted",
        set: |l, v| word(v).map(|value| l.mode = value),
        show: |l| Setting::Text(l.mode.word().into()),
    },
    Key {
        name: "front",
        kind: Kind::Word(words_of::<Front>),
        values: "tc | xdp",
        text: "Where packets are first looked at",
        set: |l, v| word(v).map(|value| l.front = value),
        show: |l| Setting::Text(l.front.word().into()),
    },
];

/// The address of a listener that was given none.
const NOWHERE: ListenAddress = ListenAddress { ip: None, port: 0 };

impl Table for Listener {
    const NAME: &'static str = "listener";
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("address", "address = \"*:80\"")];
    const MOST: (usize, &'static str) = (MAX_LISTENERS, "\"*:PORT\" covers every address in one");
    const ONE_ADDRESS_HINT: &'static str =
        "one listener for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";

    fn keys() -> &'static [Key<Listener>] {
        &LISTENER_KEYS
    }

    fn blank() -> Listener {
        Listener::new("", NOWHERE)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {
        self.name = default_name(self.address);
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn collides(&self, other: &Listener) -> bool {
        self.address.conflicts(&other.address)
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        let counted = matches!(self.establish, Establish::Reserv | Establish::NoSynDrop);
        if self.queue == QueueOrder::Priority && !counted {
            let message = "with this establish each parking listener would be a queue of its own";
            let hint = "queue = \"priority\" goes with establish = \"reserv\" or \"no-syn-drop\"";
            return Err(("establish", Fault::new(message, hint)));
        }
        Ok(())
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        lint(self, given)
    }
}

/// The name of a listener that was given none.
pub fn default_name(address: ListenAddress) -> String {
    format!("port-{}", address.port)
}

/// Checks the name of a listener or a proxy.
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

/// Reads `ageing`: 1 ms..=1 h with a unit, or `off`.
///
/// # Errors
/// Neither, or out of that range.
pub fn parse_ageing(text: &str) -> Result<Option<Duration>, Fault> {
    const HINT: &str = "a duration with its unit from 1ms to 1h, for example \"2s\", or \"off\"";
    if text == "off" {
        return Ok(None);
    }
    let ageing = parse_duration(text).map_err(|cause| Fault::new(cause, HINT))?;
    if ageing < Duration::from_millis(1) || ageing > Duration::from_secs(3600) {
        return Err(Fault::new(format!("{text:?} is out of range"), HINT));
    }
    Ok(Some(ageing))
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

pub(crate) fn wait(value: &Given) -> Result<Duration, Fault> {
    match value {
        Given::Text(text) => parse_wait(text),
        _ => Err(mismatch(value, "a duration", WAIT_HINT)),
    }
}
