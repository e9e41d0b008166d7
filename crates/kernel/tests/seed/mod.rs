//! A runner of property tests that prints its seed.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::{RngSeed, TestRunner};

/// That of WEIR_SEED, or a new one.
pub fn seed() -> u64 {
    let given = std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("a clock after 1970").as_nanos() as u64
    })
}

/// Runs so many cases with the seed in WEIR_SEED, or a new one, which it prints.
pub fn runner(cases: u32) -> TestRunner {
    let seed = seed();
    println!("WEIR_SEED={seed}");
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
}
