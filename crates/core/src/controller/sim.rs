//! A server in virtual time: clients of several classes, a limiter for each class, a listen queue, and
//! a server that takes its time. Everything random comes from one seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

use weir_models::admit::QueueView;
use weir_models::random::Random;
use weir_models::wait::{Wait, WaitRule};

use super::*;
use crate::class::Bucket;
use crate::listener::{ListenAddress, Listener, Mode};

/// So many worlds, the same in each run but with `PROPTEST_RNG_SEED`: what is claimed of all worlds holds in most. Next
/// to a load of one, chance says when a queue stands, and one world of a hundred breaks a claim for a moment.
pub fn worlds(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let rng_seed = match config.rng_seed {
        RngSeed::Random => RngSeed::Fixed(33),
        fixed => fixed,
    };
    ProptestConfig {
        cases,
        rng_seed,
        max_shrink_iters: 0,
        ..config
    }
}

/// How often a load is looked at, s.
const LOAD_AGAIN: f64 = 0.01;

/// How a refused client goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// A RST: it gives up.
    Reset,
    /// Silence: it tries again after 1 s and 3 s more.
    Dropped,
}

/// Rate of arrivals at a time, /s.
pub type Load = Box<dyn Fn(f64) -> f64>;
/// Service time at a time, s.
pub type Service = Box<dyn Fn(f64) -> f64>;

pub struct Class {
    pub rule: ClassRule,
    load: Load,
    pub syns: u64,
    admitted: u64,
    pub refused: u64,
    pub served: u64,
    limit: Option<Limit>,
    bucket: Bucket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { class: usize, attempt: u8 },
    Next { class: usize },
    Free,
    Look,
}

/// `admit = wait` of the listener, which knows no classes.
struct AdmitWait {
    wait: Wait,
    rule: WaitRule,
}

/// Time between two looks of the estimator at least, ns (WAIT_STEP_NS).
const WAIT_STEP_NS: u64 = 1_000_000;

impl AdmitWait {
    /// As the kernel half judges a SYN.
    fn refuses(&mut self, now_s: f64, length: usize, admitted: u64) -> bool {
        let (now, length) = (1 + (now_s * 1e9) as u64, length as u32);
        if now - self.wait.looked_ns >= WAIT_STEP_NS {
            let queue = QueueView {
                length,
                limit: u32::MAX,
                ..QueueView::default()
            };
            self.wait.look(now, &queue, admitted as u32, &self.rule);
        }
        self.wait.refuses(now, length, &self.rule)
    }
}

/// The machine's CPU. What the server cannot have because of others, it takes from them.
struct Cpu {
    cost: f64,
    others: Load,
    used: f64,
    /// When it was last looked at, and what was accepted by then.
    looked: (f64, usize),
}

pub struct World {
    pub now: f64,
    random: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    pub classes: Vec<Class>,
    refusal: Refusal,
    service: Service,
    /// Spread of service times: 0 none, 1 exponential.
    pub spread: f64,
    queue: VecDeque<(usize, f64)>,
    limit: usize,
    admit_wait: Option<AdmitWait>,
    workers: usize,
    idle: usize,
    pub statistics: Statistics,
    pub controller: Controller,
    refused: u64,
    /// Of those, the ones that the listener's own rule refused, not a class's rate.
    turned_away: u64,
    syns: u64,
    admitted: u64,
    /// Every wait of an accepted connection: when it was accepted, and the wait.
    pub waits: Vec<(f64, f64)>,
    pub decisions: Vec<Decision>,
    /// The queue's length is read with an error of so many connections, either way.
    pub noise: f64,
    cpu: Option<Cpu>,
    /// The CPU's use at each look.
    pub cpu_uses: Vec<(f64, f64)>,
}

pub fn rule(name: &str, priority: u8) -> ClassRule {
    ClassRule {
        name: name.to_owned(),
        listener: None,
        priority,
        rate: None,
        min_rate: None,
        max_wait: None,
    }
}

