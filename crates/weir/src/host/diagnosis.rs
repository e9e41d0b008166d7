//! What `weir doctor` advises, as a pure function of what it saw.

use serde::Serialize;
use weir_config::SynCookies;
use weir_core::suggest::SMALL_BACKLOG;

use crate::host::ports::Ports;

/// How a finding is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, but something should be changed or known.
    Warn,
    /// Does not work here.
    No,
}

impl State {
    /// Its word in tables.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::No => "no",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The setting or object.
    pub name: String,
    /// How it is to be taken.
    pub state: State,
    /// What was found, and what follows from it.
    pub text: String,
    /// What to do; empty if nothing.
    pub hint: String,
    /// What the name ends with, where several objects are looked at in the same way.
    #[serde(skip)]
    pub object: Option<Object>,
}

/// One of several objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its own name.
    pub name: String,
    /// What it is one of, in the plural: `interfaces`, `sockets`.
    pub kind: &'static str,
}

impl Finding {
    /// Whether the two differ in their objects at most.
    fn same_but_for_object(&self, other: &Finding) -> bool {
        let kind = |finding: &Finding| finding.object.as_ref().map(|object| object.kind);
        (self.state, &self.text, &self.hint, kind(self))
            == (other.state, &other.text, &other.hint, kind(other))
            && self.topic() == other.topic()
    }

    /// The name without the object at its end.
    fn topic(&self) -> &str {
        let object = self.object.as_ref().map_or("", |object| &object.name);
        self.name.strip_suffix(object).unwrap_or(&self.name)
    }

    /// The name of a row that stands for so many findings like this one.
    pub fn name_for(&self, count: usize) -> String {
        match &self.object {
            Some(object) if count > 1 => format!("{}{count} {}", self.topic(), object.kind),
            _ => self.name.clone(),
        }
    }
}

/// Puts findings together that differ in their objects only; in the order of the first of each.
pub fn fold(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut folded: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match folded
            .iter_mut()
            .find(|like| like[0].same_but_for_object(finding))
        {
            Some(like) => like.push(finding),
            None => folded.push(vec![finding]),
        }
    }
    folded
}

/// What was seen on this machine; `None` is what could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `net.ipv4.tcp_syncookies`.
    pub syn_cookies: Option<u32>,
    /// `net.core.somaxconn`.
    pub somaxconn: Option<u32>,
    /// `net.core.netdev_max_backlog`.
    pub netdev_max_backlog: Option<u32>,
    /// `net.ipv4.tcp_abort_on_overflow`.
    pub abort_on_overflow: Option<u32>,
    /// Conntrack follows the connections of this network namespace.
    pub conntrack: bool,
    /// Packets that the CPUs' receive queues have dropped since boot, over all CPUs.
    pub receive_drops: Option<u64>,
    /// CPUs that are online.
    pub cpus: usize,
    /// Interfaces of real devices with their receive queues.
    pub receivers: Vec<Receiver>,
    /// Ends of veth pairs whose other end has no XDP program.
    pub lonely_veths: Vec<String>,
    /// `net.ipv4.tcp_tw_reuse`.
    pub tw_reuse: Option<u32>,
    /// `net.ipv4.tcp_rfc1337`.
    pub rfc1337: Option<u32>,
    /// Local ports that connect() chooses from; 0: not known.
    pub local_ports: u32,
    /// Who takes many of them.
    pub ports: Vec<Ports>,
    /// Listening sockets, or why they cannot be read.
    pub sockets: Result<Vec<Socket>, String>,
}

/// How an interface's packets get to the CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The interface.
    pub interface: String,
    /// Its receive queues.
    pub queues: usize,
    /// RPS is set on some queue.
    pub rps: bool,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Local address and port.
    pub address: String,
    /// The backlog in force.
    pub limit: u32,
    /// The name of the process that has it; `None` while not known.
    pub server: Option<String>,
    /// An MPTCP listener.
    pub mptcp: bool,
}

impl Socket {
    fn object(&self) -> Object {
        Object {
            name: self.address.clone(),
            kind: "sockets",
        }
    }
}

