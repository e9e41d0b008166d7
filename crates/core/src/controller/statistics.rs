//! From counters that only grow to rates, averages and the wait.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Settings;
use super::average::{Average, EVENTS_OF_INTERVAL, Rate, Span};
use crate::residence::Gate;

/// Weight of the newest sample of a busy server's speed: that of an average over 4. It follows a server
/// that has become slower in half a second.
const CAPACITY_SAMPLES: u32 = 4;
/// A wait longer than this is one of a stopped server; nobody needs to know how long exactly.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Two readings closer than this say nothing about a rate.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// CPU time, cumulative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTime {
    /// Used.
    pub used: Duration,
    /// That there was to use: of all CPUs, or of the quota.
    pub available: Duration,
}

/// A listener's counters and queue, as the kernel has them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListenerReading {
    /// Its name.
    pub name: String,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in the listen queues.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The time between accepts of the busy server, by the guard's estimate ([`crate::wait`]); `None`: there is none.
    pub service: Option<Duration>,
    /// SYNs that came, ever.
    pub syns: u64,
    /// Connections let in, ever.
    pub admitted: u64,
    /// Connections refused, ever.
    pub refused: u64,
    /// What may come to a server that has more requests than it answers in time; `None`: it has not.
    pub inside: Option<Gate>,
}

/// A class's counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassReading {
    /// Its name.
    pub name: String,
    /// SYNs that came, ever.
    pub syns: u64,
    /// Connections let in, ever.
    pub admitted: u64,
    /// Connections refused, ever.
    pub refused: u64,
}

/// What is read of the world at one instant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// When, since any start that stays the same.
    pub at: Duration,
    /// All CPUs of the machine.
    pub machine: Option<CpuTime>,
    /// The servers' cgroups with a quota, each by its path.
    pub cgroups: BTreeMap<String, CpuTime>,
    /// The listeners under guard.
    pub listeners: Vec<ListenerReading>,
    /// The classes in force; `other` too.
    pub classes: Vec<ClassReading>,
}

/// What a listener does.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerStatistics {
    /// Connections that wait for accept() now.
    pub queue_length: f64,
    /// As averaged.
    pub queue_length_mean: Average,
    /// Places in the listen queues.
    pub queue_limit: f64,
    /// SYNs.
    pub syns: Rate,
    /// Connections let in.
    pub admitted: Rate,
    /// Connections refused.
    pub refused: Rate,
    /// Connections accepted since the first reading.
    pub accepted: f64,
    /// Connections accepted in the last interval, /s.
    pub accepts: f64,
    /// As averaged.
    pub accepts_mean: Average,
    accepts_steady: Average,
    /// What the server accepts while it is busy, /s. Of one that is not busy only a lower bound is seen.
    pub capacity: Average,
    /// The same by the guard's estimate, which is the one that is told; `None`: there is none.
    estimate: Option<f64>,
    used: Option<f64>,
    /// As read.
    pub inside: Option<Gate>,
}

/// What a class does.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassStatistics {
    /// SYNs.
    pub syns: Rate,
    /// Connections let in.
    pub admitted: Rate,
    /// Connections refused.
    pub refused: Rate,
}

/// CPU use, of one measure.
#[derive(Debug, Clone, PartialEq)]
struct CpuUse {
    before: CpuTime,
    average: Average,
}

/// All that is known by the last reading.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    samples: u32,
    /// Between two readings as configured: what averages count in.
    nominal: Duration,
    at: Option<Duration>,
    interval: Duration,
    machine: Option<CpuUse>,
    cgroups: BTreeMap<String, CpuUse>,
    listeners: BTreeMap<String, ListenerStatistics>,
    classes: BTreeMap<String, ClassStatistics>,
}

impl Statistics {
    /// Of no reading yet.
    pub fn new(settings: &Settings) -> Statistics {
        Statistics {
            samples: settings.samples,
            nominal: settings.interval,
            at: None,
            interval: settings.interval,
            machine: None,
            cgroups: BTreeMap::new(),
            listeners: BTreeMap::new(),
            classes: BTreeMap::new(),
        }
    }

    /// Takes a reading in. What is not in it any more is forgotten.
    pub fn take(&mut self, reading: &Reading) {
        let since = self.at.map(|at| reading.at.saturating_sub(at));
        if since.is_some_and(|since| since < MIN_INTERVAL) {
            return;
        }
        self.at = Some(reading.at);
        self.interval = since.unwrap_or(self.interval);
        let seconds = since.map_or(0.0, |since| since.as_secs_f64());
        let span = Span {
            seconds,
            intervals: seconds / self.nominal.as_secs_f64(),
        };
        let samples = self.samples;
        let machine = reading.machine.iter().map(|time| ("", *time));
        let before = self.machine.take().map(|cpu| (String::new(), cpu));
        self.machine = cpu_uses(before.into_iter().collect(), machine, samples, span).remove("");
        let cgroups = reading
            .cgroups
            .iter()
            .map(|(path, time)| (path.as_str(), *time));
        self.cgroups = cpu_uses(std::mem::take(&mut self.cgroups), cgroups, samples, span);
        let mut before = std::mem::take(&mut self.listeners);
        for one in &reading.listeners {
            let known = before.remove(&one.name);
            let mut listener = known.unwrap_or_else(|| ListenerStatistics::new(samples));
            listener.take(one, span);
            self.listeners.insert(one.name.clone(), listener);
        }
        let mut before = std::mem::take(&mut self.classes);
        for one in &reading.classes {
            let known = before.remove(&one.name);
            let mut class = known.unwrap_or_else(|| ClassStatistics::new(samples));
            class.syns.read(one.syns, span);
            class.admitted.read(one.admitted, span);
            class.refused.read(one.refused, span);
            self.classes.insert(one.name.clone(), class);
        }
    }

