//! What the daemon keeps of sampled refusals: for `weir why`, for the sources that are refused most, as events, and as
//! lines of the log with `--verbose`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_api::{Event, KeptRefusal, RefusedMinute, SourceNetwork, TopSource, Why};
use weir_config::EventsSettings;
use weir_core::class::{Bucket, BucketLimit};
use weir_core::listener::Mode;
use weir_core::profile::Source;
use weir_core::quic::QuicCounters;
use weir_core::refusals::{
    IpNet, Kept, Memory, Protocol, Reason, Refusal, Share, Tally, TopSources, Who, network_of,
};
use weir_kernel::monotonic;

use crate::daemon::events::{self, Events, refusal_report};
use crate::daemon::session::Glance;
use crate::host::clock::unix_ms;
use crate::show::describe::count;
use crate::show::log;

/// Counters of each of the two sketches: a source with more than 1/256 of the refusals has one. Two times some 50 KiB.
const COUNTERS: usize = 256;
/// Sources that an answer has at most.
const TOP: usize = 50;
/// Sources of each of the two sketches that profiles look at.
const LARGEST: usize = 8;
/// A refusal of so long ago counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Counts are aged this often.
const AGE_EVERY: Duration = Duration::from_secs(1);
/// Less than this of a refusal is nobody.
const NEGLIGIBLE: f64 = 0.05;
/// By so much a burst of events is more than those of a second.
const BURST: u32 = 10;
/// Between two events that say how many were left out.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(10);

/// The last refusal of a source.
#[derive(Debug, Clone)]
struct Last {
    at: Duration,
    reason: Reason,
    listener: Arc<str>,
    class: Option<Arc<str>>,
}

/// What a listener has counted since it is guarded.
pub struct Counted {
    who: Who,
    mode: Mode,
    refused: Tally,
}

impl Counted {
    /// Of a listener.
    pub fn of(glance: &Glance) -> Counted {
        Counted {
            who: Who {
                protocol: Protocol::Tcp,
                name: glance.name.as_str().into(),
            },
            mode: glance.mode,
            refused: Tally::from(&glance.counters),
        }
    }

    /// Of a QUIC listener.
    pub fn of_quic(name: &str, mode: Mode, counters: &QuicCounters) -> Counted {
        Counted {
            who: Who {
                protocol: Protocol::Quic,
                name: name.into(),
            },
            mode,
            refused: Tally::from(counters),
        }
    }
}

/// What is kept. Times inside are those of the monotonic clock, as the guard has them.
pub struct Refusals {
    memory: Memory,
    addresses: TopSources<IpAddr, Last>,
    networks: TopSources<IpNet, Last>,
    shares: BTreeMap<Who, Share>,
    aged: Duration,
    since: Duration,
    bucket: Bucket,
    /// `None`: no refusal becomes an event, nor a line of the log.
    limit: Option<BucketLimit>,
    /// Whether they become events; lines of the log too, with `verbose`.
    are_events: bool,
    /// What says so.
    settings: Option<EventsSettings>,
    verbose: bool,
    left_out: u64,
    left_out_said: Duration,
    /// Every listener is observed only: nobody is refused.
    observed: bool,
}

impl Refusals {
    /// Nothing. `secret` is a random number. With `verbose`, each event is a line of the log too.
    pub fn new(secret: u64, verbose: bool) -> Refusals {
        let now = monotonic();
        Refusals {
            memory: Memory::new(now, secret),
            addresses: TopSources::new(COUNTERS),
            networks: TopSources::new(COUNTERS),
            shares: BTreeMap::new(),
            aged: now,
            since: now,
            bucket: Bucket::default(),
            limit: limit(&EventsSettings::default()),
            are_events: true,
            settings: None,
            verbose,
            left_out: 0,
            left_out_said: Duration::ZERO,
            observed: false,
        }
    }

    /// Makes as many refusals events as these settings say.
    pub fn set(&mut self, settings: Option<&EventsSettings>) {
        self.settings = settings.cloned();
        let usual = EventsSettings::default();
        let settings = settings.unwrap_or(&usual);
        self.are_events = settings.refusals > 0;
        // Whoever wants lines of the log has not asked for events.
        self.limit = match self.verbose && !self.are_events {
            true => limit(&usual),
            false => limit(settings),
        };
    }

    /// As they were [set](Self::set).
    pub fn settings(&self) -> Option<&EventsSettings> {
        self.settings.as_ref()
    }

