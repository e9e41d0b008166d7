//! `weir-lab proxy-lossy` in short.

use weir_testbed::needs;

use crate::{measure, namespace};

#[test]
fn replies_cross_lossy_links_with_a_proxy_and_without_at_their_distance() {
    if namespace("root").is_none() || !needs::root("emulated links") {
        return;
    }
    let results = measure(
        "proxy-lossy",
        "--sizes 1K --losses 5% --client-loss 0% --ways direct,weir,weir-http --clients 10 --seconds 6 --warm-up 1 \
         --rounds 1",
    );
    let of = |way: &str, metric: &str| results.case([("way", way)]).median(metric);
    for way in ["direct", "weir", "weir-http"] {
        assert!(of(way, "replies") > 10.0, "{results:#?}");
    }
    // Two round trips of 240 ms, and 1 KB at 56 kb/s.
    for way in ["direct", "weir"] {
        assert!(
            (600.0..1000.0).contains(&of(way, "least_ms")),
            "{results:#?}"
        );
    }
    // With a kept connection to the origin, one round trip there less.
    assert!(
        of("weir-http", "least_ms") < of("weir", "least_ms") - 50.0,
        "{results:#?}"
    );
    // Without a proxy the one link has all losses; else the modems have none, and the link to the origin has them.
    assert!(
        of("direct", "lost_front") > 0.0 && of("weir", "lost_front") == 0.0,
        "{results:#?}"
    );
    assert!(of("weir", "lost_back") > 0.0, "{results:#?}");
}
