//! What a QUIC listener has gone through: how long attempts waited for an answer, how full the receive buffer was, and what was
//! refused. [`crate::suggest::quic`] makes settings of it.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::{COUNT_MAX, SECOND, SERVICE_MAX_NS, STILL, TARGETS_MS, WAIT_MAX_US, distribution};
use crate::forecast::Would;
use crate::forecast::quic::{QuicForecast, QuicRule};
use crate::quic::{QuicCounters, QuicLook, QuicSocket, QuicVerdict};

/// The longest target that is suggested: half of the second after which a client repeats its Initial (RFC 9002, Section 6.2.2).
pub const LONGEST_TARGET: Duration = Duration::from_millis(500);
/// Verdicts on attempts that would have waited for too long.
const WAITED: [QuicVerdict; 2] = [QuicVerdict::QuicVnWait, QuicVerdict::QuicDroppedWait];
/// Verdicts on attempts that found the receive buffer fuller than `room`.
const NO_ROOM: [QuicVerdict; 2] = [QuicVerdict::QuicVnRoom, QuicVerdict::QuicDroppedRoom];

/// What a QUIC listener has gone through. It counts in seconds, as [`super::Profile`] does.
#[derive(Debug, Clone)]
pub struct QuicProfile {
    begun: QuicCounters,
    last: QuicCounters,
    last_at: Duration,
    /// The wait stood over the target at the last look.
    stood: bool,
    second: Option<Second>,
    looked: Duration,
    seconds: u64,
    full_seconds: u64,
    bursts: u64,
    sockets: usize,
    buffer_limit: Option<u32>,
    peak: QuicPeak,
    /// The longest wait of each second, µs.
    wait: Histogram<u32>,
    /// Attempts in each second.
    rate: Histogram<u32>,
    /// Times per answer of a busy socket, ns.
    service: Histogram<u32>,
    /// What the rule refuses, or would, and what it would with longer targets.
    forecasts: Vec<(QuicRule, QuicForecast)>,
}

/// The most that was seen at once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct QuicPeak {
    /// Attempts that were let in and not answered.
    pub pending: u32,
    /// The wait for an answer.
    pub wait: Duration,
    /// The share of a receive buffer that was taken, 0 to 1.
    pub fullness: f64,
    /// Attempts in a second.
    pub attempts: u64,
}

/// A second that is not over.
#[derive(Debug, Clone, Copy)]
struct Second {
    since: Duration,
    attempts: u64,
    wait: Duration,
    full: bool,
}

impl Second {
    fn since(since: Duration) -> Second {
        Second {
            since,
            attempts: 0,
            wait: Duration::ZERO,
            full: false,
        }
    }
}

impl Default for QuicProfile {
    fn default() -> QuicProfile {
        QuicProfile {
            begun: QuicCounters::default(),
            last: QuicCounters::default(),
            last_at: Duration::ZERO,
            stood: false,
            second: None,
            looked: Duration::ZERO,
            seconds: 0,
            full_seconds: 0,
            bursts: 0,
            sockets: 0,
            buffer_limit: None,
            peak: QuicPeak::default(),
            wait: distribution(WAIT_MAX_US),
            rate: distribution(COUNT_MAX),
            service: distribution(SERVICE_MAX_NS),
            forecasts: Vec::new(),
        }
    }
}

impl QuicProfile {
    /// Takes a look in. The first one only says what was before.
    pub fn take(&mut self, look: QuicLook<'_>) {
        let is_less = |(new, old): (&u64, &u64)| new < old;
        if look.counters.0.iter().zip(&self.last.0).any(is_less) {
            // The listener was away and began anew.
            *self = QuicProfile::default();
        }
        if !look.sockets.is_empty() {
            self.sockets = look.sockets.len();
            self.buffer_limit = look.sockets.iter().map(|one| one.buffer_limit).min();
        }
        if self.forecasts.is_empty() {
            let rules = rules(QuicRule::from(look.listener)).into_iter();
            self.forecasts = rules.map(|rule| (rule, QuicForecast::default())).collect();
        }
        for (rule, forecast) in &mut self.forecasts {
            forecast.take(rule, &look);
        }
        match self.second {
            None => {
                self.begun = *look.counters;
                self.second = Some(Second::since(look.at));
            }
            Some(_) if look.at.saturating_sub(self.last_at) > STILL => {
                self.begun = look.counters.since(&self.counters());
                self.second = Some(Second::since(look.at));
            }
            Some(second) => self.see(second, &look),
        }
        self.last = *look.counters;
        self.last_at = look.at;
    }

