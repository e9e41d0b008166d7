//! What `weir doctor` advises, as a pure function of what it saw.

use weir_config::{SynCookies, SynFilter};
use weir_core::suggest::SMALL_BACKLOG;

use crate::failure::Cause;
use crate::host::chains::Chain;
use crate::host::ports::Ports;
use crate::host::vrf;
use crate::show::describe;

mod finding;
mod queues;
mod socket;
mod udp;

pub use finding::{Finding, Object, State, fold};
use finding::{finding, finding_about};
use queues::{full_queue, long_queue};
pub use socket::{Guarded, Passage, Queue, Socket};
pub use udp::{Beside, Udp, larger_receive_buffer, small_receive_buffer};

/// What was seen on this machine; `None` is what could not be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// `net.ipv4.tcp_syncookies`.
    pub syn_cookies: Option<u32>,
    /// `net.core.somaxconn`.
    pub somaxconn: Option<u32>,
    /// `net.core.netdev_max_backlog`.
    pub netdev_max_backlog: Option<u32>,
    /// `net.ipv4.tcp_abort_on_overflow`.
    pub abort_on_overflow: Option<u32>,
    /// What could drop a SYN behind weir.
    pub syn_filters: Vec<SynFilter>,
    /// Packets that the CPUs' receive queues have dropped since boot, over all CPUs.
    pub receive_drops: Option<u64>,
    /// CPUs that are online.
    pub cpus: usize,
    /// Interfaces of real devices with their receive queues.
    pub receivers: Vec<Receiver>,
    /// What a packet meets on each interface before netfilter.
    pub chains: Vec<Chain>,
    /// Interfaces that a weir guards which is not of this network namespace.
    pub guarded_from_outside: Vec<String>,
    /// Ends of veth pairs whose other end has no XDP program.
    pub lonely_veths: Vec<String>,
    /// `net.ipv4.tcp_tw_reuse`.
    pub tw_reuse: Option<u32>,
    /// `net.ipv4.tcp_timestamps`, without which no port in TIME-WAIT is taken again.
    pub timestamps: Option<u32>,
    /// `net.ipv4.tcp_rfc1337`.
    pub rfc1337: Option<u32>,
    /// Local ports that connect() chooses from; 0: not known.
    pub local_ports: u32,
    /// Who takes many of them.
    pub ports: Vec<Ports>,
    /// `net.core.rmem_max`.
    pub rmem_max: Option<u32>,
    /// UDP sockets that are guarded, or whose process listens on the same port by TCP.
    pub udp: Vec<Udp>,
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

/// Everything there is to say about the machine: first what loses connections now, last what would be better, and is not the
/// trouble of this moment.
pub fn advise(facts: &Facts) -> Vec<Finding> {
    let sockets = facts.sockets.as_deref().unwrap_or_default();
    let full = sockets.iter().filter_map(full_queue);
    let mut findings: Vec<Finding> = full.chain(sockets.iter().filter_map(long_queue)).collect();
    findings.extend(guarded_from_outside(&facts.guarded_from_outside));
    findings.push(syn_cookies(facts));
    findings.extend(facts.abort_on_overflow.map(abort_on_overflow));
    findings.extend(packet_filters(&facts.syn_filters));
    findings.extend(facts.rfc1337.filter(|set| *set != 0).map(rfc1337));
    findings.extend(
        facts
            .receivers
            .iter()
            .map(|receiver| steering(receiver, facts)),
    );
    findings.extend(facts.chains.iter().filter_map(programs));
    findings.extend(
        facts
            .ports
            .iter()
            .filter_map(|ports| local_ports(ports, facts)),
    );
    match &facts.sockets {
        Ok(sockets) => {
            findings.push(somaxconn(facts));
            findings.extend(sockets.iter().filter(|socket| socket.mptcp).map(mptcp));
            findings.extend(sockets.iter().filter_map(in_vrf));
            findings.extend(sockets.iter().filter_map(without_priority));
        }
        Err(cause) => findings.push(Finding {
            name: "listening sockets".into(),
            state: State::Warn,
            text: format!("not read: {cause}"),
            hint: "run it as root; the guard's own programs read them".into(),
            queue: None,
            object: None,
        }),
    }
    findings.extend(
        facts
            .udp
            .iter()
            .flat_map(|udp| udp::advise(udp, facts.rmem_max)),
    );
    // Of a queue in trouble it is said already that more places would not help.
    let (idle, busy): (Vec<_>, Vec<_>) = sockets.iter().partition(|socket| socket.is_idle());
    let busy = busy
        .into_iter()
        .filter(|socket| full_queue(socket).is_none() && long_queue(socket).is_none());
    findings.extend(busy.chain(idle).filter_map(|socket| backlog(socket, facts)));
    findings.push(receive_queues(facts));
    findings.extend(facts.lonely_veths.iter().map(|veth| xdp_on_veth(veth)));
    findings
}

