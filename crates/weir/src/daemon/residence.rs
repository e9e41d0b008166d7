//! The requests that servers have and have not answered (`residence` of a `[[listener]]`): passes over their sockets, as
//! seldom as keeps their cost small, and what follows from them: figures, and how many connections may come in.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use weir_core::listener::{Listener, ResidenceMode};
use weir_core::residence::{DEFAULT_TARGET, Limiter, Pass, Purpose, Queue, Residence, pause};
use weir_kernel::{MAX_PORTS, Residences as Kernel, tick};

use crate::daemon::backend::Backend;
use crate::daemon::session::Session;

/// After a pass that failed.
const FAILED_AGAIN: Duration = Duration::from_secs(5);

/// The ports whose requests are watched. Without one nothing is loaded.
pub struct Residences {
    /// By the ports.
    wanted: BTreeMap<u16, Wanted>,
    kernel: Option<Kernel>,
    watched: Vec<Watched>,
    due: Instant,
    /// Why it does not work.
    failed: Option<String>,
    /// Ports for which there is no place.
    left_out: usize,
}

/// What listeners want of a port.
#[derive(Default, PartialEq, Eq)]
struct Wanted {
    /// The residence that is to be kept; `None`: it is only observed.
    target: Option<Duration>,
    /// The ports of listeners before it, whose programs ask it. Without one, clients come to the port itself.
    fronts: BTreeSet<u16>,
}

/// All of them, by port.
fn wanted<'a>(listeners: impl Iterator<Item = &'a Listener>) -> BTreeMap<u16, Wanted> {
    let mut all: BTreeMap<u16, Wanted> = BTreeMap::new();
    for one in listeners.filter(|one| one.residence != ResidenceMode::Off) {
        let port = one.residence_port();
        let known = all.entry(port).or_default();
        if let ResidenceMode::Within(target) = one.residence {
            known.target = Some(known.target.map_or(target, |known| known.min(target)));
        }
        if one.address.port != port {
            known.fronts.insert(one.address.port);
        }
    }
    all
}

/// A port whose requests are watched.
struct Watched {
    port: u16,
    /// Its place among the passes, and those of the fronts before it.
    place: usize,
    fronts: Vec<usize>,
    watch: Residence,
    /// Learns also while the port is only observed.
    limiter: Limiter,
    /// Whether it may refuse connections.
    enforces: bool,
    /// Whether it does at the moment, or may: a gate from before stands until the first pass.
    limits: bool,
    /// Connections that it has refused, ever, as far as is known.
    refused: u64,
}

impl Watched {
    /// `None`: it, or a front before it, is not among the ports of the kernel half.
    fn new(port: u16, wanted: &Wanted, ports: &[u16]) -> Option<Watched> {
        let place = |port: &u16| ports.iter().position(|one| one == port);
        let fronts: Vec<usize> = wanted.fronts.iter().map(place).collect::<Option<_>>()?;
        let watch = Residence::new(tick(), wanted.target.unwrap_or(DEFAULT_TARGET));
        Some(Watched {
            port,
            place: place(&port)?,
            watch: match fronts.is_empty() {
                true => watch,
                false => watch.behind_fronts(),
            },
            fronts,
            limiter: Limiter::new(wanted.target.unwrap_or(DEFAULT_TARGET)),
            enforces: wanted.target.is_some(),
            limits: wanted.target.is_some(),
            refused: 0,
        })
    }

    /// Keeps what `before` has learnt of the same port by the same clients: a setting that changes makes no other server.
    fn knowing(mut self, before: Watched, target: Option<Duration>) -> Watched {
        if self.fronts.is_empty() != before.fronts.is_empty() {
            return self;
        }
        let time = target.unwrap_or(DEFAULT_TARGET);
        self.watch = before.watch.counted_anew(time);
        self.limiter = before.limiter.counted_anew(time);
        self.limits |= before.limits;
        self.refused = before.refused;
        self
    }

    /// What the passes over all ports have found of it: the clients are those of its fronts.
    fn seen<'a>(&self, passes: &'a [Pass]) -> Cow<'a, Pass> {
        let pass = &passes[self.place];
        if self.fronts.is_empty() {
            return Cow::Borrowed(pass);
        }
        let fronts = self.fronts.iter().map(|place| &passes[*place]);
        Cow::Owned(Pass {
            opened: fronts.clone().map(|front| front.opened).sum(),
            fresh: fronts.map(|front| front.fresh).sum(),
            ..pass.clone()
        })
    }

    fn take<B: Backend>(&mut self, pass: &Pass, session: &mut Session<B>) {
        let window = self.watch.take(pass);
        if let Some(window) = window {
            self.limiter.window(pass.at, &window);
        }
        // Refusals that cannot be counted are as none: then it lets all in sooner.
        self.refused = session
            .refused_for_residence(self.port)
            .unwrap_or(self.refused);
        let outstanding = self.watch.outstanding();
        let gate = self.limiter.pass(pass, outstanding, self.refused);
        let gate = self.watch.gate(gate.filter(|_| self.enforces));
        if gate.is_some() || self.limits {
            session.set_gates(self.port, gate.as_ref());
        }
        self.limits = gate.is_some();
    }

    /// Lets all in.
    fn open<B: Backend>(&mut self, session: &mut Session<B>) {
        if std::mem::take(&mut self.limits) {
            session.set_gates(self.port, None);
        }
    }

    fn purpose(&self) -> Purpose {
        match self.enforces {
            true => self.limiter.purpose(),
            false => Purpose::Observe,
        }
    }

    fn report(&self) -> weir_api::Residence {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let estimate = self.watch.estimate();
        let refuses = self.limits && self.limiter.is_armed();
        weir_api::Residence {
            listening: estimate.listening,
            outstanding: tenths(estimate.outstanding),
            outstanding_queued: tenths(estimate.queued),
            outstanding_old: estimate.old,
            answers_per_second: tenths(estimate.answers_per_s),
            residence_us: estimate.residence.map(micros),
            least_residence_us: estimate.least.map(micros),
            queue_inside: estimate.queue == Queue::Inside && !estimate.blind,
            blind: estimate.blind,
            outstanding_limit: refuses.then(|| tenths(self.limiter.limit())),
        }
    }
}

