//! The log of overload: a line when a listener begins to turn connections away, now and then while it lasts, and when
//! it has ended. [`weir_core::overload`] decides; here the listeners are read.

mod line;
mod quic;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_api::Event;
use weir_core::forecast::{Forecast, Would};
use weir_core::listener::Mode;
use weir_core::overload::{Budget, Cause, Change, Episode, Reading, Tracker, Waits, turned_away};
use weir_core::refusals::{Protocol, Refusal, Seen};
use weir_core::units::{about_duration, about_rate};
use weir_core::verdict::Counters;

use crate::daemon::events::{self, Events};
use crate::daemon::quic::QuicGlance;
use crate::daemon::session::Glance;
use crate::failure::Result;
use crate::show::describe;

use line::Line;
use quic::QuicFollowed;

/// Time between two looks while connections come. It is also how coarse the peaks are.
const BUSY: Duration = Duration::from_millis(250);
/// Time between two looks while none comes: a first line may be this late.
const IDLE: Duration = Duration::from_secs(1);
/// A look is followed by none for so many times as long as it took: of a thousand containers it takes a while.
const LOOKS_APART: u32 = 10;

/// Follows all listeners.
pub struct OverloadLog {
    started: Instant,
    /// The last look.
    looked: Instant,
    due: Instant,
    listeners: BTreeMap<String, Followed>,
    quic: BTreeMap<String, QuicFollowed>,
    budget: Budget,
    /// Sum of all counters at the last look.
    counted: u64,
    failed: bool,
}

struct Followed {
    trackers: [Tracker; Cause::ALL.len()],
    waits: Waits,
    forecast: Forecast,
    would: Option<Would>,
    sums: Fates,
    /// The last counts, by the mode that they are of.
    before: Option<(Mode, Fates)>,
    /// Connections that were over a class's rate before the mode was this one.
    over_rate_before: u64,
    /// Classes that the controller has held in this overload, each with its lowest rate in connections/s.
    held: BTreeMap<String, f64>,
}

/// What became of connections.
#[derive(Clone, Copy, Default)]
struct Fates {
    /// By cause.
    turned_away: [u64; Cause::ALL.len()],
    let_in: u64,
}

impl Fates {
    /// Adds what has come since `before`.
    fn add(&mut self, now: &Fates, before: &Fates) {
        let causes = now.turned_away.iter().zip(before.turned_away);
        for (sum, (now, before)) in self.turned_away.iter_mut().zip(causes) {
            *sum += now.saturating_sub(before);
        }
        self.let_in += now.let_in.saturating_sub(before.let_in);
    }
}

impl Followed {
    fn new() -> Followed {
        Followed {
            trackers: Cause::ALL.map(Tracker::new),
            waits: Waits::default(),
            forecast: Forecast::default(),
            would: None,
            sums: Fates::default(),
            before: None,
            over_rate_before: 0,
            held: BTreeMap::new(),
        }
    }

    /// What is to be said of the listener now. `samples` are its refusals since the last look.
    fn take(
        &mut self,
        at: Duration,
        glance: &Glance,
        samples: &[&Refusal],
        held: &[(String, f64)],
    ) -> Vec<Line> {
        let Fates {
            turned_away,
            let_in,
        } = self.fates(at, glance);
        self.hold(held);
        if let Some(wait) = glance.wait.filter(|_| glance.queue_length > 0) {
            self.waits.add(wait);
        }
        // A queue may fill and drain between two looks: what the guard saw as it refused is among the peaks.
        let (mut queue_length, mut half_open) = (glance.queue_length, glance.half_open);
        let mut refused_at = None;
        for sample in samples {
            if let Seen::Queue {
                length,
                half_open: under_way,
                wait,
                ..
            } = sample.seen
            {
                queue_length = queue_length.max(length);
                half_open = half_open.max(under_way);
                refused_at = refused_at.max(Some(wait));
            }
        }
        self.waits.refused_at(refused_at.unwrap_or_default());
        let wait = refused_at.max(glance.wait);
        let mut lines = Vec::new();
        let causes = Cause::ALL.into_iter().zip(turned_away);
        for ((cause, turned_away), tracker) in causes.zip(&mut self.trackers) {
            let reading = Reading {
                at,
                let_in,
                turned_away,
                wait,
                queue_length,
                half_open,
                stands: cause == Cause::Overload && glance.waits_too_long,
            };
            let Some(change) = tracker.take(reading) else {
                continue;
            };
            let text = line(glance, cause, &change, &self.held);
            let good = matches!(change, Change::Ends(_));
            let (name, limit) = (&glance.name, glance.queue_limit);
            let event = Event {
                observed: glance.mode == Mode::Observe,
                ..events::episode(name, cause, &change, limit, &self.held, &text)
            };
            if good && cause == Cause::Overload {
                self.held.clear();
            }
            lines.push(Line { text, good, event });
        }
        lines
    }

