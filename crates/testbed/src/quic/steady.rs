//! Connections that are established, and go on asking beside whatever else happens to their server.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::StreamId;

use super::clients::{Clients, News, socket_to};
use super::request::Request;
use super::table::Key;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::netns::Netns;

/// To be established, one after the other.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Without news, they look so often whether they are to end.
const LONGEST_TURN: Duration = Duration::from_millis(50);

/// Established connections, each of which asks again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Steady {
    /// The server.
    pub to: SocketAddr,
    /// How many.
    pub connections: usize,
    /// Distance between the beginnings of two requests of a connection. They are spread over it.
    pub every: Duration,
    /// A request that is answered later is late.
    pub late_after: Duration,
    /// A request that is not answered by then is lost, as are those of a connection that has ended.
    pub lost_after: Duration,
    /// What they ask.
    pub request: Request,
}

/// What became of their requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SteadyResult {
    /// All.
    pub requests: usize,
    /// Those that were answered in time.
    pub in_time: usize,
    /// Those that were answered late.
    pub late: usize,
    /// Those that were never answered, or wrongly.
    pub lost: usize,
    /// Connections that ended.
    pub ended: usize,
}

/// One of them.
struct Member {
    next: Instant,
    has_asked: bool,
}

impl Steady {
    /// Establishes them from this namespace, calls `ready`, and has them ask until `stop` is set or all have ended.
    /// Requests that wait then are waited for.
    ///
    /// # Errors
    /// One cannot be established within 10 s. A signal came.
    pub fn run(
        &self,
        netns: &Netns,
        stop: &AtomicBool,
        ready: impl FnOnce() + Send,
    ) -> Result<SteadyResult> {
        netns.run(|| {
            let mut clients = Clients::new(self.to, self.request.clone())?;
            let keys: Result<Vec<Key>> = (0..self.connections)
                .map(|_| self.establish(&mut clients))
                .collect();
            let keys = keys?;
            ready();
            let begun = Instant::now();
            let share = self.every / self.connections.max(1) as u32;
            let member = |(place, key)| {
                let member = Member {
                    next: begun + share * place as u32,
                    has_asked: false,
                };
                (key, member)
            };
            let members = keys.into_iter().enumerate().map(member).collect();
            let run = Run {
                steady: self,
                clients,
                members,
                waiting: HashMap::new(),
                result: SteadyResult::default(),
            };
            run.run(stop)
        })
    }

    fn establish(&self, clients: &mut Clients) -> Result<Key> {
        let what = || format!("cannot establish a connection to {}", self.to);
        let begun = Instant::now();
        let new = clients.open(begun, socket_to(self.to)?)?;
        while begun.elapsed() < CONNECT_LIMIT {
            interrupt::check()?;
            for (key, news) in clients.turn(Instant::now() + LONGEST_TURN)? {
                match news {
                    News::Connected if key == new => return Ok(new),
                    News::Ended(end) => return Err(Error::failed(what(), format!("{end:?}"))),
                    _ => {}
                }
            }
        }
        Err(Error::failed(
            what(),
            format!("not within {CONNECT_LIMIT:?}"),
        ))
    }
}

struct Run<'a> {
    steady: &'a Steady,
    clients: Clients,
    members: HashMap<Key, Member>,
    /// Requests that wait for their answers, and since when.
    waiting: HashMap<(Key, StreamId), Instant>,
    result: SteadyResult,
}

impl Run<'_> {
    fn run(mut self, stop: &AtomicBool) -> Result<SteadyResult> {
        loop {
            interrupt::check()?;
            let is_over = stop.load(Ordering::Relaxed) || self.members.is_empty();
            self.give_up();
            if is_over && self.waiting.is_empty() {
                break;
            }
            if !is_over {
                self.ask()?;
            }
            for (key, news) in self.clients.turn(self.wake(is_over))? {
                self.take(key, news);
            }
        }
        let now = Instant::now();
        for key in self.members.into_keys() {
            self.clients.end(now, key);
        }
        Ok(self.result)
    }

    /// Counts the requests that are lost.
    fn give_up(&mut self) {
        let limit = self.steady.lost_after;
        let lost = self.waiting.extract_if(|_, asked| asked.elapsed() >= limit);
        for ((key, request), _) in lost {
            self.clients.forget(key, request);
            self.result.lost += 1;
        }
    }

    /// Asks on those whose turn it is, whether or not their last request was answered.
    fn ask(&mut self) -> Result<()> {
        let now = Instant::now();
        for (&key, member) in self
            .members
            .iter_mut()
            .filter(|(_, member)| member.next <= now)
        {
            let request = self.clients.ask(now, key, !member.has_asked)?;
            member.has_asked = true;
            self.waiting.insert((key, request), now);
            self.result.requests += 1;
            while member.next <= now {
                member.next += self.steady.every;
            }
        }
        Ok(())
    }

    fn wake(&self, is_over: bool) -> Instant {
        let longest = Instant::now() + LONGEST_TURN;
        if is_over {
            return longest;
        }
        let next = self.members.values().map(|member| member.next);
        next.fold(longest, Instant::min)
    }

    fn take(&mut self, key: Key, news: News) {
        match news {
            News::Connected => {}
            News::Answered { request, is_right } => {
                let asked = self.waiting.remove(&(key, request));
                match asked.map(|at| at.elapsed()) {
                    // It was lost before.
                    None => {}
                    Some(_) if !is_right => self.result.lost += 1,
                    Some(after) if after > self.steady.late_after => self.result.late += 1,
                    Some(_) => self.result.in_time += 1,
                }
            }
            News::Ended(_) => {
                let before = self.waiting.len();
                self.waiting.retain(|(of, _), _| *of != key);
                self.result.lost += before - self.waiting.len();
                self.result.ended += 1;
                self.members.remove(&key);
            }
        }
    }
}
