//! Where the programs of negotiation hang beside tc: at the root of the cgroups, and at the listening sockets.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::Link;

use super::skel::TimewaitSkel;
use crate::error::{Error, Result, of_errno, of_libbpf};

/// include/uapi/linux/mount.h
const FSCONFIG_CMD_CREATE: libc::c_long = 6;
/// include/uapi/asm-generic/socket.h
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Where systems mount cgroup2, for kernels or containers in which weir must not mount.
const USUAL_MOUNTS: [&std::ffi::CStr; 2] = [c"/sys/fs/cgroup", c"/sys/fs/cgroup/unified"];

/// The hooks in force. Dropping it takes them away.
pub(super) struct Hooks {
    /// Options of handshakes and closes, of all sockets; the program looks which are of its namespace.
    _ops: Link,
    /// What applications ask of their sockets; why they cannot; or nothing.
    ask: Option<std::result::Result<Link, String>>,
    mark: Link,
}

impl Hooks {
    /// Attaches to the root of the cgroups; without what is of single sockets.
    pub(super) fn attach(skel: &TimewaitSkel<'_>, root: BorrowedFd<'_>) -> Result<Hooks> {
        let ops = skel
            .progs
            .timewait_ops
            .attach_cgroup(root.as_raw_fd())
            .map_err(of_libbpf("attach to the root of the cgroups"))?;
        let mark = skel.progs.timewait_mark.attach();
        let mark = mark.map_err(of_libbpf("attach the iterator over sockets"))?;
        Ok(Hooks {
            _ops: ops,
            ask: None,
            mark,
        })
    }

    /// Lets applications ask for their sockets, or no more.
    pub(super) fn let_ask(&mut self, skel: &TimewaitSkel<'_>, root: BorrowedFd<'_>, may: bool) {
        if !may {
            self.ask = None;
        } else if !matches!(self.ask, Some(Ok(_))) {
            let link = skel.progs.timewait_ask.attach_cgroup(root.as_raw_fd());
            let why = |e| of_libbpf("attach to setsockopt()")(e).to_string();
            self.ask = Some(link.map_err(why));
        }
    }

    /// Why applications cannot ask anything for their sockets, though they may.
    pub(super) fn cannot_ask(&self) -> Option<&str> {
        self.ask.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Has the listening sockets of this network namespace add options or not, as their ports say.
    pub(super) fn mark_listeners(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::Failed {
            what: "go through the listening sockets".into(),
            cause: e.to_string(),
        };
        let mut iterator = iterator(self.mark.as_fd())?;
        // The program writes a byte at the first socket that is none; at the end of all there is nothing.
        iterator.read(&mut [0]).map(drop).map_err(failed)
    }
}

fn iterator(link: BorrowedFd<'_>) -> Result<File> {
    // SAFETY: no options are given.
    let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if fd < 0 {
        return Err(of_errno("open the iterator over sockets"));
    }
    // SAFETY: a new descriptor of ours.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// A descriptor of the root of the cgroups (cgroup2) that this process sees, for [`super::TimeWait::apply`]; `None`: there
/// are none. A process that gives up rights opens it before. `ip netns exec` hides the usual mount, and some systems have
/// none: so it is of a mount that stands nowhere, if that is allowed.
pub fn cgroup_root() -> Option<OwnedFd> {
    let usual = || {
        USUAL_MOUNTS.iter().find_map(|path| {
            // SAFETY: a C string.
            let fd = unsafe { libc::open(path.as_ptr(), libc::O_DIRECTORY | libc::O_CLOEXEC) };
            let fd = owned(fd)?;
            let kind = nix::sys::statfs::fstatfs(&fd).ok()?.filesystem_type();
            (kind == nix::sys::statfs::CGROUP2_SUPER_MAGIC).then_some(fd)
        })
    };
    usual().or_else(detached_root)
}

/// What is said where there are none.
pub(super) fn no_cgroups() -> Error {
    Error::Unsupported {
        what: "timewait = \"negotiate\"".into(),
        cause: "no cgroup2 is mounted, and weir may not mount it".into(),
        hint: "`mount -t cgroup2 none /sys/fs/cgroup`, and start weir anew".into(),
    }
}

fn detached_root() -> Option<OwnedFd> {
    // SAFETY: fsopen(2) takes a C string.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), 1) };
    let context = owned(context as libc::c_int)?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: FSCONFIG_CMD_CREATE wants no key and no value.
    let created = unsafe {
        let fd = context.as_raw_fd();
        libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0)
    };
    if created != 0 {
        return None;
    }
    // SAFETY: fsmount(2) takes no pointers; 1 is FSMOUNT_CLOEXEC.
    let mount = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) };
    let mount = owned(mount as libc::c_int)?;
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a directory's descriptor and a C string. The mount's own one is only a path.
    owned(unsafe { libc::openat(mount.as_raw_fd(), c".".as_ptr(), flags) })
}

/// `None`: the call failed.
fn owned(fd: libc::c_int) -> Option<OwnedFd> {
    // SAFETY: if it is one, it is new and ours.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The cookie of the calling thread's network namespace.
pub(super) fn netns_cookie() -> Result<u64> {
    // SAFETY: plain socket(2).
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let socket = owned(fd).ok_or_else(|| of_errno("open a socket"))?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: cookie and length are writable, and length says how long the cookie is.
    let failed = unsafe {
        let to = (&raw mut cookie).cast();
        let fd = socket.as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &mut length)
    };
    match failed {
        0 => Ok(cookie),
        _ => Err(of_errno("ask for the network namespace's cookie")),
    }
}
