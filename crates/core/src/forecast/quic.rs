//! The same of a QUIC listener: what enforcement would refuse, from what is seen while nobody is refused.
//!
//! In observe mode every attempt goes on to the server, so under overload the wait stays long and nearly each attempt finds it
//! so. A [`QuicForecast`] keeps the attempts that would be waiting: what comes goes in, what the server answers goes out, and
//! what the target has no place for is refused. Over an overload that is 1 − answered / offered.
//!
//! Two things need no model. Until the wait has stood over the target, enforcement does what observing does: the guard's own
//! state says when that has ended. And it never refuses more than what was seen to be refused by the verdicts of the same time:
//! so what the floor lets in stays let in, and so does what comes before the wait stands.
//!
//! A server of which only few may wait is idle by chance although more come than it can answer ([`lost_by_chance`]).

use std::time::Duration;

use super::{STILL, Would};
use crate::abi;
use crate::listener::Mode;
use crate::quic::{QuicCounters, QuicListener, QuicLook, QuicSocket, QuicVerdict};

/// Of the rate or the controller, whatever the server does.
const OVER_RATE: [QuicVerdict; 4] = [
    QuicVerdict::QuicVnRate,
    QuicVerdict::QuicDroppedRate,
    QuicVerdict::QuicVnHeld,
    QuicVerdict::QuicDroppedHeld,
];
/// Attempts that weir cannot judge, and lets in.
const UNJUDGED: [QuicVerdict; 2] = [QuicVerdict::QuicUnheard, QuicVerdict::QuicUnjudged];

/// Of the moving mean of answers, the weight of a new look: one in so many.
const ANSWERS_WEIGH: f64 = 8.0;

/// By what enforcement would refuse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuicRule {
    /// The wait over which it refuses.
    pub target: Duration,
    /// How long the wait must stand over the target before it refuses.
    pub interval: Duration,
    /// Share of the receive buffer above which it refuses; 0: the buffer does not count.
    pub room: f64,
}

impl From<&QuicListener> for QuicRule {
    fn from(listener: &QuicListener) -> QuicRule {
        QuicRule {
            target: listener.target_wait,
            interval: listener.interval,
            room: listener.room,
        }
    }
}

/// Follows one QUIC listener and one rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuicForecast {
    last: Option<(Duration, QuicCounters)>,
    /// The guard's wait stood at the last look, or the buffer was fuller than `room`.
    stood: bool,
    /// Attempts that would be waiting.
    waiting: f64,
    /// Since when their wait is over the target.
    above_since: Option<Duration>,
    last_above: Duration,
    standing: bool,
    /// What the server answers a second while the guard's wait stands, a moving mean.
    answers: Option<f64>,
    offered: f64,
    refused: f64,
    over_rate: u64,
}

/// What has come between two looks.
struct New {
    /// Attempts that were judged by the wait and the buffer.
    came: f64,
    /// Of them, those that found it as if they were to be refused.
    seen_refused: f64,
    answered: f64,
}

impl QuicForecast {
    /// Takes a look in. The first one only says what was before.
    pub fn take(&mut self, rule: &QuicRule, look: &QuicLook<'_>) {
        let Some((at, before)) = self.last.replace((look.at, *look.counters)) else {
            return;
        };
        let elapsed = look.at.saturating_sub(at);
        if elapsed > STILL {
            return;
        }
        let New {
            came,
            answered,
            seen_refused,
        } = self.count(&look.counters.since(&before), look.listener.mode);
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let is_full = |socket: &QuicSocket| rule.room > 0.0 && socket.fullness() > rule.room;
        let stands = look
            .sockets
            .iter()
            .any(|socket| socket.standing || is_full(socket));
        let stood = std::mem::replace(&mut self.stood, stands);
        if stood && stands {
            self.learn(answered / seconds);
        }
        let waiting = (self.waiting + came - answered).max(0.0);
        let load = self.load(came / seconds);
        let refused = match places(rule, look.sockets, load) {
            Some(places) if stood || stands => {
                self.judge(rule, at + elapsed / 2, look.at, waiting >= places);
                match self.standing {
                    true => {
                        let lost = load.map_or(0.0, |load| lost_by_chance(load, places));
                        (waiting - places).max(came * lost)
                    }
                    false => 0.0,
                }
            }
            // What an attempt finds before the wait has stood, it would have found.
            _ => {
                (self.standing, self.above_since) = (false, None);
                seen_refused
            }
        };
        let refused = refused.clamp(0.0, seen_refused);
        self.waiting = waiting - refused;
        if look.listener.mode == Mode::Observe {
            let pending = look.sockets.iter().map(|socket| f64::from(socket.pending));
            self.waiting = self.waiting.min(pending.sum());
        }
        self.offered += came;
        self.refused += refused;
    }

