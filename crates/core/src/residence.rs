//! How long requests stay in a server, and whether its queue is inside: a server that accepts at once and then waits for a
//! database, an upstream or a semaphore has no queue where weir's other rules look.
//!
//! A request is *outstanding* from its last byte on until the first byte of its answer goes out. So many are outstanding
//! (L), so many are answered in a second (C), and so each stays L / C: its residence (W, Little's law). The connections'
//! own counters tell, in passes over the port's sockets (bpf/residence.bpf.c).
//!
//! Times are of any clock that does not go back, from any beginning.

mod answers;
mod gate;
mod limit;
mod overtaken;
mod pace;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use answers::ANSWER_CLASSES;
pub use gate::{GATE_HOLDS, Gate, GateState, RATE_SHIFT};
pub use limit::Limiter;
use overtaken::{Overtaken, Stretch};
pub use pace::{Purpose, pause};

/// No more than so many outstanding requests are a queue.
pub const FEW: f64 = 10.0;
/// A residence that counts as bearable, where the setting names none.
pub const DEFAULT_TARGET: Duration = Duration::from_millis(250);

/// Deviations of chance by which a queue has grown.
const GROWN: f64 = 4.0;
/// The least of a window.
const WINDOW_MIN: Duration = Duration::from_millis(200);
/// A window ends after this, whatever it has seen.
const WINDOW_MAX: Duration = Duration::from_secs(5);
/// And after this where residences are longer.
const WINDOW_LONGEST: Duration = Duration::from_secs(15);
/// Fewest answers and passes of a window.
const WINDOW_TURNS: u64 = 10;
const WINDOW_PASSES: u32 = 4;
/// What is shown to be outstanding is of so long a time: chance has evened out.
const SHOWN: Duration = Duration::from_secs(3);
/// And of so many passes, or of so many requests in all of them, unless they take this long.
const SHOWN_PASSES: u32 = 30;
const SHOWN_REQUESTS: f64 = 300.0;
const SHOWN_MAX: Duration = Duration::from_secs(10);
/// What is shown to be answered is of as long a time, and of so many answers.
const SHOWN_TURNS: u64 = 20;
/// Older requests are no queue but long polls, or halves: so long, and so many residences.
const AGE_MIN: Duration = Duration::from_secs(1);
const AGE_RESIDENCES: u32 = 8;
/// The least residence is of the last two of these.
const LEAST_OF: Duration = Duration::from_secs(300);
/// Looked at this seldom: the least of many that chance makes would be chance's.
const LEAST_EVERY: Duration = Duration::from_secs(5);
/// Fewest answers of which it is said that the signal is blind.
const BLIND_ANSWERS: u64 = 20;
/// Of fewer requests that are given up nothing follows.
const GIVEN_UP: f64 = 20.0;
/// An answer that took so many residences was not seen as outstanding.
const BLIND_RESIDENCES: u32 = 4;

/// A request that no answer has begun to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Since the last of it came.
    pub age: Duration,
    /// Its connection waits for accept().
    pub queued: bool,
}

/// What a pass over the sockets of a port has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// When.
    pub at: Duration,
    /// Whether anybody listens on the port.
    pub listening: bool,
    /// Connections that stand.
    pub connections: u32,
    /// Requests that were answered, ever, of connections that stand and that have ended. A connection that ends during the
    /// pass may count twice or not at all, until the next one.
    pub turns: u64,
    /// Requests whose connections have ended without an answer, ever, and not by the server: their clients have given up.
    pub given_up: u64,
    /// Connections that clients have established, ever: to the port, or to the fronts before it.
    pub opened: u64,
    /// Short answers on connections that have ended, ever, by the class of the ticks that they took.
    pub answers: [u64; ANSWER_CLASSES],
    /// Of them, those whose connections ended within a second.
    pub latest: [u64; ANSWER_CLASSES],
    /// Short answers since the pass before, among the first on connections that stand.
    pub first: [u64; ANSWER_CLASSES],
    /// Handshakes of clients under way, and their connections of the last second that have sent nothing yet.
    pub fresh: u32,
    /// Outstanding requests.
    pub requests: Vec<Request>,
}

