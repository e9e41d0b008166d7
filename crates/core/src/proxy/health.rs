//! Whether a backend is up, by checks that the proxy makes of its own.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a check of a backend consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthCheck {
    /// Backends are not checked.
    Off,
    /// A connection that is established, and closed again.
    Tcp,
    /// A reply to a GET, of an expected status.
    Http,
}

/// How backends are checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// What a check is.
    pub check: HealthCheck,
    /// Time from the begin of a check to that of the next one.
    pub interval: Duration,
    /// Time that a check has, from its connection to the reply's head.
    pub timeout: Duration,
    /// So many checks in a row that pass bring a backend back.
    pub rise: u32,
    /// So many in a row that fail take it out.
    pub fall: u32,
    /// The path that a check asks for.
    pub path: String,
    /// The `Host` that a check names; `None`: the backend's address.
    pub host: Option<String>,
    /// The status that a check expects.
    pub status: Statuses,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            check: HealthCheck::Off,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            path: "/".to_owned(),
            host: None,
            status: Statuses(200..=399),
        }
    }
}

/// A status of HTTP, or all from one to another: `200`, `200-399`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses(RangeInclusive<u16>);

impl Statuses {
    /// Whether this one is among them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.contains(&status)
    }
}

impl FromStr for Statuses {
    type Err = String;

    fn from_str(text: &str) -> Result<Statuses, String> {
        let no_status = || format!("{text:?} is neither a status nor two with - between");
        let status = |text: &str| {
            let is_status = |status: &u16| (100..=999).contains(status);
            let status = text.trim().parse().ok().filter(is_status);
            status.ok_or_else(no_status)
        };
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let range = status(low)?..=status(high)?;
        match range.is_empty() {
            true => Err(no_status()),
            false => Ok(Statuses(range)),
        }
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.0.start(), self.0.end());
        match low == high {
            true => write!(f, "{low}"),
            false => write!(f, "{low}-{high}"),
        }
    }
}

/// What the checks of one backend have come to. The first check decides alone, for until then
/// nothing is known; later a change takes `rise` or `fall` checks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthState {
    /// `None` until the first check has ended.
    is_up: Option<bool>,
    /// Checks in a row that said the opposite.
    against: u32,
}

impl HealthState {
    /// Whether it is up; `None` if it was not checked yet.
    pub fn is_up(&self) -> Option<bool> {
        self.is_up
    }

    /// What was found before, by other checks that asked the same.
    pub fn known(is_up: bool) -> HealthState {
        HealthState {
            is_up: Some(is_up),
            against: 0,
        }
    }

    /// Takes note of a check that passed or failed. True if that changes what the backend is.
    pub fn note(&mut self, passed: bool, health: &Health) -> bool {
        let needed = match self.is_up {
            None => 1,
            Some(is_up) if is_up == passed => {
                self.against = 0;
                return false;
            }
            Some(true) => health.fall,
            Some(false) => health.rise,
        };
        self.against += 1;
        if self.against < needed {
            return false;
        }
        *self = HealthState {
            is_up: Some(passed),
            against: 0,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states after each check: `?` unknown, `u` up, `d` down.
    fn states(rise: u32, fall: u32, checks: &str) -> String {
        let health = Health {
            rise,
            fall,
            ..Health::default()
        };
        let mut state = HealthState::default();
        let mut before = state.is_up();
        let state = |check| {
            let changed = state.note(check == '+', &health);
            assert_eq!(changed, state.is_up() != before);
            before = state.is_up();
            match state.is_up() {
                None => '?',
                Some(true) => 'u',
                Some(false) => 'd',
            }
        };
        checks.chars().map(state).collect()
    }

    #[test]
    fn the_first_check_decides_alone_and_later_it_takes_so_many_in_a_row() {
        assert_eq!(states(2, 3, "+"), "u");
        assert_eq!(states(2, 3, "-"), "d");
        assert_eq!(states(2, 3, "+---++"), "uuuddu");
        assert_eq!(states(2, 3, "+--+--+---"), "uuuuuuuuud");
        assert_eq!(states(2, 3, "-+-+-++"), "ddddddu");
        assert_eq!(states(1, 1, "+-+-"), "udud");
    }

    #[test]
    fn statuses_are_one_or_from_one_to_another() {
        for text in ["200", "200-399", "404"] {
            let statuses: Statuses = text.parse().unwrap();
            assert_eq!(statuses.to_string(), text);
        }
        let good: Statuses = "200-204".parse().unwrap();
        assert!(good.contains(200) && good.contains(204) && !good.contains(205));
        for text in ["", "2", "20x", "399-200", "200-", "-200", "1000"] {
            assert!(text.parse::<Statuses>().is_err(), "{text:?}");
        }
    }
}