    /// Connections turned away, and let in: sums that only rise. Of an overload that is only observed, as many as enforcement
    /// would have.
    fn fates(&mut self, at: Duration, glance: &Glance) -> Fates {
        let mut now = Fates {
            turned_away: turned_away(&glance.counters),
            let_in: describe::admitted(&glance.counters),
        };
        let over_rate = now.turned_away[Cause::OverRate as usize];
        let mode = self.before.as_ref().map(|(mode, _)| *mode);
        if mode.is_some_and(|mode| mode != glance.mode) {
            self.forecast = Forecast::default();
            self.before = None;
            self.over_rate_before = over_rate;
        }
        self.forecast.take(&glance.rule, &glance.seen(at));
        self.would = None;
        if glance.mode == Mode::Observe {
            let over_rate = over_rate.saturating_sub(self.over_rate_before);
            let would = self.forecast.would(over_rate);
            now.turned_away[Cause::Overload as usize] = self.forecast.refused();
            now.let_in = would.offered.saturating_sub(would.refused);
            self.would = Some(would);
        }
        if let Some((_, before)) = self.before.replace((glance.mode, now)) {
            self.sums.add(&now, &before);
        }
        self.sums
    }

    fn hold(&mut self, held: &[(String, f64)]) {
        for (class, rate) in held {
            let lowest = self.held.entry(class.clone()).or_insert(*rate);
            *lowest = lowest.min(*rate);
        }
    }
}

/// What was seen at a look.
pub struct Looked {
    /// The listeners.
    pub listeners: Vec<Glance>,
    /// The QUIC listeners.
    pub quic: Vec<QuicGlance>,
}

impl OverloadLog {
    /// Looks at once.
    pub fn new() -> OverloadLog {
        let now = Instant::now();
        OverloadLog {
            started: now,
            looked: now,
            due: now,
            listeners: BTreeMap::new(),
            quic: BTreeMap::new(),
            budget: Budget::default(),
            counted: 0,
            failed: false,
        }
    }

    /// When it wants to look again.
    pub fn due_at(&self) -> Instant {
        self.due
    }