/// What a stretch of time was like.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// How long.
    pub span: Duration,
    /// Outstanding requests, times seconds.
    outstanding_s: f64,
    /// Those of them whose connections wait for accept().
    queued_s: f64,
    /// Requests that were answered.
    pub turns: u64,
    /// Requests whose clients have given up.
    pub given_up: u64,
    /// The oldest that was outstanding at a pass.
    oldest: Duration,
    answers: [u64; ANSWER_CLASSES],
    passes: u32,
    /// The most that were outstanding at a pass.
    pub peak: u32,
}

impl Window {
    /// Outstanding requests on average (L), without long polls.
    pub fn outstanding(&self) -> f64 {
        self.outstanding_s / self.span.as_secs_f64().max(1e-9)
    }

    /// Of them, those on connections that wait for accept().
    pub fn queued(&self) -> f64 {
        self.queued_s / self.span.as_secs_f64().max(1e-9)
    }

    /// Answers in a second (C).
    pub fn answers_per_s(&self) -> f64 {
        self.turns as f64 / self.span.as_secs_f64().max(1e-9)
    }

    /// How long a request stays (W = L / C), as far as any has. `None`: none came.
    pub fn residence(&self) -> Option<Duration> {
        let seen = self.turns > 0 || self.outstanding_s > 0.0;
        seen.then(|| self.stays(self.answers_per_s()))
    }

    /// With so many answers/s. Requests that are given up have no answer, and of a queue that grows or of few answers
    /// L / C is longer than anything has taken.
    fn stays(&self, answers_per_s: f64) -> Duration {
        // A server that answers nothing keeps each at least as long as this.
        let answers_per_s = answers_per_s.max(1.0 / self.span.as_secs_f64().max(1e-9));
        let longest = self.oldest.max(AGE_MIN);
        Duration::from_secs_f64(self.outstanding() / answers_per_s).min(longest)
    }

    /// Whether so many gave up that it is no whim of theirs, but that the server does not come to their requests.
    pub fn is_given_up(&self) -> bool {
        are_given_up(self.given_up as f64, self.turns as f64)
    }

    fn add(&mut self, other: &Window) {
        self.span += other.span;
        self.outstanding_s += other.outstanding_s;
        self.queued_s += other.queued_s;
        self.turns += other.turns;
        self.given_up += other.given_up;
        self.oldest = self.oldest.max(other.oldest);
        for (to, n) in self.answers.iter_mut().zip(other.answers) {
            *to += n;
        }
        self.passes += other.passes;
        self.peak = self.peak.max(other.peak);
    }

    /// Whether it says enough, with residences as long as they were.
    fn is_whole(&self, residence: Option<Duration>) -> bool {
        let turn = residence.unwrap_or_default() * 3 / 2;
        let turn = turn.min(WINDOW_LONGEST);
        let enough = self.turns >= WINDOW_TURNS && self.passes >= WINDOW_PASSES;
        self.span >= WINDOW_MIN.max(turn) && enough || self.span >= WINDOW_MAX.max(turn)
    }

    /// Whether most short answers took much longer than requests were seen to be outstanding.
    fn is_blind(&self, residence: Duration, tick: Duration) -> bool {
        let long = residence * BLIND_RESIDENCES + tick * 2;
        let least = |class: usize| tick * ((1u32 << class) - 1);
        let classes = self.answers.iter().enumerate();
        let late = classes.filter(|(class, _)| least(*class) > long);
        let late: u64 = late.map(|(_, n)| n).sum();
        let all: u64 = self.answers.iter().sum();
        all >= BLIND_ANSWERS && late * 2 >= all
    }
}

/// Whether a quarter of the requests that have ended had no answer.
fn are_given_up(given_up: f64, answered: f64) -> bool {
    given_up >= GIVEN_UP && 3.0 * given_up >= answered
}

/// Where the clients of a port wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queue {
    /// There is no queue that stands.
    #[default]
    None,
    /// In the server: it has accepted their connections.
    Inside,
    /// In the listen queue.
    Listen,
}

/// What is known of a port's requests now.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Whether anybody listens on the port.
    pub listening: bool,
    /// Connections that stand.
    pub connections: u32,
    /// Outstanding requests on average (L), without those of `old`.
    pub outstanding: f64,
    /// Of them, those whose connections wait for accept().
    pub queued: f64,
    /// Requests that are too old to be a queue: long polls, and halves.
    pub old: u32,
    /// Answers in a second (C).
    pub answers_per_s: f64,
    /// How long a request stays (W); `None`: none came.
    pub residence: Option<Duration>,
    /// The least residence of the last minutes.
    pub least: Option<Duration>,
    /// Where clients wait.
    pub queue: Queue,
    /// The connections do not show what is outstanding: the answers come much later than that.
    pub blind: bool,
}

