//! A runner of property tests that prints its seed.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::{RngSeed, TestRunner};
use weir_testbed::seed::seed;

/// Runs so many cases with the seed in WEIR_SEED, or a new one, which it prints.
pub fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
}
