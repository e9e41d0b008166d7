//! Which clients were refused and why, for an hour.
//!
//! Refusals are kept by minute and address. There is one bound for all minutes together ([`KEPT_REFUSALS`]). Once it is
//! reached, the minute with the most loses one: first an address that was sampled once in it, and among these the one with
//! the least hash. So a flood of addresses that come once each displaces its own minutes' only: a minute with at most
//! [`KEPT_REFUSALS`] / [`MINUTES`] kept refusals loses none. Inside a minute each address that came once is as likely to
//! be kept as any other (a bottom-k sample: Cohen, Kaplan, "Summarizing Data Using Bottom-k Sketches", PODC 2007, with the
//! largest hashes in place of the smallest), and one that came again stays before all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::{Refusal, Tally};

/// Minutes for which refusals are kept.
pub const MINUTES: u64 = 60;
/// Refusals that are kept at most, of all minutes: about 5 MiB.
pub const KEPT_REFUSALS: usize = 16_384;
/// Refusals that are kept of one address in one minute: one for each listener and verdict, and no more than these.
pub const PER_SOURCE: usize = 4;

/// What is kept. Times are as in [`Refusal::at`].
#[derive(Debug, Clone)]
pub struct Memory {
    secret: u64,
    since: Duration,
    most: usize,
    minutes: BTreeMap<u64, Minute>,
    kept: usize,
}

/// A minute.
#[derive(Debug, Clone, Default)]
pub struct Minute {
    /// Refusals by verdict.
    pub refused: Tally,
    /// Of these, those that were not sampled.
    pub unsampled: u64,
    /// Samples.
    pub sampled: u64,
    /// Of the samples, those that are not kept.
    pub dropped: u64,
    sources: BTreeMap<IpAddr, Source>,
    /// What its sources keep.
    places: usize,
    /// Which goes first: once before again, then by hash.
    order: BTreeSet<(bool, u64, IpAddr)>,
}

#[derive(Debug, Clone)]
struct Source {
    hash: u64,
    sampled: u64,
    kept: Vec<Kept>,
}

/// Refusals of one address in one minute, by one listener and with one verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The last of them.
    pub last: Refusal,
    /// How many were sampled.
    pub sampled: u64,
    /// How many refusals they stand for.
    pub weight: f64,
}

/// What is kept of a network.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Network {
    /// Addresses.
    pub addresses: usize,
    /// Samples.
    pub sampled: u64,
    /// How many refusals they stand for.
    pub weight: f64,
}

impl Source {
    fn came_again(&self) -> bool {
        self.sampled > 1
    }
}

fn minute_of(at: Duration) -> u64 {
    at.as_secs() / 60
}

impl Memory {
    /// An empty memory that begins at `since`. A client that does not know `secret` cannot choose addresses that are kept
    /// rather than others.
    pub fn new(since: Duration, secret: u64) -> Memory {
        Memory::with_most(since, secret, KEPT_REFUSALS)
    }

    fn with_most(since: Duration, secret: u64, most: usize) -> Memory {
        Memory {
            secret,
            since,
            most,
            minutes: BTreeMap::new(),
            kept: 0,
        }
    }

    /// From when on refusals are kept: since the beginning, an hour at most.
    pub fn since(&self, now: Duration) -> Duration {
        let first = (minute_of(now) + 1).saturating_sub(MINUTES);
        self.since.max(Duration::from_secs(first * 60))
    }

    /// Forgets the minutes that are over an hour old.
    pub fn expire(&mut self, now: Duration) {
        let first = (minute_of(now) + 1).saturating_sub(MINUTES);
        while let Some(entry) = self.minutes.first_entry()
            && *entry.key() < first
        {
            let minute = entry.remove();
            self.kept -= minute.places;
        }
    }

    /// Notes refusals that were counted until now, by verdict, and how many of them were not sampled.
    pub fn count(&mut self, now: Duration, refused: &Tally, unsampled: u64) {
        if refused.sum() == 0 && unsampled == 0 {
            return;
        }
        let minute = self.minutes.entry(minute_of(now)).or_default();
        minute.refused.add(refused);
        minute.unsampled += unsampled;
    }