/// Makes estimates of passes.
#[derive(Debug, Clone)]
pub struct Residence {
    tick: Duration,
    target: Duration,
    last: Option<Last>,
    window: Window,
    /// Of the last window.
    residence: Option<Duration>,
    /// Whether clients gave up in it.
    gave_up: bool,
    recent: Recent,
    shown: Estimate,
    least: Least,
    arrival: Arrival,
    overtaken: Overtaken,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    at: Duration,
    turns: u64,
    answers: [u64; ANSWER_CLASSES],
    latest: [u64; ANSWER_CLASSES],
    outstanding: u32,
    queued: u32,
    oldest: Duration,
    given_up: u64,
    opened: u64,
    fresh: u32,
    /// Requests that have come, ever.
    came: u64,
}

impl Residence {
    /// Nothing is known yet. `tick`: of the kernel's clock, in which answers are classed; `target`: residences that are
    /// bearable.
    pub fn new(tick: Duration, target: Duration) -> Residence {
        Residence {
            tick,
            target,
            last: None,
            window: Window::default(),
            residence: None,
            gave_up: false,
            recent: Recent::default(),
            shown: Estimate::default(),
            least: Least::default(),
            arrival: Arrival::default(),
            overtaken: Overtaken::default(),
        }
    }

    /// Of an upstream: clients come to fronts before it, each of which asks it on connections of its own.
    pub fn behind_fronts(mut self) -> Residence {
        self.arrival.of_fronts = true;
        self
    }

    /// The same server, for another target, in passes whose counts may begin anew.
    pub fn counted_anew(mut self, target: Duration) -> Residence {
        self.target = target;
        self.last = None;
        self
    }

    /// What is known now.
    pub fn estimate(&self) -> Estimate {
        self.shown
    }

    /// Takes a pass in. Gives the window that has ended with it, if one has.
    pub fn take(&mut self, pass: &Pass) -> Option<Window> {
        let cut = self.age_cut();
        let young = |request: &&Request| request.age < cut;
        let outstanding = pass.requests.iter().filter(young);
        let mut ages: Vec<Duration> = outstanding.clone().map(|one| one.age).collect();
        let now = Last {
            at: pass.at,
            turns: pass.turns,
            answers: pass.answers,
            latest: pass.latest,
            outstanding: ages.len() as u32,
            oldest: ages.iter().max().copied().unwrap_or_default(),
            queued: outstanding.filter(|request| request.queued).count() as u32,
            given_up: pass.given_up,
            opened: pass.opened,
            fresh: pass.fresh,
            came: pass.turns + pass.given_up + pass.requests.len() as u64,
        };
        self.shown.listening = pass.listening;
        self.shown.connections = pass.connections;
        self.shown.old = pass.requests.len() as u32 - now.outstanding;
        let last = self.last.replace(now)?;
        self.arrival.note(&last, &now);
        let stretch = between(&last, &now);
        let mut latest = growth(&last.latest, &now.latest);
        for (all, first) in latest.iter_mut().zip(pass.first) {
            *all += first;
        }
        let answered = Stretch {
            span: stretch.span,
            answers: latest,
            in_vain: match stretch.turns {
                0 => now.came.saturating_sub(last.came),
                _ => 0,
            },
            many: ages.len() as f64 > FEW,
            waited: median(&mut ages),
        };
        self.overtaken.note(&answered, self.tick);
        if self.recent.add(&stretch) {
            self.show(pass.at);
        }
        self.window.add(&stretch);
        // Where clients gave up, nothing stays any more for as long as before.
        let residence = match self.gave_up || self.window.is_given_up() {
            true => self.residence.min(Some(now.oldest)),
            false => self.residence,
        };
        if !self.window.is_whole(residence) {
            return None;
        }
        let ended = std::mem::take(&mut self.window);
        self.residence = ended.residence();
        self.gave_up = ended.is_given_up();
        Some(ended)
    }

    /// So many were outstanding at the last pass, without long polls; and connections that are about to send a request
    /// beyond those that always are. Anybody can begin handshakes: of those not more than half of what is bearable.
    pub fn outstanding(&self) -> f64 {
        let Some(last) = self.last else { return 0.0 };
        let more = self.arrival.more(last.fresh);
        f64::from(last.outstanding) + more.clamp(0.0, self.bearable() / 2.0)
    }

