//! Clients whose connections look as if the server owed them an answer, although nobody waits: the client was the last to say
//! something.

use std::time::Duration;

use weir_models::talk::answer_class;

use crate::residence::{ANSWER_CLASSES, Request};

use super::TICK;

/// A WebSocket is opened in this time, s.
const OPENS: f64 = 0.017;

#[derive(Debug, Default)]
pub struct Talkers {
    /// Requests that never become whole: when their last byte came, ns.
    pub halves: Vec<u64>,
    /// WebSockets: when they came, ns.
    pub sockets: Vec<u64>,
    /// The server pings each of them this often, s, and the client's answer is the last that is said.
    pub pings_every: f64,
    /// The pass before, ns.
    looked: u64,
}

impl Talkers {
    pub fn connections(&self) -> usize {
        self.halves.len() + self.sockets.len()
    }

    /// Answers to the opening, and pings, which look like answers; ever.
    pub fn turns(&self, now: u64) -> u64 {
        let turns = |came: &u64| match since(*came, now) {
            age if age < OPENS => 0,
            age => 1 + (age / self.pings_every) as u64,
        };
        self.sockets.iter().map(turns).sum()
    }

    pub fn requests(&self, now: u64) -> impl Iterator<Item = Request> {
        let halves = self.halves.iter().map(move |came| since(*came, now));
        let said = move |came: &u64| match since(*came, now) {
            age if age < OPENS => Some(age),
            age if age < self.pings_every => None,
            age => Some(age % self.pings_every),
        };
        let ages = halves.chain(self.sockets.iter().filter_map(said));
        ages.map(|age| Request {
            age: Duration::from_secs_f64(age),
            queued: false,
        })
    }

    /// Openings that were answered since the pass before.
    pub fn first(&mut self, now: u64) -> [u64; ANSWER_CLASSES] {
        let since_pass = since(self.looked, now);
        self.looked = now;
        let opened = |came: &&u64| (OPENS..OPENS + since_pass).contains(&since(**came, now));
        let ticks = (OPENS / TICK.as_secs_f64()) as u32;
        let mut first = [0; ANSWER_CLASSES];
        first[answer_class(ticks)] = self.sockets.iter().filter(opened).count() as u64;
        first
    }
}

fn since(then: u64, now: u64) -> f64 {
    (now - then) as f64 / 1e9
}
