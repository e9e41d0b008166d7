//! Many short connections, each of which a given end closes first: requests and replies as in HTTP/1.1.
//!
//! A client asks with `GET /BYTES`, and the server answers with so many bytes. Which end closes first follows from the
//! head of the last request, as in HTTP: `Connection: close` has the server do it. Both know CLIENT_CLOSE.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error as IoError, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use nix::time::{ClockId, clock_gettime};

use weir_core::client_close::{self, ClientClose, ClientEnd, Received};

use crate::error::{Context, Result};
use crate::netns::Netns;

/// How long an end waits for the other one: longer than TCP needs to repeat a segment several times.
const LIMIT: Duration = Duration::from_secs(60);
/// Connections of a server that may wait for accept().
const BACKLOG: i32 = 4096;
/// What a server has to send, over and over.
static PAGE: [u8; 65_536] = [b'x'; 65_536];

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// The server closes first.
    Server,
    /// The client closes first, with close(): its program waits for nothing.
    Client,
    /// The client closes first, with shutdown(), and waits for the server's end.
    ClientShutdown,
    /// The client sends the request CLIENT_CLOSE, and closes (FTY99, Section 4.2).
    ClientClose,
}

/// What the clients do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where servers listen, in turn.
    pub servers: Vec<SocketAddr>,
    /// Clients at a time.
    pub clients: usize,
    /// They end after so many connections, or after so long.
    pub connections: u64,
    /// Likewise.
    pub time: Duration,
    /// How each connection ends, in turn.
    pub closes: Vec<Close>,
    /// Requests of a connection: bursts, and requests in each of them.
    pub bursts: (u32, u32),
    /// Sizes of replies in bytes, each with its weight.
    pub sizes: Vec<(u32, usize)>,
    /// The first of the local ports, which are given out in turn, so that no two connections have the same addresses and
    /// ports; `None`: connect() chooses.
    pub first_port: Option<u16>,
    /// Seed of the sizes' order.
    pub seed: u64,
}

/// What the clients met.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections that got all their replies.
    pub made: u64,
    /// Those that did not, by what went wrong.
    pub failed: BTreeMap<String, u64>,
    /// Bytes of all replies.
    pub bytes: u64,
    /// From the first connection to the end of the last.
    pub lasted: Duration,
    /// CPU time of the threads at both ends, with what the kernel did in their name.
    pub cpu: Duration,
    /// How long each connection took, in µs, in no order.
    pub took_us: Vec<u32>,
}

impl Tally {
    /// Connections that failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    fn add(&mut self, other: Tally) {
        self.made += other.made;
        self.bytes += other.bytes;
        self.cpu += other.cpu;
        self.took_us.extend(other.took_us);
        for (cause, count) in other.failed {
            *self.failed.entry(cause).or_default() += count;
        }
    }
}

/// Servers that listen inside a namespace; nobody accepts yet.
#[derive(Debug)]
pub struct Servers(Vec<TcpListener>);

impl Servers {
    /// Listens at these addresses.
    pub fn open(netns: &Netns, addresses: &[SocketAddr]) -> Result<Servers> {
        let all = addresses.iter().map(|address| {
            let opened = netns.run(|| Ok(listen(*address)));
            opened?.context(format!("cannot listen on {address}"))
        });
        Ok(Servers(all.collect::<Result<_>>()?))
    }

