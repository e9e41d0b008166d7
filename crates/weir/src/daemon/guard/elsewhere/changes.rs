//! What becomes of listeners in workloads: a line of the log each, and an event.
//!
//! A container that fails at its start may be started again many times a second. So only some changes become events: enough
//! for all workloads of a machine at the start of weir, and then few. The journal keeps them apart from others.

use std::time::{Duration, Instant};

use weir_api::Event;
use weir_core::class::{Bucket, BucketLimit};

use crate::daemon::events::plain;

/// Changes that become events, each second in the long run.
const RATE: f64 = 1.0;
/// And at once after a pause.
const BURST: u32 = 512;
/// Between two events that say how many were left out.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(10);

/// Something has become of a listener in a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// `web@web-1`
    pub label: String,
    /// What.
    pub turn: Turn,
    /// The same as a sentence.
    pub text: String,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is guarded, and was not known before or was off.
    On,
    /// It is to be guarded, and is not.
    NotInForce,
    /// It is guarded after that.
    InForce,
    /// It has ended, or nobody listens there any more.
    Off,
}

impl Change {
    pub fn new(label: &str, turn: Turn, what: &str) -> Change {
        Change {
            label: label.to_owned(),
            turn,
            text: format!("{label}: {what}"),
        }
    }

    fn log(&self) {
        match self.turn {
            Turn::NotInForce => tracing::error!("{}", self.text),
            _ => tracing::info!("{}", self.text),
        }
    }

    fn event(&self) -> Event {
        let (kind, severity) = match self.turn {
            Turn::On => ("workload_on", "info"),
            Turn::NotInForce => ("not_in_force", "error"),
            Turn::InForce => ("in_force", "info"),
            Turn::Off => ("workload_off", "info"),
        };
        Event {
            listener: Some(self.label.clone()),
            ..plain(kind, severity, &*self.text)
        }
    }
}

/// So many were no events.
fn left_out_event(n: u64) -> Event {
    let them = match n {
        1 => "1 change of a workload is no event".to_owned(),
        n => format!("{n} changes of workloads are no events"),
    };
    Event {
        left_out: Some(n),
        ..plain(
            "left_out",
            "info",
            format!("{them}: there are too many (the log has each)"),
        )
    }
}

/// The changes that are still to become events.
pub struct Changes {
    new: Vec<Change>,
    begun: Instant,
    bucket: Bucket,
    limit: BucketLimit,
    left_out: u64,
    left_out_said: Option<Instant>,
}

impl Changes {
    /// None yet.
    pub fn none(now: Instant) -> Changes {
        Changes {
            new: Vec::new(),
            begun: now,
            bucket: Bucket::default(),
            limit: BucketLimit::new(RATE, BURST),
            left_out: 0,
            left_out_said: None,
        }
    }

    /// Says these in the log, and notes them.
    pub fn say(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            change.log();
            self.new.push(change);
        }
    }

    /// Whether some are still to become events.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// The events of those that were said since the last call, as far as there may be more.
    pub fn events(&mut self, now: Instant) -> Vec<Event> {
        let since = now.saturating_duration_since(self.begun).as_nanos() as u64;
        let mut events = Vec::new();
        for change in std::mem::take(&mut self.new) {
            match self.bucket.take(since, &self.limit) {
                true => events.push(change.event()),
                false => self.left_out += 1,
            }
        }
        let is_due = |said: Instant| now >= said + LEFT_OUT_EVERY;
        if self.left_out > 0 && self.left_out_said.is_none_or(is_due) {
            let left_out = std::mem::take(&mut self.left_out);
            events.push(left_out_event(left_out));
            self.left_out_said = Some(now);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_that_come_and_go_all_the_time_are_few_events() {
        let begun = Instant::now();
        let mut changes = Changes::none(begun);
        let mut events = Vec::new();
        // A thousand restarts a minute, for ten minutes.
        for restart in 0..10_000 {
            for turn in [Turn::Off, Turn::On] {
                changes.say([Change::new("web@web-1", turn, "…")]);
            }
            let now = begun + restart * Duration::from_millis(60);
            events.extend(changes.events(now));
        }
        let (left_out, told): (Vec<_>, Vec<_>) =
            events.iter().partition(|event| event.kind == "left_out");
        assert_eq!(
            told.len(),
            BURST as usize + 599,
            "one a second after the first ones"
        );
        assert!(left_out.len() <= 60, "{}", left_out.len());
        let all: u64 = left_out.iter().filter_map(|event| event.left_out).sum();
        let unsaid = changes.left_out;
        assert_eq!(
            all + unsaid + told.len() as u64,
            20_000,
            "none is lost in silence"
        );
    }
}