    /// Looks, if it is time, and gives what it saw, for [`OverloadLog::tell`].
    pub fn look(
        &mut self,
        now: Instant,
        glances: impl FnOnce() -> Result<Looked>,
    ) -> Option<Looked> {
        if now < self.due {
            return None;
        }
        self.looked = now;
        self.due = now + IDLE;
        let begun = Instant::now();
        let found = glances();
        let least = begun.elapsed() * LOOKS_APART;
        match found {
            Ok(looked) => {
                self.failed = false;
                if self.is_busy(&looked) {
                    self.due = now + BUSY.max(least);
                }
                Some(looked)
            }
            Err(failure) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::error!("overload cannot be seen: {failure}");
                }
                None
            }
        }
    }

    /// Logs what is to be said of a look. `samples` are the refusals that were sampled since the look before, `held` the
    /// classes that the controller holds, with their rates.
    pub fn tell(
        &mut self,
        glances: &[Glance],
        quic: &[QuicGlance],
        samples: &[Refusal],
        held: &[(String, f64)],
        events: &Events,
    ) {
        let at = self.looked.saturating_duration_since(self.started);
        let mut lines = self.take(at, glances, samples, held, events);
        lines.extend(self.take_quic(at, quic, samples, events));
        for line in lines {
            match line.good {
                true => tracing::info!("{}", line.text),
                false => tracing::warn!("{}", line.text),
            }
        }
    }

    /// Looks the next time that it may, whatever its pace.
    pub fn hurry(&mut self) {
        self.due = self.looked;
    }

    /// Whether connections have come since the last look, or wait.
    fn is_busy(&mut self, looked: &Looked) -> bool {
        let (listeners, quic) = (looked.listeners.iter(), looked.quic.iter());
        let of = |glance: &Glance| glance.counters.rows().map(|(_, n)| n).sum::<u64>();
        let of_quic = |glance: &QuicGlance| glance.counters.rows().map(|(_, n)| n).sum::<u64>();
        let counted =
            listeners.clone().map(of).sum::<u64>() + quic.clone().map(of_quic).sum::<u64>();
        let more = std::mem::replace(&mut self.counted, counted) != counted;
        let mut waiting = listeners.map(|glance| glance.queue_length);
        let mut pending = quic.map(|glance| glance.pending);
        more || waiting.any(|n| n > 0) || pending.any(|n| n > 0)
    }

    /// The waits of a listener as they were read.
    pub fn waits(&self, listener: &str) -> Waits {
        let found = self.listeners.get(listener);
        found.map_or(Waits::default(), |followed| followed.waits)
    }

    /// What enforcement would have done at a listener that is observed.
    pub fn would(&self, listener: &str) -> Option<Would> {
        self.listeners.get(listener)?.would
    }

    /// Adds to the report of a QUIC listener what enforcement would have done, if it is observed.
    pub fn add_to_quic(&self, report: &mut weir_api::Quic) {
        let followed = self.quic.get(&report.name);
        let would = followed.and_then(QuicFollowed::would);
        (report.offered, report.would_refuse) =
            would.map(|would| (would.offered, would.refused)).unzip();
    }

    fn take(
        &mut self,
        at: Duration,
        glances: &[Glance],
        samples: &[Refusal],
        held: &[(String, f64)],
        events: &Events,
    ) -> Vec<Line> {
        let names: BTreeSet<&str> = glances.iter().map(|glance| &*glance.name).collect();
        self.listeners.retain(|name, _| names.contains(&**name));
        let mut lines = Vec::new();
        for glance in glances {
            let followed = self.listeners.entry(glance.name.clone());
            let followed = followed.or_insert_with(Followed::new);
            let own = own(samples, Protocol::Tcp, &glance.name);
            let said = followed.take(at, glance, &own, held).into_iter();
            lines.extend(said.filter_map(|line| say(&mut self.budget, at, line, events)));
        }
        lines
    }

    fn take_quic(
        &mut self,
        at: Duration,
        glances: &[QuicGlance],
        samples: &[Refusal],
        events: &Events,
    ) -> Vec<Line> {
        let names = glances.iter().map(|glance| &*glance.listener.name);
        let names: BTreeSet<&str> = names.collect();
        self.quic.retain(|name, _| names.contains(&**name));
        let mut lines = Vec::new();
        for glance in glances {
            let name = &glance.listener.name;
            let followed = self.quic.entry(name.clone());
            let followed = followed.or_insert_with(QuicFollowed::new);
            let own = own(samples, Protocol::Quic, name);
            let said = followed.take(at, glance, &own);
            lines.extend(said.and_then(|line| say(&mut self.budget, at, line, events)));
        }
        lines
    }
}

/// The samples of one listener.
fn own<'a>(samples: &'a [Refusal], protocol: Protocol, name: &str) -> Vec<&'a Refusal> {
    let its = |sample: &&Refusal| sample.reason.protocol() == protocol && *sample.listener == *name;
    samples.iter().filter(its).collect()
}

/// Notes the event of a line. The line itself, unless there are too many.
fn say(budget: &mut Budget, at: Duration, mut line: Line, events: &Events) -> Option<Line> {
    events.note(line.event.clone());
    let withheld = budget.take(at)?;
    if withheld > 0 {
        let lines = describe::count(withheld as usize, "line");
        line.text += &format!(" ({lines} like this were left out)");
    }
    Some(line)
}

