//! A QUIC server with a single worker, which takes some time for each new connection.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use quinn_proto::{
    Connection, Dir, Event, Incoming, ReadError, ServerConfig, StreamEvent, StreamId,
};

use super::table::{DATAGRAM_BYTES, Datagram, Key, Table};
use super::{ALPN, tls};
use crate::error::{Context, Error, Result};
use crate::netns::Netns;

/// Datagrams that a server which queues inside reads before it serves the next new connection.
const READ_AT_ONCE: usize = 1000;
/// Longer than a server waits for anything without a look at its timers.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a server takes new connections, and where they wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuicServerKind {
    /// They wait inside it, as in HAProxy and quic-go: before each new connection the worker reads all datagrams that have
    /// come, and answers those of established connections.
    QueuesInside {
        /// Time that the worker spends on each new connection before it answers.
        service: Duration,
    },
    /// They wait in its UDP socket, as nginx's do: it reads one datagram after the other, and none while it works. What finds
    /// no room in the receive buffer is lost.
    QueuesInSocket {
        /// Time that the worker spends on each new connection before it answers.
        service: Duration,
        /// What it asks for with SO_RCVBUFFORCE, bytes. The kernel takes twice as much, and counts what it holds with
        /// each datagram beside its bytes: 2304 bytes for an Initial on loopback.
        receive_buffer_bytes: usize,
    },
}

impl QuicServerKind {
    fn service(self) -> Duration {
        match self {
            QuicServerKind::QueuesInside { service }
            | QuicServerKind::QueuesInSocket { service, .. } => service,
        }
    }

    fn read_at_once(self) -> usize {
        match self {
            QuicServerKind::QueuesInside { .. } => READ_AT_ONCE,
            QuicServerKind::QueuesInSocket { .. } => 1,
        }
    }
}

