//! Spoofed SYN floods: half-open connections that nobody will end must not shut the door.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_testbed::bed::Tap;

use crate::common::{Bed, Fate, PORT, Peer, Raw, accept, connect, fate, greet, listen, until};
use crate::firewall::Rules;

const SYNS_PER_S: f64 = 5000.0;
const FLOOD: Duration = Duration::from_secs(3);

/// Offers SYNs at a constant rate, each from another address; what the server answers is thrown away.
fn flood(wire: &Tap, stop: &AtomicBool) {
    let raw = Raw(wire);
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < FLOOD && !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * SYNS_PER_S) as u32;
        while sent < due {
            raw.syn(Peer::v4(sent, PORT), sent);
            sent += 1;
        }
        raw.discard();
        std::thread::yield_now();
    }
}

/// A client's whole visit; `None` if it is refused. The client closes first, so that no port that
/// another client may take is in TIME_WAIT at the server.
fn visit(bed: &Bed, listener: &TcpListener) -> Option<Fate> {
    let path = bed.veth4();
    let mut client = connect(path.client, path.at(PORT), 1).connected.pop()?;
    let mut server = accept(listener, 1);
    greet(&mut server);
    let fate = fate(&mut client);
    drop(client);
    Some(fate)
}

/// Floods a listener with this backlog while real clients come, and after.
fn door_stays_open(backlog: i32) {
    let Some(bed) = Bed::new() else { return };
    // A half-open connection then lasts 1 + 2 + 4 s: longer than the flood, shorter than patience.
    bed.server()
        .set_sysctl("net.ipv4.tcp_synack_retries", "2")
        .unwrap();
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, backlog);
    let _weir = bed.protect(&format!("{PORT} --establish reserv"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&bed.links.wire, &stop));
        let (mut visits, mut served) = (0, 0);
        while !flooding.is_finished() {
            visits += 1;
            served += u32::from(visit(&bed, &listener) == Some(Fate::Served));
        }
        println!("{served} of {visits} served: {:?}", bed.verdicts(0));
        // Until a flood is known, clients are refused, and a client that is refused comes again at once.
        assert!(
            visits > 20 && served >= visits * 19 / 20,
            "{served} of {visits} served: {:?}",
            bed.verdicts(0)
        );
    });
    assert!(bed.counter(0, "cookie_accepted") > 0);
    until("the flood's half-open connections expire", || {
        (bed.status()["listeners"][0]["half_open"] == 0).then_some(())
    });
    let cookies = bed.counter(0, "cookie_sent_flood");
    let admitted = bed.counter(0, "syn_admitted");
    assert_eq!(visit(&bed, &listener), Some(Fate::Served));
    assert_eq!(
        bed.counter(0, "cookie_sent_flood"),
        cookies,
        "by a reservation again"
    );
    assert_eq!(bed.counter(0, "syn_admitted"), admitted + 1);
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn a_spoofed_flood_leaves_the_door_open_and_reservations_come_back_after_it() {
    door_stays_open(128);
}

#[test]
fn a_spoofed_flood_does_not_shut_a_small_door_either() {
    door_stays_open(16);
}

/// With rules that want a SYN first: no client is lost, and none is refused.
#[test]
fn a_spoofed_flood_costs_no_client_behind_stateful_rules() {
    for policy in [
        "establish = \"reserv\"",
        "establish = \"no-syn-drop\"",
        "queue = \"priority\"",
    ] {
        let Some(bed) = Bed::new() else { return };
        if !Rules::Nftables.load(&bed, &[]) {
            return;
        }
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let listener = listen(bed.server(), any, 128);
        let _weir = bed.run(&format!(
            "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n{policy}\n"
        ));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&bed.links.wire, &stop));
            let mut visits = 0;
            while !flooding.is_finished() {
                visits += 1;
                let fate = visit(&bed, &listener);
                assert_eq!(fate, Some(Fate::Served), "{policy}: {:?}", bed.verdicts(0));
            }
            assert!(visits > 20, "{visits}");
        });
    }
}
