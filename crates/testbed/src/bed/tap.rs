//! A device of /dev/net/tun whose far end is the lab: what is written to it arrives at the kernel as
//! from a wire, what the kernel sends is read from it.
//!
//! The send buffer limit is left at its default (unlimited): only then does the kernel build its
//! buffers on the path that also runs native XDP programs (`tun_build_skb`).

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::sys;
pub use crate::sys::Tun;

/// The lab's end of a device; the device exists as long as this value.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
}

impl Tap {
    /// Creates the device inside a namespace. Needs /dev/net/tun.
    pub fn create(netns: &Netns, device: &str, kind: Tun) -> Result<Tap> {
        netns.run(|| {
            let what = format!("cannot create the device {device} in {}", netns.name());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")
                .map_err(|cause| {
                    Error::unsupported(&what, format!("/dev/net/tun: {cause}"))
                        .hint("load the module: modprobe tun")
                })?;
            sys::attach_tun(&file, device, kind).map_err(|cause| Error::failed(what, cause))?;
            Ok(Tap { file: file.into() })
        })
    }

    /// Hands one frame or packet to the kernel.
    pub fn send(&self, bytes: &[u8]) -> std::result::Result<(), Errno> {
        nix::unistd::write(&self.file, bytes).map(|_| ())
    }

    /// Takes one that the kernel has sent; `None` when there is none at the moment.
    pub fn receive<'a>(
        &self,
        buffer: &'a mut [u8],
    ) -> std::result::Result<Option<&'a [u8]>, Errno> {
        match nix::unistd::read(&self.file, buffer) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Readable when the kernel has sent something.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