impl World {
    /// A server of `workers`, each busy for the service time with every connection.
    pub fn new(seed: u64, settings: Settings, workers: usize, service: Service) -> World {
        let mut world = World {
            now: 0.0,
            random: Random::new(seed),
            events: BinaryHeap::new(),
            number: 0,
            classes: Vec::new(),
            refusal: Refusal::Reset,
            service,
            spread: 1.0,
            queue: VecDeque::new(),
            limit: 4096,
            admit_wait: None,
            workers,
            idle: workers,
            statistics: Statistics::new(&settings),
            controller: Controller::new(settings),
            refused: 0,
            turned_away: 0,
            syns: 0,
            admitted: 0,
            waits: Vec::new(),
            decisions: Vec::new(),
            noise: 0.0,
            cpu: None,
            cpu_uses: Vec::new(),
        };
        world.at(0.0, Event::Look);
        world
    }

    pub fn with_refusal(mut self, refusal: Refusal) -> World {
        self.refusal = refusal;
        self
    }

    pub fn with_backlog(mut self, limit: usize) -> World {
        self.limit = limit;
        self
    }

    /// A listener with `admit = wait`, as it is by default and beside this controller.
    pub fn with_admit_wait(mut self) -> World {
        let address = ListenAddress { ip: None, port: 80 };
        let listener = Listener::new("web", address);
        let listener = self.controller.settings().beside(&listener);
        self.admit_wait = Some(AdmitWait {
            wait: Wait::default(),
            rule: WaitRule {
                target_ns: listener.target_wait.as_nanos() as u64,
                interval_ns: listener.interval.as_nanos() as u64,
                least_length: listener.least_length,
            },
        });
        self
    }

    /// A machine on which each connection takes so much of the CPU, s, and others take a share of it.
    pub fn with_cpu(mut self, cost: f64, others: impl Fn(f64) -> f64 + 'static) -> World {
        self.cpu = Some(Cpu {
            cost,
            others: Box::new(others),
            used: 0.0,
            looked: (0.0, 0),
        });
        self
    }

    pub fn class(mut self, rule: ClassRule, load: impl Fn(f64) -> f64 + 'static) -> World {
        let class = self.classes.len();
        self.classes.push(Class {
            rule,
            load: Box::new(load),
            syns: 0,
            admitted: 0,
            refused: 0,
            served: 0,
            limit: None,
            bucket: Bucket::default(),
        });
        self.at(0.0, Event::Next { class });
        self
    }

    fn at(&mut self, time: f64, event: Event) {
        self.number += 1;
        let at = (time * 1e9) as u64;
        self.events.push(Reverse((at, self.number, event)));
    }