    /// Keeps a sample that stands for `weight` refusals. It belongs to the minute of `now`, as its count does.
    pub fn keep(&mut self, now: Duration, refusal: &Refusal, weight: f64) {
        let address = refusal.source.ip().to_canonical();
        let minute = self.minutes.entry(minute_of(now)).or_default();
        minute.sampled += 1;
        let source = minute.sources.entry(address).or_insert_with(|| Source {
            hash: hash(self.secret, address),
            sampled: 0,
            kept: Vec::with_capacity(1),
        });
        minute
            .order
            .remove(&(source.came_again(), source.hash, address));
        source.sampled += 1;
        minute
            .order
            .insert((source.came_again(), source.hash, address));
        let is_like = |kept: &&mut Kept| {
            let last = &kept.last;
            last.listener == refusal.listener
                && last.reason == refusal.reason
                && last.observe == refusal.observe
        };
        let new = Kept {
            last: refusal.clone(),
            sampled: 1,
            weight,
        };
        if let Some(kept) = source.kept.iter_mut().find(is_like) {
            kept.sampled += 1;
            kept.weight += weight;
            kept.last = new.last;
        } else if source.kept.len() < PER_SOURCE {
            source.kept.reserve_exact(1);
            source.kept.push(new);
            minute.places += 1;
            self.kept += 1;
        } else if let Some(oldest) = source.kept.iter_mut().min_by_key(|kept| kept.last.at) {
            minute.dropped += oldest.sampled;
            *oldest = new;
        }
        while self.kept > self.most {
            self.drop_one();
        }
    }

    /// Takes one source out of the minute with the most; of several, the oldest.
    fn drop_one(&mut self) {
        let minutes = self.minutes.values_mut().rev();
        let Some(minute) = minutes.max_by_key(|minute| minute.places) else {
            return;
        };
        let gone = minute.order.pop_first();
        let gone = gone.and_then(|(.., address)| minute.sources.remove(&address));
        for kept in gone.into_iter().flat_map(|source| source.kept) {
            minute.dropped += kept.sampled;
            minute.places -= 1;
            self.kept -= 1;
        }
    }

    /// What is kept of an address, the newest first.
    pub fn of(&self, address: IpAddr) -> Vec<&Kept> {
        let address = address.to_canonical();
        let minutes = self.minutes.values();
        let sources = minutes.filter_map(|minute| minute.sources.get(&address));
        let mut kept: Vec<&Kept> = sources.flat_map(|source| &source.kept).collect();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.last.at));
        kept
    }

    /// What is kept of a network.
    pub fn network(&self, network: IpNet) -> Network {
        let mut found = Network::default();
        let mut addresses = BTreeSet::new();
        let range = network.network()..=network.broadcast();
        for minute in self.minutes.values() {
            for (address, source) in minute.sources.range(range.clone()) {
                addresses.insert(*address);
                for kept in &source.kept {
                    found.sampled += kept.sampled;
                    found.weight += kept.weight;
                }
            }
        }
        found.addresses = addresses.len();
        found
    }

    /// The minutes in which somebody was refused, the newest first, each with the time at which it began.
    pub fn minutes(&self) -> impl Iterator<Item = (Duration, &Minute)> {
        let minutes = self.minutes.iter().rev();
        minutes.map(|(number, minute)| (Duration::from_secs(number * 60), minute))
    }
}

impl Minute {
    /// Whether a refusal of this minute may be missing.
    pub fn is_incomplete(&self) -> bool {
        self.unsampled + self.dropped > 0
    }

    /// Samples that are kept.
    pub fn kept(&self) -> u64 {
        self.sampled - self.dropped
    }
}

