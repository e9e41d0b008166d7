//! Cache hits and passed-through transfers in one proxy at the same time (RR02, Section 4.4).
//!
//! weir as a forward proxy with a cache, one thread. One side is there all the time and its latency is watched; of
//! the other more and more is added. Passed transfers while hits are added are RR02's Figure 18: of those that go to the
//! origin three in eight are tunnels (CONNECT), and the latency is that of the others. Hits while passed
//! transfers are added are Figure 19, without tunnels.
//!
//! In the closed loop clients ask as soon as they have their reply, as RR02's. That shows what happens when
//! something is saturated. With a pace, each side has a rate that takes a share of the proxy's core when it is there
//! alone; the rates are found before the rounds, with the first contender, and are the same for all: only so
//! is "as much of one as of the other" said of hits and passed transfers, whose costs differ.
//!
//! Here the proxy's core is to be what is short, and not the lab's. So the clients' receive work is done on it
//! ([`crate::proxy::wire`] is left out), packets are handled as they come, without moderation, and the link to the
//! origin is faster than in other experiments.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::proxy::bed::{Link, Receive};
use crate::proxy::clients::{Ask, Load, PATIENCE, Span, Style, Way};
use crate::proxy::contender::{Contender, ProxyMode, ProxyProgram};
use crate::proxy::rig::{Plan, Rig, Seen, origin_address};
use crate::proxy::size::Size;
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};
use crate::run::statistics::Spread;
use crate::show::format::count;

const MIXED: Entry = Entry::new::<Args>(
    "proxy-mixed",
    "What do cache hits and passed transfers in one proxy cost each other?",
)
.source("RR02 Section 4.4, Figures 18 and 19")
.flags(
    "--paces closed --rounds 17",
    "--sizes 64K --paces closed --clients 8 --added-clients 8 --rounds 1",
);

/// The experiment, and its run at a given pace.
pub const ENTRIES: &[Entry] = &[
    MIXED,
    MIXED
        .preset(
            "proxy-mixed-paced",
            "The same where each side has a rate that takes a share of the proxy's core.",
        )
        .flags(
            "--paces paced --seconds 0.2 --rounds 25",
            "--sizes 64K --paces paced --clients 8 --share 0.1 --added-shares 0.1 --rounds 1",
        ),
];

const CACHE: &str = "64MiB";
/// RR02: 15 of the 40 that go to the origin are tunnels.
const TUNNELS_OF_40: usize = 15;
const LINK_MBIT: u32 = 5000;
/// Steps to about the rate that takes a share of the core: a request costs less the more of them there are.
const RATE_STEPS: usize = 3;
/// The first of them, requests/s.
const FIRST_RATE: f64 = 2_000.0;
/// Windows from which the last step is taken, as what else the machine does may fall into some.
const LAST_WINDOWS: usize = 5;
/// Less than this share of the core is not told from what other programs do there.
const LEAST_BUSY: f64 = 0.01;
/// A growth that is this much larger than another counts as larger: less is within the noise of the quartiles.
const FAIR: f64 = 1.25;
const ROUNDS: usize = 9;

/// What requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// Passed through to the origin.
    Passed,
    /// Served from the cache.
    Hits,
}

impl Side {
    /// Both, in the order of RR02's Figures 18 and 19.
    const WATCHED: [Side; 2] = [Side::Passed, Side::Hits];

    /// The one that is added while this one is watched.
    fn other(self) -> Side {
        match self {
            Side::Hits => Side::Passed,
            Side::Passed => Side::Hits,
        }
    }
}

/// When clients ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pace {
    /// As soon as they have their reply, as RR02's; amounts are clients.
    Closed,
    /// At a rate that takes a share of the proxy's core; amounts are shares, 0 to 1.
    Paced,
}

