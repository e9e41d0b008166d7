//! A server that accepts at once and queues inside, in virtual time: clients, workers, long polls, and passes over the
//! sockets. Everything random comes from one seed.

mod classes;
mod talkers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::*;
use classes::Classes;
use talkers::Talkers;
use weir_models::gate::GuardGate;
use weir_models::random::Random;
use weir_models::talk::answer_class;

/// Of the kernel's clock.
pub const TICK: Duration = Duration::from_millis(4);
/// Clients give up after this.
const PATIENCE_NS: u64 = 10_000_000_000;
/// What a pass costs, and a socket more.
const PASS: Duration = Duration::from_micros(800);
const SOCKET: Duration = Duration::from_nanos(500);

/// A figure at a time, s.
pub type At = Box<dyn Fn(f64) -> f64>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    Done(u64),
    /// The front has a connection that was let in.
    Opens(u64),
    /// The request of a connection that was let in.
    Request(u64),
    Pass,
    Socket,
    /// A client of long polls comes.
    Poller,
    /// A client that leaves at this time polls.
    Poll(u64),
    /// By an answer, or because the client leaves.
    PollEnds {
        id: u64,
        answered: bool,
        leaves: u64,
    },
    /// The controller looks.
    Look,
    /// A client that has waited for long enough closes its connection.
    GivesUp(u64),
}

/// What the server does with the requests of clients that have gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// They never close their connections.
    Stay,
    /// It leaves them out.
    Skipped,
    /// It works on them as on any other.
    WorkedOn,
}

/// What has happened in truth, since [`World::begin`].
#[derive(Debug, Clone, Default)]
pub struct Truth {
    pub offered: u64,
    pub served: u64,
    pub refused: u64,
    /// Of the high class.
    pub high: u64,
    pub high_refused: u64,
    pub timed_out: u64,
    /// Long polls that came, and were refused.
    pub polls: u64,
    pub polls_refused: u64,
    /// Of the served, s.
    residences_s: f64,
    outstanding_s: f64,
    span_s: f64,
    /// Of each that was served, s.
    stays: Vec<f64>,
}

impl Truth {
    /// The residence that this share of the served had at most, s.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut stays = self.stays.clone();
        stays.sort_by(f64::total_cmp);
        let at = (stays.len() as f64 * share) as usize;
        stays
            .get(at.min(stays.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    }

    pub fn outstanding(&self) -> f64 {
        self.outstanding_s / self.span_s
    }

    pub fn residence_s(&self) -> f64 {
        self.residences_s / self.served as f64
    }

    pub fn per_s(&self) -> f64 {
        self.served as f64 / self.span_s
    }
}

pub struct World {
    random: Random,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    workers: usize,
    /// Mean time of a service, s.
    service: At,
    /// Whether each service takes just that.
    even: bool,
    rate: At,
    polling: Option<Polling>,
    /// Requests in the server, by number: when they came.
    inside: BTreeMap<u64, u64>,
    waiting: VecDeque<u64>,
    busy: usize,
    pub gone: Gone,
    given_up: u64,
    polls: BTreeMap<u64, u64>,
    next: u64,
    turns: u64,
    opened: u64,
    pub watch: Residence,
    pub windows: Vec<Window>,
    pub truth: Truth,
    /// It refuses, and what it last said, when, and how many have come in since.
    pub limiter: Option<Limiter>,
    /// Whether it refuses, or only learns.
    pub enforces: bool,
    gate: GuardGate,
    refused: u64,
    /// From the SYN to the request, s.
    pub round_trip: f64,
    /// Let in, without a request yet.
    fresh: u32,
    /// What is before the server.
    front: Option<Front>,
    /// Whether the sockets show an answer as begun as soon as the request is there.
    pub tickets: bool,
    answers: [u64; ANSWER_CLASSES],
    /// Where the controller holds classes.
    classes: Option<Classes>,
    talkers: Talkers,
    /// WebSockets that are opened in a second.
    sockets: f64,
}

/// Clients that wait for news, each on a connection for each poll. A server of them is never busy.
pub struct Polling {
    /// So many come in a second, and stay for so long on average, s.
    pub rate: At,
    pub stays: f64,
    /// The server answers when there is news, after this time on average, or when it has held a poll for so long, s.
    pub news: f64,
    pub holds: f64,
    /// The client says something again and again that is not answered, s: WebSockets.
    pub says_every: f64,
}

impl Polling {
    /// Polls of which each is answered after half a minute, by so many clients that come once and for all.
    pub fn of(rate: At, stays: f64) -> Polling {
        Polling {
            rate,
            stays,
            news: f64::INFINITY,
            holds: LONG_POLL_S,
            says_every: f64::INFINITY,
        }
    }
}

const LONG_POLL_S: f64 = 30.0;
/// A client that is refused tries again after this, s.
const POLL_AGAIN_S: f64 = 1.0;
const FOR_EVER: u64 = u64::MAX;

/// A program that takes the connections, and asks the server.
#[derive(Debug, Clone, Copy)]
pub struct Front {
    /// From the end of the TCP handshake to the request, s.
    pub handshake: f64,
    /// Of the connections, so many ask for what the server has.
    pub share: f64,
    /// Requests of each of them, one of these after the other, s.
    pub requests: u32,
    pub every: f64,
}

impl World {
    pub fn new(seed: u64, workers: usize, service: At, rate: At) -> World {
        let mut world = World {
            random: Random::new(seed),
            now_ns: 0,
            events: BinaryHeap::new(),
            workers,
            service,
            even: true,
            rate,
            polling: None,
            inside: BTreeMap::new(),
            waiting: VecDeque::new(),
            busy: 0,
            gone: Gone::Stay,
            given_up: 0,
            polls: BTreeMap::new(),
            next: 0,
            turns: 0,
            opened: 0,
            watch: Residence::new(TICK, DEFAULT_TARGET),
            windows: Vec::new(),
            truth: Truth::default(),
            limiter: None,
            enforces: true,
            gate: GuardGate::default(),
            refused: 0,
            round_trip: 0.0,
            fresh: 0,
            front: None,
            tickets: false,
            answers: [0; ANSWER_CLASSES],
            classes: None,
            talkers: Talkers::default(),
            sockets: 0.0,
        };
        world.after(0.0, Event::Pass);
        world.next_arrival();
        world
    }

