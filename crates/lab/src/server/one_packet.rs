//! The built-in server: one thread, epoll, a reply of one packet.
//!
//! As lean as a server can be with plain sockets, so that what is measured is the kernel's TCP and
//! not a web server; `work_us` adds CPU time to each request and so sets the saturation. It accepts
//! a few connections a wake-up and tries to read at once, since the request is usually there.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::BODY_BYTES;
use super::parts::{Work, body, open_listener};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::poll::{INPUT, Poll};

/// Connections accepted before those already accepted get their turn.
const ACCEPTS_PER_WAKE_UP: usize = 16;
const LISTENER: u64 = u64::MAX;
const REQUEST_BYTES: usize = 2048;

/// What the server does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Reply {
    /// HTTP/1.1: a reply of 900 bytes to each request, keep-alive; the client closes first unless
    /// it asks for `Connection: close`.
    Http,
    /// One byte at once to each accepted connection; the client closes.
    Greet,
}

/// How to serve.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Settings {
    /// Port on which to listen, on all addresses of IPv4 and IPv6
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// Length of the listen queue
    #[arg(long, default_value_t = 128)]
    pub backlog: u32,
    /// CPU time to spend on each request (or connection), in µs; sets the saturation
    #[arg(long, default_value_t = 0)]
    pub work_us: u32,
    /// What to do with a connection
    #[arg(long = "mode", value_enum, default_value = "http")]
    pub reply: Reply,
}

struct Peer {
    stream: TcpStream,
    /// A request that has come in part; usually empty.
    partial: Vec<u8>,
}

struct Server {
    settings: Settings,
    poll: Poll,
    listener: TcpListener,
    /// Indexed by descriptor.
    peers: Vec<Option<Peer>>,
    reply: Vec<u8>,
    work: Work,
}

/// Serves until SIGINT or SIGTERM.
pub fn serve(settings: Settings) -> Result<()> {
    let mut server = Server {
        settings,
        poll: Poll::new()?,
        listener: open_listener(settings.port, settings.backlog)?,
        peers: Vec::new(),
        reply: reply(),
        work: Work::calibrated(settings.work_us),
    };
    server.poll.watch(&server.listener, LISTENER, INPUT)?;
    while !interrupt::interrupted() {
        for event in 0..server.poll.wait(500u16)? {
            match server.poll.key(event) {
                LISTENER => server.accept_some()?,
                descriptor => server.on_readable(descriptor as usize),
            }
        }
    }
    Ok(())
}

impl Server {
    fn accept_some(&mut self) -> Result<()> {
        for _ in 0..ACCEPTS_PER_WAKE_UP {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(Error::failed("cannot accept a connection", error)),
            };
            self.begin(stream);
        }
        Ok(())
    }

    fn begin(&mut self, stream: TcpStream) {
        let descriptor = stream.as_raw_fd() as usize;
        if self.poll.watch(&stream, descriptor as u64, INPUT).is_err() {
            return;
        }
        if self.peers.len() <= descriptor {
            self.peers.resize_with(descriptor + 1, || None);
        }
        self.peers[descriptor] = Some(Peer {
            stream,
            partial: Vec::new(),
        });
        match self.settings.reply {
            Reply::Http => self.on_readable(descriptor),
            Reply::Greet => self.greet(descriptor),
        }
    }

    fn greet(&mut self, descriptor: usize) {
        self.work.spend();
        if let Some(peer) = &self.peers[descriptor] {
            let _ = send(
                peer.stream.as_raw_fd(),
                b"!",
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            );
        }
    }

    /// Reads what is there and replies; closes (by dropping) at the client's close and on errors.
    fn on_readable(&mut self, descriptor: usize) {
        let Some(peer) = self.peers.get_mut(descriptor).and_then(Option::as_mut) else {
            return;
        };
        let mut buffer = [0; REQUEST_BYTES];
        let keep = match recv(peer.stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => false,
            Ok(length) if self.settings.reply == Reply::Greet => length > 0,
            Ok(length) => peer.take(&buffer[..length], &self.reply, self.work),
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(_) => false,
        };
        if !keep {
            self.peers[descriptor] = None;
        }
    }
}

impl Peer {
    /// Replies to the complete requests; returns whether to keep the connection.
    fn take(&mut self, fresh: &[u8], reply: &[u8], work: Work) -> bool {
        let joined;
        let mut bytes = fresh;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(fresh);
            joined = std::mem::take(&mut self.partial);
            bytes = &joined;
        }
        while !bytes.is_empty() {
            match parse_request(bytes) {
                Request::Complete { length, close } => {
                    work.spend();
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    // A client that does not read 1 KiB has no claim to more.
                    if send(self.stream.as_raw_fd(), reply, flags) != Ok(reply.len()) || close {
                        return false;
                    }
                    bytes = &bytes[length..];
                }
                Request::Partial if bytes.len() < REQUEST_BYTES => {
                    self.partial = bytes.to_vec();
                    return true;
                }
                Request::Partial | Request::Bad => return false,
            }
        }
        true
    }
}

enum Request {
    Complete { length: usize, close: bool },
    Partial,
    Bad,
}

fn parse_request(bytes: &[u8]) -> Request {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => Request::Complete {
            length,
            close: request.headers.iter().any(|header| {
                header.name.eq_ignore_ascii_case("connection")
                    && header.value.eq_ignore_ascii_case(b"close")
            }),
        },
        Ok(httparse::Status::Partial) => Request::Partial,
        Err(_) => Request::Bad,
    }
}

/// A failed accept that concerns one connection, or is over once another one closes.
fn is_transient(error: &std::io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(
        number,
        Some(Errno::ECONNABORTED | Errno::EMFILE | Errno::ENFILE | Errno::EINTR)
    )
}

fn reply() -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: weir-lab\r\nContent-Type: text/plain\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    );
    [head.into_bytes(), body(BODY_BYTES)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_fits_one_segment_of_an_ethernet() {
        assert!(reply().len() <= 1448, "MSS 1460 less timestamps");
    }

    #[test]
    fn connection_close_is_heard_whatever_its_case() {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\ncOnNeCtIoN: Close\r\n\r\n";
        assert!(matches!(
            parse_request(request),
            Request::Complete { close: true, .. }
        ));
        assert!(matches!(parse_request(&request[..20]), Request::Partial));
        assert!(matches!(
            parse_request(b"\x16\x03\x01 nonsense\r\n\r\n"),
            Request::Bad
        ));
    }
}
