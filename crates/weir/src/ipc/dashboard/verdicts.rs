//! What the page must know of verdicts to draw them: the tables of bpf/abi/guard.h and quic.h, and the stage that decides
//! each.

use std::sync::LazyLock;

use axum::Json;
use serde_json::{Value, json};
use weir_core::quic::{QUIC_VERDICTS, QuicVerdictInfo};
use weir_core::verdict::{ADMITS, Kind, LET_IN, SYNS, VERDICTS, Verdict, VerdictInfo, refusals};

static LIST: LazyLock<Value> = LazyLock::new(|| {
    let quic = QUIC_VERDICTS.iter().map(quic_row);
    VERDICTS.iter().map(row).chain(quic).collect()
});

/// All of them, in their order.
pub async fn list() -> Json<&'static Value> {
    Json(&LIST)
}

fn row(row: &VerdictInfo) -> Value {
    let verdict = row.verdict;
    json!({
        "name": row.name,
        "text": row.text,
        "kind": word(row.kind),
        "stage": stage(verdict),
        // Each SYN has one of these.
        "is_syn": SYNS.contains(&verdict),
        "lets_in": LET_IN.contains(&verdict),
        // The two sums that `weir top` and the metrics have too.
        "admits": ADMITS.contains(&verdict),
        "refuses": refusals().any(|refusal| refusal.verdict == verdict),
    })
}

/// Of a QUIC listener. Its attempts are no SYNs, and pass none of the stages that the page draws.
fn quic_row(row: &QuicVerdictInfo) -> Value {
    json!({
        "name": row.name,
        "text": row.text,
        "kind": word(row.kind),
        "stage": "quic",
        "is_syn": false,
        "lets_in": false,
        "admits": row.kind == Kind::Pass,
        "refuses": row.kind == Kind::Refuse,
    })
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Pass => "pass",
        Kind::Refuse => "refuse",
        Kind::Answer => "answer",
        Kind::Note => "note",
    }
}

/// The stage that decides it (docs/architecture.md).
fn stage(verdict: Verdict) -> &'static str {
    use Verdict as V;
    match verdict {
        V::SynDroppedRate | V::SynResetRate | V::SynDroppedHeld | V::SynResetHeld => "police",
        V::SynNotPlain | V::SynInFragments => "police",
        V::QueueResetFull | V::QueueResetLimit => "queue",
        V::FinReset => "close",
        V::SynAdmitted | V::SynSteady | V::SynTimeWait | V::SynRepeated => "establish",
        V::SynJoin => "establish",
        V::SynUnheard | V::SynLeft | V::SynLeftFlood | V::SynUnjudged => "establish",
        V::SynDroppedFull | V::SynResetFull | V::SynDroppedWait | V::SynResetWait => "establish",
        V::SynDroppedResidence | V::SynResetResidence => "establish",
        V::CookieSent | V::CookieSentFlood | V::CookieAccepted => "establish",
        V::CookieInvalid | V::CookieFailed | V::AckResetFull | V::AckResetWait => "establish",
        V::FallbackMptcp | V::RefusedAtXdp | V::SynRetried => "establish",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_is_there_and_every_refusal_has_a_stage_that_the_page_draws() {
        let rows = LIST.as_array().unwrap();
        assert_eq!(rows.len(), VERDICTS.len() + QUIC_VERDICTS.len());
        let (rows, quic) = rows.split_at(VERDICTS.len());
        let refuse: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "refuse").collect();
        for row in &refuse {
            let stage = row["stage"].as_str().unwrap();
            assert!(
                ["police", "establish", "queue", "close"].contains(&stage),
                "{row}"
            );
        }
        let of = |stage: &str| refuse.iter().filter(|row| row["stage"] == stage).count();
        assert_eq!((of("police"), of("queue"), of("close")), (4, 2, 1));
        let summed = rows.iter().filter(|row| row["refuses"] == true).count();
        assert_eq!(summed, refuse.len() - 1, "all but fin_reset");
        // No SYN is counted twice, and no river has them.
        for row in quic {
            assert_eq!(
                (&row["stage"], &row["is_syn"]),
                (&json!("quic"), &json!(false))
            );
            assert_eq!(row["refuses"], row["kind"] == "refuse");
        }
    }
}
