//! Client connections in one thread, each with a UDP socket of its own.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use quinn_proto::{ClientConfig, Connection, ConnectionError, Dir, Event, StreamEvent, StreamId};

use super::request::Request;
use super::table::{DATAGRAM_BYTES, Datagram, Key, Table};
use super::tls;
use crate::error::{Context, Result};

/// Events of sockets that one look takes.
const AT_ONCE: usize = 256;
/// Key of the descriptor that [`Clients::watch`] watches.
const WATCHED: u64 = u64::MAX;
/// An answer that is longer is not read to its end.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Client connections to one server.
pub(super) struct Clients {
    table: Table,
    config: ClientConfig,
    request: Request,
    to: SocketAddr,
    epoll: Epoll,
    /// What has come of the answers to requests that wait.
    answers: HashMap<(Key, StreamId), Vec<u8>>,
}

/// What happened to a connection.
#[derive(Debug)]
pub(super) enum News {
    /// The handshake is complete.
    Connected,
    /// An answer is there.
    Answered {
        /// Its request.
        request: StreamId,
        /// Whether it is the right one.
        is_right: bool,
    },
    /// It has ended, and is forgotten.
    Ended(End),
}

/// How a connection has ended.
#[derive(Debug)]
pub(super) enum End {
    /// By a Version Negotiation packet.
    VersionRefused,
    /// By ICMP: nobody has the port.
    Refused,
    /// Otherwise.
    Other(String),
}

impl Clients {
    /// No connections yet; each will ask this.
    pub(super) fn new(to: SocketAddr, request: Request) -> Result<Clients> {
        Ok(Clients {
            table: Table::new(None),
            config: tls::client_config(request.alpn)?,
            request,
            to,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot create an epoll")?,
            answers: HashMap::new(),
        })
    }

    /// Opens a connection through a socket of [`socket_to`] the same server: sends its first Initial.
    pub(super) fn open(&mut self, now: Instant, socket: UdpSocket) -> Result<Key> {
        let socket = Rc::new(socket);
        let (config, to) = (self.config.clone(), self.to);
        let key = self.table.connect(now, config, to, socket.clone())?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, key as u64);
        self.epoll
            .add(&*socket, event)
            .context("cannot watch a socket")?;
        self.table.drive(now, key);
        Ok(key)
    }

    /// Has [`Clients::turn`] return when this can be read.
    pub(super) fn watch(&self, descriptor: &impl AsFd) -> Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, WATCHED);
        let added = self.epoll.add(descriptor, event);
        added.context("cannot watch a descriptor")
    }

    /// Sends the request on a connection that is connected. Its [`News::Answered`] follows, unless the connection ends
    /// first.
    pub(super) fn ask(&mut self, now: Instant, key: Key, is_first: bool) -> Result<StreamId> {
        let connection = self.table.connection(key);
        let connection = connection.ok_or("it has ended").context("cannot ask")?;
        if is_first && !self.request.opening.is_empty() {
            write(connection, Dir::Uni, &self.request.opening)?;
        }
        let stream = write(connection, Dir::Bi, &self.request.bytes)?;
        let ended = connection.send_stream(stream).finish();
        ended.context("cannot end a request")?;
        self.answers.insert((key, stream), Vec::new());
        self.table.drive(now, key);
        Ok(stream)
    }

    /// Whether the connection has not ended. Where the server ends it as soon as it is connected, [`News::Ended`] follows
    /// [`News::Connected`] in one turn.
    pub(super) fn is_open(&mut self, key: Key) -> bool {
        self.table.connection(key).is_some()
    }

    /// Waits no longer for an answer.
    pub(super) fn forget(&mut self, key: Key, request: StreamId) {
        self.answers.remove(&(key, request));
    }

    /// Ends a connection and says so to the server, once.
    pub(super) fn end(&mut self, now: Instant, key: Key) {
        self.answers.retain(|(of, _), _| *of != key);
        self.table.end(now, key);
    }

    /// Waits until something happens, but not beyond `until`, and returns it.
    pub(super) fn turn(&mut self, until: Instant) -> Result<Vec<(Key, News)>> {
        let wake = self.table.next_timer().map_or(until, |at| at.min(until));
        let mut events = [EpollEvent::empty(); AT_ONCE];
        let ready = match self.epoll.wait(&mut events, whole_ms(wake)) {
            Err(Errno::EINTR) => 0,
            ready => ready.context("cannot wait for events of sockets")?,
        };
        let mut news = Vec::new();
        for event in &events[..ready] {
            if event.data() != WATCHED {
                self.read(event.data() as Key, &mut news);
            }
        }
        let now = Instant::now();
        for key in self.table.due(now) {
            self.drive(now, key, &mut news);
        }
        Ok(news)
    }

    /// Reads all that a socket has.
    fn read(&mut self, key: Key, news: &mut Vec<(Key, News)>) {
        let mut datagram = [0; DATAGRAM_BYTES];
        while let Some(socket) = self.table.socket(key) {
            let received = socket.recv(&mut datagram);
            let now = Instant::now();
            match received {
                Ok(length) => {
                    let bytes = &datagram[..length];
                    if let Datagram::Of(key) = self.table.receive(now, self.to, bytes, &socket) {
                        self.drive(now, key, news);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.end(now, key);
                    let end = match error.kind() {
                        ErrorKind::ConnectionRefused => End::Refused,
                        _ => End::Other(error.to_string()),
                    };
                    news.push((key, News::Ended(end)));
                }
            }
        }
    }

    fn drive(&mut self, now: Instant, key: Key, news: &mut Vec<(Key, News)>) {
        for event in self.table.drive(now, key) {
            match event {
                Event::Connected => news.push((key, News::Connected)),
                Event::Stream(StreamEvent::Readable { id }) => {
                    news.extend(self.read_answer(key, id).map(|news| (key, news)));
                }
                Event::ConnectionLost { reason } => {
                    self.end(now, key);
                    news.push((key, News::Ended(end_by(&reason))));
                }
                _ => {}
            }
        }
    }

    fn read_answer(&mut self, key: Key, request: StreamId) -> Option<News> {
        let received = self.answers.get_mut(&(key, request))?;
        let connection = self.table.connection(key)?;
        let is_complete = read_to(connection, request, received)?;
        let is_right = is_complete && self.request.is_answered_by(received);
        self.answers.remove(&(key, request));
        Some(News::Answered { request, is_right })
    }
}

