//! One reading of the world, as the controller wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_core::class::{Class, OTHER, OTHER_PRIORITY};
use weir_core::controller::{ClassReading, ClassRule, ListenerReading, Reading};
use weir_core::quic::{QuicCounters, QuicSocket};
use weir_core::verdict::{Counters, LET_IN, SYNS};
use weir_kernel::{ClassCounters, ListenSocket};

use super::cgroup::{self, Cgroup};
use crate::daemon::backend::Backend;
use crate::daemon::rights::owners;
use crate::daemon::session::{Session, accepts};
use crate::failure::Result;

/// Stands for the limit of a queue that has none: the controller takes no part of it for full.
const QUIC_QUEUE: u32 = 1 << 16;
/// How often the servers' processes are looked for: every descriptor of the machine is read.
const FIND_EVERY: Duration = Duration::from_secs(10);

/// What stays between readings.
pub struct World {
    /// Whether anybody wants to know of the servers' cgroups.
    wants_cgroups: bool,
    cgroups: Vec<Cgroup>,
    found: Option<Duration>,
    beyond: Beyond,
}

impl World {
    /// Nothing is read yet.
    pub fn new(wants_cgroups: bool) -> World {
        World {
            wants_cgroups,
            cgroups: Vec::new(),
            found: None,
            beyond: Beyond::default(),
        }
    }

    /// Reads all. `quic`: the QUIC listeners. `now`: since any start that stays the same.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn read<B: Backend>(
        &mut self,
        now: Duration,
        session: &Session<B>,
        quic: Vec<ListenerReading>,
    ) -> Result<Reading> {
        let mut listeners = session.load()?;
        listeners.extend(quic);
        let counters = session.class_counters()?;
        let named = counters.iter().filter(|(name, _)| *name != OTHER);
        let mut classes: Vec<ClassReading> = named
            .map(|(name, counters)| class_reading(name, counters))
            .collect();
        classes.push(self.beyond.read(&listeners, &classes));
        self.find_cgroups(now, session);
        let times = self
            .cgroups
            .iter()
            .filter_map(|one| Some((one.path.clone(), one.time(now)?)));
        Ok(Reading {
            at: now,
            machine: cgroup::machine(),
            cgroups: times.collect(),
            listeners,
            classes,
        })
    }

    fn find_cgroups<B: Backend>(&mut self, now: Duration, session: &Session<B>) {
        let is_fresh = |found: Duration| now.saturating_sub(found) < FIND_EVERY;
        if !self.wants_cgroups || self.found.is_some_and(is_fresh) {
            return;
        }
        self.found = Some(now);
        let ports: BTreeSet<u16> = session.ports().collect();
        let of_us = owners()
            .into_iter()
            .filter(|owned| ports.contains(&owned.local.port()));
        let inodes: BTreeSet<u64> = of_us.map(|owned| owned.inode).collect();
        self.cgroups = match inodes.is_empty() {
            true => Vec::new(),
            false => cgroup::of_sockets(&inodes),
        };
    }
}

/// The queues of a listener's sockets, together, and its counters.
pub fn listener_reading(
    name: &str,
    sockets: &[&ListenSocket],
    counters: &Counters,
) -> ListenerReading {
    let accepts = accepts(sockets.iter().copied().filter(|socket| !socket.parked));
    let sum = |of: fn(&ListenSocket) -> u32| sockets.iter().map(|socket| of(socket)).sum();
    ListenerReading {
        name: name.to_owned(),
        queue_length: sum(|socket| socket.queue_length),
        queue_limit: sum(|socket| socket.queue_limit),
        half_open: sum(|socket| socket.half_open),
        service: accepts.map(|per_second| Duration::from_secs_f64(1.0 / per_second)),
        syns: syns(counters),
        admitted: admitted(counters),
        refused: counters.refused(),
        inside: None,
    }
}

/// SYNs. One with a cookie is one, whether or not its client came back.
fn syns(counters: &Counters) -> u64 {
    SYNS.iter().map(|verdict| counters.get(*verdict)).sum()
}

fn admitted(counters: &Counters) -> u64 {
    LET_IN.iter().map(|verdict| counters.get(*verdict)).sum()
}

/// A QUIC listener: attempts that the server has not answered are its queue, which has no limit.
pub fn quic_reading(
    name: &str,
    sockets: &[QuicSocket],
    counters: &QuicCounters,
) -> ListenerReading {
    let (admitted, refused) = (counters.let_in(), counters.refused());
    // Two sockets answer twice as fast as one.
    let answers = sockets.iter().filter_map(|socket| socket.service);
    let answers: f64 = answers.map(|service| 1.0 / service.as_secs_f64()).sum();
    ListenerReading {
        name: name.to_owned(),
        queue_length: sockets.iter().map(|socket| socket.pending).sum(),
        queue_limit: QUIC_QUEUE,
        half_open: 0,
        service: (answers > 0.0).then(|| Duration::from_secs_f64(1.0 / answers)),
        syns: admitted + refused,
        admitted,
        refused,
        inside: None,
    }
}

