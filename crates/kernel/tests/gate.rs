//! What the guard lets in to a server that queues inside. Needs root.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use etherparse::PacketBuilder;
use weir_core::listener::{ListenAddress, Listener, Mode, RejectSyn, ResidenceMode};
use weir_core::residence::Gate;
use weir_core::verdict::Verdict;
use weir_kernel::Guard;
use weir_testbed::{needs, netns};

fn syn(source: u32, port: u16) -> Vec<u8> {
    let client = Ipv4Addr::from_bits(0x0a00_0001 + source);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [0; 6])
        .ipv4(client.octets(), [127, 0, 0, 1], 64)
        .tcp(40_000, port, 1, 65_535)
        .syn()
        .write(&mut frame, &[])
        .unwrap();
    frame
}

/// So many that came at once were let in, refused by a RST, and dropped.
fn judged(listener: Listener, gate: Option<f64>, syns: u32) -> [u64; 3] {
    let mut guard = Guard::load().expect("the guard loads");
    let port = listener.address.port;
    guard.apply(&[listener], &[]).unwrap();
    let gate = gate.map(|room| Gate {
        room,
        per_s: 0.5,
        burst: 100.0,
        probes: 0.0,
        probes_per_s: 0.0,
    });
    guard.set_gate("web", gate.as_ref());
    guard.set_gate("unknown", gate.as_ref());
    for source in 0..syns {
        guard.judge_tc(&syn(source, port)).unwrap();
    }
    let counters = guard.counters("web").unwrap();
    [
        Verdict::SynAdmitted,
        Verdict::SynResetResidence,
        Verdict::SynDroppedResidence,
    ]
    .map(|verdict| counters.get(verdict))
}

#[test]
fn a_gate_lets_in_what_there_is_room_for_and_each_refusal_has_its_verdict() {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let server = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let web = || Listener {
        residence: ResidenceMode::Within(Duration::from_millis(250)),
        ..Listener::new("web", ListenAddress { ip: None, port })
    };
    assert_eq!(judged(web(), None, 40), [40, 0, 0]);
    assert_eq!(judged(web(), Some(7.0), 40), [7, 33, 0]);
    assert_eq!(judged(web(), Some(-7.0), 40), [0, 40, 0]);
    let drops = Listener {
        reject_syn: RejectSyn::Drop,
        ..web()
    };
    assert_eq!(judged(drops, Some(7.0), 40), [7, 0, 33]);
    let observes = Listener {
        mode: Mode::Observe,
        ..web()
    };
    assert_eq!(judged(observes, Some(7.0), 40), [7, 33, 0], "counted only");
}

#[test]
fn a_listener_that_no_longer_asks_for_it_refuses_nobody() {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return;
    }
    netns::enter_new().expect("a network namespace of our own");
    let server = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut web = Listener {
        residence: ResidenceMode::Within(Duration::from_millis(250)),
        ..Listener::new("web", ListenAddress { ip: None, port })
    };
    let mut guard = Guard::load().expect("the guard loads");
    let shut = Gate {
        room: -1.0,
        per_s: 0.5,
        burst: 1.0,
        probes: 0.0,
        probes_per_s: 0.0,
    };
    let mut refused = |listener: &Listener| {
        guard.apply(std::slice::from_ref(listener), &[]).unwrap();
        let before = guard.counters("web").unwrap();
        guard.judge_tc(&syn(1, port)).unwrap();
        let after = guard.counters("web").unwrap();
        let refused =
            after.get(Verdict::SynResetResidence) - before.get(Verdict::SynResetResidence);
        guard.set_gate("web", Some(&shut));
        refused
    };
    assert_eq!(refused(&web), 0);
    assert_eq!(refused(&web), 1, "it is kept at a reload");
    web.residence = ResidenceMode::Observe;
    assert_eq!(refused(&web), 0);
}