    /// Takes in the counters of all listeners, read first, and the samples that have come since the last call.
    pub fn take(&mut self, counted: &[Counted], samples: &[Refusal], events: &Events) {
        let now = monotonic();
        let observes = |one: &Counted| one.mode == Mode::Observe;
        self.observed = !counted.is_empty() && counted.iter().all(observes);
        self.memory.expire(now);
        self.age(now);
        self.shares
            .retain(|who, _| counted.iter().any(|one| one.who == *who));
        let mut by_listener = BTreeMap::<Who, Vec<&Refusal>>::new();
        let samples = || samples.iter().filter(|sample| sample.reason.turns_away());
        for refusal in samples() {
            by_listener.entry(refusal.who()).or_default().push(refusal);
        }
        for one in counted {
            let samples = by_listener.remove(&one.who).unwrap_or_default();
            let sampled = Tally::of(samples.iter().map(|refusal| (refusal.reason, 1)));
            let share = self.shares.entry(one.who.clone()).or_default();
            let batch = share.take(&one.refused, &sampled);
            self.memory.count(now, &batch.refused, batch.unsampled);
            for refusal in samples {
                self.keep(now, refusal, batch.weight(refusal.reason));
            }
        }
        for refusal in samples() {
            self.note(now, refusal, events);
        }
        self.say_left_out(now, events);
    }

    fn keep(&mut self, now: Duration, refusal: &Refusal, weight: f64) {
        self.memory.keep(now, refusal, weight);
        let last = Last {
            at: refusal.at,
            reason: refusal.reason,
            listener: refusal.listener.clone(),
            class: refusal.class.clone(),
        };
        let address = refusal.source.ip().to_canonical();
        self.addresses.add(address, weight, last.clone());
        self.networks.add(network_of(address), weight, last);
    }

    fn age(&mut self, now: Duration) {
        let time = now.saturating_sub(self.aged);
        if time < AGE_EVERY {
            return;
        }
        self.aged = now;
        let factor = left_after(time);
        self.addresses.age(factor);
        self.networks.age(factor);
    }

    fn note(&mut self, now: Duration, refusal: &Refusal, events: &Events) {
        let Some(limit) = &self.limit else {
            return;
        };
        if !self.bucket.take(now.as_nanos() as u64, limit) {
            self.left_out += 1;
            return;
        }
        self.say(events::refusal(refusal, unix_at(now, refusal.at)), events);
    }

    fn say_left_out(&mut self, now: Duration, events: &Events) {
        if self.left_out > 0 && now.saturating_sub(self.left_out_said) >= LEFT_OUT_EVERY {
            let event = events::left_out(std::mem::take(&mut self.left_out));
            self.say(event, events);
            self.left_out_said = now;
        }
    }

    fn say(&self, event: Event, events: &Events) {
        if self.verbose {
            log::stamped_line(&event.text);
        }
        if self.are_events {
            events.note(event);
        }
    }

    /// The sources that are refused most.
    pub fn top(&self) -> weir_api::TopSources {
        let now = monotonic();
        let age = self.age_factor();
        let total = self.addresses.total() * age;
        let span = self.span();
        let addresses = listed(&self.addresses, now, age, total, span);
        let networks = listed(&self.networks, now, age, total, span);
        let left_out = share_left_out(&self.addresses, addresses.len())
            .max(share_left_out(&self.networks, networks.len()));
        weir_api::TopSources {
            observed: self.observed,
            half_life_s: HALF_LIFE.as_secs(),
            refused: tenths(total),
            refused_per_second: tenths(total / span),
            smallest_share: left_out.max(1.0 / COUNTERS as f64),
            addresses,
            networks,
        }
    }

    /// The addresses and networks that are refused most, each with the listener that refused it last, where that is one of
    /// TCP. Rates and shares are those that each has at least.
    pub fn largest(&self) -> Vec<(Arc<str>, Source)> {
        let (total, span) = (self.addresses.total(), self.span());
        let of = |network: IpNet, at_least: f64, last: &Last| {
            let source = Source {
                network,
                per_second: at_least * self.age_factor() / span,
                share: at_least / total,
            };
            let is_tcp = last.reason.protocol() == Protocol::Tcp;
            is_tcp.then(|| (last.listener.clone(), source))
        };
        let addresses = self.addresses.list().take(LARGEST);
        let networks = self.networks.list().take(LARGEST);
        let addresses = addresses.map(|one| of(IpNet::from(one.source), one.at_least, one.last));
        addresses
            .chain(networks.map(|one| of(one.source, one.at_least, one.last)))
            .flatten()
            .filter(|(_, source)| source.per_second > 0.0)
            .collect()
    }

