//! The words of the policy enums: one spelling each in `weir.toml`, in flags and in status.

use crate::class::OverRate;
use crate::listener::{Admit, Establish, Front, HalfClose, Mode, QueueOrder, RejectSyn};
use crate::proxy;
use crate::quic::QuicRefuse;
use crate::shape::Backend;
use crate::timewait::{Accept, Holder, ListenerTimeWait, TimeWaitMode};

/// One word of a setting and its one-line text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordInfo<T: 'static> {
    /// The value that the word stands for.
    pub value: T,
    /// How it is written.
    pub word: &'static str,
    /// What it does, in one line.
    pub text: &'static str,
}

/// A setting that is one of a few words.
pub trait Word: Copy + PartialEq + Sized + Send + Sync + 'static {
    /// All words, in the order in which help and docs list them.
    const WORDS: &'static [WordInfo<Self>];

    /// How this value is written.
    fn word(self) -> &'static str {
        // Every value has its row: the test `every_value_has_a_word` holds it.
        Self::WORDS
            .iter()
            .find(|row| row.value == self)
            .map_or("?", |row| row.word)
    }

    /// The value that is written like this, if any.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find(|row| row.word == word)
            .map(|row| row.value)
    }
}

/// A row of [`Word::WORDS`].
const fn row<T>(value: T, word: &'static str, text: &'static str) -> WordInfo<T> {
    WordInfo { value, word, text }
}

impl Word for Establish {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            Establish::Default,
            "default",
            "as the kernel does: drop SYNs and final ACKs silently while a queue is full",
        ),
        row(
            Establish::Abort,
            "abort",
            "reset a connection whose final ACK finds the queue full",
        ),
        row(
            Establish::Reserv,
            "reserv",
            "answer a SYN only after reserving a place in the listen queue",
        ),
        row(
            Establish::NoSynDrop,
            "no-syn-drop",
            "answer every SYN, by a cookie while the queue is full; decide at the final ACK",
        ),
    ];
}

impl Word for OverRate {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            OverRate::Drop,
            "drop",
            "nothing; the client retransmits after 1 s, and again and again",
        ),
        row(
            OverRate::Rst,
            "rst",
            "a RST; connect() fails at once with ECONNREFUSED",
        ),
    ];
}

impl Word for TimeWaitMode {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            TimeWaitMode::Off,
            "off",
            "nothing: the end that closes first is in TIME-WAIT",
        ),
        row(
            TimeWaitMode::ClientRst,
            "client-rst",
            "a RST ends the TIME-WAIT of a server that has closed first; a record here stands for it",
        ),
        row(
            TimeWaitMode::Negotiate,
            "negotiate",
            "the ends agree at the handshake which of them holds TIME-WAIT; both need weir",
        ),
    ];
}

impl Word for ListenerTimeWait {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            ListenerTimeWait::Off,
            "off",
            "nothing: the end that closes first is in TIME-WAIT",
        ),
        row(
            ListenerTimeWait::Negotiate,
            "negotiate",
            "the listener chooses at the handshake which end holds TIME-WAIT; both need weir",
        ),
    ];
}

impl Word for Holder {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(Holder::Client, "client", "the client"),
        row(Holder::Server, "server", "the server, which is this end"),
    ];
}

impl Word for Accept {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(Accept::Any, "any", "the end that the server chooses"),
        row(
            Accept::Server,
            "server",
            "the server; where it chooses the client, connect() fails with ECONNREFUSED",
        ),
        row(
            Accept::Client,
            "client",
            "the client, which is this end; where the server chooses itself, connect() fails likewise",
        ),
        row(
            Accept::None,
            "none",
            "no end: connect() to a server that negotiates fails likewise",
        ),
    ];
}

impl Word for Backend {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            Backend::Auto,
            "auto",
            "tc; where the kernel lacks one of its qdiscs, bpf",
        ),
        row(
            Backend::Tc,
            "tc",
            "qdiscs of the kernel under an HTB, with a BPF classifier",
        ),
        row(
            Backend::Bpf,
            "bpf",
            "one qdisc in BPF; Linux 6.16 with CONFIG_NET_SCH_BPF",
        ),
    ];
}

