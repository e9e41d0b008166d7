//! Links between programs and interfaces. A link goes with its file descriptor.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::error::{Error, Result, of_errno};

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// tc ingress, by tcx (kernel 6.6).
    Tcx,
    /// XDP in the driver, never the generic one: that runs after receive steering and gains nothing.
    Xdp,
}

/// include/uapi/linux/if_link.h
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// include/uapi/linux/if_arp.h; cellular modems.
const ARPHRD_RAWIP: u16 = 519;

/// Attaches a program to an interface.
pub(crate) fn link(program: RawFd, ifindex: u32, hook: Hook) -> Result<OwnedFd> {
    let mut opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    let kind = match hook {
        Hook::Tcx => libbpf_sys::BPF_TCX_INGRESS,
        Hook::Xdp => {
            opts.flags = XDP_FLAGS_DRV_MODE;
            libbpf_sys::BPF_XDP
        }
    };
    // SAFETY: program is an open descriptor, opts is initialised and outlives the call.
    let fd = unsafe { libbpf_sys::bpf_link_create(program, ifindex as i32, kind, &opts) };
    if fd < 0 {
        return Err(explain(hook, ifindex));
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn explain(hook: Hook, ifindex: u32) -> Error {
    let name = interface_name(ifindex);
    let errno = std::io::Error::last_os_error().raw_os_error();
    match (hook, errno) {
        (Hook::Tcx, Some(libc::EINVAL)) => Error::Unsupported {
            what: format!("attaching to tc ingress of {name}"),
            cause: "the kernel has no tcx links".into(),
            hint: "weir needs Linux 6.6 or newer; `weir doctor` lists what this kernel has".into(),
        },
        (Hook::Xdp, Some(libc::EBUSY)) => Error::Unsupported {
            what: format!("the XDP front on {name}"),
            cause: "another XDP program is attached there".into(),
            hint: "use front = \"tc\", or detach the other program (`ip link show dev`)".into(),
        },
        (Hook::Xdp, Some(libc::EOPNOTSUPP | libc::EINVAL)) => Error::Unsupported {
            what: format!("the XDP front on {name}"),
            cause: "its driver has no native XDP".into(),
            hint: "use front = \"tc\"".into(),
        },
        _ => of_errno(match hook {
            Hook::Tcx => format!("attach to tc ingress of {name}"),
            Hook::Xdp => format!("attach to XDP of {name}"),
        }),
    }
}

fn interface_name(ifindex: u32) -> String {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: name has IF_NAMESIZE bytes, as if_indextoname(3) demands.
    let found = unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) };
    if found.is_null() {
        return format!("interface {ifindex}");
    }
    // SAFETY: if_indextoname filled in a NUL-terminated name.
    unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

/// Bytes of link header before the IP header: 14 on Ethernet-like devices and loopback, 0 on tun,
/// wireguard, ppp and IP tunnels. `None` for other link layers, which weir leaves alone.
pub(crate) fn link_header_len(ifindex: u32) -> Result<Option<u32>> {
    let name = interface_name(ifindex);
    // SAFETY: plain socket(2).
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(of_errno("open a socket"));
    }
    // SAFETY: fd is new and ours.
    let _close = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ifreq is plain data; all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let c_name = CString::new(name.as_str()).unwrap_or_default();
    for (to, from) in request.ifr_name.iter_mut().zip(c_name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFHWADDR reads ifr_name and writes ifr_hwaddr within request.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFHWADDR as _, &mut request) } < 0 {
        return Err(of_errno(format!("ask for the link type of {name}")));
    }
    // SAFETY: the ioctl succeeded, so ifr_hwaddr is the union's valid member.
    let family = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    Ok(match family {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(14),
        libc::ARPHRD_NONE
        | libc::ARPHRD_PPP
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | libc::ARPHRD_IPGRE
        | ARPHRD_RAWIP => Some(0),
        _ => None,
    })
}