/// Everything there is to say about the machine.
pub fn advise(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![syn_cookies(facts)];
    findings.extend(facts.abort_on_overflow.map(abort_on_overflow));
    findings.extend(facts.conntrack.then(conntrack));
    findings.extend(facts.rfc1337.filter(|set| *set != 0).map(rfc1337));
    findings.push(receive_queues(facts));
    findings.extend(
        facts
            .receivers
            .iter()
            .map(|receiver| steering(receiver, facts)),
    );
    findings.extend(facts.lonely_veths.iter().map(|veth| xdp_on_veth(veth)));
    findings.extend(
        facts
            .ports
            .iter()
            .filter_map(|ports| local_ports(ports, facts)),
    );
    match &facts.sockets {
        Ok(sockets) => {
            findings.push(somaxconn(facts));
            findings.extend(sockets.iter().filter_map(|socket| backlog(socket, facts)));
            findings.extend(sockets.iter().filter(|socket| socket.mptcp).map(mptcp));
        }
        Err(cause) => findings.push(Finding {
            name: "listening sockets".into(),
            state: State::Warn,
            text: format!("not read: {cause}"),
            hint: "run it as root; the guard's own programs read them".into(),
            object: None,
        }),
    }
    findings
}

fn finding(name: &str, state: State, text: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding {
        name: name.to_owned(),
        state,
        text: text.into(),
        hint: hint.into(),
        object: None,
    }
}

/// A finding about one of several objects of a kind: `backlog of` a socket.
fn finding_about(
    what: &str,
    object: Object,
    state: State,
    text: impl Into<String>,
    hint: impl Into<String>,
) -> Finding {
    Finding {
        object: Some(object.clone()),
        ..finding(&format!("{what} {}", object.name), state, text, hint)
    }
}

fn interface(name: &str) -> Object {
    Object {
        name: name.to_owned(),
        kind: "interfaces",
    }
}

fn syn_cookies(facts: &Facts) -> Finding {
    let name = "tcp_syncookies";
    match facts.syn_cookies.and_then(SynCookies::from_sysctl) {
        Some(SynCookies::WhenNeeded) => finding(
            name,
            State::Ok,
            "1: reserv counts exactly, cookies are taken",
            "",
        ),
        Some(SynCookies::Never) => finding(
            name,
            State::Warn,
            "0: the kernel takes no cookie; no-syn-drop works as reserv, which has no \
             answer to a SYN flood",
            "sysctl -w net.ipv4.tcp_syncookies=1",
        ),
        Some(SynCookies::Always) => finding(
            name,
            State::Warn,
            "2: half-open connections hold no place in the listen queue, so reserv cannot count \
             them and is refused",
            "sysctl -w net.ipv4.tcp_syncookies=1, or establish = \"no-syn-drop\"",
        ),
        None => finding(
            name,
            State::Warn,
            "not there: this kernel has no SYN cookies; no-syn-drop works as reserv",
            "a kernel with CONFIG_SYN_COOKIES",
        ),
    }
}

fn abort_on_overflow(value: u32) -> Finding {
    let name = "tcp_abort_on_overflow";
    match value {
        0 => finding(name, State::Ok, "0: overflows are decided per listener", ""),
        _ => finding(
            name,
            State::Warn,
            "1: the kernel resets connections that find a listen queue full, on every port of the \
             namespace; a short burst is enough",
            "sysctl -w net.ipv4.tcp_abort_on_overflow=0, and establish = \"abort\" where it is wanted",
        ),
    }
}

fn conntrack() -> Finding {
    finding(
        "conntrack",
        State::Ok,
        "in use: rules follow connections here and may want to see each SYN, so weir leaves SYN cookies to the \
         kernel: reserv does so in a SYN flood, and no-syn-drop works as abort",
        "",
    )
}

fn rfc1337(value: u32) -> Finding {
    finding(
        "tcp_rfc1337",
        State::Ok,
        format!(
            "{value}: no RST ends TIME-WAIT here: this machine keeps that of clients' client-rst, and what negotiate is to \
             forget goes within a second"
        ),
        "",
    )
}

