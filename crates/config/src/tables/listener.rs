//! The keys of a `[[listener]]` table: which address weir guards, and by which policy.
//!
//! `weir protect` has the keys of the policy as flags.

use std::sync::LazyLock;
use std::time::Duration;

use crate::address::parse_listen_address;
use crate::error::Fault;
use crate::key::Key;
use crate::names::{name, parse_interfaces};
use crate::table::Table;
use crate::tables::listener_lint::lint;
use crate::types::{Kind, Type, duration, flag, number, text, word};
use crate::value::{Given, Setting};
use weir_core::listener::{Establish, ListenAddress, Listener, MAX_LISTENERS, QueueOrder};

static KEYS: LazyLock<Vec<Key<Listener>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Listener>> {
    vec![
        Key::new("name", field!(Listener, name), name(),
            "The listener's name in status and metrics; unique")
            .absent("port-PORT"),
        Key::new("address", field!(Listener, address), address(),
            "The address and port to guard; * is every address, IPv4 and IPv6")
            .required("address = \"*:80\"")
            .note("[::]:80 guards IPv4 too, as a server's socket there takes it without IPV6_V6ONLY, unless another listener has 0.0.0.0:80."),
        Key::new("interfaces", field!(Listener, interfaces), interfaces(),
            "The interfaces on which weir guards it")
            .absent("all, also those that appear later").example("[\"eth0\"]").empty("all"),
        Key::new("establish", field!(Listener, establish), word(),
            "How connections are established while the listen queue lacks space"),
        Key::new("reject_syn", field!(Listener, reject_syn), word(),
            "What answers a SYN that weir refuses"),
        Key::new("overbook", field!(Listener, overbook), overbook(),
            "Share of the listen queue that reserv may promise beyond it, for clients that never send their final ACK"),
        Key::new("admit", field!(Listener, admit), word(),
            "When the listen queue counts as full"),
        Key::new("target_wait", field!(Listener, target_wait), wait(),
            "Wait in the listen queue above which admit = wait refuses once it stands"),
        Key::new("interval", field!(Listener, interval), wait(),
            "How long the wait must stand over target_wait before weir refuses; shorter bursts pass"),
        Key::new("queue", field!(Listener, queue), word(),
            "Which waiting connection the server accepts next"),
        Key::new("ageing", field!(Listener, ageing), ageing(),
            "Wait after which a connection counts as of the next higher priority, with queue = priority; off: the lowest may starve"),
        Key::new("health_checks", field!(Listener, health_checks), flag(),
            "Let clients in where others are refused if their address connects seldom and steadily, as health checks do"),
        Key::new("half_close", field!(Listener, half_close), word(),
            "What a client's FIN without data does"),
        Key::new("timewait", field!(Listener, timewait), word(),
            "Which end remembers a closed connection")
            .note("negotiate needs weir at both ends: clients without it are served as ever."),
        Key::new("holder", field!(Listener, holder), word(),
            "Which end timewait = negotiate has remember a connection, whichever end closes first"),
        Key::new("per_socket", field!(Listener, per_socket), flag(),
            "Let applications have single sockets negotiate their TIME-WAIT or not, by setsockopt()")
            .note("In the whole network namespace, where one listener or destination has it. It makes every setsockopt() of the machine 0.24 µs longer. docs/timewait.md says how they ask."),
        Key::new("reason", field!(Listener, reason), flag(),
            "Put a short text that says why into each RST (RFC 1122, 4.2.2.12)"),
        Key::new("mode", field!(Listener, mode), word(),
            "Whether weir carries verdicts out or only counts them"),
        Key::new("front", field!(Listener, front), word(),
            "Where weir first looks at packets"),
    ]
}

fn address() -> Type<ListenAddress> {
    let values = "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"";
    text(
        Kind::Address,
        values,
        parse_listen_address,
        ListenAddress::to_string,
    )
}

fn interfaces() -> Type<Vec<String>> {
    Type::new(
        Kind::Names,
        "a list of at most 8 interface names",
        |given: &Given| given.list().and_then(parse_interfaces),
        |names: &Vec<String>| Setting::List(names.clone()),
    )
}

fn overbook() -> Type<f64> {
    number(0.0..=16.0).meaning("0.5 promises one and a half times the listen queue")
}

/// `target_wait` and `interval`, and `max_wait` of a class.
pub(crate) fn wait() -> Type<Duration> {
    duration(Duration::from_millis(1)..=Duration::from_secs(10), "20ms")
}

fn ageing() -> Type<Option<Duration>> {
    duration(Duration::from_millis(1)..=Duration::from_secs(3600), "2s").or("off")
}

/// The address of a listener that the file gives none.
const NOWHERE: ListenAddress = ListenAddress { ip: None, port: 0 };

impl Table for Listener {
    const NAME: &'static str = "listener";
    const TITLE: &'static str = "A listener";
    const TEXT: &'static str = "An address and port that `weir run` guards, and its policy. The server behind it needs no \
                                change.";
    const MOST: (usize, &'static str) = (MAX_LISTENERS, "\"*:PORT\" covers every address in one");
    const COLLISION_HINT: &'static str =
        "one listener for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";

    fn keys() -> &'static [Key<Listener>] {
        &KEYS
    }

    fn blank() -> Listener {
        Listener::new("", NOWHERE)
    }

    fn example() -> Listener {
        Listener::new("web", ListenAddress { ip: None, port: 80 })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {
        self.name = format!("port-{}", self.address.port);
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