    /// What a count is multiplied with now, after the last ageing.
    fn age_factor(&self) -> f64 {
        left_after(monotonic().saturating_sub(self.aged))
    }

    /// Seconds over which counts average: a constant rate r has come to r × (1 − 2^(−t/h)) × h / ln 2 after t.
    fn span(&self) -> f64 {
        let left = left_after(monotonic().saturating_sub(self.since));
        let full = HALF_LIFE.as_secs_f64() / std::f64::consts::LN_2;
        (full * (1.0 - left)).max(1.0)
    }

    /// Why this address was refused.
    pub fn why(&self, address: IpAddr) -> Why {
        let now = monotonic();
        let address = address.to_canonical();
        let since = self.memory.since(now);
        let kept = self.memory.of(address);
        let prefix = network_of(address);
        let network = self.memory.network(prefix);
        let gaps: Vec<RefusedMinute> = self
            .memory
            .minutes()
            .filter(|(_, minute)| minute.is_incomplete())
            .map(|(at, minute)| RefusedMinute {
                // Minutes count from the boot: the first may have begun before weir did.
                at_unix_ms: unix_at(now, at.max(since)),
                refused: minute.refused.sum(),
                sampled: minute.sampled,
                kept: minute.kept(),
                verdicts: that_fell(&minute.refused),
            })
            .collect();
        let answer = match (kept.is_empty(), gaps.is_empty()) {
            (false, _) => "refused",
            (true, true) => "not_refused",
            (true, false) => "not_known",
        };
        // What is kept may be of a time when it was refused.
        let observed = self.observed && kept.iter().all(|one| one.last.observe);
        Why {
            text: sentence(address, answer, observed, &kept, &gaps),
            observed,
            address: address.to_string(),
            answer: answer.to_owned(),
            since_unix_ms: unix_at(now, since),
            refusals: kept.iter().map(|kept| kept_report(now, kept)).collect(),
            network: SourceNetwork {
                prefix: prefix.to_string(),
                addresses: network.addresses,
                sampled: network.sampled,
                estimated: network.weight.round() as u64,
            },
            gaps,
        }
    }
}