    /// With a limit on what is inside.
    pub fn limited(mut self) -> World {
        self.limiter = Some(Limiter::new(DEFAULT_TARGET));
        self
    }

    /// Services that take this on average, and some much longer.
    pub fn uneven(mut self) -> World {
        self.even = false;
        self
    }

    pub fn with_long_polls(mut self, number: usize) -> World {
        self.polling = Some(Polling::of(always(0.0), f64::INFINITY));
        for n in 0..number {
            let event = Event::Poll(FOR_EVER);
            self.after(LONG_POLL_S * n as f64 / number as f64, event);
        }
        self
    }

    /// With clients that wait for news, and come and go.
    pub fn polled(mut self, polling: Polling) -> World {
        self.polling = Some(polling);
        self.after(0.0, Event::Poller);
        self
    }

    /// With so many WebSockets opened a second, each for ever, of which the server asks each so often whether it lives, s.
    pub fn with_web_sockets(mut self, opened: f64, pings_every: f64) -> World {
        self.talkers.pings_every = pings_every;
        self.sockets = opened;
        self.after(0.0, Event::Socket);
        self
    }

    /// So many clients connect now, and never send all of their request.
    pub fn begin_halves(&mut self, number: usize) {
        for _ in 0..number {
            match self.gate.lets_in(self.now_ns) {
                true => self.talkers.halves.push(self.now_ns),
                false => self.refused += 1,
            }
        }
    }

    fn open_socket(&mut self) {
        self.truth.offered += 1;
        match self.lets_in() {
            true => self.talkers.sockets.push(self.now_ns),
            false => {
                self.truth.refused += 1;
                self.refused += 1;
            }
        }
        let wait = self.random.exponential(1.0 / self.sockets);
        self.after(wait, Event::Socket);
    }

    /// With a controller; of the clients this share is of a high class.
    pub fn shared(mut self, share: f64) -> World {
        self.classes = Some(Classes::new(share));
        self.after(0.0, Event::Look);
        self
    }

    /// With a front before it.
    pub fn behind(mut self, front: Front) -> World {
        self.front = Some(front);
        self.watch = self.watch.behind_fronts();
        self
    }

    fn now_s(&self) -> f64 {
        self.now_ns as f64 / 1e9
    }

    fn after(&mut self, s: f64, event: Event) {
        let at = self.now_ns + (s * 1e9) as u64;
        self.events.push(Reverse((at, event)));
    }

    fn next_arrival(&mut self) {
        let rate = (self.rate)(self.now_s());
        // Without clients it is looked again a little later.
        let wait = match rate > 0.0 {
            true => self.random.exponential(1.0 / rate),
            false => 0.01,
        };
        self.after(wait, Event::Arrival);
    }

