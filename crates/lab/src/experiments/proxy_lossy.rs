//! Slow clients behind links that lose packets, with a proxy in between and without one (RR02, Section 4.5).
//!
//! Each connection has a modem of its own: 56 kb/s to the client and 28 from it, one delay, and the two-state losses of
//! [`weir_sim::Loss`]. Behind the proxy a fast link has delay and losses too. Without a proxy there is one link, with the
//! modem's rates, both delays, and both initial losses added up, as in the paper.
//!
//! A modem leaves the machine nearly idle, so all cases of a round run at the same time, each on namespaces and links of
//! its own ([`crate::proxy::road`]); what disturbs one disturbs all. Each opens a connection for each request, and the
//! proxy one to the origin for each of these, as the paper's; `weir-http` keeps its connections to the origin.
//!
//! In the origin's namespace nothing else runs, so the kernel's counters there tell how many data packets it sent for each
//! ACK (RR02, Figure 8) and how often a time-out made it send again (Figure 9).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_sim::aqm::{Discipline, Setup};
use weir_sim::{LinkSpec, Loss};

use crate::bed::Layout;
use crate::error::{Error, Result};
use crate::link::command::delay;
use crate::link::{self, Lanes};
use crate::netns;
use crate::process::Usage;
use crate::proxy::bed::ORIGIN;
use crate::proxy::clients::{self, Ask, Load, Rest, Served, Span, Style};
use crate::proxy::contender::{Capacity, Contender, ProxyMode, Running, Setting};
use crate::proxy::origin::Origin;
use crate::proxy::road::{Between, Road};
use crate::proxy::sent::Sent;
use crate::proxy::size::Size;
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "proxy-lossy",
    "Do clients behind slow links that lose packets get replies sooner through a proxy?",
)
.source("RR02 Section 4.5, Figures 20 and 21; Figure 9")
.flags(
    "--sizes 1K,10K,33K,64K,128K --seconds 150 --warm-up 30 --rounds 3",
    "--sizes 1K --losses 2% --ways direct,weir --clients 5 --seconds 3 --warm-up 1 --rounds 1",
)];

/// Rates of a modem, bit/s: to the client and from it (RR02, Section 3.2).
const MODEM_BITS_PER_S: (u64, u64) = (56_000, 28_000);
/// Rate of the link to the origin, bit/s: RR02's Fast Ethernet.
const FAST_BITS_PER_S: u64 = 100_000_000;
const ORIGIN_PORT: u16 = 8080;
/// Links that deliver one packet in a hundred later than this have delays of their own, ms. A modem takes 214 for a full
/// packet.
const LATE_MS: f64 = 50.0;
/// Without any reply for so long, the proxy is stuck: a body of 128 KB takes 20 s, and repeated time-outs a minute.
const PATIENCE: Duration = Duration::from_secs(180);
/// weir gives a connection to the origin up after 5 s, unless it is told otherwise. A SYN that is lost is sent again after 1
/// and 3 s, and one connection in 200 takes longer; RR02's proxy waits for it.
const CONNECT_TIMEOUT: &str = "120s";
/// From this size on RR02's replies come sooner through the proxy at every loss.
const LARGE: Size = Size(33 << 10);

/// What is between clients and origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// No proxy.
    Direct,
    /// `weir proxy --engine copy`.
    Copy,
    /// `weir proxy --engine splice`.
    Splice,
    /// `weir proxy` with its engine `auto`.
    Weir,
    /// The same as a reverse proxy for HTTP, which keeps its connections to the origin.
    WeirHttp,
}

impl Way {
    /// The proxy, and what it does with the bytes.
    fn proxy(self) -> Option<(Contender, ProxyMode)> {
        match self {
            Way::Direct => None,
            Way::Copy => Some((Contender::Copy, ProxyMode::Tunnel)),
            Way::Splice => Some((Contender::Splice, ProxyMode::Tunnel)),
            Way::Weir => Some((Contender::Weir, ProxyMode::Tunnel)),
            Way::WeirHttp => Some((Contender::Weir, ProxyMode::Http)),
        }
    }
}