    /// Runs until this time, s.
    pub fn run(&mut self, until: f64) {
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at as f64 / 1e9 > until {
                break;
            }
            self.events.pop();
            self.now = at as f64 / 1e9;
            self.on(event);
        }
        self.now = until;
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Next { class } => {
                let rate = (self.classes[class].load)(self.now);
                let gap = match rate > 0.0 {
                    true => self.random.exponential(1.0 / rate),
                    false => f64::INFINITY,
                };
                // A load of nothing, or of little, is looked at again soon: the time that has gone by without an
                // arrival says nothing about the next.
                if gap > LOAD_AGAIN {
                    self.at(self.now + LOAD_AGAIN, Event::Next { class });
                } else {
                    self.at(self.now + gap, Event::Arrival { class, attempt: 0 });
                    self.at(self.now + gap, Event::Next { class });
                }
            }
            Event::Arrival { class, attempt } => self.arrive(class, attempt),
            Event::Free => {
                self.idle += 1;
                self.accept();
            }
            Event::Look => {
                self.look();
                let interval = self.controller.next_look().as_secs_f64();
                self.at(self.now + interval, Event::Look);
            }
        }
    }

    fn arrive(&mut self, index: usize, attempt: u8) {
        let now = self.now;
        self.syns += 1;
        self.classes[index].syns += 1;
        let conforms = self.classes[index].conforms(now);
        if conforms && self.has_room() {
            self.classes[index].admitted += 1;
            self.admitted += 1;
            self.queue.push_back((index, now));
            self.accept();
            return;
        }
        self.classes[index].refused += 1;
        self.refused += 1;
        self.turned_away += u64::from(conforms);
        if self.refusal == Refusal::Dropped && attempt < 2 {
            let wait = [1.0, 3.0][usize::from(attempt)];
            self.at(
                now + wait,
                Event::Arrival {
                    class: index,
                    attempt: attempt + 1,
                },
            );
        }
    }

    /// Whether the listener's own rule, which knows no classes, lets one more in.
    fn has_room(&mut self) -> bool {
        let length = self.queue.len();
        let admit_wait = self.admit_wait.as_mut();
        let waits = admit_wait.is_some_and(|one| one.refuses(self.now, length, self.admitted));
        !waits && length < self.limit
    }

    fn accept(&mut self) {
        while self.idle > 0
            && let Some((class, since)) = self.queue.pop_front()
        {
            self.idle -= 1;
            self.waits.push((self.now, self.now - since));
            self.classes[class].served += 1;
            let mean = (self.service)(self.now);
            let spread = self.spread;
            let time = mean * (1.0 - spread) + self.random.exponential(mean * spread);
            self.at(self.now + time, Event::Free);
        }
    }

    fn look(&mut self) {
        let noise = self.noise * (2.0 * self.random.unit() - 1.0);
        let machine = self.cpu_time();
        let reading = Reading {
            at: Duration::from_secs_f64(self.now),
            machine,
            listeners: vec![ListenerReading {
                name: "web".into(),
                queue_length: (self.queue.len() as f64 + noise) as u32,
                queue_limit: self.limit as u32,
                half_open: 0,
                service: None,
                syns: self.syns,
                admitted: self.admitted,
                refused: self.refused,
                inside: None,
            }],
            classes: self.classes.iter().map(Class::reading).collect(),
            ..Reading::default()
        };
        self.statistics.take(&reading);
        let rules: Vec<ClassRule> = self
            .classes
            .iter()
            .map(|class| class.rule.clone())
            .collect();
        let outcome = self.controller.step(&rules, &self.statistics);
        if self.controller.settings().mode == Mode::Enforce {
            for class in &mut self.classes {
                class.limit = outcome.limits.get(&class.rule.name).copied();
            }
        }
        self.decisions.extend(outcome.decisions);
    }

    fn cpu_time(&mut self) -> Option<CpuTime> {
        let cpu = self.cpu.as_mut()?;
        let (before, accepted) = std::mem::replace(&mut cpu.looked, (self.now, self.waits.len()));
        let time = self.now - before;
        let own = (self.waits.len() - accepted) as f64 * cpu.cost;
        let share = match time > 0.0 {
            true => (own / time + (cpu.others)(self.now)).min(1.0),
            false => 0.0,
        };
        cpu.used += share * time;
        self.cpu_uses.push((self.now, share));
        Some(CpuTime {
            used: Duration::from_secs_f64(cpu.used),
            available: Duration::from_secs_f64(self.now),
        })
    }

    /// The CPU's use in this time, of 1.0.
    pub fn cpu(&self, from: f64, to: f64) -> f64 {
        let uses = self.cpu_uses.iter();
        let within: Vec<f64> = uses
            .filter(|(at, _)| (from..to).contains(at))
            .map(|(_, share)| *share)
            .collect();
        within.iter().sum::<f64>() / within.len().max(1) as f64
    }

    /// Connections accepted in this time, /s.
    pub fn throughput(&self, from: f64, to: f64) -> f64 {
        self.waits_in(from, to).len() as f64 / (to - from)
    }

    pub fn waits_in(&self, from: f64, to: f64) -> Vec<f64> {
        let within = |(at, _): &&(f64, f64)| (from..to).contains(at);
        self.waits
            .iter()
            .filter(within)
            .map(|(_, wait)| *wait)
            .collect()
    }

    /// A quantile of the waits of this time, s.
    pub fn wait(&self, quantile: f64, from: f64, to: f64) -> f64 {
        let mut waits = self.waits_in(from, to);
        waits.sort_unstable_by(f64::total_cmp);
        let at = (waits.len() as f64 * quantile) as usize;
        waits
            .get(at.min(waits.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    }

    /// What the server can do, /s.
    pub fn saturation(&self) -> f64 {
        self.workers as f64 / (self.service)(self.now)
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Class {
    fn reading(&self) -> ClassReading {
        ClassReading {
            name: self.rule.name.clone(),
            syns: self.syns,
            admitted: self.admitted,
            refused: self.refused,
        }
    }

    /// Whether the bucket lets it by, as in the kernel.
    fn conforms(&mut self, now: f64) -> bool {
        let limit = self.limit.map(|limit| limit.of_bucket());
        limit.is_none_or(|limit| self.bucket.take((now * 1e9) as u64, &limit))
    }
}
