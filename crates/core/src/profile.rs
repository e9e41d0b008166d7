//! What a listener has gone through since weir looks at it: how long its queue and its wait were, how many connections came,
//! what was refused, and who was refused most. [`crate::suggest`] makes settings of it.
//!
//! A [`Profile`] takes in looks at the queue and the counters, some a second, and keeps distributions of them: about 12 KiB,
//! however long it looks. It counts in *seconds*: times between two looks that are a second or a little more apart.
//!
//! Times are of any clock that does not go back, from any beginning.

pub mod quic;

use std::time::Duration;

use hdrhistogram::{Counter, Histogram};
use ipnet::IpNet;

use crate::forecast::{self, Forecast, Rule};
use crate::verdict::{Counters, FULL, OVER_RATE, SYNS, Verdict, refusals};

/// Digits of the values in the distributions that hold: an error of 6 % at most.
const DIGITS: u8 = 1;
/// A second is over after this: looks come a little early at times.
const SECOND: Duration = Duration::from_millis(990);
/// Looks that are further apart say nothing of the time between them: the process stood still.
const STILL: Duration = Duration::from_secs(10);
/// Targets that are suggested: what an operator would write.
pub const TARGETS_MS: [u64; 9] = [20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];
/// Intervals that are suggested, likewise.
pub const INTERVALS_MS: [u64; 4] = [500, 1000, 2000, 5000];
/// Less than this share of the connections is refused by chance.
const MUCH_REFUSED: f64 = 0.01;
/// With a longer interval a server that catches up refuses at most this part of it.
const CATCHES_UP: f64 = 0.25;
/// The longest wait that is told apart.
const WAIT_MAX_US: u64 = 100_000_000;
/// The longest queue, and the most connections in a second.
const COUNT_MAX: u64 = 10_000_000;
/// The longest time between accepts, ns.
const SERVICE_MAX_NS: u64 = crate::wait::SERVICE_MAX_NS;
/// Sources of which the largest rate is kept.
const SOURCES: usize = 16;

/// Verdicts on connections that would have waited for too long.
const WAITED: [Verdict; 3] = [
    Verdict::SynDroppedWait,
    Verdict::SynResetWait,
    Verdict::AckResetWait,
];
/// Verdicts on SYNs while half-open connections held most places.
const FLOOD: [Verdict; 2] = [Verdict::CookieSentFlood, Verdict::SynLeftFlood];

/// One look at a listener.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// When.
    pub at: Duration,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in its listen queues together; 0: nothing listens.
    pub queue_limit: u32,
    /// Sockets that have these queues.
    pub sockets: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The estimated wait for accept(); `None` while not known.
    pub wait: Option<Duration>,
    /// What was done since it is guarded.
    pub counters: &'a Counters,
    /// By what it refuses, or would.
    pub rule: Rule,
    /// What a forecast is made of.
    pub seen: forecast::Look,
}

/// What a listener has gone through.
#[derive(Debug, Clone)]
pub struct Profile {
    begun: Counters,
    last: Counters,
    last_at: Duration,
    second: Option<Second>,
    looked: Duration,
    seconds: u64,
    full_seconds: u64,
    queue_limit: u32,
    sockets: u32,
    peak: Peak,
    /// The longest queue of each second.
    queue: Histogram<u32>,
    /// The longest wait of each second, µs.
    wait: Histogram<u32>,
    /// What the rule refuses, and what it would refuse with the targets of [`TARGETS_MS`] and the intervals of [`INTERVALS_MS`].
    forecasts: Vec<(Rule, Forecast)>,
    /// Seconds without a break in which the queue was full, until now and at most.
    full_run: u64,
    longest_full: u64,
    /// SYNs in each second.
    rate: Histogram<u32>,
    /// Times between accepts of a busy server, ns.
    service: Histogram<u32>,
    sources: Vec<Source>,
}

