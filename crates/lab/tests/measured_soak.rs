//! A soak of seconds: the experiment works, and what it claims holds.

use weir_lab::cli;
use weir_lab::experiments;
use weir_lab::run::results::Verdict;
use weir_testbed::{needs, program};

#[test]
fn a_short_soak_loses_no_established_connection_and_leaves_none_over() {
    if !needs::root("network namespaces") {
        return;
    }
    let weir = program::find_or_build("weir").unwrap();
    let flags = experiments::find("soak").unwrap().quick;
    let results = cli::once("soak", flags, Some(weir)).unwrap();
    assert!(results.claims.len() > 3, "{results:#?}");
    for claim in &results.claims {
        assert_eq!(claim.verdict, Verdict::Held, "{claim:#?}");
    }
    let case = &results.cases[0];
    assert!(
        case.median("served") > 0.0 && case.median("echoes") > 0.0,
        "{case:#?}"
    );
}
