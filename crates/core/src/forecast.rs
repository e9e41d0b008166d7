//! What enforcement would refuse, from what is seen while nobody is refused.
//!
//! In observe mode the queue stays as long as the kernel lets it, so nearly each SYN finds it too long: its verdict says what
//! would become of it in that queue, not in the one that enforcement would have kept. And a client whose SYN the kernel drops
//! tries again, where enforcement would have told it at once.
//!
//! A [`Forecast`] therefore keeps the queue that would have been. What comes goes in, each connection once; what the server
//! accepts goes out, since it accepts as many from a short queue as from a long one; and what the rule of [`crate::wait`] has
//! no place for is refused. Over a time that is 1 − accepted / offered while the wait stands, and nothing at other times.
//!
//! Times are of any clock that does not go back, from any beginning.

pub mod quic;

use std::time::Duration;

use crate::listener::{Admit, Establish, Listener};
use crate::verdict::{Counters, FULL, OVER_RATE, SYNS, Verdict};
use crate::wait::{
    BEARABLE_NS, CATCH_UP, DRAINS, LEAST_MAX, LEAST_MIN, SAMPLE_ACCEPTS, STANDING_ACCEPTS, TURN_MAX,
};

/// Looks that are further apart say nothing of the time between them: the process stood still.
const STILL: Duration = Duration::from_secs(10);

/// Of a queue that was full when the looks began, nothing is counted for so long: clients whose SYN was dropped before repeat it
/// several times in 7 s, and would count as new ones. Meanwhile the guard gets to know them.
pub const REPEATS: Duration = Duration::from_secs(8);

/// What is left of a turn that is not seen again, at each look with accepts.
const TURN_FADES: f64 = 0.9;
/// The same where nobody waited at either look: what seemed a turn was a server that had stopped.
const IDLE_TURN_FADES: f64 = 0.5;

/// By what enforcement would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The wait over which it refuses; `None`: only a full queue refuses.
    pub target: Option<Duration>,
    /// How long the wait must stand over the target before it refuses.
    pub interval: Duration,
    /// So many may wait, whatever the wait.
    pub least: u32,
}

impl From<&Listener> for Rule {
    fn from(listener: &Listener) -> Rule {
        let judges = listener.admit == Admit::Wait && listener.establish != Establish::Default;
        Rule {
            target: judges.then_some(listener.target_wait),
            interval: listener.interval,
            least: listener.least_length.into(),
        }
    }
}

/// A listener at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Look {
    /// When.
    pub at: Duration,
    /// Connections that the queue was asked for until then: [`offered`].
    pub offered: i64,
    /// Of them, those that found it full: [`found_full`].
    pub full: i64,
    /// Connections accepted until then, from any beginning; `None`: not known.
    pub accepted: Option<i64>,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in the listen queues.
    pub queue_limit: u32,
    /// What the server accepts a second while it is busy; `None`: not known.
    pub accepts: Option<f64>,
    /// So many may wait where one service takes longer than the target.
    pub kept: u32,
    /// The wait; `None`: not known.
    pub wait: Option<Duration>,
    /// Whether nobody is refused: then no queue that enforcement would keep is longer than the one there is.
    pub observed: bool,
}

/// Connections that the queue was asked for, each once: SYNs without repeated ones, without those over a class's rate, and
/// without handshakes under way, which stand in no queue yet.
pub fn offered(counters: &Counters, half_open: u32) -> i64 {
    let of = |verdicts: &[Verdict]| -> u64 { verdicts.iter().map(|v| counters.get(*v)).sum() };
    let apart = of(&OVER_RATE) + counters.get(Verdict::SynRetried);
    of(&SYNS) as i64 - apart as i64 - i64::from(half_open)
}

/// Connections that found no place in the listen queue, each once.
pub fn found_full(counters: &Counters) -> i64 {
    let of = |verdicts: &[Verdict]| -> u64 { verdicts.iter().map(|v| counters.get(*v)).sum() };
    of(&FULL) as i64 - counters.get(Verdict::SynRetried) as i64
}

/// What enforcement would have done with all that came, a class's rate included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Would {
    /// Connections that came, each once.
    pub offered: u64,
    /// Of them, those that it would have refused.
    pub refused: u64,
}

impl Would {
    /// The share that it would have refused, 0 to 1; 0 of none.
    pub fn share(&self) -> f64 {
        self.refused as f64 / self.offered.max(1) as f64
    }
}