/// Packets lost there are lost before the guard: each SYN among them costs its client 1 s.
fn receive_queues(facts: &Facts) -> Finding {
    let name = "netdev_max_backlog";
    // The sysctl is visible in the first network namespace only; the drops are those of all.
    let limit = facts.netdev_max_backlog;
    let shown = limit.map_or_else(String::new, |limit| format!("{limit}: "));
    let Some(drops) = facts.receive_drops else {
        let hint = "is /proc mounted? /proc/net/softnet_stat has the receive queues' drops";
        return finding(
            name,
            State::Warn,
            format!("{shown}drops cannot be read"),
            hint,
        );
    };
    if drops == 0 {
        let text = format!("{shown}no packet was dropped before the guard since boot");
        return finding(name, State::Ok, text, "");
    }
    let wanted = limit.unwrap_or(0).saturating_mul(4).max(4096);
    finding(
        name,
        State::Warn,
        format!(
            "{shown}{drops} packets were dropped before the guard since boot, in all namespaces \
             (/proc/net/softnet_stat); each SYN among them costs its client 1 s"
        ),
        format!(
            "sysctl -w net.core.netdev_max_backlog={wanted}; steer receive work off the server's \
             core (rps_cpus); or front = \"xdp\", which refuses before that queue"
        ),
    )
}

fn steering(receiver: &Receiver, facts: &Facts) -> Finding {
    let Receiver {
        interface: name,
        queues,
        rps,
    } = receiver;
    let finding = |state, text, hint| {
        finding_about("receive steering of", interface(name), state, text, hint)
    };
    if *rps {
        return finding(
            State::Ok,
            "RPS is on: keep the server's core out of rps_cpus if it is busy".to_owned(),
            "",
        );
    }
    if *queues == 1 && facts.cpus > 1 {
        let text = format!(
            "one receive queue and no RPS: one of {} CPUs does all receive work, and a server on \
             that CPU competes with it",
            facts.cpus
        );
        let hint = "run the server on other CPUs, or set queues/rx-0/rps_cpus of the interface, \
                    below /sys/class/net";
        return finding(State::Warn, text, hint);
    }
    finding(State::Ok, format!("{queues} receive queues"), "")
}

fn xdp_on_veth(veth: &str) -> Finding {
    finding_about(
        "XDP front on",
        interface(veth),
        State::Warn,
        "veth whose other end has no XDP program: answers from XDP would be lost, so front = \
         \"xdp\" stays at tc ingress there",
        "with front = \"tc\" (the default) nothing is amiss; for \"xdp\" attach a native XDP \
         program to the other end, one that passes everything will do",
    )
}

/// A client that closes first keeps each port for 60 s.
fn local_ports(ports: &Ports, facts: &Facts) -> Option<Finding> {
    let Ports {
        from,
        to,
        taken,
        time_wait,
    } = ports;
    if *time_wait < facts.local_ports / 2 || facts.local_ports == 0 {
        return None;
    }
    let object = Object {
        name: to.to_string(),
        kind: "servers",
    };
    let text = format!(
        "{taken} of {} local ports from {from} to it are taken, {time_wait} of them by TIME-WAIT: connect() fails with \
         EADDRNOTAVAIL once all are",
        facts.local_ports
    );
    let hint = match facts.tw_reuse {
        Some(1) => {
            "keep connections open, or let the server close first; more source addresses or a wider \
             ip_local_port_range: docs/timewait.md"
        }
        _ => {
            "net.ipv4.tcp_tw_reuse = 1 lets connect() take ports in TIME-WAIT again, which is safe with timestamps; \
             docs/timewait.md compares the ways"
        }
    };
    Some(finding_about(
        "local ports to",
        object,
        State::Warn,
        text,
        hint,
    ))
}

fn somaxconn(facts: &Facts) -> Finding {
    match facts.somaxconn {
        Some(limit) if limit < SMALL_BACKLOG => finding(
            "somaxconn",
            State::Warn,
            format!("{limit}: no server of this namespace can have a longer listen queue"),
            "sysctl -w net.core.somaxconn=4096, then restart the servers",
        ),
        Some(limit) => finding(
            "somaxconn",
            State::Ok,
            format!("{limit}: upper limit of backlogs"),
            "",
        ),
        None => finding("somaxconn", State::Warn, "cannot be read here", ""),
    }
}

fn backlog(socket: &Socket, facts: &Facts) -> Option<Finding> {
    let small = small_backlog(socket.limit, facts.somaxconn, socket.server.as_deref())?;
    let (what, object) = ("backlog of", socket.object());
    Some(finding_about(
        what,
        object,
        State::Warn,
        small.text,
        small.hint,
    ))
}

/// A backlog that is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallBacklog {
    /// What follows from it.
    pub text: String,
    /// How it is raised.
    pub hint: String,
}

