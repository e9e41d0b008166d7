//! `weir-lab proxy-mixed` and `proxy-delay` in short.

use std::sync::Mutex;

use weir_lab::experiments::proxy_bench::Size;
use weir_lab::experiments::proxy_mixed::{Pace, Side};
use weir_lab::experiments::{proxy_delay, proxy_mixed};
use weir_lab::proxy::contender::{Contender, Mode};

use crate::{namespace, weir};

/// The proxy's core has one meter.
static CORE: Mutex<()> = Mutex::new(());

#[test]
fn hits_and_passed_transfers_are_served_side_by_side() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    let out = tempfile::tempdir().unwrap();
    let args = proxy_mixed::Args {
        sizes: vec![Size(64 << 10)],
        paces: vec![Pace::Closed, Pace::Paced],
        contenders: vec![Contender::Weir, Contender::Copy],
        clients: 8,
        added_clients: vec![8],
        share: 0.1,
        added_shares: vec![0.1],
        seconds: 0.2,
        warm_up: 0.05,
        rounds: 1,
        weir: Some(weir().clone()),
        out: out.path().into(),
        json: false,
    };
    // Fails if a hit goes to the origin, or if a body is not the one that was asked for.
    let results = proxy_mixed::measure(&args).unwrap();
    assert_eq!(results.summaries.len(), 8);
    for summary in &results.summaries {
        let [alone, beside] = summary.steps.as_slice() else {
            panic!("{summary:?}");
        };
        assert_eq!(alone.rounds[0].added_per_s, 0.0, "{alone:?}");
        assert!(beside.rounds[0].added_per_s > 0.0, "{beside:?}");
        assert!(beside.rounds[0].watched_per_s > 0.0, "{beside:?}");
    }
    let watched = |side| {
        let all = results.summaries.iter();
        all.filter(|summary| summary.line.watched == side).count()
    };
    assert_eq!((watched(Side::Hits), watched(Side::Passed)), (4, 4));
    assert!(!results.verdicts.is_empty());
}

#[test]
fn packets_are_seen_to_come_and_to_go_in_both_modes() {
    if namespace("root").is_none() {
        return;
    }
    let _core = CORE.lock();
    let out = tempfile::tempdir().unwrap();
    let args = proxy_delay::Args {
        modes: vec![Mode::Http, Mode::Tunnel],
        sizes: vec![Size(1 << 10), Size(64 << 10)],
        contenders: vec![Contender::Weir, Contender::Copy],
        seconds: 0.5,
        rounds: 1,
        weir: Some(weir().clone()),
        out: out.path().into(),
        json: false,
    };
    let results = proxy_delay::measure(&args).unwrap();
    assert_eq!(results.summaries.len(), 8);
    for summary in &results.summaries {
        // Less than a µs would be a packet that no program has touched.
        assert!(summary.request_us.median > 1.0, "{summary:?}");
        assert!(summary.reply_us.median > 1.0, "{summary:?}");
        assert!(summary.reply_us.median < 100_000.0, "{summary:?}");
    }
}
