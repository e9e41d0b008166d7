//! The man pages: what clap knows of a command, and what it does not: examples, files, exit status, other pages.

use std::io;

use clap::Command;

/// Section of the pages: 8, system administration, since most commands need root.
pub const SECTION: &str = "8";
/// Name of the page of the config file, and its section: 5, file formats.
pub const CONFIG: (&str, &str) = ("weir.toml", "5");

/// An example: the command line, and what it does.
type Example = (&'static str, &'static str);

/// Examples of each command; `weir` is the page of them all.
const EXAMPLES: [(&str, &[Example]); 20] = [
    (
        "weir",
        &[
            (
                "weir doctor",
                "Say what this kernel supports, and what is set badly.",
            ),
            (
                "weir protect 80 --observe",
                "Count what weir would do on port 80, and change nothing.",
            ),
            ("weir protect 80", "Protect port 80 until Ctrl-C."),
            (
                "weir run --config /etc/weir/weir.toml",
                "Protect the listeners of a file, as the service does.",
            ),
            (
                "weir status --watch",
                "Show queues, waits and refusals, again every second.",
            ),
        ],
    ),
    (
        "protect",
        &[
            ("weir protect 80 443", "Protect two ports until Ctrl-C."),
            (
                "weir protect all --observe",
                "Count what weir would do for every TCP server, also for those that start later.",
            ),
            (
                "weir protect 80 --establish no-syn-drop",
                "For clients that repeat their SYN after a RST.",
            ),
            (
                "nsenter -t PID --net weir protect 80",
                "Protect a server in the network namespace of a process.",
            ),
        ],
    ),
    (
        "run",
        &[(
            "weir run --config /etc/weir/weir.toml",
            "Protect the listeners of the file until a signal.",
        )],
    ),
    (
        "reload",
        &[
            (
                "weir reload",
                "Have the guard and the proxies read their files again.",
            ),
            (
                "weir reload web || test $? -eq 5",
                "Reload the process that has the listener web; a listener may wait for its interface.",
            ),
        ],
    ),
    (
        "observe",
        &[(
            "weir observe --for 10m; weir reload",
            "Refuse nobody for 10 minutes, or until the second command.",
        )],
    ),
    (
        "proxy",
        &[
            (
                "weir proxy --listen 127.0.0.1:3128 --mode forward",
                "An HTTP proxy for this machine.",
            ),
            (
                "weir proxy --listen '*:8080' --mode reverse --backend 10.0.0.2:80 --backend 10.0.0.3:80",
                "Two backends behind one address.",
            ),
            (
                "weir proxy --config /etc/weir/weir.toml --take-over",
                "Take the sockets of the running proxies over.",
            ),
        ],
    ),
    (
        "exec",
        &[(
            "weir exec -- ./server --port 80",
            "Start a server whose accept() is ordered by class.",
        )],
    ),
    (
        "check",
        &[
            (
                "weir check /etc/weir/weir.toml",
                "Check a file and print the values in effect.",
            ),
            (
                "weir check --example > weir.toml",
                "Get a commented file to start from.",
            ),
        ],
    ),
    (
        "status",
        &[
            ("weir status --explain", "Say what each verdict means."),
            (
                "weir status --watch 5",
                "Show it every five seconds, with rates.",
            ),
            (
                "weir status --json | jq '.listeners[].counters.syn_reset_wait'",
                "Read one counter of each listener.",
            ),
        ],
    ),
    (
        "top",
        &[
            ("weir top", "Watch this machine; `?` shows the keys."),
            (
                "weir top --once --sort wait",
                "Print where connections wait longest, for a script or a mail.",
            ),
            (
                "ssh -NL /tmp/web1.sock:/run/weir/api.sock root@web1 & weir top --api /tmp/web1.sock",
                "Watch another host, whose [api] has socket = \"/run/weir/api.sock\".",
            ),
        ],
    ),
    (
        "events",
        &[
            ("weir events --follow", "Show what happens, as it happens."),
            (
                "weir events --kind overload --json | jq .episode",
                "Read the figures of each overload.",
            ),
        ],
    ),
    (
        "why",
        &[
            ("weir why 203.0.113.7", "Say why this client was refused."),
            ("weir why --top", "Show who is refused most at present."),
        ],
    ),
    (
        "suggest",
        &[
            (
                "weir suggest",
                "Suggest settings, with the reasons as comments.",
            ),
            (
                "weir suggest --config /etc/weir/weir.toml > new.toml",
                "Write the file anew with the suggestions in it.",
            ),
            (
                "weir suggest --least 1h --json | jq '.listeners[].profile'",
                "Read the figures of an hour or more.",
            ),
        ],
    ),
    (
        "class",
        &[
            ("weir class list", "Show the classes in force."),
            (
                "weir class add crawler --from 192.0.2.0/24 --rate 20",
                "Limit a group of clients to 20 connections/s until the next reload.",
            ),
            ("weir class set crawler --rate none", "Lift the limit."),
        ],
    ),
    ("detach", &[("weir detach", "Take all protection off.")]),
    (
        "doctor",
        &[("weir doctor", "Look at this machine; it changes nothing.")],
    ),
    (
        "explain",
        &[
            (
                "weir explain syn_reset_wait",
                "Say what a counter counts and what to do about it.",
            ),
            (
                "weir explain rst",
                "List the names that have RST in their text.",
            ),
        ],
    ),
    (
        "trace",
        &[
            (
                "weir trace monday.pcap.zst",
                "Show how often SYNs and other segments are sent again, and after how long.",
            ),
            (
                "tcpdump -i eth0 -s 96 -w - tcp | weir trace -",
                "The same of the traffic of an interface, until Ctrl-C.",
            ),
            (
                "weir trace --json in.pcap out.pcap | jq '.directions[].syn_rtx_probability'",
                "Read one figure of two captures, one of each direction.",
            ),
        ],
    ),
    (
        "model",
        &[(
            "weir model --rtt 50ms --loss 0.02 --syn-loss 0.1",
            "Show what a lost SYN costs connections of 25 to 10 000 segments.",
        )],
    ),
    ("help", &[]),
];

