//! Hosts on both sides of an emulated link: servers that send as much as they are asked for, and clients that carry out a
//! plan of the simulation (`weir_sim::Plan`) with the kernel's TCP.
//!
//! A request is `GET /segments/N` for N full segments of 1448 bytes, the head of the reply included, or `GET /bytes/N`
//! for a body of N bytes; `POST` is read until the client ends. The server closes. Every host has CUBIC, whatever the machine's
//! default is.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use weir_sim::connection::{Job, Spec};
use weir_sim::outcome::Record;
use weir_sim::segment::MSS;

use super::{Emulated, far, near};
use crate::error::{Context, Result};
use crate::interrupt;
use crate::sys::{self, IpOption};

/// Port of the servers.
pub const PORT: u16 = 80;
/// Congestion control of all hosts.
const ALGORITHM: &str = "cubic";
/// Length of a request, bytes, as in the simulation.
const REQUEST_BYTES: usize = 100;
const BACKLOG: i32 = 4096;
/// A thread that waits looks so often whether all has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Threads of connections need little.
const STACK_BYTES: usize = 1 << 17;
const CHUNK: usize = 1 << 16;

/// The servers of the far side; they end when this is dropped.
#[derive(Debug)]
pub struct Servers {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Serves at every address of the far side.
    ///
    /// # Errors
    /// The port cannot be had.
    pub fn start(link: &Emulated) -> Result<Servers> {
        let listener = link.far.run(listen)?;
        let ended = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&ended);
        let thread = std::thread::spawn(move || accept(&listener, &of_thread));
        Ok(Servers {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen() -> Result<TcpListener> {
    let open = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        setsockopt(&socket, sockopt::TcpCongestion, &OsString::from(ALGORITHM))?;
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)).into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    open().context(format!("cannot listen on port {PORT} of the far side"))
}

fn accept(listener: &TcpListener, ended: &Arc<AtomicBool>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut fds, timeout);
        while let Ok((stream, _)) = listener.accept() {
            let ended = Arc::clone(ended);
            let serving = std::thread::Builder::new().stack_size(STACK_BYTES);
            // A client that goes away is its own affair.
            let serving = serving.spawn(move || drop(serve(stream, &ended)));
            threads.extend(serving);
        }
        threads.retain(|thread| !thread.is_finished());
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Serves one connection.
fn serve(mut stream: TcpStream, ended: &AtomicBool) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    let is_head = |request: &[u8]| request.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_head(&request) {
        match read(&mut stream, &mut chunk, ended)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&chunk[..length]),
        }
    }
    if request.starts_with(b"POST") {
        while read(&mut stream, &mut chunk, ended)? > 0 {}
        return Ok(());
    }
    let path = request.split(|byte| *byte == b' ').nth(1);
    let path = String::from_utf8_lossy(path.unwrap_or_default()).into_owned();
    write(&mut stream, reply(&path), ended)
}

/// The head of the reply, and the bytes of the whole.
fn reply(path: &str) -> (Vec<u8>, u64) {
    // Of the same length for every number.
    let head = |status: &str, length: u64| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length:012}\r\nConnection: close\r\n\r\n"
        );
        head.into_bytes()
    };
    let number = |prefix: &str| path.strip_prefix(prefix)?.parse::<u32>().ok();
    let (status, length) = match (number("/segments/"), number("/bytes/")) {
        (Some(segments @ 1..), _) => {
            let all = u64::from(segments) * u64::from(MSS);
            ("200 OK", all - head("200 OK", 0).len() as u64)
        }
        (_, Some(bytes)) => ("200 OK", bytes.into()),
        _ => ("404 Not Found", 0),
    };
    let head = head(status, length);
    let all = head.len() as u64 + length;
    (head, all)
}

