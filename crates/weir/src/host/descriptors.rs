//! How many descriptors the process may have.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, which needs no right: the usual soft limit is 1024. Says what it is then.
pub fn raise_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    if soft >= hard {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!("cannot raise the limit of {soft} descriptors: {error}");
            soft
        }
    }
}
