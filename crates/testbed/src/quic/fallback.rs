//! Clients that come by TCP once QUIC has refused them: TLS and one request of HTTP/1.1 each, in one thread.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::tls;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 200 ";
/// Key of the descriptor that says that clients have come.
const COME: u64 = u64::MAX;
const AT_ONCE: usize = 256;
/// Without news, they look so often at their patience.
const LONGEST_TURN_MS: u16 = 100;

/// What became of these clients. The times are from a client's first Initial on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FallbackResult {
    /// Requests that were answered: when, and after what time.
    pub answered: Vec<(Instant, Duration)>,
    /// Clients whose SYN was answered by a RST.
    pub refused: usize,
    /// Clients whose patience ended.
    pub timed_out: usize,
    /// Reasons of those that ended otherwise.
    pub other: Vec<String>,
}

/// Where clients are sent on.
#[derive(Debug)]
pub struct Door {
    /// `None` once it is gone.
    sender: Option<Sender<Instant>>,
    wake: Arc<EventFd>,
}

impl Door {
    /// One comes, whose first Initial was sent then.
    pub fn send(&self, begun: Instant) {
        // It fails where the clients' thread has failed, which says so itself.
        let _ = self.sender.as_ref().map(|sender| sender.send(begun));
        let _ = self.wake.write(1);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Before they are woken: else they may look while it is still there, and are never woken again.
        self.sender = None;
        let _ = self.wake.write(1);
    }
}

/// Clients of one server that are yet to come.
#[derive(Debug)]
pub struct Fallback {
    to: SocketAddr,
    patience: Duration,
    come: Receiver<Instant>,
    wake: Arc<EventFd>,
}

/// Clients that connect to this server at once when they come, and give up so long after their first Initial.
///
/// # Errors
/// No descriptor is left.
pub fn fallback(to: SocketAddr, patience: Duration) -> Result<(Door, Fallback)> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = Arc::new(EventFd::from_flags(flags).context("cannot create an eventfd")?);
    let (sender, come) = mpsc::channel();
    let door = Door {
        sender: Some(sender),
        wake: wake.clone(),
    };
    let fallback = Fallback {
        to,
        patience,
        come,
        wake,
    };
    Ok((door, fallback))
}

impl Fallback {
    /// Lets them connect from this namespace; returns when the door is gone and the last one has ended.
    ///
    /// # Errors
    /// Sockets cannot be opened. A signal came.
    pub fn run(self, netns: &Netns) -> Result<FallbackResult> {
        netns.run(|| Run::new(self)?.run())
    }
}

struct Run {
    of: Fallback,
    config: Arc<rustls::ClientConfig>,
    epoll: Epoll,
    open: HashMap<u64, Client>,
    /// Those that came, in the order of their patience; some have ended since.
    patience: VecDeque<(Instant, u64)>,
    next: u64,
    /// The door is gone.
    is_closed: bool,
    result: FallbackResult,
}

struct Client {
    begun: Instant,
    stream: TcpStream,
    tls: ClientConnection,
    is_connected: bool,
    received: Vec<u8>,
}

/// How a client ends.
enum End {
    Answered,
    Refused,
    Other(String),
}

