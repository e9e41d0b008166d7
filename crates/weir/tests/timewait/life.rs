//! weir comes and goes while connections are made and closed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::signal::Signal;

use crate::bed::{First, REPLY, RULE, Server, THERE_V4, THERE_V6, ask, run, there, time_waits};
use crate::common::{Bed, PORT, until};

/// Kills, each after some connections.
const KILLS: u32 = 12;
const BETWEEN: u64 = 200;

#[test]
fn kills_at_any_moment_leave_plain_tcp() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let (ended, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for ip in [THERE_V4, THERE_V6] {
                    let reply = ask(&bed, 0, there(ip));
                    assert_eq!(reply.as_deref(), Ok(REPLY), "{ip}");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..KILLS {
            let weir = run(&bed, RULE);
            let enough = made.load(Ordering::Relaxed) + BETWEEN;
            until("connections were made", || {
                assert!(!client.is_finished(), "a connection failed");
                (made.load(Ordering::Relaxed) >= enough).then_some(())
            });
            weir.signal(Signal::SIGKILL);
            weir.end();
        }
        ended.store(true, Ordering::Relaxed);
    });
    let made = made.load(Ordering::Relaxed) as usize;
    assert!(made >= KILLS as usize * BETWEEN as usize, "{made}");
    // No connection is in between: those of the times without weir are in TIME-WAIT there, none here.
    assert_eq!(time_waits(bed.here()), 0);
    until("no connection is left open", || {
        let left = |netns| {
            let sockets = ["-tanH", "state", "connected", "exclude", "time-wait"];
            let sockets = crate::common::output(netns, "ss", &sockets);
            sockets.lines().count()
        };
        (left(bed.here()) + left(bed.there()) == 0).then_some(())
    });
}