/// The most that was seen at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peak {
    /// Connections that waited for accept().
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Both at one look: the places in use.
    pub places: u32,
    /// The wait.
    pub wait: Duration,
    /// SYNs in a second.
    pub syns: u64,
    /// Connections in a second for which there was no place.
    pub without_place: u64,
}

/// A source of refused connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// The address, as a network of one, or the network.
    pub network: IpNet,
    /// The most refused connections a second, averaged over about a minute.
    pub per_second: f64,
    /// Its share of all refused connections at that time, 0 to 1.
    pub share: f64,
}

/// A second that is not over.
#[derive(Debug, Clone, Copy)]
struct Second {
    since: Duration,
    syns: u64,
    without_place: u64,
    queue_length: u32,
    wait_us: u64,
    full: bool,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            begun: Counters::default(),
            last: Counters::default(),
            last_at: Duration::ZERO,
            second: None,
            looked: Duration::ZERO,
            seconds: 0,
            full_seconds: 0,
            queue_limit: 0,
            sockets: 0,
            peak: Peak::default(),
            queue: distribution(COUNT_MAX),
            wait: distribution(WAIT_MAX_US),
            forecasts: Vec::new(),
            full_run: 0,
            longest_full: 0,
            rate: distribution(COUNT_MAX),
            service: distribution(SERVICE_MAX_NS),
            sources: Vec::new(),
        }
    }
}

fn distribution<C: Counter>(max: u64) -> Histogram<C> {
    Histogram::new_with_bounds(1, max, DIGITS).expect("the bounds are valid")
}

impl Profile {
    /// Takes a look in. The first one only says what was before.
    pub fn take(&mut self, look: Look<'_>) {
        let is_less = |(new, old): (&u64, &u64)| new < old;
        if look.counters.0.iter().zip(&self.last.0).any(is_less) {
            // The listener was away and began anew.
            *self = Profile::default();
        }
        if look.queue_limit > 0 {
            self.queue_limit = look.queue_limit;
            self.sockets = look.sockets;
        }
        self.foresee(&look);
        let waits = look.wait.filter(|_| look.queue_length > 0);
        let wait_us = waits.map_or(0, |wait| wait.as_micros() as u64);
        match self.second {
            None => self.begin(&look),
            Some(_) if look.at.saturating_sub(self.last_at) > STILL => {
                self.forget_gap(&look);
            }
            Some(second) => self.see(second, &look, wait_us),
        }
        self.last = *look.counters;
        self.last_at = look.at;
    }

    fn foresee(&mut self, look: &Look<'_>) {
        if self.forecasts.is_empty() {
            let rules = rules(look.rule).into_iter();
            self.forecasts = rules.map(|rule| (rule, Forecast::default())).collect();
        }
        for (rule, forecast) in &mut self.forecasts {
            forecast.take(rule, &look.seen);
        }
    }

    fn begin(&mut self, look: &Look<'_>) {
        self.begun = *look.counters;
        self.second = Some(Second::since(look.at));
    }

    /// Begins a second anew; what came meanwhile is nobody's.
    fn forget_gap(&mut self, look: &Look<'_>) {
        for (begun, (new, old)) in self
            .begun
            .0
            .iter_mut()
            .zip(look.counters.0.iter().zip(self.last.0))
        {
            *begun += new - old;
        }
        self.second = Some(Second::since(look.at));
    }