/// Follows one listener and one rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Forecast {
    last: Option<Look>,
    /// Nothing is counted before; `None`: all is.
    counts_from: Option<Duration>,
    /// The queue that would be; below zero, workers that would be free.
    queue: f64,
    /// Connections that a pool accepts at once, whose workers finish together.
    turn: f64,
    learning: Learning,
    /// Since when its wait is over the target.
    above_since: Option<Duration>,
    last_above: Duration,
    /// Its longest since then.
    high: f64,
    /// For how long the server has accepted nobody of those who wait, and the same until it last went on.
    still: Duration,
    stood_still: Duration,
    /// The longest stop that led to this wait over the target, or was in it.
    stop: Duration,
    /// After a stop it has drained, and `high` is not raised.
    catching_up: bool,
    standing: bool,
    offered: f64,
    refused: f64,
    /// Of them, those for which there would be no place, whatever the wait.
    full: f64,
}

impl Forecast {
    /// Takes a look in. The first one only says what was before.
    pub fn take(&mut self, rule: &Rule, look: &Look) {
        let Some(before) = self.last.replace(*look) else {
            let is_full = look.queue_length > 0 && look.queue_length >= look.queue_limit;
            self.counts_from = is_full.then_some(look.at + REPEATS);
            return;
        };
        let elapsed = look.at.saturating_sub(before.at);
        if elapsed > STILL {
            return;
        }
        let came = (look.offered - before.offered).max(0) as f64;
        let accepted = accepted(&before, look, came);
        self.learn_turn(accepted, &before, look);
        let queue = (self.queue + came - accepted).max(-self.turn);
        let least = look.kept.max(rule.least).max(self.learning.least());
        let places = rule.target.and_then(|target| places(least, target, look));
        self.learn_stop(accepted, queue, elapsed);
        if let Some(places) = places {
            self.judge(rule, before.at + elapsed / 2, look, queue, places);
        }
        let limit = f64::from(look.queue_limit);
        let most = match places {
            Some(places) if self.standing => places.min(limit),
            _ => limit,
        };
        let refused = (queue - most).max(burst(&before, look)).clamp(0.0, came);
        if self.counts_from.is_none_or(|from| look.at >= from) {
            self.offered += came;
            self.refused += refused;
            if most >= limit {
                self.full += refused;
            }
        }
        self.queue = queue - refused;
        if look.observed || look.queue_length == 0 {
            self.queue = self.queue.min(look.queue_length.into());
        }
        let refuses = self.standing && places.is_some_and(|places| queue >= places);
        self.learning.take(self.queue, accepted, elapsed, refuses);
    }

    /// Far more than the server's rate says were accepted by workers that finish together, since all of them found somebody
    /// waiting. Before a short queue they would wait for their next ones.
    fn learn_turn(&mut self, accepted: f64, before: &Look, look: &Look) {
        let Some(per_second) = look.accepts.filter(|_| accepted > 0.0) else {
            return;
        };
        let elapsed = look.at.saturating_sub(before.at).as_secs_f64();
        let more = accepted - per_second * elapsed;
        let seen = if more > 0.5 * accepted { more } else { 0.0 };
        let fades = match (before.queue_length, look.queue_length) {
            (0, 0) => IDLE_TURN_FADES,
            _ => TURN_FADES,
        };
        self.turn = seen.max(self.turn * fades).min(TURN_MAX.into());
    }

    fn learn_stop(&mut self, accepted: f64, queue: f64, elapsed: Duration) {
        let goes_on = accepted > 0.0 || queue <= 0.0;
        (self.still, self.stood_still) = match goes_on {
            true => (Duration::ZERO, self.still),
            false => (self.still + elapsed, self.stood_still),
        };
    }

    /// By how much the server's last stop is longer than two turns of a pool's.
    fn stop_now(&self, turn: Duration) -> Duration {
        self.still.max(self.stood_still).saturating_sub(2 * turn)
    }

