//! TCP sockets on the event loop.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    ipproto, sockopt,
};

use super::executor::{Clock, Handle};
use super::handshakes::is_in_handshake;
use super::poller::Trigger;
use super::side::set_side_options;
use super::source::{Direction, Source};
use crate::sys;
use weir_core::proxy::SideOptions;

/// A connection.
pub struct TcpStream {
    fd: OwnedFd,
    source: Rc<Source>,
    handle: Handle,
    /// The error (errno) that was told to another than a read; 0: none. The kernel tells it once: a read after that
    /// finds an end.
    failed: Cell<u16>,
    resets_on_close: Cell<bool>,
    note: Cell<u8>,
}

/// A client's connection goes unwatched so long while its server answers, in ms: most have answered by then, and a
/// connection that serves one request is never registered.
const UNWATCHED: Clock = 20;

impl TcpStream {
    fn new(fd: OwnedFd, handle: Handle) -> TcpStream {
        TcpStream {
            fd,
            source: Rc::new(Source::new()),
            handle,
            failed: Cell::new(0),
            resets_on_close: Cell::new(false),
            note: Cell::new(0),
        }
    }

    /// Connects, from the address `source` if given.
    ///
    /// # Errors
    /// As connect(2); `TimedOut` after the task's deadline.
    pub async fn connect(
        handle: &Handle,
        address: SocketAddr,
        source: Option<IpAddr>,
        options: &SideOptions,
    ) -> io::Result<TcpStream> {
        let fd = tcp_socket(address)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        set_side_options(&fd, options)?;
        if let Some(ip) = source {
            bind_source(&fd, ip)?;
        }
        let stream = TcpStream::new(fd, handle.clone());
        match rustix::net::connect(&stream.fd, &address) {
            Ok(()) => return Ok(stream),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        stream.source.clear(Direction::Read);
        stream.source.clear(Direction::Write);
        stream.writable().await?;
        if stream.is_broken() {
            sockopt::socket_error(&stream.fd)??;
        }
        Ok(stream)
    }

    fn wait(
        &self,
        direction: Direction,
        interrupted: impl Fn() -> bool,
    ) -> impl Future<Output = io::Result<()>> {
        let (fd, source) = (&self.fd, &self.source);
        self.handle
            .ready(fd, source, Trigger::Edge, direction, interrupted)
    }

    /// Waits until a read is worth a try: there is data, an end or an error; or nothing is known.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub fn readable(&self) -> impl Future<Output = io::Result<()>> {
        self.wait(Direction::Read, || false)
    }

