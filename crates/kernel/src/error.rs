//! What can go wrong between weir and the kernel.

/// What went wrong, on which object, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has not what is needed.
    #[error("{what} is not supported here: {cause}")]
    Unsupported {
        /// The mechanism.
        what: String,
        /// What is missing.
        cause: String,
        /// What to do about it.
        hint: String,
    },
    /// Not enough rights.
    #[error("no right to {what}: {cause}")]
    Denied {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        cause: String,
    },
    /// Not let into another network namespace.
    #[error("no right to {what}: {cause}")]
    NoEntry {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        cause: String,
    },
    /// Any other failure.
    #[error("cannot {what}: {cause}")]
    Failed {
        /// What was tried, with its object.
        what: String,
        /// The kernel's or libbpf's answer.
        cause: String,
    },
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Sorts a libbpf error into denied and failed.
pub(crate) fn of_libbpf(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let what = what.into();
    move |e| match e.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Error::Denied {
            what,
            cause: e.to_string(),
        },
        _ => Error::Failed {
            what,
            cause: format!("{e:#}"),
        },
    }
}

/// The last system call's error, sorted likewise.
pub(crate) fn of_errno(what: impl Into<String>) -> Error {
    let (what, e) = (what.into(), std::io::Error::last_os_error());
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Denied {
            what,
            cause: e.to_string(),
        },
        _ => Error::Failed {
            what,
            cause: e.to_string(),
        },
    }
}