    fn see(&mut self, mut second: Second, look: &QuicLook<'_>) {
        let new = look.counters.since(&self.last);
        let attempts = new.let_in() + new.refused();
        let no_room = sum(&new, &NO_ROOM);
        let stands = look.sockets.iter().any(|socket| socket.standing);
        // What is over `room` is refused for that, whatever the wait: whether it was a burst, the wait before and after says.
        if !stands && !self.stood && sum(&new, &WAITED) == 0 {
            self.bursts += no_room;
        }
        self.stood = stands;
        let busy = look.sockets.iter().filter(|socket| socket.pending > 0);
        if let Some(service) = busy.filter_map(|socket| socket.service).max() {
            self.service.saturating_record(service.as_nanos() as u64);
        }
        let wait = look.sockets.iter().filter_map(|socket| socket.wait).max();
        let wait = wait.unwrap_or_default();
        let pending = look.sockets.iter().map(|socket| socket.pending);
        // How full a buffer is, is known of the moment in which an attempt comes.
        let sockets = look.sockets.iter().filter(|_| attempts > 0);
        let fullness = sockets.map(QuicSocket::fullness).fold(0.0, f64::max);
        let room = look.listener.room;
        second.attempts += attempts;
        second.wait = second.wait.max(wait);
        second.full |= no_room > 0 || (room > 0.0 && fullness > room);
        let peak = &mut self.peak;
        peak.pending = peak.pending.max(pending.fold(0, u32::saturating_add));
        peak.wait = peak.wait.max(wait);
        peak.fullness = peak.fullness.max(fullness);
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
        self.wait.saturating_record(second.wait.as_micros() as u64);
        let attempts = (second.attempts as f64 / time.as_secs_f64().max(1.0)).round() as u64;
        self.rate.saturating_record(attempts);
        self.peak.attempts = self.peak.attempts.max(attempts);
    }

    /// How long it has looked.
    pub fn looked(&self) -> Duration {
        self.looked
    }

    /// Seconds that were looked at.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Counters of the time that was looked at.
    pub fn counters(&self) -> QuicCounters {
        self.last.since(&self.begun)
    }

    /// Attempts that have come, each once.
    pub fn attempts(&self) -> u64 {
        let counters = self.counters();
        counters.let_in() + counters.refused()
    }

    /// Attempts that were refused, for whatever reason; in observe mode, that found it as if they were to be.
    pub fn refused(&self) -> u64 {
        self.counters().refused()
    }

    /// What the rule in force would refuse, while nobody is refused: [`crate::forecast::quic`].
    pub fn would(&self) -> Would {
        let own = self.forecasts.first();
        own.map_or(Would::default(), |(_, forecast)| forecast.would())
    }

    /// About this share of the attempts, 0 to 1, would be refused with this target; `None`: nothing is known of it.
    pub fn share_with(&self, target: Duration) -> Option<f64> {
        let mut forecasts = self.forecasts.iter();
        let found = forecasts.find(|(rule, _)| rule.target == target)?;
        Some(found.1.would().share())
    }

    /// Of the refused ones, those that found the receive buffer fuller than `room`.
    pub fn refused_room(&self) -> u64 {
        sum(&self.counters(), &NO_ROOM)
    }

    /// Of the refused ones, those for which the wait was over the target.
    pub fn refused_wait(&self) -> u64 {
        sum(&self.counters(), &WAITED)
    }

    /// Of the refused ones, those that found the buffer fuller than `room` while no wait stood over the target: bursts.
    pub fn refused_in_bursts(&self) -> u64 {
        self.bursts
    }

    /// Attempts that the server has answered.
    pub fn answered(&self) -> u64 {
        self.counters().get(QuicVerdict::QuicAnswered)
    }

