//! Settings for a listener from what it has gone through ([`crate::profile`]).
//!
//! What is decided, each with the figures that it comes from:
//!
//! - The **backlog** of the server: a queue that was full, or had no place for a connection, is to have places for the longest
//!   one that was seen and for all that came in a second without finding a place. With `admit = "wait"` a long queue is no
//!   long wait, so more places cost memory only. A queue that stays full is no burst's: places are of no use there.
//! - **target_wait**: a server of which fewer than ten connections wait is idle by chance now and then, so the target is the
//!   time of ten accepts at least. It is never made shorter than it is: how long clients may wait is the operator's to say.
//! - **interval** is no shorter than target_wait. Of a server that stops for moments and then catches up by itself, it is longer
//!   than those: a client that waits for that moment is served, and one that is refused is not.
//! - **mode**: enforce.
//! - A **class** for a source that was refused much more often than every other: its rate is a multiple of the next one's.
//!
//! More load never gives a smaller backlog, until the queue stays full, and a slower server never a shorter target_wait.

pub mod quic;

use std::time::Duration;

use crate::listener::{Admit, Listener, Mode};
use crate::profile::{Profile, Source, TARGETS_MS};

/// Less than this says little: the looks must have seen bursts.
pub const LEAST_TIME: Duration = Duration::from_secs(600);
/// Fewer connections say little of shares.
pub const LEAST_CONNECTIONS: u64 = 100;
/// Waiting connections below which a server is idle by chance now and then.
pub const WAITING: u32 = 10;
/// Backlogs below this overflow in bursts that a server absorbs easily: at 10 000 connections/s it
/// is 50 ms of them. It is the default of nginx and Apache; 128 was that of older kernels.
pub const SMALL_BACKLOG: u32 = 511;
/// The longest backlog that is suggested: the largest that Linux takes.
pub const BACKLOG_MAX: u32 = 65_535;
/// A queue that is full for so many seconds without a break is no burst's: the server is slower than its clients.
pub const FULL_STANDS_S: u64 = 10;
/// Share of the refused connections from which on a source is worth a class.
const LARGE_SHARE: f64 = 0.25;
/// By so much a source is larger than the next one to be told apart, and so much more than the next one its class may send.
const MUCH: f64 = 4.0;
/// Less than this is no rate.
const LEAST_RATE: f64 = 1.0;

/// What is missing before anything can be suggested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Look for so much longer.
    Time(Duration),
    /// Look for about so much longer, until [`LEAST_CONNECTIONS`] have come; `None`: none has come yet.
    Connections(Option<Duration>),
}

/// What is suggested for a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestion {
    /// The listener with the suggested settings.
    pub listener: Listener,
    /// The server's backlog; `None`: nothing listens.
    pub backlog: Option<Backlog>,
    /// Of a server that stops for moments and catches up by itself: the interval for it, and the share of the connections, 0 to
    /// 1, that would be refused with it.
    pub catches_up: Option<(Duration, f64)>,
    /// Why this target.
    pub target_wait: TargetWait,
    /// About this share of the connections, 0 to 1, would be refused with each of these targets: the one in force, the
    /// suggested one and the one after it.
    pub over: Vec<(Duration, f64)>,
    /// A class for one source.
    pub class: Option<Limited>,
}

/// What the server's backlog is and should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Sockets that listen, 1 at least.
    pub sockets: u32,
    /// The limits of all of them together.
    pub now: u32,
    /// Places that were needed at most, in all of them together.
    pub needed: u32,
    /// The limit to set for each; `None`: the present ones are enough, or more are of no use.
    pub raise_to: Option<u32>,
    /// It was full for so long that no place more would help.
    pub stands: bool,
}

impl Backlog {
    /// Whether one of the sockets, if all are alike, has fewer places than [`SMALL_BACKLOG`].
    pub fn is_small(&self) -> bool {
        self.now / self.sockets < SMALL_BACKLOG
    }
}

/// Where a target comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TargetWait {
    /// No connection was seen to wait.
    NothingWaited,
    /// The server, which accepts so many a second while it is busy, needs no more than the target in force.
    Enough(f64),
    /// The server is slow: so many a second.
    Slow(f64),
}

/// A source to be limited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limited {
    /// The source.
    pub source: Source,
    /// Refused connections a second of the next largest source.
    pub next: f64,
    /// The class's rate, connections/s.
    pub rate: f64,
}

