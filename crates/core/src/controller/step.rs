//! One step: from statistics to limits, and what is told about them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Settings;
use super::average::{Average, Rate};
use super::cpu::{CpuLoop, Measure};
use super::inside;
use super::queue::{Asked, Budget, Clock, Kept, QueueLoop};
use super::share::{Demand, share};
use super::statistics::{ListenerStatistics, Statistics};
use crate::class;
use crate::listener::Mode;

/// A mean that moved by less than this share since it was last told is not told again,
const TELLS: f64 = 0.2;
/// nor one that was told so shortly before.
const TELLS_AFTER: Duration = Duration::from_secs(1);
/// or before so many connections: at few a second the limit moves with each of them.
const TELLS_AFTER_EVENTS: f64 = 200.0;
/// A burst is so much of the target's wait: less than the queue has room for.
const BURST_OF_TARGET: f64 = 0.5;
/// Readings an interval while a queue is over its set point or somebody is held.
const LOOKS_WHILE_BUSY: u32 = 4;
/// Time between two readings at least.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
/// Target for bursts where there is none for the wait.
const DEFAULT_TARGET: Duration = Duration::from_millis(20);

/// What the controller has to know of a class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassRule {
    /// Its name; `other` for connections that no class fits.
    pub name: String,
    /// The listener whose connections it is of; `None`: of all.
    pub listener: Option<String>,
    /// 1 is the highest; that of `other` is 64.
    pub priority: u8,
    /// The operator's own limit, connections/s.
    pub rate: Option<f64>,
    /// What it was promised, connections/s.
    pub min_rate: Option<f64>,
    /// The longest wait for accept() that it was promised.
    pub max_wait: Option<Duration>,
}

impl ClassRule {
    fn covers(&self, listener: &str) -> bool {
        self.listener.as_deref().is_none_or(|name| name == listener)
    }
}

/// A controlled rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Connections a second; 1 at least, so that a class that is held at nothing still shows its demand.
    pub rate: f64,
    /// Connections that may come at once.
    pub burst: f64,
}

impl Limit {
    /// As the bucket of a class takes it.
    pub fn of_bucket(&self) -> class::BucketLimit {
        class::BucketLimit::new(self.rate, self.burst as u32)
    }
}

/// A class that is held.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// At what.
    pub limit: Limit,
    /// Since when.
    pub since: Duration,
    /// Why.
    pub reason: String,
    /// The rate, averaged: what people are shown. The limit itself follows every breath of the queue.
    pub mean: Average,
    /// The mean that was last told, and when.
    told: (f64, Duration),
}

/// A change, for the decision log.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// When, on the clock of the readings.
    pub at: Duration,
    /// Whose rate.
    pub class: String,
    /// Its controlled rate before; `None`: it had none.
    pub from: Option<f64>,
    /// And now; `None`: it was lifted.
    pub to: Option<f64>,
    /// Why.
    pub reason: String,
}

/// What a step comes to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The controlled rate of each class that has one from now on; the others' are lifted.
    pub limits: BTreeMap<String, Limit>,
    /// What has changed enough to be told.
    pub decisions: Vec<Decision>,
}

/// The state between the steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    settings: Settings,
    queues: BTreeMap<String, QueueLoop>,
    cpu: CpuLoop,
    held: BTreeMap<String, Held>,
}

impl Controller {
    /// One that holds nobody.
    pub fn new(settings: Settings) -> Controller {
        Controller {
            settings,
            queues: BTreeMap::new(),
            cpu: CpuLoop::default(),
            held: BTreeMap::new(),
        }
    }

    /// What it is for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The classes that it holds; in observe mode those that it would.
    pub fn held(&self) -> &BTreeMap<String, Held> {
        &self.held
    }

    /// What it keeps at a listener; `None` while that is not known, or without an objective for the wait.
    pub fn kept(&self, listener: &str) -> Option<Kept> {
        self.queues.get(listener)?.kept()
    }

