//! Heads of the tables of `weir status` that are not JSON fields, keys or counters. Fields have their text in
//! the schema (crate weir-api).

/// A number or a word of `weir status`, its `--json` or the metrics.
pub struct Column {
    /// Its head or field, with `_` for characters that are not letters.
    pub name: &'static str,
    /// What it is, in one line.
    pub text: &'static str,
    /// How to read it; may be empty.
    pub(super) note: &'static str,
}

const fn column(name: &'static str, text: &'static str, note: &'static str) -> Column {
    Column { name, text, note }
}

/// The test of `weir explain` holds it complete: it goes through a whole status and the metrics.
pub(super) static COLUMNS: &[Column] = &[
    // Listeners.
    column(
        "queue",
        "queue_length/queue_limit of a listener; of a proxy: its clients that wait for a connection to a backend, by priority",
        "See `weir explain queue_length`.",
    ),
    column(
        "over_rate",
        "Connections of the class that weir refused because they came over its rate",
        "The verdicts syn_dropped_rate and syn_reset_rate.",
    ),
    column(
        "over_controlled",
        "Connections of the class that weir refused because they came over controlled_rate, the controller's limit",
        "The verdicts syn_dropped_held and syn_reset_held.",
    ),
    column(
        "wait",
        "How long a connection that comes now will wait for accept(): the connections before it, times the measured time between accepts",
        "The longest wait of the listener's sockets; `-` until weir has measured one. admit = wait compares it with target_wait. wait_us in --json, wait_seconds in metrics. Of a QUIC listener: how long an attempt that comes now waits for the server's answer.",
    ),
    column(
        "socket",
        "One listening socket, where a listener has several",
        "",
    ),
    // QUIC listeners.
    column(
        "quic",
        "The name of a QUIC listener: of a [[quic]]",
        "Its sockets and settings are in `quic` of --json. docs/quic.md says how weir decides.",
    ),
    column(
        "buffer",
        "How full the receive buffer of a QUIC server's socket was when the last attempt came: buffer / buffer_limit",
        "The fullest of the QUIC listener's sockets. weir refuses over `room`.",
    ),
    // Classes.
    column(
        "settings",
        "The keys of the class that are set, besides priority, rate and burst",
        "As flags have them: from=10.1.0.0/16 to_port=443. Of a long list the first four, and how many more.",
    ),
    column(
        "class",
        "The name of a class: of a [[class]], or `other`",
        "The most specific rule that fits a connection decides its class: docs/classes.md.",
    ),
    column(
        "other",
        "The class of the connections that fit no rule, of priority 64: below all others",
        "It does not have a rate of its own, but the controller may hold it, and does so first. A class without from, to and ports gives it limits.",
    ),
    column(
        "waiting",
        "Connections of the class that wait before a server's own queue; of a proxy: clients that wait for a connection to a backend",
        "`-`: none of its listeners has queue = priority. The highest class waits in the server's own queue, where weir does not count by class unless the class has a queue_limit.",
    ),
    column(
        "controlled",
        "Connections/s to which the controller limits the class: controlled_rate",
        "`-`: the controller does not hold the class.",
    ),
    column(
        "admitted",
        "Connections that weir let in: syn_admitted and cookie_accepted; of a QUIC listener: attempts; of the controller: connections/s",
        "",
    ),
    column(
        "refused",
        "Connections that weir refused, without those over the rate of their class; of a proxy's queue: clients that found it full",
        "The verdicts below the table say why.",
    ),
    // The process and the guard.
    column(
        "counter",
        "The name of what a proxy counts",
        "`weir explain NAME` explains it.",
    ),
    column(
        "verdict",
        "What weir decided about a packet, and counted",
        "`weir explain NAME` says what to do about it.",
    ),
    column("count", "How often, since the start", ""),
    column(
        "count_s",
        "How often per second since the status before (--watch, weir top): the column count/s",
        "",
    ),
    column("text", "What the name before it means, in one line", ""),
    // The controller.
    column("syn_s", "SYNs per second, averaged: the column SYN/s", ""),
    column(
        "held_at",
        "Connections/s to which the controller limits the class, averaged: controlled_rate",
        "",
    ),
    column("because", "Why the controller holds the class", ""),
    column(
        "reason",
        "Why: of a decision, or of a class that the controller holds; as a key of [[listener]]: text in RSTs",
        "",
    ),
    // Proxies.
    column(
        "backend",
        "One server behind the proxy, its health and its connections",
        "",
    ),
    column(
        "mean_wait_ms",
        "The average wait of the clients that got a connection to a backend: wait_ns / served",
        "",
    ),
    // `weir top`.
    column(
        "target",
        "The wait that is to be kept: target_wait of the listener, or of the controller beside it",
        "Red columns of the chart are over it.",
    ),
    column(
        "admitted_s",
        "Connections let in per second, between the last two reports: the column admitted/s",
        "",
    ),
    column(
        "refused_s",
        "Connections turned away per second, between the last two reports: the column refused/s. In observe mode, those that would be",
        "",
    ),
    column(
        "mean_s",
        "Refusals of an address or a network per second, averaged over about half_life_s: the column mean/s",
        "The true figure may be less: see at_least. per_second in --json of `weir why --top`.",
    ),
    column(
        "last_verdict",
        "The verdict on the last connection of a source that was refused",
        "",
    ),
    column(
        "requests_s",
        "Requests and tunnels per second, between the last two reports; of a backend: connections opened and used again",
        "The column requests/s of weir top.",
    ),
    column(
        "failed_s",
        "Replies with a status of 500 and more per second; of a backend: connects that failed, and replies that broke or were late",
        "The column failed/s of weir top.",
    ),
    column(
        "p99",
        "The time within which 99 % of the requests were answered since the start; of a backend: within which its first byte came",
        "An estimate: exact to the range of times that are counted together.",
    ),
];
