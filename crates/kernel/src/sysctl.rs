//! The network namespace's sysctls that the guard must know. weir reads them and writes none.

use std::path::Path;

/// The integer in `/proc/sys/net/<name>`, of the calling thread's network namespace.
pub(crate) fn read(name: &str) -> Option<i64> {
    let text = std::fs::read_to_string(Path::new("/proc/sys/net").join(name)).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// What TCP options the namespace uses, and whether cookies are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpOptions {
    pub window_scaling: bool,
    pub sack: bool,
    pub timestamps: bool,
    pub syncookies: i64,
}

impl TcpOptions {
    /// The kernel's defaults stand in for what cannot be read.
    pub(crate) fn read() -> TcpOptions {
        let flag = |name| read(name).is_none_or(|v| v != 0);
        TcpOptions {
            window_scaling: flag("ipv4/tcp_window_scaling"),
            sack: flag("ipv4/tcp_sack"),
            timestamps: flag("ipv4/tcp_timestamps"),
            syncookies: read("ipv4/tcp_syncookies").unwrap_or(1),
        }
    }
}