/// Reads what a stream has; `None` as long as more is to come, and whether the stream has ended in order.
fn read_to(connection: &mut Connection, stream: StreamId, received: &mut Vec<u8>) -> Option<bool> {
    let mut stream = connection.recv_stream(stream);
    let Ok(mut chunks) = stream.read(true) else {
        return Some(false);
    };
    let end = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk.bytes),
            Ok(None) => break Some(true),
            Err(quinn_proto::ReadError::Blocked) => break None,
            Err(_) => break Some(false),
        }
        if received.len() > MAX_ANSWER_BYTES {
            break Some(false);
        }
    };
    // What this asks to send (more room for the other end) goes with the next datagram.
    let _ = chunks.finalize();
    end
}

/// Opens a stream and writes into it what fits any server's first window.
fn write(connection: &mut Connection, direction: Dir, bytes: &[u8]) -> Result<StreamId> {
    let opened = connection.streams().open(direction);
    let stream = opened
        .ok_or("the server allows none")
        .context("cannot open a stream")?;
    let written = connection.send_stream(stream).write(bytes);
    match written.context("cannot write a request")? {
        all if all == bytes.len() => Ok(stream),
        _ => Err("the server's window is smaller").context("cannot write a request"),
    }
}

fn end_by(reason: &ConnectionError) -> End {
    match reason {
        ConnectionError::VersionMismatch => End::VersionRefused,
        other => End::Other(other.to_string()),
    }
}

/// A socket that is connected to a server, from the calling thread's namespace.
pub(super) fn socket_to(server: SocketAddr) -> Result<UdpSocket> {
    let what = || format!("cannot open a UDP socket to {server}");
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).context(what())?;
    socket.connect(server).context(what())?;
    socket.set_nonblocking(true).context(what())?;
    Ok(socket)
}

/// The time until then, rounded up: what waits shorter looks again and again.
fn whole_ms(until: Instant) -> EpollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    let ms = left.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(Duration::from_millis(ms.min(60_000) as u64))
        .unwrap_or(EpollTimeout::ZERO)
}