/// SYNs, and attempts over QUIC.
fn class_reading(name: &str, counters: &ClassCounters) -> ClassReading {
    let (syn, quic) = (&counters.syns, &counters.quic);
    ClassReading {
        name: name.to_owned(),
        syns: syns(syn) + quic.let_in() + quic.refused(),
        admitted: admitted(syn) + quic.let_in(),
        refused: syn.refused() + quic.refused(),
    }
}

/// SYNs, connections let in and connections refused, ever.
type Counts = [i64; 3];

/// What the listeners have met beyond the classes: `other`. Its own counters do not run while nothing
/// asks for the class of a SYN.
#[derive(Default)]
struct Beyond {
    listeners: BTreeMap<String, Counts>,
    classes: BTreeMap<String, Counts>,
    /// May fall for a moment, since the counters are not read at one instant.
    sum: Counts,
    told: Counts,
}

impl Beyond {
    fn read(&mut self, listeners: &[ListenerReading], classes: &[ClassReading]) -> ClassReading {
        let counts = |numbers: [u64; 3]| numbers.map(|n| n as i64);
        let listeners: BTreeMap<String, Counts> = listeners
            .iter()
            .map(|l| (l.name.clone(), counts([l.syns, l.admitted, l.refused])))
            .collect();
        let classes: BTreeMap<String, Counts> = classes
            .iter()
            .map(|c| (c.name.clone(), counts([c.syns, c.admitted, c.refused])))
            .collect();
        let (more, less) = (
            growth(&self.listeners, &listeners),
            growth(&self.classes, &classes),
        );
        for i in 0..3 {
            self.sum[i] += more[i] - less[i];
            self.told[i] = self.told[i].max(self.sum[i]);
        }
        (self.listeners, self.classes) = (listeners, classes);
        let [syns, admitted, refused] = self.told.map(|n| n as u64);
        ClassReading {
            name: OTHER.to_owned(),
            syns,
            admitted,
            refused,
        }
    }
}

/// By how much those have grown, together, that were there before.
fn growth(before: &BTreeMap<String, Counts>, now: &BTreeMap<String, Counts>) -> Counts {
    let mut sum = Counts::default();
    for (name, counts) in now {
        let Some(earlier) = before.get(name) else {
            continue;
        };
        for i in 0..3 {
            sum[i] += (counts[i] - earlier[i]).max(0);
        }
    }
    sum
}

/// The classes as the controller sees them.
pub fn rules(classes: &[Class]) -> Vec<ClassRule> {
    let rule = |class: &Class| ClassRule {
        name: class.name.clone(),
        listener: class.listener.clone(),
        priority: class.priority,
        rate: class.rate,
        min_rate: class.min_rate,
        max_wait: class.max_wait,
    };
    let other = ClassRule {
        name: OTHER.to_owned(),
        listener: None,
        priority: OTHER_PRIORITY,
        rate: None,
        min_rate: None,
        max_wait: None,
    };
    let guarded = classes.iter().filter(|class| class.is_guarded());
    guarded.map(rule).chain([other]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(syns: u64) -> ListenerReading {
        ListenerReading {
            name: "web".into(),
            syns,
            ..ListenerReading::default()
        }
    }

    fn class(name: &str, syns: u64) -> ClassReading {
        ClassReading {
            name: name.into(),
            syns,
            ..ClassReading::default()
        }
    }

    #[test]
    fn other_is_what_no_class_has_met_and_never_falls() {
        let mut beyond = Beyond::default();
        let mut other = |l, classes: &[ClassReading]| beyond.read(&[listener(l)], classes).syns;
        assert_eq!(
            other(1000, &[class("gold", 900)]),
            0,
            "what was before is nobody's"
        );
        assert_eq!(other(1100, &[class("gold", 930)]), 70);
        // The listener was read before ten more of gold came.
        assert_eq!(other(1100, &[class("gold", 940)]), 70);
        assert_eq!(other(1130, &[class("gold", 940)]), 90);
        assert_eq!(other(1140, &[]), 100, "gold was taken away");
        assert_eq!(other(1150, &[class("silver", 5000)]), 110);
    }

    #[test]
    fn each_syn_is_counted_once() {
        let counters = Counters([1; _]);
        // A repeated SYN is none, nor one that adds a path to an MPTCP connection, nor are ACKs, FINs and notes; a first
        // fragment only may be one.
        let kinds = weir_core::verdict::VERDICTS.iter();
        let none = [
            "syn_repeated",
            "syn_unheard",
            "syn_in_fragments",
            "syn_join",
            "syn_retried",
        ];
        let syns_by_name = kinds
            .filter(|row| row.name.starts_with("syn_") || row.name.starts_with("cookie_sent"))
            .filter(|row| !none.contains(&row.name));
        assert_eq!(syns(&counters) as usize, syns_by_name.count());
    }
}
