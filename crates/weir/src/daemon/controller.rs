//! The controller in the daemon: reads the world, lets [`weir_core::controller`] decide, sets what it
//! decided, and keeps a log of it.

mod cgroup;
mod reading;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weir_api::{ClassStatistics, Decision, ListenerStatistics, Statistics as StatisticsReport};
use weir_core::controller::{
    self, Controller, Kept, ListenerReading, Outcome, Settings, Statistics,
};
use weir_core::listener::Mode;
use weir_core::units::about_rate;

use crate::daemon::backend::Backend;
use crate::daemon::events::{self, Events};
use crate::daemon::session::Session;
use crate::failure::Result;
use crate::host::clock::unix_ms;
use reading::World;

pub use reading::{listener_reading, quic_reading};

/// Decisions that are kept: an hour of an unruly load.
const KEPT: usize = 512;
/// A reading that failed is not tried again sooner, nor is the failure told again.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Reads the QUIC listeners.
type QuicLoad<'a> = dyn Fn() -> Result<Vec<ListenerReading>> + 'a;

/// The controller of one daemon.
pub struct Control {
    started: Instant,
    world: World,
    statistics: Statistics,
    controller: Controller,
    log: VecDeque<Decision>,
    events: Events,
    due: Instant,
    failed: bool,
}

impl Control {
    /// Starts to look now.
    pub fn new(settings: Settings, events: Events, now: Instant) -> Control {
        Control {
            started: now,
            world: World::new(settings.max_cpu.is_some()),
            statistics: Statistics::new(&settings),
            controller: Controller::new(settings),
            log: VecDeque::new(),
            events,
            due: now,
            failed: false,
        }
    }

    /// What it is for.
    pub fn settings(&self) -> &Settings {
        self.controller.settings()
    }

    /// When it wants to look again.
    pub fn due_at(&self) -> Instant {
        self.due
    }

    /// Looks, decides and sets, if it is time.
    pub fn run<B: Backend>(&mut self, session: &mut Session<B>, quic: &QuicLoad<'_>, now: Instant) {
        if now < self.due {
            return;
        }
        let wait = match self.look(session, quic, now) {
            Ok(()) => {
                self.failed = false;
                self.controller.next_look()
            }
            Err(failure) => {
                // Limits that are not renewed end by themselves.
                if !self.failed {
                    tracing::error!("the controller stands still: {failure}");
                }
                self.failed = true;
                AFTER_FAILURE
            }
        };
        // A daemon that was kept from running does not look twice to make up for it.
        self.due = (self.due + wait).max(now + wait / 2);
    }

    fn look<B: Backend>(
        &mut self,
        session: &mut Session<B>,
        quic: &QuicLoad<'_>,
        now: Instant,
    ) -> Result<()> {
        let at = now.saturating_duration_since(self.started);
        let reading = self.world.read(at, session, quic()?)?;
        self.statistics.take(&reading);
        let rules = reading::rules(session.classes());
        let outcome = self.controller.step(&rules, &self.statistics);
        self.note(&outcome);
        if self.settings().mode == Mode::Enforce {
            session.control(&outcome.limits, now)?;
        }
        Ok(())
    }

    fn note(&mut self, outcome: &Outcome) {
        let observed = self.settings().mode == Mode::Observe;
        for decision in &outcome.decisions {
            let decision = logged(decision, observed);
            let text = line(&decision);
            tracing::info!("{text}");
            if let Some(event) = events::decision(&decision, &text) {
                self.events.note(event);
            }
            if self.log.len() == KEPT {
                self.log.pop_front();
            }
            self.log.push_back(decision);
        }
    }

    /// The wait that it keeps at a listener: its target, or what a server can have whose one service takes longer. `None`: it
    /// enforces none.
    pub fn target(&self, listener: &str) -> Option<Duration> {
        let settings = self.settings();
        let target = settings
            .target_wait
            .filter(|_| settings.mode == Mode::Enforce)?;
        let kept = self.kept(listener).map(|kept| kept.wait);
        Some(target.max(kept.unwrap_or_default()))
    }

    /// What it keeps waiting at a listener, and their wait by the guard's estimate of the server's speed.
    pub fn kept(&self, listener: &str) -> Option<Kept> {
        let kept = self.controller.kept(listener)?;
        let speed = self.statistics.listeners().get(listener)?.speed();
        let wait = speed.map(|speed| Duration::try_from_secs_f64(kept.length / speed));
        Some(Kept {
            wait: wait.and_then(std::result::Result::ok).unwrap_or(kept.wait),
            ..kept
        })
    }