    /// Seconds in which a receive buffer was fuller than `room`.
    pub fn full_seconds(&self) -> u64 {
        self.full_seconds
    }

    /// The most that was seen at once.
    pub fn peak(&self) -> QuicPeak {
        self.peak
    }

    /// Sockets to which attempts came, at the last look at which there were any.
    pub fn sockets(&self) -> usize {
        self.sockets
    }

    /// Bytes that the smallest of their receive buffers takes; `None`: no attempt has come.
    pub fn buffer_limit(&self) -> Option<u32> {
        self.buffer_limit
    }

    /// The longest wait in this share of the seconds, 0 to 1.
    pub fn wait_at(&self, share: f64) -> Duration {
        Duration::from_micros(self.wait.value_at_quantile(share))
    }

    /// The most attempts a second in this share of the seconds, 0 to 1.
    pub fn rate_at(&self, share: f64) -> u64 {
        self.rate.value_at_quantile(share)
    }

    /// The time per answer of the slowest busy socket, in the median; `None`: none was seen busy.
    pub fn service(&self) -> Option<Duration> {
        let median = self.service.value_at_quantile(0.5);
        let known = Duration::from_nanos(self.service.median_equivalent(median));
        (!self.service.is_empty()).then_some(known)
    }
}

/// This rule, and those with the longer targets that are suggested.
fn rules(own: QuicRule) -> Vec<QuicRule> {
    let targets = TARGETS_MS.map(Duration::from_millis).into_iter();
    let longer = targets.filter(|target| *target > own.target && *target <= LONGEST_TARGET);
    let with = |target| QuicRule {
        target,
        interval: own.interval.max(target),
        ..own
    };
    [own].into_iter().chain(longer.map(with)).collect()
}

