//! `weir-lab proxy-idle` and `proxy-slow` in short.

use weir_lab::experiments::proxy_bench::Size;
use weir_lab::experiments::{proxy_idle, proxy_slow};
use weir_lab::proxy::contender::{Contender, Mode};

use crate::{namespace, weir};

/// Memory that the allocator keeps beside what the connections need, in KiB.
const SLACK_KIB: u64 = 2048;

#[test]
fn idle_connections_take_no_cpu_and_as_much_memory_as_documented() {
    if namespace("root").is_none() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let args = proxy_idle::Args {
        tunnels: 2_000,
        kept: 2_000,
        contenders: vec![Contender::Weir],
        bytes: 1024,
        seconds: 1.0,
        settle: 0.0,
        weir: Some(weir().clone()),
        out: out.path().into(),
        json: false,
    };
    let results = proxy_idle::measure(&args).unwrap();
    for row in &results.rows {
        let (most, descriptors) = match row.mode {
            Mode::Tunnel => (2_000.0, 2.0),
            Mode::Http | Mode::Forward => (800.0, 1.0),
        };
        let slack = (SLACK_KIB * 1024) as f64 / row.connections as f64;
        assert!(row.rss_each() <= most + slack, "{row:?}");
        let others = row.descriptors_each() - descriptors;
        assert!((0.0..0.1).contains(&others), "{row:?}");
        // The sweep of kept connections once a second, and what reads the counters.
        assert!(row.cpu_share() < 0.01, "{row:?}");
        assert!(row.switches < 50, "{row:?}");
    }
    assert_eq!(results.rows.len(), 2);
}

#[test]
fn slow_readers_wait_in_the_kernel_and_not_in_the_proxy() {
    if namespace("root").is_none() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let args = proxy_slow::Args {
        readers: 200,
        bytes: Size(10 << 20),
        rate: 4096,
        receive_buffer: 8192,
        seconds: 2.0,
        plateau: None,
        modes: vec![Mode::Http, Mode::Tunnel],
        contenders: vec![Contender::Weir, Contender::Copy, Contender::Splice],
        weir: Some(weir().clone()),
        out: out.path().into(),
        json: false,
    };
    let results = proxy_slow::measure(&args).unwrap();
    assert_eq!(results.rows.len(), 6);
    for row in &results.rows {
        assert_eq!(row.ended_by, None, "{row:?}");
        assert!(row.taken_bytes > 0, "{row:?}");
        assert_eq!(row.course.len(), 1, "{row:?}");
        // Each holds a piece that its socket did not take, a buffer's length at most, once.
        let most = SLACK_KIB + row.readers as u64 * 68;
        assert!(row.rss_kib <= most, "{row:?}");
        assert!(row.rss_end_kib <= row.rss_middle_kib + SLACK_KIB, "{row:?}");
        assert!(row.pipes <= 256, "{row:?}");
    }
}
