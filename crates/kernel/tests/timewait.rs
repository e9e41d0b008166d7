//! Tables when they are full: servers keep their TIME-WAIT then. And packets that a device has summed up.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;

use weir_core::abi;
use weir_core::listener::{ListenAddress, Listener};
use weir_core::timewait::{Accept, Destination, Holder, ListenerTimeWait, TimeWaitMode};
use weir_kernel::testing::options::OptionWriter;
use weir_kernel::testing::run::TimeWaitBench;
use weir_kernel::{TimeWait, cgroup_root};
use weir_testbed::needs;
use weir_testbed::raw::{Peer, Segment, Shape, frame};
use weir_testbed::sys::next_numbers;
use weir_testbed::tcp_table::sockets_in_state;

/// include/net/tcp_states.h, as /proc/net/tcp has it.
const TIME_WAIT: &[u8] = &[0x06];
/// The kernel's memory allocator hands elements out by CPU, so a small table may hold a few less or more.
const RECORDS: u64 = 64;
const CONNECTIONS: u64 = 3 * RECORDS;

#[test]
fn a_full_table_leaves_time_wait_to_the_server() {
    if !needs::own_namespace() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let destination = Destination {
        to_port: Some(address.port()),
        timewait: TimeWaitMode::ClientRst,
        ..Destination::new("backends")
    };
    let mut timewait = TimeWait::with_space(RECORDS as u32, 64).unwrap();
    timewait.apply(&[destination], &[], None).unwrap();
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
    timewait.attach(loopback).unwrap();
    for _ in 0..CONNECTIONS {
        let mut client = TcpStream::connect(address).unwrap();
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    timewait.sweep().unwrap();
    let figures = timewait.figures("backends").unwrap();
    assert_eq!(
        figures.swapped + figures.fallback,
        CONNECTIONS,
        "{figures:?}"
    );
    assert_eq!(figures.held, figures.swapped, "{figures:?}");
    assert!(
        figures.swapped <= RECORDS && figures.fallback > 0,
        "{figures:?}"
    );
    assert_eq!(figures.bytes(), 128 * figures.held);
    let left = sockets_in_state(TIME_WAIT, None).unwrap();
    assert_eq!(left as u64, figures.fallback, "{figures:?}");
    timewait.detach(loopback);
}

#[test]
fn a_holder_without_a_free_record_counts_the_connection_once() {
    if !needs::own_namespace() {
        return;
    }
    let cgroups = cgroup_root().expect("the root of cgroup2");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let port = address.port();
    let destination = Destination {
        to_port: Some(port),
        timewait: TimeWaitMode::Negotiate,
        ..Destination::new("backends")
    };
    let listener = Listener {
        timewait: ListenerTimeWait::Negotiate,
        holder: Holder::Server,
        ..Listener::new("web", ListenAddress { ip: None, port })
    };
    let mut timewait = TimeWait::with_space(RECORDS as u32, 64).unwrap();
    let root = Some(cgroups.as_fd());
    timewait.apply(&[destination], &[listener], root).unwrap();
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
    timewait.attach(loopback).unwrap();
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(address).unwrap();
        let mut accepted = server.accept().unwrap().0;
        drop(client);
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
    }
    timewait.sweep().unwrap();
    let figures = timewait.listener_figures("web").unwrap();
    assert!(figures.held > 0 && figures.fallback > 0, "{figures:?}");
    assert_eq!(figures.held + figures.fallback, CONNECTIONS, "{figures:?}");
    timewait.detach(loopback);
}

#[test]
fn destinations_that_do_not_fit_leave_those_in_force() {
    const PREFIXES: u32 = 4;
    if !needs::own_namespace() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = |prefixes: &[String]| Destination {
        to: prefixes.iter().map(|p| p.parse().unwrap()).collect(),
        to_port: Some(address.port()),
        timewait: TimeWaitMode::ClientRst,
        ..Destination::new("backends")
    };
    let mut timewait = TimeWait::with_space(64, PREFIXES).unwrap();
    timewait
        .apply(&[to(&["127.0.0.0/8".to_owned()])], &[], None)
        .unwrap();
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
    timewait.attach(loopback).unwrap();
    let many: Vec<String> = (0..2 * PREFIXES)
        .map(|n| format!("10.{n}.0.0/16"))
        .collect();
    timewait.apply(&[to(&many)], &[], None).unwrap_err();
    let swap = |swapped: u64, timewait: &TimeWait| {
        let mut client = TcpStream::connect(address).unwrap();
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(client);
        let figures = timewait.figures("backends").unwrap();
        assert_eq!(figures.swapped, swapped, "{figures:?}");
    };
    swap(1, &timewait);
    // What was entered before the failure is gone again, so these fit.
    let few: Vec<String> = (0..PREFIXES - 1)
        .map(|n| format!("127.{n}.0.0/16"))
        .collect();
    timewait.apply(&[to(&few)], &[], None).unwrap();
    swap(2, &timewait);
    timewait.detach(loopback);
}