/// `web: overload begins: refused 12 of 100 connections (12 %); queue 4/4, wait 508 ms; held: other to 48/s`
fn line(glance: &Glance, cause: Cause, change: &Change, held: &BTreeMap<String, f64>) -> String {
    let name = &glance.name;
    let what = match cause {
        Cause::Overload => "overload",
        Cause::OverRate => "policing",
        Cause::SynFlood => "SYN flood",
    };
    let observed = match glance.mode {
        Mode::Enforce => "",
        Mode::Observe => "would have ",
    };
    let done = |episode: &Episode| match cause {
        Cause::SynFlood => format!(
            "{observed}answered {} SYNs with a cookie",
            episode.turned_away
        ),
        _ => {
            let all = episode.turned_away + episode.let_in;
            let percent = describe::percent(episode.share());
            format!(
                "{observed}refused {} of {all} connections ({percent})",
                episode.turned_away
            )
        }
    };
    let peak = |episode: &Episode| {
        let wait = match episode.peak_wait {
            Duration::ZERO => String::new(),
            wait => format!(", wait {}", about_duration(wait)),
        };
        let (queue, limit) = (episode.peak_queue, glance.queue_limit);
        let half_open = match episode.peak_half_open {
            0 => String::new(),
            n => format!(", half-open {n}"),
        };
        format!("queue {queue}/{limit}{half_open}{wait}")
    };
    let mut text = match change {
        Change::Begins(episode) => {
            format!(
                "{name}: {what} begins: {}; {}",
                done(episode),
                peak(episode)
            )
        }
        Change::Lasts(episode) => format!(
            "{name}: {what} for {}: {}; at most {}",
            about_duration(episode.time()),
            done(episode),
            peak(episode)
        ),
        Change::Ends(episode) => format!(
            "{name}: {what} has ended after {}: {}; at most {}",
            about_duration(episode.time()),
            done(episode),
            peak(episode)
        ),
    };
    if cause == Cause::Overload && !held.is_empty() {
        let held: Vec<String> = held
            .iter()
            .map(|(class, rate)| format!("{class} to {}/s", about_rate(*rate)))
            .collect();
        let names: Vec<&str> = held.iter().map(String::as_str).collect();
        text += &format!("; held: {}", describe::examples(&names));
    }
    text
}

/// A listener's counters and waits at the end.
#[derive(Debug, Clone)]
pub struct Total {
    /// The listener.
    pub listener: weir_core::listener::Listener,
    /// What was done.
    pub counters: Counters,
    /// How long connections waited, as far as it was read.
    pub waits: Waits,
    /// What enforcement would have done; of one that was observed.
    pub would: Option<Would>,
}

#[cfg(test)]
mod tests {
    use weir_core::verdict::Verdict;

    use weir_core::forecast::Rule;
    use weir_core::refusals::Reason;

    use super::*;

    fn glance(name: &str, admitted: u64, refused: u64) -> Glance {
        let mut counters = Counters::default();
        counters.0[Verdict::SynAdmitted as usize] = admitted;
        counters.0[Verdict::SynResetWait as usize] = refused;
        Glance {
            name: name.into(),
            mode: Mode::Enforce,
            counters,
            queue_length: 4,
            queue_limit: 4,
            sockets: 1,
            half_open: 0,
            came: Some(admitted),
            wait: Some(Duration::from_micros(507_500)),
            waits_too_long: false,
            accepts: None,
            steered: false,
            kept: 0,
            rule: Rule {
                target: None,
                interval: Duration::ZERO,
                least: 0,
            },
        }
    }

