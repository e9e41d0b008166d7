//! A server that takes its time, and clients that come again and again.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_testbed::netns::Netns;
use weir_testbed::sockets::{SILENCE, within};
use weir_testbed::wait::until;

/// What a worker takes for a connection: it serves 250 of them in a second.
const WORK: Duration = Duration::from_millis(4);
/// Pause of a worker that has nothing to accept.
const IDLE: Duration = Duration::from_micros(200);
/// Visits of a light load for each address, one after the other.
const LIGHT: usize = 15;
/// Clients of an overload. With their pause after a refusal they ask for two to four times what one worker serves.
const CLIENTS: usize = 24;
const PAUSE: Duration = Duration::from_millis(25);
/// As long as clients of an overload come again.
const OVERLOAD: Duration = Duration::from_millis(700);
/// An accepted connection is answered in this time: it waits behind at most the queue.
const ANSWER: Duration = Duration::from_secs(5);

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// How a client connects.
pub type Open<'a> = &'a (dyn Fn(SocketAddr) -> std::io::Result<TcpStream> + Sync);

/// As most clients do; gives up before a SYN would be repeated.
pub fn plain(to: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&to, SILENCE)
}

/// The threads of a server, one for each listening socket; they end on drop.
pub struct Workers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Serves each of these sockets by a worker of its own.
    pub fn start(listeners: Vec<TcpListener>) -> Workers {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = listeners.into_iter().map(|listener| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || work(&listener, &stop))
        });
        let threads = threads.collect();
        Workers { stop, threads }
    }

    /// Serves one socket by so many workers.
    pub fn start_many(listener: TcpListener, workers: usize) -> Workers {
        let clones = (1..workers).map(|_| listener.try_clone().unwrap());
        let mut all: Vec<TcpListener> = clones.collect();
        all.push(listener);
        Workers::start(all)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(IDLE);
            continue;
        };
        std::thread::sleep(WORK);
        // A client that has given up is counted where it was.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        let _ = stream.read(&mut [0; 100]);
        let _ = stream.write_all(REPLY);
    }
}

/// How the visits of a load ended.
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    /// With the whole reply.
    pub served: usize,
    /// Of the served those that took so long that a SYN was sent again, theirs or a proxy's.
    pub late: usize,
    /// By a RST, before any reply.
    pub refused: usize,
    /// Without an answer to the SYN, until it would have been repeated.
    pub silent: usize,
    /// In any other way.
    pub failed: usize,
    /// Of the failed those that had a reply with another status than 200, by status.
    pub errors: BTreeMap<u16, usize>,
    /// The longest until a refusal.
    pub slowest_refusal: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} served ({} late), {} refused (in {:.1?} at most), {} timed out, {} failed",
            self.served, self.late, self.refused, self.slowest_refusal, self.silent, self.failed
        )?;
        match self.errors.is_empty() {
            true => Ok(()),
            false => write!(f, " {:?}", self.errors),
        }
    }
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.served += other.served;
        self.late += other.late;
        self.refused += other.refused;
        self.silent += other.silent;
        self.failed += other.failed;
        for (status, count) in &other.errors {
            *self.errors.entry(*status).or_default() += count;
        }
        self.slowest_refusal = self.slowest_refusal.max(other.slowest_refusal);
    }

    fn count(&mut self, end: std::io::Result<u16>, took: Duration) {
        use ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, WouldBlock};
        match end.map_err(|error| error.kind()) {
            Ok(200) => {
                self.served += 1;
                self.late += usize::from(took >= SILENCE);
            }
            Ok(status) => {
                self.failed += 1;
                *self.errors.entry(status).or_default() += 1;
            }
            Err(ConnectionRefused | ConnectionReset) => {
                self.refused += 1;
                self.slowest_refusal = self.slowest_refusal.max(took);
            }
            Err(TimedOut | WouldBlock) => self.silent += 1,
            Err(_) => self.failed += 1,
        }
    }
}

/// The reply's status.
pub fn visit(to: SocketAddr, open: Open<'_>) -> std::io::Result<u16> {
    let mut stream = open(to)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let text = String::from_utf8_lossy(&reply);
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    match status {
        Some(200) if !text.ends_with("hello") => Err(ErrorKind::UnexpectedEof.into()),
        Some(status) => Ok(status),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn counted(outcome: &mut Outcome, to: SocketAddr, open: Open<'_>) -> bool {
    let begun = Instant::now();
    let end = visit(to, open);
    let served = matches!(end, Ok(200));
    outcome.count(end, begun.elapsed());
    served
}

/// One client at a time, to each address in turn.
pub fn light(client: &Netns, to: &[SocketAddr], open: Open<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    within(client, || {
        for _ in 0..LIGHT {
            for to in to {
                counted(&mut outcome, *to, open);
            }
        }
    });
    outcome
}

/// Many clients, each to one of the addresses.
pub fn overload(client: &Netns, to: &[SocketAddr], open: Open<'_>) -> Outcome {
    overload_all(1, client, to, open)
}

/// The same for so many servers behind these addresses.
pub fn overload_all(servers: usize, client: &Netns, to: &[SocketAddr], open: Open<'_>) -> Outcome {
    let begun = Instant::now();
    let one = |to: SocketAddr| {
        let mut outcome = Outcome::default();
        while begun.elapsed() < OVERLOAD {
            if !counted(&mut outcome, to, open) {
                std::thread::sleep(PAUSE);
            }
        }
        outcome
    };
    let mut sum = Outcome::default();
    std::thread::scope(|scope| {
        let clients = (0..CLIENTS * servers).map(|n| {
            let to = to[n % to.len()];
            scope.spawn(move || within(client, || one(to)))
        });
        let clients: Vec<_> = clients.collect();
        for client in clients {
            sum.add(&client.join().unwrap());
        }
    });
    sum
}

/// Clients that come whether or not those before were served.
pub struct Crowd {
    /// How many times as many connections as one worker serves.
    pub times: u32,
    /// As long as they come.
    pub during: Duration,
}

/// Threads of a crowd: as many of its clients as are under way at once.
const CROWD: u32 = 100;

impl Crowd {
    /// The crowd comes, evenly spread over time, to each of the addresses.
    pub fn overload(&self, client: &Netns, to: &[SocketAddr]) -> Outcome {
        let begun = Instant::now();
        let between = WORK / self.times * CROWD;
        let one = |n: u32| {
            let mut outcome = Outcome::default();
            let mut next = begun + between / CROWD * n;
            while next < begun + self.during {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                counted(&mut outcome, to[n as usize % to.len()], &plain);
                // One that waited for a reply has no turns to make up for.
                next = (next + between).max(Instant::now());
            }
            outcome
        };
        let mut sum = Outcome::default();
        std::thread::scope(|scope| {
            let clients = (0..CROWD).map(|n| scope.spawn(move || within(client, || one(n))));
            let clients: Vec<_> = clients.collect();
            for client in clients {
                sum.add(&client.join().unwrap());
            }
        });
        sum
    }
}

/// Waits until the server replies at each address: links are up, neighbours known, and its queue has room.
pub fn ready(client: &Netns, to: &[SocketAddr], open: Open<'_>) {
    for to in to {
        until("the server replies", || {
            within(client, || visit(*to, open))
                .ok()
                .filter(|status| *status == 200)
        });
    }
}
