//! The flood table: a SYN flood from spoofed addresses, and clients from its first packet on, by policy and firewall.
//! Clients come from fresh ports and from ports in TIME-WAIT at the server. None is refused, and none waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use weir_testbed::wait::Stops;

use super::load::{CLIENTS, CLIENTS_PER_S, Server, flood, judge, spoofed, visits, visits_beside};
use crate::common::{Bed, PORT};
use crate::firewall::Rules;

/// Below this the flood was none.
const LEAST_SYNS_PER_S: f64 = 40_000.0;
const IN_TIME_WAIT: u16 = 20_000;
const FRESH: u16 = 30_000;

fn row(policy: &str, rules: Option<Rules>) {
    let Some(bed) = Bed::new() else { return };
    if !rules.is_none_or(|rules| rules.load(&bed, &[])) {
        return;
    }
    let server = Server::start(&bed);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ports = |first| first..first + CLIENTS;
    let syns = spoofed();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| server.serve(&stop));
        let before = visits(&bed, ports(IN_TIME_WAIT), 0);
        assert!(before.failed.is_empty(), "{:?}", before.failed);
        let _weir = bed.run(&format!("[[listener]]\naddress = \"*:{PORT}\"\n{policy}"));
        let begun = Instant::now();
        scope.spawn(|| flood(&bed.links.wire, &syns, &stop, &sent));
        let of = |first| visits(&bed, ports(first), CLIENTS_PER_S);
        let again = scope.spawn(move || of(IN_TIME_WAIT));
        let beside = scope.spawn(|| visits_beside(&bed));
        let fresh = of(FRESH);
        let kinds = [("fresh", fresh), ("TIME-WAIT", again.join().unwrap())];
        let beside = beside.join().unwrap();
        let rate = sent.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        println!(
            "{policy:?} {rules:?}: {rate:.0} SYNs/s; {:?}",
            bed.verdicts(0)
        );
        assert!(rate > LEAST_SYNS_PER_S, "{rate:.0} SYNs/s are no flood");
        for (kind, mut visits) in kinds {
            judge(kind, &mut visits, &beside);
        }
    });
}

#[test]
fn reserv_serves_all_from_a_floods_first_packet_on() {
    row("establish = \"reserv\"", None);
}

#[test]
fn reserv_serves_all_behind_stateful_rules_too() {
    row("establish = \"reserv\"", Some(Rules::Nftables));
}

#[test]
fn no_syn_drop_serves_all_from_a_floods_first_packet_on() {
    row("establish = \"no-syn-drop\"", None);
}

#[test]
fn no_syn_drop_serves_all_behind_stateful_rules_too() {
    row("establish = \"no-syn-drop\"", Some(Rules::Nftables));
}

#[test]
fn priority_serves_all_from_a_floods_first_packet_on() {
    row("queue = \"priority\"", None);
}

#[test]
fn priority_serves_all_behind_stateful_rules_too() {
    row("queue = \"priority\"", Some(Rules::Nftables));
}
