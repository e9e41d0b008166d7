//! The pool: so many workers, each of which accepts a connection, is busy with it for a fixed time, replies
//! and closes, and only then accepts the next. That is Apache's prefork model, with a service time that does
//! not depend on the machine: what the listen queue does to clients can be told from what the CPU does.
//!
//! Each accept can be recorded: when, from where, and how long the connection had waited in the listen queue.
//! The wait is true to the microsecond: it begins with the kernel's receive timestamp of the request
//! (SO_TIMESTAMPNS), which a client sends right behind the last packet of its handshake, and ends when
//! accept() returns; both clocks are CLOCK_REALTIME.

use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;

use super::parts::{Work, body, open_listener};
use crate::error::{Context, Error, Result};

const REQUEST_BYTES: usize = 2048;
/// A client that sends no request holds a worker for so long at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often an idle worker of several listeners looks again, in ms.
const POLL_MS: u16 = 500;

/// How a worker is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Occupation {
    /// It waits, as for a database: throughput is workers over service time on any machine.
    Wait,
    /// It uses the CPU: throughput is a core over the service time.
    Spin,
}

/// How to serve.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Port on which to listen, on all addresses; the listener of class k is on port + k - 1
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// Length of each listen queue
    #[arg(long, default_value_t = 1024)]
    pub backlog: u32,
    /// Connections served at the same time
    #[arg(long, default_value_t = 10)]
    pub workers: usize,
    /// How long a worker is busy with each, in µs
    #[arg(long, default_value_t = 10_000)]
    pub service_us: u32,
    /// How it is busy
    #[arg(long, value_enum, default_value = "wait")]
    pub occupation: Occupation,
    /// Bytes of a reply's body
    #[arg(long, default_value_t = 8192)]
    pub body_bytes: usize,
    /// Listeners; a worker accepts from the first that has a connection
    #[arg(long, default_value_t = 1)]
    pub listeners: u16,
    /// File for the records of all accepts, which is created
    #[arg(long, value_name = "PATH")]
    pub record: Option<PathBuf>,
}

/// Serves until it is killed.
pub fn serve(settings: &Settings) -> Result<()> {
    let ports = (0..settings.listeners).map(|class| settings.port + class);
    let listeners: Vec<TcpListener> = ports
        .map(|port| listen(settings, port))
        .collect::<Result<_>>()?;
    let record = settings.record.as_deref().map(create).transpose()?;
    let reply = reply(settings.body_bytes);
    let busy = Busy::new(settings);
    let shared = Shared {
        listeners,
        record,
        reply,
        busy,
    };
    std::thread::scope(|scope| {
        let spawn = |_| scope.spawn(|| shared.work());
        let workers: Vec<_> = (0..settings.workers.max(1)).map(spawn).collect();
        let ends = workers
            .into_iter()
            .map(|worker| worker.join().expect("workers do not panic"));
        ends.collect()
    })
}

fn listen(settings: &Settings, port: u16) -> Result<TcpListener> {
    let listener = open_listener(port, settings.backlog)?;
    // Blocking in accept() is what a prefork server does; with several listeners one must look.
    let blocking = listener.set_nonblocking(settings.listeners > 1);
    blocking.context("cannot set up the listening socket")?;
    if settings.record.is_some() {
        // Makes the kernel stamp packets as they come.
        setsockopt(&listener, sockopt::ReceiveTimestampns, &true)
            .context("cannot ask for timestamps")?;
    }
    Ok(listener)
}

fn create(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.context(format!("cannot create {}", path.display()))
}

fn reply(body_bytes: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.0 200 OK\r\nServer: weir-lab\r\nConnection: close\r\nContent-Length: {body_bytes}\r\n\r\n"
    );
    [head.into_bytes(), body(body_bytes)].concat()
}

#[derive(Debug, Clone, Copy)]
enum Busy {
    Wait(Duration),
    Spin(Work),
}

impl Busy {
    fn new(settings: &Settings) -> Busy {
        match settings.occupation {
            Occupation::Wait => Busy::Wait(Duration::from_micros(settings.service_us.into())),
            Occupation::Spin => Busy::Spin(Work::calibrated(settings.service_us)),
        }
    }

    fn spend(self) {
        match self {
            Busy::Wait(time) => std::thread::sleep(time),
            Busy::Spin(work) => work.spend(),
        }
    }
}

/// What the workers share.
struct Shared {
    /// The class with the highest priority first.
    listeners: Vec<TcpListener>,
    record: Option<File>,
    reply: Vec<u8>,
    busy: Busy,
}

