//! The network namespace's sysctls that the guard must know. weir reads them and writes none.

use std::path::Path;

/// The integer in `/proc/sys/net/<name>`, of the calling thread's network namespace.
pub(crate) fn read(name: &str) -> Option<i64> {
    let text = std::fs::read_to_string(Path::new("/proc/sys/net").join(name)).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// What TCP options the namespace uses, and whether cookies are allowed: what a policy in force was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpOptions {
    /// `net.ipv4.tcp_window_scaling`
    pub window_scaling: bool,
    /// `net.ipv4.tcp_sack`
    pub sack: bool,
    /// `net.ipv4.tcp_timestamps`
    pub timestamps: bool,
    /// `net.ipv4.tcp_syncookies`: 0 to 2
    pub syncookies: i64,
}

impl TcpOptions {
    /// Those of the calling thread's network namespace. The kernel's defaults stand in for what cannot be read.
    pub fn read() -> TcpOptions {
        let flag = |name| read(name).is_none_or(|v| v != 0);
        TcpOptions {
            window_scaling: flag("ipv4/tcp_window_scaling"),
            sack: flag("ipv4/tcp_sack"),
            timestamps: flag("ipv4/tcp_timestamps"),
            syncookies: read("ipv4/tcp_syncookies").unwrap_or(1),
        }
    }
}
