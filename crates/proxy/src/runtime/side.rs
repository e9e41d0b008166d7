//! Sets the TCP options of one side on a socket.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use weir_core::proxy::SideOptions;
use weir_core::units::format_duration;

/// Probes that a peer may leave unanswered.
const PROBES: u32 = 3;

/// An option that the kernel does not take.
#[derive(Debug)]
pub struct OptionError {
    /// Its name in [`SideOptions`].
    pub name: &'static str,
    /// What it was to be.
    pub value: String,
    /// As setsockopt(2).
    pub cause: io::Error,
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> io::Error {
        error.cause
    }
}

/// Sets what is asked for. Before connect() or listen(): the window scale, which the receive buffer
/// decides, is told in the handshake; what a listening socket has, accepted ones inherit.
///
/// # Errors
/// An unknown congestion control, or one that only root may use.
pub fn set_side_options(fd: impl AsFd, options: &SideOptions) -> Result<(), OptionError> {
    let fd = fd.as_fd();
    if let Some(congestion) = &options.congestion {
        sockopt::set_tcp_congestion(fd, congestion)
            .map_err(|errno| refused("congestion", congestion, errno))?;
    }
    if let Some(idle) = options.tcp_keepalive {
        let every = probe_interval(idle);
        sockopt::set_socket_keepalive(fd, true)
            .and_then(|()| sockopt::set_tcp_keepidle(fd, idle))
            .and_then(|()| sockopt::set_tcp_keepintvl(fd, every))
            .and_then(|()| sockopt::set_tcp_keepcnt(fd, PROBES))
            .map_err(|errno| refused("tcp_keepalive", format_duration(idle), errno))?;
    }
    if let Some(time) = options.user_timeout {
        let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(fd, millis)
            .map_err(|errno| refused("user_timeout", format_duration(time), errno))?;
    }
    if let Some(bytes) = options.send_buffer {
        sockopt::set_socket_send_buffer_size(fd, bytes as usize)
            .map_err(|errno| refused("send_buffer", bytes, errno))?;
    }
    if let Some(bytes) = options.receive_buffer {
        sockopt::set_socket_recv_buffer_size(fd, bytes as usize)
            .map_err(|errno| refused("receive_buffer", bytes, errno))?;
    }
    Ok(())
}

fn refused(name: &'static str, value: impl ToString, errno: rustix::io::Errno) -> OptionError {
    OptionError {
        name,
        value: value.to_string(),
        cause: errno.into(),
    }
}

/// The kernel counts whole seconds, at least one.
fn probe_interval(idle: Duration) -> Duration {
    Duration::from_secs((idle.as_secs() / u64::from(PROBES)).max(1))
}
