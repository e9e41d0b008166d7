//! The QUIC peers do what tests of the guard take for granted: they connect and echo, wait where they say, give up in time, and
//! end at once where a Version Negotiation packet refuses them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::quic::{Outcome, QuicServer, QuicServerKind, Request, Steady, attempt, crowd};
use weir_testbed::sockets::within;
use weir_testbed::wait::{PATIENCE, Stops, until};

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const AT_ONCE: QuicServerKind = QuicServerKind::QueuesInside {
    service: Duration::ZERO,
};

fn start(netns: &Netns, address: impl Into<SocketAddr>, kind: QuicServerKind) -> QuicServer {
    QuicServer::start(netns, address.into(), kind).unwrap()
}

#[test]
fn clients_connect_and_echo_with_servers_of_both_kinds_and_families() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let service = Duration::from_millis(5);
    let kinds = [
        QuicServerKind::QueuesInside { service },
        QuicServerKind::QueuesInSocket {
            service,
            receive_buffer_bytes: 1 << 20,
        },
    ];
    for kind in kinds {
        for address in [SocketAddr::from(LOOPBACK), (Ipv6Addr::LOCALHOST, 0).into()] {
            let server = start(&netns, address, kind);
            let outcome = attempt(&netns, server.address(), PATIENCE).unwrap();
            let Outcome::Connected {
                after,
                mut connection,
            } = outcome
            else {
                panic!("{kind:?} at {address}: {outcome:?}");
            };
            assert!(
                after >= service,
                "{kind:?}: the worker takes its time: {after:?}"
            );
            connection.echo(PATIENCE).unwrap();
            connection.echo(PATIENCE).unwrap();
            assert_eq!(server.accepted(), 1);
        }
    }
}

#[test]
fn a_server_that_is_slower_than_its_crowd_makes_clients_time_out() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let service = Duration::from_millis(150);
    let kinds = [
        QuicServerKind::QueuesInside { service },
        // Twice that is what the kernel takes: four Initials.
        QuicServerKind::QueuesInSocket {
            service,
            receive_buffer_bytes: 4 * 2304 / 2,
        },
    ];
    for kind in kinds {
        let server = start(&netns, LOOPBACK, kind);
        let established = attempt(&netns, server.address(), PATIENCE).unwrap();
        let mut established = established.connected();
        let timeout = Duration::from_millis(1500);
        let result = crowd(&netns, server.address(), 40.0, 1.0, timeout).unwrap();
        assert!(!result.connected.is_empty(), "{kind:?}: {result:?}");
        // In 2.5 s it serves no more than 17.
        assert!(result.connected.len() <= 17, "{kind:?}: {result:?}");
        assert_eq!(
            result.connected.len() + result.timed_out,
            40,
            "{kind:?}: {result:?}"
        );
        assert!(result.connected.iter().all(|after| *after >= service));
        // The established connection outlives the crowd.
        established.echo(PATIENCE).unwrap();
        assert!(server.accepted() > result.connected.len() as u64);
    }
}

#[test]
fn connections_end_with_their_server() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let server = start(&netns, LOOPBACK, AT_ONCE);
    let outcome = attempt(&netns, server.address(), PATIENCE).unwrap();
    let mut connection = outcome.connected();
    let address = server.address();
    drop(server);
    let error = connection.echo(PATIENCE).unwrap_err().to_string();
    assert!(error.contains("it has ended"), "{error}");
    // Its socket is closed too.
    let outcome = attempt(&netns, address, PATIENCE).unwrap();
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
}

#[test]
fn an_attempt_ends_with_its_patience() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    // It reads nothing.
    let mute = within(&netns, || UdpSocket::bind(LOOPBACK).unwrap());
    let address = mute.local_addr().unwrap();
    let outcome = attempt(&netns, address, Duration::from_millis(50)).unwrap();
    assert!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
}