impl Word for RejectSyn {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            RejectSyn::Drop,
            "drop",
            "nothing; the client retransmits after 1 s, and again and again",
        ),
        row(
            RejectSyn::Rst,
            "rst",
            "a RST; connect() fails at once with ECONNREFUSED",
        ),
    ];
}

impl Word for Admit {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            Admit::Queue,
            "queue",
            "refuse while every place is taken or reserved",
        ),
        row(
            Admit::Wait,
            "wait",
            "refuse also while the queue's standing wait exceeds target_wait",
        ),
    ];
}

impl Word for QueueOrder {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            QueueOrder::Fifo,
            "fifo",
            "the connection that has waited longest",
        ),
        row(
            QueueOrder::Priority,
            "priority",
            "the connection of the highest class; weir parks the others in front of the server",
        ),
    ];
}

impl Word for HalfClose {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            HalfClose::Keep,
            "keep",
            "half-close the connection, as TCP specifies",
        ),
        row(HalfClose::Reset, "reset", "reset the connection (rst-fin)"),
    ];
}

impl Word for Mode {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(Mode::Enforce, "enforce", "carry out what weir decides"),
        row(
            Mode::Observe,
            "observe",
            "count what weir would do, and change nothing",
        ),
    ];
}

impl Word for QuicRefuse {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            QuicRefuse::Vn,
            "vn",
            "a Version Negotiation packet; the client gives up at once, and browsers take HTTP/2",
        ),
        row(
            QuicRefuse::Drop,
            "drop",
            "nothing; the client repeats its Initial and gives up after seconds",
        ),
    ];
}

impl Word for Front {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            Front::Tc,
            "tc",
            "at tc ingress, after receive steering; works on every device",
        ),
        row(
            Front::Xdp,
            "xdp",
            "refuse also at XDP in the driver, before receive steering",
        ),
    ];
}

impl Word for proxy::ProxyMode {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::ProxyMode::Forward,
            "forward",
            "connect where the client says: absolute URI, CONNECT",
        ),
        row(
            proxy::ProxyMode::Reverse,
            "reverse",
            "send each HTTP request to a backend",
        ),
        row(
            proxy::ProxyMode::Tcp,
            "tcp",
            "connect each client to a backend, whatever the bytes mean",
        ),
    ];
}

impl Word for proxy::Engine {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::Engine::Auto,
            "auto",
            "copy for short transfers, splice for long ones",
        ),
        row(
            proxy::Engine::Copy,
            "copy",
            "one receive and one send through a buffer",
        ),
        row(proxy::Engine::Splice, "splice", "splice(2) through a pipe"),
        row(
            proxy::Engine::Sockmap,
            "sockmap",
            "as auto, and move tunnels of short messages inside the kernel; needs root",
        ),
    ];
}

impl Word for proxy::Balance {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(proxy::Balance::Turn, "turn", "one after the other"),
        row(
            proxy::Balance::Least,
            "least",
            "the one with the fewest connections in use",
        ),
    ];
}

impl Word for proxy::HealthCheck {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::HealthCheck::Off,
            "off",
            "never: every backend counts as up",
        ),
        row(
            proxy::HealthCheck::Tcp,
            "tcp",
            "by establishing a connection",
        ),
        row(
            proxy::HealthCheck::Http,
            "http",
            "by a GET, whose reply must have health_status",
        ),
    ];
}

impl Word for proxy::SendProxy {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(proxy::SendProxy::Off, "off", "none"),
        row(proxy::SendProxy::V1, "v1", "one line of text"),
        row(proxy::SendProxy::V2, "v2", "binary"),
    ];
}

impl Word for proxy::Forwarded {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::Forwarded::Off,
            "off",
            "none; fields that clients send pass",
        ),
        row(
            proxy::Forwarded::XForwardedFor,
            "x-forwarded-for",
            "X-Forwarded-For: 192.0.2.1",
        ),
        row(
            proxy::Forwarded::Forwarded,
            "forwarded",
            "Forwarded: for=192.0.2.1 (RFC 7239)",
        ),
    ];
}

impl Word for proxy::OddFieldNames {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::OddFieldNames::Drop,
            "drop",
            "the server does not get them",
        ),
        row(proxy::OddFieldNames::Pass, "pass", "they pass as they came"),
    ];
}

