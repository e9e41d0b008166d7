//! Beside programs of others at tc ingress: weir goes first, lets them see what it passes, and says so when SYNs do not
//! reach it.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testbed::needs;
use weir_testbed::sockets::within;
use weir_testbed::stranger::{Order, Stranger, Tcx};

use crate::common::{
    BACKLOG, Bed, PORT, Path, Peer, Raw, Weir, accept, connect, listen, takes_cookies, until,
};

/// What Cilium calls its program.
const NAME: &str = "cil_from_netdev";
/// SYNs of the overload.
const SYNS: u32 = 2000;

fn stranger(bed: &Bed, interface: &str, returns: Tcx, order: Order) -> Stranger {
    within(bed.server(), || {
        Stranger::at_tcx(interface, NAME, returns, order)
    })
    .unwrap()
}

/// The verdicts that have fallen on the first listener.
fn judged(bed: &Bed) -> u64 {
    bed.verdicts(0).iter().map(|(_, n)| n).sum()
}

/// Two clients more than there are places: all six hear.
fn two_are_refused_aloud(bed: &Bed, weir: &Weir) {
    let path = bed.veth4();
    let clients = connect(path.client, path.at(PORT), BACKLOG as usize + 2);
    assert_eq!(clients.counts(), (4, 2, 0), "{}", weir.line);
}

#[test]
fn weir_judges_each_syn_though_a_program_that_lets_no_other_see_it_was_there_first() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let _others = ["veth0", "wire0"].map(|at| stranger(&bed, at, Tcx::Pass, Order::Last));
    let weir = bed.protect(&format!("{PORT} --admit queue"));
    two_are_refused_aloud(&bed, &weir);
    let before = judged(&bed);
    let raw = Raw(&bed.links.wire);
    for number in 0..SYNS {
        raw.syn(Peer::v4(number, PORT), number);
    }
    until("all SYNs are judged", || {
        (judged(&bed) == before + u64::from(SYNS)).then_some(())
    });
}

#[test]
fn a_program_behind_weir_sees_what_weir_passes() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let path = bed.veth4();
    let first = connect(path.client, path.at(PORT), 1);
    assert_eq!(
        first.counts(),
        (1, 0, 0),
        "the two know each other's Ethernet addresses now"
    );
    let _drops = stranger(&bed, "veth0", Tcx::Drop, Order::Last);
    let clients = connect(path.client, path.at(PORT), 1);
    assert_eq!(clients.counts(), (0, 0, 1), "it drops what weir lets in");
    assert_eq!(bed.counter(0, "syn_admitted"), 2);
}

/// A client that comes, is served at once, and goes.
fn visit(path: Path<'_>, listener: &TcpListener) {
    let clients = connect(path.client, path.at(PORT), 1);
    assert_eq!(clients.counts(), (1, 0, 0));
    drop(accept(listener, 1));
}

fn visits(path: Path<'_>, listener: &TcpListener, times: usize) {
    (0..times).for_each(|_| visit(path, listener));
}

fn web(bed: &Bed) -> Value {
    bed.status()["listeners"][0].clone()
}

/// Clients come until the listener is in force, or is not.
fn visits_until(bed: &Bed, path: Path<'_>, listener: &TcpListener, in_force: bool) -> Value {
    until("SYNs are seen, or missed", || {
        visits(path, listener, 4);
        let web = web(bed);
        (web["in_force"] == in_force).then_some(web)
    })
}

#[test]
fn when_another_goes_before_weir_and_hides_its_syns_weir_says_so_within_seconds_and_names_it() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 64);
    bed.write_config(&config(""));
    let _weir = bed.run(&config(""));
    visits(path, &listener, 10);
    assert_eq!(web(&bed)["in_force"], true);
    let judged = bed.counter(0, "syn_admitted");

    let cilium = stranger(&bed, "veth0", Tcx::Pass, Order::First);
    let begun = Instant::now();
    let web = visits_until(&bed, path, &listener, false);
    println!("said after {:?}", begun.elapsed());
    let because = web["not_in_force_because"].as_str().unwrap();
    assert!(because.contains("cil_from_netdev (program "), "{because}");
    assert!(
        because.contains("before weir at tc ingress of veth0"),
        "{because}"
    );
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(text.contains("not in force"), "{text}");
    let log = bed.log_text();
    assert!(
        log.contains("ERROR listener \"web\" is not in force"),
        "{log}"
    );
    let events = String::from_utf8(bed.weir("events --kind not_in_force").stdout).unwrap();
    assert!(events.contains(NAME), "{events}");
    let doctor = String::from_utf8(bed.weir("doctor").stdout).unwrap();
    assert!(
        doctor.contains("tcx: cil_from_netdev, then weir (guard_tc)"),
        "{doctor}"
    );
    assert!(
        bed.counter(0, "syn_admitted") < judged + 4,
        "weir does not fight for its place"
    );

    // The operator does.
    assert!(bed.weir("reload").status.success());
    let web = visits_until(&bed, path, &listener, true);
    assert_eq!(web["not_in_force_because"], Value::Null);
    let judged = bed.counter(0, "syn_admitted");
    visits(path, &listener, 4);
    assert_eq!(bed.counter(0, "syn_admitted"), judged + 4);

    // Its agent comes back and updates its link, where it stands now.
    cilium.update(Tcx::Pass).unwrap();
    visits(path, &listener, 4);
    assert_eq!(bed.counter(0, "syn_admitted"), judged + 8);
}