fn interface(name: &str) -> Object {
    Object {
        name: name.to_owned(),
        kind: "interfaces",
    }
}

/// Each of two guards would refuse on its own.
fn guarded_from_outside(interfaces: &[String]) -> Option<Finding> {
    let names: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| {
        finding(
            "guard",
            State::Ok,
            format!(
                "a weir outside of this network namespace guards it: its programs are on {}",
                describe::examples(&names)
            ),
            "start no second weir here; `weir status` where that one runs, as on the host, says which ports it guards",
        )
    })
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

/// Some are missed without root: nothing is said of what cannot be read.
fn packet_filters(filters: &[SynFilter]) -> Option<Finding> {
    let names: Vec<String> = filters.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| {
        finding(
            "packet filters",
            State::Ok,
            format!(
                "could drop a SYN behind weir, so it leaves SYN cookies to the kernel (reserv does so in a SYN flood, \
                 no-syn-drop works as abort): {}",
                describe::examples(&names)
            ),
            "",
        )
    })
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

/// The programs and filters of an interface in their order, where weir stands, and who stands before it.
fn programs(chain: &Chain) -> Option<Finding> {
    let line = chain.line()?;
    let (state, hint) = match chain.before_weir() {
        [] => (State::Ok, String::new()),
        [first, ..] => (
            State::Warn,
            format!(
                "weir sees only what {} hands on (TCX_NEXT); `weir reload`, or weir started anew, goes first again",
                first.name
            ),
        ),
    };
    let object = interface(&chain.interface);
    Some(finding_about("programs on", object, state, line, hint))
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

/// Whether connect() takes ports in TIME-WAIT to this server again, after a second.
fn takes_time_wait_again(ports: &Ports, facts: &Facts) -> bool {
    let is_loopback = ports.from.is_loopback() && ports.to.ip().is_loopback();
    let is_set = match facts.tw_reuse {
        Some(1) => true,
        // Its default: where both ends are on the loopback.
        Some(2) => is_loopback,
        _ => false,
    };
    is_set && facts.timestamps != Some(0)
}

/// A client that closes first keeps each port for 60 s.
fn local_ports(ports: &Ports, facts: &Facts) -> Option<Finding> {
    let Ports {
        from,
        to,
        taken,
        time_wait,
    } = ports;
    let reuses = takes_time_wait_again(ports, facts);
    let (held, open) = (*taken, taken - time_wait);
    let unusable = if reuses { open } else { held };
    if unusable < facts.local_ports / 2 || facts.local_ports == 0 {
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
    let hint = match reuses || *time_wait < open {
        true => {
            "more source addresses (`source` of a [[proxy]]) or a wider net.ipv4.ip_local_port_range, or fewer connections \
             at once: docs/timewait.md"
        }
        false => {
            "net.ipv4.tcp_tw_reuse = 1 lets connect() take ports in TIME-WAIT again, which is safe with timestamps \
             (net.ipv4.tcp_timestamps = 1); docs/timewait.md compares the ways"
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
        "nginx: `listen 80 backlog=4096;`, then `nginx -s reload`",
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

fn in_vrf(socket: &Socket) -> Option<Finding> {
    let Cause { message, hint } = vrf::cause(socket.vrf.as_ref()?);
    let object = socket.object();
    Some(finding_about("VRF of", object, State::Warn, message, hint))
}

fn without_priority(socket: &Socket) -> Option<Finding> {
    let because = socket.guarded.as_ref()?.fifo_because.as_ref()?;
    Some(finding_about(
        "priority at",
        socket.object(),
        State::Warn,
        format!("the server accepts in the kernel's order (fifo), not by priority: {because}"),
        "`weir exec` orders the queue of a server without parking its connections",
    ))
}

#[cfg(test)]
mod tests;
