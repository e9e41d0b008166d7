//! One client's connection: sends a request, takes the reply, and looks at it: status and length of every
//! reply, every byte of some.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::handshake::{End, Handshake, Kind};
use super::{body, origin};
use crate::error::{Context, Error, Result};

/// Room for a head and the body of a small reply, in one receive.
const HEAD_BUFFER_BYTES: usize = 16 << 10;
/// What one receive discards at most. The kernel never writes to a buffer of MSG_TRUNC.
const DISCARD_BYTES: usize = 1 << 20;

/// How connections are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// One request after the other on the same connection.
    KeepAlive,
    /// A connection for each request; the other end closes it.
    NewConnection,
}

/// How a request goes through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The proxy knows the origin: modes reverse and tcp.
    Known,
    /// The request names the origin: mode forward.
    Named(SocketAddr),
    /// In a tunnel that CONNECT opens first: mode forward.
    Connect(SocketAddr),
}

/// What all connections of a client ask for, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Body bytes of each reply.
    pub bytes: usize,
    /// What becomes of a connection after a reply.
    pub style: Style,
    /// How it gets to the origin.
    pub way: Way,
    /// Whether a cache may keep the reply.
    pub cacheable: bool,
    /// Whether each connection begins with an emulated SSL handshake ([`super::handshake`]).
    pub handshake: bool,
}

impl Ask {
    /// For replies that no cache keeps, of an origin that the proxy knows.
    pub fn plain(bytes: usize, style: Style) -> Ask {
        Ask {
            bytes,
            style,
            way: Way::Known,
            cacheable: false,
            handshake: false,
        }
    }

    fn request(&self) -> String {
        let (before, host) = match self.way {
            Way::Known => (String::new(), "origin.test".into()),
            Way::Named(origin) => (format!("http://{origin}"), origin.to_string()),
            Way::Connect(origin) => (String::new(), origin.to_string()),
        };
        let path = origin::path(self.bytes, self.cacheable);
        let connection = match self.style {
            Style::KeepAlive => "",
            Style::NewConnection => "Connection: close\r\n",
        };
        format!(
            "GET {before}{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-lab\r\nAccept: */*\r\n{connection}\r\n"
        )
    }

    /// What comes before the first request of a connection.
    fn opening(&self) -> Option<String> {
        match self.way {
            Way::Connect(origin) => Some(format!(
                "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\nUser-Agent: weir-lab\r\n\r\n"
            )),
            Way::Known | Way::Named(_) => None,
        }
    }
}

/// What [`Connection::advance`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing more can be done until the next event.
    Waiting,
    /// The connection has been established, its tunnel too, and the handshake is over.
    Connected,
    /// The reply is complete.
    Replied,
    /// The other end has closed, behind the reply.
    Closed,
}

/// A connection to the proxy.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    state: State,
    /// Body bytes of each reply.
    bytes: usize,
    style: Style,
    /// Compare every byte of the current reply.
    thorough: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Connecting,
    /// CONNECT was sent.
    Opening,
    Shaking(Handshake),
    Idle,
    Head,
    /// Bytes of the body that have come.
    Body(usize),
    Closing,
}

/// Buffers that all connections of a thread share.
#[derive(Debug)]
pub struct Scratch {
    /// Body bytes that have come, of complete replies and of others.
    pub received: u64,
    opening: Option<Vec<u8>>,
    /// Handshakes that have begun, if connections have one.
    handshakes: Option<u64>,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Scratch {
    /// For requests like this one.
    pub fn new(ask: &Ask) -> Scratch {
        Scratch {
            received: 0,
            opening: ask.opening().map(String::into_bytes),
            handshakes: ask.handshake.then_some(0),
            request: ask.request().into_bytes(),
            buffer: vec![0; DISCARD_BYTES],
        }
    }
}

impl Connection {
    /// Begins to connect; [`Connection::advance`] sends the first request once it is established.
    pub fn open(target: SocketAddr, bytes: usize, style: Style) -> Result<Connection> {
        Connection::open_with(target, bytes, style, None)
    }

    /// As [`open`](Self::open), to be kept, with a receive buffer of so many bytes (SO_RCVBUF).
    pub fn open_narrow(
        target: SocketAddr,
        bytes: usize,
        receive_buffer: usize,
    ) -> Result<Connection> {
        Connection::open_with(target, bytes, Style::KeepAlive, Some(receive_buffer))
    }