#[test]
fn when_the_other_goes_weir_is_in_force_again() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 64);
    let _weir = bed.protect(&PORT.to_string());
    let other = stranger(&bed, "veth0", Tcx::Pass, Order::First);
    visits_until(&bed, path, &listener, false);
    drop(other);
    visits_until(&bed, path, &listener, true);
}

#[test]
fn beside_one_that_hands_packets_on_weir_names_it_and_stays_in_force() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 64);
    let _weir = bed.protect(&PORT.to_string());
    let _other = stranger(&bed, "veth0", Tcx::Next, Order::First);
    until("weir names it", || {
        let warnings = bed.status()["warnings"].to_string();
        warnings
            .contains("cil_from_netdev stands before weir at tc ingress of veth0")
            .then_some(())
    });
    in_force_for(&bed, path, &listener, Duration::from_secs(3));
}

/// Clients come for so long; the listener is in force all the time.
fn in_force_for(bed: &Bed, path: Path<'_>, listener: &TcpListener, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        visits(path, listener, 4);
        let web = web(bed);
        assert_eq!(web["in_force"], true, "{web:#}");
    }
}

#[test]
fn connections_over_interfaces_that_weir_is_not_to_guard_are_not_missed() {
    let Some(bed) = Bed::new() else { return };
    let listener = listen(bed.server(), "0.0.0.0:8080".parse().unwrap(), 64);
    let _weir = bed.protect(&format!("{PORT} --interface veth0"));
    in_force_for(&bed, bed.loopback4(), &listener, Duration::from_secs(3));
}

#[test]
fn a_listener_of_another_address_and_the_same_port_is_not_missed() {
    let Some(bed) = Bed::new() else { return };
    let other = listen(bed.server(), bed.loopback4().at(PORT), 64);
    let address = bed.veth4().at(PORT);
    let _own = listen(bed.server(), address, 64);
    let _weir = bed.run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"{address}\"\n"
    ));
    in_force_for(&bed, bed.loopback4(), &other, Duration::from_secs(3));
}

#[test]
fn a_prioritized_queue_counts_each_connection_once() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 64);
    let _weir = bed.run(&config("queue = \"priority\""));
    in_force_for(&bed, path, &listener, Duration::from_secs(3));
}

fn config(policy: &str) -> String {
    format!("[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n{policy}\n")
}

#[test]
fn weir_s_own_programs_stand_in_their_order_before_all_others() {
    let Some(bed) = Bed::new() else { return };
    let _others = [Tcx::Next, Tcx::Pass].map(|value| stranger(&bed, "veth0", value, Order::Last));
    let _listener = listen(bed.server(), bed.veth4().at(PORT), 64);
    let _weir = bed.run(&config("timewait = \"negotiate\""));
    let expected =
        "tcx: weir (guard_tc), then weir (timewait_tc), then cil_from_netdev, then cil_from_netdev";
    until("the programs stand in their order", || {
        let doctor = String::from_utf8(bed.weir("doctor").stdout).unwrap();
        doctor.contains(expected).then_some(())
    });
}

#[test]
fn where_a_rule_redirects_clients_to_the_guarded_port_weir_says_that_it_does_not_see_them() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 64);
    let rules = format!(
        "add table ip t; add chain ip t c {{ type nat hook prerouting priority -100; }}; \
         add rule ip t c tcp dport 80 redirect to :{PORT}"
    );
    let nft = || Command::new("nft").arg(rules).status();
    if !needs::programs(&["nft"]) || !within(bed.server(), nft).unwrap().success() {
        needs::skip("kernel without redirection by nftables");
        return;
    }
    let _weir = bed.protect(&PORT.to_string());
    until("clients are missed", || {
        let clients = connect(path.client, path.at(80), 4);
        assert_eq!(clients.counts(), (4, 0, 0));
        drop(accept(&listener, 4));
        (web(&bed)["in_force"] == false).then_some(())
    });
    let web = web(&bed);
    let because = web["not_in_force_because"].as_str().unwrap();
    assert!(
        because.contains("no program stands before weir"),
        "{because}"
    );
}

#[test]
fn weir_sends_no_cookies_of_its_own_while_another_program_stands_behind_it() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _other = stranger(&bed, "veth0", Tcx::Next, Order::Last);
    let _weir = bed.protect(&format!("{PORT} --admit queue --establish no-syn-drop"));
    let because = web(&bed)["fallback_because"].to_string();
    assert!(because.contains("cil_from_netdev on veth0"), "{because}");
    connect(path.client, path.at(PORT), BACKLOG as usize + 2);
    assert_eq!(bed.counter(0, "cookie_sent"), 0);
}

/// A packet that waits for its turn in the shaper must not bring a cookie: the kernel keeps a listener for it only until
/// the packet is delivered, and without holding on to it.
#[test]
fn weir_sends_no_cookies_of_its_own_while_its_own_shaper_holds_what_an_interface_receives() {
    if !takes_cookies() {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue --establish no-syn-drop"));
    assert_eq!(web(&bed)["fallback"], Value::Null);
    let shaped = bed.weir(
        "shape install --dev veth0 --rate 100mbit --ingress 100mbit --discipline fifo --backend tc",
    );
    if !shaped.status.success() {
        let error = String::from_utf8_lossy(&shaped.stderr);
        assert!(error.contains("this kernel does not have"), "{error}");
        return needs::lacking("ifb or HTB");
    }
    let because = until("it is noticed", || {
        web(&bed)["fallback_because"].as_str().map(str::to_owned)
    });
    assert!(because.contains("weir shape --ingress"), "{because}");
    assert!(because.contains("veth0"), "{because}");
}
