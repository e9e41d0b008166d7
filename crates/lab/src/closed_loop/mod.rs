//! Clients with real sockets, as VTFM01 uses them: greedy ones, which make a new connection for each request
//! and ask again as soon as they have the reply (Webstone), and one that replays a trace.
//!
//! Their TCP is the kernel's own: a SYN that nobody answers is sent again after 1 s and waits on (Linux 6.5 and
//! newer: four times 1 s, then doubling). So closed loops offer less when they are refused, which the paper
//! discusses in its Section 3.1. All clients of a run are served by one thread, in the client namespace.

mod trace;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

pub use trace::Trace;

use crate::client::new_histogram;
use crate::error::{Context, Result};
use crate::interrupt;
use crate::poll::{EDGES, Poll};

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nUser-Agent: weir-lab\r\n\r\n";
const BUFFER_BYTES: usize = 64 << 10;
/// Longest sleep of the loop.
const LOOK: Duration = Duration::from_millis(100);
/// A greedy client that was refused or reset asks again after this: at once, it would measure nothing but
/// how fast it can be refused.
const PAUSE: Duration = Duration::from_millis(100);

/// What the clients of a group do.
#[derive(Debug, Clone)]
pub enum Demand {
    /// So many clients, each with one request after the other.
    Greedy {
        /// Clients.
        clients: usize,
    },
    /// Requests when they are due, with so many connections at most; what is due when all are in use waits.
    Replay {
        /// When.
        trace: Trace,
        /// Connections at the same time, at most.
        connections: usize,
    },
}

/// Clients that are counted together.
#[derive(Debug, Clone)]
pub struct Group {
    /// The address from which they come, of the namespace in which they run.
    pub source: Ipv4Addr,
    /// The server.
    pub target: SocketAddrV4,
    /// What they do.
    pub demand: Demand,
}

/// What became of a group's requests in the window.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Complete replies.
    pub replies: u64,
    /// Bytes received, heads included, of complete replies and of others.
    pub bytes: u64,
    /// Requests that ended without a reply: refused, reset, cut short.
    pub failures: u64,
    /// From the beginning of connect() (of a trace: from when it was due) to the end of the reply, µs.
    pub response_us: Histogram<u64>,
    /// The longest that any request had waited for its reply, answered or not, at the end of the run.
    pub longest_wait: Duration,
}

impl Outcome {
    fn new() -> Outcome {
        Outcome {
            replies: 0,
            bytes: 0,
            failures: 0,
            response_us: new_histogram(),
            longest_wait: Duration::ZERO,
        }
    }
}

/// Runs all groups in the calling thread's namespace, for `warm_up` and then `window`, in which it counts.
/// `body_bytes`: shortest complete reply.
pub fn run(
    groups: &[Group],
    body_bytes: usize,
    warm_up: Duration,
    window: Duration,
) -> Result<Vec<Outcome>> {
    let mut clients = Clients::new(groups, body_bytes, warm_up, window)?;
    clients.run()?;
    Ok(clients.finish())
}

/// One connection at a time.
struct Slot {
    group: usize,
    state: State,
    /// Since the run's beginning.
    begun: Duration,
    received: usize,
}

enum State {
    /// Nothing to do (a trace's), or paused.
    Idle,
    Connecting(TcpStream),
    Reading(TcpStream),
}

/// What is due of a trace.
struct Replay {
    due: VecDeque<Duration>,
    idle_slots: Vec<usize>,
}

struct Clients<'a> {
    groups: &'a [Group],
    body_bytes: usize,
    warm_up: Duration,
    end: Duration,
    clock: Instant,
    poll: Poll,
    slots: Vec<Slot>,
    /// One for each group; `None` for greedy ones.
    replays: Vec<Option<Replay>>,
    /// When paused slots go on; all pause for as long, so they are in order.
    paused: VecDeque<(Duration, usize)>,
    outcomes: Vec<Outcome>,
    buffer: Vec<u8>,
}

