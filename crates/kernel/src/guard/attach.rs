//! Links between programs and interfaces. A link goes with its file descriptor.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::chain::{self, Anchor, Rank};
use crate::error::{Error, Result, of_errno};
use crate::watch::program_name;

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// tc ingress, by tcx (kernel 6.6), before all programs of others.
    Tcx(Rank),
    /// tc egress, before all programs of others.
    TcxOut,
    /// XDP in the driver, never the generic one: that runs after receive steering and gains nothing.
    Xdp,
}

/// include/uapi/linux/if_link.h
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// include/uapi/linux/if_arp.h; cellular modems.
const ARPHRD_RAWIP: u16 = 519;

/// How often a place in a chain is looked for that changes meanwhile.
const ATTEMPTS: u32 = 16;

/// Attaches a program to an interface.
pub(crate) fn link(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> Result<OwnedFd> {
    let (rank, flags) = match hook {
        Hook::Xdp => (Rank::Front, XDP_FLAGS_DRV_MODE),
        // Before all others, whoever they are by then: the kernel need not be asked who they are, for which it waits for its
        // lock over all network settings once more.
        Hook::Tcx(Rank::Guard) => (Rank::Guard, libbpf_sys::BPF_F_BEFORE),
        Hook::TcxOut => (Rank::Quic, libbpf_sys::BPF_F_BEFORE),
        Hook::Tcx(rank) => return link_in_order(program, ifindex, rank),
    };
    let link = create(program, ifindex, hook, &options(flags));
    let link = link.map_err(|()| explain(hook, ifindex))?;
    chain::note_own(program, rank);
    Ok(link)
}

/// Behind those of weir's own programs at tc ingress that are to see a packet first.
fn link_in_order(program: BorrowedFd<'_>, ifindex: u32, rank: Rank) -> Result<OwnedFd> {
    let hook = Hook::Tcx(rank);
    for _ in 0..ATTEMPTS {
        let Ok(chain) = chain::tcx(ifindex) else {
            // The kernel's word on the attempt says more.
            return create(program, ifindex, hook, &options(0))
                .map_err(|()| explain(hook, ifindex));
        };
        let (flags, relative_id) = match chain.anchor(rank) {
            Anchor::First => (libbpf_sys::BPF_F_BEFORE, 0),
            // libbpf adds BPF_F_ID.
            Anchor::Behind(id) => (libbpf_sys::BPF_F_AFTER, id),
        };
        let mut opts = options(flags);
        opts.__bindgen_anon_1.tcx = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_6 {
            relative_fd: 0,
            relative_id,
            expected_revision: chain.revision,
        };
        match create(program, ifindex, hook, &opts) {
            Ok(link) => {
                chain::note_own(program, rank);
                return Ok(link);
            }
            // Another has come or gone since, perhaps the one that this one was to follow.
            Err(()) if matches!(errno(), Some(libc::ESTALE | libc::ENOENT)) => {}
            Err(()) => return Err(explain(hook, ifindex)),
        }
    }
    Err(explain(hook, ifindex))
}

fn options(flags: u32) -> libbpf_sys::bpf_link_create_opts {
    libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    }
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// On an error, [`errno`] says which.
fn create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    hook: Hook,
    opts: &libbpf_sys::bpf_link_create_opts,
) -> std::result::Result<OwnedFd, ()> {
    let kind = match hook {
        Hook::Tcx(_) => libbpf_sys::BPF_TCX_INGRESS,
        Hook::TcxOut => libbpf_sys::BPF_TCX_EGRESS,
        Hook::Xdp => libbpf_sys::BPF_XDP,
    };
    // SAFETY: program is an open descriptor, opts is initialised and outlives the call.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, opts) };
    if fd < 0 {
        return Err(());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the device that this tcx link was made for is still there, in whichever namespace.
pub(crate) fn is_on_device(link: BorrowedFd<'_>) -> bool {
    // SAFETY: of a tcx link the kernel fills in this member of the union; all zero it is valid, too.
    info_of(link).is_some_and(|info| unsafe { info.__bindgen_anon_1.tcx.ifindex } != 0)
}

/// The id of a link; `None`: the kernel does not say.
pub(super) fn link_id(link: BorrowedFd<'_>) -> Option<u32> {
    Some(info_of(link)?.id)
}

fn info_of(link: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_link_info> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut len = size_of::<libbpf_sys::bpf_link_info>() as u32;
    // SAFETY: info has len bytes, and asks for no arrays.
    let failed = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len)
    };
    (failed == 0).then_some(info)
}

fn explain(hook: Hook, ifindex: u32) -> Error {
    let errno = errno();
    let name = interface_name(ifindex);
    match (hook, errno) {
        (Hook::Tcx(_) | Hook::TcxOut, Some(libc::EINVAL)) => Error::Unsupported {
            what: format!("attaching to tc of {name}"),
            cause: "the kernel has no tcx links".into(),
            hint: "weir needs Linux 6.6 or newer; `weir doctor` lists what this kernel has".into(),
        },
        (Hook::Xdp, Some(libc::EBUSY)) => Error::Unsupported {
            what: format!("the XDP front on {name}"),
            cause: taken_by(ifindex),
            hint: "use front = \"tc\", or detach the other program (`ip link show dev`): a driver runs one, and weir's is \
                   not made for a dispatcher such as libxdp's"
                .into(),
        },
        (Hook::Xdp, Some(libc::ERANGE)) => Error::Unsupported {
            what: format!("the XDP front on {name}"),
            cause: "its MTU is too large for native XDP".into(),
            hint: "use front = \"tc\", or a smaller MTU".into(),
        },
        (Hook::Xdp, Some(libc::EOPNOTSUPP | libc::EINVAL)) => Error::Unsupported {
            what: format!("the XDP front on {name}"),
            cause: "its driver has no native XDP".into(),
            hint: "use front = \"tc\"".into(),
        },
        _ => of_errno(match hook {
            Hook::Tcx(_) => format!("attach to tc ingress of {name}"),
            Hook::TcxOut => format!("attach to tc egress of {name}"),
            Hook::Xdp => format!("attach to XDP of {name}"),
        }),
    }
}

/// What there is to say of the program in the driver's one place.
fn taken_by(ifindex: u32) -> String {
    let mut id = 0;
    // SAFETY: id is writable; no options are given.
    let failed =
        unsafe { libbpf_sys::bpf_xdp_query_id(ifindex as i32, XDP_FLAGS_DRV_MODE as i32, &mut id) };
    match failed == 0 && id != 0 {
        true => format!("{} (program {id}) is attached there", program_name(id)),
        false => "another XDP program is attached there".to_owned(),
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

/// An interface of a link layer that the programs do not read.
pub(super) fn unknown_link() -> Error {
    Error::Unsupported {
        what: "the guard on this interface".into(),
        cause: "it carries neither Ethernet frames nor bare IP packets".into(),
        hint: "name the interfaces to guard, without it".into(),
    }
}
