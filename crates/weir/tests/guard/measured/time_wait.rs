//! Clients whose ports stand in TIME-WAIT at the server, because it closes first: they come again in a SYN flood and in
//! overload, and the kernel would let them in.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_testbed::bed::Counters;
use weir_testbed::wait::Stops;

use super::load::{
    BACKLOG, CLIENTS, CLIENTS_PER_S, Server, flood, judge, spoofed, visits, visits_beside,
    visits_of,
};
use crate::common::{Bed, PORT, listen, until};

/// A flood lasts as long as the clients of a run come, and some seconds before.
const BEFORE_CLIENTS: Duration = Duration::from_secs(2);
const FIRST_PORT: u16 = 20_000;

fn flooded(policy: &str) {
    let Some(bed) = Bed::new() else { return };
    let server = Server::start(&bed);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ports = FIRST_PORT..FIRST_PORT + CLIENTS;
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| server.serve(&stop));
        let before = visits(&bed, ports.clone(), 0);
        assert!(before.failed.is_empty(), "{:?}", before.failed);
        scope.spawn(|| flood(&bed.links.wire, &spoofed(), &stop, &sent));
        until("the flood runs", || {
            (sent.load(Ordering::Relaxed) > 0).then_some(())
        });
        let begun = Instant::now();
        // The kernel's own half-open connections are as many as it takes.
        until("the flood has filled the server's SYN queue", || {
            let counters = Counters::read(bed.server()).unwrap();
            (counters.get("TcpExt.SyncookiesSent") > 0).then_some(())
        });
        let _weir = bed.run(&format!("[[listener]]\naddress = \"*:{PORT}\"\n{policy}"));
        std::thread::sleep(BEFORE_CLIENTS);
        let beside = scope.spawn(|| visits_beside(&bed));
        let mut after = visits(&bed, ports, CLIENTS_PER_S);
        let beside = beside.join().unwrap();
        let rate = sent.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        println!("{policy:?}: {rate:.0} SYNs/s; {:?}", bed.verdicts(0));
        judge(policy, &mut after, &beside);
    });
}

#[test]
fn no_syn_drop_serves_ports_in_time_wait_through_a_flood() {
    flooded("establish = \"no-syn-drop\"");
}

#[test]
fn reserv_serves_ports_in_time_wait_through_a_flood() {
    flooded("establish = \"reserv\"");
}
#[test]
fn priority_serves_ports_in_time_wait_through_a_flood() {
    flooded("queue = \"priority\"");
}

#[test]
fn the_xdp_front_lets_ports_in_time_wait_by_in_a_flood() {
    flooded("establish = \"no-syn-drop\"\nfront = \"xdp\"");
}

/// The server takes 2 ms for each connection, and 800 a second come for 2 s. The wait stands, and the queue never
/// overflows: weir drops SYNs, their clients repeat them, and nobody is refused.
#[test]
fn in_overload_no_syn_drop_refuses_no_port_in_time_wait() {
    const SERVICE: Duration = Duration::from_millis(2);
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let server = Server::Own(vec![listener]);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    let (stop, slow) = (AtomicBool::new(false), AtomicBool::new(false));
    let ports = FIRST_PORT..FIRST_PORT + CLIENTS;
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            server.serve_with(&stop, || {
                if slow.load(Ordering::Relaxed) {
                    std::thread::sleep(SERVICE);
                }
            });
        });
        let before = visits(&bed, ports.clone(), 0);
        assert!(before.failed.is_empty(), "{:?}", before.failed);
        slow.store(true, Ordering::Relaxed);
        let mut after = visits_of(CLIENTS.into(), &bed, ports, 800);
        println!(
            "{} of {CLIENTS} failed, p50 {:?}; {:?}",
            after.failed.len(),
            after.quantile(500),
            bed.verdicts(0)
        );
        after.failed.truncate(5);
        assert!(after.failed.is_empty(), "{:?}", after.failed);
    });
    assert_eq!(
        bed.counter(0, "syn_reset_full") + bed.counter(0, "syn_reset_wait"),
        0
    );
    assert!(
        bed.counter(0, "syn_dropped_wait") > 0,
        "there was no overload"
    );
}