impl Shared {
    fn work(&self) -> Result<()> {
        loop {
            let (stream, source) = self.accept()?;
            let accepted = realtime();
            // A client that went away meanwhile is not the server's failure.
            let _ = self.attend(stream, source, accepted);
        }
    }

    fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        loop {
            for listener in &self.listeners {
                match listener.accept() {
                    Ok(accepted) => return Ok(accepted),
                    Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => {}
                        // The queue is full of connections for which no descriptor is left.
                        Some(Errno::EMFILE | Errno::ENFILE) => {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        _ => return Err(Error::failed("cannot accept a connection", error)),
                    },
                }
            }
            self.await_connection()?;
        }
    }

    fn await_connection(&self) -> Result<()> {
        let watch = |listener| PollFd::new(AsFd::as_fd(listener), PollFlags::POLLIN);
        let mut fds: Vec<PollFd> = self.listeners.iter().map(watch).collect();
        match poll(&mut fds, PollTimeout::from(POLL_MS)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(Error::failed("cannot wait for connections", error)),
        }
    }

    fn attend(
        &self,
        mut stream: TcpStream,
        source: SocketAddr,
        accepted: Duration,
    ) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if self.record.is_some() {
            // A connection from another listening socket (migration) has not inherited it.
            setsockopt(&stream, sockopt::ReceiveTimestampns, &true)?;
        }
        let arrived = read_request(&stream)?;
        if let Some(mut file) = self.record.as_ref() {
            let record = Record {
                accepted,
                wait: arrived.map(|arrived| accepted.saturating_sub(arrived)),
                source: source.ip().to_canonical(),
            };
            // One write of a file opened for appending: records of several workers do not mix.
            file.write_all(&record.encode())?;
        }
        self.busy.spend();
        stream.write_all(&self.reply)
    }
}

/// Reads up to the end of the request; returns when its first packet arrived, if the kernel stamped it.
fn read_request(stream: &TcpStream) -> std::io::Result<Option<Duration>> {
    let mut buffer = [0; REQUEST_BYTES];
    let mut length = 0;
    let mut arrived = None;
    while !buffer[..length].ends_with(b"\r\n\r\n") {
        let mut room = [IoSliceMut::new(&mut buffer[length..])];
        let mut control = nix::cmsg_space!(TimeSpec);
        let flags = MsgFlags::empty();
        let message =
            recvmsg::<SockaddrStorage>(stream.as_raw_fd(), &mut room, Some(&mut control), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(time) = control {
                arrived.get_or_insert(Duration::from(time));
            }
        }
        match message.bytes {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => length += bytes,
        }
        if length == REQUEST_BYTES {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
    }
    Ok(arrived)
}

/// Time since 1970 by CLOCK_REALTIME, the clock of the kernel's timestamps.
pub fn realtime() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is past 1970")
}

/// One accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When accept() returned, since 1970.
    pub accepted: Duration,
    /// How long the connection had waited in the listen queue; `None` if the kernel did not say.
    pub wait: Option<Duration>,
    /// The client's address; 0.0.0.0 for IPv6.
    pub source: IpAddr,
}

const RECORD_BYTES: usize = 20;
const NO_WAIT: u64 = u64::MAX;

impl Record {
    /// accepted ns and wait ns as little-endian u64, then the IPv4 address.
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let wait_ns = self.wait.map_or(NO_WAIT, |wait| wait.as_nanos() as u64);
        bytes[..8].copy_from_slice(&(self.accepted.as_nanos() as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&wait_ns.to_le_bytes());
        if let IpAddr::V4(source) = self.source {
            bytes[16..].copy_from_slice(&source.octets());
        }
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Record {
        let number =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let wait_ns = number(8);
        let source: [u8; 4] = bytes[16..].try_into().expect("four bytes");
        Record {
            accepted: Duration::from_nanos(number(0)),
            wait: (wait_ns != NO_WAIT).then(|| Duration::from_nanos(wait_ns)),
            source: Ipv4Addr::from(source).into(),
        }
    }

    /// All records of a file so far, in the order in which they were written.
    pub fn read_all(path: &Path) -> Result<Vec<Record>> {
        let bytes = std::fs::read(path).context(format!("cannot read {}", path.display()))?;
        let (records, _) = bytes.as_chunks();
        Ok(records.iter().map(Record::decode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_written() {
        let records = [None, Some(Duration::from_micros(7))].map(|wait| Record {
            accepted: Duration::from_nanos(1_700_000_000_123_456_789),
            wait,
            source: Ipv4Addr::new(10, 66, 1, 2).into(),
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        // The last one is only half written.
        std::fs::write(file.path(), [&bytes[..], &bytes[..9]].concat()).unwrap();
        assert_eq!(Record::read_all(file.path()).unwrap(), records);
    }
}
