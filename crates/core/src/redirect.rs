//! What the proxy asks of the kernel half to hand short messages of tunnels over inside the kernel.
//! weir-proxy uses it and knows no BPF, weir-kernel has it and knows no proxy.
//!
//! A tunnel's two sockets are [joined](Lane::join), [armed](Pair::arm), and taken back: first
//! [disarmed](Pair::disarm), then, way by way, what was redirected [is sent](Pair::is_sent) and what
//! was passed is received by the caller, and at last they [leave](Pair::leave) as ordinary sockets.

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

    /// Numbers of the armed pairs in which bytes were passed to user space since the last call. Each
    /// is named once as long as it is joined.
    fn take_passed(&self) -> Vec<u32>;

    /// Takes two connected sockets in. Until they are armed, user space receives as before, but by
    /// recv(2) only. `None`: they are as they were, because there are too many pairs or their ends
    /// have come.
    fn join(&self, sockets: Sockets<'_>) -> Option<Box<dyn Pair>>;
}

/// The two sockets of a tunnel that were joined. On drop they are taken out; what was redirected or
/// passed and has not gone on yet is lost then.
pub trait Pair {
    /// Its number, by which [`Lane::take_passed`] names it.
    fn number(&self) -> u32;

    /// Redirects from now on, in both ways, what arrives and what has arrived, until something must
    /// be passed: a long packet, or one for which the receiver has no room. Nothing that user space
    /// has received may be in its hands. False: not possible, they are to leave.
    fn arm(&self, sockets: Sockets<'_>) -> bool;

    /// Passes all bytes from now on, in both ways.
    fn disarm(&self, sockets: Sockets<'_>);

    /// Bytes redirected on this way.
    fn redirected(&self, way: Way) -> u64;

    /// Bytes passed to user space on this way, received or not. They may be on their way still:
    /// until all have come, recv(2) saying 0 is not the end.
    fn passed(&self, way: Way) -> u64;

    /// Whether all that was redirected on this way is in its receiver's send queue. To be asked
    /// once it is disarmed, and before user space sends or ends anything there.
    fn is_sent(&self, way: Way, sockets: Sockets<'_>) -> bool;

    /// Takes the sockets out, once both ways are disarmed and sent, and `received` is all that was
    /// passed on each way.
    fn leave(&self, sockets: Sockets<'_>, received: [u64; 2]) -> Left;
}

/// What became of [`Pair::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Both are ordinary sockets.
    Both,
    /// Bytes were passed meanwhile: receive them and try again. If none were, the sockets stay:
    /// one has ended its own half and not its peer's.
    NotYet,
    /// Bytes were passed that recv(2) cannot tell from later ones any more: the tunnel is broken.
    Torn,
}
