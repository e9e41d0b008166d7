//! What `weir status` shows beside config keys and counters: columns, JSON fields, and their words.

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
        "queue_length",
        "Connections that wait for accept() / places in the listen queue, over all sockets of the listener",
        "The kernel takes one more than there are places: 5/4 is a full queue where it decides (establish = default or abort, mode = observe). reserv and no-syn-drop stop at 4/4.",
    ),
    column(
        "queue",
        "queue_length/queue_limit of a listener; of a proxy: its clients that wait for a connection to a backend, by priority",
        "See `weir explain queue_length`.",
    ),
    column(
        "over_rate",
        "Connections of the class that weir refused because they came over its rate or over controlled_rate",
        "The verdicts syn_dropped_rate and syn_reset_rate.",
    ),
    column(
        "half_open",
        "Handshakes under way: the kernel has answered their SYN, and their final ACK has not come yet",
        "With reserv each of them holds a place. Clients with a cookie do not hold one, and weir does not count them.",
    ),
    column(
        "wait",
        "How long a connection that comes now will wait for accept(): the connections before it, times the measured time between accepts",
        "The longest wait of the listener's sockets; `-` until weir has measured one. admit = wait compares it with target_wait. wait_us in --json, wait_seconds in metrics.",
    ),
    column(
        "wait_us",
        "The column wait, in microseconds; null until weir has measured it",
        "See `weir explain wait`.",
    ),
    column(
        "wait_seconds",
        "The column wait, in seconds: the metric",
        "See `weir explain wait`.",
    ),
    column(
        "policy",
        "What the listener does with a SYN, in words: establish, reject_syn, admit and its target_wait",
        "",
    ),
    column(
        "in_force",
        "Whether weir guards the listener: false while none of its interfaces exists",
        "",
    ),
    column(
        "listening",
        "Whether a socket listens at its address and port at the moment",
        "",
    ),
    column(
        "sockets",
        "The listening sockets of the listener: several with SO_REUSEPORT or several addresses",
        "",
    ),
    column(
        "socket",
        "One listening socket, where a listener has several",
        "",
    ),
    column(
        "mptcp",
        "The socket listens with MPTCP: cookies and parking do not work there",
        "`weir exec -- SERVER` starts a server without MPTCP.",
    ),
    column(
        "fallback",
        "The policy in force, where the configured one is not possible",
        "fallback_because says why.",
    ),
    column(
        "fallback_because",
        "Why the policy in force is not the configured one, and what would change that",
        "",
    ),
    column(
        "queue_way",
        "What orders the waiting connections: parking, exec or fifo",
        "parking: weir holds them before the server's own queue. exec: a process beside the server, started by `weir exec`, decides at each accept(). fifo: the kernel's order. queue_way_because says why it is not the configured one.",
    ),
    column(
        "queue_way_because",
        "Why the order of waiting connections is not that of queue = priority",
        "",
    ),
    column(
        "parked",
        "Connections that wait before the server's own queue at the moment (queue = priority)",
        "They are a part of queue_length. Those of the highest class go straight to the server's own queue.",
    ),
    column(
        "released",
        "Parked connections that weir has released to the server (queue = priority)",
        "",
    ),
    column(
        "overtook",
        "Connections that the server got before one that had come earlier: what the order by priority has changed",
        "0 of many: classes of higher priority never waited behind lower ones.",
    ),
    // Classes.
    column(
        "classes",
        "The classes of a listener, `other` last",
        "`weir class list` shows their settings too.",
    ),
    column(
        "classes_left_out",
        "How many classes of the listener status does not list",
        "Status lists 1000 classes of a listener, and its table 40; `weir class list` has all of them.",
    ),
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
        "controlled_rate",
        "Connections/s to which the controller limits the class; none: it does not hold the class",
        "The lower of it and the class's own rate holds. The controller renews it with each look; otherwise it expires after 5 s.",
    ),
    column(
        "controlled",
        "Connections/s to which the controller limits the class: controlled_rate",
        "`-`: the controller does not hold the class.",
    ),
    column(
        "admitted",
        "Connections that weir let in: syn_admitted and cookie_accepted; of the controller: connections/s",
        "",
    ),
    column(
        "refused",
        "Connections that weir refused, without those over the rate of their class; of a proxy's queue: clients that found it full",
        "The verdicts below the table say why.",
    ),
    // The process and the guard.
    column(
        "running",
        "Whether a weir guards this network namespace",
        "",
    ),
    column(
        "process",
        "The guard's process: pid, version, command, config",
        "",
    ),
    column("pid", "The process's id, in its own pid namespace", ""),
    column(
        "version",
        "The version of the running process; `weir --version` is that of the program on disk",
        "",
    ),
    column("command", "How the process was started: protect or run", ""),
    column(
        "config",
        "The config file of the process; null if it was started with flags",
        "",
    ),
    column(
        "namespace",
        "The inode number of the network namespace: `ls -Li /proc/PID/ns/net` shows it",
        "",
    ),
    column(
        "log_lost",
        "Lines of weir's log that were lost because the reader of its standard error was too slow",
        "weir does not wait for its log. The log itself says where lines are missing. access_log_lost counts those of a proxy's access log.",
    ),
    column(
        "index",
        "The interface's index in its network namespace",
        "",
    ),
    column(
        "xdp",
        "Whether the interface has the XDP front: refusals in the driver, before receive steering",
        "",
    ),
    column(
        "warnings",
        "What differs from the config: interfaces, the XDP front, addresses",
        "",
    ),
    column("listeners", "The listeners under guard", ""),
    column(
        "proxies",
        "The proxies, of all processes of this network namespace",
        "",
    ),
    column(
        "counters",
        "Verdicts or events, each by its name, since the start",
        "`weir explain` lists all of them; `weir status --all` shows zeros too.",
    ),
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
    column("text", "What the name before it means, in one line", ""),
    // The controller.
    column(
        "statistics",
        "What the controller sees: averages over `samples` intervals",
        "",
    ),
    column(
        "cpu",
        "Share of the machine's CPU time in use, averaged",
        "max_cpu bounds it.",
    ),
    column(
        "cgroup_cpu",
        "Share of the quota of the server's cgroup in use, averaged; absent without a quota",
        "max_cpu bounds it too.",
    ),
    column(
        "syns",
        "SYNs per second, averaged; retransmissions count too",
        "",
    ),
    column("syn_s", "SYNs per second, averaged: the column SYN/s", ""),
    column(
        "accepted",
        "Connections that the server accepts, per second, averaged",
        "",
    ),
    column(
        "capacity",
        "Connections per second that the server accepts while it is busy",
        "Until the server has been busy, weir knows only a lower bound.",
    ),
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
    column(
        "decisions",
        "The controller's last changes, oldest first, at most 512",
        "`weir explain controller` shows all of them.",
    ),
    column(
        "at_unix_ms",
        "When the controller decided, ms since 1970 UTC",
        "",
    ),
    column(
        "observed",
        "Whether the controller only reported a decision (mode = observe)",
        "",
    ),
    // Proxies.
    column(
        "state",
        "Of a proxy's thread: accepting, full, draining or ended",
        "full: max_clients are connected. draining: the thread serves the clients that it has and accepts no new ones.",
    ),
    column(
        "accepting",
        "Whether the proxy accepts clients; if not, it serves those that it has",
        "",
    ),
    column("clients", "Connections of clients now", ""),
    column(
        "connections",
        "Connections to all servers now: in_use and idle",
        "",
    ),
    column(
        "in_use",
        "Connections to servers that carry a request or are being established",
        "",
    ),
    column(
        "idle",
        "Connections to servers that wait for the next request",
        "",
    ),
    column(
        "backend",
        "One server behind the proxy, its health and its connections",
        "",
    ),
    column(
        "backend_up",
        "1 if the backend passes its health checks, else 0; absent without health checks: the metric",
        "",
    ),
    column(
        "last_check",
        "The result of the last health check; empty before the first",
        "",
    ),
    column(
        "falls",
        "How often the thread fell and was started again",
        "Not 0: please report what its log says.",
    ),
    column(
        "cache_memory",
        "What the proxy's cache holds: held_bytes of at most limit_bytes, and how many objects",
        "A reload may have replaced the cache; the old one counts until its clients have read their replies.",
    ),
    column(
        "held_bytes",
        "Bytes of the replies that the cache keeps, receives, or has evicted while a client reads them; cache_held_bytes in metrics",
        "",
    ),
    column(
        "limit_bytes",
        "The size of the cache: the key cache; cache_limit_bytes in metrics",
        "",
    ),
    column(
        "objects",
        "Replies that held_bytes counts; cache_objects in metrics",
        "",
    ),
    column("cache_held_bytes", "held_bytes of --json: the metric", ""),
    column("cache_limit_bytes", "limit_bytes of --json: the metric", ""),
    column("cache_objects", "objects of --json: the metric", ""),
    column(
        "times",
        "How long requests, connects and first bytes took since the proxy started, by their names",
        "weir counts ranges of time, so p50 and p99 are estimates: exact to the range, interpolated within it. In the metrics the names end in _seconds.",
    ),
    column("sum_us", "The sum of all times, in µs", ""),
    column("p50_us", "The median, in µs", ""),
    column("p99_us", "The 99th percentile, in µs", ""),
    column("ranges", "How many times fell into each range", ""),
    column(
        "up_to_us",
        "The longest time of the range, in µs; absent in the last one",
        "",
    ),
    column(
        "mean_wait_ms",
        "The average wait of the clients that got a connection to a backend: wait_ns / served",
        "",
    ),
];