/// The option of negotiation: docs/timewait-details.md.
fn option(phase: u8, holder: u8) -> Vec<u8> {
    vec![253, 8, b'T', b'W', b'N', b'G', phase, holder]
}

/// A frame for this host, as the test runs know it.
fn frame_to(peer: Peer, segment: &Segment) -> Vec<u8> {
    let mut frame = frame(peer, Shape::Plain, segment);
    frame[..6].fill(0);
    frame
}

fn cannot_sum() {
    needs::lacking("CHECKSUM_COMPLETE in test runs (Linux 6.17)");
}

const PASSES: i32 = -1;
const NAME: &str = "backends";
const SERVER_PORT: u16 = 8080;

fn negotiates(accept: Accept) -> TimeWaitBench {
    let destination = Destination {
        to_port: Some(SERVER_PORT),
        timewait: TimeWaitMode::Negotiate,
        accept,
        ..Destination::new(NAME)
    };
    TimeWaitBench::load(&[destination]).unwrap()
}

#[test]
fn the_sum_of_a_fin_that_is_handed_on_with_a_rst_after_it_stays_right() {
    if !needs::own_namespace() {
        return;
    }
    let bench = negotiates(Accept::Any);
    for ip in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        let listener = TcpListener::bind((ip, SERVER_PORT)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _server = listener.accept().unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (next, theirs) = next_numbers(&client);
        let peer = Peer {
            client: client.peer_addr().unwrap(),
            server: client.local_addr().unwrap(),
        };
        for (payload, seq) in [(b"".to_vec(), theirs), (b"odd".to_vec(), theirs)] {
            let fin = Segment {
                seq,
                ack: Some(next),
                fin: true,
                options: option(5, 1),
                payload,
                ..Segment::default()
            };
            let before = frame_to(peer, &fin);
            let Some(judged) = bench.judge_summed(&before).unwrap() else {
                return cannot_sum();
            };
            assert_eq!((judged.action, &judged.frame), (PASSES, &before), "{ip}");
        }
    }
    // They were what they were taken for.
    let figures = bench.figures(NAME).unwrap();
    assert_eq!(
        (figures.held_by_peer, figures.fallback),
        (2, 0),
        "{figures:?}"
    );
}

#[test]
fn a_fin_before_its_time_leaves_time_wait_where_the_table_of_such_is_full() {
    if !needs::own_namespace() {
        return;
    }
    let mut bench = negotiates(Accept::Any);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, SERVER_PORT)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _server = listener.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (next, theirs) = next_numbers(&client);
    let peer = Peer {
        client: client.peer_addr().unwrap(),
        server: client.local_addr().unwrap(),
    };
    let fin = frame_to(
        peer,
        &Segment {
            seq: theirs.wrapping_add(8),
            ack: Some(next),
            fin: true,
            options: option(5, 1),
            ..Segment::default()
        },
    );
    for (awaited, noted, left) in [(abi::MAX_TIMEWAIT_AWAITED, 0, 1), (0, 1, 1), (0, 1, 1)] {
        bench.set_awaited(awaited);
        assert_eq!(bench.run(&fin, 1).unwrap().1, PASSES);
        let figures = bench.figures(NAME).unwrap();
        assert_eq!(
            (figures.held_by_peer, figures.fallback),
            (noted, left),
            "{figures:?}"
        );
    }
}

/// Options that another program writes into the segments of one connection, on which both ends speak so many times.
fn options_of_another_program(times: u32) -> u32 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let writer = OptionWriter::attach(address.port()).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for _ in 0..times {
        client.write_all(b"?").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    writer.written()
}

#[test]
fn another_program_s_options_stay_on_ports_that_no_rule_names() {
    const TIMES: u32 = 20;
    if !needs::own_namespace() {
        return;
    }
    let Some(cgroups) = cgroup_root() else {
        return needs::skip("no cgroup2");
    };
    // Each byte goes out in a segment of its own.
    assert!(options_of_another_program(TIMES) >= 2 * TIMES);
    let destination = Destination {
        to_port: Some(1),
        timewait: TimeWaitMode::Negotiate,
        ..Destination::new("backends")
    };
    let mut timewait = TimeWait::with_space(RECORDS as u32, 64).unwrap();
    timewait
        .apply(&[destination], &[], Some(cgroups.as_fd()))
        .unwrap();
    let written = options_of_another_program(TIMES);
    assert!(written >= 2 * TIMES, "{written}");
}
