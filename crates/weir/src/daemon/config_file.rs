//! The config file of a service: what of it is in force, what comes back when no one confirms a reload, and what became
//! of the last reload.

use std::path::Path;
use std::time::Instant;

use weir_api::LastReload;

use crate::daemon::at_start::AtStart;
use crate::failure::Failure;
use crate::host::clock::unix_ms;
use crate::host::config::Source;

/// A config file that is in force.
#[derive(Debug)]
pub struct ConfigFile {
    in_force: Source,
    at_start: AtStart,
    /// The text that `at_start` is of.
    text_at_start: String,
    trial: Option<Trial>,
    last_reload: Option<LastReload>,
}

/// What reports and metrics say of the config file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reloads {
    /// The last reload; `None`: there was none.
    pub last: Option<LastReload>,
    /// Seconds until the file before the last reload is in force again; `None`: the last one is for good.
    pub unconfirmed_s: Option<u64>,
    /// Seconds for which the listeners only observe; `None`: the file decides.
    pub observes_s: Option<u64>,
}

/// What is in force for a while only: a reload that is not confirmed yet, or that the listeners observe.
#[derive(Debug)]
pub struct Trial {
    /// What comes back.
    pub before: Source,
    /// When.
    end: Instant,
    /// The listeners only observe, and else all is as in the file that comes back.
    pub observes: bool,
}

impl ConfigFile {
    /// This one is in force, for good. `at_start`: what of it is so until a restart.
    pub fn new(in_force: Source, at_start: AtStart) -> ConfigFile {
        ConfigFile {
            text_at_start: in_force.text.clone(),
            in_force,
            at_start,
            trial: None,
            last_reload: None,
        }
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.in_force.file
    }

    /// What is in force.
    pub fn in_force(&self) -> &Source {
        &self.in_force
    }

    /// What no reload changes.
    pub fn at_start(&self) -> &AtStart {
        &self.at_start
    }

    /// What the file said at the start; `None`: what is in force.
    pub fn text_at_start(&self) -> Option<&str> {
        (self.text_at_start != self.in_force.text).then_some(&self.text_at_start)
    }

    /// What was read is in force: until this time, or for good. A second trial goes back to what was there before the
    /// first.
    pub fn replace(&mut self, read: Source, end: Option<Instant>) {
        let before = std::mem::replace(&mut self.in_force, read);
        let before = self.trial.take().map_or(before, |trial| trial.before);
        self.trial = end.map(|end| Trial {
            before,
            end,
            observes: false,
        });
    }

    /// The listeners of what is in force only observe until this time.
    pub fn observe(&mut self, end: Instant) {
        self.trial = Some(Trial {
            before: self.in_force.clone(),
            end,
            observes: true,
        });
    }

    /// Whether they do.
    pub fn observes(&self) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.observes)
    }

    /// Notes what came of an attempt to put the file in force.
    pub fn note_reload(&mut self, failure: Option<&Failure>) {
        self.last_reload = Some(LastReload {
            at_unix_ms: unix_ms(),
            succeeded: failure.is_none(),
            failure: failure.map(ToString::to_string),
        });
    }

    /// What was in force before the trial is so again: the file that was read last is not.
    pub fn go_back(&mut self, before: Source) {
        self.replace(before, None);
        if let Some(last) = &mut self.last_reload {
            last.succeeded = false;
            last.failure = Some("it was not confirmed in time".to_owned());
        }
    }

    /// What there is to report.
    pub fn reloads(&self, now: Instant) -> Reloads {
        let left = |end: Instant| end.saturating_duration_since(now).as_secs();
        let (observes, left) = (self.observes(), self.due_at().map(left));
        Reloads {
            last: self.last_reload.clone(),
            unconfirmed_s: left.filter(|_| !observes),
            observes_s: left.filter(|_| observes),
        }
    }

    /// When [`overdue`](Self::overdue) has something.
    pub fn due_at(&self) -> Option<Instant> {
        self.trial.as_ref().map(|trial| trial.end)
    }

    /// What was in force for a while, once that is over.
    pub fn overdue(&mut self, now: Instant) -> Option<Trial> {
        self.trial.take_if(|trial| trial.end <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn source(text: &str) -> Source {
        Source {
            file: "/f".into(),
            text: text.into(),
        }
    }

    #[test]
    fn the_last_confirmed_file_comes_back() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut file = ConfigFile::new(source("a"), AtStart::default());
        assert_eq!(file.due_at(), None);
        file.replace(source("b"), Some(at(60)));
        file.replace(source("c"), Some(at(90)));
        assert_eq!(file.due_at(), Some(at(90)));
        assert!(file.overdue(at(89)).is_none());
        assert_eq!(file.overdue(at(90)).unwrap().before.text, "a");
        assert!(file.overdue(at(91)).is_none());
    }

    #[test]
    fn a_reload_that_went_back_did_not_succeed() {
        let now = Instant::now();
        let mut file = ConfigFile::new(source("a"), AtStart::default());
        assert_eq!(file.reloads(now), Reloads::default());
        file.replace(source("b"), Some(now + Duration::from_secs(9)));
        file.note_reload(None);
        assert_eq!(file.reloads(now).unconfirmed_s, Some(9));
        assert!(file.reloads(now).last.unwrap().succeeded);
        let trial = file.overdue(now + Duration::from_secs(9)).unwrap();
        file.go_back(trial.before);
        let Reloads {
            last,
            unconfirmed_s,
            ..
        } = file.reloads(now);
        assert_eq!((last.unwrap().succeeded, unconfirmed_s), (false, None));
    }

    #[test]
    fn observing_ends_by_its_time_or_by_a_reload() {
        let now = Instant::now();
        let mut file = ConfigFile::new(source("a"), AtStart::default());
        file.observe(now + Duration::from_secs(9));
        let reloads = file.reloads(now);
        assert_eq!((reloads.unconfirmed_s, reloads.observes_s), (None, Some(9)));
        let trial = file.overdue(now + Duration::from_secs(9)).unwrap();
        assert!(trial.observes && trial.before.text == "a" && !file.observes());
        file.observe(now);
        file.replace(source("b"), None);
        assert!(file.overdue(now).is_none() && !file.observes());
    }

    #[test]
    fn a_reload_for_good_confirms() {
        let now = Instant::now();
        let mut file = ConfigFile::new(source("a"), AtStart::default());
        file.replace(source("b"), Some(now));
        file.replace(source("b"), None);
        assert!(file.overdue(now).is_none());
        assert_eq!(file.in_force().text, "b");
    }
}
