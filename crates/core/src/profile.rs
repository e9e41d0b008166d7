//! What a listener has gone through since weir looks at it: how long its queue and its wait were, how many connections came,
//! what was refused, and who was refused most. [`crate::suggest`] makes settings of it.
//!
//! A [`Profile`] takes in looks at the queue and the counters, some a second, and keeps distributions of them: about 12 KiB,
//! however long it looks. It counts in *seconds*: times between two looks that are a second or a little more apart.
//!
//! Times are of any clock that does not go back, from any beginning.

use std::time::Duration;

use hdrhistogram::{Counter, Histogram};
use ipnet::IpNet;

use crate::verdict::{Counters, SYNS, Verdict, refusals};

/// Digits of the values in the distributions that hold: an error of 6 % at most.
const DIGITS: u8 = 1;
/// A second is over after this: looks come a little early at times.
const SECOND: Duration = Duration::from_millis(990);
/// Looks that are further apart say nothing of the time between them: the process stood still.
const STILL: Duration = Duration::from_secs(10);
/// The longest wait that is told apart.
const WAIT_MAX_US: u64 = 100_000_000;
/// The longest queue, and the most connections in a second.
const COUNT_MAX: u64 = 10_000_000;
/// The longest time between accepts, ns.
const SERVICE_MAX_NS: u64 = crate::wait::SERVICE_MAX_NS;
/// Sources of which the largest rate is kept.
const SOURCES: usize = 16;

/// Verdicts on connections for which there was no place in the listen queue.
const FULL: [Verdict; 4] = [
    Verdict::SynDroppedFull,
    Verdict::SynResetFull,
    Verdict::SynLeft,
    Verdict::AckResetFull,
];
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
    /// Places in its listen queues; 0: nothing listens.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The estimated wait for accept(); `None` while not known.
    pub wait: Option<Duration>,
    /// What was done since it is guarded.
    pub counters: &'a Counters,
}

/// What a listener has gone through.
#[derive(Debug, Clone)]
pub struct Profile {
    begun: Counters,
    last: Counters,
    last_wait_us: u64,
    last_at: Duration,
    second: Option<Second>,
    looked: Duration,
    seconds: u64,
    full_seconds: u64,
    queue_limit: u32,
    peak: Peak,
    /// The longest queue of each second.
    queue: Histogram<u32>,
    /// The longest wait of each second, µs.
    wait: Histogram<u32>,
    /// The wait that each SYN found, µs.
    wait_of_syns: Histogram<u64>,
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
            last_wait_us: 0,
            last_at: Duration::ZERO,
            second: None,
            looked: Duration::ZERO,
            seconds: 0,
            full_seconds: 0,
            queue_limit: 0,
            peak: Peak::default(),
            queue: distribution(COUNT_MAX),
            wait: distribution(WAIT_MAX_US),
            wait_of_syns: distribution(WAIT_MAX_US),
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
        }
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
        self.last_wait_us = wait_us;
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
        if syns > 0 {
            // Between two looks it was one or the other; the longer one never flatters.
            let found = wait_us.max(self.last_wait_us);
            self.wait_of_syns.saturating_record_n(found, syns);
        }
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

    /// The limit of the listen queue, 0 while nothing has listened.
    pub fn queue_limit(&self) -> u32 {
        self.queue_limit
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

    /// Connections that have come: SYNs, without those that weir passed because the kernel had them already.
    pub fn connections(&self) -> u64 {
        sum(&self.counters(), &SYNS)
    }

    /// Connections that were refused, or would have been in observe mode, for whatever reason; also those that weir leaves to
    /// a kernel that drops them.
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

    /// SYNs that came while half-open connections held most places.
    pub fn flood(&self) -> u64 {
        sum(&self.counters(), &FLOOD)
    }

    /// At most this share of the connections, 0 to 1, came when the wait was this long or longer.
    pub fn share_over(&self, wait: Duration) -> f64 {
        let all = self.wait_of_syns.len();
        if all == 0 {
            return 0.0;
        }
        let over = self
            .wait_of_syns
            .count_between(wait.as_micros() as u64, WAIT_MAX_US);
        over as f64 / all as f64
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

fn sum(counters: &Counters, verdicts: &[Verdict]) -> u64 {
    verdicts.iter().map(|v| counters.get(*v)).sum()
}

/// The wait is the queue's length times the time between accepts ([`crate::wait`]).
fn service_ns(look: &Look<'_>) -> Option<u64> {
    let wait = look.wait?.as_nanos() as u64;
    let service = wait.checked_div(look.queue_length.into())?;
    (service > 0).then_some(service)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Looks at a listener four times a second.
    pub(crate) struct Watch {
        pub(crate) profile: Profile,
        counters: Counters,
        at: Duration,
    }

    impl Watch {
        pub(crate) fn new() -> Watch {
            let mut watch = Watch {
                profile: Profile::default(),
                counters: Counters::default(),
                at: Duration::from_secs(1000),
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
                half_open: 0,
                wait: service_us.map(wait),
                counters: &self.counters,
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
        let over = profile.share_over(Duration::from_millis(20));
        assert!((over - 450.0 / 2390.0).abs() < 1e-9, "{over}");
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
        /// A longer wait is never over a target less often, and no share is over 1.
        #[test]
        fn shares_are_shares_and_fall_with_the_target(
            seconds in prop::collection::vec((0_u64..500, 0_u64..500, 0_u32..600, 0_u64..100_000), 1..60),
            targets in (0_u64..20_000_000, 0_u64..20_000_000),
        ) {
            let mut watch = Watch::new();
            for (admitted, refused, queue, service_us) in seconds {
                watch.second((admitted, Verdict::SynResetWait, refused), queue, 512, service_us);
            }
            let profile = &watch.profile;
            let (low, high) = (targets.0.min(targets.1), targets.0.max(targets.1));
            let share = |us| profile.share_over(Duration::from_micros(us));
            prop_assert!(share(low) >= share(high));
            prop_assert!((0.0..=1.0).contains(&share(low)));
            prop_assert!(profile.full_seconds() <= profile.seconds());
            prop_assert!(profile.refused() <= profile.connections());
            prop_assert!(profile.wait_at(0.5) <= profile.wait_at(1.0));
        }
    }
}