    /// Waits until a read is worth a try, or `other` has been reset by its peer.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub fn readable_or_broken(&self, other: &TcpStream) -> impl Future<Output = io::Result<()>> {
        self.readable_or_broken_or(other, || false)
    }

    /// As [`readable_or_broken`](Self::readable_or_broken), but `other`, if epoll does not know it yet, is registered
    /// only when this has waited for `UNWATCHED`: a reset of it is noticed that much later.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub async fn readable_or_broken_lazily(&self, other: &TcpStream) -> io::Result<()> {
        if other.source.key().is_none() {
            let late = self.late_after(UNWATCHED);
            self.wait(Direction::Read, late).await?;
            self.handle.forget_reminder();
        }
        self.readable_or_broken(other).await
    }

    /// Whether so many milliseconds have passed, from now on; lets the running task be woken then.
    pub fn late_after(&self, time: Clock) -> impl Fn() -> bool {
        let until = self.handle.now() + time;
        move || {
            let late = self.handle.now() >= until;
            if !late {
                self.handle.remind_at(until);
            }
            late
        }
    }

    /// As [`readable_or_broken`](Self::readable_or_broken), or `interrupted`, which is asked each
    /// time that the task is woken and there is nothing to read.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub async fn readable_or_broken_or(
        &self,
        other: &TcpStream,
        interrupted: impl Fn() -> bool,
    ) -> io::Result<()> {
        if !self.source.is_ready(Direction::Read) {
            self.handle
                .register(&other.fd, &other.source, Trigger::Edge)?;
        }
        let broken = || {
            other.source.wait(Direction::Read, self.handle.running());
            other.is_broken() || interrupted()
        };
        self.wait(Direction::Read, broken).await
    }

    /// Waits until `ready` gives a value, which is asked each time that the task is woken.
    ///
    /// # Errors
    /// `ConnectionAborted` when the peer has reset the connection, or, with `or_ended`, has ended its
    /// half; `TimedOut` after the task's deadline.
    pub async fn unless_gone<T>(
        &self,
        or_ended: bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> io::Result<T> {
        self.handle
            .register(&self.fd, &self.source, Trigger::Edge)?;
        let is_gone = || self.is_broken() || or_ended && self.source.is_read_closed();
        let woken = || match (ready(), is_gone()) {
            (Some(value), _) => Some(Ok(value)),
            (None, true) => Some(Err(io::ErrorKind::ConnectionAborted.into())),
            (None, false) => {
                self.source.wait(Direction::Read, self.handle.running());
                None
            }
        };
        self.handle.wait_for(woken).await?
    }

    /// Takes the connection out of this loop, for the loop of another thread.
    ///
    /// # Errors
    /// The process has no descriptor left; the connection is closed.
    pub fn detach(self) -> io::Result<OwnedFd> {
        self.handle.unregister(&self.fd, &self.source);
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?)
    }

    /// Takes a connection into this loop.
    pub fn attach(fd: OwnedFd, handle: &Handle) -> TcpStream {
        TcpStream::new(fd, handle.clone())
    }

    /// Lets only the connection's end wake the task that waits for it, not bytes that come. Unmuted, bytes wake it again,
    /// and a read is worth a try.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn mute(&self, muted: bool) -> io::Result<()> {
        if !muted {
            self.source.guess_readable();
        }
        self.handle.mute(&self.fd, &self.source, muted)
    }

    /// Whether the peer has ended its half, or the connection is over; if not, the running task is
    /// woken when that comes.
    pub fn notices_end(&self) -> bool {
        self.source.wait(Direction::Read, self.handle.running());
        self.source.is_read_closed()
    }

    /// Looks whether a read is worth a try, or `interrupted`; if not, the running task is woken when
    /// it is.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub fn poll_readable_or(&self, interrupted: impl Fn() -> bool) -> Poll<io::Result<()>> {
        let (fd, source) = (&self.fd, &self.source);
        self.handle
            .poll_ready(fd, source, Trigger::Edge, Direction::Read, interrupted)
    }

    /// Waits until `ready`, which is asked each time that the task is woken, gives a value; `None`
    /// if the connection has been reset by its peer before.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> io::Result<Option<T>> {
        self.handle
            .register(&self.fd, &self.source, Trigger::Edge)?;
        let ready_or_broken = || {
            self.source.wait(Direction::Read, self.handle.running());
            match ready() {
                None if self.is_broken() => Some(None),
                None => None,
                value => Some(value),
            }
        };
        self.handle.wait_for(ready_or_broken).await
    }

    /// Waits until a write is worth a try.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub fn writable(&self) -> impl Future<Output = io::Result<()>> {
        self.wait(Direction::Write, || false)
    }

    /// Whether a read is worth a try.
    pub fn may_be_readable(&self) -> bool {
        self.source.is_ready(Direction::Read)
    }

    /// Whether the connection is known to be over, in both ways.
    pub fn is_broken(&self) -> bool {
        self.source.is_broken()
    }

    /// Whether the peer has reset it: the kernel is asked, which may know it before an event has told.
    pub fn is_over(&self) -> bool {
        self.is_broken() || rustix::net::getpeername(&self.fd).is_err()
    }

    /// Whether nothing has come since [`quiesce`](Self::quiesce): no bytes, no end, no reset.
    pub fn is_quiet(&self) -> bool {
        !self.source.is_ready(Direction::Read)
    }

    /// Lets [`is_quiet`](Self::is_quiet) tell from now on. False if something is there already.
    pub fn quiesce(&self) -> bool {
        if self.source.is_ready(Direction::Read) {
            let peek = |fd: BorrowedFd<'_>| rustix::net::recv(fd, &mut [0u8], RecvFlags::PEEK);
            if !matches!(self.attempt(Direction::Read, peek), Ok(None)) {
                return false;
            }
        }
        let registered = self.handle.register(&self.fd, &self.source, Trigger::Edge);
        registered.is_ok()
    }

    /// Why it is over. Later reads do not report an orderly end instead.
    pub fn take_error(&self) -> io::Error {
        match sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => io::ErrorKind::ConnectionReset.into(),
            Ok(Err(error)) | Err(error) => {
                self.note_failure(error);
                error.into()
            }
        }
    }

    /// EPIPE says that the peer has ended in order before, or that an error was reported already.
    fn note_failure(&self, error: Errno) {
        if error != Errno::PIPE {
            self.failed.set(error.raw_os_error() as u16);
        }
    }

    /// Calls `operation` once; `None` is EAGAIN, and the next event will tell.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn attempt<T>(
        &self,
        direction: Direction,
        operation: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> io::Result<Option<T>> {
        match operation(self.fd.as_fd()) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::AGAIN) => {
                self.source.clear(direction);
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(error) => {
                if direction == Direction::Write {
                    self.note_failure(error);
                }
                Err(error.into())
            }
        }
    }

    /// Whether an end that was read is one, and not a failure that another was told.
    ///
    /// # Errors
    /// That failure.
    pub fn check_end(&self) -> io::Result<()> {
        match self.failed.get() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.into())),
        }
    }

    /// Receives what there is, at most a buffer full; 0 is the end, `None` nothing yet.
    ///
    /// # Errors
    /// As recv(2).
    pub fn try_receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let capacity = buffer.len();
        let receive = |fd: BorrowedFd<'_>| Ok(rustix::net::recv(fd, buffer, RecvFlags::empty())?.1);
        let received = self.attempt(Direction::Read, receive)?;
        if received == Some(0) && capacity > 0 {
            self.check_end()?;
        }
        if received.is_some_and(|bytes| bytes < capacity) {
            self.source.clear_after_short_read();
        }
        Ok(received)
    }

    /// Receives what there is, at most a buffer full, once there is something; 0 is the end.
    ///
    /// # Errors
    /// As recv(2); `TimedOut` after the task's deadline.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await?;
            if let Some(received) = self.try_receive(buffer)? {
                return Ok(received);
            }
        }
    }

    /// Sends what the socket takes; `None` is nothing. `more` says that the rest follows at once, so
    /// that a last segment that is not full waits for it.
    ///
    /// # Errors
    /// As send(2).
    pub fn try_send(&self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let sent = self.attempt(Direction::Write, |fd| rustix::net::send(fd, bytes, flags))?;
        if sent.is_some_and(|sent| sent < bytes.len()) {
            self.source.clear(Direction::Write);
        }
        Ok(sent)
    }

    /// As [`try_send`](Self::try_send), of stretches of bytes in a row, `length` bytes in all.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn try_send_parts(
        &self,
        parts: &[IoSlice<'_>],
        length: usize,
        more: bool,
    ) -> io::Result<Option<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let send = |fd: BorrowedFd<'_>| {
            rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), flags)
        };
        let sent = self.attempt(Direction::Write, send)?;
        if sent.is_some_and(|sent| sent < length) {
            self.source.clear(Direction::Write);
        }
        Ok(sent)
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// As send(2); `TimedOut` after the task's deadline.
    pub async fn send_all(&self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            let sent = self.try_send(bytes, more)?.unwrap_or(0);
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends what a send or splice has held back for more to come. Bytes that wait for the peer's window go on waiting.
    pub fn push(&self) {
        // Set again, this option sends what is held back (tcp_sock_set_nodelay of net/ipv4/tcp.c). If it fails, the kernel
        // sends it after 200 ms.
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
    }

    /// Ends this side's half: the peer reads an end after all that was sent.
    pub fn shut_down_write(&self) {
        // The peer may have reset the connection, which needs no end any more.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Lets the close that follows send a RST and throw away what was not sent.
    pub fn reset_on_close(&self) {
        self.resets_on_close.set(true);
        self.set_linger();
    }

    /// Where both halves have ended and all was sent, the kernel would send no RST and forget what the peer has not got
    /// yet, which would wait for it for ever (tcp_disconnect of net/ipv4/tcp.c): there the close lets it go on, to the end.
    fn set_linger(&self) {
        let forgets = sys::has_sent_its_end(&self.fd).unwrap_or(false);
        let _ = sockopt::set_socket_linger(&self.fd, (!forgets).then_some(Duration::ZERO));
    }

    /// Bytes that were sent and that the peer has not acknowledged; none on a connection that is
    /// known to be over.
    pub fn unacknowledged(&self) -> usize {
        let watched = self
            .handle
            .register(&self.fd, &self.source, Trigger::Edge)
            .is_ok();
        match watched && !self.is_broken() {
            true => sys::unacknowledged(&self.fd).unwrap_or(0),
            false => 0,
        }
    }

    /// How long ago the peer last took some of what it was sent; `None` if nothing is left for it to take, or the
    /// connection is known to be over.
    pub fn last_took(&self) -> Option<Duration> {
        let is_left = self.unacknowledged() > 0;
        is_left.then(|| sys::last_taken(&self.fd).ok()).flatten()
    }

    /// What transfers noted of this connection for those that follow; 0 at first.
    pub fn note(&self) -> u8 {
        self.note.get()
    }

    /// See [`note`](Self::note).
    pub fn set_note(&self, note: u8) {
        self.note.set(note);
    }

    /// Whether no event tells of it yet.
    #[cfg(test)]
    pub fn source_is_unwatched(&self) -> bool {
        self.source.key().is_none()
    }

    /// The loop that it belongs to.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The connection has been reset meanwhile.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let peer = rustix::net::getpeername(&self.fd)?.ok_or(Errno::NOTCONN)?;
        Ok(SocketAddr::try_from(peer)?)
    }

    /// The address that the peer connected to.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(rustix::net::getsockname(&self.fd)?)?)
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if self.resets_on_close.get() {
            // The peer may have ended meanwhile.
            self.set_linger();
        }
        self.handle.forget(&self.source);
    }
}