impl Word for proxy::AcceptClientClose {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(
            proxy::AcceptClientClose::Off,
            "off",
            "501, as to a method that is not implemented",
        ),
        row(
            proxy::AcceptClientClose::On,
            "on",
            "no reply; weir closes behind the client, which is in TIME-WAIT then",
        ),
        row(
            proxy::AcceptClientClose::Ask,
            "ask",
            "as on; before it ends, weir also asks clients that know CLIENT_CLOSE to close",
        ),
    ];
}

impl Word for proxy::SendClientClose {
    const WORDS: &'static [WordInfo<Self>] = &[
        row(proxy::SendClientClose::Off, "off", "never"),
        row(
            proxy::SendClientClose::Asked,
            "asked",
            "on connections that their server has asked weir to close",
        ),
        row(
            proxy::SendClientClose::Always,
            "always",
            "on each connection that weir closes while it carries no request",
        ),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_are_distinct_and_read_back<T: Word + std::fmt::Debug>(values: &[T]) {
        assert_eq!(T::WORDS.len(), values.len());
        for value in values {
            assert_eq!(T::from_word(value.word()), Some(*value));
        }
    }

    #[test]
    fn every_value_has_a_word() {
        use Establish::*;
        words_are_distinct_and_read_back(&[Default, Abort, Reserv, NoSynDrop]);
        words_are_distinct_and_read_back(&[RejectSyn::Drop, RejectSyn::Rst]);
        words_are_distinct_and_read_back(&[Admit::Queue, Admit::Wait]);
        words_are_distinct_and_read_back(&[QueueOrder::Fifo, QueueOrder::Priority]);
        words_are_distinct_and_read_back(&[HalfClose::Keep, HalfClose::Reset]);
        words_are_distinct_and_read_back(&[Mode::Enforce, Mode::Observe]);
        words_are_distinct_and_read_back(&[Front::Tc, Front::Xdp]);
        words_are_distinct_and_read_back(&[QuicRefuse::Vn, QuicRefuse::Drop]);
        words_are_distinct_and_read_back(&[
            TimeWaitMode::Off,
            TimeWaitMode::ClientRst,
            TimeWaitMode::Negotiate,
        ]);
        words_are_distinct_and_read_back(&[ListenerTimeWait::Off, ListenerTimeWait::Negotiate]);
        words_are_distinct_and_read_back(&[Holder::Client, Holder::Server]);
        words_are_distinct_and_read_back(&[
            Accept::Any,
            Accept::Server,
            Accept::Client,
            Accept::None,
        ]);
        words_are_distinct_and_read_back(&[Backend::Auto, Backend::Tc, Backend::Bpf]);
        use proxy::{Engine, ProxyMode::*};
        words_are_distinct_and_read_back(&[Forward, Reverse, Tcp]);
        use proxy::{Balance, Forwarded, HealthCheck, OddFieldNames, SendProxy};
        words_are_distinct_and_read_back(&[HealthCheck::Off, HealthCheck::Tcp, HealthCheck::Http]);
        words_are_distinct_and_read_back(&[Balance::Turn, Balance::Least]);
        words_are_distinct_and_read_back(&[SendProxy::Off, SendProxy::V1, SendProxy::V2]);
        words_are_distinct_and_read_back(&[OddFieldNames::Drop, OddFieldNames::Pass]);
        use proxy::{AcceptClientClose, SendClientClose};
        words_are_distinct_and_read_back(&[
            AcceptClientClose::Off,
            AcceptClientClose::On,
            AcceptClientClose::Ask,
        ]);
        words_are_distinct_and_read_back(&[
            SendClientClose::Off,
            SendClientClose::Asked,
            SendClientClose::Always,
        ]);
        words_are_distinct_and_read_back(&[
            Forwarded::Off,
            Forwarded::XForwardedFor,
            Forwarded::Forwarded,
        ]);
        words_are_distinct_and_read_back(&[
            Engine::Auto,
            Engine::Copy,
            Engine::Splice,
            Engine::Sockmap,
        ]);
    }

    #[test]
    fn unknown_words_are_none() {
        assert_eq!(Establish::from_word("reserve"), None);
    }
}
