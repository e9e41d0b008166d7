//! UDP sockets of servers that may speak QUIC (HTTP/3): what is set badly, and what is guarded by halves.

use weir_core::suggest::quic::SMALL_RECEIVE_BUFFER;
use weir_core::units::about_size;

use crate::host::diagnosis::finding::{Finding, Object, State, finding_about};

/// A UDP socket without a peer; of several that are bound to one address, all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Udp {
    /// Local address and port.
    pub address: String,
    /// That port.
    pub port: u16,
    /// Bytes that its receive buffer takes, the smallest of several; `None` where the kernel does not say.
    pub receive_buffer: Option<u32>,
    /// Datagrams that it has dropped.
    pub drops: u32,
    /// The name of the process that has it; `None` while not known.
    pub server: Option<String>,
    /// The name of the QUIC listener that guards it.
    pub guarded: Option<String>,
    /// The TCP server at the same port.
    pub tcp: Option<Beside>,
}

/// A TCP server at the port of a UDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// It is the process that has the UDP socket.
    pub is_same: bool,
    /// The name of the listener that guards it.
    pub guarded: Option<String>,
}

impl Udp {
    /// Whether its server hardly has the socket for anything but QUIC.
    pub fn may_be_quic(&self) -> bool {
        self.guarded.is_some() || self.tcp.as_ref().is_some_and(|tcp| tcp.is_same)
    }

    /// `0.0.0.0:443 (nginx)`
    fn object(&self) -> Object {
        let server = self.server.as_ref();
        let server = server.map_or(String::new(), |server| format!(" ({server})"));
        Object {
            name: format!("{}{server}", self.address),
            kind: "UDP sockets",
        }
    }
}

/// What there is to say of such a socket. `rmem_max`: `net.core.rmem_max`.
pub fn advise(udp: &Udp, rmem_max: Option<u32>) -> Vec<Finding> {
    let findings = [
        receive_buffer(udp, rmem_max),
        guarded_by_udp_only(udp),
        guarded_by_tcp_only(udp),
        floods(udp),
    ];
    findings.into_iter().flatten().collect()
}

fn receive_buffer(udp: &Udp, rmem_max: Option<u32>) -> Option<Finding> {
    let small = small_receive_buffer(udp.receive_buffer?, rmem_max, udp.server.as_deref())?;
    let lost = match udp.drops {
        0 => String::new(),
        drops => format!("; {drops} datagrams were lost so far"),
    };
    Some(finding_about(
        "receive buffer of",
        udp.object(),
        State::Warn,
        small.text + &lost,
        small.hint,
    ))
}

/// A receive buffer that is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallBuffer {
    /// What follows from it.
    pub text: String,
    /// How it is raised.
    pub hint: String,
}

/// What is to be said of a UDP socket's receive buffer of so many bytes; `None`: it holds bursts. `server` is the name of the
/// process that has it.
pub fn small_receive_buffer(
    bytes: u32,
    rmem_max: Option<u32>,
    server: Option<&str>,
) -> Option<SmallBuffer> {
    (bytes < SMALL_RECEIVE_BUFFER).then(|| SmallBuffer {
        text: format!(
            "{}: too small for bursts of new QUIC connections (less than 1 MiB). Datagrams that find no room are lost, also those \
             of established connections",
            about_size(bytes.into())
        ),
        hint: larger_receive_buffer(SMALL_RECEIVE_BUFFER, rmem_max, server),
    })
}

/// How a server's receive buffer is raised to so many bytes, whole MiB. A server gets no more than `rmem_max` by asking for it;
/// the kernel then takes twice as much.
pub fn larger_receive_buffer(bytes: u32, rmem_max: Option<u32>, server: Option<&str>) -> String {
    let first = match rmem_max {
        Some(most) if most >= bytes => String::new(),
        _ => format!("sysctl -w net.core.rmem_max={bytes}, then "),
    };
    let nginx = format!("`listen 443 quic rcvbuf={}m;`", bytes >> 20);
    let its = match server {
        Some("nginx") => format!("{nginx} in nginx"),
        Some("caddy") => return format!("{first}restart caddy: it asks for 7 MiB by itself"),
        Some("haproxy") => {
            format!("`tune.rcvbuf.frontend {bytes}` in the global section of HAProxy")
        }
        _ => format!(
            "have the server ask for more (nginx: {nginx}, HAProxy: `tune.rcvbuf.frontend`; quic-go asks by itself), or raise \
             net.core.rmem_default"
        ),
    };
    format!("{first}{its}; restart it")
}

/// Whom weir refuses by UDP comes by TCP.
fn guarded_by_udp_only(udp: &Udp) -> Option<Finding> {
    let (Some(guarded), Some(Beside { guarded: None, .. })) = (&udp.guarded, &udp.tcp) else {
        return None;
    };
    Some(finding_about(
        "TCP beside",
        udp.object(),
        State::Warn,
        format!(
            "port {} is guarded by UDP only, as {guarded}: clients that weir refuses there take TCP, which nothing guards",
            udp.port
        ),
        format!(
            "add a [[listener]] with address = \"*:{}\" to the config file",
            udp.port
        ),
    ))
}