/// What is to be said of a backlog of `limit` places; `None` if it holds bursts. `server` is the name of the process
/// that listens.
pub fn small_backlog(
    limit: u32,
    somaxconn: Option<u32>,
    server: Option<&str>,
) -> Option<SmallBacklog> {
    if limit >= SMALL_BACKLOG {
        return None;
    }
    let hint = match somaxconn {
        Some(most) if limit >= most => {
            "sysctl -w net.core.somaxconn=4096, then restart the server".to_owned()
        }
        _ => larger_backlog(server),
    };
    Some(SmallBacklog {
        text: format!(
            "{limit}: too small for bursts (less than {SMALL_BACKLOG}); connections that the server \
             would serve a moment later are refused"
        ),
        hint,
    })
}

/// Name of a server's process → how it is given a larger backlog.
const LARGER_BACKLOG: [(&[&str], &str); 5] = [
    (
        &["nginx"],
        "nginx: `listen 80 backlog=4096;`, then restart it",
    ),
    (
        &["apache2", "httpd"],
        "Apache: `ListenBacklog 4096`, then restart it",
    ),
    (
        &["haproxy"],
        "HAProxy: `backlog 4096` in the frontend, then restart it",
    ),
    (
        &["node", "nodejs", "MainThread"],
        "Node: `server.listen({ port, backlog: 4096 })`, then restart it",
    ),
    (&["gunicorn", "uvicorn"], "start it with `--backlog 4096`"),
];

fn larger_backlog(server: Option<&str>) -> String {
    let its = LARGER_BACKLOG
        .iter()
        .find(|(names, _)| server.is_some_and(|server| names.contains(&server)));
    match its {
        Some((_, hint)) => (*hint).to_owned(),
        None => "call listen() with a larger backlog and restart the server (nginx `listen 80 \
                 backlog=4096`, Apache `ListenBacklog`, HAProxy `backlog`, Node `listen({ backlog })`; \
                 Go takes net.core.somaxconn)"
            .to_owned(),
    }
}

