//! What the reports have said: the last two, and a history of each listener.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weir_api::{Status, TopSources};

use super::rates::Pair;
use super::rows::{self, Flow, ListenerRow, Sort, Wish};

/// Reports that the history goes back: more columns than a wide terminal has.
pub const HISTORY: usize = 400;

/// Listeners and workloads that have a history: of a thousand containers nobody looks at all.
const HISTORIES: usize = 500;

/// A report and when it was made.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What weir said.
    pub status: Status,
    /// The sources that are refused most; `None` where no guard says so.
    pub sources: Option<TopSources>,
    /// Since any fixed moment, by a clock that nobody sets.
    pub at: Duration,
    /// The time of day, in ms since 1970 UTC.
    pub unix_ms: u64,
}

/// A listener at one report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Connections that waited for accept().
    pub queue_length: u32,
    /// The estimated wait, in µs; `None` while not known.
    pub wait_us: Option<u64>,
    /// Connections/s since the report before; `None` without one.
    pub flow: Option<Flow>,
}

/// What all reports so far have said.
#[derive(Debug, Clone, Default)]
pub struct Data {
    now: Option<Report>,
    before: Option<Report>,
    /// Why the last question had no answer.
    failure: Option<String>,
    /// By the key of the listener or workload, oldest first; all of one length. `None`: no report, or the listener was not there.
    history: BTreeMap<String, VecDeque<Option<Sample>>>,
    columns: usize,
}

impl Data {
    /// Takes a report.
    pub fn take(&mut self, report: Report) {
        self.failure = None;
        self.before = self.now.replace(report);
        let mut samples = self.samples();
        for name in samples.keys() {
            if self.history.len() >= HISTORIES && !self.history.contains_key(name) {
                continue;
            }
            let missed = || std::iter::repeat_n(None, self.columns).collect();
            self.history.entry(name.clone()).or_insert_with(missed);
        }
        self.push(|name| samples.remove(name));
    }

    /// Takes a question that had no answer.
    pub fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.push(|_| None);
    }

    /// The last report.
    pub fn now(&self) -> Option<&Report> {
        self.now.as_ref()
    }

    /// What the last report says.
    pub fn status(&self) -> Option<&Status> {
        self.now.as_ref().map(|report| &report.status)
    }

    /// The sources that are refused most, as the last report has them.
    pub fn sources(&self) -> Option<&TopSources> {
        self.now.as_ref()?.sources.as_ref()
    }

    /// Why the last question had no answer; `None` if it had one.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The last report and the one before it.
    pub fn pair(&self) -> Option<Pair<'_>> {
        let now = self.now.as_ref()?;
        let before = self.before.as_ref();
        let before = before.map(|before| (&before.status, now.at.saturating_sub(before.at)));
        Some(Pair::new(&now.status, before))
    }

    /// The last `columns` samples of a listener or workload by its key, oldest first; fewer if there were fewer reports.
    pub fn history(&self, key: &str, columns: usize) -> Vec<Option<Sample>> {
        let Some(history) = self.history.get(key) else {
            return Vec::new();
        };
        let skipped = history.len().saturating_sub(columns);
        history.iter().skip(skipped).copied().collect()
    }

    fn samples(&self) -> BTreeMap<String, Sample> {
        let Some((pair, status)) = self.pair().zip(self.status()) else {
            return BTreeMap::new();
        };
        let all = Wish {
            filter: "",
            sort: Sort::Name,
            reverse: false,
            unfolded: None,
            most: HISTORIES,
        };
        let sample = |row: &ListenerRow<'_>| Sample {
            queue_length: row.queue_length(),
            wait_us: row.wait_us(),
            flow: row.flow,
        };
        let rows = rows::listeners(status, &pair, all).into_iter();
        rows.map(|row| (row.key(), sample(&row))).collect()
    }

    fn push(&mut self, mut sample: impl FnMut(&str) -> Option<Sample>) {
        self.columns = (self.columns + 1).min(HISTORY);
        for (name, history) in &mut self.history {
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(sample(name));
        }
        // Nothing of a listener is left that a reload has removed.
        self.history
            .retain(|_, history| history.iter().any(Option::is_some));
    }
}

#[cfg(test)]
mod tests {
    use weir_api::Listener;

    use super::*;

    fn report(seconds: u64, listeners: &[(&str, u32)]) -> Report {
        let listener = |(name, queue_length): &(&str, u32)| Listener {
            name: (*name).to_owned(),
            queue_length: *queue_length,
            ..Listener::default()
        };
        Report {
            status: Status {
                running: true,
                listeners: listeners.iter().map(listener).collect(),
                ..Status::default()
            },
            at: Duration::from_secs(seconds),
            ..Report::default()
        }
    }

    fn queues(data: &Data, name: &str) -> Vec<Option<u32>> {
        let history = data.history(name, HISTORY).into_iter();
        history
            .map(|sample| sample.map(|sample| sample.queue_length))
            .collect()
    }

    #[test]
    fn the_history_of_all_listeners_has_the_same_times() {
        let mut data = Data::default();
        data.take(report(1, &[("web", 1)]));
        data.fail("no answer".into());
        assert_eq!(data.failure(), Some("no answer"));
        data.take(report(3, &[("web", 3), ("mail", 4)]));
        assert_eq!(data.failure(), None);
        assert_eq!(queues(&data, "web"), [Some(1), None, Some(3)]);
        assert_eq!(queues(&data, "mail"), [None, None, Some(4)]);
        assert_eq!(data.history("web", 1).len(), 1);
        assert_eq!(data.pair().unwrap().time(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_history_is_bounded_and_forgets_removed_listeners() {
        let mut data = Data::default();
        data.take(report(0, &[("old", 1)]));
        for second in 1..=HISTORY as u64 {
            data.take(report(second, &[("web", second as u32)]));
        }
        assert_eq!(queues(&data, "web").len(), HISTORY);
        assert_eq!(queues(&data, "web").last(), Some(&Some(HISTORY as u32)));
        assert!(queues(&data, "old").is_empty());
    }
}