#[test]
fn a_version_negotiation_packet_ends_attempts_at_once() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let refuser = Refuser::start(&netns);
    // Of several, so that a busy machine does not make all late.
    let afters = (0..5).map(
        |_| match attempt(&netns, refuser.address, PATIENCE).unwrap() {
            Outcome::VersionRefused { after } => after,
            other => panic!("{other:?}"),
        },
    );
    let fastest = afters.min().unwrap();
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
    let result = crowd(&netns, refuser.address, 100.0, 0.5, PATIENCE).unwrap();
    assert_eq!(result.version_refused.len(), 50, "{result:?}");
    assert_eq!(result.clients(), 50, "{result:?}");
}

#[test]
fn steady_connections_are_asked_beside_a_crowd() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let server = start(&netns, LOOPBACK, AT_ONCE);
    let steady = Steady {
        to: server.address(),
        connections: 5,
        every: Duration::from_millis(50),
        late_after: PATIENCE,
        lost_after: PATIENCE,
        request: Request::echo(b"still there"),
    };
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = scope.spawn(|| steady.run(&netns, &stop, move || ready.send(()).unwrap()));
        let stops = Stops(&stop);
        is_ready.recv_timeout(PATIENCE).unwrap();
        let result = crowd(&netns, server.address(), 20.0, 0.5, PATIENCE).unwrap();
        assert_eq!(result.connected.len(), 10, "{result:?}");
        drop(stops);
        thread.join().unwrap().unwrap()
    });
    assert!(result.requests >= 5, "{result:?}");
    assert_eq!(result.in_time, result.requests, "{result:?}");
    assert_eq!(server.accepted(), 15);
}

#[test]
fn steady_connections_need_no_stop_once_all_have_ended() {
    let Some(netns) = needs::namespace("quic") else {
        return;
    };
    let server = start(&netns, LOOPBACK, AT_ONCE);
    let steady = Steady {
        to: server.address(),
        connections: 3,
        every: Duration::from_millis(50),
        late_after: PATIENCE,
        lost_after: PATIENCE,
        request: Request::echo(b"still there"),
    };
    let never = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let stops = Stops(&never);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = scope.spawn(|| steady.run(&netns, &never, move || ready.send(()).unwrap()));
        is_ready.recv_timeout(PATIENCE).unwrap();
        drop(server);
        until("they have ended", || thread.is_finished().then_some(()));
        drop(stops);
        thread.join().unwrap().unwrap()
    });
    assert_eq!(result.ended, 3, "{result:?}");
}

/// Answers each Initial with a Version Negotiation packet that offers a reserved version only (RFC 9000, 6.3, 17.2.1).
struct Refuser {
    address: SocketAddr,
    socket: UdpSocket,
    thread: Option<JoinHandle<()>>,
}

/// Ends the refuser's thread.
const END: &[u8] = b"end";

impl Refuser {
    fn start(netns: &Netns) -> Refuser {
        let socket = within(netns, || UdpSocket::bind(LOOPBACK).unwrap());
        let address = socket.local_addr().unwrap();
        let own = socket.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            loop {
                let (length, from) = own.recv_from(&mut datagram).unwrap();
                if &datagram[..length] == END {
                    break;
                }
                // A client that has gone by now answers with ICMP.
                let _ = own.send_to(&version_negotiation(&datagram[..length]), from);
            }
        });
        Refuser {
            address,
            socket,
            thread: Some(thread),
        }
    }
}

impl Drop for Refuser {
    fn drop(&mut self) {
        self.socket.send_to(END, self.address).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn version_negotiation(initial: &[u8]) -> Vec<u8> {
    const LONG_HEADER: u8 = 0x80;
    const NEGOTIATION: [u8; 4] = [0; 4];
    const RESERVED: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
    /// Flags and version.
    const BEFORE_IDS: usize = 5;
    let (destination, rest) = connection_id(&initial[BEFORE_IDS..]);
    let (source, _) = connection_id(rest);
    let mut packet = vec![LONG_HEADER];
    packet.extend(NEGOTIATION);
    for id in [source, destination] {
        packet.push(id.len() as u8);
        packet.extend(id);
    }
    packet.extend(RESERVED);
    packet
}

/// A connection id behind its length, and what follows.
fn connection_id(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = bytes.split_first().unwrap();
    rest.split_at(usize::from(*length))
}
