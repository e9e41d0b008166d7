//! Whether the kernel wakes a server for a connection that is migrated to its listening socket ("tcp: call
//! sk_data_ready() after listener migration", CVE-2026-46015). Without that a server may sleep for ever.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, accept4, bind, connect, getsockname,
    listen, setsockopt, socket, sockopt,
};

use super::reuseport::attach_program;
use crate::error::{Error, Result};

/// How long a connection on the loopback device may take, in milliseconds. A firewall may drop it.
const CONNECTED_WITHIN_MS: u16 = 100;

/// Versions, by release, that have the fix. Distributions bring it to others too, and their names do not tell.
const MENDED: [(u32, u32, u32); 6] = [
    (5, 15, 209),
    (6, 1, 175),
    (6, 6, 140),
    (6, 12, 86),
    (6, 18, 27),
    (7, 0, 4),
];

/// Whether listeners can be migrated here without losing a wake-up: tried by one connection of this process to itself,
/// until that has given an answer once. Where it gives none, the kernel's version decides.
///
/// # Errors
/// They cannot.
pub(crate) fn can_migrate() -> Result<()> {
    let release = release();
    let cause = match tried() {
        Ok(true) => return Ok(()),
        Ok(false) => format!("Linux {release} does not wake a server for a migrated connection"),
        Err(_) if version(&release).is_none_or(is_mended) => return Ok(()),
        Err(error) => format!(
            "Linux {release} may never wake a server for a migrated connection, and a trial on the loopback device \
             failed ({})",
            error.desc()
        ),
    };
    Err(Error::Unsupported {
        what: "queue = \"priority\"".into(),
        cause,
        hint: "it needs Linux 6.6.140, 6.12.86, 6.18.27 or 7.0.4, or one with their fix of CVE-2026-46015".into(),
    })
}

/// The trial's answer, which is the kernel's and stays. A failure does not: a busy machine may be late once.
fn tried() -> std::result::Result<bool, Errno> {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    if let Some(answer) = ANSWER.get() {
        return Ok(*answer);
    }
    wakes_at_migration().map(|answer| *ANSWER.get_or_init(|| answer))
}

/// Closes a listening socket that has a connection, beside another of its group: whether epoll then says that the
/// other has one. close() migrates before it returns (inet_csk_listen_stop()), so there is nothing to wait for.
///
/// # Errors
/// The kernel's; EAGAIN: the connection was not migrated; ETIMEDOUT: it did not come about.
pub(crate) fn wakes_at_migration() -> std::result::Result<bool, Errno> {
    let closing = socket_of_group()?;
    bind(closing.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))?;
    attach_program(migrating_program()?.as_fd(), closing.as_fd())?;
    listen(&closing, Backlog::new(1)?)?;
    let address: SockaddrIn = getsockname(closing.as_raw_fd())?;
    let client = client_of(&address)?;
    wait_for_connection(&closing)?;

    let heir = socket_of_group()?;
    bind(heir.as_raw_fd(), &address)?;
    listen(&heir, Backlog::new(1)?)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&heir, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    drop(closing);
    // It lists who was woken, and looks at no others.
    let woken = epoll.wait(&mut [EpollEvent::empty()], 0u8)? == 1;

    let connection = accept4(heir.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // The client's first, so that its RST leaves nothing in TIME-WAIT.
    drop(client);
    // SAFETY: a new descriptor of ours.
    drop(unsafe { OwnedFd::from_raw_fd(connection) });
    Ok(woken)
}

/// A TCP socket that shares its port with others, and never waits.
fn socket_of_group() -> std::result::Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    Ok(socket)
}

/// A socket that connects to this address, and ends the connection with a RST.
fn client_of(address: &SockaddrIn) -> std::result::Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&client, sockopt::Linger, &at_once)?;
    match connect(client.as_raw_fd(), address) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(client),
        Err(error) => Err(error),
    }
}

fn wait_for_connection(listener: &OwnedFd) -> std::result::Result<(), Errno> {
    let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(&mut polled, PollTimeout::from(CONNECTED_WITHIN_MS))? {
        0 => Err(Errno::ETIMEDOUT),
        _ => Ok(()),
    }
}

/// The smallest program that lets connections of its group be migrated: the kernel chooses where to
/// (reuseport_migrate_sock()).
fn migrating_program() -> std::result::Result<OwnedFd, Errno> {
    const SK_PASS: i32 = 1;
    let insn = |code: u8, imm: i32| libbpf_sys::bpf_insn {
        code,
        imm,
        ..Default::default()
    };
    // mov64 r0, SK_PASS; exit
    let program = [insn(0xb7, SK_PASS), insn(0x95, 0)];
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        expected_attach_type: libbpf_sys::BPF_SK_REUSEPORT_SELECT_OR_MIGRATE,
        ..Default::default()
    };
    // SAFETY: all pointers are to live, NUL-terminated or counted data.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SK_REUSEPORT,
            c"weir_probe".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            &mut options,
        )
    };
    if fd < 0 {
        return Err(Errno::from_raw(-fd));
    }
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn release() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| String::new(),
        |name| name.release().to_string_lossy().into_owned(),
    )
}

/// Whether this version has the fix, whatever its distribution adds.
fn is_mended((major, minor, patch): (u32, u32, u32)) -> bool {
    let mended = |&(x, y, z): &(u32, u32, u32)| (major, minor) == (x, y) && patch >= z;
    (major, minor) > (7, 0) || MENDED.iter().any(mended)
}

/// `6.18.44-cloud` is (6, 18, 44).
fn version(release: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?, number().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_wakeups_at_migration_are_known() {
        let mended = |release: &str| is_mended(version(release).unwrap());
        for release in [
            "6.18.44-fc-v669",
            "6.18.27",
            "7.0.4",
            "7.2.0",
            "6.12.86+deb13",
            "8.0",
        ] {
            assert!(mended(release), "{release}");
        }
        for release in ["6.18.26", "6.17.13", "7.0.3", "6.19.1", "6.8.0-31-generic"] {
            assert!(!mended(release), "{release}");
        }
    }
}