/// Arguments of `weir-lab proxy-mixed`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Body sizes, of hits and of passed transfers alike
    #[arg(long, value_delimiter = ',', default_value = "10K,64K,128K")]
    pub sizes: Vec<Size>,
    /// How clients ask
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "closed,paced"
    )]
    pub paces: Vec<Pace>,
    /// Engines to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "weir,copy")]
    pub contenders: Vec<Contender>,
    /// Clients of the watched side
    #[arg(long, default_value_t = 40)]
    pub clients: usize,
    /// Clients of the other side in the closed loop; 0 goes without saying
    #[arg(long, value_delimiter = ',', default_value = "40,80,120")]
    pub added_clients: Vec<usize>,
    /// Share of the proxy's core that the watched side takes alone, 0 to 1
    #[arg(long, default_value_t = 0.3)]
    pub share: f64,
    /// Shares that the other side would take alone; 0 goes without saying
    #[arg(long, value_delimiter = ',', default_value = "0.15,0.3,0.45")]
    pub added_shares: Vec<f64>,
    /// Length of the measuring window of each case, in s
    #[arg(long, default_value_t = 0.25)]
    pub seconds: f64,
    /// Load before the window, not counted, in s
    #[arg(long, default_value_t = 0.05)]
    pub warm_up: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        let shares = self.added_shares.iter().chain([&self.share]);
        let bad = shares.copied().find(|share| !(0.0..1.0).contains(share));
        if let Some(share) = bad.or((self.share == 0.0).then_some(0.0)) {
            let what = format!("bad share {share}");
            return Err(Error::usage(what, "it must be above 0 and below 1"));
        }
        check_seconds("--seconds", self.seconds)?;
        if !(0.0..=60.0).contains(&self.warm_up) || self.clients == 0 {
            let cause = "the warm-up must be 0 to 60 s, and there must be clients";
            return Err(Error::usage("bad --warm-up or --clients", cause));
        }
        let mut others = self.contenders.iter();
        if let Some(other) = others.find(|contender| contender.program() != ProxyProgram::Weir) {
            let what = format!("bad --contenders {}", other.name());
            return Err(Error::usage(what, "only weir's engines have weir's cache"));
        }
        Ok(Box::new(Mixed {
            args: self,
            program: program.clone(),
            rig: None,
            rates: Vec::new(),
        }))
    }
}

struct Mixed {
    args: Args,
    program: Program,
    rig: Option<Rig>,
    /// Requests/s that take `--share` of the proxy's core alone, by side and size.
    rates: Vec<(Side, Size, f64)>,
}

impl Experiment for Mixed {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let mut groups = Vec::new();
        for pace in &args.paces {
            // Nothing added goes without saying.
            let added: Vec<String> = match pace {
                Pace::Closed => [0]
                    .iter()
                    .chain(&args.added_clients)
                    .map(usize::to_string)
                    .collect(),
                Pace::Paced => [0.0]
                    .iter()
                    .chain(&args.added_shares)
                    .map(f64::to_string)
                    .collect(),
            };
            for size in &args.sizes {
                for watched in Side::WATCHED {
                    let of = |contender: &Contender| {
                        let case = |added: &String| {
                            parameters([
                                ("pace", word(pace)),
                                ("size", size.to_string()),
                                ("watched", word(&watched)),
                                ("contender", word(contender)),
                                ("added", added.clone()),
                            ])
                        };
                        added.iter().map(case).collect::<Vec<_>>()
                    };
                    groups.push(args.contenders.iter().flat_map(of).collect());
                }
            }
        }
        groups
    }

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "{} clients are watched, {} s a window",
            self.args.clients, self.args.seconds
        );
        facts.insert("load".into(), load.into());
        self.rig = Some(Rig::build(&Plan {
            contenders: &self.args.contenders,
            modes: &[ProxyMode::Forward],
            link: Link::Card,
            receive: Receive::AtOnce,
            link_mbit: LINK_MBIT,
            wire: false,
            weir: self.program.path(),
            cache: Some(CACHE),
        })?);
        for size in self.args.sizes.clone() {
            self.fill_caches(size)?;
            if !self.args.paces.contains(&Pace::Paced) {
                continue;
            }
            for side in Side::WATCHED {
                let name = format!("{}_{size}_per_s", word(&side));
                let rate = match facts.get(&name).and_then(serde_json::Value::as_f64) {
                    Some(rate) => rate,
                    None => self.find_rate(side, size)?,
                };
                let share = self.args.share * 100.0;
                eprintln!(
                    "weir-lab: {name}: {} take {share:.0} % of the proxy's core",
                    count(rate)
                );
                facts.insert(name, rate.into());
                self.rates.push((side, size, rate));
            }
        }
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let args = &self.args;
        let (contender, watched): (Contender, Side) =
            (chosen(case, "contender")?, chosen(case, "watched")?);
        let (size, added): (Size, f64) = (parsed(case, "size")?, parsed(case, "added")?);
        let rate = |side| {
            let found = self
                .rates
                .iter()
                .find(|(of, at, _)| (*of, *at) == (side, size));
            found.map_or(0.0, |(.., rate)| *rate)
        };
        let load = |connections, rate_per_s| SideLoad {
            contender,
            size,
            connections,
            rate_per_s,
        };
        let (base, more) = match chosen(case, "pace")? {
            Pace::Closed => (load(args.clients, None), load(added as usize, None)),
            Pace::Paced => {
                let of_other = rate(watched.other()) * added / args.share;
                (
                    load(args.clients, Some(rate(watched))),
                    load(args.clients, Some(of_other)),
                )
            }
        };
        let mut loads = base.loads(watched, true);
        let own = loads.len();
        if added > 0.0 {
            loads.extend(more.loads(watched.other(), false));
        }
        let span = self.span();
        let seen = self
            .rig
            .as_mut()
            .expect("opened first")
            .run(contender, &loads, span)?;
        check_hits(&seen, contender)?;
        Ok(sample(&seen, own))
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        compare(round);
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        results.cases.iter().flat_map(claims).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("pace", "{pace}"),
            ("size", "{size}"),
            ("watched", "{watched}"),
            ("engine", "{contender}"),
            ("added", "{added}"),
            ("p50 µs", "{p50_us|n}"),
            ("quartiles", "{p50_us:quartiles|n}"),
            ("growth µs", "{growth_us|+0}"),
            ("times", "{growth|.2}"),
            ("p99 µs", "{p99_us|n}"),
            ("busy", "{busy|%}"),
            ("lab", "{lab_busy|%}"),
            ("dropped", "{dropped:most|n}"),
        ])
        .picture(Picture {
            name: "proxy-mixed".into(),
            title: "Median latency of cache hits and passed transfers, the one beside the other"
                .into(),
            panels: vec![Panel {
                title: "{watched} of {size}, µs; {pace}".into(),
                x_title: "added: clients of the other side, or its share of the core".into(),
                x: "added".into(),
                y: vec![("p50_us".into(), String::new())],
                lines: vec!["contender".into()],
                per: vec!["pace".into(), "size".into(), "watched".into()],
                ..Panel::default()
            }],
        })
    }
}

