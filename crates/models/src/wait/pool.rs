//! Pools of workers in virtual time, before a listen queue that the estimator looks at as the guard does: at SYNs, by
//! a clock that goes in ticks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;
use crate::random::Random;

const SECOND_NS: u64 = 1_000_000_000;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Connections that it serves at once.
    pub workers: usize,
    /// Time of one service, ns.
    pub service_ns: f64,
    /// Services differ by up to this part of it.
    pub spread: f64,
    /// Connections/s as a multiple of what the pool can serve.
    pub offered: f64,
    /// Places of its listen queue.
    pub backlog: u32,
    /// The clock goes in steps of so much, ns.
    pub tick_ns: u64,
    /// What is random comes from it.
    pub seed: u64,
    /// Whom the estimate refuses is refused.
    pub enforce: bool,
}

/// A pool of workers, its listen queue and its clients.
pub struct Pool {
    /// What it is.
    pub setup: Setup,
    /// The estimate.
    pub wait: Wait,
    rule: WaitRule,
    random: Random,
    /// The time, ns.
    pub now: f64,
    next: f64,
    /// Connections that were let in, ever; wraps.
    pub admitted: u32,
    /// When the connections that wait came.
    pub queue: VecDeque<f64>,
    /// When each busy worker is done.
    busy: BinaryHeap<Reverse<u64>>,
    /// When clients repeat a SYN that the kernel dropped, and how often they have; of clients that do.
    retries: Option<BinaryHeap<Reverse<(u64, u32)>>>,
    served: u64,
    /// Connections that were refused, or found the queue full.
    pub refused: u64,
    /// Connections that came.
    pub syns: u64,
    /// Time that connections accepted had waited, ns.
    waits: Vec<f64>,
}

impl Pool {
    /// One second after the beginning of time, with nobody there.
    pub fn new(setup: Setup) -> Pool {
        Pool {
            setup,
            wait: Wait::default(),
            rule: WaitRule {
                target_ns: 20_000_000,
                interval_ns: 200_000_000,
                least_length: 0,
            },
            random: Random::new(setup.seed),
            now: SECOND_NS as f64,
            next: SECOND_NS as f64,
            admitted: 0,
            queue: VecDeque::new(),
            busy: BinaryHeap::new(),
            retries: None,
            served: 0,
            refused: 0,
            syns: 0,
            waits: Vec::new(),
        }
    }

    /// Time between accepts of the pool when it is busy, ns.
    pub fn between_ns(&self) -> f64 {
        self.setup.service_ns / self.setup.workers as f64
    }

    /// Its workers take nobody for so long, ns.
    pub fn stand_still(&mut self, for_ns: f64) {
        let until = Reverse((self.now + for_ns) as u64);
        self.busy = (0..self.setup.workers).map(|_| until).collect();
    }

    fn clock(&self) -> u64 {
        self.now as u64 / self.setup.tick_ns * self.setup.tick_ns
    }

    /// Clients repeat SYNs that the kernel drops.
    pub fn with_retries(mut self) -> Pool {
        self.retries = Some(BinaryHeap::new());
        self
    }

    /// When a client repeats its SYN, at once before `until`.
    fn retry(&mut self, until: f64) -> Option<(f64, u32)> {
        let retries = self.retries.as_mut()?;
        let Reverse((at, _)) = *retries.peek()?;
        let due = (at as f64) < until.min(self.next);
        let Reverse((at, tries)) = due.then(|| retries.pop()).flatten()?;
        Some((at as f64, tries))
    }

    /// Time goes on by so much, ns.
    pub fn run(&mut self, for_ns: f64) {
        let until = self.now + for_ns;
        loop {
            if let Some((at, tries)) = self.retry(until) {
                self.accept_until(at);
                self.now = at;
                self.syn(tries);
                continue;
            }
            if self.next >= until {
                break;
            }
            let at = self.next;
            self.accept_until(at);
            self.now = at;
            self.syns += 1;
            self.syn(0);
            self.next = at
                + self
                    .random
                    .exponential(self.between_ns() / self.setup.offered);
        }
        self.accept_until(until);
        self.now = until;
    }

    fn syn(&mut self, tries: u32) {
        let clock = self.clock();
        let length = self.queue.len() as u32;
        if clock.wrapping_sub(self.wait.looked_ns) >= 1_000_000 {
            let view = QueueView {
                length,
                limit: self.setup.backlog,
                ..QueueView::default()
            };
            self.wait.look(clock, &view, self.admitted, &self.rule);
        }
        let refuses = self.wait.refuses(clock, length, &self.rule) && self.setup.enforce;
        if refuses || length >= self.setup.backlog {
            self.refused += 1;
            // After 1, 3 and 7 s; then the client gives up.
            if let Some(retries) = self.retries.as_mut().filter(|_| tries < 3) {
                let again = self.now as u64 + (SECOND_NS << tries);
                retries.push(Reverse((again, tries + 1)));
            }
            return;
        }
        self.admitted += 1;
        self.queue.push_back(self.now);
        self.accept_until(self.now);
    }

    /// Workers take what waits as they get free.
    fn accept_until(&mut self, until: f64) {
        loop {
            let idle = self.busy.len() < self.setup.workers;
            let free = match self.busy.peek() {
                Some(Reverse(at)) if !idle => *at as f64,
                _ => self.now,
            };
            if free > until {
                break;
            }
            if !idle {
                self.busy.pop();
            }
            let Some(came) = self.queue.pop_front() else {
                if idle {
                    // Those that are done by then are idle from then on.
                    while matches!(self.busy.peek(), Some(Reverse(at)) if *at as f64 <= until) {
                        self.busy.pop();
                    }
                    break;
                }
                continue;
            };
            let from = free.max(came);
            let spread = self.setup.spread * (2.0 * self.random.unit() - 1.0);
            let done = from + self.setup.service_ns * (1.0 + spread);
            self.busy.push(Reverse(done as u64));
            self.served += 1;
            self.waits.push(from - came);
        }
    }
}

#[cfg(test)]
mod tests;
