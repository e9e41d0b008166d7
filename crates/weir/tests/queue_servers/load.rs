//! Clients that ask again and again, each on a new connection, and tell what became of every one.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};
use nix::sys::time::TimeVal;

use super::bed::{Bed, CLASSES};

/// Clients of the high, the middle and the low class, more than [`super::servers::Program::PythonSlow`] can serve.
const MANY: [usize; 3] = [2, 6, 40];
/// So few that none waits for long.
const FEW: [usize; 3] = [2, 2, 2];
/// A connection that takes longer is stuck.
const STUCK: Duration = Duration::from_secs(10);
/// Nobody waits for so long unless something holds him: 40 clients of a server that takes 1 ms for each, ageing
/// after at most 1 s, on a machine that is busy.
const DELAYED: Duration = Duration::from_secs(3);
/// A client asks again after this: a server that is fast does not take all CPUs from weir's start.
const THINK: Duration = Duration::from_millis(5);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// How a connection ended that did not end with a whole reply in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a RST of its SYN: nobody listened.
    Refused,
    /// By a RST later.
    Reset,
    /// The reply was not whole.
    Cut,
    /// Not at all.
    Stuck,
}

/// A connection that did not end as it should.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "who it was is printed")]
pub struct Trouble {
    /// Third byte of the client's address.
    pub third: u8,
    /// Its port.
    pub port: u16,
    /// When connect() was called, after the load began.
    pub begun: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How.
    pub end: End,
}

/// What became of all connections.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Whole replies.
    pub replies: usize,
    /// All others.
    pub troubles: Vec<Trouble>,
    /// How long the slowest whole reply took.
    pub slowest: Duration,
    /// SYNs and SYN/ACKs that had to be sent again, each after 1 s.
    pub repeated: u64,
}

/// What the clients share.
struct Load {
    clients: [usize; 3],
    port: u16,
    clock: Instant,
    ends: AtomicBool,
    replies: AtomicUsize,
    /// In µs.
    slowest: AtomicU64,
    troubles: Mutex<Vec<Trouble>>,
}

/// The clock of a load, for who makes trouble.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Time since the load began.
    pub fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// SYNs and SYN/ACKs of a bed's clients that had to be sent again so far.
    pub fn repeated(self, bed: &Bed) -> u64 {
        bed.within(repeated_syns)
    }
}

/// Ends the load also when a test fails beside it.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Loads the server on this port while `work` goes on; returns when the last connection has ended.
pub fn during(bed: &Bed, port: u16, work: impl FnOnce(Clock)) -> Outcome {
    with_clients(MANY, bed, port, work)
}

/// The same with clients that wait only if something holds them.
pub fn light_during(bed: &Bed, port: u16, work: impl FnOnce(Clock)) -> Outcome {
    with_clients(FEW, bed, port, work)
}

fn with_clients(clients: [usize; 3], bed: &Bed, port: u16, work: impl FnOnce(Clock)) -> Outcome {
    let load = Load {
        clients,
        port,
        clock: Instant::now(),
        ends: AtomicBool::new(false),
        replies: AtomicUsize::new(0),
        slowest: AtomicU64::new(0),
        troubles: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| bed.within(|| load.run()));
        let ends = EndsOnDrop(&load.ends);
        work(Clock(load.clock));
        drop(ends);
        clients.join().unwrap();
    });
    Outcome {
        replies: load.replies.into_inner(),
        troubles: load.troubles.into_inner().unwrap(),
        slowest: Duration::from_micros(load.slowest.into_inner()),
        repeated: bed.within(repeated_syns),
    }
}

/// TcpExtTCPSynRetrans of the calling thread's namespace.
fn repeated_syns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut rows = text.lines().filter(|row| row.starts_with("TcpExt:"));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut counters = names.split(' ').zip(values.split(' '));
    let counter = counters.find(|(name, _)| *name == "TCPSynRetrans");
    counter.unwrap().1.parse().unwrap()
}

impl Outcome {
    /// Prints it.
    pub fn print(&self) {
        println!(
            "{} replies, the slowest after {:?}, {} SYNs again, {:?}",
            self.replies, self.slowest, self.repeated, self.troubles
        );
    }

    /// Fails unless every connection ended with a whole reply, and none had to knock twice.
    pub fn assert_untroubled(&self) {
        assert!(self.troubles.is_empty(), "{:?}", self.troubles);
        assert_eq!(self.repeated, 0, "SYNs had to be sent again");
        assert!(self.slowest < DELAYED, "one took {:?}", self.slowest);
        assert!(self.replies > 100, "{}", self.replies);
    }
}

impl Load {
    fn run(&self) {
        std::thread::scope(|scope| {
            for (third, clients) in CLASSES.into_iter().zip(self.clients) {
                for _ in 0..clients {
                    scope.spawn(move || self.client(third));
                }
            }
        });
    }

    fn client(&self, third: u8) {
        while !self.ends.load(Ordering::Relaxed) {
            let begun = self.clock.elapsed();
            let mut port = 0;
            let end = ask(third, self.port, &mut port);
            let ended = self.clock.elapsed();
            if let Err(end) = end {
                let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
                troubles.push(Trouble {
                    third,
                    port,
                    begun,
                    ended,
                    end,
                });
            } else {
                self.replies.fetch_add(1, Ordering::Relaxed);
                let took = (ended - begun).as_micros() as u64;
                self.slowest.fetch_max(took, Ordering::Relaxed);
            }
            std::thread::sleep(THINK);
        }
    }
}

/// Whether the server on this port of the calling thread's namespace replies.
pub fn replies(port: u16) -> bool {
    ask(CLASSES[2], port, &mut 0).is_ok()
}

/// One connection from `127.0.THIRD.1`, to its end.
fn ask(third: u8, to: u16, port: &mut u16) -> Result<(), End> {
    let (family, kind) = (AddressFamily::Inet, SockType::Stream);
    let fd: OwnedFd = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let patience = TimeVal::new(STUCK.as_secs() as i64, 0);
    // connect() waits for as long as a send.
    socket::setsockopt(&fd, sockopt::SendTimeout, &patience).unwrap();
    socket::setsockopt(&fd, sockopt::ReceiveTimeout, &patience).unwrap();
    // Ends with a RST, so that no TIME-WAIT keeps the port.
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    socket::setsockopt(&fd, sockopt::Linger, &linger).unwrap();
    socket::bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, third, 1, 0)).unwrap();
    *port = socket::getsockname::<SockaddrIn>(fd.as_raw_fd()).map_or(0, |from| from.port());
    let to = SockaddrIn::new(127, 0, 0, 1, to);
    socket::connect(fd.as_raw_fd(), &to).map_err(|errno| match errno {
        Errno::ECONNREFUSED => End::Refused,
        Errno::ECONNRESET => End::Reset,
        Errno::EINPROGRESS | Errno::ETIMEDOUT => End::Stuck,
        errno => panic!("connect: {errno}"),
    })?;
    let mut stream = TcpStream::from(fd);
    let mut reply = String::new();
    let done = stream
        .write_all(REQUEST)
        .and_then(|()| stream.read_to_string(&mut reply));
    match done {
        Ok(_) if reply.contains("stamp=") => Ok(()),
        Ok(_) => Err(End::Cut),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(End::Stuck)
        }
        Err(_) => Err(End::Reset),
    }
}
