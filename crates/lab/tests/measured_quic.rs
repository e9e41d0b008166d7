//! The crowd of QUIC clients in short, before the test bed's own servers. Alone: it begins with a search for their peak, and beside
//! other work the crowd of four times that is none.

use weir_lab::cli;
use weir_testbed::needs;

#[test]
fn every_client_of_a_quic_crowd_and_every_request_beside_it_is_counted() {
    if !needs::root("a network namespace") {
        return;
    }
    let flags = "--servers quinn,quinn-socket --guards plain --rates 4 --peak-seconds 0.3 --seconds 1 --timeout 1 --steady 4";
    let results = cli::once("quic-crowd", flags, None).unwrap();
    for server in ["quinn", "quinn-socket"] {
        let case = results.case([("server", server), ("guard", "plain")]);
        let ended = ["answered", "timed_out", "refused", "other"].map(|end| case.median(end));
        assert!((ended.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{case:?}");
        assert!(case.median("answered") > 0.0, "{case:?}");
        assert!(case.median("timed_out") > 0.0, "{case:?}");
        assert_eq!(case.median("refused"), 0.0, "{case:?}");
        let counts = ["in_time", "late", "lost"].map(|end| case.median(&format!("steady_{end}")));
        let requests = case.median("steady_requests");
        assert!(requests >= 4.0, "{case:?}");
        assert_eq!(counts.iter().sum::<f64>(), requests, "{case:?}");
    }
}
