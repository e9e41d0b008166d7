//! `weir-lab proxy-matrix` in short.

use super::{measure, namespace};

/// Some thousand transfers; each run has a seed of its own, which a failure names.
fn expect_no_fault(flags: &str) {
    if namespace("root").is_none() {
        return;
    }
    let results = measure("proxy-matrix", &format!("--transfers 5000 {flags}"));
    let sum = |metric: &str| {
        results
            .cases
            .iter()
            .map(|case| case.median(metric))
            .sum::<f64>()
    };
    assert_eq!(sum("faults"), 0.0, "{results:#?}");
    assert!(sum("transfers") >= 5000.0);
    assert_eq!(sum("whole") + sum("cut"), sum("transfers"));
    // By four proxies with a cache of their own each; without one nothing is a hit.
    assert_eq!(
        sum("hits") > 20.0,
        flags.contains("--cache"),
        "{results:#?}"
    );
    // Both kinds are there, however often clients of HTTP/1.0 are cut.
    let third = sum("transfers") / 3.0;
    assert!(sum("whole") > third && sum("cut") > 0.0, "{results:#?}");
}

#[test]
fn tcp_connections_keep_every_byte_and_every_end() {
    expect_no_fault("--traffic tcp");
}

#[test]
fn connect_tunnels_keep_every_byte_and_every_end() {
    expect_no_fault("--traffic connect");
}

#[test]
fn requests_to_backends_and_their_replies_keep_every_byte() {
    expect_no_fault("--traffic reverse");
}

#[test]
fn requests_to_any_server_and_their_replies_keep_every_byte() {
    expect_no_fault("--traffic forward");
}

#[test]
fn replies_that_are_kept_on_their_way_and_given_again_keep_every_byte() {
    expect_no_fault("--traffic reverse --cache 64MiB");
}

/// What is sent again is joined with what was not lost.
#[test]
fn tunnels_over_a_line_that_loses_keep_every_byte_and_every_end() {
    expect_no_fault("--traffic tcp --loss 20");
}