/// SplitMix64's mix (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 19).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn hash(secret: u64, address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    mix(mix(secret ^ bits as u64) ^ (bits >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::super::Seen;
    use super::*;
    use crate::quic::QuicVerdict;
    use crate::verdict::Verdict;

    fn refusal(at_s: u64, address: u32) -> Refusal {
        Refusal {
            at: Duration::from_secs(at_s),
            listener: "web".into(),
            class: None,
            reason: Verdict::SynResetFull.into(),
            source: SocketAddr::from((Ipv4Addr::from_bits(address), 4000)),
            destination: "192.0.2.1:80".parse().unwrap(),
            seen: Seen::Queue {
                length: 4,
                half_open: 0,
                limit: 4,
                wait: Duration::from_millis(10),
            },
            observe: false,
        }
    }

    fn keep(memory: &mut Memory, refusal: &Refusal) {
        memory.expire(refusal.at);
        memory.keep(refusal.at, refusal, 1.0);
    }

    fn address(bits: u32) -> IpAddr {
        Ipv4Addr::from_bits(bits).into()
    }

    #[test]
    fn the_last_refusal_of_each_listener_and_verdict_is_kept_and_all_are_counted() {
        let mut memory = Memory::new(Duration::ZERO, 1);
        for second in [3, 5] {
            keep(&mut memory, &refusal(second, 7));
        }
        let mail = Refusal {
            listener: "mail".into(),
            ..refusal(4, 7)
        };
        keep(&mut memory, &mail);
        let kept: Vec<(u64, u64)> = memory
            .of(address(7))
            .iter()
            .map(|kept| (kept.last.at.as_secs(), kept.sampled))
            .collect();
        assert_eq!(kept, [(5, 2), (4, 1)]);
        assert!(memory.of(address(8)).is_empty());
        let network = memory.network(super::super::network_of(address(7)));
        assert_eq!((network.addresses, network.sampled), (1, 3));
    }

    #[test]
    fn after_an_hour_a_refusal_is_forgotten() {
        let mut memory = Memory::new(Duration::from_secs(30), 1);
        keep(&mut memory, &refusal(59, 7));
        let at = Duration::from_secs;
        memory.expire(at(59 * 60 + 59));
        assert_eq!(memory.of(address(7)).len(), 1);
        assert_eq!(memory.since(at(59)), at(30));
        memory.expire(at(60 * 60));
        assert!(memory.of(address(7)).is_empty());
        assert_eq!((memory.kept, memory.since(at(60 * 60))), (0, at(60)));
    }

    #[test]
    fn a_flood_of_an_hour_displaces_no_minute_with_few_and_no_address_that_came_again() {
        let mut memory = Memory::with_most(Duration::ZERO, 1, 600);
        for client in 0..10 {
            keep(&mut memory, &refusal(0, client));
        }
        for minute in 1..60 {
            let again = 1_000_000 + minute;
            for _ in 0..2 {
                keep(&mut memory, &refusal(u64::from(minute) * 60, again));
            }
            for spoofed in 0..1000 {
                let source = 2_000_000 + minute * 1000 + spoofed;
                keep(&mut memory, &refusal(u64::from(minute) * 60, source));
            }
        }
        for client in 0..10 {
            assert_eq!(memory.of(address(client)).len(), 1, "{client}");
        }
        let again = (1..60).filter(|minute| !memory.of(address(1_000_000 + minute)).is_empty());
        assert_eq!(again.count(), 59);
        let (_, newest) = memory.minutes().next().unwrap();
        assert!(newest.is_incomplete());
    }

    proptest! {
        #[test]
        fn what_is_kept_is_bounded_and_nothing_is_lost_uncounted(
            steps in prop::collection::vec((0_u64..300, 0_u32..60, 0_usize..6), 1..400), room in 1_usize..60,
        ) {
            let reasons = [Verdict::SynResetFull.into(), Verdict::SynResetWait.into(), Verdict::SynDroppedFull.into(),
                Verdict::AckResetWait.into(), QuicVerdict::QuicVnWait.into(), QuicVerdict::QuicVnRoom.into()];
            let mut memory = Memory::with_most(Duration::ZERO, 9, room);
            let (mut at, mut sampled) = (0, 0);
            for (more, source, reason) in steps {
                at += more;
                let refusal = Refusal { reason: reasons[reason], ..refusal(at, source) };
                keep(&mut memory, &refusal);
                sampled += 1;
                let kept: usize = memory.minutes.values()
                    .flat_map(|minute| minute.sources.values())
                    .map(|source| source.kept.len())
                    .sum();
                prop_assert_eq!(kept, memory.kept);
                prop_assert!(kept <= room);
                prop_assert!(memory.minutes.len() as u64 <= MINUTES);
                for minute in memory.minutes.values() {
                    prop_assert_eq!(minute.order.len(), minute.sources.len());
                    let kept: u64 = minute.sources.values().flat_map(|s| &s.kept).map(|k| k.sampled).sum();
                    prop_assert_eq!(kept, minute.kept());
                }
            }
            let all: u64 = memory.minutes.values().map(|minute| minute.sampled).sum();
            prop_assert!(all <= sampled);
        }
    }
}
