//! Settings of this network namespace that policies depend on. Read only: weir never writes one.

use std::path::Path;

use weir_core::config::{Environment, SynCookies, fit};
use weir_core::listener::Listener;

use crate::failure::{Code, Failure, Result};

/// What this kernel and this network namespace allow now.
pub fn read() -> Environment {
    // A kernel built without CONFIG_SYN_COOKIES has no such file.
    let syn_cookies = sysctl("net/ipv4/tcp_syncookies").unwrap_or(0);
    Environment {
        syn_cookies: SynCookies::from_sysctl(syn_cookies).unwrap_or(SynCookies::Always),
        bpf_cookies: weir_kernel::has_cookie_kfunc(),
    }
}

/// Whether each policy, or one of the same effect, is possible here.
///
/// # Errors
/// One is not; exit code 3.
pub fn check_fit(environment: Environment, listeners: &[Listener]) -> Result<()> {
    for listener in listeners {
        fit(listener, environment).map_err(|fault| {
            Failure::fault(
                Code::Unsupported,
                format_args!("listener {:?}", listener.name),
                fault,
            )
        })?;
    }
    Ok(())
}

/// A sysctl with one number, by its path below /proc/sys; `None` if this kernel has none.
pub fn sysctl(path: &str) -> Option<u32> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    text.trim().parse().ok()
}
