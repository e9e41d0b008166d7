//! The system calls of the server that wait for an answer (seccomp_unotify(2)).
//!
//! A signal to the server interrupts a waiting call as it interrupts accept() itself: the call is then no
//! longer valid, every answer to it fails with ENOENT, and the server, if it repeats the call, asks anew.
//! For that reason SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV is not used: with it a signal handler would not
//! run until the next connection comes.
//!
//! A connection is put into the server's table and the call is answered in two steps. SECCOMP_ADDFD_FLAG_SEND
//! would do both in one, but marks the call as answered before the server's thread has run: if the process
//! that answers is killed meanwhile, the connection is not put there, and accept() returns 0 (6.18; seen in the
//! first kill under load of each of three runs). In two steps, what was put there can be found and answered with later.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::call::Call;
use super::shared::CallSlot;

/// Has the kernel wake both sides on the CPU where the other one sleeps: it is their turn (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// The calls that wait.
#[derive(Debug)]
pub struct Calls(OwnedFd);

impl Calls {
    pub(super) fn new(fd: OwnedFd) -> Calls {
        Calls(fd)
    }

    /// Sends it to another process, which shall answer.
    ///
    /// # Errors
    /// It is gone.
    pub fn send(self, to: &UnixStream) -> Result<(), Errno> {
        let fds = [self.raw()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let bytes = [IoSlice::new(b"c")];
        sendmsg::<()>(to.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).map(drop)
    }

    /// Takes over what [`Calls::send`] sent.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn receive(from: &UnixStream) -> Result<Calls, Errno> {
        let mut byte = [0];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(from.as_raw_fd(), &mut bytes, Some(&mut space), flags)?;
        let fd = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
            _ => None,
        });
        // SAFETY: a new descriptor of ours.
        let calls = Calls(unsafe { OwnedFd::from_raw_fd(fd.ok_or(Errno::EPIPE)?) });
        // SAFETY: takes no pointer; where the kernel does not know it, nothing changes.
        unsafe {
            libc::ioctl(
                calls.raw(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        Ok(calls)
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next call, written to `slot` before this process knows of it. The descriptor must be readable.
    ///
    /// # Errors
    /// ENOENT: it was interrupted meanwhile.
    pub fn next(&self, slot: &CallSlot) -> Result<(), Errno> {
        let to = slot.cleared();
        // SAFETY: `to` is memory for one notification, all zero, and nobody else writes to it.
        Errno::result(unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_RECV, to) })
            .map(drop)
    }

    /// Whether the call still waits for an answer.
    pub fn is_valid(&self, call: &Call) -> bool {
        let id = &raw const call.id;
        // SAFETY: the number is read.
        unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, id) == 0 }
    }

    /// The kernel carries the call out as if nobody had been asked. One that is no longer valid is let be.
    pub fn go_on(&self, call: &Call) {
        let _ = self.answer(call, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// The call fails.
    pub fn fail(&self, call: &Call, errno: Errno) {
        let _ = self.answer(call, 0, -(errno as i32), 0);
    }

    fn answer(&self, call: &Call, val: i64, error: i32, flags: u32) -> Result<(), Errno> {
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val,
            error,
            flags,
        };
        let answer = &raw mut answer;
        // SAFETY: the answer is read.
        Errno::result(unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_SEND, answer) })
            .map(drop)
    }

    /// Puts this descriptor into the caller's table; returns its number there. The call waits still, for
    /// [`Calls::accept`].
    ///
    /// # Errors
    /// Nothing was put there. EMFILE: the table is full; ENOENT or ESRCH: the call is no longer valid.
    pub fn put(
        &self,
        call: &Call,
        fd: BorrowedFd<'_>,
        close_on_exec: bool,
    ) -> Result<RawFd, Errno> {
        let mut gift = libc::seccomp_notif_addfd {
            id: call.id,
            flags: 0,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: match close_on_exec {
                true => libc::O_CLOEXEC as u32,
                false => 0,
            },
        };
        let gift = &raw mut gift;
        // SAFETY: the gift is read.
        Errno::result(unsafe { libc::ioctl(self.raw(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, gift) })
    }

    /// The call returns this descriptor of the caller's table.
    ///
    /// # Errors
    /// ENOENT: it is no longer valid.
    pub fn accept(&self, call: &Call, number: RawFd) -> Result<(), Errno> {
        self.answer(call, number.into(), 0, 0)
    }
}

impl AsFd for Calls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
