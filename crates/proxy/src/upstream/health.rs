//! What health checks have found, for the threads that choose backends: one relaxed load each.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use weir_core::proxy::{Health, HealthCheck, HealthState, Proxy};
use weir_core::word::Word;

use crate::metrics::HealthCounters;

/// The health of all backends of a proxy. Written by one thread: see [`checks`](super::checks).
#[derive(Debug)]
pub struct HealthBoard {
    backends: Vec<BackendHealth>,
}

#[derive(Debug, Default)]
struct BackendHealth {
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

impl HealthBoard {
    /// A board for backends that are not checked yet; `None` if they never are.
    pub fn new(settings: &Proxy) -> Option<HealthBoard> {
        let backends = settings.backends.iter();
        (settings.health.check != HealthCheck::Off).then(|| HealthBoard {
            backends: backends.map(|_| BackendHealth::default()).collect(),
        })
    }

    /// Whether a backend is to get nothing new. Never all of them: if all are down, none is avoided.
    pub fn is_avoided(&self, backend: usize) -> bool {
        self.backends[backend].is_avoided.load(Ordering::Relaxed)
    }

    /// What the checks of a backend have found.
    pub fn state(&self, backend: usize) -> BackendState {
        self.backends[backend].state.get()
    }

    /// What the last check of a backend came to; empty before the first.
    pub fn last(&self, backend: usize) -> String {
        let last = self.backends[backend].last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the checks of a backend counted.
    pub fn counters(&self, backend: usize) -> &HealthCounters {
        &self.backends[backend].counters
    }

    /// Forgets what was found: nothing of it is renewed any more.
    pub(super) fn clear(&self) {
        for backend in &self.backends {
            backend.is_avoided.store(false, Ordering::Relaxed);
            backend.state.set(BackendState::Unchecked);
        }
    }

    pub(super) fn count(&self, backend: usize, passed: bool, outcome: &str) {
        let BackendHealth { counters, last, .. } = &self.backends[backend];
        counters.checks.add(1);
        if !passed {
            counters.checks_failed.add(1);
        }
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.clone_into(&mut last);
    }

    /// Takes states over, of which one has changed; says what there is now.
    pub(super) fn show(&self, states: &[HealthState]) -> Availability {
        let is_down = |state: &HealthState| state.is_up() == Some(false);
        let all_down = states.iter().all(is_down);
        // First the backends that may be used, so that a reader in between finds one.
        for avoided in [false, true] {
            for (state, backend) in states.iter().zip(&self.backends) {
                if (is_down(state) && !all_down) == avoided {
                    backend.is_avoided.store(avoided, Ordering::Relaxed);
                }
            }
        }
        for (state, backend) in states.iter().zip(&self.backends) {
            let state = BackendState::of(state);
            backend.state.set(state);
        }
        match all_down {
            true => Availability::AllDown,
            false => Availability::SomeUp,
        }
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
    use weir_core::proxy::ProxyMode;

    fn board(backends: usize) -> HealthBoard {
        let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
        let address: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        settings.backends = vec![address.into(); backends];
        settings.health.check = HealthCheck::Tcp;
        HealthBoard::new(&settings).unwrap()
    }

    fn state(passed: bool) -> HealthState {
        let mut state = HealthState::default();
        state.note(passed, &Health::default());
        state
    }

    #[test]
    fn who_is_down_is_avoided_unless_all_are() {
        let board = board(2);
        let avoided = || [board.is_avoided(0), board.is_avoided(1)];
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
            assert_eq!(board.show(&states), standing);
            assert_eq!(avoided(), expected, "{states:?}");
        }
        board.clear();
        assert_eq!(avoided(), [false, false]);
        assert_eq!(board.state(0), BackendState::Unchecked);
    }
}
