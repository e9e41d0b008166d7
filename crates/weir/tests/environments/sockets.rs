//! Servers with other kinds of listening sockets.

use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weir_testbed::needs::{self, lacking};
use weir_testbed::sockets::{SILENCE, listen_in_group, within};
use weir_testbed::sys::{self, TcpOption};

use crate::bed::{
    BACKLOG, Bed, PORT, SERVER, Weir, assert_untouched, at, holds, holds_by, nft, open,
    protect_fails, without_and_with,
};
use crate::load::{self, Workers};

/// Two workers, each with a queue of its own.
#[test]
fn reuseport_group() {
    let Some(bed) = Bed::new() else { return };
    let any = format!("[::]:{PORT}").parse().unwrap();
    let sockets = (0..2).map(|_| listen_in_group(&bed.server, any, BACKLOG / 2));
    let _server = Workers::start(sockets.collect());
    let to = at(SERVER, PORT);
    holds(
        "SO_REUSEPORT group",
        &bed.client,
        &to,
        &[(&bed.server, PORT)],
    );
}

/// The server's socket takes connections of one device only.
#[test]
fn bind_to_device() {
    let Some(bed) = Bed::new() else { return };
    let socket = open(&bed.server, PORT);
    within(&bed.server, || {
        SockRef::from(&socket).bind_device(Some(b"u0"))
    })
    .unwrap();
    let _server = Workers::start(vec![socket]);
    let to = at(SERVER, PORT);
    holds("SO_BINDTODEVICE", &bed.client, &to, &[(&bed.server, PORT)]);
}

/// accept() has a connection only once its client has sent something: until then it is half-open.
#[test]
fn defer_accept() {
    let Some(bed) = Bed::new() else { return };
    let socket = open(&bed.server, PORT);
    let seconds = 5u32.to_ne_bytes();
    sys::set_tcp_option(&socket, TcpOption::DeferAccept, &seconds).unwrap();
    let _server = Workers::start(vec![socket]);
    let (to, guarded) = (at(SERVER, PORT), [(&bed.server, PORT)]);
    let seen = without_and_with("TCP_DEFER_ACCEPT", &bed.client, &to, &guarded, &load::plain);
    let over = seen.over;
    assert!(
        seen.without.silent + seen.without.late > 0,
        "{}",
        seen.without
    );
    assert_untouched(&seen.light);
    assert_eq!((over.silent, over.failed), (0, 0), "{over}");
    assert!(over.refused > over.served / 2, "{over}");
}

/// The SYN carries the request, and the server's SYN/ACK follows the first cookie.
#[test]
fn fast_open() {
    let Some(bed) = Bed::new() else { return };
    for netns in [&bed.client, &bed.server] {
        netns.set_sysctl("net.ipv4.tcp_fastopen", "3").unwrap();
    }
    let socket = open(&bed.server, PORT);
    let places = (BACKLOG as u32).to_ne_bytes();
    sys::set_tcp_option(&socket, TcpOption::FastOpen, &places).unwrap();
    let _server = Workers::start(vec![socket]);
    let to = at(SERVER, PORT);
    holds_by(
        "TCP Fast Open",
        &bed.client,
        &to,
        &[(&bed.server, PORT)],
        &by_fast_open,
    );
    let counted = weir_testbed::bed::Counters::read(&bed.server).unwrap();
    assert!(counted.get("TcpExt.TCPFastOpenPassive") > 0, "{counted:?}");
}

fn tcp(to: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // connect() and the first write wait for so long.
    socket.set_write_timeout(Some(SILENCE))?;
    Ok(socket)
}

/// connect() returns at once, and the SYN goes with the first write.
fn by_fast_open(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = tcp(to)?;
    sys::set_tcp_option(&socket, TcpOption::FastOpenConnect, &1u32.to_ne_bytes())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Segments that are not signed are as if they had not come: weir's RST too, since weir has no key.
#[test]
fn md5_signatures() {
    signed("TCP-MD5", "CONFIG_TCP_MD5SIG", TcpOption::Md5);
}

#[test]
fn authentication_option() {
    signed("TCP-AO", "CONFIG_TCP_AO", TcpOption::Ao);
}

fn signed(name: &str, option: &str, kind: TcpOption) {
    let Some(bed) = Bed::new() else { return };
    let to = at(SERVER, PORT);
    let sockets: Vec<TcpListener> = to
        .iter()
        .map(|to| weir_testbed::sockets::listen(&bed.server, *to, BACKLOG))
        .collect();
    for (socket, peer) in sockets.iter().zip(at(["10.70.0.2", "fd70::2"], 0)) {
        if sys::set_tcp_option(socket, kind, &kind.key_for(peer)).is_err() {
            return lacking(option);
        }
    }
    let _server = Workers::start(sockets);
    let signing = |to: SocketAddr| {
        let socket = tcp(to)?;
        sys::set_tcp_option(&socket, kind, &kind.key_for(to))?;
        socket.connect(&to.into()).map_err(silence)?;
        Ok(socket.into())
    };
    let guarded = [(&bed.server, PORT)];
    let seen = without_and_with(name, &bed.client, &to, &guarded, &signing);
    let over = seen.over;
    assert_untouched(&seen.light);
    assert!(over.served > 0 && over.silent > 0, "{over}");
    assert_eq!((over.refused, over.failed), (0, 0), "{over}");
}

/// What connect() says when its time is over.
fn silence(error: std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(nix::libc::EINPROGRESS) => std::io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// A transparent proxy takes connections to port 80 of any address on its socket on port 8080. The SYN names port 80,
/// on which no socket listens.
#[test]
fn tproxy_passes() {
    if !needs::programs(&["nft"]) {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let proxy = &bed.server;
    let to = at(SERVER, 80);
    let sockets: Vec<TcpListener> = at(["0.0.0.0", "::"], PORT)
        .into_iter()
        .map(|any| {
            let socket = within(proxy, || {
                Socket::new(Domain::for_address(any), Type::STREAM, None)
            })
            .unwrap();
            setsockopt(&socket, sockopt::IpTransparent, &true).unwrap();
            if any.is_ipv6() {
                socket.set_only_v6(true).unwrap();
            }
            socket.bind(&any.into()).unwrap();
            socket.listen(BACKLOG).unwrap();
            socket.into()
        })
        .collect();
    let _server = Workers::start(sockets);
    nft(
        proxy,
        "table inet steer {
           chain in {
             type filter hook prerouting priority mangle;
             meta nfproto ipv4 tcp dport 80 tproxy ip to :8080 meta mark set 1 accept
             meta nfproto ipv6 tcp dport 80 tproxy ip6 to :8080 meta mark set 1 accept
           }
         }",
    );
    proxy
        .ip_batch(
            "rule add fwmark 1 lookup 100
         -6 rule add fwmark 1 lookup 100
         route add local default dev lo table 100
         -6 route add local default dev lo table 100",
        )
        .unwrap();
    let client = &bed.client;
    load::ready(client, &to, &load::plain);
    let said = protect_fails(proxy, 80);
    assert!(said.contains("nothing listens on *:80"), "{said}");
    for port in [80, PORT] {
        let weir = Weir::guard(proxy, port);
        let light = load::light(client, &to, &load::plain);
        let over = load::overload(client, &to, &load::plain);
        println!(
            "TPROXY, weir on {port}: light load {light}; overload {over}; {:?}",
            weir.verdicts()
        );
        assert_untouched(&light);
        assert!(
            over.silent > 0 && over.refused == 0 && over.failed == 0,
            "{over}"
        );
        load::ready(client, &to, &load::plain);
    }
}
