//! What can go wrong with a call.

use std::fmt::Display;
use std::io;

use weir_api::Problem;

/// A call's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No weir there, no right to connect, or it does not answer.
    #[error("ask {path}: {source}")]
    Io {
        /// The socket.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// weir refused.
    #[error("{problem}")]
    Refused {
        /// The HTTP status: 400 wrong, 403 no right, 404 unknown, 409 in the way of another.
        status: u16,
        /// What it says.
        problem: Problem,
    },
    /// No name of a listener or class has these characters.
    #[error("{0:?} is no name: it has letters, digits, '.', '_' and '-'")]
    Name(String),
    /// The answer is none of this version's.
    #[error("the answer is not understood, is weir of another version? {0}")]
    Malformed(serde_json::Error),
}

impl Error {
    pub(crate) fn io(path: impl Display, source: io::Error) -> Error {
        Error::Io {
            path: path.to_string(),
            source,
        }
    }

    /// This user may not ask, or not ask for that.
    pub fn is_denied(&self) -> bool {
        match self {
            Error::Io { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Error::Refused { status, .. } => *status == 403,
            _ => false,
        }
    }

    /// There is no listener, class or controller of this name.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Refused { status: 404, .. })
    }
}