/// What is missing before a profile of such a time and of so many connections is enough; `None`: it is. `least`: the time to
/// have looked at least.
pub fn missing(looked: Duration, connections: u64, least: Duration) -> Option<Missing> {
    if looked < least {
        return Some(Missing::Time(least - looked));
    }
    let more = LEAST_CONNECTIONS.saturating_sub(connections);
    let longer = |so_far: u64| looked.mul_f64(more as f64 / so_far as f64);
    match (more, connections) {
        (0, _) => None,
        (_, 0) => Some(Missing::Connections(None)),
        (_, so_far) => Some(Missing::Connections(Some(longer(so_far)))),
    }
}

/// Settings for this listener, which had `asked` while it was looked at.
pub fn suggest(asked: &Listener, profile: &Profile) -> Suggestion {
    let service = profile.service();
    let needed = service.map_or(Duration::ZERO, least_target);
    let target = asked.target_wait.max(needed);
    let per_second = service.map_or(0.0, |service| 1.0 / service.as_secs_f64().max(1e-9));
    let target_wait = match service {
        None => TargetWait::NothingWaited,
        Some(_) if target == asked.target_wait => TargetWait::Enough(per_second),
        Some(_) => TargetWait::Slow(per_second),
    };
    let mut listener = asked.clone();
    listener.mode = Mode::Enforce;
    if asked.admit == Admit::Wait {
        listener.target_wait = target;
        listener.interval = asked.interval.max(target);
    }
    let catches_up = profile
        .catches_up()
        .filter(|(interval, _)| asked.admit == Admit::Wait && *interval >= listener.interval);
    if let Some((interval, _)) = catches_up {
        listener.interval = interval;
    }
    Suggestion {
        backlog: backlog(profile),
        target_wait,
        catches_up,
        over: shares_over(profile, asked.target_wait, listener.target_wait),
        class: class(profile.sources()),
        listener,
    }
}

/// The first of [`TARGETS_MS`] in which the server accepts [`WAITING`] connections; the last one of a slower server.
fn least_target(service: Duration) -> Duration {
    let time = service * WAITING;
    let mut targets = TARGETS_MS.iter().map(|ms| Duration::from_millis(*ms));
    let last = Duration::from_millis(TARGETS_MS[TARGETS_MS.len() - 1]);
    targets.find(|target| *target >= time).unwrap_or(last)
}

fn shares_over(profile: &Profile, now: Duration, suggested: Duration) -> Vec<(Duration, f64)> {
    let targets = TARGETS_MS.map(Duration::from_millis);
    let next = targets.into_iter().find(|target| *target > suggested);
    let mut all: Vec<Duration> = [now, suggested].into_iter().chain(next).collect();
    all.dedup();
    let share = |target| Some((target, profile.share_with(target)?));
    all.into_iter().filter_map(share).collect()
}

fn backlog(profile: &Profile) -> Option<Backlog> {
    let (now, sockets) = (profile.queue_limit(), profile.sockets().max(1));
    let peak = profile.peak();
    let without = peak.without_place.min(BACKLOG_MAX.into()) as u32;
    let needed = peak.places.saturating_add(without).min(BACKLOG_MAX);
    // All of them were full: what came was for all of them.
    let raised = needed
        .max(now.saturating_add(1))
        .div_ceil(sockets)
        .next_power_of_two()
        .min(BACKLOG_MAX);
    let is_more = raised.saturating_mul(sockets) > now;
    let is_short = profile.full_seconds() > 0 && needed > 0 && needed >= now && is_more;
    let stands = profile.longest_full() >= FULL_STANDS_S;
    (now > 0).then_some(Backlog {
        sockets,
        now,
        needed,
        raise_to: (is_short && !stands).then_some(raised),
        stands,
    })
}