fn mptcp(socket: &Socket) -> Finding {
    finding_about(
        "MPTCP on",
        socket.object(),
        State::Warn,
        "the kernel takes no cookie from weir for MPTCP listeners: no-syn-drop refuses at the SYN \
         there, as reserv does; TIME-WAIT of MPTCP connections is left alone",
        "Go servers: GODEBUG=multipathtcp=0, or ListenConfig.SetMultipathTCP(false)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        Facts {
            syn_cookies: Some(1),
            somaxconn: Some(4096),
            netdev_max_backlog: Some(1000),
            abort_on_overflow: Some(0),
            conntrack: false,
            receive_drops: Some(0),
            cpus: 2,
            receivers: vec![Receiver {
                interface: "eth0".into(),
                queues: 2,
                rps: false,
            }],
            lonely_veths: Vec::new(),
            tw_reuse: Some(2),
            rfc1337: Some(0),
            local_ports: 28_232,
            ports: vec![ports(14_000)],
            sockets: Ok(vec![Socket {
                address: "0.0.0.0:80".into(),
                limit: 511,
                server: None,
                mptcp: false,
            }]),
        }
    }

    fn ports(time_wait: u32) -> Ports {
        Ports {
            from: "10.0.0.1".parse().unwrap(),
            to: "10.0.0.5:8080".parse().unwrap(),
            taken: time_wait + 20,
            time_wait,
        }
    }

    /// Names of the findings that are not ok.
    fn complaints(facts: &Facts) -> Vec<String> {
        let findings = advise(facts);
        let bad = findings
            .into_iter()
            .filter(|finding| finding.state != State::Ok);
        bad.inspect(|finding| assert!(!finding.hint.is_empty(), "{finding:?}"))
            .map(|finding| finding.name)
            .collect()
    }

    fn sockets(limit: u32, mptcp: bool) -> Facts {
        let socket = Socket {
            address: "0.0.0.0:80".into(),
            limit,
            server: None,
            mptcp,
        };
        Facts {
            sockets: Ok(vec![socket]),
            ..healthy()
        }
    }

    #[test]
    fn a_healthy_machine_has_no_complaint() {
        assert_eq!(complaints(&healthy()), Vec::<String>::new());
    }

    #[test]
    fn each_ailment_is_named_once() {
        let one = |interface: &str, rps| {
            let receiver = Receiver {
                interface: interface.into(),
                queues: 1,
                rps,
            };
            Facts {
                receivers: vec![receiver],
                ..healthy()
            }
        };
        let cases = [
            (
                Facts {
                    syn_cookies: Some(0),
                    ..healthy()
                },
                "tcp_syncookies",
            ),
            (
                Facts {
                    syn_cookies: Some(2),
                    ..healthy()
                },
                "tcp_syncookies",
            ),
            (
                Facts {
                    syn_cookies: None,
                    ..healthy()
                },
                "tcp_syncookies",
            ),
            (
                Facts {
                    abort_on_overflow: Some(1),
                    ..healthy()
                },
                "tcp_abort_on_overflow",
            ),
            (
                Facts {
                    receive_drops: Some(7),
                    ..healthy()
                },
                "netdev_max_backlog",
            ),
            (
                Facts {
                    somaxconn: Some(128),
                    ..healthy()
                },
                "somaxconn",
            ),
            (one("eth0", false), "receive steering of eth0"),
            (
                Facts {
                    lonely_veths: vec!["veth0".into()],
                    ..healthy()
                },
                "XDP front on veth0",
            ),
            (
                Facts {
                    ports: vec![ports(14_116)],
                    ..healthy()
                },
                "local ports to 10.0.0.5:8080",
            ),
            (
                Facts {
                    ports: vec![ports(28_000)],
                    tw_reuse: Some(1),
                    ..healthy()
                },
                "local ports to 10.0.0.5:8080",
            ),
            (sockets(128, false), "backlog of 0.0.0.0:80"),
            (sockets(511, true), "MPTCP on 0.0.0.0:80"),
            (
                Facts {
                    sockets: Err("no right".into()),
                    ..healthy()
                },
                "listening sockets",
            ),
        ];
        for (facts, name) in cases {
            assert_eq!(complaints(&facts), [name]);
        }
        assert!(complaints(&one("eth0", true)).is_empty());
        assert!(
            complaints(&Facts {
                cpus: 1,
                ..one("eth0", false)
            })
            .is_empty()
        );
    }

    #[test]
    fn findings_that_differ_in_their_objects_only_become_one_row() {
        let veths: Vec<String> = (0..9).map(|i| format!("veth{i}")).collect();
        let facts = Facts {
            lonely_veths: veths.clone(),
            ..sockets(128, true)
        };
        let findings = advise(&facts);
        let rows = fold(&findings);
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), findings.len());
        let folded: Vec<_> = rows.iter().filter(|row| row.len() > 1).collect();
        assert_eq!(folded.len(), 1);
        assert_eq!(folded[0][0].name_for(9), "XDP front on 9 interfaces");
        let objects: Vec<_> = folded[0]
            .iter()
            .filter_map(|f| f.object.as_ref())
            .map(|object| object.name.clone())
            .collect();
        assert_eq!(objects, veths);
    }

    #[test]
    fn a_finding_about_one_object_keeps_its_name() {
        let findings = advise(&sockets(128, false));
        let names: Vec<String> = fold(&findings)
            .iter()
            .map(|row| row[0].name_for(row.len()))
            .collect();
        assert!(
            names.contains(&"backlog of 0.0.0.0:80".to_owned()),
            "{names:?}"
        );
    }

    #[test]
    fn a_backlog_cut_by_somaxconn_is_told_apart() {
        let cut = Facts {
            somaxconn: Some(128),
            ..sockets(128, false)
        };
        let hint = |facts: &Facts| advise(facts).pop().unwrap().hint;
        assert!(hint(&cut).starts_with("sysctl -w net.core.somaxconn=4096"));
        assert!(hint(&sockets(128, false)).contains("backlog=4096"));
    }

    #[test]
    fn the_hint_about_a_small_backlog_is_for_the_server_that_has_it() {
        let hint = |server| small_backlog(128, Some(4096), Some(server)).unwrap().hint;
        for (server, words) in [
            ("nginx", "`listen 80 backlog=4096;`"),
            ("apache2", "`ListenBacklog 4096`"),
            ("httpd", "`ListenBacklog 4096`"),
            ("haproxy", "`backlog 4096`"),
            ("node", "backlog: 4096"),
            ("myserver", "Go takes net.core.somaxconn"),
        ] {
            assert!(hint(server).contains(words), "{server}: {}", hint(server));
        }
        assert_eq!(small_backlog(SMALL_BACKLOG, Some(4096), None), None);
    }
}