    /// Decides by the last reading.
    pub fn step(&mut self, rules: &[ClassRule], statistics: &Statistics) -> Outcome {
        let mut limits: BTreeMap<String, (Limit, String)> = BTreeMap::new();
        let inside = inside_budgets(rules, statistics);
        let budgets = self.queue_budgets(rules, statistics).into_iter();
        for (listener, budget) in budgets.chain(inside) {
            let demands = demands_of(&listener, rules, statistics);
            hold(&mut limits, &budget, &demands, self.burst_time());
        }
        if let Some(budget) = self.cpu_budget(rules, statistics) {
            let demands: Vec<ClassDemand<'_>> = rules
                .iter()
                .map(|rule| ClassDemand {
                    rule,
                    part: 1.0,
                    rate: wanted(rule, statistics, Rate::mean),
                })
                .collect();
            hold(&mut limits, &budget, &demands, self.burst_time());
        }
        let decisions = self.tell(&limits, statistics);
        Outcome {
            limits: limits
                .into_iter()
                .map(|(name, (limit, _))| (name, limit))
                .collect(),
            decisions,
        }
    }

    /// How long until the next reading: the interval, and a part of it while a queue is over its set point
    /// or somebody is held. What clients, or the server's chance, add to the queue between two looks grows
    /// with the time between them.
    pub fn next_look(&self) -> Duration {
        let interval = self.settings.interval;
        let is_busy = !self.held.is_empty() || self.queues.values().any(QueueLoop::is_over);
        match is_busy {
            true => (interval / LOOKS_WHILE_BUSY)
                .max(SHORTEST_LOOK)
                .min(interval),
            false => interval,
        }
    }

    fn burst_time(&self) -> f64 {
        let target = self.settings.target_wait.unwrap_or(DEFAULT_TARGET);
        BURST_OF_TARGET * target.as_secs_f64()
    }

    fn queue_budgets(
        &mut self,
        rules: &[ClassRule],
        statistics: &Statistics,
    ) -> Vec<(String, Budget)> {
        let enforce = self.settings.mode == Mode::Enforce;
        self.queues
            .retain(|name, _| statistics.listeners().contains_key(name));
        let mut budgets = Vec::new();
        for (name, listener) in statistics.listeners() {
            let Some(target) = self.target(name, rules, statistics) else {
                self.queues.remove(name);
                continue;
            };
            let asked = asked(&demands_of(name, rules, statistics));
            let queue = self.queues.entry(name.clone()).or_default();
            if let Some(mut budget) =
                queue.step(clock(statistics), enforce, listener, target, &asked)
            {
                budget.reason = at_listener(name, &budget.reason);
                budgets.push((name.clone(), budget));
            }
        }
        budgets
    }

    /// The wait to keep at a listener: the objective, or less if a class with clients was promised less.
    fn target(
        &self,
        listener: &str,
        rules: &[ClassRule],
        statistics: &Statistics,
    ) -> Option<Duration> {
        let promised = rules
            .iter()
            .filter(|rule| rule.covers(listener) && wanted(rule, statistics, Rate::mean) > 0.0)
            .filter_map(|rule| rule.max_wait);
        promised.chain(self.settings.target_wait).min()
    }

    fn cpu_budget(&mut self, rules: &[ClassRule], statistics: &Statistics) -> Option<Budget> {
        let max_cpu = self.settings.max_cpu?;
        let (machine, cgroup) = (statistics.machine_cpu(), statistics.cgroup_cpu());
        let cpu = machine.into_iter().chain(cgroup).max_by(f64::total_cmp)?;
        let listeners = || statistics.listeners().values();
        let measure = Measure {
            cpu,
            max_cpu,
            admitted: listeners().map(|one| one.admitted.mean()).sum(),
            accepted: listeners().filter_map(|one| one.accepts_mean.value()).sum(),
            demand: rules
                .iter()
                .map(|rule| wanted(rule, statistics, Rate::mean))
                .sum(),
            queued: listeners().map(|one| one.queue_length).sum(),
            samples: self.settings.samples,
        };
        let enforce = self.settings.mode == Mode::Enforce;
        self.cpu.step(clock(statistics), enforce, measure)
    }

