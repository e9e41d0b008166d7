//! weir comes and goes while connections are made and closed.

use nix::sys::signal::Signal;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::tcp_table::{BUSY, sockets_in_state};

use crate::bed::{
    First, REPLY, RULE, Server, THERE_V4, THERE_V6, ask, ask_meanwhile, run, there, time_waits,
};
use crate::common::{Bed, PORT, output, until};

/// Kills, each after some connections.
const KILLS: u32 = 12;
const BETWEEN: u64 = 200;

#[test]
fn kills_at_any_moment_leave_plain_tcp() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let made = ask_meanwhile(&bed, |wait_for| {
        for _ in 0..KILLS {
            let weir = run(&bed, RULE);
            wait_for(BETWEEN);
            weir.signal(Signal::SIGKILL);
            weir.end();
        }
    });
    assert!(made >= u64::from(KILLS) * BETWEEN, "{made}");
    // No connection is in between: those of the times without weir are in TIME-WAIT there, none here.
    assert_eq!(time_waits(bed.here()), 0);
    until_all_are_closed(&bed);
}

/// Waits until neither end has a connection that has packets to exchange.
fn until_all_are_closed(bed: &Bed) {
    let busy = |netns: &Netns| netns.run(|| sockets_in_state(BUSY, None)).unwrap();
    until("no connection is left open", || {
        (busy(bed.here()) + busy(bed.there()) == 0).then_some(())
    });
}

#[test]
fn where_packets_get_lost_every_connection_comes_to_its_end() {
    const TIMES: usize = 60;
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nft"]) {
        return;
    }
    let _servers = Server::start(&bed, PORT, First::Server);
    let _weir = run(&bed, RULE);
    // Not where packets go out: a sender whose own firewall drops them knows it, and waits otherwise than for a loss.
    for netns in [bed.here(), bed.there()] {
        let rules = "add table inet t; add chain inet t input { type filter hook input priority 0; }; \
                     add rule inet t input meta l4proto tcp numgen random mod 20 < 1 drop";
        output(netns, "nft", &[rules]);
    }
    for turn in 0..TIMES {
        let ip = [THERE_V4, THERE_V6][turn % 2];
        assert_eq!(ask(&bed, 0, there(ip)).as_deref(), Ok(REPLY), "{turn}");
    }
    until_all_are_closed(&bed);
    // A server that has lost the RST, or whose last ACK was lost, keeps its TIME-WAIT.
    let (left, swapped) = (time_waits(bed.there()), bed.figure("swapped") as usize);
    assert!(
        left <= TIMES / 4 && swapped + left >= TIMES,
        "{left}, {swapped}"
    );
    assert_eq!(time_waits(bed.here()), 0);
}
