//! The record that stands for a server's TIME-WAIT: what it keeps out, and when it gives way.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weir_testbed::needs;

use crate::bed::{First, REPLY, RULE, Server, THERE_V4, THERE_V6, ask, run, there};
use crate::common::{Bed, PORT, output};

/// A port here that no other socket has.
const FROM: u16 = 20_000;

#[test]
fn without_timestamps_a_record_gives_way_to_later_sequence_numbers_or_ends() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    for netns in [bed.here(), bed.there()] {
        netns.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    }
    let _weir = run(&bed, &format!("{RULE}timewait_length = \"3s\"\n"));
    for _ in 0..2 {
        for ip in [THERE_V4, THERE_V6] {
            assert_eq!(ask(&bed, FROM, there(ip)).as_deref(), Ok(REPLY), "{ip}");
        }
        bed.figure_becomes("held", 2);
    }
    assert_eq!((bed.figure("refused"), bed.figure("reused")), (0, 2));
    bed.figure_becomes("held", 0);
    assert_eq!(bed.figure("bytes"), 0);
}

#[test]
fn with_timestamps_a_record_gives_way_to_a_later_connection() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let _weir = run(&bed, RULE);
    for ip in [THERE_V4, THERE_V6] {
        assert_eq!(ask(&bed, FROM, there(ip)).as_deref(), Ok(REPLY), "{ip}");
    }
    bed.figure_becomes("held", 2);
    for ip in [THERE_V4, THERE_V6] {
        assert_eq!(ask(&bed, FROM, there(ip)).as_deref(), Ok(REPLY), "{ip}");
    }
    assert_eq!((bed.figure("refused"), bed.figure("reused")), (0, 2));
    bed.figure_becomes("swapped", 4);
    bed.figure_becomes("held", 2);
}

#[test]
fn a_clock_of_timestamps_that_runs_backwards_is_no_obstacle() {
    const PORTS: u16 = 16;
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let _weir = run(&bed, &format!("{RULE}timewait_length = \"600s\"\n"));
    // 1: with a random offset; 2: without.
    let offset = |value| {
        let sysctl = "net.ipv4.tcp_timestamps";
        bed.there().set_sysctl(sysctl, value).unwrap();
    };
    for value in ["1", "2"] {
        offset(value);
        for port in FROM..FROM + PORTS {
            assert_eq!(ask(&bed, port, there(THERE_V4)).as_deref(), Ok(REPLY));
        }
        bed.figure_becomes("held", PORTS.into());
    }
    let figures = (bed.figure("reused"), bed.figure("refused"));
    assert_eq!(figures, (PORTS.into(), 0));
}

#[test]
fn another_server_behind_the_same_address_takes_every_connection() {
    /// A quarter have neither a later timestamp nor a later sequence number: that none does comes about once in 10^8 runs.
    const PORTS: u16 = 64;
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 66, 1, 3));
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nft"]) {
        return;
    }
    let lines = format!("addr add {OTHER}/32 dev lo");
    bed.there().ip_batch(&lines).unwrap();
    let _servers = Server::start(&bed, PORT, First::Server);
    let _other = Server::at(&bed, SocketAddr::new(OTHER, PORT), First::Server);
    let _weir = run(&bed, &format!("{RULE}timewait_length = \"5s\"\n"));
    let all_are_served = || {
        let bed = &bed;
        std::thread::scope(|scope| {
            let ports = FROM..FROM + PORTS;
            let asks: Vec<_> = ports
                .map(|port| scope.spawn(move || ask(bed, port, there(THERE_V4))))
                .collect();
            for ask in asks {
                assert_eq!(ask.join().unwrap().as_deref(), Ok(REPLY));
            }
        });
    };
    all_are_served();
    bed.figure_becomes("held", PORTS.into());
    let rules = format!(
        "table ip balancer {{ chain arrivals {{ type nat hook prerouting priority dstnat; \
         ip daddr {THERE_V4} tcp dport {PORT} dnat to {OTHER} ; }} ; }}"
    );
    output(bed.there(), "nft", &[&rules]);
    all_are_served();
    // Those that it put off, and took when the record had ended.
    assert_ne!(bed.figure("refused"), 0);
}