/// A share of packets, written as `1%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(f64);

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Share, String> {
        let number = text.trim().strip_suffix('%');
        let number = number.and_then(|number| number.parse::<f64>().ok());
        let number = number.filter(|number| (0.0..100.0).contains(number));
        let share = number.map(|number| Share(number / 100.0));
        share.ok_or_else(|| format!("`{text}` is no share below 100 % (as in 1%)"))
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", (self.0 * 1e6).round() / 1e4)
    }
}

/// Arguments of `weir-lab proxy-lossy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Body sizes
    #[arg(long, value_delimiter = ',', default_value = "1K,10K,64K")]
    pub sizes: Vec<Size>,
    /// Share of packets that the link between proxy and origin loses after one that arrived
    #[arg(long, value_delimiter = ',', default_value = "1%,2%")]
    pub losses: Vec<Share>,
    /// The same of the modems
    #[arg(long, default_value = "0.5%")]
    pub client_loss: Share,
    /// Share that each link loses right behind a lost one
    #[arg(long, default_value = "30%")]
    pub next_loss: Share,
    /// Delay of each direction between client and proxy, besides the modem's rate
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "30ms")]
    pub client_delay: Duration,
    /// Delay of each direction between proxy and origin
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "90ms")]
    pub server_delay: Duration,
    /// What is between clients and origin
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "direct,copy,splice,weir,weir-http"
    )]
    pub ways: Vec<Way>,
    /// Clients at a time in each case
    #[arg(long, default_value_t = 20)]
    pub clients: usize,
    /// SACK between proxy and origin
    #[arg(long)]
    pub sack: bool,
    /// Length of the measuring window, in s; all cases of a round share it
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// Load before the window, not counted, in s; a body should come in less
    #[arg(long, default_value_t = 15.0)]
    pub warm_up: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        if !(0.0..=3600.0).contains(&self.warm_up) || self.clients == 0 {
            let cause = "the warm-up must be 0 to 3600 s, and there must be clients";
            return Err(Error::usage("bad --warm-up or --clients", cause));
        }
        let most = self.losses.iter().map(|loss| loss.0).fold(0.0, f64::max);
        if most + self.client_loss.0 >= 1.0 {
            let cause = "without a proxy both losses add up, to less than 100 %";
            return Err(Error::usage("bad --losses or --client-loss", cause));
        }
        Ok(Box::new(Lossy {
            args: self,
            program: program.clone(),
            round: Beside::default(),
        }))
    }
}

struct Lossy {
    args: Args,
    program: Program,
    /// The samples of a round, by their parameters.
    round: Beside<usize, BTreeMap<Parameters, Sample>>,
}

/// One direction of a link.
fn direction(bits_per_s: u64, delay: Duration, loss: Loss) -> LinkSpec {
    LinkSpec {
        discipline: Discipline::Fifo,
        setup: Setup::of_ip(bits_per_s / 8),
        delay_ns: delay.as_nanos() as u64,
        loss,
        passes_at_once: false,
    }
}

impl Args {
    /// What is between clients and origin.
    fn between(&self, way: Way, loss: Share, seed: u64) -> Between {
        let link = |(down, up), delay, first| {
            let next = self.next_loss.0;
            let of = |bits_per_s| direction(bits_per_s, delay, Loss { first, next });
            link::Spec {
                down: of(down),
                up: of(up),
                lanes: Lanes::Each,
                ecn: false,
                seed,
            }
        };
        match way {
            Way::Direct => Between::Direct(link(
                MODEM_BITS_PER_S,
                self.client_delay + self.server_delay,
                self.client_loss.0 + loss.0,
            )),
            _ => Between::Proxy {
                front: link(MODEM_BITS_PER_S, self.client_delay, self.client_loss.0),
                back: link(
                    (FAST_BITS_PER_S, FAST_BITS_PER_S),
                    self.server_delay,
                    loss.0,
                ),
            },
        }
    }

    fn cases(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for loss in &self.losses {
            for size in &self.sizes {
                let case = |way: &Way| {
                    parameters([
                        ("loss", loss.to_string()),
                        ("size", size.to_string()),
                        ("way", word(way)),
                    ])
                };
                groups.push(self.ways.iter().map(case).collect());
            }
        }
        groups
    }