    /// What has come since the last look. Attempts that are let in or refused whatever the server does are counted at once.
    fn count(&mut self, new: &QuicCounters, mode: Mode) -> New {
        let sum = |verdicts: &[QuicVerdict]| verdicts.iter().map(|v| new.get(*v)).sum::<u64>();
        let (over_rate, unjudged) = (sum(&OVER_RATE), sum(&UNJUDGED));
        self.offered += unjudged as f64;
        self.over_rate += over_rate;
        let seen_refused = (new.refused() - over_rate) as f64;
        let came = (new.let_in() - unjudged) as f64 + seen_refused;
        let answered = new.get(QuicVerdict::QuicAnswered) as f64;
        // While nobody is refused, the server answers those over the rate too.
        let answered = match mode == Mode::Observe && over_rate > 0 {
            true => answered * came / (came + over_rate as f64),
            false => answered,
        };
        New {
            came,
            answered,
            seen_refused,
        }
    }

    /// Whether the wait of those who would be waiting stands.
    fn judge(&mut self, rule: &QuicRule, crossed: Duration, now: Duration, is_over: bool) {
        if is_over {
            let since = *self.above_since.get_or_insert(crossed);
            self.last_above = now;
            self.standing |= now.saturating_sub(since) >= rule.interval;
        } else if !self.standing || now.saturating_sub(self.last_above) >= rule.interval {
            (self.standing, self.above_since) = (false, None);
        }
    }

    fn learn(&mut self, answers: f64) {
        let known = self.answers.get_or_insert(answers);
        *known += (answers - *known) / ANSWERS_WEIGH;
    }

    /// So many attempts a second, in parts of what the server can answer.
    fn load(&self, per_second: f64) -> Option<f64> {
        let answers = self.answers.filter(|answers| *answers > 0.0)?;
        Some(per_second / answers)
    }

    /// What enforcement would have done, with what is over a class's rate.
    pub fn would(&self) -> Would {
        Would {
            offered: self.offered.round() as u64 + self.over_rate,
            refused: self.refused.round() as u64 + self.over_rate,
        }
    }
}

/// So many may wait, over all sockets; `None`: the server's speed is not known.
fn places(rule: &QuicRule, sockets: &[QuicSocket], load: Option<f64>) -> Option<f64> {
    let least = load.map_or(f64::from(abi::QUIC_LEAST_MIN), least);
    let of = |socket: &QuicSocket| {
        let service = socket.service?.as_secs_f64().max(1e-9);
        let by_wait = (rule.target.as_secs_f64() / service).max(least);
        // What waits in the buffer fills it: of so many, only as many find room.
        let by_room = match rule.room > 0.0 && socket.fullness() > rule.room {
            true => f64::from(socket.pending.max(1)) * rule.room / socket.fullness(),
            false => f64::INFINITY,
        };
        Some(by_wait.min(by_room))
    };
    sockets.iter().filter_map(of).reduce(|all, one| all + one)
}

/// As few as keep the server busy, as enforcement learns them (`quic_learn_least()` of quic_wait.h): half as many again while
/// nobody waits for more than a sixteenth of the time.
fn least(load: f64) -> f64 {
    let mut least = abi::QUIC_LEAST_MIN;
    while least < abi::QUIC_LEAST_MAX && idle(load, f64::from(least)) > 1.0 / 16.0 {
        least += least / 2 + 1;
    }
    f64::from(least.min(abi::QUIC_LEAST_MAX))
}

/// The share of the time in which nobody waits, of the queue of [`lost_by_chance`].
fn idle(load: f64, places: f64) -> f64 {
    match (load - 1.0).abs() < 1e-3 {
        true => 1.0 / (places + 1.0),
        false => (1.0 - load) / (1.0 - load.powf(places + 1.0)),
    }
}

