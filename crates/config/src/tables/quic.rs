//! The keys of a `[[quic]]` table: a QUIC server that weir guards, and by which policy.

use std::sync::LazyLock;

use crate::address::listen_address;
use crate::error::Fault;
use crate::key::Key;
use crate::names::{interfaces, name};
use crate::table::Table;
use crate::tables::listener::{NOWHERE, location, wait};
use crate::types::{Type, number, word};
use weir_core::listener::{ListenAddress, Mode};
use weir_core::quic::QuicListener;
use weir_core::workload::Where;

static KEYS: LazyLock<Vec<Key<QuicListener>>> = LazyLock::new(|| Key::all_since("0.2.0", keys()));

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<QuicListener>> {
    vec![
        Key::new("name", field!(QuicListener, name), name(),
            "The QUIC listener's name in status and metrics; unique among [[quic]]")
            .absent("quic-PORT"),
        Key::new("address", field!(QuicListener, address), listen_address(),
            "The address and UDP port to guard; * is every address, IPv4 and IPv6")
            .required("address = \"*:443\"")
            .note("It guards UDP only. Clients that are refused take TCP: guard that port by a [[listener]] too."),
        Key::new("where", field!(QuicListener, location), location(),
            "In which network namespaces weir guards it: as of a [[listener]], of which there must be one with the same where and port")
            .example("\"container:web-*\""),
        Key::new("interfaces", field!(QuicListener, interfaces), interfaces(QuicListener::MOST_INTERFACES),
            "The interfaces on which weir guards it")
            .absent("all, also those that appear later").example("[\"eth0\"]").empty("all"),
        Key::new("refuse", field!(QuicListener, refuse), word(),
            "What answers an attempt to connect that weir refuses"),
        Key::new("target_wait", field!(QuicListener, target_wait), wait(),
            "Wait for the server's answer above which weir refuses once it stands"),
        Key::new("interval", field!(QuicListener, interval), wait(),
            "How long the wait must stand over target_wait before weir refuses; shorter bursts pass"),
        Key::new("room", field!(QuicListener, room), room(),
            "Share of the socket's receive buffer above which weir refuses at once; 0: the buffer does not count")
            .note("A burst waits in that buffer. With a larger one (nginx: rcvbuf of listen; else net.core.rmem_default) larger bursts are let in."),
        Key::new("floor", field!(QuicListener, floor), floor(),
            "Share of what the server can answer that new attempts have although weir refuses others")
            .note("Established connections alone can keep a QUIC server busy. Without a floor nobody new would come in meanwhile."),
        Key::new("mode", field!(QuicListener, mode), word(),
            "Whether weir carries verdicts out or only counts them"),
    ]
}

fn room() -> Type<f64> {
    number(0.0..=1.0).meaning("0.5 refuses while more than half of the buffer is taken")
}

fn floor() -> Type<f64> {
    number(0.0..=1.0).meaning("0.125 lets in an eighth of what the server can answer")
}

impl Table for QuicListener {
    const NAME: &'static str = "quic";
    const TITLE: &'static str = "A QUIC server";
    const TEXT: &'static str = "An address and UDP port with a QUIC server (HTTP/3) that `weir run` guards, and its policy. weir refuses \
                                new connections that the server cannot answer soon. docs/quic.md says how it decides.";
    const MOST: (usize, &'static str) =
        (QuicListener::MOST, "\"*:PORT\" covers every address in one");
    const COLLISION_HINT: &'static str =
        "one [[quic]] for each address and port: \"*\" covers \"0.0.0.0\" and \"[::]\"";

    fn keys() -> &'static [Key<QuicListener>] {
        &KEYS
    }

    fn blank() -> QuicListener {
        QuicListener::new("", NOWHERE)
    }

    /// Begins with observing, as a listener does.
    fn example() -> QuicListener {
        let port = 443;
        let mut listener = QuicListener::new("web-h3", ListenAddress { ip: None, port });
        listener.mode = Mode::Observe;
        listener
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn take_default_name(&mut self) {
        self.name = format!("quic-{}", self.address.port);
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn collides(&self, other: &QuicListener) -> bool {
        self.location == other.location && self.address.conflicts(&other.address)
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        if self.location != Where::Here && !self.interfaces.is_empty() {
            let cause = format!(
                "is not there yet in other network namespaces (where = \"{}\")",
                self.location
            );
            let hint = "remove it: all interfaces there are guarded";
            return Err(("interfaces", Fault::new(cause, hint)));
        }
        Ok(())
    }

    fn lint(&self, _given: &[&str]) -> Vec<String> {
        let mut odd = Vec::new();
        let mut say = |text: &str| odd.push(format!("quic {:?}: {text}", self.name));
        if self.interval < self.target_wait {
            say(
                "interval is shorter than target_wait: weir refuses also in a burst that keeps the server busy \
                 for a moment only",
            );
        }
        if self.floor >= 1.0 {
            say(
                "floor = 1 lets in as many attempts as the server can answer: while it is overloaded the wait \
                 hardly falls",
            );
        }
        odd
    }
}
