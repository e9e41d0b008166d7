//! The keys of a `[[destination]]` table: connections that this machine opens, and what is done about their TIME-WAIT.

use std::sync::LazyLock;
use std::time::Duration;

use crate::key::Key;
use crate::names::name;
use crate::table::Table;
use crate::tables::class::{places, port};
use crate::types::{Type, duration, flag, word};
use weir_core::timewait::{Accept, Destination, MAX_DESTINATIONS, TimeWaitMode};

static KEYS: LazyLock<Vec<Key<Destination>>> = LazyLock::new(|| Key::all_since("0.2.0", keys()));

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Destination>> {
    vec![
        Key::new("name", field!(Destination, name), name(),
            "The destination's name in status and metrics; unique")
            .required("name = \"backends\""),
        Key::new("to", field!(Destination, to), places(),
            "The address of the server")
            .absent("any").empty("any"),
        Key::new("to_port", field!(Destination, to_port), port(),
            "The port of the server")
            .absent("any")
            .note("A connection belongs to a destination with its port before one of all ports, and then to the one with the longest prefix."),
        Key::new("timewait", field!(Destination, timewait), word(),
            "Which end remembers a closed connection")
            .note("client-rst needs nothing of the server, but one with tcp_rfc1337 = 1 keeps its TIME-WAIT all the same. negotiate needs weir at the server too: where that lacks it, the connection is as without weir."),
        Key::new("accept", field!(Destination, accept), word(),
            "Which end may remember the connection, with timewait = negotiate"),
        Key::new("timewait_length", field!(Destination, timewait_length), length(),
            "How long a record keeps a new connection from the addresses and ports of a closed one: 2 MSL"),
        Key::new("per_socket", field!(Destination, per_socket), flag(),
            "Let applications have single sockets negotiate their TIME-WAIT or not, by setsockopt()")
            .note("In the whole network namespace, where one listener or destination has it. It makes every setsockopt() of the machine take longer. docs/timewait-details.md says how they ask."),
    ]
}

fn length() -> Type<Duration> {
    duration(Duration::from_secs(1)..=Duration::from_secs(600), "60s")
}

impl Table for Destination {
    const NAME: &'static str = "destination";
    const TITLE: &'static str = "A destination";
    const TEXT: &'static str = "Connections that programs of this network namespace open, by where they go, and what `weir run` does \
                                about their TIME-WAIT. Connections that no destination names are left alone.";
    const MOST: (usize, &'static str) = (
        MAX_DESTINATIONS,
        "`to` takes a list, and a prefix covers many servers",
    );
    const COLLISION_HINT: &'static str =
        "one destination for each prefix and port; a longer prefix may stand beside a shorter one";

    fn keys() -> &'static [Key<Destination>] {
        &KEYS
    }

    fn blank() -> Destination {
        Destination::new("")
    }

    fn example() -> Destination {
        Destination::new("backends")
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> String {
        let to: Vec<String> = self.prefixes().iter().map(ToString::to_string).collect();
        let port = self.to_port.map_or("*".to_owned(), |port| port.to_string());
        format!("{} port {port}", to.join(" "))
    }

    fn collides(&self, other: &Destination) -> bool {
        self.tie(other).is_some()
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        let unused = |key: &str, because: &str| {
            format!("destination {:?}: {key} is unused: {because}", self.name)
        };
        let given = |key: &str| given.contains(&key);
        let mut odd = Vec::new();
        if self.timewait == TimeWaitMode::Off && given("timewait_length") {
            odd.push(unused("timewait_length", "timewait = off makes no records"));
        }
        // The example spells the default out.
        let accepts_some = self.accept != Accept::Any && given("accept");
        if self.timewait != TimeWaitMode::Negotiate && accepts_some {
            odd.push(unused("accept", "it belongs to timewait = negotiate"));
        }
        odd
    }
}
