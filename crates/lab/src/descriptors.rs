//! How many files and sockets this process may hold.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Context, Result};

/// Raises RLIMIT_NOFILE to so many, as far as this process may; says how many it may hold now.
pub fn allow(wanted: u64) -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read RLIMIT_NOFILE")?;
    if soft >= wanted {
        return Ok(soft);
    }
    // Root may go beyond the hard limit.
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok() {
        return Ok(wanted);
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise RLIMIT_NOFILE")?;
    Ok(hard)
}
