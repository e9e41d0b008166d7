//! The clients: so many connections, each of which asks again once its reply is complete (closed loop), or
//! when its turn comes by a rate that is the same for all contenders. Several kinds of clients may be there at the
//! same time.
//!
//! Clients, their wire and the origin take turns in one thread. Where a card carries the packets, it never sleeps: were
//! it asleep, the proxy's CPU would have to wake it, by an interprocessor interrupt that costs a virtual machine as much as
//! a small request. Where the proxy's CPU does the peers' receive work, waking them is part of it: see [`Rest`].

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Connection, Scratch, Step};
use super::pace::Pace;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::poll::{EDGES, Poll};

pub use super::connection::{Ask, Style, Way};

/// Without any reply for so long, a proxy on fast links is stuck.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// One reply in so many is compared byte by byte, besides the first ones.
const THOROUGH_EVERY: u64 = 101;

/// What to ask for, and how.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The proxy.
    pub target: SocketAddr,
    /// What each connection asks for.
    pub ask: Ask,
    /// Connections at a time.
    pub connections: usize,
    /// Requests/s of all connections together; `None`: as fast as the replies come.
    pub rate_per_s: Option<f64>,
    /// Without any reply for so long, the proxy is stuck.
    pub patience: Duration,
}

/// When it is measured.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Load before the window; not counted.
    pub warm_up: Duration,
    /// The measuring window.
    pub window: Duration,
}

/// What the thread does when there is nothing to do.
#[derive(Debug, Clone, Copy)]
pub enum Rest<'a> {
    /// Looks again at once.
    Spin,
    /// Sleeps until a client or what is behind this epoll has an event.
    Sleep(&'a Epoll),
}

/// Clients with a rate have turns that no event tells of.
const LONGEST_SLEEP_PACED_MS: u8 = 1;
/// Without a rate only the end of a window is not told of.
const LONGEST_SLEEP_MS: u8 = 10;

/// What came of a load, inside the window.
#[derive(Debug)]
pub struct Served {
    /// Body bytes that came, in replies: whole ones and parts of those that were under way at the edges.
    pub replies: f64,
    /// From the request (with [`Style::NewConnection`]: from connect()) to the reply's last byte, in ns.
    pub latency_ns: Histogram<u64>,
}

/// What came of all loads, inside the window.
#[derive(Debug)]
pub struct Outcome<E> {
    /// One for each load, in their order.
    pub served: Vec<Served>,
    /// Time in which neither the clients nor the others had anything to do.
    pub idle: Duration,
    /// What was sampled at the edges of the window.
    pub edges: (E, E),
}

/// Runs the loads, and all else that is on the far side of the proxy, on the calling thread. `others` gives
/// each of the others a turn, and says how many events they had; `sample` is called at both edges of the window.
pub fn run<E>(
    loads: &[Load],
    span: Span,
    rest: Rest,
    mut others: impl FnMut() -> Result<usize>,
    sample: impl Fn() -> E,
) -> Result<Outcome<E>> {
    let mut kinds: Vec<Clients> = loads.iter().map(Clients::open).collect::<Result<_>>()?;
    let all = match rest {
        Rest::Spin => None,
        Rest::Sleep(others) => Some(all_events(&kinds, others)?),
    };
    turn_until(
        Instant::now() + span.warm_up,
        &mut kinds,
        all.as_ref(),
        &mut others,
    )?;
    for clients in &mut kinds {
        clients.latency_ns.reset();
        clients.scratch.received = 0;
    }
    let first = sample();
    let idle = turn_until(
        Instant::now() + span.window,
        &mut kinds,
        all.as_ref(),
        &mut others,
    )?;
    let last = sample();
    let served = kinds.into_iter().map(|clients| Served {
        replies: clients.scratch.received as f64 / clients.load.ask.bytes as f64,
        latency_ns: clients.latency_ns,
    });
    Ok(Outcome {
        served: served.collect(),
        idle,
        edges: (first, last),
    })
}

/// Returns the time in which there was nothing to do.
fn turn_until(
    end: Instant,
    kinds: &mut [Clients],
    all: Option<&Epoll>,
    others: &mut impl FnMut() -> Result<usize>,
) -> Result<Duration> {
    let is_paced = kinds.iter().any(|clients| clients.pace.is_some());
    let sleep_ms = match is_paced {
        true => LONGEST_SLEEP_PACED_MS,
        false => LONGEST_SLEEP_MS,
    };
    let mut idle = Duration::ZERO;
    let mut begun = Instant::now();
    while begun < end {
        let mut events = others()?;
        for clients in &mut *kinds {
            events += clients.turn()?;
        }
        if let (0, Some(all)) = (events, all) {
            let mut event = [EpollEvent::empty(); 1];
            // Whatever it says, the next turn looks.
            let _ = all.wait(&mut event, EpollTimeout::from(sleep_ms));
        }
        let now = Instant::now();
        if events == 0 {
            idle += now - begun;
        }
        begun = now;
    }
    Ok(idle)
}