fn guarded_by_tcp_only(udp: &Udp) -> Option<Finding> {
    let beside = udp.tcp.as_ref().filter(|_| udp.guarded.is_none())?;
    let guarded = beside.guarded.as_ref().filter(|_| beside.is_same)?;
    Some(finding_about(
        "UDP beside",
        udp.object(),
        State::Warn,
        format!(
            "port {} is guarded by TCP only, as {guarded}: the same process has a UDP socket there, and new QUIC connections \
             (HTTP/3) are not held to what it can answer",
            udp.port
        ),
        format!(
            "if it speaks QUIC, add a [[quic]] with address = \"*:{0}\" to the config file; `weir protect {0}` guards both",
            udp.port
        ),
    ))
}

/// What a server has against Initials with made-up addresses. Its config weir does not read.
fn floods(udp: &Udp) -> Option<Finding> {
    let (text, hint) = match udp.server.as_deref().filter(|_| udp.may_be_quic())? {
        "nginx" => (
            "weir is no defence against floods of new QUIC connections from made-up addresses, and does not read nginx's config",
            "`quic_retry on;` in the server block has nginx work only for clients that receive what is sent to their address",
        ),
        "haproxy" => (
            "by default hardly anything limits how many QUIC handshakes HAProxy has under way, and weir does not read its config",
            "`backlog 32` on the bind line of QUIC limits them (not on that of TCP, whose listen queue it would be)",
        ),
        _ => return None,
    };
    Some(finding_about(
        "QUIC at",
        udp.object(),
        State::Ok,
        text,
        hint,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nginx() -> Udp {
        Udp {
            address: "0.0.0.0:443".into(),
            port: 443,
            receive_buffer: Some(2 << 20),
            drops: 0,
            server: Some("nginx".into()),
            guarded: Some("quic-443".into()),
            tcp: Some(Beside {
                is_same: true,
                guarded: Some("port-443".into()),
            }),
        }
    }

    fn findings(udp: Udp) -> Vec<Finding> {
        advise(&udp, Some(212_992))
    }

    #[test]
    fn a_small_receive_buffer_is_warned_of_with_how_it_is_raised_for_this_server() {
        let small = Udp {
            receive_buffer: Some(212_992),
            drops: 7,
            ..nginx()
        };
        let found = &findings(small)[0];
        assert_eq!(found.name, "receive buffer of 0.0.0.0:443 (nginx)");
        assert_eq!(found.state, State::Warn);
        assert!(
            found.text.starts_with("208.0 KiB: too small for bursts"),
            "{found:?}"
        );
        assert!(
            found.text.ends_with("7 datagrams were lost so far"),
            "{found:?}"
        );
        assert_eq!(
            found.hint,
            "sysctl -w net.core.rmem_max=1048576, then `listen 443 quic rcvbuf=1m;` in nginx; restart it"
        );
        let small = |server| {
            small_receive_buffer(1000, Some(4 << 20), server)
                .unwrap()
                .hint
        };
        assert!(small(Some("haproxy")).starts_with("`tune.rcvbuf.frontend"));
        assert!(small(Some("caddy")).starts_with("restart caddy"));
        assert!(small(None).contains("rmem_default"));
        assert_eq!(small_receive_buffer(1 << 20, None, None), None);
        let unknown = Udp {
            receive_buffer: None,
            ..nginx()
        };
        assert_eq!(findings(unknown).len(), 1);
    }

    #[test]
    fn a_port_that_is_guarded_by_halves_is_warned_of_either_way() {
        let names = |udp: Udp| -> Vec<String> {
            let warned = findings(udp).into_iter();
            let warned = warned.filter(|finding| finding.state == State::Warn);
            warned.map(|finding| finding.name).collect()
        };
        assert_eq!(names(nginx()), [""; 0]);
        let tcp = |is_same, guarded: Option<&str>| {
            let guarded = guarded.map(str::to_owned);
            Some(Beside { is_same, guarded })
        };
        let udp_only = Udp {
            tcp: tcp(true, None),
            ..nginx()
        };
        assert_eq!(names(udp_only.clone()), ["TCP beside 0.0.0.0:443 (nginx)"]);
        let other_process = Udp {
            tcp: tcp(false, None),
            ..udp_only.clone()
        };
        assert_eq!(names(other_process).len(), 1, "its clients go there too");
        let no_tcp = Udp {
            tcp: None,
            ..nginx()
        };
        assert_eq!(names(no_tcp), [""; 0]);
        let tcp_only = Udp {
            guarded: None,
            ..nginx()
        };
        assert_eq!(names(tcp_only.clone()), ["UDP beside 0.0.0.0:443 (nginx)"]);
        let of_another = Udp {
            tcp: tcp(false, Some("port-443")),
            ..tcp_only
        };
        assert_eq!(names(of_another), [""; 0], "it may be any service");
        let neither = Udp {
            guarded: None,
            ..udp_only
        };
        assert_eq!(names(neither), [""; 0]);
    }

    #[test]
    fn of_nginx_it_says_what_helps_against_floods() {
        let found = findings(nginx()).remove(0);
        assert_eq!(found.state, State::Ok);
        assert!(found.hint.starts_with("`quic_retry on;`"), "{found:?}");
    }
}