const FILES: [(&str, &str); 4] = [
    (
        "/etc/weir/weir.toml",
        "The config file of the packaged units.",
    ),
    (
        "/run/weir/net-NAMESPACE.sock",
        "The control socket of the guard of a network namespace; NAMESPACE is its inode number.",
    ),
    (
        "/run/weir/net-NAMESPACE.lock",
        "Its lock, with the process id of the guard.",
    ),
    (
        "/run/weir/proxy-NAMESPACE-PID.sock",
        "The control socket of a process of proxies.",
    ),
];

const EXIT_STATUS: [(&str, &str); 7] = [
    ("0", "Done."),
    ("1", "It failed."),
    (
        "2",
        "The command line or the config file is wrong; nothing has changed.",
    ),
    ("3", "This kernel or its settings do not allow it."),
    ("4", "No weir runs in this network namespace."),
    (
        "5",
        "The file is in force, but some listener is guarded nowhere.",
    ),
    ("6", "No refusal of this client is kept (why)."),
];

/// The page of a command, `name` as in `weir-status`; `others` are the names of all pages.
pub fn page(name: &str, command: &Command, others: &[String]) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone().version(env!("CARGO_PKG_VERSION")));
    man.title(name.to_uppercase())
        .section(SECTION)
        .render(&mut page)?;
    let own = name.strip_prefix("weir-").unwrap_or(name);
    // clap_mangen's head for what clap shows after the options.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA", ".SH NOTES");
    let (before, version) = match page.find("\n.SH VERSION") {
        Some(at) => page.split_at(at + 1),
        None => (page.as_str(), ""),
    };
    let mut text = before.to_owned();
    let examples = EXAMPLES.iter().find(|(command, _)| *command == own);
    if let Some((_, examples)) = examples.filter(|(_, examples)| !examples.is_empty()) {
        text += ".SH EXAMPLES\n";
        text += &terms(examples);
    }
    text += ".SH FILES\n";
    text += &terms(&FILES);
    text += ".SH \"EXIT STATUS\"\n";
    text += &terms(&EXIT_STATUS);
    text += ".SH \"SEE ALSO\"\n";
    let others: Vec<String> = others.iter().filter(|o| *o != name).cloned().collect();
    let config = format!("\\fB{}\\fR({})", CONFIG.0, CONFIG.1);
    text += &format!("{}, {config}\n", references(&others));
    Ok((text + version).into_bytes())
}

/// What to read besides: the pages of the commands with these names, and others.
pub fn references(commands: &[String]) -> String {
    let of_command = |name: &String| format!("\\fB{}\\fR({SECTION})", escaped(name));
    let others = [("nft", 8), ("ss", 8), ("tcp", 7)];
    let others = others.map(|(name, section)| format!("\\fB{name}\\fR({section})"));
    let pages: Vec<String> = commands.iter().map(of_command).chain(others).collect();
    pages.join(", ")
}

/// Tagged paragraphs.
fn terms(terms: &[(&str, &str)]) -> String {
    let one = |(term, text): &(&str, &str)| {
        format!(".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(text))
    };
    terms.iter().map(one).collect()
}

/// As roff shows it literally.
pub fn escaped(text: &str) -> String {
    let text = text
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq");
    match text.starts_with('.') {
        true => format!("\\&{text}"),
        false => text,
    }
}
