//! `weir-lab proxy-matrix` in short.

use weir_lab::experiments::proxy_matrix::{Args, measure};
use weir_lab::matrix::Traffic;

use super::{namespace, weir};

/// Some thousand transfers; each run has a seed of its own, which a failure names.
fn args(traffic: Traffic) -> Args {
    Args {
        transfers: 5_000,
        seed: None,
        traffic: vec![traffic],
        engines: ["auto", "copy", "splice", "sockmap"]
            .map(String::from)
            .to_vec(),
        clients: 128,
        patience: 20,
        threads: None,
        cache: None,
        loss: 0,
        weir: Some(weir().clone()),
        json: false,
    }
}

fn expect_no_fault(args: &Args) {
    if namespace("root").is_none() {
        return;
    }
    let matrix = measure(args).unwrap();
    assert_eq!(matrix.faults(), 0, "{}", matrix.render());
    assert!(matrix.transfers() >= args.transfers);
    let (whole, cut) = matrix.rows.iter().fold((0, 0), |(whole, cut), row| {
        (whole + row.tally.whole, cut + row.tally.cut)
    });
    assert_eq!(whole + cut, matrix.transfers());
    // By four proxies with a cache of their own each; without one nothing is a hit.
    let hits: u64 = matrix.rows.iter().map(|row| row.tally.hits).sum();
    assert_eq!(hits > 20, args.cache.is_some(), "{}", matrix.render());
    // Both kinds are there, however often clients of HTTP/1.0 are cut.
    let third = matrix.transfers() / 3;
    assert!(whole > third && cut > 0, "{whole} whole, {cut} cut");
}

#[test]
fn tcp_connections_keep_every_byte_and_every_end() {
    expect_no_fault(&args(Traffic::Tcp));
}

#[test]
fn connect_tunnels_keep_every_byte_and_every_end() {
    expect_no_fault(&args(Traffic::Connect));
}

#[test]
fn requests_to_backends_and_their_replies_keep_every_byte() {
    expect_no_fault(&args(Traffic::Reverse));
}

#[test]
fn requests_to_any_server_and_their_replies_keep_every_byte() {
    expect_no_fault(&args(Traffic::Forward));
}

#[test]
fn replies_that_are_kept_on_their_way_and_given_again_keep_every_byte() {
    expect_no_fault(&Args {
        cache: Some("64MiB".into()),
        ..args(Traffic::Reverse)
    });
}

/// What is sent again is joined with what was not lost.
#[test]
fn tunnels_over_a_line_that_loses_keep_every_byte_and_every_end() {
    expect_no_fault(&Args {
        loss: 20,
        ..args(Traffic::Tcp)
    });
}
