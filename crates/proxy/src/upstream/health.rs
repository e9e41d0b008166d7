//! What health checks have found, for the threads that choose backends: one relaxed load each.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use weir_core::proxy::{Health, HealthCheck, HealthState};
use weir_core::word::Word;

use crate::metrics::HealthCounters;

/// The health of a backend. Written by one thread: see [`checks`](super::checks).
#[derive(Debug, Default)]
pub struct BackendHealth {
    /// It gets nothing new: it is down, and another is not.
    is_avoided: AtomicBool,
    state: BackendStateCell,
    /// What the last check came to.
    last: Mutex<String>,
    counters: HealthCounters,
}

/// What the checks of a backend have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum BackendState {
    /// It is not checked, or not yet.
    #[default]
    Unchecked,
    /// It passes.
    Up,
    /// It fails.
    Down,
}

#[derive(Debug, Default)]
struct BackendStateCell(AtomicU8);

impl BackendState {
    /// Its word in status.
    pub fn word(self) -> &'static str {
        match self {
            BackendState::Unchecked => "unchecked",
            BackendState::Up => "up",
            BackendState::Down => "down",
        }
    }

    fn of(state: &HealthState) -> BackendState {
        match state.is_up() {
            None => BackendState::Unchecked,
            Some(true) => BackendState::Up,
            Some(false) => BackendState::Down,
        }
    }
}

impl BackendStateCell {
    fn set(&self, state: BackendState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    fn get(&self) -> BackendState {
        use BackendState::*;
        [Unchecked, Up, Down][usize::from(self.0.load(Ordering::Relaxed))]
    }
}

impl BackendHealth {
    /// Whether it is to get nothing new. Never all of them: if all are down, none is avoided.
    pub fn is_avoided(&self) -> bool {
        self.is_avoided.load(Ordering::Relaxed)
    }

    /// What the checks have found.
    pub fn state(&self) -> BackendState {
        self.state.get()
    }

    /// What the last check came to; empty before the first.
    pub fn last(&self) -> String {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the checks counted.
    pub fn counters(&self) -> &HealthCounters {
        &self.counters
    }

    /// Forgets what was found: nothing of it is renewed any more.
    pub(super) fn clear(&self) {
        self.is_avoided.store(false, Ordering::Relaxed);
        self.state.set(BackendState::Unchecked);
    }

    /// One could not be made.
    pub(super) fn count_not_made(&self) {
        self.counters.checks_not_made.add(1);
    }

    pub(super) fn count(&self, passed: bool, outcome: &str) {
        self.counters.checks.add(1);
        if !passed {
            self.counters.checks_failed.add(1);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.clone_into(&mut last);
    }
}

/// Takes over what was found of all backends of a proxy; says what there is now.
pub(super) fn show<'a>(
    found: impl Iterator<Item = (&'a BackendHealth, HealthState)> + Clone,
) -> Availability {
    let is_down = |state: &HealthState| state.is_up() == Some(false);
    let all_down = found.clone().all(|(_, state)| is_down(&state));
    // First the backends that may be used, so that a reader in between finds one.
    for avoided in [false, true] {
        for (backend, state) in found.clone() {
            if (is_down(&state) && !all_down) == avoided {
                backend.is_avoided.store(avoided, Ordering::Relaxed);
            }
        }
    }
    for (backend, state) in found {
        backend.state.set(BackendState::of(&state));
    }
    match all_down {
        true => Availability::AllDown,
        false => Availability::SomeUp,
    }
}

/// Whether a backend is left to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Availability {
    /// One is up, or not known to be down.
    SomeUp,
    /// All are down, and so all are used.
    AllDown,
}

/// What checks are, in words for logs: `tcp`, `http /health`.
pub(super) fn described(health: &Health) -> String {
    match health.check {
        HealthCheck::Http => format!("http {}", health.path),
        check => check.word().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(passed: bool) -> HealthState {
        let mut state = HealthState::default();
        state.note(passed, &Health::default());
        state
    }

    #[test]
    fn who_is_down_is_avoided_unless_all_are() {
        let board = [BackendHealth::default(), BackendHealth::default()];
        let avoided = || [board[0].is_avoided(), board[1].is_avoided()];
        let (up, down) = (state(true), state(false));
        for (states, standing, expected) in [
            ([up, up], Availability::SomeUp, [false, false]),
            ([up, down], Availability::SomeUp, [false, true]),
            ([down, down], Availability::AllDown, [false, false]),
            ([down, up], Availability::SomeUp, [true, false]),
            (
                [down, HealthState::default()],
                Availability::SomeUp,
                [true, false],
            ),
        ] {
            assert_eq!(show(board.iter().zip(states)), standing);
            assert_eq!(avoided(), expected, "{states:?}");
        }
        board.iter().for_each(BackendHealth::clear);
        assert_eq!(avoided(), [false, false]);
        assert_eq!(board[0].state(), BackendState::Unchecked);
    }
}