    /// Remembers who is held, and says what has changed.
    fn tell(
        &mut self,
        limits: &BTreeMap<String, (Limit, String)>,
        statistics: &Statistics,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let at = statistics.at();
        self.held.retain(|class, held| {
            let stays = limits.contains_key(class);
            if !stays {
                decisions.push(Decision {
                    at,
                    class: class.clone(),
                    from: Some(held.rate()),
                    to: None,
                    reason: "lifted: its clients ask for no more than is free".to_owned(),
                });
            }
            stays
        });
        let span = statistics.span();
        for (class, (limit, reason)) in limits {
            let known = self.held.remove(class);
            let from = known.as_ref().map(|held| held.told.0);
            let mut held = known.unwrap_or_else(|| Held::new(*limit, at, self.settings.samples));
            held.limit = *limit;
            held.reason = reason.clone();
            let asked = statistics.classes().get(class);
            let asked = asked.map_or(limit.rate, |class| class.syns.steady());
            held.mean.take_rate(limit.rate.min(asked), span);
            if held.is_news(from, at) {
                held.told = (held.rate(), at);
                decisions.push(Decision {
                    at,
                    class: class.clone(),
                    from,
                    to: Some(held.rate()),
                    reason: reason.clone(),
                });
            }
            self.held.insert(class.clone(), held);
        }
        decisions
    }
}

impl Held {
    fn new(limit: Limit, now: Duration, samples: u32) -> Held {
        Held {
            limit,
            since: now,
            reason: String::new(),
            mean: Average::over(samples),
            told: (limit.rate, now),
        }
    }

    /// The mean of its controlled rate, connections/s.
    pub fn rate(&self) -> f64 {
        self.mean.value().unwrap_or(self.limit.rate)
    }

    fn is_news(&self, from: Option<f64>, now: Duration) -> bool {
        let Some(told) = from else { return true };
        let change = (self.rate() - told).abs();
        let least = TELLS_AFTER.max(Duration::from_secs_f64(
            TELLS_AFTER_EVENTS / self.rate().max(1.0),
        ));
        change > TELLS * told.max(self.rate()) && now.saturating_sub(self.told.1) >= least
    }
}

fn at_listener(name: &str, reason: &str) -> String {
    format!("listener {name:?}: {reason}")
}

/// What may come to listeners whose servers queue inside.
fn inside_budgets(rules: &[ClassRule], statistics: &Statistics) -> Vec<(String, Budget)> {
    let budget = |(name, one): (&String, &ListenerStatistics)| {
        let gate = one.inside?;
        let demand = demands_of(name, rules, statistics);
        let demand = demand.iter().map(|class| class.rate).sum();
        let mut budget = inside::budget(&gate, one, demand);
        budget.reason = at_listener(name, &budget.reason);
        Some((name.clone(), budget))
    };
    statistics.listeners().iter().filter_map(budget).collect()
}

fn clock(statistics: &Statistics) -> Clock {
    Clock {
        now: statistics.at(),
        interval: statistics.interval(),
        nominal: statistics.nominal(),
    }
}

/// What a class asks of one listener.
struct ClassDemand<'a> {
    rule: &'a ClassRule,
    /// Share of the class's clients that come to this listener, 0.0..=1.0.
    part: f64,
    /// Connections a second there.
    rate: f64,
}

impl ClassDemand<'_> {
    /// What it was promised at this listener, /s.
    fn promised(&self) -> f64 {
        self.rule.min_rate.unwrap_or(0.0) * self.part
    }
}