    /// When the last reading was.
    pub fn at(&self) -> Duration {
        self.at.unwrap_or_default()
    }

    /// Time between two readings as configured.
    pub fn nominal(&self) -> Duration {
        self.nominal
    }

    /// Time between the last two readings.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Between the last two readings, in seconds and in intervals.
    pub(super) fn span(&self) -> Span {
        let seconds = self.interval.as_secs_f64();
        Span {
            seconds,
            intervals: seconds / self.nominal.as_secs_f64(),
        }
    }

    /// CPU use of the machine, averaged; 0.0..=1.0.
    pub fn machine_cpu(&self) -> Option<f64> {
        self.machine.as_ref()?.average.value()
    }

    /// CPU use of the server's cgroup whose quota is nearest, averaged; 0.0..=1.0 of the quota.
    pub fn cgroup_cpu(&self) -> Option<f64> {
        let values = self.cgroups.values().filter_map(|cpu| cpu.average.value());
        values.max_by(f64::total_cmp)
    }

    /// The listeners, by name.
    pub fn listeners(&self) -> &BTreeMap<String, ListenerStatistics> {
        &self.listeners
    }

    /// The classes, by name.
    pub fn classes(&self) -> &BTreeMap<String, ClassStatistics> {
        &self.classes
    }
}

/// What was used since before, of each measure. One that has used nothing of nothing stays as it was.
fn cpu_uses<'a>(
    mut before: BTreeMap<String, CpuUse>,
    now: impl Iterator<Item = (&'a str, CpuTime)>,
    samples: u32,
    span: Span,
) -> BTreeMap<String, CpuUse> {
    let use_of = |(name, time): (&str, CpuTime)| {
        let fresh = CpuUse {
            before: time,
            average: Average::over(samples),
        };
        let mut cpu = before.remove(name).unwrap_or(fresh);
        let used = time.used.saturating_sub(cpu.before.used);
        let available = time.available.saturating_sub(cpu.before.available);
        if !available.is_zero() {
            let share = used.as_secs_f64() / available.as_secs_f64();
            cpu.average.take(share.min(1.0), span.intervals);
        }
        cpu.before = time;
        (name.to_owned(), cpu)
    };
    now.map(use_of).collect()
}

impl ClassStatistics {
    fn new(samples: u32) -> ClassStatistics {
        ClassStatistics {
            syns: Rate::over(samples),
            admitted: Rate::over(samples),
            refused: Rate::over(samples),
        }
    }
}

impl ListenerStatistics {
    fn new(samples: u32) -> ListenerStatistics {
        ListenerStatistics {
            queue_length: 0.0,
            queue_length_mean: Average::over(samples),
            queue_limit: 0.0,
            syns: Rate::over(samples),
            admitted: Rate::over(samples),
            refused: Rate::over(samples),
            accepted: 0.0,
            accepts: 0.0,
            accepts_mean: Average::over(samples),
            accepts_steady: Average::over(samples),
            capacity: Average::over(CAPACITY_SAMPLES),
            estimate: None,
            used: None,
            inside: None,
        }
    }

    fn take(&mut self, now: &ListenerReading, span: Span) {
        let length = f64::from(now.queue_length);
        let was_busy = self.was_busy(length, span);
        self.queue_length = length;
        self.queue_length_mean.take(length, span.intervals);
        self.queue_limit = f64::from(now.queue_limit);
        self.inside = now.inside;
        let service = now.service.map(|service| service.as_secs_f64());
        self.estimate = service.map(|seconds| 1.0 / seconds.max(1e-9));
        self.syns.read(now.syns, span);
        self.admitted.read(now.admitted, span);
        self.refused.read(now.refused, span);
        let used = length + f64::from(now.half_open);
        if let Some(before) = self.used.filter(|_| span.seconds > 0.0) {
            // Connections that came in and are no longer in the queue have left it. Not cut off at zero
            // before it is averaged: what one reading of the queue errs by, the next takes back.
            let left = self.admitted.last() - (used - before) / span.seconds;
            self.accepts = left.max(0.0);
            self.accepted += left * span.seconds;
            self.accepts_mean.take(left, span.intervals);
            self.accepts_steady.take_rate(left, span);
            match was_busy {
                true => self.capacity.take_rate(left, span),
                false => self.capacity.take_at_least(self.shown_capacity(span)),
            }
        }
        self.used = Some(used);
    }