/// A socket for connections of the family of `address`.
///
/// # Errors
/// As socket(2).
pub fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = family(address);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tcp = Some(ipproto::TCP);
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        tcp,
    )?)
}

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Binds to a local address. The port is chosen at connect(), where only the whole 4-tuple has to
/// be free.
///
/// # Errors
/// As bind(2): `AddrNotAvailable` when the address is not this machine's.
pub fn bind_source(fd: impl AsFd, ip: IpAddr) -> io::Result<()> {
    sys::set_bind_address_no_port(&fd)?;
    Ok(rustix::net::bind(fd, &SocketAddr::new(ip, 0))?)
}

/// How a port is listened on.
#[derive(Debug, Clone, Default)]
pub struct ListenOptions {
    /// Length of the accept queue; the kernel caps it at net.core.somaxconn.
    pub backlog: u32,
    /// Clients speak first: a connection is accepted when its first bytes are there, or after this
    /// time at the latest.
    pub defer_accept: Option<Duration>,
    /// What accepted connections inherit.
    pub side: SideOptions,
}

/// A socket that listens, one of those that share a port.
pub struct TcpListener {
    fd: OwnedFd,
    source: Rc<Source>,
    handle: Handle,
    /// How many connections the next turn asks for.
    batch: Cell<usize>,
}