    fn open_with(
        target: SocketAddr,
        bytes: usize,
        style: Style,
        receive_buffer: Option<usize>,
    ) -> Result<Connection> {
        let what = "cannot connect to the proxy";
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(target),
            socket2::Type::STREAM,
            None,
        )
        .context(what)?;
        let prepared = socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_tcp_nodelay(true))
            // Before connecting: the window that is offered must not shrink.
            .and_then(|()| {
                receive_buffer.map_or(Ok(()), |bytes| socket.set_recv_buffer_size(bytes))
            });
        prepared.context(what)?;
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => {
                Err(Error::failed(what, error))
            }
            _ => Ok(Connection {
                stream: socket.into(),
                state: State::Connecting,
                bytes,
                style,
                thorough: true,
            }),
        }
    }

    /// Sends a request; `thorough` compares every byte of its reply.
    pub fn request(&mut self, scratch: &Scratch, thorough: bool) -> Result<()> {
        self.send(&scratch.request)?;
        (self.state, self.thorough) = (State::Head, thorough);
        Ok(())
    }

    fn send(&self, request: &[u8]) -> Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.stream.as_raw_fd(), request, flags) {
            Ok(length) if length == request.len() => Ok(()),
            other => Err(Error::failed(
                "cannot send a request",
                format!("{other:?} of {} bytes", request.len()),
            )),
        }
    }

    /// Receives once, at most so many bytes, if a reply is due.
    pub fn take(&mut self, scratch: &mut Scratch, most: usize) -> Result<()> {
        match self.state {
            State::Head => self.receive_head(scratch, most)?,
            State::Body(come) if come < self.bytes => self.receive_body(come, scratch, most)?,
            _ => return Ok(()),
        };
        Ok(())
    }

    /// Goes on after an event (edge-triggered, readable or writable).
    pub fn advance(&mut self, scratch: &mut Scratch) -> Result<Step> {
        loop {
            match self.state {
                State::Connecting if !self.connected()? => return Ok(Step::Waiting),
                State::Connecting => {
                    if let Some(opening) = &scratch.opening {
                        self.send(opening)?;
                        self.state = State::Opening;
                    } else if self.established(scratch)? {
                        return Ok(Step::Connected);
                    }
                }
                State::Opening => match self.receive(&mut scratch.buffer, MsgFlags::empty())? {
                    Some(length) => {
                        check_opening(&scratch.buffer[..length])?;
                        if self.established(scratch)? {
                            return Ok(Step::Connected);
                        }
                    }
                    None => return Ok(Step::Waiting),
                },
                State::Shaking(_) => match self.receive(&mut scratch.buffer, MsgFlags::empty())? {
                    Some(length) if self.shake(&scratch.buffer[..length])? => {
                        return Ok(Step::Connected);
                    }
                    Some(_) => {}
                    None => return Ok(Step::Waiting),
                },
                State::Idle => return Ok(Step::Waiting),
                State::Head => {
                    if !self.receive_head(scratch, HEAD_BUFFER_BYTES)? {
                        return Ok(Step::Waiting);
                    }
                }
                State::Body(come) if come == self.bytes => {
                    self.state = match self.style {
                        Style::KeepAlive => State::Idle,
                        Style::NewConnection => State::Closing,
                    };
                    return Ok(Step::Replied);
                }
                State::Body(come) => {
                    if !self.receive_body(come, scratch, DISCARD_BYTES)? {
                        return Ok(Step::Waiting);
                    }
                }
                State::Closing => {
                    return match self.receive(&mut scratch.buffer[..1], MsgFlags::empty())? {
                        Some(0) => Ok(Step::Closed),
                        Some(_) => Err(Error::failed("a reply is wrong", "it has surplus bytes")),
                        None => Ok(Step::Waiting),
                    };
                }
            }
        }
    }

    /// The way to the origin stands; whether the first request may go, or else a handshake has begun.
    fn established(&mut self, scratch: &mut Scratch) -> Result<bool> {
        self.state = State::Idle;
        let Some(begun) = &mut scratch.handshakes else {
            return Ok(true);
        };
        let mut handshake = Handshake::new(End::Client, Kind::of_connection(*begun));
        *begun += 1;
        handshake.send(|message| self.send(message))?;
        self.state = State::Shaking(handshake);
        Ok(false)
    }

    /// Goes on with the handshake after these bytes; whether it is over.
    fn shake(&mut self, bytes: &[u8]) -> Result<bool> {
        let State::Shaking(handshake) = &self.state else {
            return Ok(false);
        };
        let mut handshake = handshake.clone();
        if handshake.take(bytes)? < bytes.len() || bytes.is_empty() {
            let cause = "the other end sends more, or has ended";
            return Err(Error::failed("a handshake is wrong", cause));
        }
        handshake.send(|message| self.send(message))?;
        let is_over = handshake.is_over();
        self.state = match is_over {
            true => State::Idle,
            false => State::Shaking(handshake),
        };
        Ok(is_over)
    }

    fn connected(&self) -> Result<bool> {
        let what = "cannot connect to the proxy";
        if let Some(error) = self.stream.take_error().context(what)? {
            return Err(Error::failed(what, error));
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(Error::failed(what, error)),
        }
    }

    fn receive_head(&mut self, scratch: &mut Scratch, most: usize) -> Result<bool> {
        let buffer = &mut scratch.buffer[..most.min(HEAD_BUFFER_BYTES)];
        let Some(length) = self.receive(buffer, MsgFlags::empty())? else {
            return Ok(false);
        };
        // The contenders send a head in one piece; one that does not would be refused here.
        let head_bytes = check_head(&buffer[..length], self.bytes)?;
        let part = &buffer[head_bytes..length];
        if part.len() > self.bytes {
            return Err(Error::failed("a reply is wrong", "it has surplus bytes"));
        }
        if self.thorough {
            body::check(0, part)?;
        }
        self.state = State::Body(part.len());
        scratch.received += part.len() as u64;
        Ok(true)
    }

    fn receive_body(&mut self, come: usize, scratch: &mut Scratch, most: usize) -> Result<bool> {
        let wanted = (self.bytes - come).min(most);
        let flags = if self.thorough {
            MsgFlags::empty()
        } else {
            MsgFlags::MSG_TRUNC
        };
        let Some(length) = self.receive(&mut scratch.buffer[..wanted], flags)? else {
            return Ok(false);
        };
        if length == 0 {
            let cause = format!("it ended after {come} of {} bytes", self.bytes);
            return Err(Error::failed("a reply is wrong", cause));
        }
        if self.thorough {
            body::check(come, &scratch.buffer[..length])?;
        }
        self.state = State::Body(come + length);
        scratch.received += length as u64;
        Ok(true)
    }

    fn receive(&self, buffer: &mut [u8], flags: MsgFlags) -> Result<Option<usize>> {
        match recv(self.stream.as_raw_fd(), buffer, flags) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(Error::failed("cannot receive a reply", error)),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Checks that a tunnel stands, and that nothing has come through it yet.
fn check_opening(bytes: &[u8]) -> Result<()> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(length))
            if length == bytes.len() && response.code == Some(200) =>
        {
            Ok(())
        }
        _ => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
            let cause = format!("the answer to CONNECT is {text:?}");
            Err(Error::failed("the proxy opens no tunnel", cause))
        }
    }
}

