//! A TAP device whose far end is the load generator: frames written to it arrive at the server's
//! kernel as from a wire, frames that the kernel sends are read from it.
//!
//! The send buffer limit is left at its default (unlimited): only then does the kernel build its
//! buffers on the path that also runs native XDP programs (`tun_build_skb`).

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};
use crate::netns::Netns;

/// The generator's end of a TAP device; the device exists as long as this value.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
}

mod request {
    nix::ioctl_write_int!(set_interface, b'T', 202);
}

impl Tap {
    /// Creates the device inside a namespace. Needs /dev/net/tun.
    pub fn create(netns: &Netns, device: &str) -> Result<Tap> {
        netns.run(|| {
            let what = format!("cannot create TAP device {device} in {}", netns.name());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")
                .map_err(|cause| {
                    Error::unsupported(&what, format!("/dev/net/tun: {cause}"))
                        .hint("load the module: modprobe tun")
                })?;
            attach(&file, device).map_err(|cause| Error::failed(what, cause))?;
            Ok(Tap { file: file.into() })
        })
    }

    /// Sends one Ethernet frame to the server's kernel.
    pub fn send(&self, frame: &[u8]) -> std::result::Result<(), Errno> {
        nix::unistd::write(&self.file, frame).map(|_| ())
    }

    /// Takes one frame that the server's kernel has sent; `None` when there is none at the moment.
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

/// TUNSETIFF, which nix does not wrap.
#[allow(unsafe_code)]
fn attach(file: &std::fs::File, device: &str) -> std::result::Result<(), Errno> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // SAFETY: the argument is a valid, NUL-terminated ifreq that outlives the call; TUNSETIFF reads
    // and writes nothing beyond it.
    unsafe { request::set_interface(file.as_raw_fd(), &raw const request as libc::c_ulong) }?;
    Ok(())
}
