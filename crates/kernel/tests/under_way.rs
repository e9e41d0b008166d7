//! SYNs on their way to the listening socket (BPF_PROG_TEST_RUN): claims, and those that the XDP front let by. Needs root.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use etherparse::PacketBuilder;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReusePort;
use socket2::{Domain, Socket, Type};
use weir_core::class::Class;
use weir_core::listener::{Front, ListenAddress, Listener};
use weir_core::verdict::Verdict;
use weir_kernel::Guard;
use weir_testbed::cpu::pin_this_thread;
use weir_testbed::tcp_table::sockets_in_state;
use weir_testbed::{needs, netns, wait};

const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;
const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;
/// include/net/tcp_states.h, as /proc/net/tcp has it.
const TIME_WAIT: &[u8] = &[0x06];

/// A guard, and a listening socket with this backlog in a network namespace of its own. `None` without root.
fn world(backlog: i32, shared: bool) -> Option<(Guard, TcpListener)> {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    setsockopt(&socket, ReusePort, &shared).unwrap();
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any_port.into()).unwrap();
    socket.listen(backlog).unwrap();
    let guard = Guard::load().expect("the guard loads");
    Some((guard, socket.into()))
}

/// The same, with a guard that refuses at XDP; and the socket's address.
fn world_with_front(backlog: i32, shared: bool) -> Option<(Guard, TcpListener, SocketAddr)> {
    let (mut guard, socket) = world(backlog, shared)?;
    let to = socket.local_addr().unwrap();
    let listeners = [Listener {
        front: Front::Xdp,
        ..listener(&socket)
    }];
    guard.apply(&listeners, &[]).expect("the policy is taken");
    Some((guard, socket, to))
}

fn listener(socket: &TcpListener) -> Listener {
    let port = socket.local_addr().unwrap().port();
    Listener::new("web", ListenAddress { ip: None, port })
}

fn syn(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(source), SocketAddr::V4(destination)) = (from, to) else {
        unreachable!("IPv4")
    };
    let ip = PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4(
        source.ip().octets(),
        destination.ip().octets(),
        64,
    );
    let mut frame = Vec::new();
    let tcp = ip.tcp(from.port(), to.port(), 1, 65_535).syn();
    tcp.write(&mut frame, &[]).expect("a vector");
    frame
}

/// What is lost between XDP and tc: in a full receive backlog, by another program, for another MAC address.
#[test]
fn syns_that_are_lost_behind_the_front_close_no_listener() {
    const PLACES: i32 = 8;
    for shared in [false, true] {
        let Some((guard, _socket, to)) = world_with_front(PLACES, shared) else {
            return;
        };
        let from = |n: u16| syn(([10, 0, (n >> 8) as u8, n as u8], 1000).into(), to);
        let at_tc = |frame: &[u8]| guard.judge_tc(frame).expect("a test run").action;
        let at_xdp = |frame: &[u8]| guard.judge_xdp(frame).expect("a test run").action;
        // The first run loads the program.
        at_xdp(&from(0));
        for n in 0..1000 {
            // One in a hundred goes on, so the guard sees that traffic flows.
            if n % 100 == 1 && n < 600 {
                assert_eq!(at_tc(&from(n)), PASS, "shared: {shared}, {n}");
            }
            assert_eq!(at_xdp(&from(n)), XDP_PASS, "shared: {shared}, {n}");
        }
    }
}

/// As tc does, which the kernel tells (PACKET_HOST). Several machines may have the listener's address (LVS, anycast).
#[test]
fn the_front_refuses_no_syn_that_is_for_another_machine_on_the_wire() {
    let Some((guard, _socket, to)) = world_with_front(1, false) else {
        return;
    };
    let _two: Vec<_> = (0..2).map(|_| TcpStream::connect(to).unwrap()).collect();
    let mut frame = syn(([127, 0, 0, 2], 1000).into(), to);
    let action = |frame: &[u8]| guard.judge_xdp(frame).expect("a test run").action;
    assert_eq!(action(&frame), XDP_TX);
    for byte in 0..6 {
        frame[byte] ^= 2;
        assert_eq!(action(&frame), XDP_PASS, "{:02x?}", &frame[..6]);
        frame[byte] ^= 2;
    }
}

