//! Real sockets inside namespaces: listeners, clients, and how it went for each of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};

use crate::netns::Netns;
use crate::wait::{PATIENCE, until};

/// A refusal takes microseconds on a quiet machine, and a SYN is repeated after 1 s: a client that hears nothing for
/// so long was dropped. Nearly a second, so that a refusal is heard on a machine that runs other tests too.
pub const SILENCE: Duration = Duration::from_millis(800);

/// Runs a closure inside a namespace.
pub fn within<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    netns.run(|| Ok(work())).unwrap()
}

/// A listening socket that accepts nothing by itself.
pub fn listen(netns: &Netns, address: SocketAddr, backlog: i32) -> TcpListener {
    within(netns, || open(address, backlog, false))
}

/// A listening socket of a SO_REUSEPORT group.
pub fn listen_in_group(netns: &Netns, address: SocketAddr, backlog: i32) -> TcpListener {
    within(netns, || open(address, backlog, true))
}

fn open(address: SocketAddr, backlog: i32, group: bool) -> TcpListener {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
    setsockopt(&fd, sockopt::ReusePort, &group).unwrap();
    // A child that another thread is starting holds this process's sockets until its exec: a port that has been
    // closed here may stay in use for a moment.
    until("the port is free", || {
        match bind(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
            Err(Errno::EADDRINUSE) => None,
            bound => {
                bound.unwrap();
                Some(())
            }
        }
    });
    nix::sys::socket::listen(&fd, Backlog::new(backlog).unwrap()).unwrap();
    TcpListener::from(fd)
}

/// How connection attempts ended. The connected ones stay open as long as this.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Connections that are there.
    pub connected: Vec<TcpStream>,
    /// Connected, and reset before connect() could say so.
    pub reset: usize,
    /// Refused by a RST.
    pub refused: usize,
    /// Nothing came within [`SILENCE`].
    pub silent: usize,
}

impl Attempts {
    /// (connected, refused, silent); connected are also those that were reset right away.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.connected.len() + self.reset, self.refused, self.silent)
    }

    /// What became of those that connected: (served, reset, false). Call once the server has greeted
    /// all it will.
    pub fn fates(&mut self) -> (usize, usize, usize) {
        let fates: Vec<Fate> = self.connected.iter_mut().map(fate).collect();
        let count = |wanted| fates.iter().filter(|fate| **fate == wanted).count();
        (
            count(Fate::Served),
            count(Fate::Reset) + self.reset,
            count(Fate::False),
        )
    }
}

/// One attempt after the other.
pub fn connect(netns: &Netns, address: SocketAddr, times: usize) -> Attempts {
    within(netns, || {
        let mut attempts = Attempts::default();
        for _ in 0..times {
            match attempt(address, SILENCE) {
                Ok(stream) => attempts.connected.push(stream),
                Err(ErrorKind::ConnectionReset) => attempts.reset += 1,
                Err(ErrorKind::ConnectionRefused) => attempts.refused += 1,
                Err(ErrorKind::TimedOut) => attempts.silent += 1,
                Err(kind) => panic!("connect to {address}: {kind}"),
            }
        }
        attempts
    })
}

/// One attempt from the calling thread's namespace.
pub fn attempt(address: SocketAddr, timeout: Duration) -> Result<TcpStream, ErrorKind> {
    TcpStream::connect_timeout(&address, timeout).map_err(|error| error.kind())
}

/// A connection that may need a few repetitions of its SYN.
pub fn connect_patiently(netns: &Netns, address: SocketAddr) -> TcpStream {
    within(netns, || attempt(address, PATIENCE))
        .unwrap_or_else(|error| panic!("connect to {address}: {error}"))
}

/// Takes so many connections out of the listen queue, waiting for each.
pub fn accept(listener: &TcpListener, times: usize) -> Vec<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let one = || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("accept: {error}"),
    };
    let streams = (0..times).map(|_| until("a connection to accept", one));
    let streams: Vec<TcpStream> = streams.collect();
    streams
        .iter()
        .for_each(|s| s.set_nonblocking(false).unwrap());
    streams
}

const GREETING: &[u8] = b"hello";

/// The server's sign that it has this connection.
pub fn greet(accepted: &mut [TcpStream]) {
    for stream in accepted {
        stream.write_all(GREETING).unwrap();
    }
}

/// What became of a client that had connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It got the server's greeting.
    Served,
    /// Its connection was reset.
    Reset,
    /// Neither: it believes in a connection that the server does not have.
    False,
}

/// Waits for the greeting. Call once the server has greeted all it will.
pub fn fate(client: &mut TcpStream) -> Fate {
    client.set_read_timeout(Some(SILENCE)).unwrap();
    let mut greeting = [0; GREETING.len()];
    match client
        .read_exact(&mut greeting)
        .map_err(|error| error.kind())
    {
        Ok(()) => Fate::Served,
        Err(ErrorKind::ConnectionReset) => Fate::Reset,
        Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Fate::False,
        Err(kind) => panic!("read: {kind}"),
    }
}

/// Sends so many bytes each way at the same time, half-closes, and compares every byte.
pub fn echo_both_ways(client: &mut TcpStream, server: &mut TcpStream, bytes: usize) {
    std::thread::scope(|scope| {
        for (stream, salt) in [(&*client, 1), (&*server, 2)] {
            scope.spawn(move || {
                let mut stream = stream;
                stream.write_all(&pattern(bytes, salt)).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
        }
        for (stream, salt) in [(&*client, 2), (&*server, 1)] {
            scope.spawn(move || {
                let mut stream = stream;
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert!(received == pattern(bytes, salt), "bytes arrive as sent");
            });
        }
    });
}

/// Bytes that differ by position and by direction.
fn pattern(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| ((i * 31 + i / 251) ^ salt) as u8)
        .collect()
}