/// How much of a refusal counts after this time, 0 to 1.
fn left_after(time: Duration) -> f64 {
    0.5_f64.powf(time.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

fn limit(settings: &EventsSettings) -> Option<BucketLimit> {
    let rate = settings.refusals;
    (rate > 0).then(|| BucketLimit::new(rate.into(), rate * BURST))
}

fn sentence(
    address: IpAddr,
    answer: &str,
    observed: bool,
    kept: &[&Kept],
    gaps: &[RefusedMinute],
) -> String {
    let lost: u64 = gaps
        .iter()
        .map(|gap| gap.refused.max(gap.sampled) - gap.kept)
        .sum();
    match answer {
        "refused" => {
            let weight: f64 = kept.iter().map(|kept| kept.weight).sum();
            let times = count(weight.round() as usize, "time");
            let about = match kept.iter().map(|kept| kept.sampled as f64).sum::<f64>() < weight {
                true => "about ",
                false => "",
            };
            let last = kept[0].last.reason.text();
            let (refused, text) = match kept[0].last.observe {
                true => ("would have refused", would_have(last)),
                false => ("refused", last.to_owned()),
            };
            format!("weir {refused} {address} {about}{times}; the last time: {text}")
        }
        "not_refused" if observed => format!(
            "weir would not have refused {address}: it has kept all that it would have refused in this time, and none is of this address"
        ),
        "not_refused" => format!(
            "weir did not refuse {address}: it has kept every refusal of this time, and none is of this address"
        ),
        _ => format!(
            "weir does not know: it keeps no refusal of {address}, but did not keep {} of this time",
            count(lost as usize, "other refusal")
        ),
    }
}

fn that_fell(refused: &Tally) -> BTreeMap<String, u64> {
    let fell = refused.rows().filter(|(_, n)| *n > 0);
    fell.map(|(reason, n)| (reason.name().to_owned(), n))
        .collect()
}

/// The sentence of a verdict that was not carried out.
fn would_have(text: &str) -> String {
    text.replacen("weir ", "weir would have ", 1)
}

fn kept_report(now: Duration, kept: &Kept) -> KeptRefusal {
    let last = &kept.last;
    KeptRefusal {
        at_unix_ms: unix_at(now, last.at),
        sampled: kept.sampled,
        estimated: kept.weight.round() as u64,
        listener: last.listener.to_string(),
        class: last.class.as_deref().map(str::to_owned),
        observed: last.observe,
        refusal: refusal_report(last),
    }
}

fn listed<K: Ord + Copy + ToString>(
    sketch: &TopSources<K, Last>,
    now: Duration,
    age: f64,
    total: f64,
    span: f64,
) -> Vec<TopSource> {
    let sources = sketch.list().take(TOP);
    let sources = sources.take_while(|source| source.at_most * age > NEGLIGIBLE);
    sources
        .map(|source| TopSource {
            source: source.source.to_string(),
            at_most: tenths(source.at_most * age),
            at_least: tenths(source.at_least * age),
            share: match total > 0.0 {
                true => (source.at_most * age / total * 1000.0).round() / 1000.0,
                false => 0.0,
            },
            per_second: tenths(source.at_most * age / span),
            last_unix_ms: unix_at(now, source.last.at),
            verdict: source.last.reason.name().to_owned(),
            listener: source.last.listener.to_string(),
            class: source.last.class.as_deref().map(str::to_owned),
        })
        .collect()
}

/// The largest share of those that have a counter, but are not among the first ones, which are listed.
fn share_left_out<K: Ord + Copy>(sketch: &TopSources<K, Last>, listed: usize) -> f64 {
    let first = sketch.list().nth(listed);
    first.map_or(0.0, |source| source.at_most / sketch.total())
}

/// The time of day at a time of the monotonic clock, by how long ago it was; in ms since 1970 UTC.
fn unix_at(now: Duration, at: Duration) -> u64 {
    let ago = now.saturating_sub(at);
    unix_ms().saturating_sub(ago.as_millis() as u64)
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use weir_core::listener::Mode;

    use weir_core::forecast::Rule;
    use weir_core::quic::QuicVerdict;
    use weir_core::refusals::Seen;
    use weir_core::verdict::{Counters, Verdict};

    use super::*;

    /// Of one address.
    fn refusal(address: u32) -> Refusal {
        let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + address);
        Refusal {
            at: Duration::ZERO,
            listener: "web".into(),
            class: None,
            reason: Verdict::SynResetFull.into(),
            source: SocketAddr::from((source, 1000)),
            destination: SocketAddr::from(([10, 0, 0, 1], 80)),
            seen: Seen::Nothing,
            observe: false,
        }
    }

    #[test]
    fn what_was_only_observed_would_have_been_done() {
        // The kernel drops it, not weir.
        let left = Reason::from(Verdict::SynLeft);
        for reason in Reason::all().filter(|reason| reason.turns_away() && *reason != left) {
            let text = would_have(reason.text());
            assert!(text.starts_with("weir would have "), "{text}");
            let verb = text.split_whitespace().nth(3);
            assert!(
                matches!(verb, Some("dropped" | "answered" | "reset")),
                "{text}"
            );
        }
        let mut refusals = Refusals::new(1, false);
        let glance = Glance {
            mode: Mode::Observe,
            ..glance(Counters::default())
        };
        refusals.take(&[Counted::of(&glance)], &[], &Events::new());
        let why = refusals.why("10.0.0.1".parse().unwrap());
        assert!(why.observed && why.text.starts_with("weir would not have refused"));
        assert!(refusals.top().observed);
    }

    #[test]
    fn without_events_of_refusals_verbose_has_its_lines_all_the_same() {
        let none = EventsSettings {
            refusals: 0,
            ..EventsSettings::default()
        };
        for verbose in [false, true] {
            let mut refusals = Refusals::new(1, verbose);
            let events = Events::new();
            refusals.note(monotonic(), &refusal(1), &events);
            let before = events.read(0, 10).events.len();
            refusals.set(Some(&none));
            assert_eq!(refusals.limit.is_some(), verbose, "a line of the log");
            refusals.note(monotonic(), &refusal(2), &events);
            assert_eq!((before, events.read(0, 10).events.len()), (1, 1));
        }
    }

    #[test]
    fn no_source_with_more_than_the_smallest_share_is_missing() {
        for sources in [10, TOP as u32, TOP as u32 + 10] {
            let mut refusals = Refusals::new(1, false);
            // A network each.
            for source in 0..sources {
                refusals.keep(monotonic(), &refusal(source << 8), 8.0);
            }
            let top = refusals.top();
            let share = 1.0 / f64::from(sources);
            let is_missing = top.addresses.len() < sources as usize;
            assert_eq!(is_missing, top.smallest_share > 0.99 * share, "{top:#?}");
            assert!(top.smallest_share >= 1.0 / COUNTERS as f64);
        }
    }

    fn glance(counters: Counters) -> Glance {
        Glance {
            name: "web".into(),
            mode: Mode::Enforce,
            counters,
            queue_length: 0,
            queue_limit: 0,
            sockets: 1,
            half_open: 0,
            came: None,
            wait: None,
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

    #[test]
    fn an_answer_with_a_cookie_is_no_refusal() {
        let mut refusals = Refusals::new(1, false);
        let mut counters = Counters::default();
        counters.0[Verdict::CookieSentFlood as usize] = 1;
        let glance = glance(counters);
        let answered = Refusal {
            reason: Verdict::CookieSentFlood.into(),
            ..refusal(1)
        };
        let events = Events::new();
        refusals.take(&[Counted::of(&glance)], &[answered], &events);
        let why = refusals.why("10.0.0.1".parse().unwrap());
        assert_eq!(why.answer, "not_refused", "{why:?}");
        let mut counters = Counters::default();
        counters.0[Verdict::SynResetFull as usize] = 1;
        let glance = Glance { counters, ..glance };
        refusals.take(&[Counted::of(&glance)], &[refusal(1)], &events);
        assert_eq!(refusals.why("10.0.0.1".parse().unwrap()).answer, "refused");
    }

    /// A listener and a QUIC listener may have one name.
    #[test]
    fn what_a_quic_listener_refuses_is_kept_beside_what_the_listener_of_its_name_does() {
        let mut refusals = Refusals::new(1, false);
        let mut counters = QuicCounters::default();
        counters.0[QuicVerdict::QuicVnWait as usize] = 6;
        counters.0[QuicVerdict::QuicRefusedAgain as usize] = 9;
        let tcp = Counted::of(&glance(Counters::default()));
        let quic = Counted::of_quic("web", Mode::Enforce, &counters);
        let wait = Duration::from_millis(35);
        let sample = Refusal {
            reason: QuicVerdict::QuicVnWait.into(),
            seen: Seen::Quic {
                pending: 12,
                wait: Some(wait),
                buffer: 4096,
                buffer_limit: 212_992,
            },
            ..refusal(1)
        };
        refusals.take(&[tcp, quic], &[sample.clone(), sample], &Events::new());
        let why = refusals.why("10.0.0.1".parse().unwrap());
        assert!(
            why.text.contains("refused 10.0.0.1 about 6 times"),
            "{why:?}"
        );
        assert!(why.text.contains("target_wait to answer"), "{}", why.text);
        let kept = &why.refusals[0];
        assert_eq!((kept.sampled, kept.estimated), (2, 6));
        assert_eq!(kept.refusal.verdict, "quic_vn_wait");
        assert_eq!(
            (kept.refusal.pending, kept.refusal.wait_us),
            (Some(12), Some(35_000))
        );
        assert_eq!(kept.refusal.queue_length, None);
        assert_eq!(why.gaps[0].verdicts["quic_vn_wait"], 6);
        assert_eq!(refusals.top().addresses[0].verdict, "quic_vn_wait");
        assert!(refusals.largest().is_empty(), "profiles are of TCP");
    }

    #[test]
    fn no_minute_is_from_before_the_start() {
        let mut refusals = Refusals::new(1, false);
        let mut counters = Counters::default();
        let events = Events::new();
        refusals.take(&[Counted::of(&glance(counters))], &[], &events);
        counters.0[Verdict::SynResetFull as usize] = 5;
        refusals.take(&[Counted::of(&glance(counters))], &[], &events);
        let why = refusals.why("192.0.2.1".parse().unwrap());
        assert_eq!((why.answer.as_str(), why.gaps.len()), ("not_known", 1));
        // Two readings of the clock: the one may be a millisecond off the other.
        assert!(why.gaps[0].at_unix_ms + 2 >= why.since_unix_ms, "{why:?}");
    }
}
