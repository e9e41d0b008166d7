//! The table of records when it is full: servers keep their TIME-WAIT then.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use weir_core::listener::{ListenAddress, Listener};
use weir_core::timewait::{Destination, Holder, ListenerTimeWait, TimeWaitMode};
use weir_kernel::{TimeWait, cgroup_root};
use weir_testbed::needs;
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
