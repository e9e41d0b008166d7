//! QUIC servers under guard: what weir sees of attempts, and that it can be taken off again.

use std::time::Duration;

use weir_testbed::quic::{QuicServer, QuicServerKind, attempt};

use crate::common::{Bed, PATIENCE, PORT, Weir, until};

fn guarded(bed: &Bed, keys: &str) -> Weir {
    bed.run(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\n{keys}"
    ))
}

fn quick() -> QuicServerKind {
    QuicServerKind::QueuesInside {
        service: Duration::ZERO,
    }
}

fn counter(bed: &Bed, name: &str) -> u64 {
    let status = bed.status();
    let counter = &status["quic"][0]["counters"][name];
    counter
        .as_u64()
        .unwrap_or_else(|| panic!("no {name}: {status}"))
}

#[test]
fn every_attempt_and_its_answer_are_seen_by_either_family_and_on_loopback() {
    let Some(bed) = Bed::new() else { return };
    let _weir = guarded(&bed, "");
    let mut all = 0;
    for path in [bed.veth4(), bed.veth6(), bed.loopback4()] {
        let server = QuicServer::start(bed.server(), path.at(PORT), quick()).unwrap();
        for _ in 0..10 {
            let outcome = attempt(path.client, server.address(), PATIENCE).unwrap();
            outcome.connected().echo(PATIENCE).unwrap();
        }
        all += 10;
        assert_eq!(counter(&bed, "quic_admitted"), all, "{}", path.name);
        assert_eq!(counter(&bed, "quic_answered"), all, "{}", path.name);
    }
    let status = bed.status();
    assert_eq!(status["quic"][0]["in_force"], true);
    for socket in status["quic"][0]["sockets"].as_array().unwrap() {
        assert_eq!(socket["pending"], 0, "{status}");
    }
}