    fn see(&mut self, mut second: Second, look: &Look<'_>, wait_us: u64) {
        let more = |verdicts: &[Verdict]| sum(look.counters, verdicts) - sum(&self.last, verdicts);
        let (syns, without_place) = (more(&SYNS), more(&FULL));
        if let Some(service) = service_ns(look) {
            self.service.saturating_record(service);
        }
        second.syns += syns;
        second.without_place += without_place;
        second.queue_length = second.queue_length.max(look.queue_length);
        second.wait_us = second.wait_us.max(wait_us);
        let is_full = look.queue_limit > 0 && look.queue_length >= look.queue_limit;
        second.full |= is_full || without_place > 0;
        let places = look.queue_length.saturating_add(look.half_open);
        let peak = &mut self.peak;
        peak.queue_length = peak.queue_length.max(look.queue_length);
        peak.half_open = peak.half_open.max(look.half_open);
        peak.places = peak.places.max(places);
        peak.wait = peak.wait.max(Duration::from_micros(wait_us));
        let time = look.at.saturating_sub(second.since);
        self.second = Some(second);
        if time >= SECOND {
            self.end(second, time);
            self.second = Some(Second::since(look.at));
        }
    }

    fn end(&mut self, second: Second, time: Duration) {
        self.looked += time;
        self.seconds += 1;
        self.full_seconds += u64::from(second.full);
        self.full_run = if second.full { self.full_run + 1 } else { 0 };
        self.longest_full = self.longest_full.max(self.full_run);
        self.queue.saturating_record(second.queue_length.into());
        self.wait.saturating_record(second.wait_us);
        let a_second = |n: u64| (n as f64 / time.as_secs_f64().max(1.0)).round() as u64;
        self.rate.saturating_record(a_second(second.syns));
        let peak = &mut self.peak;
        peak.syns = peak.syns.max(a_second(second.syns));
        peak.without_place = peak.without_place.max(a_second(second.without_place));
    }

    /// Takes in which sources are refused how often at present.
    pub fn see_source(&mut self, seen: Source) {
        let known = self
            .sources
            .iter_mut()
            .find(|source| source.network == seen.network);
        match known {
            Some(source) if source.per_second < seen.per_second => *source = seen,
            Some(_) => return,
            None => self.sources.push(seen),
        }
        self.sources
            .sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        self.sources.truncate(SOURCES);
    }

    /// How long it has looked.
    pub fn looked(&self) -> Duration {
        self.looked
    }

    /// Seconds that were looked at.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Seconds in which the queue was full, or had no place for a connection.
    pub fn full_seconds(&self) -> u64 {
        self.full_seconds
    }

    /// The limit of the listen queues together, 0 while nothing has listened.
    pub fn queue_limit(&self) -> u32 {
        self.queue_limit
    }

    /// Sockets that share this limit, 0 while nothing has listened.
    pub fn sockets(&self) -> u32 {
        self.sockets
    }

    /// The most that was seen at once.
    pub fn peak(&self) -> Peak {
        self.peak
    }

    /// Counters of the time that was looked at.
    pub fn counters(&self) -> Counters {
        let mut counters = self.last;
        for (n, begun) in counters.0.iter_mut().zip(self.begun.0) {
            *n -= begun;
        }
        counters
    }

    /// Connections that have come: SYNs, without those that weir passed because the kernel had them already, and without those
    /// that repeat one of observe mode.
    pub fn connections(&self) -> u64 {
        let counters = self.counters();
        sum(&counters, &SYNS).saturating_sub(counters.get(Verdict::SynRetried))
    }

    /// Connections that were refused, for whatever reason; also those that weir leaves to a kernel that drops them.
    pub fn refused(&self) -> u64 {
        let counters = self.counters();
        let by_weir: u64 = refusals().map(|row| counters.get(row.verdict)).sum();
        by_weir + counters.get(Verdict::SynLeft)
    }

    /// Of the refused ones, those for which there was no place.
    pub fn refused_full(&self) -> u64 {
        sum(&self.counters(), &FULL)
    }

    /// Of the refused ones, those for which the wait was over target_wait.
    pub fn refused_wait(&self) -> u64 {
        sum(&self.counters(), &WAITED)
    }

    /// Connections over a class's rate.
    pub fn over_rate(&self) -> u64 {
        sum(&self.counters(), &OVER_RATE)
    }

