//! The origin: edge-triggered epoll, `GET /BYTES` is answered with that many bytes of
//! [`super::body`]'s stream, which no cache may keep; the reply to `GET /cacheable/BYTES` may be kept for an hour.
//! Keep-alive and pipelining; closes first when asked to. Takes part in an emulated SSL handshake ([`super::handshake`])
//! before a request.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt};

use super::body;
use super::handshake::{End, Handshake, Kind};
use crate::error::{Context, Result};
use crate::netns::Netns;
use crate::poll::{EDGES, INPUT, Poll};

const LISTENER: u64 = u64::MAX;
const ACCEPTS_PER_TURN: usize = 32;
const HEAD_LIMIT_BYTES: usize = 8192;
const CACHEABLE: &str = "/cacheable";

/// The path of a reply of so many bytes.
pub fn path(bytes: usize, cacheable: bool) -> String {
    let folder = if cacheable { CACHEABLE } else { "" };
    format!("{folder}/{bytes}")
}

/// The origin. It does nothing but in [`Origin::turn`].
#[derive(Debug)]
pub struct Origin {
    poll: Poll,
    listener: TcpListener,
    /// Indexed by descriptor.
    peers: Vec<Option<Peer>>,
    cacheable_replies: u64,
}

impl Origin {
    /// Listens on a port of a namespace.
    pub fn open(netns: &Netns, port: u16) -> Result<Origin> {
        netns.run(|| Origin::listen(port))
    }

    /// Listens on a port of the calling thread's namespace, on all addresses. Several may share a port.
    pub fn listen(port: u16) -> Result<Origin> {
        let what = format!("cannot open the origin on port {port}");
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .context(&what)?;
        let opened = socket
            .set_reuse_address(true)
            .and_then(|()| Ok(setsockopt(&socket, sockopt::ReusePort, &true)?))
            .and_then(|()| socket.set_nonblocking(true))
            .and_then(|()| socket.set_tcp_nodelay(true))
            .and_then(|()| socket.bind(&address.into()))
            .and_then(|()| socket.listen(65535));
        opened.context(&what)?;
        let listener = TcpListener::from(socket);
        let poll = Poll::new()?;
        poll.watch(&listener, LISTENER, INPUT)?;
        Ok(Origin {
            poll,
            listener,
            peers: Vec::new(),
            cacheable_replies: 0,
        })
    }

    /// Replies so far that a cache may keep.
    pub fn cacheable_replies(&self) -> u64 {
        self.cacheable_replies
    }

    /// Has an event when there is something to serve.
    pub fn events(&self) -> Arc<Epoll> {
        self.poll.epoll()
    }

    /// Serves what is there, without waiting; returns the number of events.
    pub fn turn(&mut self) -> Result<usize> {
        self.wait(EpollTimeout::ZERO)
    }

    /// As [`turn`](Self::turn), but waits for an event so long at most.
    pub fn wait(&mut self, timeout: impl Into<EpollTimeout>) -> Result<usize> {
        let ready = self.poll.wait(timeout)?;
        for event in 0..ready {
            match self.poll.key(event) {
                LISTENER => self.accept_some(),
                descriptor => self.advance(descriptor as usize),
            }
        }
        Ok(ready)
    }

    fn accept_some(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            // A failure concerns one connection, or passes when another one closes.
            let Ok((stream, _)) = self.listener.accept() else {
                return;
            };
            let descriptor = stream.as_raw_fd() as usize;
            let watched = self.poll.watch(&stream, descriptor as u64, EDGES);
            if stream.set_nonblocking(true).is_err() || watched.is_err() {
                continue;
            }
            if self.peers.len() <= descriptor {
                self.peers.resize_with(descriptor + 1, || None);
            }
            // Its first event follows at once, since a fresh connection is writable.
            self.peers[descriptor] = Some(Peer::new(stream));
        }
    }

    fn advance(&mut self, descriptor: usize) {
        let Some(peer) = self.peers.get_mut(descriptor).and_then(Option::as_mut) else {
            return;
        };
        if !peer.advance(&mut self.cacheable_replies) {
            self.peers[descriptor] = None;
        }
    }
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// What has come and is not yet a whole request.
    received: Vec<u8>,
    reply: Option<Reply>,
    handshake: Option<Handshake>,
}

/// A reply on its way out.
#[derive(Debug)]
struct Reply {
    head: Vec<u8>,
    body: &'static [u8],
    sent: usize,
    cacheable: bool,
    close: bool,
}

impl Peer {
    fn new(stream: TcpStream) -> Peer {
        Peer {
            stream,
            received: Vec::new(),
            reply: None,
            handshake: None,
        }
    }

    /// Sends and receives as far as both go without waiting; returns whether to keep the connection.
    fn advance(&mut self, cacheable_replies: &mut u64) -> bool {
        loop {
            if let Some(reply) = &mut self.reply {
                match reply.send(&mut self.stream) {
                    Progress::Done if reply.close => return false,
                    Progress::Done => self.reply = None,
                    Progress::Wait => return true,
                    Progress::Over => return false,
                }
            }
            if self.shake().is_err() {
                return false;
            }
            match next_request(&mut self.received) {
                Ok(Some(reply)) => {
                    *cacheable_replies += u64::from(reply.cacheable);
                    self.reply = Some(reply);
                    continue;
                }
                Ok(None) => {}
                Err(()) => return false,
            }
            match self.receive() {
                Progress::Done => {}
                Progress::Wait => return true,
                Progress::Over => return false,
            }
        }
    }

