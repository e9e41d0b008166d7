//! Two classes of clients, and the controller that holds them to what there is room for inside the server.

use std::time::Duration;

use crate::class::{Bucket, OTHER, OTHER_PRIORITY};
use crate::controller::{
    ClassReading, ClassRule, Controller, Limit, ListenerReading, Reading, Settings, Statistics,
};
use crate::residence::Gate;

const LISTENER: &str = "web";

/// Clients of the high class, and all others.
pub struct Classes {
    /// Of the clients, so many are of the high class.
    pub share: f64,
    controller: Controller,
    statistics: Statistics,
    /// The high class, then the others.
    pub all: [Class; 2],
    /// What the limit lets in.
    pub inside: Option<Gate>,
}

#[derive(Default)]
pub struct Class {
    pub counts: ClassReading,
    limit: Option<Limit>,
    bucket: Bucket,
}

impl Classes {
    pub fn new(share: f64) -> Classes {
        let settings = Settings::default();
        let class = |name: &str| Class {
            counts: ClassReading {
                name: name.into(),
                ..ClassReading::default()
            },
            ..Class::default()
        };
        Classes {
            share,
            statistics: Statistics::new(&settings),
            controller: Controller::new(settings),
            all: [class("gold"), class(OTHER)],
            inside: None,
        }
    }

    /// Whether the rate of the client's class lets it in.
    pub fn lets_in(&mut self, class: usize, now_ns: u64) -> bool {
        let class = &mut self.all[class];
        class.counts.syns += 1;
        let limit = class.limit.map(|limit| limit.of_bucket());
        limit.is_none_or(|limit| class.bucket.take(now_ns, &limit))
    }

    pub fn count(&mut self, class: usize, admitted: bool) {
        let counts = &mut self.all[class].counts;
        match admitted {
            true => counts.admitted += 1,
            false => counts.refused += 1,
        }
    }

    /// The controller looks; the time until it does again, s.
    pub fn look(&mut self, now_ns: u64) -> f64 {
        let sum = |of: fn(&ClassReading) -> u64| self.all.iter().map(|one| of(&one.counts)).sum();
        let reading = Reading {
            at: Duration::from_nanos(now_ns),
            listeners: vec![ListenerReading {
                name: LISTENER.into(),
                queue_limit: 1024,
                syns: sum(|counts| counts.syns),
                admitted: sum(|counts| counts.admitted),
                refused: sum(|counts| counts.refused),
                inside: self.inside,
                ..ListenerReading::default()
            }],
            classes: self.all.iter().map(|one| one.counts.clone()).collect(),
            ..Reading::default()
        };
        self.statistics.take(&reading);
        let rules = [("gold", 1), (OTHER, OTHER_PRIORITY)].map(|(name, priority)| ClassRule {
            name: name.into(),
            listener: None,
            priority,
            rate: None,
            min_rate: None,
            max_wait: None,
        });
        let outcome = self.controller.step(&rules, &self.statistics);
        for class in &mut self.all {
            class.limit = outcome.limits.get(&class.counts.name).copied();
        }
        self.controller.next_look().as_secs_f64()
    }
}
