//! The root of the control groups, where programs hang that see every socket.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// include/uapi/linux/mount.h
const FSCONFIG_CMD_CREATE: libc::c_long = 6;
/// Where systems mount cgroup2, for kernels or containers in which weir must not mount.
const USUAL_MOUNTS: [&std::ffi::CStr; 2] = [c"/sys/fs/cgroup", c"/sys/fs/cgroup/unified"];

/// A descriptor of the root of the cgroups (cgroup2) that this process sees; `None`: there are none. A process that gives
/// up rights opens it before. `ip netns exec` hides the usual mount, and some systems have none: so it is of a mount that
/// stands nowhere, if that is allowed.
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
