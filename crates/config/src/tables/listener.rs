//! The keys of a `[[listener]]` table: which address weir guards, and by which policy.
//!
//! `weir protect` has the keys of the policy as flags.

use std::sync::LazyLock;
use std::time::Duration;

use crate::address::listen_address;
use crate::error::Fault;
use crate::key::Key;
use crate::names::{interfaces, name};
use crate::suggest::did_you_mean;
use crate::table::Table;
use crate::tables::listener_lint::lint;
use crate::types::{Kind, Type, duration, flag, number, text, whole, word};
use crate::value::{Given, Setting};
use weir_core::listener::{
    Establish, Front, ListenAddress, Listener, MAX_INTERFACES, MAX_LISTENERS, Mode, QueueOrder,
    ResidenceMode,
};
use weir_core::timewait::ListenerTimeWait;
use weir_core::units::format_duration;
use weir_core::workload::{Pattern, Where};

static KEYS: LazyLock<Vec<Key<Listener>>> = LazyLock::new(keys);

#[rustfmt::skip] // A key a paragraph.
fn keys() -> Vec<Key<Listener>> {
    vec![
        Key::new("name", field!(Listener, name), name(),
            "The listener's name in status and metrics; unique")
            .absent("port-PORT"),
        Key::new("address", field!(Listener, address), listen_address(),
            "The address and port to guard; * is every address, IPv4 and IPv6")
            .required("address = \"*:80\"")
            .note("[::]:80 guards IPv4 too, as a server's socket there takes it without IPV6_V6ONLY, unless another listener has 0.0.0.0:80."),
        Key::new("where", field!(Listener, location), location(),
            "In which network namespaces weir guards it: here, on the whole machine, or where container:NAME, label:KEY=VALUE, unit:NAME, netns:NAME or pod:NAMESPACE/NAME is")
            .since("0.2.0")
            .note("container:web-*, unit:nginx, netns:NAME and pod:shop/web-* are as docker, podman, systemctl, ip netns and kubectl have them; label:KEY=VALUE is one of Docker's labels; * and ? stand for any characters. The port is the one inside, not a published one. With machine weir's own is among them. docs/containers.md says more."),
        Key::new("interfaces", field!(Listener, interfaces), interfaces(MAX_INTERFACES),
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
        Key::new("residence", field!(Listener, residence), residence(),
            "How long requests may stay in the server before weir refuses more; observe: weir only measures it")
            .since("0.2.0")
            .note("It looks at the sockets of the port, not at packets, and takes about 1 % of a CPU with up to 20 000 connections. docs/residence.md says what it sees."),
        Key::new("residence_of", field!(Listener, residence_of), whole(1..=u16::MAX).or("own"),
            "The port whose requests residence is about; own: the listener's")
            .since("0.2.0")
            .note("The port of a server on this machine that the listener's program asks: nginx on 443 with TLS, the application on 8000. weir measures there, and refuses here."),
        Key::new("health_checks", field!(Listener, health_checks), flag(),
            "Let clients in where others are refused if their address connects seldom and steadily, as health checks do")
            .since("0.2.0"),
        Key::new("half_close", field!(Listener, half_close), word(),
            "What a client's FIN without data does"),
        Key::new("timewait", field!(Listener, timewait), word(),
            "Which end remembers a closed connection")
            .since("0.2.0")
            .note("negotiate needs weir at both ends: clients without it are served as ever."),
        Key::new("holder", field!(Listener, holder), word(),
            "Which end remembers a connection, whichever closes first, with timewait = negotiate")
            .since("0.2.0"),
        Key::new("per_socket", field!(Listener, per_socket), flag(),
            "Let applications have single sockets negotiate their TIME-WAIT or not, by setsockopt()")
            .since("0.2.0")
            .note("In the whole network namespace, where one listener or destination has it. It makes every setsockopt() of the machine take longer. docs/timewait-details.md says how they ask."),
        Key::new("reason", field!(Listener, reason), flag(),
            "Put a short text that says why into each RST (RFC 1122, 4.2.2.12)"),
        Key::new("mode", field!(Listener, mode), word(),
            "Whether weir carries verdicts out or only counts them"),
        Key::new("front", field!(Listener, front), word(),
            "Where weir first looks at packets"),
    ]
}

pub(crate) fn location() -> Type<Where> {
    let values =
        "here | machine | container:NAME | label:KEY=VALUE | unit:NAME | netns:NAME | pod:NS/NAME";
    text(Kind::Place, values, parse_where, Where::to_string)
}

/// `container:web-*` and the like, as a listener and `weir status --where` have it.
///
/// # Errors
/// The text is none of them.
pub fn parse_where(text: &str) -> Result<Where, Fault> {
    Where::parse(text).ok_or_else(|| {
        let kinds = [
            "here",
            "machine",
            "container",
            "label",
            "unit",
            "netns",
            "pod",
        ];
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        let hint = match (did_you_mean(kind, &kinds), kind) {
            (_, "container" | "unit" | "netns") => format!(
                "name it, as in \"{kind}:web\": at most {} characters, without '/' and spaces",
                Pattern::MOST
            ),
            (_, "pod") => "name it with its namespace, as in \"pod:shop/web-*\"".to_owned(),
            (_, "label") => {
                "name it with its value, as in \"label:com.docker.compose.service=web\"".to_owned()
            }
            (_, "docker" | "podman") => "container:NAME is every engine's".to_owned(),
            (Some(meant @ ("here" | "machine")), _) => format!("did you mean \"{meant}\"?"),
            (Some(meant), _) => {
                let name = if name.is_empty() { "NAME" } else { name };
                format!("did you mean \"{meant}:{name}\"?")
            }
            (None, _) => {
                "here, machine, container:NAME, label:KEY=VALUE, unit:NAME, netns:NAME or pod:NAMESPACE/NAME; without it weir guards its own \
                 network namespace"
                    .to_owned()
            }
        };
        Fault::new(format!("{text:?} is no place"), hint)
    })
}

fn overbook() -> Type<f64> {
    number(0.0..=16.0).meaning("0.5 promises one and a half times the listen queue")
}

/// `target_wait` and `interval`, also of a QUIC listener, and `max_wait` of a class.
pub(crate) fn wait() -> Type<Duration> {
    duration(Duration::from_millis(1)..=Duration::from_secs(10), "20ms")
}

fn residence() -> Type<ResidenceMode> {
    let time = || duration(Duration::from_millis(10)..=Duration::from_secs(60), "250ms");
    let read = time().or("off");
    let values = "off | observe | 10ms to 1min";
    Type::new(
        Kind::Time,
        values,
        move |given: &Given| match given {
            Given::Text(text) if text == "observe" => Ok(ResidenceMode::Observe),
            given => Ok((read.read)(given)
                .map_err(|fault| {
                    Fault::new(fault.cause, format!("{}, or \"observe\"", fault.hint))
                })?
                .map_or(ResidenceMode::Off, ResidenceMode::Within)),
        },
        |residence| match residence {
            ResidenceMode::Off => Setting::Text("off".into()),
            ResidenceMode::Observe => Setting::Text("observe".into()),
            ResidenceMode::Within(time) => Setting::Text(format_duration(*time)),
        },
    )
}

fn ageing() -> Type<Option<Duration>> {
    duration(Duration::from_millis(1)..=Duration::from_secs(3600), "2s").or("off")
}

/// What a listener asks for that weir does in its own network namespace only.
fn not_there_yet(listener: &Listener) -> Result<(), (&'static str, Fault)> {
    let asked = [
        ("queue", listener.queue == QueueOrder::Priority, "\"fifo\""),
        (
            "residence",
            listener.residence != ResidenceMode::Off,
            "\"off\"",
        ),
        (
            "timewait",
            listener.timewait != ListenerTimeWait::Off,
            "\"off\"",
        ),
        ("per_socket", listener.per_socket, "false"),
        ("front", listener.front == Front::Xdp, "\"tc\""),
    ];
    let Some((key, _, only)) = asked.into_iter().find(|(_, asked, _)| *asked) else {
        return Ok(());
    };
    let cause = format!(
        "is not there yet in other network namespaces (where = \"{}\")",
        listener.location
    );
    let hint =
        format!("{key} = {only}; or a weir inside: `nsenter --net=… weir run`, without where");
    Err((key, Fault::new(cause, hint)))
}

/// The address of a listener that the file gives none.
pub(crate) const NOWHERE: ListenAddress = ListenAddress { ip: None, port: 0 };

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

    /// Begins with observing: whoever takes the example as it is refuses nobody.
    fn example() -> Listener {
        let mut listener = Listener::new("web", ListenAddress { ip: None, port: 80 });
        listener.mode = Mode::Observe;
        listener
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
        // In other places the first of the file has what both are about.
        self.location == other.location && self.address.conflicts(&other.address)
    }

    fn check(&self) -> Result<(), (&'static str, Fault)> {
        let counted = matches!(self.establish, Establish::Reserv | Establish::NoSynDrop);
        if self.queue == QueueOrder::Priority && !counted {
            let message = "with this establish each parking listener would be a queue of its own";
            let hint = "queue = \"priority\" goes with establish = \"reserv\" or \"no-syn-drop\"";
            return Err(("establish", Fault::new(message, hint)));
        }
        match self.location {
            Where::Here => Ok(()),
            _ => not_there_yet(self),
        }
    }

    fn lint(&self, given: &[&str]) -> Vec<String> {
        lint(self, given)
    }
}
