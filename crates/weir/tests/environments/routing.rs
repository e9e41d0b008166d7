//! Ways back that differ from the way in, and filters that look at them.

use weir_testbed::needs::lacking;

use crate::bed::{Bed, OVERLAY, PORT, SERVER, at, holds, plug, serve};

/// Packets from an address must come in where packets to it go out.
#[test]
fn strict_rp_filter() {
    let Some(bed) = Bed::new() else { return };
    for netns in [&bed.client, &bed.server] {
        netns
            .set_sysctl("net.ipv4.conf.all.rp_filter", "1")
            .unwrap();
    }
    let _server = serve(&bed.server, PORT);
    let to = at(SERVER, PORT);
    holds("strict rp_filter", &bed.client, &to, &[(&bed.server, PORT)]);
}

/// What the server sends from its address on one link leaves by the other; weir's RST leaves where the SYN came in.
#[test]
fn policy_routing_with_another_way_back() {
    let Some(bed) = Bed::new() else { return };
    plug(&bed.client, "u1", &bed.server, "u1");
    bed.address_overlay("u1", "u1");
    for netns in [&bed.client, &bed.server] {
        for device in ["all", "u0", "u1"] {
            let name = format!("net.ipv4.conf.{device}.rp_filter");
            netns.set_sysctl(&name, "0").unwrap();
        }
    }
    bed.server
        .ip_batch(
            "rule add from 10.70.0.1 lookup 100
             -6 rule add from fd70::1 lookup 100
             route add default via 10.71.0.2 dev u1 table 100
             -6 route add default via fd71::2 dev u1 table 100",
        )
        .unwrap();
    let _server = serve(&bed.server, PORT);
    let to = [at(SERVER, PORT), at(OVERLAY, PORT)].concat();
    holds("another way back", &bed.client, &to, &[(&bed.server, PORT)]);
}

#[test]
fn tcp_ecn_1() {
    with_ecn("1");
}

/// Accurate ECN.
#[test]
fn tcp_ecn_3() {
    with_ecn("3");
}

fn with_ecn(ecn: &str) {
    let Some(bed) = Bed::new() else { return };
    for netns in [&bed.client, &bed.server] {
        if netns.set_sysctl("net.ipv4.tcp_ecn", ecn).is_err() {
            return lacking(format_args!("net.ipv4.tcp_ecn = {ecn}"));
        }
    }
    let _server = serve(&bed.server, PORT);
    let (name, to) = (format!("tcp_ecn = {ecn}"), at(SERVER, PORT));
    holds(&name, &bed.client, &to, &[(&bed.server, PORT)]);
}
