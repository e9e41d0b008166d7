//! A TUN device: packets without a link header, as on a tunnel or a VPN.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;
use weir_lab::netns::Netns;

use super::within;

/// The far end of the device, which exists as long as this value.
pub struct Tun(OwnedFd);

mod request {
    nix::ioctl_write_int!(set_interface, b'T', 202);
}

impl Tun {
    /// Creates the device inside a namespace.
    pub fn create(netns: &Netns, device: &str) -> Tun {
        within(netns, || {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
            let file = options.open("/dev/net/tun").expect("/dev/net/tun");
            attach(file.as_raw_fd(), device);
            Tun(file.into())
        })
    }

    pub fn send(&self, packet: &[u8]) -> Result<(), Errno> {
        nix::unistd::write(&self.0, packet).map(|_| ())
    }

    /// The length of a packet that the kernel has sent; `None` when there is none at the moment.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        match nix::unistd::read(&self.0, buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// TUNSETIFF, which nix does not wrap.
#[allow(unsafe_code)]
fn attach(tun: i32, device: &str) {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // SAFETY: the argument is a valid, NUL-terminated ifreq that outlives the call; TUNSETIFF reads
    // and writes nothing beyond it.
    let done = unsafe { request::set_interface(tun, &raw const request as libc::c_ulong) };
    done.unwrap_or_else(|errno| panic!("cannot create TUN device {device}: {errno}"));
}
