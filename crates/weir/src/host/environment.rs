//! Settings of this network namespace that policies depend on. Read only: weir never writes one.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use weir_config::{Environment, SynCookies, SynFilter, fit};
use weir_core::listener::Listener;

use crate::failure::{Code, Failure, Result};

/// What this kernel and this network namespace allow now. `syn_filter`: see [`crate::host::filters`].
pub fn read(syn_filter: Option<SynFilter>) -> Environment {
    // A kernel built without CONFIG_SYN_COOKIES has no such file.
    let syn_cookies = sysctl("net/ipv4/tcp_syncookies").unwrap_or(0);
    Environment {
        syn_cookies: SynCookies::from_sysctl(syn_cookies).unwrap_or(SynCookies::Always),
        bpf_cookies: weir_kernel::has_cookie_kfunc(),
        syn_filter,
    }
}

/// Whether each policy, or one of the same effect, is possible here.
///
/// # Errors
/// One is not; exit code 3.
pub fn check_fit(environment: &Environment, listeners: &[Listener]) -> Result<()> {
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

/// Whether packets to the address are for this namespace. Also true where bind(2) cannot tell: for
/// an IPv6 link-local address, and where ip_nonlocal_bind is set.
pub fn has_address(ip: IpAddr) -> bool {
    let bound = UdpSocket::bind((ip, 0));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

/// A sysctl with one number, by its path below /proc/sys; `None` if this kernel has none.
pub fn sysctl(path: &str) -> Option<u32> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_documentation_is_not_ours_and_loopback_is() {
        // 192.0.2.0/24 and 2001:db8::/32 are given to nobody (RFC 5737, RFC 3849).
        for (ip, ours) in [("127.0.0.9", true), ("0.0.0.0", true), ("192.0.2.1", false)] {
            assert_eq!(has_address(ip.parse().unwrap()), ours, "{ip}");
        }
    }
}