/// The share of the attempts that find no place because too few may wait to keep the server busy: of a queue with Poisson
/// arrivals and as many places (M/M/1/K). `load`: what comes, in parts of what the server can answer.
fn lost_by_chance(load: f64, places: f64) -> f64 {
    if (load - 1.0).abs() < 1e-3 {
        return 1.0 / (places + 1.0);
    }
    // Each is written so that no power of the load is infinite.
    match load > 1.0 {
        true => (load - 1.0) / (load - load.powf(-places)),
        false => (1.0 - load) * load.powf(places) / (1.0 - load.powf(places + 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::ListenAddress;

    /// Looks four times a second at a server that answers 500/s.
    struct Server {
        listener: QuicListener,
        counters: QuicCounters,
        at: Duration,
        pending: u32,
        forecast: QuicForecast,
    }

    impl Server {
        fn new() -> Server {
            let address = ListenAddress {
                ip: None,
                port: 443,
            };
            let mut server = Server {
                listener: QuicListener {
                    mode: Mode::Observe,
                    ..QuicListener::new("h3", address)
                },
                counters: QuicCounters::default(),
                at: Duration::from_secs(1000),
                pending: 0,
                forecast: QuicForecast::default(),
            };
            server.quarter(0, QuicVerdict::QuicAdmitted, 0);
            server
        }

        /// So many come and have this verdict, and the server answers so many.
        fn quarter(&mut self, came: u64, verdict: QuicVerdict, answered: u64) {
            self.at += Duration::from_millis(250);
            self.counters.0[verdict as usize] += came;
            self.counters.0[QuicVerdict::QuicAnswered as usize] += answered;
            self.pending = (u64::from(self.pending) + came).saturating_sub(answered) as u32;
            let service = Duration::from_millis(2);
            let socket = QuicSocket {
                pending: self.pending,
                wait: Some(service * self.pending),
                service: Some(service),
                buffer: 0,
                buffer_limit: 2 << 20,
                standing: verdict == QuicVerdict::QuicVnWait,
                least: 2,
            };
            self.forecast.take(
                &QuicRule::from(&self.listener),
                &QuicLook {
                    at: self.at,
                    listener: &self.listener,
                    counters: &self.counters,
                    sockets: &[socket],
                },
            );
        }

        fn would(&self) -> Would {
            self.forecast.would()
        }
    }

    const IN: QuicVerdict = QuicVerdict::QuicAdmitted;
    const LATE: QuicVerdict = QuicVerdict::QuicVnWait;

    #[test]
    fn of_an_overload_what_the_server_does_not_answer_would_be_refused() {
        let mut server = Server::new();
        server.quarter(250, IN, 125);
        for _ in 0..40 {
            server.quarter(250, LATE, 125);
        }
        let share = server.would().share();
        assert!((0.47..=0.51).contains(&share), "{share}");
        // It has ended, and the long queue is worked off: each verdict still refuses, and enforcing would refuse nobody.
        let before = server.would();
        while server.pending > 0 {
            server.quarter(50, LATE, 125);
        }
        let after = server.would();
        assert!(after.offered > before.offered + 1000);
        assert_eq!(after.refused, before.refused);
    }

    #[test]
    fn below_its_capacity_and_in_bursts_nobody_would_be_refused() {
        let mut server = Server::new();
        for _ in 0..40 {
            server.quarter(100, IN, 100);
        }
        server.quarter(200, IN, 125);
        server.quarter(10, IN, 85);
        assert_eq!(
            server.would(),
            Would {
                offered: 4210,
                refused: 0
            }
        );
    }

    #[test]
    fn attempts_that_nobody_answers_wait_no_longer_than_the_guard_lets_them() {
        let mut server = Server::new();
        for _ in 0..40 {
            server.quarter(100, IN, 80);
            server.pending = 0;
        }
        server.quarter(100, LATE, 80);
        assert!(server.would().refused <= 30, "{:?}", server.would());
    }

    #[test]
    fn what_a_class_has_too_many_of_is_refused_and_takes_no_answers_from_others() {
        let mut server = Server::new();
        server.quarter(200, IN, 0);
        server.counters.0[QuicVerdict::QuicVnRate as usize] += 200;
        server.quarter(0, IN, 250);
        assert_eq!((server.would().offered, server.would().refused), (400, 200));
    }

    #[test]
    fn what_finds_no_room_before_the_wait_stands_or_without_answers_would_be_refused() {
        let mut server = Server::new();
        server.quarter(30, QuicVerdict::QuicVnRoom, 30);
        assert_eq!(server.would().refused, 30);
    }

    #[test]
    fn chance_loses_much_of_few_places_and_little_of_many() {
        for (load, places, expected) in [
            (2.0, 1.0, 2.0 / 3.0),
            (2.0, 50.0, 0.5),
            (2.0, 1e9, 0.5),
            (1.0, 1.0, 0.5),
            (0.5, 1.0, 1.0 / 3.0),
            (0.5, 1e9, 0.0),
            (0.0, 3.0, 0.0),
        ] {
            let lost = lost_by_chance(load, places);
            assert!((lost - expected).abs() < 1e-6, "{load} {places}: {lost}");
        }
    }
}
