//! How many requests a server may have before weir refuses more at the SYN: as many as it answers within the target, or
//! within twice its least residence where that is longer.
//!
//! *Armed* it refuses: once more than the limit have been outstanding for a while, and until none was refused for some
//! seconds and half of the limit is free. What the server answers in a second (C) is learnt while it is busy; the least
//! residence while it is not. Where requests stay long though no more than the limit are outstanding, a *trial* doubles it: a
//! server that then answers more works on all of them at once, and needs them; if it does not, they queued.
//!
//! Where it begins, nothing says whether what is outstanding is a queue. Only if it grows it is.
//!
//! Between two passes the guard counts: so many may come now ([`Gate::room`]), and one more for each answer that the server
//! gives at its rate.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::gate::Gate;
use super::{FEW, GROWN, Pass, Purpose, Window};

/// Over the limit for so long, it is a queue and no burst.
const ARMS_AFTER: Duration = Duration::from_millis(200);
/// And at once with so many more: so large a burst is let in.
const BURST: f64 = 100.0;
/// So long after the last refusal the limit is lifted.
const DISARMS_AFTER: Duration = Duration::from_secs(5);
/// The rate of answers is of about so many.
const ANSWERS: f64 = 40.0;
/// The least residence is of so many, or of as many as come in this time: the least of shorter ones would be chance's.
const LEAST_ANSWERS: u64 = 200;
const LEAST_SPAN: Duration = Duration::from_secs(10);
/// What was learnt of a server that was not busy fades with this time.
const FADES: Duration = Duration::from_secs(60);
/// Over so many bearable residences, those at the limit are worth a trial.
const TRIAL_OVER: f64 = 1.5;
/// So much more must the server answer in it.
const TRIAL_GAIN: f64 = 1.3;
/// The first comes so long after one that failed, and each further twice as long.
const TRIAL_EVERY: Duration = Duration::from_secs(10);
const TRIAL_SELDOM: Duration = Duration::from_secs(300);
/// Of the limit, so many are at least and at most outstanding when it decides.
const AT_LIMIT: std::ops::RangeInclusive<f64> = 0.6..=1.3;
/// Slower than this no server is taken to be, answers/s.
const SLOWEST: f64 = 0.5;
/// Of what it answers, so much may come however many are outstanding, and so many a second: how these are answered shows
/// whether others would wait.
const PROBES: f64 = 0.125;
const PROBES_PER_S: f64 = 1.0;
/// The most that is outstanding, by the mean, if it neither grows nor falls.
const EVEN: f64 = 1.5;
/// A window of so many residences has the same at both ends.
const TURNS: f64 = 3.0;
/// Windows without growth, and a time, after which what is outstanding is taken for work.
const STEADY: u32 = 3;
const STEADY_FOR: Duration = Duration::from_secs(2);
/// A server whose requests stay for so many targets without a queue has clients that wait: long polls, or long work.
const SLOW: f64 = 10.0;
/// Where the least residence is not known, requests that stay for so many may be such, or a queue.
const UNKNOWN_SLOW: f64 = 40.0;
/// If it refuses in vain for so long, it may be mistaken, and lets all in for a moment.
const IN_VAIN: Duration = Duration::from_secs(60);
const OPEN_FOR: Duration = Duration::from_secs(5);

/// A trial under way.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    /// The least residence and the answers/s before it.
    base: f64,
    capacity: f64,
    /// Windows that have ended in it, without the first, which saw both limits.
    seen: Window,
    windows: u32,
}

/// The beginning, when the least residence is not known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Beginning {
    since: Duration,
    /// The least that was outstanding, and when.
    least: f64,
    at: Duration,
    windows: u32,
}

/// The limit of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Limiter {
    /// s
    target: f64,
    /// The least residence, s; 0: not known.
    base: f64,
    /// Answers/s that it is capable of; 0: not known.
    capacity: f64,
    beginning: Option<Beginning>,
    over_since: Option<Duration>,
    armed: bool,
    refused: u64,
    refused_at: Duration,
    trial: Option<Trial>,
    /// Whether requests stayed long at the limit in the last window: in a single one, chance makes them.
    long: bool,
    /// The next one, and how long after one that fails.
    trial_due: Duration,
    trial_every: Duration,
    window_at: Duration,
    /// The residence of the last window, s.
    stays: f64,
    /// Answers, ever.
    turns: u64,
    /// The last pass, and connections that had opened by then, ever.
    passed: Duration,
    opened: u64,
    /// Connections that may come however many requests are outstanding.
    probes: f64,
    /// While it refuses: when that was last of use, and the least that was outstanding.
    of_use: Duration,
    low: f64,
    /// It lets all in until then.
    open_until: Duration,
    /// The last windows together, until they say how long a request stays.
    calm: Window,
}