    /// What the accepts of a server that is not busy show of its speed, /s: those of the last interval, if they are more
    /// than a few by chance.
    fn shown_capacity(&self, span: Span) -> f64 {
        match self.accepts * span.seconds >= EVENTS_OF_INTERVAL {
            true => self.accepts,
            false => self.accepts_steady.value().unwrap_or(0.0),
        }
    }

    /// Whether the server was busy from the last reading to this one: connections waited at both. Or as many waited at the
    /// last as it accepts in that time: those of a slow server that accepted its last one count, else it
    /// would seem slower than it is.
    fn was_busy(&self, length: f64, span: Span) -> bool {
        let accepts = self.capacity.value().unwrap_or(0.0) * span.seconds;
        self.queue_length > 0.0 && (length > 0.0 || self.queue_length >= accepts)
    }

    /// What the server accepts while it is busy, /s: the guard's estimate, so that nobody is told two; where there is none, what
    /// was seen here.
    pub fn speed(&self) -> Option<f64> {
        self.estimate.or_else(|| self.capacity.value())
    }

    /// How long a connection that comes now waits for accept(): length / accept rate. `None` while the
    /// server's speed is not known.
    pub fn wait(&self) -> Option<Duration> {
        if self.queue_length == 0.0 {
            return Some(Duration::ZERO);
        }
        let seconds = self.queue_length / self.speed()?.max(f64::MIN_POSITIVE);
        Some(Duration::try_from_secs_f64(seconds).map_or(MAX_WAIT, |wait| wait.min(MAX_WAIT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(ms: u64, queue_length: u32, admitted: u64) -> Reading {
        Reading {
            at: Duration::from_millis(ms),
            listeners: vec![ListenerReading {
                name: "web".into(),
                queue_length,
                queue_limit: 511,
                admitted,
                syns: admitted,
                ..ListenerReading::default()
            }],
            ..Reading::default()
        }
    }

    #[test]
    fn the_wait_is_the_length_over_the_accept_rate() {
        let mut statistics = Statistics::new(&Settings::default());
        statistics.take(&reading(0, 10, 0));
        assert_eq!(
            statistics.listeners()["web"].wait(),
            None,
            "the speed is not known yet"
        );
        // 100 ms: 130 came, 30 more wait, so 100 were accepted.
        statistics.take(&reading(100, 40, 130));
        let web = &statistics.listeners()["web"];
        assert_eq!(web.accepts.round(), 1000.0);
        assert_eq!(web.wait().unwrap(), Duration::from_millis(40));
    }

    #[test]
    fn the_guard_s_estimate_is_the_one_that_is_told() {
        let mut statistics = Statistics::new(&Settings::default());
        for ms in [0, 100] {
            let mut reading = reading(ms, 10 + ms as u32 * 3 / 10, ms * 13 / 10);
            reading.listeners[0].service = Some(Duration::from_millis(2));
            statistics.take(&reading);
        }
        let web = &statistics.listeners()["web"];
        assert_eq!(web.capacity.value().map(f64::round), Some(1000.0));
        assert_eq!(web.speed(), Some(500.0));
        assert_eq!(web.wait().unwrap(), Duration::from_millis(80));
    }

    #[test]
    fn the_accepts_of_an_idle_server_are_no_upper_bound_of_its_speed() {
        let mut statistics = Statistics::new(&Settings::default());
        statistics.take(&reading(0, 10, 0));
        statistics.take(&reading(100, 10, 100));
        for i in 2..50 {
            statistics.take(&reading(i * 100, 0, 100 + i));
        }
        let capacity = statistics.listeners()["web"].capacity.value().unwrap();
        assert!(capacity >= 1000.0, "{capacity}");
    }

    #[test]
    fn cpu_use_is_of_what_there_was() {
        let mut statistics = Statistics::new(&Settings {
            samples: 1,
            ..Settings::default()
        });
        let at = |ms: u64, used: u64, quota: u64| Reading {
            at: Duration::from_millis(ms),
            machine: Some(CpuTime {
                used: Duration::from_millis(used),
                available: Duration::from_millis(2 * ms),
            }),
            cgroups: BTreeMap::from([(
                "web".to_owned(),
                CpuTime {
                    used: Duration::from_millis(used),
                    available: Duration::from_millis(quota),
                },
            )]),
            ..Reading::default()
        };
        statistics.take(&at(1000, 500, 0));
        assert_eq!(statistics.machine_cpu(), None);
        statistics.take(&at(1100, 600, 125));
        assert_eq!(statistics.machine_cpu(), Some(0.5));
        assert_eq!(statistics.cgroup_cpu(), Some(0.8));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut statistics = Statistics::new(&Settings::default());
        statistics.take(&reading(0, 10, 0));
        statistics.take(&Reading {
            at: Duration::from_millis(100),
            ..Reading::default()
        });
        assert!(statistics.listeners().is_empty());
    }
}