impl Mixed {
    fn span(&self) -> Span {
        Span {
            warm_up: Duration::from_secs_f64(self.args.warm_up),
            window: Duration::from_secs_f64(self.args.seconds),
        }
    }

    fn load(&mut self, contender: Contender, loads: &[Load]) -> Result<Seen> {
        let span = self.span();
        self.rig
            .as_mut()
            .expect("opened first")
            .run(contender, loads, span)
    }

    fn fill_caches(&mut self, size: Size) -> Result<()> {
        for contender in self.args.contenders.clone() {
            let load = SideLoad {
                contender,
                size,
                connections: 1,
                rate_per_s: None,
            };
            self.load(contender, &load.loads(Side::Hits, false))?;
        }
        Ok(())
    }

    /// The rate of one side alone at which the first contender takes `--share` of its core.
    fn find_rate(&mut self, side: Side, size: Size) -> Result<f64> {
        let mut rate = FIRST_RATE;
        for _ in 0..RATE_STEPS {
            rate = self.better_rate(rate, side, size)?;
        }
        let windows = (0..LAST_WINDOWS).map(|_| self.better_rate(rate, side, size));
        let rates = Spread::of(windows.collect::<Result<Vec<f64>>>()?);
        Ok(rates.map_or(rate, |rates| rates.median))
    }

    /// By what a request costs at this rate.
    fn better_rate(&mut self, rate: f64, side: Side, size: Size) -> Result<f64> {
        let contender = self.args.contenders[0];
        let load = SideLoad {
            contender,
            size,
            connections: self.args.clients,
            rate_per_s: Some(rate),
        };
        let seen = self.load(contender, &load.loads(side, true))?;
        let replies: f64 = seen.served.iter().map(|one| one.replies).sum();
        if replies < 1.0 {
            let cause = format!("no reply in {:?}", seen.span);
            return Err(Error::failed("cannot tell what a request costs", cause));
        }
        let busy = seen.busy.max(seen.span.mul_f64(LEAST_BUSY));
        Ok(self.args.share * replies / busy.as_secs_f64())
    }
}

/// Loads of one side.
struct SideLoad {
    contender: Contender,
    size: Size,
    connections: usize,
    rate_per_s: Option<f64>,
}

impl SideLoad {
    fn load(&self, way: Way, cacheable: bool, share: f64) -> Load {
        Load {
            target: self.contender.address(ProxyMode::Forward),
            ask: Ask {
                way,
                cacheable,
                ..Ask::plain(self.size.0, Style::KeepAlive)
            },
            connections: ((self.connections as f64 * share).round() as usize).max(1),
            rate_per_s: self.rate_per_s.map(|rate| rate * share),
            patience: PATIENCE,
        }
    }

