//! The seed of a test with random input.

use std::time::{SystemTime, UNIX_EPOCH};

/// The environment variable that runs a failure again.
const VARIABLE: &str = "WEIR_SEED";

/// The number in `WEIR_SEED`, or another one each time. It is printed, so that a failure can be run again.
///
/// # Panics
/// The variable is not a number: a test that took another one would not be the failure.
pub fn seed() -> u64 {
    let seed = match std::env::var(VARIABLE) {
        Ok(given) => given
            .parse()
            .unwrap_or_else(|error| panic!("{VARIABLE}={given}: {error}")),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.expect("a clock after 1970").as_nanos() as u64
        }
    };
    println!("{VARIABLE}={seed}");
    seed
}