    /// Goes on with an emulated SSL handshake, or begins one, as far as what has come allows it.
    fn shake(&mut self) -> Result<()> {
        if let (None, Some(kind)) = (&self.handshake, self.begun()) {
            self.handshake = Some(Handshake::new(End::Server, kind));
        }
        let Some(handshake) = &mut self.handshake else {
            return Ok(());
        };
        let taken = handshake.take(&self.received)?;
        self.received.drain(..taken);
        let stream = &mut self.stream;
        handshake.send(|message| {
            let what = "cannot send a message of a handshake";
            stream.write_all(message).context(what)
        })?;
        if handshake.is_over() {
            self.handshake = None;
        }
        Ok(())
    }

    /// The handshake that begins with what has come, if it is not a request.
    fn begun(&self) -> Option<Kind> {
        self.received
            .first()
            .copied()
            .and_then(Kind::beginning_with)
    }

    fn receive(&mut self) -> Progress {
        let mut buffer = [0; HEAD_LIMIT_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => Progress::Over,
            Ok(length) => {
                self.received.extend_from_slice(&buffer[..length]);
                Progress::Done
            }
            Err(error) => Progress::after(&error),
        }
    }
}

enum Progress {
    Done,
    Wait,
    Over,
}

impl Progress {
    fn after(error: &std::io::Error) -> Progress {
        match error.kind() {
            ErrorKind::Interrupted => Progress::Done,
            ErrorKind::WouldBlock => Progress::Wait,
            _ => Progress::Over,
        }
    }
}

impl Reply {
    fn new(bytes: usize, cacheable: bool, close: bool) -> Reply {
        let connection = if close { "Connection: close\r\n" } else { "" };
        let keeping = if cacheable {
            "max-age=3600"
        } else {
            "no-store"
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: weir-lab\r\nContent-Type: application/octet-stream\r\nCache-Control: {keeping}\r\n{connection}Content-Length: {bytes}\r\n\r\n"
        );
        Reply {
            head: head.into_bytes(),
            body: &body::stream()[..bytes],
            sent: 0,
            cacheable,
            close,
        }
    }

    fn send(&mut self, stream: &mut TcpStream) -> Progress {
        while self.sent < self.head.len() + self.body.len() {
            let head = &self.head[self.sent.min(self.head.len())..];
            let body = &self.body[self.sent.saturating_sub(self.head.len())..];
            match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Progress::after(&error),
            }
        }
        Progress::Done
    }
}

/// Takes a whole request off the front; `Err` for anything but `GET /BYTES` and `GET /cacheable/BYTES`.
fn next_request(received: &mut Vec<u8>) -> std::result::Result<Option<Reply>, ()> {
    if received.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if received.len() < HEAD_LIMIT_BYTES => return Ok(None),
        _ => return Err(()),
    };
    let path = request.path.ok_or(())?;
    let (rest, cacheable) = match path.strip_prefix(CACHEABLE) {
        Some(rest) => (rest, true),
        None => (path, false),
    };
    let number = rest.strip_prefix('/').ok_or(())?;
    let bytes: usize = number.parse().map_err(drop)?;
    if request.method != Some("GET") || bytes > body::MAX_BYTES {
        return Err(());
    }
    let close = request.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("connection")
            && header.value.eq_ignore_ascii_case(b"close")
    });
    received.drain(..length);
    Ok(Some(Reply::new(bytes, cacheable, close)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelined_requests_are_taken_one_by_one() {
        let mut received =
            b"GET /5 HTTP/1.1\r\nHost: x\r\n\r\nGET /7 HTTP/1.1\r\nConnection: close\r\n\r\nGET"
                .to_vec();
        let first = next_request(&mut received).unwrap().unwrap();
        assert_eq!((first.body.len(), first.close), (5, false));
        let second = next_request(&mut received).unwrap().unwrap();
        assert_eq!((second.body.len(), second.close), (7, true));
        assert!(next_request(&mut received).unwrap().is_none());
        assert_eq!(received, b"GET");
    }

    #[test]
    fn the_reply_to_a_cacheable_path_says_how_long_it_keeps() {
        for cacheable in [false, true] {
            let mut received = format!("GET {} HTTP/1.1\r\n\r\n", path(5, cacheable)).into_bytes();
            let reply = next_request(&mut received).unwrap().unwrap();
            assert_eq!((reply.body.len(), reply.cacheable), (5, cacheable));
            let head = String::from_utf8(reply.head).unwrap();
            assert_eq!(head.contains("max-age=3600"), cacheable, "{head}");
            assert_eq!(head.contains("no-store"), !cacheable, "{head}");
        }
    }

    #[test]
    fn other_requests_end_the_connection() {
        for request in ["POST /5 HTTP/1.1\r\n\r\n", "GET /x HTTP/1.1\r\n\r\n"] {
            assert!(next_request(&mut request.as_bytes().to_vec()).is_err());
        }
    }
}