/// What the clients of a class try and its own rate lets through, /s.
fn wanted(rule: &ClassRule, statistics: &Statistics, rate: fn(&Rate) -> f64) -> f64 {
    let class = statistics.classes().get(&rule.name);
    let tried = class.map_or(0.0, |class| rate(&class.syns));
    rule.rate.map_or(tried, |rate| tried.min(rate))
}

/// The classes that cover a listener, each with its part there.
fn demands_of<'a>(
    listener: &str,
    rules: &'a [ClassRule],
    statistics: &Statistics,
) -> Vec<ClassDemand<'a>> {
    let shared = shared_part(listener, rules, statistics);
    let of_rule = |rule: &'a ClassRule| {
        let part = if rule.listener.is_some() { 1.0 } else { shared };
        let rate = wanted(rule, statistics, Rate::steady) * part;
        ClassDemand { rule, part, rate }
    };
    rules
        .iter()
        .filter(|rule| rule.covers(listener))
        .map(of_rule)
        .collect()
}

/// The lowest priority of which clients come.
fn lowest_asking(classes: &[ClassDemand<'_>]) -> Option<u8> {
    let asking = classes.iter().filter(|class| class.rate > 0.0);
    asking.map(|class| class.rule.priority).max()
}

/// What all classes ask of a listener together.
fn asked(classes: &[ClassDemand<'_>]) -> Asked {
    let lowest = lowest_asking(classes);
    let mut above: BTreeMap<u8, f64> = BTreeMap::new();
    for class in classes {
        if Some(class.rule.priority) < lowest {
            *above.entry(class.rule.priority).or_default() += class.rate;
        }
    }
    let sums = above.into_values().scan(0.0, |sum, rate| {
        *sum += rate;
        Some(*sum)
    });
    let promised = |class: &ClassDemand<'_>| class.promised().min(class.rate);
    Asked {
        all: classes.iter().map(|class| class.rate).sum(),
        above: sums.collect(),
        promised: classes.iter().map(promised).sum(),
    }
}

/// Of the clients of classes for all listeners, the share that comes to this one. A class is counted as
/// a whole; so it is estimated by what comes to each listener beyond the classes of its own.
fn shared_part(listener: &str, rules: &[ClassRule], statistics: &Statistics) -> f64 {
    let unclaimed = |(name, one): (&String, &ListenerStatistics)| {
        let own = rules
            .iter()
            .filter(|rule| rule.listener.as_ref() == Some(name));
        let claimed: f64 = own.map(|rule| wanted(rule, statistics, Rate::steady)).sum();
        (one.syns.steady() - claimed).max(0.0)
    };
    let all: f64 = statistics.listeners().iter().map(unclaimed).sum();
    let here = statistics
        .listeners()
        .get_key_value(listener)
        .map_or(0.0, unclaimed);
    if all > 0.0 { here / all } else { 1.0 }
}

/// Shares a budget out. A class that another loop holds already keeps the lower limit.
fn hold(
    limits: &mut BTreeMap<String, (Limit, String)>,
    budget: &Budget,
    classes: &[ClassDemand<'_>],
    burst_time: f64,
) {
    let demand = |class: &ClassDemand<'_>| Demand {
        priority: class.rule.priority,
        rate: class.rate,
        min_rate: class.promised(),
    };
    let demands: Vec<Demand> = classes.iter().map(demand).collect();
    for (class, limit) in classes.iter().zip(share(budget.rate, &demands)) {
        let Some(rate) = limit else { continue };
        // A class of which nobody comes here is not this listener's to hold.
        if class.part == 0.0 {
            continue;
        }
        let rate = (rate / class.part).max(budget.least);
        // The room is for the class that shares what is left, not for those below it.
        let room = if rate > budget.least {
            budget.room
        } else {
            1.0
        };
        let limit = Limit {
            rate,
            burst: (rate * burst_time).max(room),
        };
        match limits.get(&class.rule.name) {
            Some((held, _)) if held.rate <= rate => {}
            _ => {
                limits.insert(class.rule.name.clone(), (limit, budget.reason.clone()));
            }
        }
    }
}