    /// The classes that it holds, with their rates in connections/s.
    pub fn held(&self) -> Vec<(String, f64)> {
        let held = self.controller.held().iter();
        held.map(|(class, held)| (class.clone(), held.rate()))
            .collect()
    }

    /// What it is for, sees and has done. `listeners`: as they are reported beside it, whose waits are its own.
    pub fn report(&self, listeners: &[weir_api::Listener]) -> weir_api::Controller {
        let settings = self.settings();
        weir_api::Controller {
            mode: weir_core::word::Word::word(settings.mode).to_owned(),
            target_wait: settings.target_wait.map(weir_core::units::format_duration),
            max_cpu: settings.max_cpu,
            interval: weir_core::units::format_duration(settings.interval),
            samples: settings.samples,
            statistics: self.statistics_report(listeners),
            decisions: self.log.iter().cloned().collect(),
        }
    }

    fn statistics_report(&self, reported: &[weir_api::Listener]) -> StatisticsReport {
        let wait = |name: &str| reported.iter().find(|l| l.name == name)?.wait_us;
        let listeners = self.statistics.listeners().iter();
        let classes = self.statistics.classes().iter();
        StatisticsReport {
            cpu: self.statistics.machine_cpu().map(thousandths),
            cgroup_cpu: self.statistics.cgroup_cpu().map(thousandths),
            listeners: listeners
                .map(|(name, one)| {
                    let mut report = listener_report(name, one, self.kept(name));
                    report.wait_us = wait(name).or(report.wait_us);
                    report
                })
                .collect(),
            classes: classes
                .map(|(name, one)| self.class_report(name, one))
                .collect(),
        }
    }

    fn class_report(&self, name: &str, one: &controller::ClassStatistics) -> ClassStatistics {
        let held = self.controller.held().get(name);
        ClassStatistics {
            name: name.to_owned(),
            syns: tenths(one.syns.mean()),
            admitted: tenths(one.admitted.mean()),
            refused: tenths(one.refused.mean()),
            controlled_rate: held.map(|held| tenths(held.rate())),
            reason: held.map(|held| held.reason.clone()),
        }
    }
}

fn listener_report(
    name: &str,
    one: &controller::ListenerStatistics,
    kept: Option<Kept>,
) -> ListenerStatistics {
    ListenerStatistics {
        name: name.to_owned(),
        queue_length: tenths(one.queue_length_mean.value().unwrap_or(0.0)),
        wait_us: one.wait().map(|wait| wait.as_micros() as u64),
        syns: tenths(one.syns.mean()),
        admitted: tenths(one.admitted.mean()),
        refused: tenths(one.refused.mean()),
        accepted: tenths(one.accepts_mean.value().unwrap_or(0.0).max(0.0)),
        capacity: one.speed().map(|rate| tenths(rate.max(0.0))),
        kept_queue_length: kept.map(|kept| tenths(kept.length)),
        kept_wait_us: kept.map(|kept| kept.wait.as_micros() as u64),
    }
}

fn logged(decision: &controller::Decision, observed: bool) -> Decision {
    Decision {
        at_unix_ms: unix_ms(),
        class: decision.class.clone(),
        from: decision.from.map(tenths),
        to: decision.to.map(tenths),
        observed,
        reason: decision.reason.clone(),
    }
}

/// `class other held at 1200/s (was 3000/s): listener "web": …`
pub fn line(decision: &Decision) -> String {
    let Decision {
        class,
        from,
        to,
        observed,
        reason,
        ..
    } = decision;
    let would = if *observed { "would be " } else { "" };
    let was = from
        .map(|rate| format!(" (was {}/s)", about_rate(rate)))
        .unwrap_or_default();
    match to {
        Some(to) => {
            let to = about_rate(*to);
            format!("class {class} {would}held at {to}/s{was}: {reason}")
        }
        None => format!("class {class} {would}held no more{was}: {reason}"),
    }
}

/// Enough for people, and shorter. What is less than a tenth is not nothing.
fn tenths(value: f64) -> f64 {
    match value {
        0.05.. => (value * 10.0).round() / 10.0,
        _ => (value * 1000.0).round() / 1000.0,
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