    /// The first load is the one whose latency counts.
    fn loads(&self, side: Side, with_tunnels: bool) -> Vec<Load> {
        let origin = origin_address();
        let tunnels = TUNNELS_OF_40 as f64 / 40.0;
        match side {
            Side::Hits => vec![self.load(Way::Named(origin), true, 1.0)],
            Side::Passed if with_tunnels => vec![
                self.load(Way::Named(origin), false, 1.0 - tunnels),
                self.load(Way::Connect(origin), false, tunnels),
            ],
            Side::Passed => vec![self.load(Way::Named(origin), false, 1.0)],
        }
    }
}

/// The first `own` loads are those of the watched side.
fn sample(seen: &Seen, own: usize) -> Sample {
    let span = seen.span.as_secs_f64();
    let per_s = |served: &[crate::proxy::clients::Served]| {
        served.iter().map(|one| one.replies).sum::<f64>() / span
    };
    let latency = &seen.served[0].latency_ns;
    let mut sample = Sample::of([
        ("p50_us", latency.value_at_quantile(0.5) as f64 / 1e3),
        ("mean_us", latency.mean() / 1e3),
        ("p99_us", latency.value_at_quantile(0.99) as f64 / 1e3),
        ("watched_per_s", per_s(&seen.served[..own])),
        ("added_per_s", per_s(&seen.served[own..])),
        ("busy", seen.busy.as_secs_f64() / span),
        ("lab_busy", seen.others.as_secs_f64() / span),
        ("dropped", seen.received.dropped as f64),
    ]);
    sample.flaw.clone_from(&seen.flaw);
    sample
}

fn check_hits(seen: &Seen, contender: Contender) -> Result<()> {
    match seen.cacheable_replies {
        0 => Ok(()),
        count => Err(Error::failed(
            format!("{} does not serve from its cache", contender.name()),
            format!("{count} requests for what it has went to the origin"),
        )),
    }
}

