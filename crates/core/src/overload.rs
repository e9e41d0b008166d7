//! When a listener turns connections away, since when, and how many: from readings of its counters and its queue.
//!
//! An [`Episode`] begins with the first connection that is turned away, and ends once none was for [`QUIET`], and clients
//! have not waited for too long either: an overload is not over while its queue stands. Between the two it is reported at
//! growing intervals ([`FIRST_REPORT`], then twice as long each time, [`LONGEST_REPORT`] at most). So a listener has two
//! lines in [`QUIET`] at most, however its load swings. [`Budget`] bounds the lines of all listeners together.
//!
//! Times are of any clock that does not go back, from any beginning.

use std::time::Duration;

use crate::verdict::{Counters, OVER_RATE, Verdict, refusals};

/// No connection was turned away for so long, and none waited for too long: the episode is over. Clients that were refused
/// come back within seconds, so less would cut one overload into many.
pub const QUIET: Duration = Duration::from_secs(10);
/// An episode that lasts is first reported after this.
pub const FIRST_REPORT: Duration = Duration::from_secs(60);
/// An episode that lasts is reported at least this often.
pub const LONGEST_REPORT: Duration = Duration::from_secs(3600);

/// Why connections are turned away. A listener may have an episode of each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The server is slower than its clients: the queue is full or stands, or the controller holds a class for it.
    Overload,
    /// Classes are over the rate that the operator gave them.
    OverRate,
    /// Half-open connections hold the places: SYNs get cookies.
    SynFlood,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 3] = [Cause::Overload, Cause::OverRate, Cause::SynFlood];

    /// Connections turned away between two readings with which an episode begins. Under an overload some handshakes
    /// are slow too, so a few cookies make no flood.
    pub fn least(self) -> u64 {
        match self {
            Cause::Overload | Cause::OverRate => 1,
            Cause::SynFlood => 50,
        }
    }
}

/// Connections that each cause of [`Cause::ALL`] has turned away at a listener: sums that only rise. What is over a class's
/// own rate is policing, also while the controller holds that class; what is over the controller's rate is an overload's.
pub fn turned_away(counters: &Counters) -> [u64; Cause::ALL.len()] {
    let of = |verdicts: &[Verdict]| -> u64 { verdicts.iter().map(|v| counters.get(*v)).sum() };
    let by_rate = of(&OVER_RATE);
    let all: u64 = refusals().map(|row| counters.get(row.verdict)).sum();
    // The kernel drops what weir leaves to it.
    let overload = all - by_rate + counters.get(Verdict::SynLeft);
    let cookies = of(&[Verdict::CookieSentFlood, Verdict::SynLeftFlood]);
    [overload, by_rate, cookies]
}

/// A listener at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// When.
    pub at: Duration,
    /// Connections let in until then, since the listener is guarded.
    pub let_in: u64,
    /// Connections turned away until then by the cause that is followed, likewise.
    pub turned_away: u64,
    /// The estimated wait for accept(); `None` while not known.
    pub wait: Option<Duration>,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Clients wait for longer than they should; of an overload only.
    pub stands: bool,
}

/// A time in which connections are turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Episode {
    /// When the first was turned away.
    pub since: Duration,
    /// When the last was, or when clients last waited for too long.
    pub until: Duration,
    /// Connections let in meanwhile.
    pub let_in: u64,
    /// Connections turned away meanwhile.
    pub turned_away: u64,
    /// The longest wait that was read meanwhile.
    pub peak_wait: Duration,
    /// The longest queue that was read meanwhile.
    pub peak_queue: u32,
    /// The most handshakes under way that were read meanwhile.
    pub peak_half_open: u32,
}

impl Episode {
    /// From the first connection that was turned away to the last, or to the end of the wait, as far as readings tell.
    pub fn time(&self) -> Duration {
        self.until.saturating_sub(self.since)
    }

    /// Share of the connections that were turned away, 0 to 1.
    pub fn share(&self) -> f64 {
        share(self.turned_away, self.let_in)
    }
}

/// Share of `refused` in all, 0 to 1; 0 of none.
pub fn share(refused: u64, let_in: u64) -> f64 {
    match refused {
        0 => 0.0,
        _ => refused as f64 / (refused + let_in) as f64,
    }
}

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An episode has begun.
    Begins(Episode),
    /// It lasts.
    Lasts(Episode),
    /// It is over.
    Ends(Episode),
}

/// Follows one listener and one cause.
#[derive(Debug, Clone)]
pub struct Tracker {
    least: u64,
    last: Option<Reading>,
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    episode: Episode,
    /// The reading before it.
    before: Reading,
    report_at: Duration,
    report_after: Duration,
}

impl Tracker {
    /// Follows this cause from the first reading on.
    pub fn new(cause: Cause) -> Tracker {
        Tracker {
            least: cause.least(),
            last: None,
            open: None,
        }
    }

