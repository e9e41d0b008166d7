//! Where the guard keeps the sources of SYNs. Needs root.

use std::net::{Ipv4Addr, TcpListener};

use etherparse::PacketBuilder;
use weir_core::listener::{ListenAddress, Listener};
use weir_kernel::Guard;
use weir_testbed::{needs, netns};

const PLACES: usize = 512;
const SOURCES: u32 = 64;

/// The frame of a SYN from the source of this number.
fn syn(source: u32, v6: bool, port: u16) -> Vec<u8> {
    let eth = PacketBuilder::ethernet2([2; 6], [0; 6]);
    let ip = match v6 {
        true => {
            let client = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, source as u16);
            eth.ipv6(client.octets(), std::net::Ipv6Addr::LOCALHOST.octets(), 64)
        }
        false => {
            let client = Ipv4Addr::from_bits(0x0a00_0001 + source);
            eth.ipv4(client.octets(), [127, 0, 0, 1], 64)
        }
    };
    let mut frame = Vec::new();
    ip.tcp(40_000, port, 1, 65_535)
        .syn()
        .write(&mut frame, &[])
        .unwrap();
    frame
}

/// The sets in which a newly loaded guard keeps each of the sources; `None`: it has met one that has its place.
fn sets(v6: bool, port: u16) -> Vec<Option<usize>> {
    let mut guard = Guard::load().expect("the guard loads");
    let listener = Listener {
        health_checks: true,
        ..Listener::new("sources", ListenAddress { ip: None, port })
    };
    guard.apply(&[listener], &[]).unwrap();
    let mut known = vec![0; PLACES];
    (0..SOURCES)
        .map(|source| {
            guard.judge_tc(&syn(source, v6, port)).unwrap();
            let now = guard.sources_in_sets();
            let grown = now.iter().zip(&known).position(|(now, was)| now > was);
            known = now;
            grown
        })
        .collect()
}

/// Whoever knows which addresses share a set can keep another's out of it.
#[test]
fn another_load_keeps_the_same_sources_elsewhere() {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let server = TcpListener::bind("[::]:0").unwrap();
    let port = server.local_addr().unwrap().port();
    for v6 in [false, true] {
        let (one, other) = (sets(v6, port), sets(v6, port));
        let same = one
            .iter()
            .zip(&other)
            .filter(|(a, b)| a == b && a.is_some());
        let same = same.count();
        // By chance one in 512 is: 8 of 64 in one of 10^13 runs.
        assert!(same < 8, "IPv6 {v6}: {same} of {SOURCES} where they were");
        // Evenly spread: 64 of them in fewer than 40 of 512 sets, or 8 in one, would be as rare.
        let distinct: std::collections::BTreeSet<_> = one.iter().collect();
        assert!(distinct.len() > 40, "IPv6 {v6}: {one:?}");
        // Nor moved as a whole: then whoever shared a set still would.
        let steps = |sets: &[Option<usize>]| -> Vec<Option<usize>> {
            let step = |pair: &[Option<usize>]| Some((pair[1]? + PLACES - pair[0]?) % PLACES);
            sets.windows(2).map(step).collect()
        };
        let (one, other) = (steps(&one), steps(&other));
        let same = one
            .iter()
            .zip(&other)
            .filter(|(a, b)| a == b && a.is_some());
        assert!(same.count() < 8, "IPv6 {v6}: {one:?} {other:?}");
    }
}