    /// What the rule in force refuses, or would: [`crate::forecast`].
    pub fn forecast(&self) -> Option<&Forecast> {
        self.forecasts.first().map(|(_, forecast)| forecast)
    }

    /// About this share of the connections, 0 to 1, would be refused with this target; `None`: nothing is known of it.
    pub fn share_with(&self, target: Duration) -> Option<f64> {
        let (own, _) = self.forecasts.first()?;
        let rule = with_target(*own, target);
        let mut forecasts = self.forecasts.iter();
        let found = forecasts.find(|(of, _)| *of == rule)?;
        Some(found.1.share())
    }

    /// Of a server that stops for moments and catches up by itself: an interval that is longer than those moments, with the
    /// share of the connections that would be refused with it.
    pub fn catches_up(&self) -> Option<(Duration, f64)> {
        let (own, now) = self.forecasts.first()?;
        let longer = |rule: &Rule| rule.target == own.target && rule.interval > own.interval;
        let least = now.share() * CATCHES_UP;
        let mut forecasts = self.forecasts.iter().filter(|(rule, _)| longer(rule));
        let found =
            forecasts.find(|(_, with)| now.share() >= MUCH_REFUSED && with.share() <= least);
        found.map(|(rule, with)| (rule.interval, with.share()))
    }

    /// Seconds without a break in which the queue was full, at most.
    pub fn longest_full(&self) -> u64 {
        self.longest_full
    }

    /// SYNs that came while half-open connections held most places.
    pub fn flood(&self) -> u64 {
        sum(&self.counters(), &FLOOD)
    }

    /// The longest queue in this share of the seconds, 0 to 1.
    pub fn queue_at(&self, share: f64) -> u64 {
        self.queue.value_at_quantile(share)
    }

    /// The longest wait in this share of the seconds, 0 to 1.
    pub fn wait_at(&self, share: f64) -> Duration {
        Duration::from_micros(self.wait.value_at_quantile(share))
    }

    /// The most SYNs a second in this share of the seconds, 0 to 1.
    pub fn rate_at(&self, share: f64) -> u64 {
        self.rate.value_at_quantile(share)
    }

    /// The time between accepts of the busy server, in the median; `None`: it was not seen busy.
    pub fn service(&self) -> Option<Duration> {
        let of_range = |at| self.service.median_equivalent(at);
        match self.service.len() {
            0 => None,
            _ => Some(Duration::from_nanos(of_range(
                self.service.value_at_quantile(0.5),
            ))),
        }
    }

    /// The sources that were refused most in some minute, the largest first.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }
}

impl Second {
    fn since(since: Duration) -> Second {
        Second {
            since,
            syns: 0,
            without_place: 0,
            queue_length: 0,
            wait_us: 0,
            full: false,
        }
    }
}

/// This rule, and what else could be suggested instead of it.
fn rules(own: Rule) -> Vec<Rule> {
    let Some(target) = own.target else {
        return vec![own];
    };
    let targets = TARGETS_MS.map(|ms| with_target(own, Duration::from_millis(ms)));
    let intervals = INTERVALS_MS.map(|ms| Rule {
        interval: Duration::from_millis(ms),
        ..own
    });
    let longer = |rule: &Rule| rule.interval > own.interval.max(target);
    let intervals = intervals.into_iter().filter(longer);
    [own].into_iter().chain(targets).chain(intervals).collect()
}

/// As [`crate::suggest`] would set the target: the interval is no shorter.
fn with_target(own: Rule, target: Duration) -> Rule {
    match own.target == Some(target) {
        true => own,
        false => Rule {
            target: Some(target),
            interval: own.interval.max(target),
            ..own
        },
    }
}

fn sum(counters: &Counters, verdicts: &[Verdict]) -> u64 {
    verdicts.iter().map(|v| counters.get(*v)).sum()
}

