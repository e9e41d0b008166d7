//! The packets of all devices of a namespace, as tcpdump sees them: which came and went, and when.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType,
    recvmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

use crate::error::{Context, Error, Result};

/// Room for the headers of IP and TCP with options.
const HEADERS_BYTES: usize = 120;

/// A packet socket that sees what comes and what goes.
#[derive(Debug)]
pub struct Tap(OwnedFd);

impl Tap {
    /// Sees the devices of the calling thread's namespace from now on. `queue_bytes`: room for what waits to be read, as the
    /// kernel counts it.
    ///
    /// # Errors
    /// No rights to (CAP_NET_RAW, CAP_NET_ADMIN).
    pub fn open(queue_bytes: usize) -> Result<Tap> {
        let what = "cannot watch the devices of a namespace";
        let socket = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
            // Others than ETH_P_ALL do not see what goes.
            SockProtocol::EthAll,
        );
        let socket = socket.context(what)?;
        setsockopt(&socket, sockopt::RcvBufForce, &queue_bytes).context(what)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context(what)?;
        Ok(Tap(socket))
    }

    /// Hands over what has been seen since the last call, without waiting: a packet's first bytes, from IP on, its device and way,
    /// and when it was seen, since the epoch.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take(&self, mut each: impl FnMut(&[u8], &LinkAddr, Duration)) -> Result<()> {
        let mut headers = [0; HEADERS_BYTES];
        let mut control = cmsg_space!(TimeSpec);
        loop {
            let mut parts = [IoSliceMut::new(&mut headers)];
            let received = recvmsg::<LinkAddr>(
                self.0.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            );
            let (length, address, at) = match received {
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(Error::failed("cannot take a packet", error)),
                Ok(received) => {
                    let stamps = received.cmsgs().context("a packet has no time")?;
                    let mut stamps = stamps.filter_map(|message| match message {
                        ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
                        _ => None,
                    });
                    (received.bytes, received.address, stamps.next())
                }
            };
            if let (Some(address), Some(at)) = (address, at) {
                each(&headers[..length], &address, at);
            }
        }
    }
}
