//! Health checks: a source that connects seldom and steadily is let in where others are refused.

use std::time::Duration;

use weir_kernel::Guard;

use crate::common::{
    BACKLOG, Bed, PORT, Path, accept, connect, greet, listen, takes_cookies, within,
};

/// A window of bpf/lib/steady.h, and a little more: checks come so far apart.
const WINDOW: Duration = Duration::from_millis(550);

/// Whether each of some checks, of one source, is let in by a server whose queue is full and that accepts nothing.
fn checks(bed: &Bed, path: &Path<'_>, flags: &str) -> Vec<bool> {
    let listener = listen(
        bed.server(),
        format!("[::]:{PORT}").parse().unwrap(),
        BACKLOG,
    );
    let weir = bed.protect(&format!("{PORT} --admit queue {flags}"));
    let overflows = bed.overflows();
    let others = bed.loopback4();
    let mut clients = connect(others.client, others.at(PORT), BACKLOG as usize + 2);
    assert_eq!(clients.counts(), (4, 2, 0), "{}", weir.line);
    let mut let_in = Vec::new();
    for _ in 0..4 {
        let check = connect(path.client, path.at(PORT), 1);
        assert_eq!(check.silent, 0, "{}", path.name);
        let_in.push(check.refused == 0);
        clients.connected.extend(check.connected);
        std::thread::sleep(WINDOW);
    }
    let kept = let_in.iter().filter(|let_in| **let_in).count();
    assert_eq!(bed.counter(0, "syn_steady"), kept as u64);
    let at_front = bed.counter(0, "refused_at_xdp") > 0;
    assert_eq!(at_front, flags.contains("xdp"));
    assert_eq!(bed.overflows(), overflows);
    let all = clients.connected.len();
    greet(&mut accept(&listener, all));
    assert_eq!(clients.fates(), (all, 0, 0), "{}", path.name);
    let_in
}

/// The place that the kernel holds beyond the backlog is nobody else's.
const THIRD: [bool; 4] = [false, false, true, false];

#[test]
fn the_third_of_three_checks_gets_the_place_beyond_the_backlog() {
    for path in [Bed::veth4, Bed::veth6] {
        let Some(bed) = Bed::new() else { return };
        assert_eq!(checks(&bed, &path(&bed), ""), THIRD);
    }
}

#[test]
fn behind_the_xdp_front_too() {
    let Some(bed) = Bed::new() else { return };
    within(bed.client(), || {
        let mut passes_all = Guard::load().unwrap();
        let peer = nix::net::if_::if_nametoindex("veth0").unwrap();
        passes_all.attach(peer, true).unwrap();
        assert_eq!(checks(&bed, &bed.veth4(), "--front xdp"), THIRD);
    });
}

#[test]
fn under_no_syn_drop_the_check_is_let_in_by_its_syn() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let _listener = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue --establish no-syn-drop"));
    let path = bed.veth4();
    let mut kept = Vec::new();
    for _ in 0..6 {
        kept.push(connect(path.client, path.at(PORT), 1));
        std::thread::sleep(WINDOW);
    }
    assert!(bed.counter(0, "syn_steady") > 0, "{:?}", bed.verdicts(0));
}

/// A server that accepts nothing, with room for all: three a second from one address.
#[test]
fn of_a_stopped_server_most_checks_fail() {
    let Some(bed) = Bed::new() else { return };
    let _listener = listen(bed.server(), bed.veth4().at(PORT), 511);
    let _weir = bed.protect(&PORT.to_string());
    let path = bed.veth4();
    let mut checks = connect(path.client, path.at(PORT), 0);
    for _ in 0..30 {
        let check = connect(path.client, path.at(PORT), 1);
        checks.connected.extend(check.connected);
        checks.refused += check.refused;
        std::thread::sleep(WINDOW * 3 / 5);
    }
    let let_in = checks.connected.len();
    assert_eq!(let_in + checks.refused, 30);
    // Until it is known to have stopped, and then one of either kind of steady sources.
    assert!((5..=13).contains(&let_in), "{:?}", bed.verdicts(0));
    assert!(
        (1..=3).contains(&bed.counter(0, "syn_steady")),
        "{:?}",
        bed.verdicts(0)
    );
}

#[test]
fn without_health_checks_none_is_let_in() {
    let Some(bed) = Bed::new() else { return };
    let none = checks(&bed, &bed.veth4(), "--health-checks false");
    assert_eq!(none, [false; 4]);
}