impl Limiter {
    /// Lets all in.
    pub fn new(target: Duration) -> Limiter {
        Limiter {
            target: target.as_secs_f64(),
            base: 0.0,
            capacity: 0.0,
            beginning: None,
            over_since: None,
            armed: false,
            refused: 0,
            refused_at: Duration::ZERO,
            trial: None,
            long: false,
            trial_due: Duration::ZERO,
            trial_every: TRIAL_EVERY,
            window_at: Duration::ZERO,
            stays: 0.0,
            turns: 0,
            passed: Duration::ZERO,
            opened: 0,
            probes: 0.0,
            of_use: Duration::ZERO,
            low: 0.0,
            open_until: Duration::ZERO,
            calm: Window::default(),
        }
    }

    /// The same server, for another target, in passes whose counts may begin anew.
    pub fn counted_anew(mut self, target: Duration) -> Limiter {
        self.target = target.as_secs_f64();
        (self.turns, self.opened) = (0, 0);
        self
    }

    /// Outstanding requests from which on it refuses.
    pub fn limit(&self) -> f64 {
        FEW.max(self.capacity * self.bearable())
    }

    /// Whether it refuses what is over the limit.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// How often it is to be asked.
    pub fn purpose(&self) -> Purpose {
        match self.armed {
            true => Purpose::Refuse,
            false if self.over_since.is_some() => Purpose::Decide,
            false => Purpose::Ready,
        }
    }

    /// How long a request may stay, s.
    fn bearable(&self) -> f64 {
        self.target.max(2.0 * self.base)
    }

    /// Takes a pass in, by which so many requests are outstanding or about to come. So many connections were refused, ever.
    /// `None`: all may come in.
    pub fn pass(&mut self, pass: &Pass, outstanding: f64, refused: u64) -> Option<Gate> {
        let at = pass.at;
        let answers = pass.turns > std::mem::replace(&mut self.turns, pass.turns);
        if refused != std::mem::replace(&mut self.refused, refused) {
            self.refused_at = at;
        }
        match self.armed {
            false => self.arm(at, outstanding),
            true => self.disarm(at, outstanding, answers),
        }
        self.earn_probes(pass);
        let limit = self.limit();
        self.armed.then(|| Gate {
            room: limit - outstanding,
            per_s: self.capacity.max(SLOWEST),
            burst: limit,
            probes: self.probes,
            probes_per_s: self.probes_per_s(),
        })
    }

    fn probes_per_s(&self) -> f64 {
        (self.capacity * PROBES).max(PROBES_PER_S)
    }

    /// Connections that may come now however many requests are outstanding.
    fn earn_probes(&mut self, pass: &Pass) {
        let span = pass
            .at
            .saturating_sub(std::mem::replace(&mut self.passed, pass.at));
        let opened = pass
            .opened
            .saturating_sub(std::mem::replace(&mut self.opened, pass.opened));
        let earned = self.probes_per_s() * span.as_secs_f64().min(1.0);
        self.probes = (self.probes + earned - opened as f64).clamp(0.0, earned.max(1.0));
    }