fn class(sources: &[Source]) -> Option<Limited> {
    // An address before its network: the class takes no more than it must.
    let (addresses, networks): (Vec<&Source>, Vec<&Source>) = sources
        .iter()
        .partition(|source| source.network.prefix_len() == source.network.max_prefix_len());
    [addresses, networks].into_iter().find_map(|sources| {
        let [first, next, ..] = sources.as_slice() else {
            return None;
        };
        let rate = (next.per_second * MUCH).ceil().max(LEAST_RATE);
        let is_large = first.share >= LARGE_SHARE && first.per_second > rate;
        is_large.then_some(Limited {
            source: **first,
            next: next.per_second,
            rate,
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::listener::ListenAddress;
    use crate::profile::tests::Watch;
    use crate::verdict::Verdict;

    fn web() -> Listener {
        Listener {
            mode: Mode::Observe,
            ..Listener::new("web", ListenAddress { ip: None, port: 80 })
        }
    }

    fn seconds(watch: &mut Watch, n: u32, come: (u64, u64), queue: u32, service_us: u64) {
        for _ in 0..n {
            let come = (come.0, Verdict::SynResetFull, come.1);
            watch.second(come, queue, 128, service_us);
        }
    }

    fn source(network: &str, per_second: f64, share: f64) -> Source {
        Source {
            network: network.parse().unwrap(),
            per_second,
            share,
        }
    }

    #[test]
    fn it_asks_for_time_and_then_for_connections() {
        let mut watch = Watch::new();
        seconds(&mut watch, 10, (5, 0), 0, 0);
        let missing = |watch: &Watch, least| {
            let (looked, connections) = (watch.profile.looked(), watch.profile.connections());
            missing(looked, connections, Duration::from_secs(least))
        };
        assert_eq!(
            missing(&watch, 60),
            Some(Missing::Time(Duration::from_secs(50)))
        );
        // 50 of 100 have come in 10 s.
        let half = Missing::Connections(Some(Duration::from_secs(10)));
        assert_eq!(missing(&watch, 10), Some(half));
        seconds(&mut watch, 10, (5, 0), 0, 0);
        assert_eq!(missing(&watch, 10), None);
        let mut silent = Watch::new();
        seconds(&mut silent, 10, (0, 0), 0, 0);
        assert_eq!(missing(&silent, 10), Some(Missing::Connections(None)));
    }

    #[test]
    fn a_quiet_server_keeps_what_it_has_and_is_protected() {
        let mut watch = Watch::new();
        seconds(&mut watch, 100, (5, 0), 0, 0);
        let suggestion = suggest(&web(), &watch.profile);
        let expected = Listener {
            mode: Mode::Enforce,
            ..web()
        };
        assert_eq!(suggestion.listener, expected);
        assert_eq!(suggestion.target_wait, TargetWait::NothingWaited);
        let backlog = suggestion.backlog.unwrap();
        assert_eq!((backlog.now, backlog.raise_to), (128, None));
        assert_eq!(suggestion.class, None);
    }

    #[test]
    fn a_full_queue_is_to_have_places_for_the_burst_that_filled_it() {
        let mut watch = Watch::new();
        seconds(&mut watch, 97, (5, 0), 2, 200);
        seconds(&mut watch, 3, (128, 600), 128, 200);
        let backlog = suggest(&web(), &watch.profile).backlog.unwrap();
        assert_eq!((backlog.needed, backlog.raise_to), (728, Some(1024)));
    }

    #[test]
    fn a_queue_that_stays_full_is_no_burst_s() {
        let mut watch = Watch::new();
        seconds(&mut watch, 4, (5, 0), 2, 200_000);
        seconds(&mut watch, 38, (5, 45), 128, 200_000);
        let backlog = suggest(&web(), &watch.profile).backlog.unwrap();
        assert!(backlog.stands && backlog.raise_to.is_none(), "{backlog:?}");
    }

    #[test]
    fn several_sockets_share_the_places_that_a_burst_needs() {
        let mut watch = Watch::new();
        watch.sockets = 4;
        seconds(&mut watch, 3, (128, 600), 128, 200);
        let backlog = suggest(&web(), &watch.profile).backlog.unwrap();
        assert_eq!(
            (backlog.sockets, backlog.now, backlog.needed),
            (4, 128, 728)
        );
        assert_eq!(backlog.raise_to, Some(256), "4 × 256 are 1024");
        assert!(backlog.is_small());
    }

    #[test]
    fn the_target_of_a_slow_server_is_the_time_of_ten_accepts() {
        // µs of an accept, and the target that it takes.
        for (service_us, ms) in [
            (200, 20),
            (2_000, 20),
            (3_000, 50),
            (90_000, 1000),
            (900_000, 10_000),
        ] {
            let mut watch = Watch::new();
            seconds(&mut watch, 100, (5, 0), 1, service_us);
            let suggestion = suggest(&web(), &watch.profile);
            let listener = suggestion.listener;
            assert_eq!(listener.target_wait, Duration::from_millis(ms));
            assert_eq!(listener.interval, Duration::from_millis(ms.max(200)));
            let is_slow = matches!(suggestion.target_wait, TargetWait::Slow(_));
            assert_eq!(is_slow, ms > 20, "{service_us}");
        }
    }

    #[test]
    fn a_target_that_the_operator_has_set_is_not_made_shorter() {
        let mut watch = Watch::new();
        seconds(&mut watch, 100, (5, 0), 1, 3_000);
        let target_wait = Duration::from_millis(80);
        let asked = Listener {
            target_wait,
            ..web()
        };
        assert_eq!(
            suggest(&asked, &watch.profile).listener.target_wait,
            target_wait
        );
        let by_places = Listener {
            admit: Admit::Queue,
            ..web()
        };
        let suggestion = suggest(&by_places, &watch.profile);
        assert_eq!(suggestion.listener.target_wait, by_places.target_wait);
    }

    #[test]
    fn a_source_far_above_the_next_gets_a_class_and_an_address_before_its_network() {
        let one = source("203.0.113.7/32", 310.0, 0.6);
        let of = |sources: &[Source]| class(sources);
        assert_eq!(of(&[one]), None, "nothing to compare with");
        let next = source("198.51.100.9/32", 12.0, 0.02);
        let network = source("203.0.113.0/24", 320.0, 0.62);
        let limited = of(&[network, one, next]).unwrap();
        assert_eq!((limited.source, limited.rate), (one, 48.0));
        // Many addresses of one network.
        let crowd = [
            network,
            source("203.0.113.7/32", 13.0, 0.03),
            next,
            source("198.51.100.0/24", 14.0, 0.03),
        ];
        let limited = of(&crowd).unwrap();
        assert_eq!((limited.source, limited.rate), (network, 56.0));
        assert_eq!(of(&[source("203.0.113.7/32", 30.0, 0.6), next]), None);
        assert_eq!(of(&[source("203.0.113.7/32", 310.0, 0.2), next]), None);
    }

    proptest! {
        /// The same looks with more connections and longer queues.
        #[test]
        fn more_load_never_gives_a_smaller_backlog(
            looks in prop::collection::vec((0_u64..400, 0_u64..400, 0_u32..=129), 1..40),
            more in (0_u64..400, 0_u64..400, 0_u32..200),
        ) {
            let (mut less_watch, mut more_watch) = (Watch::new(), Watch::new());
            for (admitted, refused, queue) in looks {
                less_watch.second((admitted, Verdict::SynResetFull, refused), queue, 128, 100);
                let come = (admitted + more.0, Verdict::SynResetFull, refused + more.1);
                more_watch.second(come, (queue + more.2).min(129), 128, 100);
            }
            let of = |watch: &Watch| suggest(&web(), &watch.profile).backlog.unwrap();
            let (less, more) = (of(&less_watch), of(&more_watch));
            prop_assert!(less.needed <= more.needed);
            prop_assert!(more.stands || less.raise_to.unwrap_or(128) <= more.raise_to.unwrap_or(128));
        }

        /// The same queues before a server whose every accept takes longer.
        #[test]
        fn a_slower_server_never_gets_a_shorter_target(
            looks in prop::collection::vec((1_u32..=129, 1_u64..200_000), 1..40),
            more in 0_u64..200_000,
        ) {
            let (mut fast, mut slow) = (Watch::new(), Watch::new());
            for (queue, service_us) in looks {
                fast.second((5, Verdict::SynResetFull, 0), queue, 128, service_us);
                slow.second((5, Verdict::SynResetFull, 0), queue, 128, service_us + more);
            }
            let target = |watch: &Watch| suggest(&web(), &watch.profile).listener.target_wait;
            prop_assert!(target(&fast) <= target(&slow));
        }

        /// Whatever was seen, the settings are within the ranges of their keys.
        #[test]
        fn settings_are_in_their_ranges(
            looks in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()), 1..40),
            target_ms in 1_u64..=10_000,
        ) {
            let mut watch = Watch::new();
            for (admitted, refused, queue, service_us) in looks {
                let come = (admitted.into(), Verdict::SynResetFull, refused.into());
                watch.second(come, queue, queue / 2, service_us.into());
            }
            let asked = Listener { target_wait: Duration::from_millis(target_ms), ..web() };
            let suggestion = suggest(&asked, &watch.profile);
            let range = Duration::from_millis(1)..=Duration::from_secs(10);
            prop_assert!(range.contains(&suggestion.listener.target_wait));
            prop_assert!(range.contains(&suggestion.listener.interval));
            prop_assert!(suggestion.listener.target_wait >= asked.target_wait);
            prop_assert!(suggestion.listener.interval >= suggestion.listener.target_wait);
            if let Some(Backlog { now, raise_to: Some(raised), .. }) = suggestion.backlog {
                prop_assert!(raised > now && raised <= BACKLOG_MAX);
            }
            prop_assert!(suggestion.over.iter().all(|(_, share)| (0.0..=1.0).contains(share)));
        }
    }
}