    /// Takes a reading in. The first one only says what was before.
    pub fn take(&mut self, now: Reading) -> Option<Change> {
        let before = self.last.replace(now)?;
        let more = now.turned_away > before.turned_away;
        let Some(open) = &mut self.open else {
            let begins = now.turned_away.saturating_sub(before.turned_away) >= self.least;
            return begins.then(|| Change::Begins(self.begin(before, now)));
        };
        let episode = &mut open.episode;
        // One reading alone may have met a burst.
        if more || (now.stands && before.stands) {
            episode.until = now.at;
        }
        let is_over = now.at.saturating_sub(episode.until) >= QUIET;
        if !is_over {
            episode.see(&open.before, &now);
        }
        if is_over {
            let episode = *episode;
            self.open = None;
            return Some(Change::Ends(episode));
        }
        if now.at < open.report_at {
            return None;
        }
        open.report_after = (open.report_after * 2).min(LONGEST_REPORT);
        open.report_at = now.at + open.report_after;
        Some(Change::Lasts(open.episode))
    }

    /// The episode that is not over.
    pub fn open(&self) -> Option<Episode> {
        self.open.map(|open| open.episode)
    }

    fn begin(&mut self, before: Reading, now: Reading) -> Episode {
        let mut episode = Episode {
            since: before.at,
            until: now.at,
            let_in: 0,
            turned_away: 0,
            peak_wait: Duration::ZERO,
            peak_queue: 0,
            peak_half_open: 0,
        };
        episode.see(&before, &now);
        self.open = Some(Open {
            episode,
            before,
            report_at: now.at + FIRST_REPORT,
            report_after: FIRST_REPORT,
        });
        episode
    }
}

impl Episode {
    fn see(&mut self, before: &Reading, now: &Reading) {
        self.let_in = now.let_in.saturating_sub(before.let_in);
        self.turned_away = now.turned_away.saturating_sub(before.turned_away);
        self.peak_wait = self.peak_wait.max(now.wait.unwrap_or_default());
        self.peak_queue = self.peak_queue.max(now.queue_length);
        self.peak_half_open = self.peak_half_open.max(now.half_open);
    }
}

/// The waits of all readings at which connections waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// The longest.
    pub peak: Duration,
    sum: Duration,
    readings: u32,
}

impl Waits {
    /// Takes a wait in.
    pub fn add(&mut self, wait: Duration) {
        self.peak = self.peak.max(wait);
        self.sum = self.sum.saturating_add(wait);
        self.readings = self.readings.saturating_add(1);
    }

    /// A connection was refused because of this wait. That is no reading: it says nothing of the mean.
    pub fn refused_at(&mut self, wait: Duration) {
        self.peak = self.peak.max(wait);
    }

    /// The mean; `None` without any.
    pub fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.readings)
    }
}

/// Lines that may be written: [`Budget::BURST`] at once, and one more each [`Budget::EVERY`].
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    left: u32,
    since: Duration,
    withheld: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            left: Budget::BURST,
            since: Duration::ZERO,
            withheld: 0,
        }
    }
}

impl Budget {
    /// Lines at once.
    pub const BURST: u32 = 20;
    /// Time after which there is one more.
    pub const EVERY: Duration = Duration::from_secs(6);