    fn arm(&mut self, at: Duration, outstanding: f64) {
        let open = at < self.open_until;
        if open || outstanding <= self.limit() || !self.is_queue(at, outstanding) {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(at);
        let sure = self.base > 0.0 && outstanding > self.limit() + BURST;
        if sure || at - since >= ARMS_AFTER {
            self.armed = true;
            self.refused_at = at;
            (self.of_use, self.low) = (at, outstanding);
        }
    }

    fn is_slow(&self) -> bool {
        let base = self.trial.map_or(self.base, |trial| trial.base);
        base > SLOW * self.target
    }

    /// Whether what is over the limit is a queue, as far as is known.
    fn is_queue(&mut self, at: Duration, outstanding: f64) -> bool {
        if self.base > 0.0 {
            return !self.is_slow();
        }
        if self.stays > UNKNOWN_SLOW * self.target {
            return false;
        }
        // Of a server that has answered nothing yet nothing is known.
        let Some(beginning) = &mut self.beginning else {
            return false;
        };
        if outstanding < beginning.least {
            (beginning.least, beginning.at) = (outstanding, at);
        }
        let time = at.saturating_sub(beginning.at).as_secs_f64();
        let chance = GROWN * (2.0 * self.capacity * time).sqrt();
        outstanding - beginning.least > FEW + chance
    }

    fn disarm(&mut self, at: Duration, outstanding: f64, answers: bool) {
        let calm = at.saturating_sub(self.refused_at) >= DISARMS_AFTER;
        let in_vain = self.is_in_vain(at, outstanding, answers);
        if in_vain {
            self.open_until = at + OPEN_FOR;
            self.beginning = Some(Beginning {
                since: at,
                least: outstanding,
                at,
                windows: 0,
            });
        }
        if in_vain || self.is_slow() || calm && outstanding < self.limit() / 2.0 {
            self.armed = false;
            self.over_since = None;
            self.trial = None;
        }
    }

    /// Whether for long neither what is outstanding became less nor, at the limit, anything was answered: the server hangs,
    /// or what it has is no queue.
    fn is_in_vain(&mut self, at: Duration, outstanding: f64, answers: bool) -> bool {
        let falls = outstanding + FEW <= self.low;
        if falls || answers && outstanding <= self.limit() * AT_LIMIT.end() {
            (self.of_use, self.low) = (at, outstanding);
        }
        at.saturating_sub(self.of_use) >= IN_VAIN
    }

    /// Takes in a window that has ended.
    pub fn window(&mut self, at: Duration, window: &Window) {
        let span = at.saturating_sub(std::mem::replace(&mut self.window_at, at));
        self.stays = window.residence().unwrap_or_default().as_secs_f64();
        let Some(residence) = window.residence().filter(|_| window.turns > 0) else {
            return;
        };
        let residence = residence.as_secs_f64();
        self.learn_capacity(window, span);
        self.learn_base(at, window);
        match self.trial {
            Some(_) => self.judge_trial(at, window),
            None => self.begin_trial(at, window, residence),
        }
    }

    /// Whether the limit is what keeps more from being outstanding.
    fn is_at_limit(&self, window: &Window) -> bool {
        self.armed && AT_LIMIT.contains(&(window.outstanding() / self.limit()))
    }

    fn begin_trial(&mut self, at: Duration, window: &Window, residence: f64) {
        let long = residence > TRIAL_OVER * self.bearable() && self.is_at_limit(window);
        let again = std::mem::replace(&mut self.long, long);
        if !long || !again || at < self.trial_due {
            return;
        }
        self.long = false;
        self.trial = Some(Trial {
            base: self.base,
            capacity: self.capacity,
            seen: Window::default(),
            windows: 0,
        });
        self.base = residence;
        self.calm = Window::default();
    }

    fn judge_trial(&mut self, at: Duration, window: &Window) {
        let Some(trial) = &mut self.trial else { return };
        trial.windows += 1;
        if trial.windows > 1 {
            trial.seen.add(window);
        }
        if (trial.seen.turns as f64) < ANSWERS {
            return;
        }
        let trial = *trial;
        self.trial = None;
        let gains = trial.seen.answers_per_s() >= TRIAL_GAIN * trial.capacity;
        if gains || !self.armed {
            self.trial_every = TRIAL_EVERY;
            return;
        }
        self.base = trial.base;
        self.calm = Window::default();
        self.trial_due = at + self.trial_every;
        self.trial_every = (2 * self.trial_every).min(TRIAL_SELDOM);
    }

    fn learn_capacity(&mut self, window: &Window, span: Duration) {
        let seen = window.answers_per_s();
        let kept = (-span.as_secs_f64() / FADES.as_secs_f64()).exp();
        let faded = self.capacity * kept;
        if self.armed && window.outstanding() >= self.limit() / 2.0 {
            let answers = window.turns as f64;
            let learnt = self.capacity + answers / (answers + ANSWERS) * (seen - self.capacity);
            // Work for clients that have gone is not seen.
            self.capacity = match window.is_given_up() {
                true => learnt.max(faded),
                false => learnt,
            };
            return;
        }
        self.capacity = seen.max(faded);
    }

    /// A residence with the limit full is the limit's doing. Of few requests, chance makes some too short.
    fn learn_base(&mut self, at: Duration, window: &Window) {
        self.calm.add(window);
        let calm = self.calm;
        let residence = calm.residence().unwrap_or_default().as_secs_f64();
        // In a shorter time more come than go, even of a server that begins.
        let long = calm.span.as_secs_f64() >= TURNS * residence;
        if self.base == 0.0 && !self.armed {
            let beginning = self.beginning.get_or_insert(Beginning {
                since: at,
                least: f64::INFINITY,
                at,
                windows: 0,
            });
            beginning.windows += 1;
        }
        let many = calm.turns >= LEAST_ANSWERS || calm.span >= LEAST_SPAN;
        if !long || !many || (calm.turns as f64) < ANSWERS {
            return;
        }
        let free = f64::from(calm.peak) < self.limit();
        let steady = |one: Beginning| {
            let grows = self.over_since.is_some();
            one.windows > STEADY && at.saturating_sub(one.since) >= STEADY_FOR && !grows
        };
        let steady = self.beginning.is_some_and(steady);
        let even = f64::from(calm.peak) <= EVEN * calm.outstanding() + FEW;
        let known = self.base > 0.0;
        let even = even && !calm.is_given_up();
        if known && residence < self.base || !known && !self.armed && even && (free || steady) {
            self.base = residence;
        }
        self.calm = Window::default();
    }
}