    /// What a limit lets in, in connections. What is not seen is no reason to refuse anybody.
    pub fn gate(&self, gate: Option<Gate>) -> Option<Gate> {
        let seen = self.shown.listening && !self.shown.blind;
        let gate = gate.filter(|_| seen && !self.overtaken.by_most())?;
        Some(gate.for_connections(self.arrival.each()))
    }

    /// Requests of this age and older count as idle.
    pub fn age_cut(&self) -> Duration {
        match self.residence {
            Some(residence) => AGE_MIN.max(residence * AGE_RESIDENCES),
            None => Duration::MAX,
        }
    }

    /// So many outstanding requests are served within the target, or within twice the least residence.
    pub fn bearable(&self) -> f64 {
        let least = self.shown.least.unwrap_or_default();
        let time = self.target.max(least * 2).as_secs_f64();
        FEW.max(self.shown.answers_per_s * time)
    }

    fn show(&mut self, at: Duration) {
        let short = self.recent.last(|all| {
            let seen = f64::from(all.passes) * all.outstanding();
            let many = all.passes >= SHOWN_PASSES || seen >= SHOWN_REQUESTS;
            all.span >= SHOWN && many || all.span >= SHOWN_MAX
        });
        let turn = short.residence().unwrap_or_default() * 3 / 2;
        let long = self.recent.last(|all| {
            all.span >= SHOWN.max(turn) && all.turns >= SHOWN_TURNS || all.span >= WINDOW_LONGEST
        });
        // Of a queue that grows, what is outstanding now.
        let residence = short.residence();
        let residence = residence.map(|_| short.stays(long.answers_per_s()));
        let known = long.turns >= SHOWN_TURNS && short.span >= SHOWN;
        let queues = long.is_given_up() || self.recent.grows();
        if let Some(residence) = residence.filter(|_| known && !queues) {
            self.least.note(at, residence);
        }
        // Answers of a queue that has just gone took as long as it was.
        let before = self.recent.last(|_| false).residence();
        let longest = residence.max(before).unwrap_or_default();
        self.shown = Estimate {
            outstanding: short.outstanding(),
            queued: short.queued(),
            answers_per_s: long.answers_per_s(),
            residence,
            least: self.least.get(),
            blind: long.is_blind(longest, self.tick),
            ..self.shown
        };
        self.shown.queue = self.queue();
    }

    fn queue(&self) -> Queue {
        let all = self.shown.outstanding;
        match self.shown.queued > all / 2.0 {
            _ if all <= self.bearable() || self.overtaken.by_most() => Queue::None,
            true => Queue::Listen,
            false => Queue::Inside,
        }
    }
}

/// The clients between the SYN and the request: Little's law again.
///
/// Those that have sent nothing yet are seen. What follows at a front (the TLS handshake, a request that comes in) is not; but so
/// many connections open there, and so many requests come to the server behind it. Where more open than the requests say, by
/// the usual number of requests for each, they are on the way.
#[derive(Debug, Clone, Copy, Default)]
struct Arrival {
    /// Clients come to a front.
    of_fronts: bool,
    /// Fresh connections, times seconds; and the time: each fades.
    fresh_s: f64,
    span: f64,
    /// Connections that opened at the front, and requests that came: each fades, slowly.
    opened: f64,
    came: f64,
    /// Connections on the way whose requests are yet to come, beyond those that always are; fades.
    on_the_way: f64,
}

/// With this time, s.
const ARRIVAL_FADES: f64 = 2.0;
/// And how many requests come for each connection with this, s.
const SHARE_FADES: f64 = 20.0;
/// Of fewer connections it is not known.
const SHARE_OF: f64 = 20.0;
const SHARE_LEAST: f64 = 0.01;

impl Arrival {
    fn note(&mut self, last: &Last, now: &Last) {
        let span = now.at.saturating_sub(last.at).as_secs_f64();
        let kept = (-span / ARRIVAL_FADES).exp();
        self.fresh_s = self.fresh_s * kept + f64::from(last.fresh + now.fresh) / 2.0 * span;
        self.span = self.span * kept + span;
        if self.of_fronts {
            let opened = now.opened.saturating_sub(last.opened) as f64;
            // An answer may count only when the next one has.
            let came = now.came as f64 - last.came as f64;
            self.on_the_way *= kept;
            self.follow(opened, came, (-span / SHARE_FADES).exp());
        }
    }