/// An epoll that has an event when one of these has.
fn all_events(kinds: &[Clients], others: &Epoll) -> Result<Epoll> {
    let what = "cannot watch the epolls of the clients";
    let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context(what)?;
    let add = |epoll: &Epoll| {
        let added = all.add(&epoll.0, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        added.context(what)
    };
    for clients in kinds {
        add(&clients.poll.epoll())?;
    }
    add(others)?;
    Ok(all)
}

struct Clients<'a> {
    load: &'a Load,
    poll: Poll,
    scratch: Scratch,
    slots: Vec<Slot>,
    pace: Option<Pace>,
    latency_ns: Histogram<u64>,
    replies: u64,
    last_reply: Instant,
}

struct Slot {
    connection: Connection,
    /// When the current request, or its connect(), began.
    asked: Instant,
}

impl<'a> Clients<'a> {
    fn open(load: &'a Load) -> Result<Clients<'a>> {
        let mut clients = Clients {
            load,
            poll: Poll::new()?,
            scratch: Scratch::new(&load.ask),
            slots: Vec::new(),
            pace: None,
            latency_ns: new_histogram(),
            replies: 0,
            last_reply: Instant::now(),
        };
        for index in 0..load.connections {
            let slot = clients.connect(index)?;
            clients.slots.push(slot);
        }
        clients.pace = load.rate_per_s.map(Pace::new);
        Ok(clients)
    }

    fn connect(&self, index: usize) -> Result<Slot> {
        let load = self.load;
        let asked = Instant::now();
        let connection = Connection::open(load.target, load.ask.bytes, load.ask.style)?;
        self.poll.watch(&connection, index as u64, EDGES)?;
        Ok(Slot { connection, asked })
    }

    fn turn(&mut self) -> Result<usize> {
        let ready = self.poll.wait(EpollTimeout::ZERO)?;
        for event in 0..ready {
            self.advance(self.poll.key(event) as usize)?;
        }
        let asked = self.ask_by_pace()?;
        if ready == 0 {
            self.check_progress()?;
        }
        Ok(ready + asked)
    }

    fn advance(&mut self, index: usize) -> Result<()> {
        let style = self.load.ask.style;
        match self.slots[index].connection.advance(&mut self.scratch)? {
            Step::Waiting => Ok(()),
            // A new connection was due already; one that is to be kept waits for its turn.
            Step::Connected if style == Style::NewConnection => self.request(index),
            Step::Connected => self.in_turn(index),
            Step::Replied => {
                self.count_reply(index);
                match style {
                    Style::KeepAlive => self.in_turn(index),
                    // The close may have come with the reply, and then no further event comes.
                    Style::NewConnection => self.advance(index),
                }
            }
            Step::Closed => self.in_turn(index),
        }
    }

    fn count_reply(&mut self, index: usize) {
        self.replies += 1;
        self.last_reply = Instant::now();
        let taken = self.last_reply - self.slots[index].asked;
        self.latency_ns.saturating_record(taken.as_nanos() as u64);
    }

    /// Asks at once, or when the rate allows it.
    fn in_turn(&mut self, index: usize) -> Result<()> {
        match &mut self.pace {
            Some(pace) => {
                pace.enqueue(index);
                Ok(())
            }
            None => self.ask(index),
        }
    }

    fn ask(&mut self, index: usize) -> Result<()> {
        match self.load.ask.style {
            Style::KeepAlive => {
                self.slots[index].asked = Instant::now();
                self.request(index)
            }
            Style::NewConnection => {
                self.slots[index] = self.connect(index)?;
                Ok(())
            }
        }
    }

    fn request(&mut self, index: usize) -> Result<()> {
        let first_ones = self.load.connections as u64;
        let thorough = self.replies < first_ones || self.replies.is_multiple_of(THOROUGH_EVERY);
        self.slots[index]
            .connection
            .request(&self.scratch, thorough)
    }

    fn ask_by_pace(&mut self) -> Result<usize> {
        let mut asked = 0;
        while let Some(index) = self.pace.as_mut().and_then(Pace::take_due) {
            self.ask(index)?;
            asked += 1;
        }
        Ok(asked)
    }

    fn check_progress(&self) -> Result<()> {
        interrupt::check()?;
        let silence = self.last_reply.elapsed();
        if silence < self.load.patience {
            return Ok(());
        }
        Err(Error::failed(
            "the proxy is stuck",
            format!(
                "{} connections, but no reply for {silence:?}",
                self.slots.len()
            ),
        ))
    }
}

/// A histogram of ns up to a minute.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1000, 60_000_000_000, 3).expect("the bounds are valid")
}
