//! What the built-in servers share: their listening socket, what they reply, and how they spend CPU time.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt,
};

use crate::error::{Error, Result};

/// Text of so many bytes.
pub(super) fn body(bytes: usize) -> Vec<u8> {
    let text = b"weir-lab: one packet\n".iter().copied();
    text.cycle().take(bytes).collect()
}

/// A folder `www` with an index.html of so many bytes.
pub(super) fn write_document(directory: &Path, bytes: usize) -> std::io::Result<()> {
    let www = directory.join("www");
    std::fs::create_dir(&www)?;
    std::fs::write(www.join("index.html"), body(bytes))
}

/// A listening socket on all addresses, IPv4 and IPv6, that does not block.
pub(super) fn open_listener(port: u16, backlog: u32) -> Result<TcpListener> {
    let what = format!("cannot listen on port {port}");
    let open = || -> nix::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
        setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        let any = std::net::SocketAddrV6::new(std::net::Ipv6Addr::UNSPECIFIED, port, 0, 0);
        bind(fd.as_raw_fd(), &SockaddrIn6::from(any))?;
        Ok(fd)
    };
    let listening = || -> std::io::Result<TcpListener> {
        let fd = open().map_err(std::io::Error::from)?;
        // nix's listen() takes no backlog above the default somaxconn.
        socket2::SockRef::from(&fd).listen(backlog as i32)?;
        Ok(TcpListener::from(fd))
    };
    listening().map_err(|cause| {
        let hint = if cause.kind() == std::io::ErrorKind::AddrInUse {
            "choose another --port"
        } else {
            ""
        };
        Error::failed(what, cause).hint(hint)
    })
}

/// Spends CPU time, as an application would: a fixed number of steps, not a stretch of wall-clock
/// time, since the latter would also pass while the kernel takes the CPU away for SYNs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    steps: u64,
}

impl Work {
    /// Measures how many steps make `work_us`, by the quickest of many trials (the others were
    /// interrupted).
    pub(super) fn calibrated(work_us: u32) -> Work {
        const TRIAL_STEPS: u64 = 20_000;
        let trial = || {
            let begun = Instant::now();
            spin(TRIAL_STEPS);
            begun.elapsed()
        };
        let quickest = (0..200)
            .map(|_| trial())
            .min()
            .unwrap_or(Duration::from_nanos(1));
        let steps_per_us = TRIAL_STEPS as f64 * 1e3 / quickest.as_nanos().max(1) as f64;
        Work {
            steps: (steps_per_us * f64::from(work_us)) as u64,
        }
    }

    pub(super) fn spend(self) {
        spin(self.steps);
    }
}

fn spin(steps: u64) {
    for step in 0..steps {
        std::hint::black_box(step);
    }
}