    fn follow(&mut self, opened: f64, came: f64, kept: f64) {
        self.opened = self.opened * kept + opened;
        self.came = self.came * kept + came;
        // Of a connection that asks many times only the first request is on the way.
        let each = self.each();
        self.on_the_way += each.min(1.0) * (opened - came / each);
    }

    /// Requests for each connection.
    fn each(&self) -> f64 {
        if self.opened < SHARE_OF {
            return 1.0;
        }
        (self.came / self.opened).max(SHARE_LEAST)
    }

    /// Requests on the way beyond those that always are, while so many connections are fresh.
    fn more(&self, fresh: u32) -> f64 {
        let usual = self.fresh_s / self.span.max(1e-9);
        (f64::from(fresh) - usual) * self.each().min(1.0) + self.on_the_way.max(0.0)
    }
}

/// Zero of none.
fn median(ages: &mut [Duration]) -> Duration {
    match ages.len() {
        0 => Duration::ZERO,
        n => *ages.select_nth_unstable(n / 2).1,
    }
}

fn growth(last: &[u64; ANSWER_CLASSES], now: &[u64; ANSWER_CLASSES]) -> [u64; ANSWER_CLASSES] {
    std::array::from_fn(|n| now[n].saturating_sub(last[n]))
}

/// What was between two passes: what is outstanding changes evenly.
fn between(last: &Last, now: &Last) -> Window {
    let span = now.at.saturating_sub(last.at);
    let mean = |a: u32, b: u32| f64::from(a + b) / 2.0 * span.as_secs_f64();
    Window {
        span,
        outstanding_s: mean(last.outstanding, now.outstanding),
        queued_s: mean(last.queued, now.queued),
        turns: now.turns.saturating_sub(last.turns),
        given_up: now.given_up.saturating_sub(last.given_up),
        oldest: last.oldest.max(now.oldest),
        answers: growth(&last.answers, &now.answers),
        passes: 1,
        peak: last.outstanding.max(now.outstanding),
    }
}

/// The last seconds, in slices.
#[derive(Debug, Clone, Default)]
struct Recent {
    slices: VecDeque<Window>,
    running: Window,
}

/// Of this length.
const SLICE: Duration = Duration::from_millis(250);
/// In so many of them it is seen whether what is outstanding grows.
const GROWS_IN: usize = 6;
/// So many are more than anything asks for.
const SLICES: usize = 64;

impl Recent {
    /// Whether a slice has ended with it.
    fn add(&mut self, stretch: &Window) -> bool {
        self.running.add(stretch);
        if self.running.span < SLICE {
            return false;
        }
        self.slices.push_front(std::mem::take(&mut self.running));
        self.slices.truncate(SLICES);
        true
    }

    /// Whether more is outstanding than shortly before, by more than chance explains.
    fn grows(&self) -> bool {
        let mut slices = self.slices.iter();
        let mut half = |all: Window, slice: &Window| {
            let mut all = all;
            all.add(slice);
            all
        };
        let now = slices
            .by_ref()
            .take(GROWS_IN)
            .fold(Window::default(), &mut half);
        let before = slices.take(GROWS_IN).fold(Window::default(), &mut half);
        let came = (now.turns + now.given_up) as f64;
        let chance = GROWN * (2.0 * came).sqrt();
        before.passes > 0 && now.outstanding() - before.outstanding() > FEW + chance
    }

    /// The last slices together, as many as are enough.
    fn last(&self, enough: impl Fn(&Window) -> bool) -> Window {
        let mut all = Window::default();
        for slice in &self.slices {
            all.add(slice);
            if enough(&all) {
                break;
            }
        }
        all
    }
}

/// The least residence of the last minutes: of the running stretch, and of the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Least {
    since: Duration,
    noted: Duration,
    before: Option<Duration>,
    running: Option<Duration>,
}

impl Least {
    fn note(&mut self, at: Duration, residence: Duration) {
        if self.running.is_some() && at.saturating_sub(self.noted) < LEAST_EVERY {
            return;
        }
        self.noted = at;
        if at.saturating_sub(self.since) >= LEAST_OF {
            *self = Least {
                since: at,
                noted: at,
                before: self
                    .running
                    .filter(|_| at.saturating_sub(self.since) < 2 * LEAST_OF),
                running: None,
            };
        }
        let running = self.running.map_or(residence, |least| least.min(residence));
        self.running = Some(running);
    }

    fn get(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.running).min()
    }
}