    /// As the guard's estimate (`bpf/lib/wait.h`) judges whether its queue stands.
    fn judge(&mut self, rule: &Rule, crossed: Duration, look: &Look, queue: f64, places: f64) {
        let per_second = look.accepts.unwrap_or(f64::INFINITY);
        let seconds = |n: f64| Duration::try_from_secs_f64(n / per_second).unwrap_or(STILL);
        let interval = rule.interval.max(seconds(STANDING_ACCEPTS as f64));
        if queue < places {
            if !self.standing || look.at.saturating_sub(self.last_above) >= interval {
                (self.standing, self.above_since) = (false, None);
                self.stop = Duration::ZERO;
            }
            return;
        }
        self.last_above = look.at;
        self.stop = self.stop.max(self.stop_now(seconds(self.turn.max(1.0))));
        let drains = queue < self.high - (self.high / 8.0).max(DRAINS.into());
        if self.above_since.is_none() || (!self.standing && drains) {
            self.catching_up = self.above_since.is_some() && !self.stop.is_zero();
            self.above_since = Some(crossed);
            self.high = queue;
        }
        if !self.catching_up {
            self.high = self.high.max(queue);
        }
        let above = look.at.saturating_sub(self.above_since.unwrap_or(look.at));
        let bearable = Duration::from_nanos(BEARABLE_NS);
        let catch_up = CATCH_UP * self.stop.min(rule.interval);
        let patience = rule.interval.max(catch_up.min(bearable));
        let bears = seconds(queue) < bearable;
        self.standing |= above >= patience && (above >= interval || !bears);
    }

    /// Connections that the queue was asked for.
    pub fn offered(&self) -> u64 {
        self.offered.round() as u64
    }

    /// Of them, those that would be refused.
    pub fn refused(&self) -> u64 {
        self.refused.round() as u64
    }

    /// Of the refused ones, those for which there would be no place in the listen queue.
    pub fn refused_full(&self) -> u64 {
        self.full.round().min(self.refused.round()) as u64
    }

    /// What enforcement would have done, with what is over a class's rate.
    pub fn would(&self, over_rate: u64) -> Would {
        Would {
            offered: self.offered() + over_rate,
            refused: self.refused() + over_rate,
        }
    }

    /// The share of the offered ones that would be refused, 0 to 1; 0 of none.
    pub fn share(&self) -> f64 {
        match self.offered > 0.0 {
            true => self.refused / self.offered,
            false => 0.0,
        }
    }
}

/// How few keep the server busy, learnt of the queue that would be as the guard's estimate learns it of the one there is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Learning {
    least: u32,
    /// Of the running sample: accepts, its time, the part in which the queue was empty, whether it refused, and the shortest
    /// queue.
    accepts: f64,
    elapsed: Duration,
    idle: Duration,
    refused: bool,
    low: f64,
}

impl Learning {
    fn least(&self) -> u32 {
        self.least.max(LEAST_MIN)
    }

    fn take(&mut self, queue: f64, accepted: f64, elapsed: Duration, refuses: bool) {
        self.low = match self.elapsed.is_zero() {
            true => queue,
            false => self.low.min(queue),
        };
        self.accepts += accepted;
        self.elapsed += elapsed;
        self.refused |= refuses;
        if queue < 1.0 {
            self.idle += elapsed;
        }
        if self.accepts < SAMPLE_ACCEPTS.into() {
            return;
        }
        let least = self.least();
        let learnt = match self.refused {
            true if self.low >= 2.0 => least - ((self.low / 2.0) as u32).min(least),
            true if self.idle > self.elapsed / 8 => (least + least / 2 + 1).min(LEAST_MAX),
            _ => self.least,
        };
        *self = Learning {
            least: learnt,
            ..Learning::default()
        };
    }
}

/// What left the queue between two looks.
fn accepted(before: &Look, look: &Look, came: f64) -> f64 {
    if let (Some(before), Some(now)) = (before.accepted, look.accepted) {
        let gone = now - before;
        // A count may lack those of an interface that has gone since: then it says nothing. Else it falls by no more than wait.
        if gone >= -i64::from(look.queue_length) {
            return gone as f64;
        }
    }
    let is_busy = before.queue_length > 0 && look.queue_length > 0;
    let elapsed = look.at.saturating_sub(before.at).as_secs_f64();
    let accepts = look.accepts.filter(|_| is_busy);
    accepts.map_or(came, |per_second| per_second * elapsed)
}

/// So many may wait; `None`: the server's speed is not known. Before a server that has stopped, as few as keep it busy.
fn places(least: u32, target: Duration, look: &Look) -> Option<f64> {
    let kept = f64::from(least);
    match look.accepts {
        Some(_) if has_stopped(target, look) => Some(kept),
        Some(per_second) => Some(kept.max(target.as_secs_f64() * per_second)),
        None => (look.wait >= Some(target)).then_some(kept),
    }
}

