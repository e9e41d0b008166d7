//! The config file of a service: what of it is in force, and what comes back when no one confirms a reload.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::host::config::Source;

/// A config file that is in force.
#[derive(Debug)]
pub struct ConfigFile {
    in_force: Source,
    trial: Option<Trial>,
}

/// A reload that is not confirmed yet.
#[derive(Debug)]
struct Trial {
    /// What comes back.
    before: Source,
    /// When.
    end: Instant,
}

impl ConfigFile {
    /// This one is in force, for good.
    pub fn new(in_force: Source) -> ConfigFile {
        ConfigFile {
            in_force,
            trial: None,
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

    /// What was read is in force: until this time, or for good. A second trial goes back to what was there before the
    /// first.
    pub fn replace(&mut self, read: Source, end: Option<Instant>) {
        let before = std::mem::replace(&mut self.in_force, read);
        let before = self.trial.take().map_or(before, |trial| trial.before);
        self.trial = end.map(|end| Trial { before, end });
    }

    /// How long until [`overdue`](Self::overdue) has something.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let trial = self.trial.as_ref()?;
        Some(trial.end.saturating_duration_since(now))
    }

    /// What comes back, once the time for a confirmation is over.
    pub fn overdue(&mut self, now: Instant) -> Option<Source> {
        let trial = self.trial.take_if(|trial| trial.end <= now)?;
        Some(trial.before)
    }
}

#[cfg(test)]
mod tests {
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
        let mut file = ConfigFile::new(source("a"));
        assert_eq!(file.due_in(now), None);
        file.replace(source("b"), Some(at(60)));
        file.replace(source("c"), Some(at(90)));
        assert_eq!(file.due_in(at(80)), Some(Duration::from_secs(10)));
        assert!(file.overdue(at(89)).is_none());
        assert_eq!(file.overdue(at(90)).unwrap().text, "a");
        assert!(file.overdue(at(91)).is_none());
    }

    #[test]
    fn a_reload_for_good_confirms() {
        let now = Instant::now();
        let mut file = ConfigFile::new(source("a"));
        file.replace(source("b"), Some(now));
        file.replace(source("b"), None);
        assert!(file.overdue(now).is_none());
        assert_eq!(file.in_force().text, "b");
    }
}
