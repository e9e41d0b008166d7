//! Listening sockets that are read again where they were found. Needs root.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReusePort;
use nix::unistd::Pid;
use socket2::{Domain, Protocol, Socket, Type};
use weir_core::listener::{ListenAddress, Listener};
use weir_core::policy::Services;
use weir_core::verdict::Verdict;
use weir_kernel::{Guard, ListenSocket};
use weir_testbed::{needs, netns, wait};

/// include/uapi/linux/in.h
const MPTCP: i32 = 262;

/// A guard in a network namespace of its own. `None` without root.
fn guard() -> Option<Guard> {
    if !needs::root("the iterator over sockets") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    Some(Guard::load().expect("the guard loads"))
}

fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

fn sorted(mut sockets: Vec<ListenSocket>) -> Vec<ListenSocket> {
    sockets.sort_by_key(|socket| socket.socket);
    sockets
}

fn known(guard: &Guard) -> Vec<ListenSocket> {
    sorted(guard.known_sockets().unwrap())
}

#[test]
fn queues_are_seen_as_they_are_without_a_walk() {
    let Some(guard) = guard() else { return };
    let listener = listen();
    assert_eq!(known(&guard).len(), 1);
    let mut clients = Vec::new();
    for waiting in 1..=30 {
        clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        assert_eq!(known(&guard)[0].queue_length, waiting);
        assert_eq!(guard.listen_sockets().unwrap()[0].queue_length, waiting);
    }
    listener.accept().unwrap();
    assert_eq!(known(&guard)[0].queue_length, 29);
    assert_eq!(guard.walks(), 1);
}

#[test]
fn sockets_of_every_kind_are_known_as_a_walk_finds_them() {
    let Some(guard) = guard() else { return };
    let bind = |domain, address: &str, prepare: fn(&Socket)| {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).unwrap();
        prepare(&socket);
        let address: SocketAddr = address.parse().unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(7).unwrap();
        socket
    };
    let alone = |socket: &Socket| socket.set_only_v6(true).unwrap();
    let mapped = |socket: &Socket| socket.set_only_v6(false).unwrap();
    let shared = |socket: &Socket| setsockopt(socket, ReusePort, &true).unwrap();
    let mut sockets = vec![
        bind(Domain::IPV4, "127.0.0.1:81", |_| ()),
        bind(Domain::IPV6, "[::]:82", alone),
        bind(Domain::IPV6, "[::ffff:127.0.0.1]:83", mapped),
        bind(Domain::IPV4, "0.0.0.0:84", shared),
        bind(Domain::IPV4, "0.0.0.0:84", shared),
    ];
    // As Go's servers do, where the kernel has it.
    if let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(MPTCP))) {
        socket
            .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 85)).into())
            .unwrap();
        socket.listen(7).unwrap();
        sockets.push(socket);
    }
    let found = sorted(guard.listen_sockets().unwrap());
    assert_eq!(found.len(), sockets.len());
    assert_eq!(known(&guard), found);
    assert_eq!(guard.walks(), 1);
    let kinds = |socket: &ListenSocket| (socket.port, socket.v6only, socket.queue_limit);
    let mut kinds: Vec<_> = found.iter().map(kinds).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let each = [81, 82, 83, 84, 85].map(|port| (port, port == 82, 7));
    assert_eq!(kinds, each[..kinds.len()]);
    // One that takes the place of another.
    drop(sockets.remove(0));
    let shorter = bind(Domain::IPV4, "127.0.0.1:81", |_| ());
    shorter.listen(5).unwrap();
    let found = guard.listen_sockets().unwrap();
    let its = found.iter().find(|socket| socket.port == 81).unwrap();
    assert_eq!(its.queue_limit, 5);
}

#[test]
fn one_that_has_gone_is_no_longer_known_and_a_new_one_is_after_a_second() {
    let Some(guard) = guard() else { return };
    let (first, second) = (listen(), listen());
    assert_eq!(known(&guard).len(), 2);
    drop(first);
    let left = known(&guard);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].port, port(&second));
    let _third = listen();
    assert_eq!(guard.listen_sockets().unwrap().len(), 2);
    let _fourth = listen();
    wait::until("the new socket is known", || {
        (known(&guard).len() == 3).then_some(())
    });
}

