//! One error for the whole lab: what failed on which object, the cause, and what to do next.

/// What a failure means for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something that should work did not: exit 1.
    Failed,
    /// The command line or the environment asks for something senseless: exit 2.
    Usage,
    /// This machine or this user cannot do it: exit 3.
    Unsupported,
}

/// A failure of the lab.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct Error {
    /// Its meaning for the exit code.
    pub kind: Kind,
    /// What was tried, with its object, as in `cannot create network namespace x`.
    pub what: String,
    /// The answer of the kernel or of the program that was run.
    pub cause: String,
    /// What the user can do about it; empty when nothing is known.
    pub hint: String,
}

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn new(kind: Kind, what: impl Into<String>, cause: impl ToString) -> Error {
        Error {
            kind,
            what: what.into(),
            cause: cause.to_string(),
            hint: String::new(),
        }
    }

    /// A failure (exit 1).
    pub fn failed(what: impl Into<String>, cause: impl ToString) -> Error {
        Error::new(Kind::Failed, what, cause)
    }

    /// Bad usage (exit 2).
    pub fn usage(what: impl Into<String>, cause: impl ToString) -> Error {
        Error::new(Kind::Usage, what, cause)
    }

    /// Not possible on this machine (exit 3).
    pub fn unsupported(what: impl Into<String>, cause: impl ToString) -> Error {
        Error::new(Kind::Unsupported, what, cause)
    }

    /// The user pressed Ctrl-C (exit 1).
    pub fn interrupted() -> Error {
        Error::failed("stopped", "interrupted by a signal")
    }

    /// Adds what to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// The process's exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Failed => 1,
            Kind::Usage => 2,
            Kind::Unsupported => 3,
        }
    }
}

/// Gives any error its context.
pub trait Context<T> {
    /// Wraps the error as the cause of `what`.
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: ToString> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::failed(what, cause))
    }
}