fn sum(counters: &QuicCounters, verdicts: &[QuicVerdict]) -> u64 {
    verdicts.iter().map(|v| counters.get(*v)).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::listener::ListenAddress;
    use crate::quic::QuicListener;

    pub(crate) fn h3() -> QuicListener {
        let port = 443;
        QuicListener::new("h3", ListenAddress { ip: None, port })
    }

    /// A socket with these many attempts waiting, of so many µs each, and so full in percent.
    pub(crate) fn socket(pending: u32, service_us: u64, full: u32) -> QuicSocket {
        let service = (service_us > 0).then(|| Duration::from_micros(service_us));
        QuicSocket {
            pending,
            wait: service.map(|service| service * pending),
            service,
            buffer: (2 << 20) / 100 * full,
            buffer_limit: 2 << 20,
            standing: false,
            least: 2,
        }
    }

    /// Looks at a QUIC listener four times a second.
    pub(crate) struct Watch {
        pub(crate) profile: QuicProfile,
        pub(crate) counters: QuicCounters,
        at: Duration,
    }

    impl Watch {
        pub(crate) fn new() -> Watch {
            let mut watch = Watch {
                profile: QuicProfile::default(),
                counters: QuicCounters::default(),
                at: Duration::from_secs(1000),
            };
            watch.look(&[]);
            watch
        }

        fn look(&mut self, sockets: &[QuicSocket]) {
            self.profile.take(QuicLook {
                at: self.at,
                listener: &h3(),
                counters: &self.counters,
                sockets,
            });
        }

        /// A second in which attempts are let in and answered, and others refused by a verdict, before sockets like these.
        pub(crate) fn second(
            &mut self,
            let_in: u64,
            refused: (QuicVerdict, u64),
            sockets: &[QuicSocket],
        ) {
            for quarter in 0..4 {
                self.at += Duration::from_millis(250);
                if quarter == 0 {
                    self.counters.0[QuicVerdict::QuicAdmitted as usize] += let_in;
                    self.counters.0[QuicVerdict::QuicAnswered as usize] += let_in;
                    self.counters.0[refused.0 as usize] += refused.1;
                }
                self.look(sockets);
            }
        }
    }

    const NONE: (QuicVerdict, u64) = (QuicVerdict::QuicVnWait, 0);

    #[test]
    fn attempts_waits_and_peaks_are_those_of_the_looks() {
        let mut watch = Watch::new();
        for _ in 0..97 {
            watch.second(20, NONE, &[socket(1, 2000, 1)]);
        }
        let busy = QuicSocket {
            standing: true,
            least: 2,
            ..socket(30, 2000, 60)
        };
        for _ in 0..3 {
            let late = (QuicVerdict::QuicVnWait, 50);
            watch.second(100, late, &[busy, socket(4, 1000, 0)]);
        }
        let profile = &watch.profile;
        assert_eq!(
            (profile.seconds(), profile.looked()),
            (100, Duration::from_secs(100))
        );
        assert_eq!(profile.attempts(), 97 * 20 + 3 * 150);
        assert_eq!((profile.refused_wait(), profile.refused_room()), (150, 0));
        assert_eq!(profile.answered(), 97 * 20 + 3 * 100);
        let peak = profile.peak();
        assert_eq!((peak.pending, peak.attempts), (34, 150));
        assert_eq!(peak.wait, Duration::from_millis(60));
        assert!((peak.fullness - 0.6).abs() < 0.01, "{peak:?}");
        assert_eq!((profile.full_seconds(), profile.sockets()), (3, 2));
        assert_eq!(profile.buffer_limit(), Some(2 << 20));
        let service = profile.service().unwrap().as_secs_f64();
        assert!((service - 0.002).abs() < 0.0002, "{service}");
    }

    #[test]
    fn what_finds_no_room_while_no_wait_stands_came_in_a_burst() {
        let no_room = (QuicVerdict::QuicDroppedRoom, 7);
        let mut watch = Watch::new();
        watch.second(100, no_room, &[socket(3, 100, 0)]);
        assert_eq!(watch.profile.refused_in_bursts(), 7);
        assert_eq!(watch.profile.full_seconds(), 1, "though no look saw it");
        let overload = QuicSocket {
            standing: true,
            least: 2,
            ..socket(300, 2000, 60)
        };
        for _ in 0..5 {
            watch.second(100, no_room, &[overload]);
        }
        // It has ended: what came in its last quarter is still of it.
        watch.second(100, no_room, &[socket(0, 2000, 60)]);
        assert_eq!(watch.profile.refused_in_bursts(), 7);
        assert_eq!(watch.profile.refused_room(), 49);
    }

    #[test]
    fn what_was_before_and_while_nobody_looked_is_not_counted() {
        let mut watch = Watch::new();
        watch.counters.0[QuicVerdict::QuicAdmitted as usize] = 5000;
        watch = Watch {
            profile: QuicProfile::default(),
            ..watch
        };
        watch.look(&[]);
        watch.second(10, NONE, &[]);
        watch.at += Duration::from_secs(60);
        watch.second(1000, NONE, &[]);
        assert_eq!(watch.profile.attempts(), 10);
        // A listener that was away begins anew.
        watch.counters = QuicCounters::default();
        watch.second(3, NONE, &[]);
        assert_eq!(watch.profile.attempts(), 0);
        watch.second(3, NONE, &[]);
        assert_eq!(watch.profile.attempts(), 3);
    }

    proptest! {
        #[test]
        fn parts_are_no_more_than_the_whole(
            seconds in prop::collection::vec((0_u64..500, 0_u64..500, 0_u32..600, 0_u64..100_000, 0_u32..=100), 1..40),
        ) {
            let mut watch = Watch::new();
            for (let_in, refused, pending, service_us, full) in seconds {
                let verdict = if full > 50 { QuicVerdict::QuicVnRoom } else { QuicVerdict::QuicVnWait };
                watch.second(let_in, (verdict, refused), &[socket(pending, service_us, full)]);
            }
            let profile = &watch.profile;
            prop_assert!(profile.refused_in_bursts() <= profile.refused_room());
            prop_assert!(profile.refused_room() + profile.refused_wait() <= profile.refused());
            prop_assert!(profile.refused() <= profile.attempts());
            prop_assert!(profile.full_seconds() <= profile.seconds());
            prop_assert!(profile.wait_at(0.5) <= profile.wait_at(1.0));
            prop_assert!(profile.would().refused <= profile.refused());
            for ms in [20, 50, 500] {
                let share = profile.share_with(Duration::from_millis(ms)).unwrap();
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }
}
