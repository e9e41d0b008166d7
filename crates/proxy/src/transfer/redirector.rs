//! What engine sockmap needs from the kernel to redirect the short messages of tunnels. This crate
//! knows no BPF: the program that embeds it implements these traits, over weir-kernel or, in tests,
//! over nothing.
//!
//! A tunnel's two sockets are [joined](RedirectLane::join) for as long as the tunnel lasts. They are
//! [armed](RedirectPair::arm) and [disarmed](RedirectPair::disarm) time and again. After each disarming,
//! the caller waits for each way until the redirected bytes [are sent](RedirectPair::is_sent) before it
//! sends there, and receives the bytes that were passed to it. Joined sockets never become ordinary
//! sockets again: the kernel would drop what arrives at that moment.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// One way of a tunnel: 0 from its first socket to its second, 1 back.
pub type Way = usize;

/// The two sockets of a tunnel. Way 0 is received from the first.
pub type SocketPair<'a> = [BorrowedFd<'a>; 2];

/// Redirects for all threads of a proxy.
pub trait Redirector: fmt::Debug + Send + Sync {
    /// Prepares the tunnels of one more thread. Called in that thread.
    ///
    /// # Errors
    /// The kernel has no memory or no free lane for it.
    fn lane(&self) -> io::Result<Box<dyn RedirectLane>>;
}

/// The redirected tunnels of one thread.
pub trait RedirectLane {
    /// A descriptor that is readable while [`take_passed`](Self::take_passed) has something to return.
    fn passed_fd(&self) -> BorrowedFd<'_>;

    /// Returns the numbers of the armed pairs in which bytes were passed to user space since the last
    /// call. A pair appears once for each way and each time it is armed.
    fn take_passed(&self) -> Vec<u32>;

    /// Takes two connected sockets in. While they are not armed, user space receives from them as
    /// before, but with recv(2) only.
    ///
    /// `None`: the sockets are unchanged. There are too many pairs, or both peers have closed.
    fn join(&self, sockets: SocketPair<'_>) -> Option<Box<dyn RedirectPair>>;
}

/// The two joined sockets of a tunnel. The caller closes them when the pair is dropped: bytes that were
/// redirected or passed and have not gone on by then, and bytes that arrive afterwards, are lost. The
/// pair's number is used again only if the pair [left](RedirectPair::leave).
pub trait RedirectPair {
    /// The number by which [`RedirectLane::take_passed`] names the pair.
    fn number(&self) -> u32;

    /// Redirects from now on, both ways, what arrives and what has arrived, until something must be
    /// passed to user space: a long packet, or one for which the receiver has no space. `received` is
    /// the number of bytes of each way that user space has received since the sockets were joined. User
    /// space may hold none of them. A way of which more was passed redirects nothing.
    ///
    /// False: one of the sockets could not be joined, and they are never redirected.
    fn arm(&self, sockets: SocketPair<'_>, received: [u64; 2]) -> bool;

    /// Passes all bytes to user space from now on, both ways.
    fn disarm(&self, sockets: SocketPair<'_>);

    /// Bytes redirected on this way since the sockets were joined.
    fn redirected(&self, way: Way) -> u64;

    /// Bytes passed to user space on this way since the sockets were joined, received or not. Some may
    /// not have reached the socket yet: until all have, a recv(2) of 0 bytes is not the end.
    fn passed(&self, way: Way) -> u64;

    /// Whether all redirected bytes of this way are in the receiver's send queue. Ask it once the pair
    /// is disarmed, before user space sends or closes there.
    fn is_sent(&self, way: Way, sockets: SocketPair<'_>) -> bool;

    /// Whether the kernel lost acknowledged bytes of this way, for want of memory. It redirects and
    /// passes nothing that came after them.
    fn has_lost(&self, way: Way) -> bool;

    /// Drops the pair and frees its number for another pair.
    fn leave(self: Box<Self>, sockets: SocketPair<'_>);
}
