//! SYNs that the kernel drops behind weir: they take no places from clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use weir_testbed::cpu::pin_this_thread;
use weir_testbed::raw::{Segment, Shape, frame};
use weir_testbed::wait::Stops;

use crate::common::{Bed, PORT, Peer, Raw, accept, connect, listen};
use crate::firewall::{Rules, config};

const PLACES: i32 = 8;
const SYNS_PER_S: f64 = 1000.0;
const CLIENTS: usize = 40;
/// From one client to the next.
const GAP: Duration = Duration::from_millis(50);
/// TCP's sum in a frame of IPv4.
const SUM_AT: usize = 14 + 20 + 16;

fn syn(number: u32, payload: &[u8]) -> Vec<u8> {
    let syn = Segment {
        seq: number,
        syn: true,
        payload: payload.to_vec(),
        ..Segment::default()
    };
    frame(Peer::v4(number, PORT), Shape::Plain, &syn)
}

fn with_a_wrong_sum(mut frame: Vec<u8>) -> Vec<u8> {
    frame[SUM_AT] ^= 1;
    frame
}

/// From an address that the kernel takes from no wire, and a right sum.
fn martian(number: u32) -> Vec<u8> {
    let mut peer = Peer::v4(number, PORT);
    let host = Ipv4Addr::new(127, 1, (number >> 8) as u8, number as u8);
    peer.client.set_ip(host.into());
    let syn = Segment {
        syn: true,
        ..Segment::default()
    };
    frame(peer, Shape::Plain, &syn)
}

/// Sends these from each CPU in turn, until `over`.
fn flood(bed: &Bed, syn_of: impl Fn(u32) -> Vec<u8>, over: &AtomicBool) {
    let (raw, begun, mut sent) = (Raw(&bed.links.wire), Instant::now(), 0);
    let cpus = available_parallelism().map_or(1, usize::from);
    while !over.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * SYNS_PER_S) as u32;
        while sent < due {
            pin_this_thread(sent as usize % cpus).unwrap();
            raw.send_frame(&syn_of(sent));
            sent += 1;
        }
        raw.discard();
        // The flood's pace.
        sleep(Duration::from_micros(500));
    }
}

/// Of the clients of a server that accepts each at once, those that it does not get.
fn refused_beside(bed: &Bed, syn_of: impl Fn(u32) -> Vec<u8> + Send + Sync) -> usize {
    let path = bed.veth4();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, PLACES);
    let _weir = bed.run(&config("establish = \"reserv\""));
    let over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| flood(bed, &syn_of, &over));
        let _stops = Stops(&over);
        let visit = || {
            let begun = Instant::now();
            let clients = connect(path.client, path.at(PORT), 1);
            let connected = clients.connected.len();
            accept(&listener, connected);
            // Clients come at their own pace.
            sleep(GAP.saturating_sub(begun.elapsed()));
            1 - connected
        };
        // At its first SYNs nobody knows yet that they come to nothing.
        for _ in 0..4 {
            visit();
        }
        (0..CLIENTS).map(|_| visit()).sum::<usize>()
    });
    println!("{refused} of {CLIENTS} refused: {:?}", bed.verdicts(0));
    refused
}

#[test]
fn syns_with_wrong_sums_take_no_places_from_clients() {
    for payload in [&[][..], b"GET / HTTP/1.1"] {
        let Some(bed) = Bed::new() else { return };
        assert_eq!(
            refused_beside(&bed, |number| with_a_wrong_sum(syn(number, payload))),
            0
        );
    }
}

#[test]
fn martian_syns_take_no_places_from_clients() {
    let Some(bed) = Bed::new() else { return };
    assert_eq!(refused_beside(&bed, martian), 0);
}

#[test]
fn syns_that_the_firewall_drops_take_no_places_from_clients() {
    for rules in Rules::ALL {
        let Some(bed) = Bed::new() else { return };
        if rules.load(&bed, &["10.128.0.0/9"]) {
            assert_eq!(
                refused_beside(&bed, |number| syn(number, &[])),
                0,
                "{rules:?}"
            );
        }
    }
}
