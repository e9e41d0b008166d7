//! What observing a QUIC server says that enforcing would refuse, and what enforcing then refuses.

use std::time::Duration;

use weir_testbed::quic::{QuicServer, QuicServerKind, crowd};

use crate::common::{Bed, PORT};

/// So far may the forecast be off: ten points; one where nobody is refused.
const POINTS: f64 = 0.10;
const FEW_POINTS: f64 = 0.01;
const SECONDS: f64 = 8.0;
/// In observe mode clients wait for as long.
const PATIENCE: Duration = Duration::from_secs(4);

fn inside(ms: u64) -> QuicServerKind {
    QuicServerKind::QueuesInside {
        service: Duration::from_millis(ms),
    }
}

fn in_socket(ms: u64) -> QuicServerKind {
    QuicServerKind::QueuesInSocket {
        service: Duration::from_millis(ms),
        receive_buffer_bytes: 1 << 20,
    }
}

/// How its clients fared: shares of them.
struct Fared {
    /// Those that were refused.
    refused: f64,
    /// Those that verdicts say.
    verdicts: f64,
    /// Those that weir says it would have refused, and its sentence.
    would: Option<f64>,
    said: String,
}

/// Observes a server, or enforces.
fn fare(bed: &Bed, kind: QuicServerKind, per_second: f64, mode: &str) -> Fared {
    let path = bed.veth4();
    let _weir = bed.run(&format!(
        "[[quic]]\nname = \"h3\"\naddress = \"*:{PORT}\"\nmode = \"{mode}\"\n"
    ));
    let server = QuicServer::start(bed.server(), path.at(PORT), kind).unwrap();
    let came = crowd(path.client, server.address(), per_second, SECONDS, PATIENCE).unwrap();
    let status = bed.status();
    let said = String::from_utf8(bed.weir("status").stdout).unwrap();
    let h3 = &status["quic"][0];
    let counters = h3["counters"].as_object().unwrap();
    let count = |is: fn(&str) -> bool| -> u64 {
        let those = counters.iter().filter(|(name, _)| is(name));
        those.filter_map(|(_, count)| count.as_u64()).sum()
    };
    let turned_away = count(|name| name.starts_with("quic_vn") || name.starts_with("quic_dropped"));
    let judged = turned_away + count(|name| name == "quic_admitted" || name == "quic_floor");
    // Only while it observes.
    let would = h3["would_refuse"].as_f64();
    Fared {
        refused: came.version_refused.len() as f64 / came.clients() as f64,
        verdicts: turned_away as f64 / judged.max(1) as f64,
        would: would.map(|would| would / h3["offered"].as_f64().unwrap()),
        said,
    }
}

#[test]
fn what_observing_says_is_what_enforcing_then_refuses() {
    // The clients are on the same CPUs: more of them, who all wait in observe mode, take the server what it would have.
    let servers = [
        (inside(16), 110.0),
        (in_socket(5), 350.0),
        (in_socket(5), 700.0),
        (inside(5), 80.0),
        (inside(40), 40.0),
    ];
    let mut failed = Vec::new();
    for (kind, per_second) in servers {
        let (Some(observing), Some(enforcing)) = (Bed::new(), Bed::new()) else {
            return;
        };
        let observed = fare(&observing, kind, per_second, "observe");
        let Fared {
            refused,
            would: none,
            ..
        } = fare(&enforcing, kind, per_second, "enforce");
        assert_eq!(none, None, "it is a figure of observe mode");
        let would = observed.would.expect("what it would refuse");
        let verdicts = observed.verdicts;
        let seen = format!(
            "{kind:?}, {per_second}/s: verdicts say {verdicts:.3}, would refuse {would:.3}, then refused {refused:.3}"
        );
        println!("{seen}");
        let points = if verdicts < 0.01 { FEW_POINTS } else { POINTS };
        if (would - refused).abs() > points {
            failed.push(seen);
        }
        if verdicts > would {
            let said = &observed.said;
            assert!(said.contains("would have refused"), "{said}");
            assert!(said.contains("the verdicts are more"), "{said}");
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
