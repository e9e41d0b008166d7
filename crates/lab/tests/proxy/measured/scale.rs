//! `weir-lab proxy-idle` and `proxy-slow` in short.

use crate::{measure, namespace};

/// Memory that the allocator keeps beside what the connections need, in KiB.
const SLACK_KIB: f64 = 2048.0;

#[test]
fn idle_connections_take_no_cpu_and_as_much_memory_as_documented() {
    if namespace("root").is_none() {
        return;
    }
    let results = measure(
        "proxy-idle",
        "--tunnels 2000 --kept 2000 --contenders weir --seconds 1 --settle 0",
    );
    for (mode, most, descriptors) in [("tunnel", 2_000.0, 2.0), ("http", 800.0, 1.0)] {
        let case = results.case([("mode", mode)]);
        let slack = SLACK_KIB * 1024.0 / 2000.0;
        assert!(case.median("rss_bytes_each") <= most + slack, "{case:?}");
        let others = case.median("descriptors_each") - descriptors;
        assert!((0.0..0.1).contains(&others), "{case:?}");
        // The sweep of kept connections once a second, and what reads the counters.
        assert!(case.median("cpu_share") < 0.01, "{case:?}");
        assert!(case.median("switches_per_s") < 50.0, "{case:?}");
    }
    assert_eq!(results.cases.len(), 2);
}

#[test]
fn slow_readers_wait_in_the_kernel_and_not_in_the_proxy() {
    if namespace("root").is_none() {
        return;
    }
    let results = measure(
        "proxy-slow",
        "--readers 200 --seconds 2 --contenders weir,copy,splice",
    );
    assert_eq!(results.cases.len(), 6);
    for case in &results.cases {
        assert!(case.notes.is_empty(), "{case:?}");
        assert!(case.median("taken_mb") > 0.0, "{case:?}");
        assert_eq!(case.series["at_s"].len(), 1, "{case:?}");
        // Each holds a piece that its socket did not take, a buffer's length at most, once.
        let most_mib = (SLACK_KIB + 200.0 * 68.0) / 1024.0;
        assert!(case.median("rss_mib") <= most_mib, "{case:?}");
        let middle_mib = case.median("rss_middle_mib");
        assert!(
            case.median("rss_end_mib") <= middle_mib + SLACK_KIB / 1024.0,
            "{case:?}"
        );
        assert!(case.median("pipes") <= 256.0, "{case:?}");
    }
}
