//! `weir-lab proxy-mixed` and `proxy-delay` in short.

use std::sync::Mutex;

use crate::{measure, namespace};

/// The proxy's core has one meter.
static CORE: Mutex<()> = Mutex::new(());

#[test]
fn hits_and_passed_transfers_are_served_side_by_side() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    // Fails if a hit goes to the origin, or if a body is not the one that was asked for.
    let results = measure(
        "proxy-mixed",
        "--sizes 64K --clients 8 --added-clients 8 --share 0.1 --added-shares 0.1 --seconds 0.2 --rounds 1",
    );
    assert_eq!(results.cases.len(), 16);
    for case in &results.cases {
        let is_alone = case.parameter("added") == "0";
        assert_eq!(case.median("added_per_s") > 0.0, !is_alone, "{case:?}");
        assert!(case.median("watched_per_s") > 0.0, "{case:?}");
    }
    let watched = |side| {
        let all = results.cases.iter();
        all.filter(|case| case.parameter("watched") == side).count()
    };
    assert_eq!((watched("hits"), watched("passed")), (8, 8));
    assert!(!results.claims.is_empty());
}

#[test]
fn a_reply_costs_packets_and_time_on_each_link() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    let results = measure(
        "proxy-bench",
        "--link card,tso,gro,mtu --cases get --sizes 33K --contenders copy --seconds 0.3 --rounds 1",
    );
    let packets = |link: &str, way: &str| {
        let case = results.case([("link", link)]);
        assert!(case.median("process_us") > 1.0, "{case:?}");
        case.median(&format!("packets_{way}"))
    };
    // Of 24 segments of the body: with TSO they come together, without GRO each for itself.
    assert!(
        packets("tso", "in") < 6.0 && packets("mtu", "in") > 24.0,
        "{results:#?}"
    );
    assert!(packets("gro", "in") < packets("mtu", "in"), "{results:#?}");
    assert!(packets("gro", "out") < 12.0, "{results:#?}");
}

#[test]
fn a_handshake_goes_through_the_tunnel_before_the_request() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    // Fails if a message of the handshake is not the one that is due.
    let results = measure(
        "proxy-bench",
        "--link mtu --cases tunnel-connect,tunnel-ssl --connect-sizes 1K --contenders copy --clients 8 --seconds 0.3 --rounds 1",
    );
    let of = |kind: &str, metric: &str| results.case([("kind", kind)]).median(metric);
    for kind in ["tunnel-connect", "tunnel-ssl"] {
        assert!(of(kind, "replies_per_s") > 0.0, "{results:#?}");
    }
    // Its messages come in three or four packets.
    let more = of("tunnel-ssl", "packets_in") - of("tunnel-connect", "packets_in");
    assert!(more > 2.0, "{results:#?}");
}

#[test]
fn packets_are_seen_to_come_and_to_go_in_both_modes() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    let results = measure(
        "proxy-delay",
        "--sizes 1K,64K --contenders weir,copy --seconds 0.5 --rounds 1",
    );
    assert_eq!(results.cases.len(), 8);
    for case in &results.cases {
        // Less than a µs would be a packet that no program has touched.
        assert!(case.median("request_us") > 1.0, "{case:?}");
        assert!(case.median("reply_us") > 1.0, "{case:?}");
        assert!(case.median("reply_us") < 100_000.0, "{case:?}");
    }
}