    /// Runs the plan from `clients` against these servers, which `threads` threads for each address serve on a CPU of
    /// their own; `None`: on any. Returns when all have ended; the servers listen no more then.
    pub fn run(
        self,
        plan: &Plan,
        (netns, cpu, threads): (&Netns, Option<usize>, usize),
        (clients, client_cpu): (&Netns, Option<usize>),
    ) -> Result<Tally> {
        std::thread::scope(|scope| {
            let serve = || {
                netns.run_on(cpu, || {
                    Ok(std::thread::scope(|scope| {
                        let of = |listener| (0..threads).map(move |_| listener);
                        let all = self.0.iter().flat_map(of);
                        let all = all.map(|listener| scope.spawn(move || accept_all(listener)));
                        let all: Vec<_> = all.collect();
                        let times = all.into_iter().map(|thread| thread.join());
                        times.map(|time| time.expect("no panic")).sum::<Duration>()
                    }))
                })
            };
            let server = scope.spawn(serve);
            let tally = clients.run_on(client_cpu, || Ok(load(plan)));
            for listener in &self.0 {
                // accept() returns EINVAL then, in each thread.
                let _ = nix::sys::socket::shutdown(
                    listener.as_raw_fd(),
                    nix::sys::socket::Shutdown::Both,
                );
            }
            let cpu = server.join().expect("the servers do not panic")?;
            let mut tally = tally?;
            tally.cpu += cpu;
            Ok(tally)
        })
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(family(address), SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    nix::sys::socket::listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(TcpListener::from(fd))
}

/// Serves until the listener is shut down. Returns the thread's CPU time.
fn accept_all(listener: &TcpListener) -> Duration {
    while let Ok((stream, _)) = listener.accept() {
        // A client that is gone is the client's affair: it counts.
        let _ = serve(stream);
    }
    cpu_time()
}

fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1024, &stream);
    while let Some(request) = Request::read(&mut reader)? {
        match request.asks_for {
            Some(bytes) => reply(&stream, bytes)?,
            // The client closes, and is to close first.
            None if request.client_close.ends() => {
                std::io::copy(&mut reader, &mut std::io::sink())?;
                return Ok(());
            }
            None => return Err(ErrorKind::InvalidData.into()),
        }
        if request.is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// A request, as the servers here read it.
struct Request {
    /// Bytes of the reply; `None` of a request that is no GET.
    asks_for: Option<usize>,
    is_last: bool,
    client_close: Received,
}

impl Request {
    /// `None` at the end of the connection.
    fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (method, target, version) = (word(), word(), word());
        let bytes = target.strip_prefix('/').map(str::parse);
        let mut request = Request {
            asks_for: match (method, bytes) {
                ("GET", Some(Ok(bytes))) => Some(bytes),
                ("GET", _) => return Err(ErrorKind::InvalidData.into()),
                _ => None,
            },
            is_last: false,
            client_close: Received {
                is_http_1_1: version == "HTTP/1.1",
                is_asterisk: method == client_close::METHOD && target == "*",
                has_option: false,
                // The clients here send none.
                has_body: false,
            },
        };
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end().split_once(": ") {
                None => return Ok(Some(request)),
                Some(("Connection", "close")) => request.is_last = true,
                Some(("Connection", option)) => {
                    request.client_close.has_option |= client_close::is_option(option.as_bytes());
                }
                Some(_) => {}
            }
        }
    }
}

fn reply(mut stream: &TcpStream, bytes: usize) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    let with = bytes.min(PAGE.len());
    let whole = [IoSlice::new(head.as_bytes()), IoSlice::new(&PAGE[..with])];
    let sent = stream.write_vectored(&whole)?;
    if sent < head.len() {
        stream.write_all(&head.as_bytes()[sent..])?;
    }
    let mut left = bytes - sent.saturating_sub(head.len());
    while left > 0 {
        let part = left.min(PAGE.len());
        stream.write_all(&PAGE[..part])?;
        left -= part;
    }
    Ok(())
}

/// All clients of the calling thread's namespace.
fn load(plan: &Plan) -> Tally {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Tally::default());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..plan.clients {
            scope.spawn(|| {
                let mut tally = Tally::default();
                while begun.elapsed() < plan.time {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= plan.connections {
                        break;
                    }
                    one(plan, number, &mut tally);
                }
                tally.cpu = cpu_time();
                total.lock().expect("nobody panics").add(tally);
            });
        }
    });
    let mut tally = total.into_inner().expect("nobody panics");
    tally.lasted = begun.elapsed();
    tally
}

fn one(plan: &Plan, number: u64, tally: &mut Tally) {
    let begun = Instant::now();
    match connection(plan, number) {
        Ok(bytes) => {
            tally.made += 1;
            tally.bytes += bytes;
            tally.took_us.push(begun.elapsed().as_micros() as u32);
        }
        Err((at, error)) => {
            let cause = match error.raw_os_error() {
                Some(number) => format!("{at}: {:?}", nix::errno::Errno::from_raw(number)),
                None => format!("{at}: {:?}", error.kind()),
            };
            *tally.failed.entry(cause).or_default() += 1;
        }
    }
}

