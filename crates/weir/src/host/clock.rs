//! The time of day, for reports and logs. What weir decides does not depend on it: anybody may set it.

use std::time::{SystemTime, UNIX_EPOCH};

/// ms since 1970 UTC; 0 before.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_millis() as u64)
}
