//! Why a command failed: what on which object, the cause, the next action, and the exit code.

use std::fmt;

use serde::{Deserialize, Serialize};
pub use weir_api::Cause;
use weir_config::{Fault, Problems};
use weir_kernel::Error as KernelError;

/// Exit codes, as docs and scripts know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// 1: it was tried and failed.
    Failed,
    /// 2: bad usage or config.
    Usage,
    /// 3: this kernel or its settings do not allow it.
    Unsupported,
    /// 4: no weir runs in this network namespace.
    NotRunning,
    /// 5: the rest is in force, but weir guards some listener nowhere.
    NotInForce,
    /// 6: no refusal of the client is kept.
    NotKept,
    /// 2: there is nothing of this name, or nothing of this kind in the process that was asked.
    Unknown,
    /// 2: it contradicts what is in force.
    Conflict,
    /// 1: who asks has no right to it.
    Denied,
}

impl Code {
    /// The process's exit code.
    pub fn number(self) -> u8 {
        match self {
            Code::Failed | Code::Denied => 1,
            Code::Usage | Code::Unknown | Code::Conflict => 2,
            Code::Unsupported => 3,
            Code::NotRunning => 4,
            Code::NotInForce => 5,
            Code::NotKept => 6,
        }
    }
}

/// One or more causes with their hints, and the exit code. Also the error answer of the control
/// socket, so that `weir reload` prints what the daemon found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// How the process exits.
    pub code: Code,
    /// Each cause; never empty.
    pub causes: Vec<Cause>,
}

/// Result of a command or a part of one.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Exit code 1.
    pub fn failed(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Failed, message, hint)
    }

    /// Exit code 2.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, message, hint)
    }

    /// Exit code 3.
    pub fn unsupported(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Unsupported, message, hint)
    }

    /// Exit code 4.
    pub fn not_running(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::NotRunning, message, hint)
    }

    /// Nothing of this name, or of this kind.
    pub fn unknown(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Unknown, message, hint)
    }

    /// What is asked for contradicts what is in force.
    pub fn conflict(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Conflict, message, hint)
    }

    /// Who asks has no right to it.
    pub fn denied(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Code::Denied, message, hint)
    }

    fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure {
            code,
            causes: vec![Cause {
                message: message.into(),
                hint: hint.into(),
            }],
        }
    }

    /// Several failures as one, with the exit code of the first; `None` if there is none.
    pub fn all(failures: Vec<Failure>) -> Option<Failure> {
        let together = |mut all: Failure, next: Failure| {
            all.causes.extend(next.causes);
            all
        };
        failures.into_iter().reduce(together)
    }

    /// A failed system call or file operation; a missing right gets the hint to be root. The capabilities of
    /// [`ROOT_HINT`] are no right to files.
    pub fn io(what: impl fmt::Display, error: std::io::Error) -> Failure {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "run it as root (sudo)",
            _ => "",
        };
        Failure::failed(format!("cannot {what}: {error}"), hint)
    }

    /// A value that a policy or this namespace does not allow.
    pub fn fault(code: Code, object: impl fmt::Display, fault: Fault) -> Failure {
        Failure::new(code, format!("{object}: {}", fault.cause), fault.hint)
    }
}

/// What to do when the kernel says EPERM.
pub const ROOT_HINT: &str = "run it as root (sudo), or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";

/// The same where weir is to enter another network namespace; the unit of the service withholds it.
const ENTRY_HINT: &str = "it takes CAP_SYS_ADMIN; the service has it with CapabilityBoundingSet=CAP_SYS_ADMIN and \
                          RestrictNamespaces=net in a drop-in";

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        let cause = |p: weir_config::Problem| Cause {
            message: p.to_string(),
            hint: p.hint,
        };
        Failure {
            code: Code::Usage,
            causes: problems.0.into_iter().map(cause).collect(),
        }
    }
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Failure {
        let message = error.to_string();
        match error {
            KernelError::Unsupported { hint, .. } if hint.is_empty() => {
                Failure::unsupported(message, "`weir doctor` says what this kernel can do")
            }
            KernelError::Unsupported { hint, .. } => Failure::unsupported(message, hint),
            KernelError::Denied { .. } => Failure::failed(message, ROOT_HINT),
            KernelError::NoEntry { .. } => Failure::failed(message, ENTRY_HINT),
            KernelError::Failed { .. } => Failure::failed(message, ""),
        }
    }
}

impl fmt::Display for Failure {
    /// What comes first has no `error: ` in front: it may be told as a warning, or in a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Cause { message, hint }) in self.causes.iter().enumerate() {
            let start = if i == 0 { "" } else { "\nerror: " };
            write!(f, "{start}{message}")?;
            if !hint.is_empty() {
                write!(f, "\n  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_errors_have_the_exit_code_of_their_kind() {
        let unsupported = KernelError::Unsupported {
            what: "tcx".into(),
            cause: "kernel 5.4".into(),
            hint: String::new(),
        };
        let failure = Failure::from(unsupported);
        assert_eq!(failure.code.number(), 3);
        assert!(failure.to_string().contains("weir doctor"));
        let denied = KernelError::Denied {
            what: "load".into(),
            cause: "EPERM".into(),
        };
        assert_eq!(Failure::from(denied).code.number(), 1);
    }

    #[test]
    fn every_cause_is_printed_with_its_hint() {
        let problems = weir_config::parse("f", "[x]\n[y]\n").unwrap_err();
        let text = Failure::from(problems).to_string();
        assert!(!text.starts_with("error: "), "{text}");
        assert_eq!(text.matches("error: ").count(), 1);
        assert_eq!(text.matches("  hint: ").count(), 2);
    }
}