    /// Whether a line may be written, and how many were withheld before it.
    pub fn take(&mut self, at: Duration) -> Option<u64> {
        while self.left < Budget::BURST && at.saturating_sub(self.since) >= Budget::EVERY {
            self.since += Budget::EVERY;
            self.left += 1;
        }
        if self.left == Budget::BURST {
            self.since = at;
        }
        match self.left {
            0 => {
                self.withheld += 1;
                None
            }
            _ => {
                self.left -= 1;
                Some(std::mem::take(&mut self.withheld))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(at_s: u64, let_in: u64, turned_away: u64) -> Reading {
        Reading {
            at: Duration::from_secs(at_s),
            let_in,
            turned_away,
            wait: Some(Duration::from_millis(at_s)),
            queue_length: 4,
            half_open: 0,
            stands: false,
        }
    }

    #[test]
    fn an_episode_begins_with_a_refusal_and_ends_after_ten_quiet_seconds() {
        let mut tracker = Tracker::new(Cause::Overload);
        assert_eq!(tracker.take(reading(0, 7, 100)), None, "what was before");
        assert_eq!(tracker.take(reading(1, 9, 100)), None);
        let Some(Change::Begins(begun)) = tracker.take(reading(2, 12, 104)) else {
            panic!("four were turned away");
        };
        assert_eq!((begun.let_in, begun.turned_away), (3, 4));
        assert_eq!(tracker.take(reading(3, 20, 110)), None);
        assert_eq!(tracker.take(reading(12, 90, 110)), None);
        let Some(Change::Ends(ended)) = tracker.take(reading(13, 99, 110)) else {
            panic!("it was quiet for ten seconds");
        };
        assert_eq!(
            (ended.since, ended.time()),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
        assert_eq!(ended.turned_away, 10);
        assert_eq!(ended.peak_wait, Duration::from_millis(12));
        assert_eq!(tracker.open(), None);
    }

    #[test]
    fn an_episode_that_lasts_is_reported_ever_less_often() {
        let mut tracker = Tracker::new(Cause::Overload);
        let mut lines = Vec::new();
        for second in 0..4 * 3600 {
            let change = tracker.take(reading(second, second, second));
            if let Some(Change::Lasts(_)) = change {
                lines.push(second / 60);
            }
        }
        assert_eq!(lines, [1, 3, 7, 15, 31, 63, 123, 183]);
    }

    #[test]
    fn a_hundredth_of_a_load_is_told_apart_from_all_of_it() {
        assert_eq!(share(55, 45), 0.55);
        assert_eq!(share(0, 0), 0.0);
        assert_eq!(share(7, 0), 1.0);
    }

    #[test]
    fn the_mean_wait_is_over_all_readings() {
        let mut waits = Waits::default();
        assert_eq!(waits.mean(), None);
        for ms in [10, 20, 60] {
            waits.add(Duration::from_millis(ms));
        }
        assert_eq!(waits.mean(), Some(Duration::from_millis(30)));
        assert_eq!(waits.peak, Duration::from_millis(60));
    }

    #[test]
    fn an_overload_lasts_while_its_clients_wait() {
        let mut tracker = Tracker::new(Cause::Overload);
        let mut take = |at_s, turned_away, stands| {
            tracker.take(Reading {
                stands,
                ..reading(at_s, 0, turned_away)
            })
        };
        take(0, 0, false);
        assert!(matches!(take(1, 4, true), Some(Change::Begins(_))));
        for second in 2..60 {
            assert_eq!(take(second, 4, true), None, "they wait at {second} s");
        }
        for second in 60..69 {
            // A burst is no queue that stands.
            assert!(!matches!(
                take(second, 4, second == 65),
                Some(Change::Ends(_))
            ));
        }
        let Some(Change::Ends(ended)) = take(69, 4, false) else {
            panic!("the wait has gone for ten seconds");
        };
        assert_eq!(ended.time(), Duration::from_secs(59));
    }

    #[test]
    fn what_is_over_a_class_s_rate_is_policing_and_what_the_controller_holds_an_overload() {
        let mut counters = Counters::default();
        let mut took = |more: &[(Verdict, u64)]| {
            for (verdict, n) in more {
                counters.0[*verdict as usize] += n;
            }
            turned_away(&counters)
        };
        let apart = [
            (Verdict::SynResetFull, 2),
            (Verdict::SynLeft, 1),
            (Verdict::FinReset, 9),
            (Verdict::CookieSentFlood, 3),
        ];
        assert_eq!(took(&apart), [3, 0, 3]);
        let rate = [(Verdict::SynResetRate, 5), (Verdict::SynDroppedRate, 1)];
        assert_eq!(took(&rate), [3, 6, 3]);
        let held = [(Verdict::SynResetHeld, 10), (Verdict::SynDroppedHeld, 1)];
        assert_eq!(took(&held), [14, 6, 3]);
    }

    #[test]
    fn a_few_cookies_are_no_flood() {
        let begins = |cookies| {
            let mut tracker = Tracker::new(Cause::SynFlood);
            tracker.take(reading(0, 0, 0));
            tracker.take(reading(1, 0, cookies)).is_some()
        };
        assert!(!begins(49) && begins(50));
    }

    proptest! {
        /// However the load swings, at most two lines a listener in ten seconds, and what begins ends.
        #[test]
        fn lines_are_bounded_and_every_end_has_its_beginning(steps in prop::collection::vec((0_u64..5000, 0_u64..3), 1..400)) {
            let mut tracker = Tracker::new(Cause::Overload);
            let (mut at, mut away, mut open) = (0, 0, false);
            let mut begins: Vec<u64> = Vec::new();
            for (ms, more) in steps {
                at += ms;
                away += more;
                let now = Reading { at: Duration::from_millis(at), turned_away: away, ..Reading::default() };
                match tracker.take(now) {
                    Some(Change::Begins(episode)) => {
                        prop_assert!(!open && episode.turned_away > 0);
                        begins.push(at);
                        open = true;
                    }
                    Some(Change::Ends(episode)) => {
                        prop_assert!(open && episode.turned_away > 0);
                        open = false;
                    }
                    Some(Change::Lasts(_)) => prop_assert!(open),
                    None => {}
                }
                prop_assert_eq!(open, tracker.open().is_some());
            }
            for pair in begins.windows(2) {
                prop_assert!(pair[1] - pair[0] >= QUIET.as_millis() as u64);
            }
        }

        /// Of all listeners together no more than the burst and one in six seconds, and none is lost uncounted.
        #[test]
        fn a_budget_is_never_overdrawn(steps in prop::collection::vec(0_u64..3000, 1..600)) {
            let mut budget = Budget::default();
            let (mut at, mut written, mut withheld) = (0, 0_u64, 0);
            let asked = steps.len() as u64;
            for ms in steps {
                at += ms;
                if let Some(before) = budget.take(Duration::from_millis(at)) {
                    written += 1;
                    withheld += before;
                }
            }
            let most = u64::from(Budget::BURST) + at / Budget::EVERY.as_millis() as u64;
            prop_assert!(written <= most, "{} of {}", written, most);
            prop_assert_eq!(written + withheld + budget.withheld, asked);
        }
    }
}
