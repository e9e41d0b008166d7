//! A failure of a system call.

use crate::error::Error;

/// `what` could not be done, for the reason that the kernel gave.
pub(super) fn failed(what: &str, e: nix::errno::Errno) -> Error {
    Error::Failed {
        what: what.into(),
        cause: e.desc().into(),
    }
}