fn write(stream: &mut TcpStream, reply: (Vec<u8>, u64), ended: &AtomicBool) -> std::io::Result<()> {
    let (mut chunk, mut left) = reply;
    chunk.resize(left.min(CHUNK as u64) as usize, b'x');
    while left > 0 {
        let length = left.min(chunk.len() as u64) as usize;
        let mut part = &chunk[..length];
        while !part.is_empty() {
            match stream.write(part) {
                Ok(written) => part = &part[written..],
                Err(error) if is_time(&error) && !ended.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
        left -= length as u64;
        chunk.fill(b'x');
    }
    Ok(())
}

fn read(stream: &mut TcpStream, chunk: &mut [u8], ended: &AtomicBool) -> std::io::Result<usize> {
    loop {
        match stream.read(chunk) {
            Err(error) if is_time(&error) && !ended.load(Ordering::Relaxed) => {}
            done => return done,
        }
    }
}

/// Whether a call only took longer than [`LOOK`].
fn is_time(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Carries out connections of a plan from the near side, each at its time, and gives what became of them in their order.
/// Ends when all that end have ended, or after so many seconds.
///
/// # Errors
/// A signal has come.
pub fn carry_out(link: &Emulated, connections: &[Spec], longest: Duration) -> Result<Vec<Record>> {
    link.near.run(|| {
        let ended = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let end = begun + longest;
        let (done, records) = mpsc::channel();
        for (number, spec) in connections.iter().enumerate() {
            let at = begun + Duration::from_nanos(spec.start_ns);
            while let Some(left) = at.checked_duration_since(Instant::now()) {
                if interrupt::interrupted() {
                    ended.store(true, Ordering::Relaxed);
                    interrupt::check()?;
                }
                std::thread::sleep(left.min(LOOK));
            }
            let (spec, ended, done) = (*spec, Arc::clone(&ended), done.clone());
            // It inherits the namespace. Nobody joins it: that would keep its stack until then.
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let spawned = thread.spawn(move || {
                // The other end has gone only where a signal has come.
                let _ = done.send((number, one(&spec, end, &ended)));
            });
            spawned.context("cannot start a thread")?;
        }
        drop(done);
        let unknown = |spec: &Spec| Record::new(spec.start_ns, 0);
        let mut all: Vec<Record> = connections.iter().map(unknown).collect();
        let finite = connections.iter().filter(|spec| is_finite(&spec.job));
        let mut open = finite.count();
        // What does not end by itself ends when it is told to.
        loop {
            match records.recv_timeout(LOOK / 4) {
                Ok((number, record)) => {
                    open -= usize::from(is_finite(&connections[number].job));
                    all[number] = record;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let is_over = open == 0 || Instant::now() >= end || interrupt::interrupted();
            ended.fetch_or(is_over, Ordering::Relaxed);
        }
        interrupt::check()?;
        Ok(all)
    })
}

/// Whether it ends by itself within a run.
fn is_finite(job: &Job) -> bool {
    matches!(job, Job::Download(segments) if *segments < weir_sim::traffic::LONG)
}

/// One connection.
fn one(spec: &Spec, end: Instant, ended: &AtomicBool) -> Record {
    let segments = match spec.job {
        Job::Download(segments) => segments,
        Job::Upload => 0,
    };
    let mut record = Record {
        of_burst: spec.of_burst,
        ..Record::new(spec.start_ns, segments)
    };
    let begun = Instant::now();
    let ns = || begun.elapsed().as_nanos() as u64;
    let Ok(mut stream) = connect(near(spec.client_hash), far(spec.server_hash), end) else {
        return record;
    };
    let connect_ns = ns();
    record.connect_ns = Some(connect_ns);
    // A SYN is sent again after a second, and only then.
    record.syn_repeats = u32::from(connect_ns >= 1_000_000_000);
    let is_whole = match spec.job {
        Job::Upload => upload(&mut stream, ended),
        Job::Download(segments) => download(&mut stream, segments, ended),
    };
    if is_whole.unwrap_or(false) {
        record.response_ns = Some(ns());
    }
    record
}

fn connect(from: Ipv4Addr, to: Ipv4Addr, end: Instant) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    setsockopt(&socket, sockopt::TcpCongestion, &OsString::from(ALGORITHM))?;
    sys::set_ip_option(&socket, IpOption::BindAddressNoPort, 1)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    let left = end.saturating_duration_since(Instant::now());
    socket.connect_timeout(&SocketAddr::from((to, PORT)).into(), left.max(LOOK))?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    Ok(stream)
}

/// Whether the whole reply came.
fn download(stream: &mut TcpStream, segments: u32, ended: &AtomicBool) -> std::io::Result<bool> {
    stream.write_all(&request(segments))?;
    let mut left = u64::from(segments) * u64::from(MSS);
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        match read(stream, &mut chunk, ended)? {
            0 => return Ok(false),
            length => left = left.saturating_sub(length as u64),
        }
    }
    Ok(true)
}

/// Of [`REQUEST_BYTES`] bytes.
fn request(segments: u32) -> Vec<u8> {
    let mut request = format!("GET /segments/{segments} HTTP/1.1\r\nHost: x\r\nX: ").into_bytes();
    request.resize(REQUEST_BYTES - 4, b'x');
    request.extend_from_slice(b"\r\n\r\n");
    request
}

/// Sends until all has ended.
fn upload(stream: &mut TcpStream, ended: &AtomicBool) -> std::io::Result<bool> {
    stream.write_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let chunk = vec![b'x'; CHUNK];
    while !ended.load(Ordering::Relaxed) {
        match stream.write(&chunk) {
            Err(error) if !is_time(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_as_many_full_segments_as_it_was_asked_for() {
        for segments in [1, 2, 7, 69, 70, 6300, 12_300] {
            let (head, all) = reply(&format!("/segments/{segments}"));
            assert_eq!(all, segments * 1448, "{segments}");
            let text = String::from_utf8(head.clone()).unwrap();
            let length = text.split("Content-Length: ").nth(1).unwrap();
            let length: u64 = length.split("\r\n").next().unwrap().parse().unwrap();
            let end = text.find("\r\n\r\n").unwrap() + 4;
            assert_eq!(end as u64 + length, all, "{segments}");
        }
        assert_eq!(reply("/bytes/9").1, reply("/bytes/9").0.len() as u64 + 9);
        assert!(reply("/").0.starts_with(b"HTTP/1.1 404"));
    }

    #[test]
    fn a_request_is_as_long_as_that_of_the_simulation() {
        for segments in [1, 12_300, u32::MAX] {
            assert_eq!(request(segments).len(), REQUEST_BYTES);
        }
    }
}