    /// Requests of clients that have gone, on which the server will work.
    pub fn ghosts(&self) -> usize {
        let gone = |id: &&u64| !self.inside.contains_key(id);
        self.waiting.iter().filter(gone).count()
    }

    /// Requests in the server now whose clients wait.
    pub fn inside(&self) -> usize {
        self.inside.len()
    }

    /// Counts the truth from now on.
    pub fn begin(&mut self) {
        self.truth = Truth::default();
    }

    /// Until this time, s.
    pub fn run(&mut self, until_s: f64) {
        let until = (until_s * 1e9) as u64;
        while let Some(Reverse((at, event))) = self.events.peek().copied() {
            if at > until {
                break;
            }
            self.events.pop();
            let span = (at - self.now_ns) as f64 / 1e9;
            self.truth.outstanding_s += span * self.inside.len() as f64;
            self.truth.span_s += span;
            self.now_ns = at;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival => {
                if (self.rate)(self.now_s()) > 0.0 {
                    self.arrive();
                }
                self.next_arrival();
            }
            Event::Done(id) => self.done(id),
            Event::Opens(id) => self.open(id),
            Event::Request(id) => {
                self.inside.insert(id, self.now_ns);
                self.waiting.push_back(id);
                if self.gone != Gone::Stay {
                    self.after(PATIENCE_NS as f64 / 1e9, Event::GivesUp(id));
                }
                self.work();
            }
            Event::Pass => self.pass(),
            Event::Socket => self.open_socket(),
            Event::Look => {
                let now = self.now_ns;
                let again = self.classes.as_mut().map(|classes| classes.look(now));
                again
                    .into_iter()
                    .for_each(|after| self.after(after, Event::Look));
            }
            Event::Poller => self.poller(),
            Event::Poll(leaves) => self.poll(leaves),
            Event::PollEnds {
                id,
                answered,
                leaves,
            } => self.poll_ends(id, answered, leaves),
            Event::GivesUp(id) => {
                let waited = self.inside.remove(&id).is_some();
                self.given_up += u64::from(waited);
                self.truth.timed_out += u64::from(waited);
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn poller(&mut self) {
        let now = self.now_s();
        let Some(polling) = &self.polling else { return };
        let (rate, stays) = ((polling.rate)(now), polling.stays);
        let wait = self.random.exponential(1.0 / rate.max(1e-9));
        // A rate that changes is followed.
        if wait > 0.1 {
            return self.after(0.1, Event::Poller);
        }
        let leaves = self.now_ns + ((wait + self.random.exponential(stays)) * 1e9) as u64;
        self.after(wait, Event::Poll(leaves));
        self.after(wait, Event::Poller);
    }

    fn poll(&mut self, leaves: u64) {
        let Some(polling) = self.polling.as_ref().filter(|_| self.now_ns < leaves) else {
            return;
        };
        let (news, holds) = (polling.news, polling.holds);
        self.truth.polls += 1;
        if !self.gate.lets_in(self.now_ns) {
            self.truth.polls_refused += 1;
            self.refused += 1;
            return self.after(POLL_AGAIN_S, Event::Poll(leaves));
        }
        let id = self.number();
        self.opened += 1;
        self.polls.insert(id, self.now_ns);
        let answer = match news.is_finite() {
            true => self.random.exponential(news).min(holds),
            false => holds,
        };
        let gone = leaves.saturating_sub(self.now_ns) as f64 / 1e9;
        let answered = answer < gone;
        let event = Event::PollEnds {
            id,
            answered,
            leaves,
        };
        self.after(answer.min(gone), event);
    }

    fn poll_ends(&mut self, id: u64, answered: bool, leaves: u64) {
        let came = self.polls.remove(&id).unwrap_or_default();
        if !answered {
            self.given_up += 1;
            return;
        }
        self.turns += 1;
        let ticks = (self.now_ns - came) / TICK.as_nanos() as u64;
        self.answers[answer_class(ticks as u32)] += 1;
        self.poll(leaves);
    }

    pub fn arrive(&mut self) {
        self.truth.offered += 1;
        if !self.lets_in() {
            self.truth.refused += 1;
            self.refused += 1;
            return;
        }
        self.fresh += 1;
        let id = self.number();
        self.after(self.round_trip, Event::Opens(id));
    }

    /// Whether a client's class and the gate let it in.
    fn lets_in(&mut self) -> bool {
        let now = self.now_ns;
        let Some(classes) = &mut self.classes else {
            return self.gate.lets_in(now);
        };
        let class = usize::from(self.random.unit() > classes.share);
        let lets_in = classes.lets_in(class, now) && self.gate.lets_in(now);
        classes.count(class, lets_in);
        if class == 0 {
            self.truth.high += 1;
            self.truth.high_refused += u64::from(!lets_in);
        }
        lets_in
    }

    fn open(&mut self, id: u64) {
        self.fresh -= 1;
        self.opened += 1;
        let Some(front) = self.front else {
            return self.happen(Event::Request(id));
        };
        if self.random.unit() > front.share {
            return;
        }
        for n in 0..front.requests {
            let id = self.number();
            let after = front.handshake + f64::from(n) * front.every;
            self.after(after, Event::Request(id));
        }
    }

    /// Workers that are free take what waits.
    fn work(&mut self) {
        while self.busy < self.workers {
            let Some(id) = self.waiting.pop_front() else {
                return;
            };
            if self.gone == Gone::Skipped && !self.inside.contains_key(&id) {
                continue;
            }
            self.busy += 1;
            let mean = (self.service)(self.now_s());
            let service = match self.even {
                true => mean,
                false => self.random.exponential(mean),
            };
            self.after(service, Event::Done(id));
        }
    }

    fn done(&mut self, id: u64) {
        self.busy -= 1;
        let Some(came) = self.inside.remove(&id) else {
            return self.work();
        };
        let stayed = self.now_ns - came;
        self.turns += 1 + u64::from(self.tickets);
        let ticks = stayed / TICK.as_nanos() as u64;
        self.answers[answer_class(ticks as u32)] += 1;
        match stayed > PATIENCE_NS {
            true => self.truth.timed_out += 1,
            false => {
                self.truth.served += 1;
                self.truth.residences_s += stayed as f64 / 1e9;
                self.truth.stays.push(stayed as f64 / 1e9);
            }
        }
        self.work();
    }

    fn pass(&mut self) {
        let request = |came: &u64| Request {
            age: Duration::from_nanos(self.now_ns - came),
            queued: false,
        };
        let every = self
            .polling
            .as_ref()
            .map_or(f64::INFINITY, |polling| polling.says_every);
        let poll = |came: &u64| {
            let age = (self.now_ns - came) as f64 / 1e9;
            Request {
                age: Duration::from_secs_f64(age % every),
                queued: false,
            }
        };
        let inside = self.inside.values().filter(|_| !self.tickets);
        let first = self.talkers.first(self.now_ns);
        let pass = Pass {
            at: Duration::from_nanos(self.now_ns),
            listening: true,
            connections: (self.inside.len() + self.polls.len() + self.talkers.connections()) as u32,
            turns: self.turns + self.talkers.turns(self.now_ns),
            given_up: self.given_up,
            opened: self.opened,
            fresh: self.fresh,
            answers: self.answers,
            latest: self.answers,
            first,
            requests: inside
                .map(request)
                .chain(self.polls.values().map(poll))
                .chain(self.talkers.requests(self.now_ns))
                .collect(),
        };
        let ended = self.watch.take(&pass);
        self.windows.extend(ended);
        if let Some(limiter) = &mut self.limiter {
            if let Some(window) = ended {
                limiter.window(pass.at, &window);
            }
            let outstanding = self.watch.outstanding();
            let gate = limiter.pass(&pass, outstanding, self.refused);
            let mut gate = self.watch.gate(gate.filter(|_| self.enforces));
            if let Some(classes) = &mut self.classes {
                classes.inside = gate;
                gate = gate.map(|gate| gate.beside_controller());
            }
            let state = gate.map(|gate| GateState::new(&gate, self.now_ns));
            self.gate = state.map(in_the_guard).unwrap_or_default();
        }
        let cost = PASS + SOCKET * pass.connections;
        let purpose = self
            .limiter
            .as_ref()
            .filter(|_| self.enforces)
            .map_or(Purpose::Observe, Limiter::purpose);
        let pause = pause(cost, pass.requests.len(), pass.connections, purpose);
        self.after(pause.as_secs_f64(), Event::Pass);
    }
}

/// The same at all times.
pub fn always(figure: f64) -> At {
    Box::new(move |_| figure)
}

/// The same, written as user space writes it.
fn in_the_guard(state: GateState) -> GuardGate {
    GuardGate {
        until_ns: state.until_ns,
        since_ns: state.since_ns,
        room: state.room,
        rate: state.rate,
        burst: state.burst,
        taken: state.taken,
    }
}