/// Checks status and length; returns the length of the head.
fn check_head(bytes: &[u8], body_bytes: usize) -> Result<usize> {
    let wrong = |cause: String| Error::failed("a reply is wrong", cause);
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        other => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
            return Err(wrong(format!("no head ({other:?}) in {text:?}")));
        }
    };
    if response.code != Some(200) {
        return Err(wrong(format!("its status is {:?}", response.code)));
    }
    let announced = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| {
            std::str::from_utf8(header.value)
                .ok()?
                .parse::<usize>()
                .ok()
        });
    if announced != Some(body_bytes) {
        return Err(wrong(format!(
            "its length is {announced:?}, not {body_bytes}"
        )));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_with_another_status_or_length_are_wrong() {
        let head = |status, length| {
            format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n").into_bytes()
        };
        let good = head(200, 5);
        assert_eq!(check_head(&good, 5).unwrap(), good.len());
        assert!(check_head(&head(502, 5), 5).is_err());
        assert!(check_head(&head(200, 6), 5).is_err());
        assert!(check_head(b"HTTP/1.1 200", 5).is_err());
    }

    #[test]
    fn requests_name_the_origin_where_the_proxy_does_not_know_it() {
        let origin: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let ask = |way| Ask {
            way,
            ..Ask::plain(5, Style::KeepAlive)
        };
        let named = ask(Way::Named(origin));
        assert!(
            named
                .request()
                .starts_with("GET http://10.0.0.1:80/5 HTTP/1.1\r\nHost: 10.0.0.1:80\r\n")
        );
        let tunnelled = ask(Way::Connect(origin));
        assert!(tunnelled.request().starts_with("GET /5 "));
        assert!(
            tunnelled
                .opening()
                .unwrap()
                .starts_with("CONNECT 10.0.0.1:80 ")
        );
        assert_eq!(named.opening(), None);
    }

    #[test]
    fn a_tunnel_that_is_refused_or_speaks_first_is_wrong() {
        assert!(check_opening(b"HTTP/1.1 200 OK\r\n\r\n").is_ok());
        assert!(check_opening(b"HTTP/1.1 200 OK\r\n\r\nx").is_err());
        assert!(check_opening(b"HTTP/1.1 502 Bad\r\n\r\n").is_err());
    }
}
