//! A million connections, in a process of its own: nothing else may be in its peak.

use std::net::Ipv4Addr;

use weir_trace::{Options, Report, Tracker};
use weir_wire::{Endpoint, Frame, Packet, Segment, flag};

const CONNECTIONS: u32 = 1_000_000;
const PEAK_MIB_MAX: u64 = 200;
const START_NS: u64 = 1_700_000_000_000_000_000;

/// The largest resident set of this process, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

/// Six packets of a connection that stays open; each has a client of its own.
fn packets(number: u32) -> impl Iterator<Item = Packet> {
    let client = Endpoint {
        address: Ipv4Addr::from(0x0a00_0000 + number).to_ipv6_mapped(),
        port: 40_000,
    };
    let server = Endpoint {
        address: Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(),
        port: 80,
    };
    // 30 000 connections/s: within 45 s all of them may still have something to send again.
    let at_ns = START_NS + u64::from(number) * 33_000;
    let rows = [
        (true, flag::SYN, 0, 0),
        (false, flag::SYN | flag::ACK, 0, 0),
        (true, flag::ACK, 1, 0),
        (true, flag::ACK, 1, 300),
        (false, flag::ACK, 1, 1448),
        (false, flag::ACK, 1449, 1448),
    ];
    rows.into_iter()
        .enumerate()
        .map(move |(i, (by_client, flags, seq, payload))| {
            let (source, destination) = if by_client {
                (client, server)
            } else {
                (server, client)
            };
            Packet {
                at_ns: at_ns + i as u64 * 1000,
                frame: Frame::Tcp(Segment {
                    source,
                    destination,
                    seq,
                    ack: 1,
                    flags,
                    window: u16::MAX,
                    payload,
                }),
            }
        })
}

fn track(connections: u32) -> Report {
    let mut tracker = Tracker::new(Options::default());
    (0..connections)
        .flat_map(packets)
        .for_each(|packet| tracker.packet(&packet));
    tracker.report()
}

#[test]
fn a_million_open_connections_fit_into_200_mib_and_more_are_judged_early() {
    let report = track(CONNECTIONS);
    let peak = peak_mib();
    println!("{CONNECTIONS} connections: {peak} MiB at most");
    assert!(peak <= PEAK_MIB_MAX, "{peak} MiB");
    assert_eq!(report.counts.judged_early, 0);
    assert_eq!(report.directions[0].connections, CONNECTIONS.into());
    assert_eq!(report.directions[1].retransmissions, 0);

    let more = CONNECTIONS + CONNECTIONS / 4;
    let report = track(more);
    let peak = peak_mib();
    println!("{more} connections: {peak} MiB at most");
    assert!(peak <= PEAK_MIB_MAX, "{peak} MiB");
    assert!(report.counts.judged_early >= u64::from(CONNECTIONS / 4));
    assert_eq!(report.directions[0].connections, more.into());
}