impl Run {
    fn new(of: Fallback) -> Result<Run> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = epoll.context("cannot create an epoll")?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, COME);
        let added = epoll.add(&*of.wake, event);
        added.context("cannot watch a descriptor")?;
        Ok(Run {
            of,
            config: tls::web_config(b"http/1.1")?,
            epoll,
            open: HashMap::new(),
            patience: VecDeque::new(),
            next: 0,
            is_closed: false,
            result: FallbackResult::default(),
        })
    }

    fn run(mut self) -> Result<FallbackResult> {
        while !self.is_closed || !self.open.is_empty() {
            interrupt::check()?;
            let mut events = [EpollEvent::empty(); AT_ONCE];
            let longest = EpollTimeout::from(LONGEST_TURN_MS);
            let ready = match self.epoll.wait(&mut events, longest) {
                Err(Errno::EINTR) => 0,
                ready => ready.context("cannot wait for events of sockets")?,
            };
            for event in &events[..ready] {
                match event.data() {
                    COME => self.let_come()?,
                    key => self.go_on(key),
                }
            }
            self.give_up();
        }
        Ok(self.result)
    }

    fn let_come(&mut self) -> Result<()> {
        // Read, lest it wakes again; it fails where nobody has come.
        let _ = self.of.wake.read();
        loop {
            match self.of.come.try_recv() {
                Ok(begun) => self.open(begun)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.is_closed = true;
                    return Ok(());
                }
            }
        }
    }

    fn open(&mut self, begun: Instant) -> Result<()> {
        let name = ServerName::try_from(tls::SERVER_NAME).context("no name")?;
        let tls = ClientConnection::new(self.config.clone(), name);
        let client = Client {
            begun,
            stream: connecting(self.of.to)?,
            tls: tls.context("cannot make a TLS client")?,
            is_connected: false,
            received: Vec::new(),
        };
        let key = self.next;
        self.next += 1;
        let both = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        let added = self.epoll.add(&client.stream, EpollEvent::new(both, key));
        added.context("cannot watch a socket")?;
        self.open.insert(key, client);
        self.patience.push_back((begun + self.of.patience, key));
        Ok(())
    }

    fn go_on(&mut self, key: u64) {
        let Some(end) = self.open.get_mut(&key).and_then(Client::go_on) else {
            return;
        };
        let Some(client) = self.open.remove(&key) else {
            return;
        };
        let now = Instant::now();
        match end {
            End::Answered => self.result.answered.push((now, now - client.begun)),
            End::Refused => self.result.refused += 1,
            End::Other(reason) => self.result.other.push(reason),
        }
    }

    fn give_up(&mut self) {
        let now = Instant::now();
        while let Some(&(until, key)) = self.patience.front() {
            if until > now && self.open.contains_key(&key) {
                break;
            }
            self.patience.pop_front();
            self.result.timed_out += usize::from(self.open.remove(&key).is_some());
        }
    }
}

impl Client {
    /// Does what can be done; `None` as long as more is to come.
    fn go_on(&mut self) -> Option<End> {
        if !self.is_connected {
            match getsockopt(&self.stream, sockopt::SocketError) {
                Ok(0) => {}
                Ok(error) if error == Errno::ECONNREFUSED as i32 => return Some(End::Refused),
                Ok(error) => return Some(End::Other(Errno::from_raw(error).to_string())),
                Err(error) => return Some(End::Other(error.to_string())),
            }
            self.is_connected = true;
            if let Err(error) = self.tls.writer().write_all(REQUEST) {
                return Some(End::Other(error.to_string()));
            }
        }
        match self.exchange() {
            Ok(false) => None,
            Ok(true) if self.received.starts_with(REPLY) => Some(End::Answered),
            Ok(true) => Some(End::Other("it ended without an answer".into())),
            Err(error) => Some(End::Other(error.to_string())),
        }
    }

    /// Sends and receives what there is; whether the server has ended the connection.
    fn exchange(&mut self) -> std::io::Result<bool> {
        let invalid = |error| std::io::Error::new(ErrorKind::InvalidData, error);
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.stream) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    written => written.map(drop)?,
                }
            }
            let read = match self.tls.read_tls(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                read => read?,
            };
            let state = self.tls.process_new_packets().map_err(invalid)?;
            let mut bytes = vec![0; state.plaintext_bytes_to_read()];
            self.tls.reader().read_exact(&mut bytes)?;
            self.received.extend(bytes);
            if read == 0 || state.peer_has_closed() {
                return Ok(true);
            }
        }
    }
}

/// A socket that connects, from the calling thread's namespace.
fn connecting(to: SocketAddr) -> Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let what = || format!("cannot open a TCP socket to {to}");
    let socket = socket(family, SockType::Stream, flags, None).context(what())?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(Error::failed(what(), error)),
    }
}