/// Whether clients wait for longer than the queue says: the server accepts nothing.
fn has_stopped(target: Duration, look: &Look) -> bool {
    let known = look
        .accepts
        .map_or(0.0, |per_second| f64::from(look.queue_length) / per_second);
    let wait = look.wait.unwrap_or_default().as_secs_f64();
    look.queue_length > 0 && wait >= known + target.as_secs_f64()
}

/// A burst may fill and leave the queue between two looks. What it found is what it would have found.
fn burst(before: &Look, look: &Look) -> f64 {
    let is_short = |look: &Look| look.queue_length <= look.queue_limit / 2;
    match is_short(before) && is_short(look) {
        true => (look.full - before.full).max(0) as f64,
        false => 0.0,
    }
}

#[cfg(test)]
mod worlds;

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        target: Some(Duration::from_millis(20)),
        interval: Duration::from_millis(200),
        least: 0,
    };

    /// Looks at a server four times a second.
    struct Server {
        look: Look,
        forecast: Forecast,
    }

    impl Server {
        fn new(accepts: f64) -> Server {
            let mut server = Server {
                look: Look {
                    accepted: Some(0),
                    queue_limit: 511,
                    accepts: Some(accepts),
                    observed: true,
                    ..Look::default()
                },
                forecast: Forecast::default(),
            };
            server.forecast.take(&RULE, &server.look);
            server
        }

        fn quarter(&mut self, came: i64, accepted: i64, queue_length: u32) {
            self.look.at += Duration::from_millis(250);
            self.look.offered += came;
            self.look.accepted = self.look.accepted.map(|n| n + accepted);
            self.look.queue_length = queue_length;
            self.forecast.take(&RULE, &self.look);
        }
    }

    #[test]
    fn of_a_queue_that_stands_what_the_server_does_not_accept_would_be_refused() {
        let mut server = Server::new(1000.0);
        for _ in 0..40 {
            server.quarter(500, 250, 511);
        }
        let share = server.forecast.share();
        assert!((0.45..=0.5).contains(&share), "{share}");
        // It drains, and is idle then.
        for queue in [250, 0, 0, 0] {
            server.quarter(10, 260, queue);
        }
        let (offered, refused) = (server.forecast.offered(), server.forecast.refused());
        for _ in 0..40 {
            server.quarter(200, 200, 3);
        }
        assert_eq!(server.forecast.refused(), refused, "below its capacity");
        assert_eq!(server.forecast.offered(), offered + 8000);
    }

    #[test]
    fn repeats_of_syns_from_before_the_looks_began_are_not_counted() {
        let look = Look {
            queue_length: 511,
            ..Server::new(1000.0).look
        };
        let mut server = Server {
            look,
            forecast: Forecast::default(),
        };
        server.forecast.take(&RULE, &server.look);
        // 100/s more than come, for the first 8 s.
        for _ in 0..31 {
            server.quarter(275, 100, 511);
        }
        assert_eq!(server.forecast.offered(), 0);
        for _ in 0..100 {
            server.quarter(250, 100, 511);
        }
        assert_eq!(server.forecast.offered(), 25_000);
        let share = server.forecast.share();
        assert!((0.59..=0.61).contains(&share), "{share}");
    }

    #[test]
    fn a_burst_is_refused_as_far_as_there_was_no_place_for_it() {
        let mut server = Server::new(1000.0);
        server.quarter(400, 250, 150);
        server.quarter(10, 160, 0);
        assert_eq!(server.forecast.refused(), 0, "it drains");
        server.look.full += 30;
        server.quarter(600, 600, 0);
        assert_eq!(server.forecast.refused(), 30);
    }

    #[test]
    fn accepts_are_not_taken_back_when_an_interface_goes_with_its_count() {
        let mut server = Server::new(1000.0);
        for _ in 0..8 {
            server.quarter(200, 200, 3);
        }
        server.quarter(200, -500_000, 3);
        for _ in 0..40 {
            server.quarter(200, 200, 3);
        }
        assert_eq!(server.forecast.refused(), 0);
    }

    #[test]
    fn a_server_that_stands_still_would_keep_few() {
        let mut server = Server::new(4.0);
        for quarter in 1..=40 {
            server.look.wait = Some(Duration::from_millis(250 * quarter));
            server.quarter(4, 0, 4 * quarter as u32);
        }
        // Of 160, those of the second until it is known to have stopped, and of the one until its queue stands.
        let refused = server.forecast.refused();
        assert!((120..=150).contains(&refused), "{refused}");
    }
}