/// Most connections that one turn of the loop accepts.
const ACCEPT_BATCH: usize = 64;

impl TcpListener {
    /// Opens a socket of the port's group (SO_REUSEPORT) and listens.
    ///
    /// # Errors
    /// As bind(2) and listen(2).
    pub fn open(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
        let fd = tcp_socket(address)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        sockopt::set_socket_reuseport(&fd, true)?;
        rustix::net::bind(&fd, &address)?;
        TcpListener::listen(&fd, options)?;
        Ok(fd)
    }

    /// Opens the first socket of the port's group and listens, if no other socket does.
    ///
    /// # Errors
    /// As bind(2) and listen(2): `AddrInUse` also if the other would share the port.
    pub fn open_first(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
        let fd = tcp_socket(address)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        rustix::net::bind(&fd, &address)?;
        TcpListener::listen(&fd, options)?;
        // From now on others may come to the group; of two that begin at once only one has got here.
        sockopt::set_socket_reuseport(&fd, true)?;
        Ok(fd)
    }

    /// Lets a socket listen with these options, also one that listens already with others.
    ///
    /// # Errors
    /// As setsockopt(2) and listen(2).
    pub fn listen(fd: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
        // Accepted connections inherit these.
        sockopt::set_tcp_nodelay(fd, true)?;
        set_side_options(fd, &options.side)?;
        sys::set_defer_accept(fd, options.defer_accept)?;
        rustix::net::listen(fd, options.backlog.min(i32::MAX as u32) as i32)?;
        Ok(())
    }

    /// Takes a listening socket into the loop.
    pub fn new(fd: OwnedFd, handle: &Handle) -> TcpListener {
        TcpListener {
            fd,
            source: Rc::new(Source::new()),
            handle: handle.clone(),
            batch: Cell::new(1),
        }
    }