impl Residences {
    /// None yet.
    pub fn none() -> Residences {
        Residences {
            wanted: BTreeMap::new(),
            kernel: None,
            watched: Vec::new(),
            due: Instant::now(),
            failed: None,
            left_out: 0,
        }
    }

    /// Watches what these listeners ask for. What cannot be watched is a warning: nothing else depends on it.
    pub fn set<'a>(&mut self, listeners: impl Iterator<Item = &'a Listener>) {
        let wanted = wanted(listeners);
        if self.failed.is_none() && self.wanted == wanted {
            return;
        }
        let before = std::mem::replace(self, Residences::none());
        if wanted.is_empty() {
            return;
        }
        let fronts: BTreeSet<u16> = wanted
            .values()
            .flat_map(|one| &one.fronts)
            .copied()
            .collect();
        let fronts = fronts.into_iter().filter(|port| !wanted.contains_key(port));
        match Kernel::load(wanted.keys().copied().chain(fronts)) {
            Ok(kernel) => {
                let mut known: BTreeMap<u16, Watched> = before
                    .watched
                    .into_iter()
                    .map(|one| (one.port, one))
                    .collect();
                let watched = |(port, one): (&u16, &Wanted)| {
                    let new = Watched::new(*port, one, kernel.ports())?;
                    Some(match known.remove(port) {
                        Some(before) => new.knowing(before, one.target),
                        None => new,
                    })
                };
                self.watched = wanted.iter().filter_map(watched).collect();
                self.left_out = wanted.len() - self.watched.len();
                self.kernel = Some(kernel);
            }
            Err(error) => self.fail(error.to_string()),
        }
        self.wanted = wanted;
    }

    fn fail(&mut self, error: String) {
        let text = format!("residence: {error}");
        if self.failed.as_ref() != Some(&text) {
            tracing::warn!("{text}");
        }
        self.failed = Some(text);
    }

    /// When the next pass is; `None`: there is none.
    pub fn due_at(&self) -> Option<Instant> {
        self.kernel.as_ref().map(|_| self.due)
    }

    /// Makes a pass, if it is time to.
    pub fn work<B: Backend>(&mut self, session: &mut Session<B>, now: Instant) {
        let Some(kernel) = self.kernel.as_mut().filter(|_| self.due <= now) else {
            return;
        };
        let begun = cpu_time();
        let passes = match kernel.pass() {
            Ok(passes) => passes,
            Err(error) => {
                self.due = now + FAILED_AGAIN;
                // What was found before says nothing of now.
                let watched = self.watched.iter_mut();
                watched.for_each(|one| one.open(session));
                self.fail(error.to_string());
                return;
            }
        };
        let (mut requests, mut purpose) = (0, Purpose::Observe);
        for watched in &mut self.watched {
            let pass = watched.seen(&passes);
            requests += pass.requests.len();
            watched.take(&pass, session);
            purpose = purpose.max(watched.purpose());
        }
        let connections = passes.iter().map(|pass| pass.connections).sum();
        self.failed = None;
        let cost = cpu_time().saturating_sub(begun);
        self.due = now + pause(cost, requests, connections, purpose);
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let left_out = (self.left_out > 0).then(|| {
            format!(
                "residence: no more than {MAX_PORTS} ports can be watched, {} are not",
                self.left_out
            )
        });
        self.failed.clone().into_iter().chain(left_out)
    }

    /// Adds its figures to a listener's report.
    pub fn add_to(&self, listener: &mut weir_api::Listener, asked: &Listener) {
        let mut all = self.watched.iter();
        let watched = all.find(|one| one.port == asked.residence_port());
        let watched = watched.filter(|_| asked.residence != ResidenceMode::Off);
        listener.residence = watched.map(Watched::report);
        // Another listener of the port may refuse.
        if let (Some(report), ResidenceMode::Observe) = (&mut listener.residence, asked.residence) {
            report.outstanding_limit = None;
        }
    }
}

fn tenths(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