#[test]
fn a_new_one_is_known_once_the_guard_has_let_a_connection_come_to_it() {
    let Some(mut guard) = guard() else { return };
    let address = ListenAddress {
        ip: None,
        port: 8080,
    };
    guard.apply(&[Listener::new("web", address)], &[]).unwrap();
    assert_eq!(known(&guard), []);
    // On a machine that takes a second for this, the walk that is due finds it: then it is tried again.
    wait::until("a socket is found by its first SYN", || {
        guard.listen_sockets().unwrap();
        let begun = Instant::now();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 8080)).unwrap();
        guard.judge_tc(&syn()).unwrap();
        let found = known(&guard).len();
        assert!(found == 1 || begun.elapsed().as_millis() >= 900, "{found}");
        (found == 1).then_some(())
    });
}

#[test]
fn what_comes_to_the_address_of_a_service_of_ipvs_is_not_judged() {
    let Some(mut guard) = guard() else { return };
    let address = ListenAddress {
        ip: None,
        port: 8080,
    };
    let web = [Listener::new("web", address)];
    let _listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).unwrap();
    let service = Ipv4Addr::new(127, 0, 0, 3);
    let services = Services {
        addresses: [(service.into(), 8080)].into(),
        unknown: false,
    };
    // What the guard counts of one SYN to each of the two addresses.
    let mut judged = |services: Services| {
        guard.pass_by(services);
        guard.apply(&web, &[]).unwrap();
        let before = guard.counters("web").unwrap();
        guard.judge_tc(&syn()).unwrap();
        guard.judge_tc(&syn_to(service)).unwrap();
        let after = guard.counters("web").unwrap();
        let more = |verdict: usize| after.0[verdict] - before.0[verdict];
        (0..after.0.len()).map(more).sum::<u64>()
    };
    assert_eq!(judged(Services::default()), 2);
    assert_eq!(judged(services), 1);
    let unknown = Services {
        unknown: true,
        ..Services::default()
    };
    assert_eq!(judged(unknown), 0);
}

#[test]
fn more_than_there_is_room_for_are_all_found() {
    let Some(guard) = guard() else { return };
    let listeners: Vec<TcpListener> = (0..1100).map(|_| listen()).collect();
    assert_eq!(known(&guard).len(), listeners.len());
    assert_eq!(known(&guard).len(), listeners.len());
}

/// The memory of a socket that was closed is soon another's, which may listen on the same port of another namespace, as
/// containers do. Whose it becomes is the kernel's choice: where it is nobody's of ours for so long, nothing is shown.
#[test]
fn a_socket_of_another_namespace_at_a_remembered_address_judges_nobody() {
    let Some(mut guard) = guard() else { return };
    let address = ListenAddress {
        ip: None,
        port: 8080,
    };
    guard.apply(&[Listener::new("web", address)], &[]).unwrap();
    // What is remembered is of one CPU, and so are the sockets that were freed last.
    let mut one = CpuSet::new();
    one.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    netns::enter_new().unwrap();
    let other = File::open("/proc/thread-self/ns/net").unwrap();
    let others = Guard::load().unwrap();
    let enter = |space: &File| setns(space, CloneFlags::CLONE_NEWNET).unwrap();
    let try_once = || {
        enter(&own);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 8080)).unwrap();
        let begun = Instant::now();
        guard.judge_tc(&syn()).unwrap();
        let place = guard.listen_sockets().unwrap()[0].socket;
        drop(listener);
        enter(&other);
        let mut theirs = Vec::new();
        for last in 1..=254 {
            theirs.push(TcpListener::bind(((Ipv4Addr::new(127, 0, 0, last)), 8080)).unwrap());
        }
        let sockets = others.listen_sockets().unwrap();
        let taken = sockets.iter().any(|socket| socket.socket == place);
        enter(&own);
        let before = guard.counters("web").unwrap();
        guard.judge_tc(&syn()).unwrap();
        let after = guard.counters("web").unwrap();
        // It is remembered for a second.
        if !taken || begun.elapsed().as_millis() > 500 {
            return None;
        }
        let more = |verdict| after.get(verdict) - before.get(verdict);
        assert_eq!(more(Verdict::SynAdmitted), 0, "judged by the other's queue");
        assert_eq!(more(Verdict::SynUnheard), 1);
        Some(())
    };
    if wait::try_until(Duration::from_secs(25), try_once).is_none() {
        needs::lacking("a socket where another has been, in 25 s");
    }
}

fn syn() -> Vec<u8> {
    syn_to(Ipv4Addr::LOCALHOST)
}

fn syn_to(to: Ipv4Addr) -> Vec<u8> {
    let from = Ipv4Addr::new(127, 0, 0, 2);
    let ip = PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4(from.octets(), to.octets(), 64);
    let mut frame = Vec::new();
    let tcp = ip.tcp(1024, 8080, 1, 65_535).syn();
    tcp.write(&mut frame, &[]).expect("a vector");
    frame
}