    fn span(&self) -> Span {
        Span {
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
        }
    }
}

impl Lossy {
    /// All cases at the same time.
    fn carry_out(&self, seed: u64) -> Result<BTreeMap<Parameters, Sample>> {
        netns::sweep_stale();
        let cases = self.args.cases().concat();
        std::thread::scope(|scope| {
            let start =
                |case: Parameters| scope.spawn(move || Ok((case.clone(), self.one(&case, seed)?)));
            let threads: Vec<_> = cases.into_iter().map(start).collect();
            let samples = threads.into_iter().map(|thread| match thread.join() {
                Ok(sample) => sample,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            samples.collect()
        })
    }

    fn one(&self, case: &Parameters, seed: u64) -> Result<Sample> {
        let (way, size, loss) = (
            chosen(case, "way")?,
            parsed::<Size>(case, "size")?,
            parsed(case, "loss")?,
        );
        let layout = Layout::of_this_machine();
        let road = Road::build(&self.args.between(way, loss, seed), self.args.sack)?;
        let mut origin = Origin::open(&road.origin, ORIGIN_PORT)?;
        let mut proxy = self.start(way, &road, layout)?;
        let target = way.proxy().map(|(proxy, mode)| proxy.address(mode));
        let load = Load {
            target: target.unwrap_or((ORIGIN, ORIGIN_PORT).into()),
            ask: Ask::plain(size.0, Style::NewConnection),
            connections: self.args.clients,
            rate_per_s: None,
            patience: PATIENCE,
        };
        let events = origin.events();
        let outcome = {
            let edge = || Edge::take(&road, proxy.as_ref());
            let run = || {
                let others = || origin.turn();
                clients::run(
                    &[load],
                    self.args.span(),
                    Rest::Sleep(&events),
                    others,
                    edge,
                )
            };
            road.client.run_on(Some(layout.client_cpu), run)
        };
        if let Some(proxy) = &mut proxy {
            proxy.check_alive()?;
        }
        let outcome = outcome?;
        drop(proxy);
        let (first, last) = outcome.edges;
        let mut sample = sample(&outcome.served[0], &last?.since(&first?), way);
        let links = road.stop()?;
        let late = links.iter().flat_map(|link| [&link.down, &link.up]);
        let late_ms = late.map(|way| way.late.p99_ms).fold(0.0, f64::max);
        let lost =
            |link: &link::report::Report| link.down.lost as f64 / link.down.sent_packets as f64;
        sample.add([("late_p99_ms", late_ms), ("lost_front", lost(&links[0]))]);
        if let Some(back) = links.get(1) {
            sample.add([("lost_back", lost(back))]);
        }
        sample.flaw = (late_ms > LATE_MS)
            .then(|| format!("a link delivered one packet in a hundred over {late_ms:.0} ms late"));
        Ok(sample)
    }

    fn start(&self, way: Way, road: &Road, layout: Layout) -> Result<Option<Running>> {
        let (Some((contender, mode)), Some(netns)) = (way.proxy(), &road.proxy) else {
            return Ok(None);
        };
        let setting = Setting {
            modes: &[mode],
            origin: (ORIGIN, ORIGIN_PORT).into(),
            weir: self.program.path(),
            processes: 1,
            capacity: Capacity::BUSY,
            cache: None,
            connect_timeout: Some(CONNECT_TIMEOUT),
        };
        Running::start(netns, layout.server_cpu, contender, &setting).map(Some)
    }
}

/// What is read at an edge of the window.
#[derive(Debug, Clone)]
struct Edge {
    at: Instant,
    origin: Sent,
    /// Of the proxy's processes.
    usage: Usage,
}

/// What came between the edges of the window.
#[derive(Debug, Clone)]
struct Seen {
    span: Duration,
    origin: Sent,
    /// Of the proxy's processes.
    cpu: Duration,
}

impl Edge {
    fn take(road: &Road, proxy: Option<&Running>) -> Result<Edge> {
        Ok(Edge {
            at: Instant::now(),
            origin: Sent::read(&road.origin)?,
            usage: proxy.map_or(Ok(Usage::default()), Running::usage)?,
        })
    }

    fn since(&self, earlier: &Edge) -> Seen {
        Seen {
            span: self.at - earlier.at,
            origin: self.origin.since(&earlier.origin),
            cpu: self.usage.since(&earlier.usage).cpu,
        }
    }
}

fn sample(served: &Served, seen: &Seen, way: Way) -> Sample {
    let latency = &served.latency_ns;
    let ms = |ns: f64| ns / 1e6;
    let quantile = |q| ms(latency.value_at_quantile(q) as f64);
    // Without any reply the figures are infinite, and do not count.
    let replies = served.replies;
    let mut sample = Sample::of([
        ("replies", latency.len() as f64),
        ("replies_per_s", replies / seen.span.as_secs_f64()),
        ("mean_ms", ms(latency.mean())),
        ("least_ms", ms(latency.min() as f64)),
        ("p50_ms", quantile(0.5)),
        ("p95_ms", quantile(0.95)),
        ("data_per_ack", seen.origin.per_ack()),
        ("repeated", seen.origin.again as f64 / replies),
        ("timeouts", seen.origin.timeouts as f64 / replies),
    ]);
    if way != Way::Direct {
        sample.add([("cpu_us", seen.cpu.as_secs_f64() * 1e6 / replies)]);
    }
    sample
}

/// Adds what a proxy gains against no proxy (RR02, Figures 20 and 21), and what each way costs beside the copying engine.
fn compare(round: &mut [(Parameters, Sample)]) {
    let all = round.to_vec();
    for (case, sample) in round {
        let beside = |way: &str| {
            let same = |(other, _): &&(Parameters, Sample)| {
                other["way"] == way
                    && (&other["loss"], &other["size"]) == (&case["loss"], &case["size"])
            };
            all.iter().find(same).map(|(_, sample)| sample)
        };
        let mean_ms = sample.get("mean_ms");
        if let Some(direct) = beside("direct").filter(|_| case["way"] != "direct") {
            let direct_ms = direct.get("mean_ms");
            sample.add([
                ("gain_ms", direct_ms - mean_ms),
                ("gain", 1.0 - mean_ms / direct_ms),
                ("of_direct", mean_ms / direct_ms),
            ]);
        }
        if let Some(copy) = beside("copy").filter(|_| case["way"] != "direct") {
            let of_copy = |metric| sample.get(metric) / copy.get(metric);
            let ratios = [
                ("cpu_of_copy", of_copy("cpu_us")),
                ("mean_of_copy", of_copy("mean_ms")),
                ("timeouts_of_copy", of_copy("timeouts")),
            ];
            sample.add(ratios);
        }
    }
}

impl Experiment for Lossy {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        self.args.cases()
    }

    fn rounds(&self) -> usize {
        5
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let args = &self.args;
        let sack = if args.sack { "SACK" } else { "no SACK" };
        let (down, up) = MODEM_BITS_PER_S;
        let ms = |delay: Duration| delay.as_secs_f64() * 1e3;
        facts.insert(
            "modems".into(),
            format!(
                "{} and {} kb/s, {} ms each way, {} of packets lost",
                down / 1000,
                up / 1000,
                ms(args.client_delay),
                args.client_loss
            )
            .into(),
        );
        facts.insert(
            "link_to_the_origin".into(),
            format!(
                "{} Mb/s, {} ms each way, {sack}",
                FAST_BITS_PER_S / 1_000_000,
                ms(args.server_delay)
            )
            .into(),
        );
        facts.insert(
            "lost_right_behind_a_lost_packet".into(),
            args.next_loss.to_string().into(),
        );
        let load = format!(
            "{} clients, closed loop, {} s a window",
            args.clients, args.seconds
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let mut round = std::mem::take(&mut self.round);
        let samples = round.get(turn.round, || self.carry_out(turn.seed));
        self.round = round;
        Ok(samples?[case].clone())
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        compare(round);
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let is_large = |case: &&Case| {
            let size = parsed::<Size>(&case.parameters, "size");
            case.parameter("way") == "weir" && size.is_ok_and(|size| size >= LARGE)
        };
        let claim = "replies come sooner than without a proxy, on average (RR02 Figure 20)";
        let about = |case| Claim::about(claim, case, "of_direct", |ratio| ratio.median < 1.0);
        results.cases.iter().filter(is_large).map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("loss", "{loss}"),
            ("size", "{size}"),
            ("way", "{way}"),
            ("mean ms", "{mean_ms|n}"),
            ("least", "{least_ms|n}"),
            ("p50", "{p50_ms|n}"),
            ("p95", "{p95_ms|n}"),
            ("sooner by ms", "{gain_ms|+0}"),
            ("sooner by", "{gain|%}"),
            ("CPU µs/reply", "{cpu_us|n}"),
            ("of copying", "{cpu_of_copy|.2}"),
            ("data packets/ACK", "{data_per_ack|.2}"),
            ("time-outs/reply", "{timeouts|.2}"),
            ("replies", "{replies|n}"),
            ("late ms", "{late_p99_ms:most|.1}"),
        ])
        .picture(Picture {
            name: "proxy-lossy".into(),
            title: "How many ms sooner replies come through a proxy (RR02 Figure 20)".into(),
            panels: vec![Panel {
                title: "Origin's link loses {loss}".into(),
                x_title: "Bytes of a reply".into(),
                x: "size".into(),
                y: vec![("gain_ms".into(), String::new())],
                lines: vec!["way".into()],
                per: vec!["loss".into()],
                ..Panel::default()
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args() -> Args {
        Command::parse_from(["proxy-lossy"]).args
    }

    #[test]
    fn without_a_proxy_delays_and_initial_losses_add_up_at_the_modem_s_rate() {
        let (args, loss) = (args(), Share(0.02));
        let Between::Direct(direct) = args.between(Way::Direct, loss, 1) else {
            panic!("a proxy in between");
        };
        let Between::Proxy { front, back } = args.between(Way::Weir, loss, 1) else {
            panic!("no proxy");
        };
        let down = |spec: link::Spec| spec.down;
        let up = |spec: link::Spec| spec.up;
        for way in [down as fn(link::Spec) -> LinkSpec, up] {
            let [direct, front, back] = [direct, front, back].map(way);
            assert_eq!(direct.delay_ns, front.delay_ns + back.delay_ns);
            assert_eq!(direct.loss.first, front.loss.first + back.loss.first);
            assert_eq!(direct.loss.next, front.loss.next);
            assert_eq!(direct.setup, front.setup);
        }
        assert_eq!(front.down.setup.rate_bytes_per_s, 7000);
        assert_eq!(front.up.setup.rate_bytes_per_s, 3500);
    }

    #[test]
    fn a_share_is_read_as_it_is_written() {
        for text in ["0%", "1%", "0.5%", "2.25%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        for text in ["1", "100%", "-1%", "%", "NaN%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_gain_is_against_no_proxy_in_the_same_round_and_case() {
        let case = |loss: &str, way: &str, mean_ms: f64, cpu_us: f64| {
            let parameters = parameters([
                ("loss", loss.into()),
                ("size", "64K".into()),
                ("way", way.into()),
            ]);
            let sample = Sample::of([("mean_ms", mean_ms), ("cpu_us", cpu_us)]);
            (parameters, sample)
        };
        let mut round = [
            case("1%", "direct", 10_000.0, f64::NAN),
            case("1%", "copy", 9_500.0, 50.0),
            case("1%", "splice", 9_000.0, 100.0),
            case("2%", "splice", 9_000.0, 100.0),
        ];
        compare(&mut round);
        let of = |index: usize, metric: &str| round[index].1.get(metric);
        assert_eq!((of(1, "gain_ms"), of(2, "gain_ms")), (500.0, 1000.0));
        assert!((of(2, "gain") - 0.1).abs() < 1e-9);
        assert_eq!(of(2, "cpu_of_copy"), 2.0);
        assert!(of(0, "gain_ms").is_nan() && of(0, "cpu_of_copy").is_nan());
        assert!(of(3, "gain_ms").is_nan() && of(3, "cpu_of_copy").is_nan());
    }
}
