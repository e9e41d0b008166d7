//! Settings of this network namespace that policies depend on. Read only: weir never writes one.

use std::path::Path;

use weir_core::config::{SynCookies, fit};
use weir_core::listener::Listener;

use crate::failure::{Code, Failure, Result};

/// What a policy has to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// `net.ipv4.tcp_syncookies`.
    pub syn_cookies: SynCookies,
}

impl Environment {
    /// As it is now.
    pub fn read() -> Environment {
        // A kernel built without CONFIG_SYN_COOKIES has no such file.
        let value = sysctl("net/ipv4/tcp_syncookies").unwrap_or(0);
        Environment {
            syn_cookies: SynCookies::from_sysctl(value).unwrap_or(SynCookies::Always),
        }
    }

    /// Whether the policy, or one of the same effect, is possible here.
    ///
    /// # Errors
    /// It is not; exit code 3.
    pub fn fits(&self, listener: &Listener) -> Result<()> {
        let object = format_args!("listener {:?}", listener.name);
        fit(listener, self.syn_cookies)
            .map(|_| ())
            .map_err(|fault| Failure::fault(Code::Unsupported, object, fault))
    }
}

/// A sysctl with one number, by its path below /proc/sys; `None` if this kernel has none.
pub fn sysctl(path: &str) -> Option<u32> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    text.trim().parse().ok()
}
