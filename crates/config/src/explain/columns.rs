//! What `weir status` shows beside config keys and counters: columns, JSON fields, and their words.

/// A number or a word of `weir status`, its `--json` or the metrics.
pub struct Column {
    /// Its head or field, with `_` for what is no letter.
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
        "Connections of the class that came over its rate, or over controlled_rate, and were turned away",
        "The verdicts syn_dropped_rate and syn_reset_rate.",
    ),
    column(
        "half_open",
        "Handshakes under way: the kernel has answered their SYN, and their final ACK has not come yet",
        "With reserv each of them holds a place. Clients that hold a cookie hold none and are not counted.",
    ),
    column(
        "wait",
        "How long a connection that comes now will wait for accept(): those before it, times the measured time between accepts",
        "The longest of the listener's sockets; `-` as long as nothing has been measured. admit = wait compares it with target_wait. wait_us in --json, wait_seconds in metrics.",
    ),
    column(
        "wait_us",
        "The column wait, in microseconds; null while not known",
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
        "Whether the listener is guarded: false while none of its interfaces exists",
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
        "The policy in place of the one that was asked for and is not possible here",
        "fallback_because says why.",
    ),
    column(
        "fallback_because",
        "Why the policy is another than was asked for, and what would change that",
        "",
    ),
    column(
        "queue_way",
        "How waiting connections are put in order: parking, exec or fifo",
        "parking: weir holds them before the server's own queue. exec: a process beside the server, started by `weir exec`, decides at each accept(). fifo: the kernel's order. queue_way_because says why it is not as asked.",
    ),
    column(
        "queue_way_because",
        "Why waiting connections are not put in order as queue = priority asks",
        "",
    ),
    column(
        "parked",
        "Connections that wait before the server's own queue at the moment (queue = priority)",
        "They are a part of queue_length. Those of the highest class go straight to the server's own queue.",
    ),
    column(
        "released",
        "Parked connections that went to the server so far (queue = priority)",
        "",
    ),
    column(
        "overtook",
        "Connections that went to the server before one that had come earlier: what the order by priority has changed",
        "0 of many: no class of higher priority had to wait behind a lower one.",
    ),
    // Classes.
    column(
        "classes",
        "The classes of a listener, `other` last",
        "`weir class list` shows their settings too.",
    ),
    column(
        "classes_left_out",
        "How many classes the listener has besides those that status lists",
        "Status lists 1000 of a listener and its table 40; `weir class list` has all.",
    ),
    column(
        "settings",
        "The keys of the class that are set, besides priority, rate and burst",
        "As flags have them: from=10.1.0.0/16 to_port=443. Of a long list the first four, and how many more.",
    ),
    column(
        "class",
        "The name of a class: of a [[class]], or `other`",
        "The most specific rule that fits a connection decides which class it is of: docs/classes.md.",
    ),
    column(
        "other",
        "The class of the connections that no rule fits, of priority 64: below all others",
        "It has no rate of its own, but the controller may hold it, and first of all. Give it limits by a class without from, to and ports.",
    ),
    column(
        "waiting",
        "Connections of the class that wait before a server's own queue; of a proxy: clients that wait for a connection to a backend",
        "`-`: no listener of the class has queue = priority. The highest class waits in the server's own queue, where nobody is counted by class, unless it has a queue_limit.",
    ),
    column(
        "controlled_rate",
        "Connections/s that the controller lets come of the class; none: it holds it not",
        "The lower of it and the class's own rate holds. Renewed with each look of the controller; without that it expires after 5 s.",
    ),
    column(
        "controlled",
        "Connections/s that the controller lets come of the class: controlled_rate",
        "`-`: the controller does not hold the class.",
    ),
    column(
        "admitted",
        "Connections that were let in: syn_admitted and cookie_accepted; of the controller: connections/s",
        "",
    ),
    column(
        "refused",
        "Connections that were turned away, but for those over the rate of their class; of a proxy's queue: for which a full queue had no room",
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
        "The process that guards: pid, version, command, config",
        "",
    ),
    column("pid", "The process's id, as it sees it itself", ""),
    column(
        "version",
        "The version of the running process; `weir --version` is that of the program on disk",
        "",
    ),
    column("command", "How the process was started: protect or run", ""),
    column(
        "config",
        "The config file of the process; null: it has flags only",
        "",
    ),
    column(
        "namespace",
        "The inode number of the network namespace: `ls -Li /proc/PID/ns/net` shows it",
        "",
    ),
    column(
        "log_lost",
        "Lines of weir's log that were lost: whoever reads its standard error did not in time",
        "weir does not wait for its log. The log itself says where lines are missing. Those of a proxy's access log: access_log_lost.",
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
        "Where weir stands otherwise than asked: interfaces, the XDP front, addresses",
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
        "What was decided about a packet, and counted",
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
        "Share of the machine's CPU time that is used, averaged",
        "max_cpu bounds it.",
    ),
    column(
        "cgroup_cpu",
        "Share of the quota of the server's cgroup that is used, averaged; absent without a quota",
        "max_cpu bounds it too.",
    ),
    column(
        "syns",
        "SYNs that came, per second, averaged; repeated ones too",
        "",
    ),
    column(
        "syn_s",
        "SYNs that came, per second, averaged: the column SYN/s",
        "",
    ),
    column(
        "accepted",
        "Connections that the server accepts, per second, averaged",
        "",
    ),
    column(
        "capacity",
        "Connections per second that the server accepts while it is busy",
        "Of one that was never busy only a lower bound is seen.",
    ),
    column(
        "held_at",
        "Connections/s that the controller lets come of the class, averaged: controlled_rate",
        "",
    ),
    column("because", "Why the controller holds the class", ""),
    column(
        "reason",
        "Why: of a decision or of a class that is held; as a key of [[listener]]: text in RSTs",
        "",
    ),
    column(
        "decisions",
        "What the controller changed last, oldest first, 512 at most",
        "`weir explain controller` shows all of them.",
    ),
    column(
        "at_unix_ms",
        "When the controller decided, ms since 1970 UTC",
        "",
    ),
    column(
        "observed",
        "Whether a decision was only told (mode = observe)",
        "",
    ),
    // Proxies.
    column(
        "state",
        "Of a proxy's thread: accepting, full, draining or ended",
        "full: max_clients are connected. draining: it serves those that it has and takes no more.",
    ),
    column(
        "accepting",
        "Whether the proxy takes clients; if not, it serves those that it has",
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
        "Connections to servers that carry something, or are being made",
        "",
    ),
    column(
        "idle",
        "Connections to servers that are kept for the next request",
        "",
    ),
    column(
        "backend",
        "One server behind the proxy, its health and its connections",
        "",
    ),
    column(
        "backend_up",
        "1 if the backend passes its health checks, else 0; absent if it is not checked: the metric",
        "",
    ),
    column(
        "last_check",
        "What the last health check came to; empty if there was none",
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
        "Settings that a reload has replaced may have had another cache; it counts as long as its clients read.",
    ),
    column(
        "held_bytes",
        "Bytes of what the cache keeps, is receiving, and has evicted under a reader; cache_held_bytes in metrics",
        "",
    ),
    column(
        "limit_bytes",
        "The most that the cache holds: the key cache; cache_limit_bytes in metrics",
        "",
    ),
    column(
        "objects",
        "Replies that the cache holds, likewise; cache_objects in metrics",
        "",
    ),
    column("cache_held_bytes", "held_bytes of --json: the metric", ""),
    column("cache_limit_bytes", "limit_bytes of --json: the metric", ""),
    column("cache_objects", "objects of --json: the metric", ""),
    column(
        "times",
        "How long requests, connects and first bytes took since the proxy began, by their names",
        "Ranges of time are counted, so p50 and p99 are estimates: exact to the range, spread evenly within it. In the metrics the names end in _seconds.",
    ),
    column("sum_us", "How long all of them together took, in µs", ""),
    column("p50_us", "Half of them took no longer, in µs", ""),
    column("p99_us", "99 of 100 took no longer, in µs", ""),
    column("ranges", "How many fell into each range of time", ""),
    column(
        "up_to_us",
        "The longest time of the range, in µs; left out of the last one",
        "",
    ),
    column(
        "mean_wait_ms",
        "How long those waited on average who got a connection to a backend: wait_ns / served",
        "",
    ),
];
