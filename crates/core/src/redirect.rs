//! What the proxy asks of the kernel half to hand short messages of tunnels over inside the kernel.
//! weir-proxy uses it and knows no BPF, weir-kernel has it and knows no proxy.
//!
//! A tunnel's two sockets are [joined](Lane::join) for as long as the tunnel lasts. They are
//! [armed](Pair::arm) and taken back time and again: [disarmed](Pair::disarm), and then, way by way,
//! what was redirected [is sent](Pair::is_sent) before the caller sends there, and what was passed is
//! received by the caller. They never leave as ordinary sockets: the kernel drops what arrives at
//! that moment.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// One way of a tunnel: 0 from its first socket to its second, 1 back.
pub type Way = usize;

/// The two sockets of a tunnel; way 0 is received from the first.
pub type Sockets<'a> = [BorrowedFd<'a>; 2];

/// Redirects for all threads of a proxy.
pub trait Redirector: fmt::Debug + Send + Sync {
    /// The share of one more thread; called in that thread.
    ///
    /// # Errors
    /// The kernel is out of something.
    fn lane(&self) -> io::Result<Box<dyn Lane>>;
}

/// The tunnels of one thread.
pub trait Lane {
    /// Readable while there is something to [`take_passed`](Self::take_passed).
    fn doorbell(&self) -> BorrowedFd<'_>;

    /// Numbers of the armed pairs in which bytes were passed to user space since the last call, once
    /// a way each time that they are armed.
    fn take_passed(&self) -> Vec<u32>;

    /// Takes two connected sockets in. While
    /// they are not armed, user space receives as before, but by recv(2) only. `None`: they are as
    /// they were, because there are too many pairs or their ends have come.
    fn join(&self, sockets: Sockets<'_>) -> Option<Box<dyn Pair>>;
}

/// The two sockets of a tunnel that were joined. They are to be closed when it is dropped: what was
/// redirected or passed and has not gone on yet, and what arrives then, is lost. Its number is used
/// again only if it was [left](Pair::leave).
pub trait Pair {
    /// Its number, by which [`Lane::take_passed`] names it.
    fn number(&self) -> u32;

    /// Redirects from now on, in both ways, what arrives and what has arrived, until something must
    /// be passed: a long packet, or one for which the receiver has no room. `received` is what user
    /// space has received of each way since they were joined, and nothing of it may be in its hands;
    /// a way of which more was passed redirects nothing. False: one of them did not come in, and
    /// they are never redirected.
    fn arm(&self, sockets: Sockets<'_>, received: [u64; 2]) -> bool;

    /// Passes all bytes from now on, in both ways.
    fn disarm(&self, sockets: Sockets<'_>);

    /// Bytes redirected on this way since they were joined.
    fn redirected(&self, way: Way) -> u64;

    /// Bytes passed to user space on this way since they were joined, received or not. They may be on
    /// their way still: until all have come, recv(2) saying 0 is not the end.
    fn passed(&self, way: Way) -> u64;

    /// Whether all that was redirected on this way is in its receiver's send queue. To be asked
    /// once it is disarmed, and before user space sends or ends anything there.
    fn is_sent(&self, way: Way, sockets: Sockets<'_>) -> bool;

    /// Whether the kernel lost bytes of this way that it had acknowledged, for want of memory. Nothing
    /// that came after them is redirected or passed.
    fn has_lost(&self, way: Way) -> bool;

    /// Drops it, and lets another pair have its number.
    fn leave(self: Box<Self>, sockets: Sockets<'_>);
}