/// A running server. It ends when this is dropped, and its connections with it.
///
/// On each bidirectional stream it sends back what comes, and ends the stream when the client has.
#[derive(Debug)]
pub struct QuicServer {
    address: SocketAddr,
    accepted: Arc<AtomicU64>,
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl QuicServer {
    /// Starts a server in this namespace with a certificate of its own. With port 0 the kernel chooses one.
    ///
    /// # Errors
    /// The address is taken or not there; SO_RCVBUFFORCE needs root.
    pub fn start(netns: &Netns, address: SocketAddr, kind: QuicServerKind) -> Result<QuicServer> {
        let socket = netns.run(|| open(address, kind))?;
        let address = socket
            .local_addr()
            .context("cannot ask a socket for its address")?;
        let config = tls::server_config(ALPN)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let end = EventFd::from_flags(flags).context("cannot create an eventfd")?;
        let (end, accepted) = (Arc::new(end), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::Builder::new()
            .name("quic-server".into())
            .spawn({
                let (end, accepted) = (end.clone(), accepted.clone());
                move || Worker::new(socket, kind, config, end, accepted).run()
            });
        Ok(QuicServer {
            address,
            accepted,
            end,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections that the worker has served so far. Their clients may have given up meanwhile.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for QuicServer {
    fn drop(&mut self) {
        // It fails only where 2^64 - 1 writes were before it.
        let _ = self.end.write(1);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn open(address: SocketAddr, kind: QuicServerKind) -> Result<UdpSocket> {
    let what = || format!("cannot open a UDP socket at {address}");
    let socket = UdpSocket::bind(address).context(what())?;
    socket.set_nonblocking(true).context(what())?;
    if let QuicServerKind::QueuesInSocket {
        receive_buffer_bytes,
        ..
    } = kind
    {
        setsockopt(&socket, sockopt::RcvBufForce, &receive_buffer_bytes).map_err(|cause| {
            Error::failed("cannot set the receive buffer of a UDP socket", cause)
                .hint("run it with sudo")
        })?;
    }
    Ok(socket)
}

/// What the server's thread has.
struct Worker {
    table: Table,
    socket: Rc<UdpSocket>,
    kind: QuicServerKind,
    end: Arc<EventFd>,
    accepted: Arc<AtomicU64>,
    /// New connections that were read and wait for the worker.
    waiting: VecDeque<Incoming>,
    /// Bytes that are still to be sent back.
    echoes: HashMap<(Key, StreamId), Echo>,
}

/// Something came on a stream.
#[derive(Default)]
struct Echo {
    bytes: Vec<u8>,
    is_complete: bool,
}

impl Worker {
    fn new(
        socket: UdpSocket,
        kind: QuicServerKind,
        config: Arc<ServerConfig>,
        end: Arc<EventFd>,
        accepted: Arc<AtomicU64>,
    ) -> Worker {
        Worker {
            table: Table::new(Some(config)),
            socket: Rc::new(socket),
            kind,
            end,
            accepted,
            waiting: VecDeque::new(),
            echoes: HashMap::new(),
        }
    }

    fn run(mut self) {
        let mut has_ended = false;
        while !has_ended {
            let now = Instant::now();
            for key in self.table.due(now) {
                self.drive(now, key);
            }
            self.read();
            has_ended = match self.waiting.pop_front() {
                Some(incoming) => self.serve(incoming),
                None => self.wait_for_datagrams(),
            };
        }
        let now = Instant::now();
        for incoming in std::mem::take(&mut self.waiting) {
            self.table.ignore(incoming);
        }
        for key in self.table.keys() {
            self.table.end(now, key);
        }
    }

    /// Reads as many datagrams as this server reads at once.
    fn read(&mut self) {
        let mut datagram = [0; DATAGRAM_BYTES];
        let socket = self.socket.clone();
        for _ in 0..self.kind.read_at_once() {
            let (length, from) = match socket.recv_from(&mut datagram) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let now = Instant::now();
            match self.table.receive(now, from, &datagram[..length], &socket) {
                Datagram::Of(key) => self.drive(now, key),
                Datagram::New(incoming) => self.waiting.push_back(*incoming),
                Datagram::Nothing => {}
            }
        }
    }

    /// Spends the time that a new connection takes, then answers it. Whether the server ends.
    fn serve(&mut self, incoming: Incoming) -> bool {
        if wait(&[&*self.end], self.kind.service()) {
            self.table.ignore(incoming);
            return true;
        }
        let now = Instant::now();
        if let Some(key) = self.table.accept(now, incoming, &self.socket) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.drive(now, key);
        }
        false
    }

    /// Waits for a datagram or a timer. Whether the server ends.
    fn wait_for_datagrams(&mut self) -> bool {
        let timer = self.table.next_timer();
        let longest = timer.map_or(LONGEST_WAIT, |at| {
            at.saturating_duration_since(Instant::now())
        });
        wait(&[&*self.end, &*self.socket], longest) && self.end.read().is_ok()
    }

    fn drive(&mut self, now: Instant, key: Key) {
        for event in self.table.drive(now, key) {
            match event {
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => self.accept_streams(key),
                Event::Stream(StreamEvent::Readable { id } | StreamEvent::Writable { id }) => {
                    self.echo(key, id);
                }
                Event::ConnectionLost { .. } => self.echoes.retain(|(of, _), _| *of != key),
                _ => {}
            }
        }
        // What the echoes have to send.
        self.table.drive(now, key);
    }

    fn accept_streams(&mut self, key: Key) {
        while let Some(connection) = self.table.connection(key)
            && let Some(stream) = connection.streams().accept(Dir::Bi)
        {
            self.echo(key, stream);
        }
    }

    /// Sends back what has come on a stream, as far as the client has room for it; the rest follows when it has.
    fn echo(&mut self, key: Key, stream: StreamId) {
        let Some(connection) = self.table.connection(key) else {
            return;
        };
        let echo = self.echoes.entry((key, stream)).or_default();
        if !echo.is_complete {
            echo.is_complete = echo.read(connection, stream);
        }
        let is_sent = echo.write(connection, stream);
        if echo.is_complete && is_sent {
            // It fails where the client has stopped the stream.
            let _ = connection.send_stream(stream).finish();
            self.echoes.remove(&(key, stream));
        }
    }
}

impl Echo {
    /// Reads what is there; whether that was all that will come.
    fn read(&mut self, connection: &mut Connection, stream: StreamId) -> bool {
        let mut stream = connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else {
            return true;
        };
        let is_complete = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.bytes.extend_from_slice(&chunk.bytes),
                Ok(None) | Err(ReadError::Reset(_)) => break true,
                Err(ReadError::Blocked) => break false,
            }
        };
        // What this asks to send goes with the echo.
        let _ = chunks.finalize();
        is_complete
    }

    /// Writes what there is room for; whether nothing is left.
    fn write(&mut self, connection: &mut Connection, stream: StreamId) -> bool {
        match connection.send_stream(stream).write(&self.bytes) {
            Ok(written) => drop(self.bytes.drain(..written)),
            Err(quinn_proto::WriteError::Blocked) => {}
            Err(_) => self.bytes.clear(),
        }
        self.bytes.is_empty()
    }
}

/// Waits until one of these can be read, for so long at most; whether one can.
fn wait(descriptors: &[&dyn AsFd], longest: Duration) -> bool {
    let mut polled: Vec<PollFd> = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
        .collect();
    let end = Instant::now() + longest;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match ppoll(&mut polled, Some(TimeSpec::from_duration(left)), None) {
            Err(Errno::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}