    /// Waits for connections, asks `admit` for a permit for each and hands it to `serve` with its peer's address, most
    /// of the time one. False: there was no permit for the next one, if there is a next one.
    ///
    /// As long as one is all that waits, no second one is asked for: that would cost a call that
    /// says no. Each time that there was one, twice as many are asked for.
    ///
    /// # Errors
    /// accept4(2) fails for want of descriptors or memory: it may be called again, later. Errors of
    /// single connections are passed over.
    pub async fn accept<P>(
        &self,
        admit: impl FnMut() -> Option<P>,
        serve: impl FnMut(P, TcpStream, SocketAddr),
    ) -> io::Result<bool> {
        let (fd, source) = (&self.fd, &self.source);
        let ready = self
            .handle
            .ready(fd, source, Trigger::Level, Direction::Read, || false);
        ready.await?;
        self.source.clear(Direction::Read);
        self.accept_now(admit, serve)
    }

    /// As [`accept`](Self::accept), without waiting.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_now<P>(
        &self,
        mut admit: impl FnMut() -> Option<P>,
        mut serve: impl FnMut(P, TcpStream, SocketAddr),
    ) -> io::Result<bool> {
        let batch = self.batch.get();
        let stopped = self.accept_up_to(batch, &mut admit, &mut serve)?;
        self.batch.set(match stopped {
            AcceptEnd::Batch => (batch * 2).min(ACCEPT_BATCH),
            AcceptEnd::Empty => 1,
            // With one, each permit that becomes free would cost a look at epoll.
            AcceptEnd::Full => batch.max(2),
        });
        Ok(stopped != AcceptEnd::Full)
    }

    /// Lets events tell nothing of it until it accepts again: one that is readable all the time and not accepted
    /// from would keep the loop turning.
    pub fn rest(&self) {
        self.handle.unregister(&self.fd, &self.source);
        self.source.clear(Direction::Read);
    }

    /// Refuses new SYNs, as if no socket listened. Handshakes under way may finish, and their clients need not speak
    /// first.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn shut(&self) -> io::Result<()> {
        let shut = sys::listen_nowhere(&self.fd);
        // Shut or not: clients that have connected must not have to speak before they are accepted.
        sys::set_defer_accept(&self.fd, None)?;
        shut
    }

    /// Whether a handshake is under way, whose connection will be in the queue in a moment. False where that cannot be
    /// known.
    pub fn is_in_handshake(&self) -> bool {
        let look = || {
            let address = SocketAddr::try_from(rustix::net::getsockname(&self.fd)?)?;
            is_in_handshake(family(address), address.port())
        };
        look().unwrap_or_else(|error| {
            tracing::debug!("cannot look for handshakes: {error}");
            false
        })
    }

    /// Hands each connection that waits now to `serve`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_all(&self, mut serve: impl FnMut(TcpStream, SocketAddr)) -> io::Result<()> {
        let mut admit = || Some(());
        let mut serve = |(), stream, peer| serve(stream, peer);
        while self.accept_up_to(ACCEPT_BATCH, &mut admit, &mut serve)? == AcceptEnd::Batch {}
        Ok(())
    }

    fn accept_up_to<P>(
        &self,
        batch: usize,
        admit: &mut impl FnMut() -> Option<P>,
        serve: &mut impl FnMut(P, TcpStream, SocketAddr),
    ) -> io::Result<AcceptEnd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..batch {
            let Some(permit) = admit() else {
                return Ok(AcceptEnd::Full);
            };
            match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((fd, peer)) => {
                    if let Some(Ok(peer)) = peer.map(SocketAddr::try_from) {
                        serve(permit, TcpStream::new(fd, self.handle.clone()), peer);
                    }
                }
                Err(Errno::AGAIN) => return Ok(AcceptEnd::Empty),
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Err(error.into());
                }
                // accept(2): errors of the network that belong to that one connection.
                Err(_) => {}
            }
        }
        Ok(AcceptEnd::Batch)
    }
}

/// Why no more were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcceptEnd {
    /// As many were as were asked for.
    Batch,
    /// No connection waits.
    Empty,
    /// There is no permit.
    Full,
}

impl Drop for TcpListener {
    /// Others may hold the socket too: closing it here does not take it out of epoll.
    fn drop(&mut self) {
        self.handle.unregister(&self.fd, &self.source);
    }
}