/// Adds how the watched side's latency has grown against nothing added, and how much more it grows than that of passed
/// transfers which are copied, and of hits than of passed transfers; all within the round.
fn compare(round: &mut [(Parameters, Sample)]) {
    let beside = |all: &[(Parameters, Sample)], case: &Parameters, change: &[(&str, &str)]| {
        let mut wanted = case.clone();
        wanted.extend(
            change
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let is_it = |other: &Parameters| {
            let mut pairs = wanted.iter().zip(other);
            pairs.all(|((name, one), (_, other))| match name.as_str() {
                "added" => one.parse::<f64>().ok() == other.parse().ok(),
                _ => one == other,
            })
        };
        all.iter()
            .find(|(other, _)| is_it(other))
            .map(|(_, sample)| sample.clone())
    };
    let all = round.to_vec();
    for (case, sample) in round.iter_mut() {
        if let Some(alone) = beside(&all, case, &[("added", "0")]) {
            let (now, then) = (sample.get("p50_us"), alone.get("p50_us"));
            sample.add([("growth_us", now - then), ("growth", now / then)]);
        }
    }
    let all = round.to_vec();
    for (case, sample) in round.iter_mut() {
        if case["watched"] != "passed" || case["added"].parse() == Ok(0.0) {
            continue;
        }
        if let Some(copied) =
            beside(&all, case, &[("contender", "copy")]).filter(|_| case["contender"] != "copy")
        {
            sample.add([(
                "growth_us_less_copied",
                sample.get("growth_us") - copied.get("growth_us"),
            )]);
        }
        if let Some(hits) = beside(&all, case, &[("watched", "hits")]) {
            sample.add([
                (
                    "hits_growth_of_passed",
                    hits.get("growth") / sample.get("growth"),
                ),
                (
                    "hits_growth_us_less_passed",
                    hits.get("growth_us") - sample.get("growth_us"),
                ),
            ]);
        }
    }
}

/// What RR02 and the plan claim, each of the cases whose neighbours were measured.
fn claims(case: &Case) -> Vec<Claim> {
    let mut claims = Vec::new();
    let has = |metric: &str| case.metrics.contains_key(metric);
    if has("growth_us_less_copied") {
        let claim = "hits slow spliced transfers less than copied ones (RR02 Figure 18), µs";
        claims.push(Claim::about(claim, case, "growth_us_less_copied", |less| {
            less.median <= 0.0
        }));
    }
    if has("hits_growth_of_passed") && case.parameter("pace") == "paced" {
        let claim = "neither side's latency grows more times than the other's, to a quarter";
        claims.push(Claim::about(
            claim,
            case,
            "hits_growth_of_passed",
            |times| (1.0 / FAIR..=FAIR).contains(&times.median),
        ));
        // In µs, as RR02 measures growth: a hit takes half as long or less, so the same wait makes it more times as
        // long. The quartiles on both sides of zero: the rounds do not agree on whose latency grew more.
        let claim = "neither side's latency grows by more µs than the other's, by the quartiles";
        claims.push(Claim::about(
            claim,
            case,
            "hits_growth_us_less_passed",
            |us| (us.quartiles.0..=us.quartiles.1).contains(&0.0),
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::bed::Received;
    use crate::run::results::Verdict;

    #[test]
    fn fifteen_of_forty_that_go_to_the_origin_are_tunnels() {
        let load = SideLoad {
            contender: Contender::Weir,
            size: Size(1024),
            connections: 40,
            rate_per_s: Some(800.0),
        };
        let loads = load.loads(Side::Passed, true);
        let shares: Vec<_> = loads
            .iter()
            .map(|load| (load.connections, load.rate_per_s))
            .collect();
        assert_eq!(shares, [(25, Some(500.0)), (15, Some(300.0))]);
        assert!(matches!(loads[1].ask.way, Way::Connect(_)));
        assert!(loads.iter().all(|load| !load.ask.cacheable));
    }

    #[test]
    fn a_hit_that_went_to_the_origin_is_an_error() {
        let seen = |cacheable_replies| Seen {
            served: Vec::new(),
            span: Duration::ZERO,
            busy: Duration::ZERO,
            processes: Duration::ZERO,
            user: Duration::ZERO,
            others: Duration::ZERO,
            received: Received::default(),
            sent: Default::default(),
            cacheable_replies,
            flaw: None,
        };
        assert!(check_hits(&seen(0), Contender::Weir).is_ok());
        assert!(check_hits(&seen(1), Contender::Weir).is_err());
    }

    /// Latency with and without something added, in µs.
    fn line(watched: Side, alone: f64, with: f64) -> [(Parameters, Sample); 2] {
        [("0", alone), ("0.3", with)].map(|(added, p50_us)| {
            let case = parameters([
                ("pace", "paced".into()),
                ("size", "1K".into()),
                ("watched", word(&watched)),
                ("contender", "weir".into()),
                ("added", added.into()),
            ]);
            (case, Sample::of([("p50_us", p50_us)]))
        })
    }

    /// Whether it is fair in times and in µs, where the latencies grow so in each round. Alone a hit takes 100 µs, a
    /// passed transfer 200.
    fn fairness(hits: &[f64], passed: &[f64]) -> [(Verdict, f64); 2] {
        let (mut times, mut us) = (Vec::new(), Vec::new());
        for (hits, passed) in hits.iter().zip(passed) {
            let lines = [
                line(Side::Hits, 100.0, 100.0 + hits),
                line(Side::Passed, 200.0, 200.0 + passed),
            ];
            let mut round = lines.concat();
            compare(&mut round);
            times.push(round[3].1.get("hits_growth_of_passed"));
            us.push(round[3].1.get("hits_growth_us_less_passed"));
        }
        let case = Case {
            parameters: line(Side::Passed, 1.0, 1.0)[1].0.clone(),
            rounds: hits.len(),
            metrics: [
                ("hits_growth_of_passed", times),
                ("hits_growth_us_less_passed", us),
            ]
            .map(|(name, values)| (name.to_owned(), Spread::of(values).unwrap()))
            .into(),
            ..Case::default()
        };
        let claims = claims(&case);
        [0, 1].map(|index: usize| (claims[index].verdict, claims[index].value.unwrap().median))
    }

    #[test]
    fn growth_is_taken_within_a_round() {
        let mut round = line(Side::Hits, 300.0, 450.0);
        compare(&mut round);
        assert_eq!(
            (round[1].1.get("growth"), round[1].1.get("growth_us")),
            (1.5, 150.0)
        );
        assert_eq!(round[0].1.get("growth"), 1.0);
    }

    #[test]
    fn the_same_wait_is_fair_in_time_and_more_times_of_what_is_short() {
        let grows = [100.0; 4];
        let [(fair, times), (fair_in_time, us)] = fairness(&grows, &grows);
        assert!((times - 2.0 / 1.5).abs() < 1e-9);
        assert_eq!(
            (fair, fair_in_time, us),
            (Verdict::NotHeld, Verdict::Held, 0.0)
        );
    }

    #[test]
    fn who_grows_more_in_most_rounds_is_not_treated_fairly() {
        let (more, less) = ([40.0, 42.0, 38.0, 41.0], [20.0; 4]);
        assert_eq!(fairness(&more, &less)[1].0, Verdict::NotHeld);
        assert_eq!(fairness(&less, &more)[1].0, Verdict::NotHeld);
        let (one, other) = ([10.0, 30.0, 10.0, 30.0], [20.0; 4]);
        assert_eq!(fairness(&one, &other)[1].0, Verdict::Held);
    }
}