impl<'a> Clients<'a> {
    fn new(
        groups: &'a [Group],
        body_bytes: usize,
        warm_up: Duration,
        window: Duration,
    ) -> Result<Clients<'a>> {
        let mut slots = Vec::new();
        let mut replays = Vec::new();
        for (group, asked) in groups.iter().enumerate() {
            let first = slots.len();
            let count = match &asked.demand {
                Demand::Greedy { clients } => *clients,
                Demand::Replay { connections, .. } => *connections,
            };
            slots.extend((0..count).map(|_| Slot {
                group,
                state: State::Idle,
                begun: Duration::ZERO,
                received: 0,
            }));
            replays.push(match &asked.demand {
                Demand::Greedy { .. } => None,
                Demand::Replay { trace, .. } => Some(Replay {
                    due: trace.due().iter().copied().collect(),
                    idle_slots: (first..slots.len()).collect(),
                }),
            });
        }
        Ok(Clients {
            groups,
            body_bytes,
            warm_up,
            end: warm_up + window,
            clock: Instant::now(),
            poll: Poll::new()?,
            slots,
            replays,
            paused: VecDeque::new(),
            outcomes: groups.iter().map(|_| Outcome::new()).collect(),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    fn in_window(&self, now: Duration) -> bool {
        (self.warm_up..self.end).contains(&now)
    }

    fn run(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            if self.replays[self.slots[slot].group].is_none() {
                self.begin(slot, self.now())?;
            }
        }
        while self.now() < self.end {
            interrupt::check()?;
            self.begin_due()?;
            for event in 0..self.poll.wait(self.sleep_ms())? {
                self.advance(self.poll.key(event) as usize)?;
            }
        }
        Ok(())
    }

    /// Until the next thing is due, in whole ms: rounded down, since to be late is worse than to look twice.
    fn sleep_ms(&self) -> u8 {
        let dues = self
            .replays
            .iter()
            .flatten()
            .filter(|replay| !replay.idle_slots.is_empty())
            .filter_map(|replay| replay.due.front());
        let next = dues.chain(self.paused.front().map(|(at, _)| at)).min();
        let now = self.now();
        let sleep = next.map_or(LOOK, |at| at.saturating_sub(now).min(LOOK));
        sleep.as_millis() as u8
    }

    fn begin_due(&mut self) -> Result<()> {
        let now = self.now();
        while self.paused.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, slot)) = self.paused.pop_front() {
                self.begin(slot, now)?;
            }
        }
        for group in 0..self.groups.len() {
            while let Some((slot, due)) = self.take_due(group, now) {
                self.begin(slot, due)?;
            }
        }
        Ok(())
    }

    /// A trace's next request that is due, and a connection for it.
    fn take_due(&mut self, group: usize, now: Duration) -> Option<(usize, Duration)> {
        let replay = self.replays[group].as_mut()?;
        let due = *replay.due.front().filter(|due| **due <= now)?;
        let slot = replay.idle_slots.pop()?;
        replay.due.pop_front();
        Some((slot, due))
    }

    fn begin(&mut self, slot: usize, begun: Duration) -> Result<()> {
        let group = &self.groups[self.slots[slot].group];
        let socket = open(group.source).context("cannot create a client socket")?;
        let refused = match socket.connect(&SocketAddr::V4(group.target).into()) {
            Ok(()) => false,
            Err(error) => error.raw_os_error() != Some(Errno::EINPROGRESS as i32),
        };
        let stream = TcpStream::from(socket);
        self.poll.watch(&stream, slot as u64, EDGES)?;
        let entry = &mut self.slots[slot];
        (entry.begun, entry.received) = (begun, 0);
        entry.state = State::Connecting(stream);
        if refused {
            self.end_request(slot, false)?;
        }
        Ok(())
    }

    /// Goes as far as the socket lets it.
    fn advance(&mut self, slot: usize) -> Result<()> {
        let Some(entry) = self.slots.get_mut(slot) else {
            return Ok(());
        };
        entry.state = match std::mem::replace(&mut entry.state, State::Idle) {
            State::Idle => return Ok(()),
            State::Connecting(mut stream) => match stream.write(REQUEST) {
                Ok(REQUEST_BYTES) => State::Reading(stream),
                Err(error) if is_not_yet(&error) => {
                    entry.state = State::Connecting(stream);
                    return Ok(());
                }
                _ => return self.end_request(slot, false),
            },
            reading => reading,
        };
        self.read(slot)
    }

    fn read(&mut self, slot: usize) -> Result<()> {
        let now = self.now();
        let counts = self.in_window(now);
        loop {
            let entry = &mut self.slots[slot];
            let State::Reading(stream) = &mut entry.state else {
                return Ok(());
            };
            match stream.read(&mut self.buffer) {
                Ok(0) => {
                    let complete = entry.received >= self.body_bytes;
                    return self.end_request(slot, complete);
                }
                Ok(bytes) => {
                    entry.received += bytes;
                    self.outcomes[entry.group].bytes += if counts { bytes as u64 } else { 0 };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return self.end_request(slot, false),
            }
        }
    }

    /// The connection is over; its client goes on.
    fn end_request(&mut self, slot: usize, complete: bool) -> Result<()> {
        let now = self.now();
        let entry = &mut self.slots[slot];
        entry.state = State::Idle;
        let (group, took) = (entry.group, now.saturating_sub(entry.begun));
        if self.in_window(now) {
            let outcome = &mut self.outcomes[group];
            outcome.longest_wait = outcome.longest_wait.max(took);
            if complete {
                outcome.replies += 1;
                outcome
                    .response_us
                    .saturating_record((took.as_micros() as u64).max(1));
            } else {
                outcome.failures += 1;
            }
        }
        match &mut self.replays[group] {
            Some(replay) => replay.idle_slots.push(slot),
            None if complete => return self.begin(slot, now),
            None => self.paused.push_back((now + PAUSE, slot)),
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<Outcome> {
        for slot in &self.slots {
            if !matches!(slot.state, State::Idle) {
                let outcome = &mut self.outcomes[slot.group];
                let waited = self.end.saturating_sub(slot.begun);
                outcome.longest_wait = outcome.longest_wait.max(waited);
            }
        }
        self.outcomes
    }
}

const REQUEST_BYTES: usize = REQUEST.len();

fn is_not_yet(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected
    )
}

/// A socket bound to an address, whose port the kernel chooses at connect(), by the whole four-tuple.
fn open(source: Ipv4Addr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    Ok(socket)
}