    fn texts(
        log: &mut OverloadLog,
        second: u64,
        glance: Glance,
        held: &[(String, f64)],
    ) -> Vec<String> {
        let at = Duration::from_secs(second);
        let lines = log.take(at, &[glance], &[], held, &Events::new());
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn the_log_says_when_overload_begins_and_ends_and_who_is_held() {
        let mut log = OverloadLog::new();
        assert!(texts(&mut log, 0, glance("web", 0, 0), &[]).is_empty());
        let held = [("other".to_owned(), 47.7)];
        assert_eq!(
            texts(&mut log, 1, glance("web", 88, 12), &held),
            [
                "web: overload begins: refused 12 of 100 connections (12 %); queue 4/4, wait 508 ms; held: other to 48/s"
            ]
        );
        assert!(texts(&mut log, 9, glance("web", 100, 300), &[]).is_empty());
        assert_eq!(
            texts(&mut log, 19, glance("web", 900, 300), &[]),
            [
                "web: overload has ended after 9.0 s: refused 300 of 400 connections (75 %); at most queue 4/4, wait 508 ms; held: other to 48/s"
            ]
        );
        // Its queue has no place, and nothing is accepted.
        let observed = |refused| Glance {
            mode: Mode::Observe,
            half_open: 2,
            ..glance("web", 900, refused)
        };
        assert!(texts(&mut log, 20, observed(300), &[]).is_empty());
        assert!(
            texts(&mut log, 21, observed(304), &[]).is_empty(),
            "it fills"
        );
        // 8 s after the first look at a queue that was full: what comes now is no repeat.
        let line = texts(&mut log, 28, observed(305), &[]).remove(0);
        assert!(
            line.contains("begins: would have refused 1 of 1 connections"),
            "{line}"
        );
        assert!(
            line.ends_with("; queue 4/4, half-open 2, wait 508 ms"),
            "{line}"
        );
        assert_eq!(log.waits("web").peak, Duration::from_micros(507_500));
    }

    #[test]
    fn what_was_refused_before_observing_is_not_among_what_enforcement_would_refuse() {
        let mut log = OverloadLog::new();
        let seen = |mode, over_rate| {
            let mut glance = Glance {
                mode,
                queue_length: 0,
                ..glance("web", 50, 0)
            };
            glance.counters.0[Verdict::SynResetRate as usize] = over_rate;
            glance
        };
        texts(&mut log, 0, seen(Mode::Enforce, 1000), &[]);
        texts(&mut log, 1, seen(Mode::Observe, 1000), &[]);
        assert_eq!(log.would("web").unwrap().refused, 0);
        texts(&mut log, 2, seen(Mode::Observe, 1007), &[]);
        assert_eq!(log.would("web").unwrap().refused, 7);
    }

    #[test]
    fn what_a_refused_client_found_is_among_the_peaks() {
        const QUEUE: Seen = Seen::Queue {
            length: 511,
            half_open: 3,
            limit: 511,
            wait: Duration::from_secs(2),
        };
        let sample = |listener: &str, verdict| Refusal {
            at: Duration::ZERO,
            listener: listener.into(),
            class: None,
            reason: Reason::from(verdict),
            source: "192.0.2.1:4000".parse().unwrap(),
            destination: "192.0.2.2:80".parse().unwrap(),
            seen: Seen::at(QUEUE, verdict),
            observe: false,
        };
        let mut log = OverloadLog::new();
        let mut look = |second, refused, samples: &[Refusal]| {
            let glance = Glance {
                queue_limit: 1022,
                ..glance("web", 0, refused)
            };
            let at = Duration::from_secs(second);
            let lines = log.take(at, &[glance], samples, &[], &Events::new());
            lines.into_iter().map(|line| line.text).collect::<String>()
        };
        look(0, 0, &[]);
        let others = [
            sample("other", Verdict::SynResetFull),
            sample("web", Verdict::SynResetRate),
        ];
        let begins = look(1, 5, &others);
        assert!(begins.ends_with("; queue 4/1022, wait 508 ms"), "{begins}");
        look(2, 10, &[sample("web", Verdict::SynResetFull)]);
        let ends = look(20, 10, &[]);
        let peaks = "at most queue 511/1022, half-open 3, wait 2.0 s";
        assert!(ends.ends_with(peaks), "{ends}");
        let waits = log.waits("web");
        assert_eq!(waits.peak, Duration::from_secs(2), "also at the end");
        assert_eq!(waits.mean(), Some(Duration::from_micros(507_500)));
    }

    #[test]
    fn listeners_that_all_go_over_at_once_are_bounded_and_counted() {
        let (mut log, events) = (OverloadLog::new(), Events::new());
        let all = |refused| -> Vec<Glance> {
            let names = (0..256).map(|n| format!("l{n}"));
            names.map(|name| glance(&name, 0, refused)).collect()
        };
        assert!(
            log.take(Duration::ZERO, &all(0), &[], &[], &events)
                .is_empty()
        );
        let lines = log.take(Duration::from_secs(1), &all(1), &[], &[], &events);
        assert_eq!(lines.len(), Budget::BURST as usize);
        let lines = log.take(Duration::from_secs(30), &all(1), &[], &[], &events);
        assert!(
            lines[0]
                .text
                .ends_with("(236 lines like this were left out)"),
            "{lines:?}"
        );
    }
}
