//! The record that stands for a server's TIME-WAIT: what it keeps out, and when it gives way.

use std::io::ErrorKind;

use crate::bed::{First, REPLY, RULE, Server, THERE_V4, THERE_V6, ask, run, there};
use crate::common::{Bed, PORT};

/// A port here that no other socket has.
const FROM: u16 = 20_000;

#[test]
fn without_timestamps_a_record_refuses_its_addresses_and_ports_until_it_ends() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    for netns in [bed.here(), bed.there()] {
        netns.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    }
    let _weir = run(&bed, &format!("{RULE}timewait_length = \"3s\"\n"));
    for ip in [THERE_V4, THERE_V6] {
        assert_eq!(ask(&bed, FROM, there(ip)).as_deref(), Ok(REPLY), "{ip}");
    }
    bed.figure_becomes("held", 2);
    for ip in [THERE_V4, THERE_V6] {
        let again = ask(&bed, FROM, there(ip));
        assert_eq!(again, Err(ErrorKind::ConnectionRefused), "{ip}");
        let beside = ask(&bed, FROM + 1, there(ip));
        assert_eq!(beside.as_deref(), Ok(REPLY), "another port is free: {ip}");
    }
    assert_eq!((bed.figure("refused"), bed.figure("reused")), (2, 0));
    bed.figure_becomes("held", 0);
    assert_eq!(bed.figure("bytes"), 0);
    for ip in [THERE_V4, THERE_V6] {
        assert_eq!(ask(&bed, FROM, there(ip)).as_deref(), Ok(REPLY), "{ip}");
    }
    assert_eq!((bed.figure("refused"), bed.figure("reused")), (2, 0));
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
fn a_clock_of_timestamps_that_runs_backwards_is_refused() {
    /// Half of the clocks jump back: that none does, or all do, comes about once in 2^15 runs.
    const PORTS: u16 = 16;
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let _weir = run(&bed, &format!("{RULE}timewait_length = \"600s\"\n"));
    // 1: with a random offset; 2: without.
    let offset = |value| {
        let sysctl = "net.ipv4.tcp_timestamps";
        bed.there().set_sysctl(sysctl, value).unwrap();
    };
    let connect = |port| ask(&bed, port, there(THERE_V4));
    for port in FROM..FROM + PORTS {
        assert_eq!(connect(port).as_deref(), Ok(REPLY));
    }
    bed.figure_becomes("held", PORTS.into());
    offset("2");
    let again: Vec<_> = (FROM..FROM + PORTS).map(connect).collect();
    let count = |wanted: &Result<Vec<u8>, ErrorKind>| {
        again.iter().filter(|one| *one == wanted).count() as u64
    };
    let (served, refused) = (
        count(&Ok(REPLY.to_vec())),
        count(&Err(ErrorKind::ConnectionRefused)),
    );
    assert_eq!(served + refused, u64::from(PORTS), "{again:?}");
    assert!(served > 0 && refused > 0, "{again:?}");
    assert_eq!(
        (bed.figure("reused"), bed.figure("refused")),
        (served, refused)
    );
}