/// From connect() to the end. Returns the bytes of its replies; else the call that failed, and how.
fn connection(plan: &Plan, number: u64) -> std::result::Result<u64, (&'static str, IoError)> {
    let at = |call: &'static str| move |error: IoError| (call, error);
    let servers = plan.servers.len() as u64;
    let server = plan.servers[(number % servers) as usize];
    let close = plan.closes[(number % plan.closes.len() as u64) as usize];
    let port = plan
        .first_port
        .map(|first| first + (number / servers) as u16);
    let stream = connect(server, port).map_err(at("connect"))?;
    let (mut bytes, (bursts, requests)) = (0, plan.bursts);
    let mut reader = BufReader::with_capacity(65_536, &stream);
    let mut sizes = Sizes::of(plan, number);
    let mut end = ClientEnd::default();
    for burst in 1..=bursts {
        let mut heads = String::new();
        for request in 1..=requests {
            let is_last = (burst, request) == (bursts, requests);
            let closes = match is_last && close == Close::Server {
                true => "Connection: close\r\n",
                false => "",
            };
            let size = sizes.next();
            end.sends_request();
            heads += &format!("GET /{size} HTTP/1.1\r\nHost: server\r\n{closes}\r\n");
        }
        (&stream)
            .write_all(heads.as_bytes())
            .map_err(at("request"))?;
        for _ in 0..requests {
            bytes += read_reply(&mut reader).map_err(at("reply"))?;
            end.gets_reply(false);
        }
    }
    let to_the_end = |reader: &mut BufReader<&TcpStream>| match reader.read(&mut [0]) {
        Ok(0) => Ok(bytes),
        Ok(_) => Err(("end", ErrorKind::InvalidData.into())),
        Err(error) => Err(("end", error)),
    };
    match close {
        Close::Server => to_the_end(&mut reader),
        Close::Client => Ok(bytes),
        Close::ClientShutdown => {
            stream.shutdown(Shutdown::Write).map_err(at("shutdown"))?;
            to_the_end(&mut reader)
        }
        Close::ClientClose if end.may_end() => {
            let request = ClientClose { host: "server" }.to_string();
            let sent = (&stream).write_all(request.as_bytes());
            sent.map_err(at("CLIENT_CLOSE"))?;
            Ok(bytes)
        }
        Close::ClientClose => Err(("CLIENT_CLOSE", ErrorKind::InvalidData.into())),
    }
}

fn connect(server: SocketAddr, port: Option<u16>) -> std::io::Result<TcpStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(family(server), SockType::Stream, flags, None)?;
    if let Some(port) = port {
        let any = match server {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], port)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], port)),
        };
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(any))?;
    }
    nix::sys::socket::connect(fd.as_fd().as_raw_fd(), &SockaddrStorage::from(server))?;
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Returns the bytes of its body.
fn read_reply(reader: &mut impl BufRead) -> std::io::Result<u64> {
    let (mut line, mut bytes) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let head = line.trim_end();
        if head.is_empty() {
            break;
        }
        if let Some(length) = head.strip_prefix("Content-Length: ") {
            bytes = length.parse().map_err(|_| ErrorKind::InvalidData)?;
        }
    }
    let read = std::io::copy(&mut reader.take(bytes), &mut std::io::sink())?;
    match read == bytes {
        true => Ok(bytes),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Sizes of a connection's replies, by their weights.
struct Sizes<'a> {
    sizes: &'a [(u32, usize)],
    state: u64,
}

impl Sizes<'_> {
    fn of(plan: &Plan, number: u64) -> Sizes<'_> {
        Sizes {
            sizes: &plan.sizes,
            state: plan.seed.wrapping_add(number.wrapping_mul(1 << 20)),
        }
    }

    fn next(&mut self) -> usize {
        let total: u64 = self
            .sizes
            .iter()
            .map(|(weight, _)| u64::from(*weight))
            .sum();
        let mut point = self.draw() % total.max(1);
        for (weight, bytes) in self.sizes {
            if point < u64::from(*weight) {
                return *bytes;
            }
            point -= u64::from(*weight);
        }
        0
    }

    /// splitmix64
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_their_weights() {
        let plan = Plan {
            servers: Vec::new(),
            clients: 0,
            connections: 0,
            time: LIMIT,
            closes: Vec::new(),
            bursts: (1, 1),
            sizes: vec![(9, 1), (1, 100)],
            first_port: None,
            seed: 7,
        };
        let mut sizes = Sizes::of(&plan, 3);
        let large = (0..10_000).filter(|_| sizes.next() == 100).count();
        assert!((900..1100).contains(&large), "{large}");
    }
}
