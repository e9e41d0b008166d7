//! Clients that come on a schedule, whatever becomes of those before them (an open loop).

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::clients::{Clients, End, News, socket_to};
use super::request::Request;
use super::table::Key;
use crate::error::Result;
use crate::interrupt;
use crate::netns::Netns;

/// A client that begins later than its schedule by more than this is late.
const LATE: Duration = Duration::from_millis(10);
/// Without news, the crowd looks so often at its schedule.
const LONGEST_TURN: Duration = Duration::from_millis(100);

/// A crowd of clients, each with a UDP socket of its own. One thread holds them all.
#[derive(Debug, Clone, PartialEq)]
pub struct Crowd {
    /// The server.
    pub to: SocketAddr,
    /// Clients/s, at equal distances.
    pub per_second: f64,
    /// For how long clients come, s.
    pub seconds: f64,
    /// Patience of a client, from its first Initial on: to be connected, and answered where it has a request.
    pub timeout: Duration,
    /// What each asks once it is connected. Without, it ends its connection at once.
    pub request: Option<Request>,
}

/// What became of a crowd's clients. The times are from a client's first Initial on, in the order in which they ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CrowdResult {
    /// Handshakes that were completed, also of clients that were not answered then.
    pub connected: Vec<Duration>,
    /// Requests that were answered; empty in a crowd without one.
    pub answered: Vec<Duration>,
    /// Of the clients that got what they came for (to be connected, or answered where they had a request), those that got it
    /// while clients still came: over [`Crowd::seconds`], what the server did in a second.
    pub done_in_time: usize,
    /// Clients that a Version Negotiation packet refused.
    pub version_refused: Vec<Duration>,
    /// Clients whose patience ended: not connected, or not answered.
    pub timed_out: usize,
    /// Reasons of the clients that ended otherwise.
    pub other: Vec<String>,
    /// Clients that began more than 10 ms later than their schedule said: this machine was too busy for the crowd.
    pub late: usize,
}

impl CrowdResult {
    /// All clients of a crowd without a request.
    pub fn clients(&self) -> usize {
        self.connected.len() + self.version_refused.len() + self.timed_out + self.other.len()
    }
}

/// A crowd that only connects, from this namespace; returns when the last client has ended.
///
/// # Errors
/// Sockets cannot be opened: RLIMIT_NOFILE allows fewer than clients are there at a time. A signal came.
pub fn crowd(
    netns: &Netns,
    to: SocketAddr,
    per_second: f64,
    seconds: f64,
    timeout: Duration,
) -> Result<CrowdResult> {
    let crowd = Crowd {
        to,
        per_second,
        seconds,
        timeout,
        request: None,
    };
    crowd.run(netns)
}

impl Crowd {
    /// Has them come from this namespace; returns when the last one has ended.
    ///
    /// # Errors
    /// As [`crowd`].
    pub fn run(&self, netns: &Netns) -> Result<CrowdResult> {
        self.run_telling(netns, |_| {})
    }

    /// The same; `refused` hears at once of each client that a Version Negotiation packet refuses: when it began.
    ///
    /// # Errors
    /// As [`crowd`].
    pub fn run_telling(
        &self,
        netns: &Netns,
        refused: impl FnMut(Instant) + Send,
    ) -> Result<CrowdResult> {
        netns.run(|| Run::new(self)?.run(refused))
    }

    fn clients(&self) -> usize {
        (self.per_second * self.seconds).round() as usize
    }

    /// When a client is to begin, after the first one.
    fn begins(&self, client: usize) -> Duration {
        Duration::from_secs_f64(client as f64 / self.per_second)
    }
}

struct Run<'a> {
    crowd: &'a Crowd,
    clients: Clients,
    /// When those that are there began.
    open: HashMap<Key, Instant>,
    /// Those that began, in that order; some have ended since, and a key may be another client's by then.
    patience: VecDeque<(Instant, Key)>,
    /// When clients come no more.
    closes: Instant,
    result: CrowdResult,
}

