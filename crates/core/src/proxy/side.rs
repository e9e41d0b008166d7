//! TCP options of the connections of one side, clients or servers, independent of the other's.

use std::time::Duration;

/// What differs from the system's own settings; `None` leaves those.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SideOptions {
    /// Congestion control by its kernel name, such as `bbr`.
    pub congestion: Option<String>,
    /// Time without a segment after which the peer is probed, three times within as long again; one
    /// that answers none is gone. Whole seconds, 1 s to 32767 s.
    pub tcp_keepalive: Option<Duration>,
    /// Time that sent bytes may go unacknowledged before the connection is given up. 1 ms and more.
    pub user_timeout: Option<Duration>,
    /// Bytes of the kernel's send buffer: fixed, where the system's would grow and shrink. The
    /// kernel caps it at `net.core.wmem_max`.
    pub send_buffer: Option<u32>,
    /// Bytes of the kernel's receive buffer, as `send_buffer`; the cap is `net.core.rmem_max`.
    pub receive_buffer: Option<u32>,
}