/// tc takes the tokens, so it decides about those that the front let by.
#[test]
fn the_front_does_not_go_on_counting_what_tc_refuses_for_its_rate() {
    const PLACES: i32 = 8;
    // A socket of a SO_REUSEPORT group is looked up for each SYN, another one is remembered.
    for shared in [false, true] {
        let Some((mut guard, _socket, to)) = world_with_front(PLACES, shared) else {
            return;
        };
        let limited = Class {
            from: vec!["10.0.0.0/8".parse().unwrap()],
            rate: Some(0.1),
            burst: Some(1),
            ..Class::new("limited")
        };
        let other = |port| syn(([192, 0, 2, 1], port).into(), to);
        let of_class = |n| syn(([10, 0, 0, 1], 1000 + n).into(), to);
        let tc = |guard: &Guard, frame: &[u8]| guard.judge_tc(frame).expect("a test run").action;
        let front =
            |guard: &Guard, frame: &[u8]| guard.judge_xdp(frame).expect("a test run").action;
        // The first run loads the program.
        front(
            &guard,
            &syn(([192, 0, 2, 1], 1).into(), ([127, 0, 0, 1], 1).into()),
        );
        // One claim, and as many under way as there are other places.
        assert_eq!(tc(&guard, &other(1)), PASS);
        for n in 1..PLACES as u16 {
            assert_eq!(
                front(&guard, &of_class(n)),
                XDP_PASS,
                "shared: {shared}, {n}"
            );
        }
        guard.set_classes(&[limited]).expect("the class is taken");
        let actions: Vec<i32> = (0..PLACES as u16)
            .map(|n| tc(&guard, &of_class(n)))
            .collect();
        assert_eq!(actions[0], PASS, "shared: {shared}: the token");
        assert_eq!(
            actions[1..],
            [DROP; PLACES as usize - 1],
            "shared: {shared}"
        );
        // At least three places are taken, and three more at most.
        let _two: Vec<_> = (0..2).map(|_| TcpStream::connect(to).unwrap()).collect();
        assert_eq!(tc(&guard, &other(2)), PASS);
        assert_eq!(front(&guard, &other(3)), XDP_PASS, "shared: {shared}");
    }
}

/// Nobody looks a SYN up that is let in as the listener is known. So nobody knows that its port is in TIME-WAIT.
#[test]
fn a_time_wait_socket_does_not_pass_for_the_connection_of_a_syn_under_way() {
    const PLACES: usize = 4;
    let Some((mut guard, socket)) = world(PLACES as i32, false) else {
        return;
    };
    let to = socket.local_addr().unwrap();
    guard
        .apply(&[listener(&socket)], &[])
        .expect("the policy is taken");
    let mut client = TcpStream::connect(to).unwrap();
    drop(socket.accept().unwrap());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let again = client.local_addr().unwrap();
    drop(client);
    wait::until("the server's side is in TIME-WAIT", || {
        (sockets_in_state(TIME_WAIT, Some(to.port())).unwrap() == 1).then_some(())
    });
    // Claims are kept by CPU.
    pin_this_thread(0).expect("a CPU");
    let from = |n: u16| SocketAddr::from(([10, 0, 0, 1], n));
    let expected = [[PASS; PLACES].as_slice(), &[REDIRECT]].concat();
    // A claim is over after 8 ms: where this test was kept from running, and those of the last attempt.
    wait::until("the SYN from that port has the last place", || {
        let before = guard.counters("web").unwrap().get(Verdict::SynAdmitted);
        let syns = [from(1), from(2), from(3), again, from(4)];
        let actions = syns.map(|from| guard.judge_tc(&syn(from, to)).unwrap().action);
        let admitted = guard.counters("web").unwrap().get(Verdict::SynAdmitted) - before;
        (actions[..] == expected && admitted == PLACES as u64).then_some(())
    });
}