impl<'a> Run<'a> {
    fn new(crowd: &'a Crowd) -> Result<Run<'a>> {
        let request = crowd.request.clone();
        let request = request.unwrap_or_else(|| Request::echo(b""));
        Ok(Run {
            crowd,
            clients: Clients::new(crowd.to, request)?,
            open: HashMap::new(),
            patience: VecDeque::new(),
            closes: Instant::now(),
            result: CrowdResult::default(),
        })
    }

    fn run(mut self, mut refused: impl FnMut(Instant)) -> Result<CrowdResult> {
        let first = Instant::now();
        self.closes = first + Duration::from_secs_f64(self.crowd.seconds);
        let mut begun = 0;
        while begun < self.crowd.clients() || !self.open.is_empty() {
            interrupt::check()?;
            while begun < self.crowd.clients() && first + self.crowd.begins(begun) <= Instant::now()
            {
                self.begin(first + self.crowd.begins(begun))?;
                begun += 1;
            }
            self.give_up();
            let next = first + self.crowd.begins(begun);
            let next = (begun < self.crowd.clients()).then_some(next);
            for (key, news) in self.clients.turn(self.wake(next))? {
                if let (News::Ended(End::VersionRefused), Some(begun)) =
                    (&news, self.open.get(&key))
                {
                    refused(*begun);
                }
                self.take(key, news)?;
            }
        }
        Ok(self.result)
    }

    fn begin(&mut self, scheduled: Instant) -> Result<()> {
        let socket = socket_to(self.crowd.to)?;
        let now = Instant::now();
        self.result.late += usize::from(now > scheduled + LATE);
        let key = self.clients.open(now, socket)?;
        self.open.insert(key, now);
        self.patience.push_back((now, key));
        Ok(())
    }

    /// Ends those whose patience has ended.
    fn give_up(&mut self) {
        let now = Instant::now();
        while let Some(&(begun, key)) = self.patience.front() {
            let is_there = self.open.get(&key) == Some(&begun);
            if is_there && begun + self.crowd.timeout > now {
                break;
            }
            self.patience.pop_front();
            if is_there {
                self.end(now, key);
                self.result.timed_out += 1;
            }
        }
    }

    /// When to look at schedule and patience again.
    fn wake(&self, next: Option<Instant>) -> Instant {
        let patience = self.patience.front();
        let patience = patience.map(|(begun, _)| *begun + self.crowd.timeout);
        let longest = Instant::now() + LONGEST_TURN;
        [next, patience]
            .into_iter()
            .flatten()
            .fold(longest, Instant::min)
    }

    fn take(&mut self, key: Key, news: News) -> Result<()> {
        let Some(&begun) = self.open.get(&key) else {
            return Ok(());
        };
        let now = Instant::now();
        let after = now - begun;
        match news {
            News::Connected => {
                self.result.connected.push(after);
                match self.crowd.request {
                    Some(_) if self.clients.is_open(key) => {
                        self.clients.ask(now, key, true)?;
                    }
                    Some(_) => {}
                    None => self.done(now, key),
                }
            }
            News::Answered { is_right, .. } => {
                if is_right {
                    self.result.answered.push(after);
                    self.done(now, key);
                } else {
                    self.result.other.push("a wrong answer".to_owned());
                    self.end(now, key);
                }
            }
            News::Ended(end) => {
                self.open.remove(&key);
                match end {
                    End::VersionRefused => self.result.version_refused.push(after),
                    End::Refused => self.result.other.push("nobody has the port".to_owned()),
                    End::Other(reason) => self.result.other.push(reason),
                }
            }
        }
        Ok(())
    }

    fn done(&mut self, now: Instant, key: Key) {
        self.result.done_in_time += usize::from(now <= self.closes);
        self.end(now, key);
    }

    fn end(&mut self, now: Instant, key: Key) {
        self.open.remove(&key);
        self.clients.end(now, key);
    }
}