/// The time between accepts of the busy server: the estimate that decides ([`crate::wait`]).
fn service_ns(look: &Look<'_>) -> Option<u64> {
    let accepts = look.seen.accepts.filter(|_| look.queue_length > 0)?;
    let service = 1e9 / accepts;
    (service >= 1.0).then_some(service as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: Rule = Rule {
        target: Some(Duration::from_millis(20)),
        interval: Duration::from_millis(200),
        least: 0,
    };

    /// Looks at a listener four times a second.
    pub(crate) struct Watch {
        pub(crate) profile: Profile,
        /// Sockets that listen.
        pub(crate) sockets: u32,
        counters: Counters,
        at: Duration,
        accepted: Option<i64>,
    }

    impl Watch {
        pub(crate) fn new() -> Watch {
            let mut watch = Watch {
                profile: Profile::default(),
                sockets: 1,
                counters: Counters::default(),
                at: Duration::from_secs(1000),
                accepted: None,
            };
            watch.look(0, 128, None);
            watch
        }

        fn look(&mut self, queue_length: u32, queue_limit: u32, service_us: Option<u64>) {
            let wait = |us: u64| Duration::from_micros(us * u64::from(queue_length));
            self.profile.take(Look {
                at: self.at,
                queue_length,
                queue_limit,
                sockets: self.sockets,
                half_open: 0,
                wait: service_us.map(wait),
                counters: &self.counters,
                rule: RULE,
                seen: forecast::Look {
                    at: self.at,
                    offered: forecast::offered(&self.counters, 0),
                    full: forecast::found_full(&self.counters),
                    accepted: self.accepted,
                    queue_length,
                    queue_limit,
                    accepts: service_us.filter(|us| *us > 0).map(|us| 1e6 / us as f64),
                    kept: 0,
                    wait: service_us.map(wait),
                    observed: true,
                },
            });
        }

        /// A second with so many connections, of which some are refused, while the queue is so long.
        pub(crate) fn second(
            &mut self,
            (admitted, verdict, refused): (u64, Verdict, u64),
            queue_length: u32,
            queue_limit: u32,
            service_us: u64,
        ) {
            for quarter in 0..4 {
                self.at += Duration::from_millis(250);
                if quarter == 0 {
                    self.counters.0[Verdict::SynAdmitted as usize] += admitted;
                    self.counters.0[verdict as usize] += refused;
                }
                self.look(queue_length, queue_limit, Some(service_us));
            }
        }
    }

    const NONE: (u64, Verdict, u64) = (0, Verdict::SynResetFull, 0);

    #[test]
    fn seconds_connections_and_peaks_are_those_of_the_looks() {
        let mut watch = Watch::new();
        for _ in 0..97 {
            watch.second((20, Verdict::SynResetFull, 0), 3, 128, 1000);
        }
        for _ in 0..3 {
            watch.second((100, Verdict::SynResetFull, 50), 128, 128, 1000);
        }
        let profile = &watch.profile;
        assert_eq!(profile.seconds(), 100);
        assert_eq!(profile.looked(), Duration::from_secs(100));
        assert_eq!(profile.full_seconds(), 3);
        assert_eq!(profile.connections(), 97 * 20 + 3 * 150);
        assert_eq!((profile.refused(), profile.refused_full()), (150, 150));
        let peak = profile.peak();
        assert_eq!((peak.queue_length, peak.places, peak.syns), (128, 128, 150));
        assert_eq!(peak.without_place, 50);
        assert_eq!(peak.wait, Duration::from_millis(128));
        assert_eq!((profile.queue_at(0.5), profile.rate_at(0.5)), (3, 20));
        let service = profile.service().unwrap().as_secs_f64();
        assert!((service - 0.001).abs() < 0.0001, "{service}");
        assert_eq!(profile.longest_full(), 3);
    }

    #[test]
    fn a_server_that_stops_for_moments_is_told_from_a_slow_one() {
        // So many quarters of a second in which nothing is accepted, in each period; or twice as many as the server accepts.
        let profile = |stops: Option<(u64, u64)>| {
            let mut watch = Watch::new();
            watch.accepted = Some(0);
            for quarter in 0..400_u64 {
                watch.at += Duration::from_millis(250);
                watch.counters.0[Verdict::SynAdmitted as usize] += 250;
                let came = 250 * (quarter as i64 + 1);
                let (waiting, accepted, service) = match stops {
                    None => (4096, 125 * (quarter as i64 + 1), 2000),
                    Some((stop, period)) => {
                        let stopped = (quarter % period + 1).saturating_sub(period - stop);
                        let waiting = 250 * stopped as u32;
                        (waiting, came - i64::from(waiting), 50)
                    }
                };
                watch.accepted = Some(accepted);
                watch.look(waiting, 4096, Some(service));
            }
            watch.profile
        };
        let short = profile(Some((2, 8)));
        assert_eq!(short.forecast().unwrap().share(), 0.0, "they are borne");
        assert_eq!(short.catches_up(), None);
        let stops = profile(Some((10, 24)));
        let share = stops.forecast().unwrap().share();
        let (interval, with) = stops.catches_up().unwrap();
        assert!(share > 0.02 && with <= share / 4.0, "{share} {with}");
        assert!(interval <= Duration::from_secs(5), "{interval:?}");
        assert_eq!(profile(None).catches_up(), None);
    }

    #[test]
    fn what_was_before_and_while_nobody_looked_is_not_counted() {
        let mut watch = Watch::new();
        watch.second((10, Verdict::SynResetFull, 0), 0, 128, 0);
        // The process stood still.
        watch.at += Duration::from_secs(60);
        watch.second((1000, Verdict::SynResetFull, 1000), 0, 128, 0);
        assert_eq!(watch.profile.connections(), 10);
        assert_eq!(watch.profile.refused(), 0);
        assert!(watch.profile.looked() < Duration::from_secs(3));
    }

    #[test]
    fn a_listener_that_was_away_begins_anew() {
        let mut watch = Watch::new();
        watch.second((10, Verdict::SynResetFull, 0), 90, 128, 1000);
        watch.counters = Counters::default();
        watch.second(NONE, 0, 128, 0);
        assert_eq!(watch.profile.connections(), 0);
        assert_eq!(watch.profile.peak(), Peak::default());
    }

    #[test]
    fn the_largest_sources_stay_and_are_bounded() {
        let mut profile = Profile::default();
        for n in 0..100_u8 {
            let network = IpNet::from(std::net::IpAddr::from([10, 0, 0, n]));
            for factor in [1.0, 0.5] {
                profile.see_source(Source {
                    network,
                    per_second: f64::from(n) * factor,
                    share: 0.1,
                });
            }
        }
        let rates: Vec<f64> = profile.sources().iter().map(|s| s.per_second).collect();
        assert_eq!((rates.len(), rates[0], rates[15]), (SOURCES, 99.0, 84.0));
    }

    proptest! {
        /// No share is over 1.
        #[test]
        fn shares_are_shares(
            seconds in prop::collection::vec((0_u64..500, 0_u64..500, 0_u32..600, 0_u64..100_000), 1..60),
        ) {
            let mut watch = Watch::new();
            for (admitted, refused, queue, service_us) in seconds {
                watch.second((admitted, Verdict::SynResetWait, refused), queue, 512, service_us);
            }
            let profile = &watch.profile;
            for ms in TARGETS_MS {
                let share = profile.share_with(Duration::from_millis(ms)).unwrap();
                prop_assert!((0.0..=1.0).contains(&share));
            }
            prop_assert!(profile.longest_full() <= profile.full_seconds());
            prop_assert!(profile.full_seconds() <= profile.seconds());
            prop_assert!(profile.refused() <= profile.connections());
            prop_assert!(profile.wait_at(0.5) <= profile.wait_at(1.0));
        }
    }
}
