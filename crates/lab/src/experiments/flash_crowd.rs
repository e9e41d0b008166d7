//! The flash crowd: policies at rates.

use std::str::FromStr;
use std::time::Duration;

use super::point::{Measured, OpenLoop, ServerArgs};
use super::policy::{self, Policy};
use super::saturation::{self, Peak};
use crate::client::tcp::Kind;
use crate::client::{Load, Pattern};
use crate::error::{Error, Result};
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, parsed,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, add_times, parameters,
};

const CROWD: Entry = Entry::new::<Args>(
    "flash-crowd",
    "What does a flash crowd do to a server, plain and with each policy?",
)
.source("SB06 Figure 3, Table II")
.flags(
    "--server nginx --rates 2,4x --seconds 2 --rounds 7 --backlog 511 \
     --policies \"default,reserv rst-syn front=xdp,no-syn-drop front=xdp\"",
    "--rates 300,600 --seconds 0.5 --warm-up 0.2 --timeout 2 --policies \"default,reserv rst-syn\"",
);

/// The flash crowd, and other questions to the same experiment.
pub const ENTRIES: &[Entry] = &[
    CROWD,
    CROWD
        .preset("flash-crowd-built-in", "The same with a server that spends 50 µs of CPU on each request.")
        .flags(
            "--work-us 50 --rates 2,4x --seconds 2 --rounds 9 \
             --policies \"default,reserv rst-syn front=xdp,no-syn-drop front=xdp\"",
            CROWD.quick,
        ),
    // 50 µs of work for each request are little for an application, and enough that the generator, not the server, has
    // CPU time to spare at four times saturation. The server's device refuses in its driver (native XDP).
    CROWD
        .preset("demo-crowd", "The flash crowd of `weir-lab demo`.")
        .flags(
            "--rates 0.5,1,2,4x --work-us 50 --warm-up 1.5 --seconds 5.5 \
             --policies \"default,reserv rst-syn front=xdp,no-syn-drop front=xdp\"",
            CROWD.quick,
        ),
    CROWD
        .preset("below-peak", "Is anybody refused whom the server can serve?")
        .flags(
            "--server nginx --rates 0.8,0.9,1,1.1x --of-round --seconds 3 --rounds 7 --backlog 4096 \
             --policies \"default,reserv rst-syn\"",
            CROWD.quick,
        ),
    CROWD
        .preset("burst-pattern", "Are bursts refused that the server can absorb?")
        .source("SB06 Section VI-B")
        .flags(
            "--pattern burst --burst-factor 9 --rates 0.8x --seconds 6 --work-us 30 --backlog 8192 \
             --policies \"default,reserv rst-syn admit=queue,reserv rst-syn admit=wait\"",
            "--pattern burst --burst-factor 9 --rates 300 --seconds 1 --warm-up 0.2 --timeout 2 --backlog 8192 \
             --policies \"reserv rst-syn admit=wait\"",
        ),
    CROWD
        .preset("win-emu", "What if clients answer a RST with another SYN?")
        .source("SB06 Figure 4")
        .flags(
            "--client win-emu --rates 2x --seconds 3 --rounds 4 --work-us 30 \
             --policies \"default,abort front=xdp,abort rst-syn front=xdp,no-syn-drop front=xdp\"",
            "--client win-emu --rates 300 --seconds 0.5 --warm-up 0.2 --timeout 2 --policies \"abort rst-syn\"",
        ),
    CROWD
        .preset("termination", "What does rst-fin gain?")
        .source("SB06 Figure 5")
        .flags(
            "--rates 2x --seconds 3 --rounds 4 --work-us 30 --backlog 511 \
             --policies \"default,default rst-fin,abort rst-syn front=xdp,abort rst-syn rst-fin front=xdp\"",
            "--rates 300 --seconds 0.5 --warm-up 0.2 --timeout 2 --policies \"default rst-fin\"",
        ),
    CROWD
        .preset("close-rst", "Does the server gain if its clients close by RST?")
        .source("SB06 Figure 5")
        .flags(
            "--client rfc793,close-rst --rates 26000 --seconds 3 --rounds 4 --work-us 30 --backlog 511 \
             --policies \"default,abort rst-syn front=xdp\"",
            "--client rfc793,close-rst --rates 300 --seconds 0.5 --warm-up 0.2 --timeout 2 --policies default",
        ),
];

/// Spread of the connections' beginnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PatternName {
    /// Equal distances.
    Constant,
    /// Exponential distances.
    Poisson,
    /// Bursts of --burst-factor for --burst-ms every --burst-period-ms.
    Burst,
}

/// Rates to offer.
#[derive(Debug, Clone, PartialEq)]
pub enum Rates {
    /// Multiples of the saturation, which is measured first.
    Multiples(Vec<f64>),
    /// Connections/s.
    PerSecond(Vec<f64>),
}

impl FromStr for Rates {
    type Err = String;

    /// `0.5,1,2,4x` (an `x` anywhere means multiples of the saturation) or `5000,20000`.
    fn from_str(text: &str) -> std::result::Result<Rates, String> {
        let number = |part: &str| match part.trim().trim_end_matches('x').parse::<f64>() {
            Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
            _ => Err(format!(
                "`{part}` is no rate above 0 (5000 for connections/s, 2x for twice saturation)"
            )),
        };
        let values = text
            .split(',')
            .map(number)
            .collect::<std::result::Result<_, _>>()?;
        Ok(if text.contains('x') {
            Rates::Multiples(values)
        } else {
            Rates::PerSecond(values)
        })
    }
}

impl Rates {
    /// As cases have them.
    fn words(&self) -> Vec<String> {
        match self {
            Rates::Multiples(multiples) => multiples
                .iter()
                .map(|multiple| format!("{multiple}x"))
                .collect(),
            Rates::PerSecond(rates) => rates.iter().map(f64::to_string).collect(),
        }
    }
}

/// Arguments of `weir-lab flash-crowd`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates: connections/s (5000,20000), or multiples of the measured saturation (0.5,1,2,4x)
    #[arg(long, default_value = "0.5,1,2,4x")]
    pub rates: Rates,
    /// Multiples are of the peak that is measured beside the point, not of the first one: near the peak a machine
    /// that is slower by the minute is overloaded at nine tenths of what it could do before
    #[arg(long)]
    pub of_round: bool,
    /// Policies, separated by commas; each is words: default | kernel-abort | abort | reserv |
    /// no-syn-drop, with rst-syn, rst-fin, admit=queue|wait, target-wait=20ms, overbook=F, front=tc|xdp
    #[arg(long, default_value = "default,reserv rst-syn,no-syn-drop", value_parser = policy::parse_list)]
    pub policies: std::vec::Vec<Policy>,
    /// Length of the measuring window of each point, in s
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Load offered before the window, not counted, in s
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// Kinds of client
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rfc793")]
    pub client: Vec<Kind>,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
    /// Spread of the connections' beginnings
    #[arg(long, value_enum, default_value = "constant")]
    pub pattern: PatternName,
    /// Rate in a burst over rate outside
    #[arg(long, default_value_t = 4.0)]
    pub burst_factor: f64,
    /// Length of a burst, in ms
    #[arg(long, default_value_t = 50)]
    pub burst_ms: u64,
    /// Distance between the beginnings of bursts, in ms
    #[arg(long, default_value_t = 500)]
    pub burst_period_ms: u64,
    /// Offer the load over IPv6
    #[arg(long)]
    pub ipv6: bool,
    /// Ask the server to close each connection first (`Connection: close`)
    #[arg(long)]
    pub server_closes_first: bool,
    /// Front of every weir policy that does not say front= itself
    #[arg(long, value_parser = ["tc", "xdp"])]
    pub front: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

impl Args {
    /// Refuses senseless values before anything is built.
    fn check(&self) -> Result<()> {
        check_seconds("--seconds", self.seconds)?;
        check_seconds("--timeout", self.timeout)?;
        if !(0.0..=3600.0).contains(&self.warm_up) {
            return Err(Error::usage(
                format!("bad --warm-up {}", self.warm_up),
                "it must be 0 to 3600 s",
            ));
        }
        if self.burst_factor < 1.0 || self.burst_ms == 0 || self.burst_ms >= self.burst_period_ms {
            return Err(Error::usage(
                "bad burst",
                "--burst-factor must be at least 1, and --burst-ms above 0 and below --burst-period-ms",
            ));
        }
        Ok(())
    }

    fn pattern(&self, seed: u64) -> Pattern {
        match self.pattern {
            PatternName::Constant => Pattern::Constant,
            PatternName::Poisson => Pattern::Poisson { seed },
            PatternName::Burst => Pattern::Bursts {
                factor: self.burst_factor,
                length: Duration::from_millis(self.burst_ms),
                period: Duration::from_millis(self.burst_period_ms),
            },
        }
    }

    /// The load without its rate.
    fn base_load(&self, bed: &OpenLoop) -> Load {
        Load {
            target: (bed.bed.server_address(self.ipv6), self.server.port).into(),
            rate_per_s: 0.0,
            pattern: Pattern::Constant,
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
            timeout: Duration::from_secs_f64(self.timeout),
            kind: self.client[0],
            server_closes_first: self.server_closes_first,
            drain: true,
        }
    }

    fn describe_load(&self) -> String {
        let pattern = match self.pattern(0) {
            Pattern::Constant => "constant rate".to_string(),
            Pattern::Poisson { .. } => "Poisson".to_string(),
            Pattern::Step { factor, at } => format!("{factor}× from {at:?} on"),
            Pattern::Bursts {
                factor,
                length,
                period,
            } => {
                format!("bursts of {factor}× for {length:?} every {period:?}")
            }
        };
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        format!(
            "{} clients over {family}, {pattern}, time-out {} s",
            self.client
                .iter()
                .map(|kind| kind.name())
                .collect::<Vec<_>>()
                .join(" and "),
            self.timeout
        )
    }

    fn policies(&self) -> Result<Vec<Policy>> {
        let Some(front) = &self.front else {
            return Ok(self.policies.clone());
        };
        let with_front = |policy: &Policy| {
            let plain = !matches!(policy.protection, policy::Protection::Weir(_));
            if plain || policy.label.contains("front=") {
                return Ok(policy.clone());
            }
            let label = format!("{} front={front}", policy.label);
            label
                .parse()
                .map_err(|cause| Error::usage("bad policy", cause as String))
        };
        self.policies.iter().map(with_front).collect()
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.check()?;
        Ok(Box::new(FlashCrowd {
            policies: self.policies()?,
            args: self,
            program: program.clone(),
            opened: None,
            beside: Beside::default(),
        }))
    }
}

struct FlashCrowd {
    args: Args,
    policies: Vec<Policy>,
    program: Program,
    opened: Option<(OpenLoop, Option<Peak>)>,
    /// The peak of the round and rate.
    beside: Beside<(usize, String), f64>,
}

impl Experiment for FlashCrowd {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let rates = self.args.rates.words().into_iter();
        let group = |rate: String| {
            let mut group = Vec::new();
            for client in &self.args.client {
                let case = |policy: &Policy| {
                    let (policy, rate) = (policy.label.clone(), rate.clone());
                    let mut case = parameters([("policy", policy), ("rate", rate)]);
                    if self.args.client.len() > 1 {
                        case.insert("client".into(), client.name().into());
                    }
                    case
                };
                group.extend(self.policies.iter().map(case));
            }
            group
        };
        rates.map(group).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let mut bed = self.args.server.open(self.program.weir.clone())?;
        facts.insert("server".into(), bed.server.describe().into());
        facts.insert("load".into(), self.args.describe_load().into());
        let base = self.args.base_load(&bed);
        let peak = match &self.args.rates {
            Rates::PerSecond(_) => None,
            Rates::Multiples(_) => {
                Some(saturation::known_or_found(facts, &mut bed, &base, 2000.0)?)
            }
        };
        self.opened = Some((bed, peak));
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let policy = policy::of_case(&self.policies, case)?;
        let (bed, peak) = self.opened.as_mut().expect("opened first");
        let base = self.args.base_load(bed);
        let word: String = parsed(case, "rate")?;
        let rate: f64 = word.trim_end_matches('x').parse().unwrap_or(0.0);
        // Machines get slower and faster by the minute, so the peak is measured beside what is compared with it.
        let beside = match *peak {
            None => None,
            Some(peak) => Some(
                self.beside
                    .get((turn.round, word), || saturation::again(bed, &base, peak))?,
            ),
        };
        let first = peak.map(|peak| peak.replies_per_s);
        let peak_per_s = match self.args.of_round {
            true => beside,
            false => first,
        };
        let load = Load {
            rate_per_s: rate * peak_per_s.unwrap_or(1.0),
            pattern: self.args.pattern(turn.seed),
            kind: match case.get("client") {
                Some(_) => crate::run::experiment::chosen(case, "client")?,
                None => base.kind,
            },
            ..base
        };
        let mut sample = sample(
            load.rate_per_s,
            self.args.seconds,
            bed.measure(policy, &load)?,
        );
        if let Some(beside) = beside {
            sample.add([
                ("peak_per_s", beside),
                ("of_peak", sample.get("replies_per_s") / beside.max(1.0)),
            ]);
        }
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let below = results.cases.iter().filter(|_| self.args.of_round);
        let cases = results.cases.iter();
        cases
            .flat_map(claims)
            .chain(below.filter_map(nobody_is_refused))
            .collect()
    }

    fn show(&self) -> Show {
        show()
    }
}

fn claims(case: &Case) -> Vec<Claim> {
    let policy = case.parameter("policy");
    let is_overload = parsed::<String>(&case.parameters, "rate").is_ok_and(|rate| {
        rate.strip_suffix('x')
            .is_some_and(|multiple| multiple.parse().unwrap_or(0.0) >= 1.0)
    });
    let mut claims = Vec::new();
    if policy.starts_with("reserv") {
        let claim = "a reservation lets the listen queue never overflow";
        claims.push(Claim::about(claim, case, "listen_overflows", |n| {
            n.median == 0.0
        }));
    }
    let rejects = policy.contains("rst-syn") || policy.starts_with("no-syn-drop");
    // weir's own limit: SB06 states no share, only that with rst-syn "throughput does not decrease" after the peak (Figure
    // 3). A tenth less is allowed, because the peak beside a point is one measurement on a machine whose speed varies.
    if is_overload && rejects && case.metrics.contains_key("of_peak") {
        let claim = "an overloaded server that refuses keeps nine tenths of its peak";
        claims.push(Claim::about(claim, case, "of_peak", |share| {
            share.median >= 0.9
        }));
    }
    claims
}

/// Below the peak of the round, at a constant rate. weir's own: whom the server can serve it serves.
fn nobody_is_refused(case: &Case) -> Option<Claim> {
    let rate: String = parsed(&case.parameters, "rate").ok()?;
    let multiple: f64 = rate.trim_end_matches('x').parse().ok()?;
    let is_below = multiple < 1.0 && case.parameter("policy") != "default";
    is_below.then(|| {
        Claim::about("below the peak nobody is refused", case, "refused", |n| {
            n.median == 0.0
        })
    })
}

fn show() -> Show {
    let panel = |title: &str, y: &[(&str, &str)], logarithmic| Panel {
        title: title.into(),
        x_title: "Offered load, connections/s".into(),
        x: "offered_per_s".into(),
        y: y.iter()
            .map(|(metric, name)| ((*metric).into(), (*name).into()))
            .collect(),
        lines: vec!["policy".into()],
        logarithmic,
        ..Panel::default()
    };
    Show::columns(&[
        ("policy", "{policy}"),
        ("client", "{client}"),
        ("rate", "{rate}"),
        ("replies/s", "{replies_per_s:cell|n}"),
        ("of peak", "{of_peak:cell|%}"),
        ("mean ms", "{response_mean_ms|ms}"),
        ("p50", "{response_p50_ms|ms}"),
        ("p99", "{response_p99_ms|ms}"),
        ("max", "{response_max_ms|ms}"),
        ("refused", "{refused|n}"),
        ("reset", "{reset|n}"),
        ("timed out", "{timed_out|n}"),
        ("false est.", "{false_establishments|n}"),
        ("overflows", "{listen_overflows|n}"),
        ("SYN sent again", "{waited_for_syn|n}"),
        ("SYNs/connection", "{syns/started|.2}"),
        ("est./SYN", "{established/syns|.2}"),
        ("softnet drops", "{softnet_drops|n}"),
    ])
    .picture(Picture {
        name: "flash-crowd".into(),
        title: "Flash crowd".into(),
        panels: vec![
            panel("Throughput, replies/s", &[("replies_per_s", "")], false),
            panel(
                "Mean response time of the served, ms",
                &[("response_mean_ms", "")],
                true,
            ),
        ],
    })
}

/// What was measured. Counts by fate are of the connections that began in the window; those of packets are of the window.
fn sample(rate_per_s: f64, window_s: f64, measured: Measured) -> Sample {
    let Measured {
        run,
        in_window,
        in_all,
        account,
        ..
    } = measured;
    let (fate, wire) = (run.tally.fate, run.tally.wire);
    let n = |count: u64| count as f64;
    let mut sample = Sample::of([
        ("rate_per_s", rate_per_s),
        ("offered_per_s", run.offered_per_s),
        ("replies_per_s", n(wire.replies) / window_s),
        ("started", n(fate.started)),
        ("served", n(fate.served)),
        ("refused", n(fate.refused)),
        ("reset", n(fate.reset)),
        ("timed_out", n(fate.timed_out)),
        ("bad_reply", n(fate.bad_reply)),
        ("false_establishments", n(fate.false_establishments)),
        ("waited_for_syn", n(fate.waited_for_syn)),
        ("waited_for_request", n(fate.waited_for_request)),
        ("waited_for_fin", n(fate.waited_for_fin)),
        ("syns", n(wire.syns)),
        ("syn_ack_acks", n(wire.syn_ack_acks)),
        (
            "established",
            in_window.get("Tcp.PassiveOpens").max(0) as f64,
        ),
        (
            "listen_overflows",
            in_all.get("TcpExt.ListenOverflows") as f64,
        ),
        ("softnet_drops", in_all.get("Softnet.Dropped") as f64),
    ]);
    add_times(&mut sample, "response", &run.tally.response_us);
    add_times(&mut sample, "connect", &run.tally.connect_us);
    add_times(&mut sample, "refusal", &run.tally.refusal_us);
    sample.flaw = run.flaw;
    let account = account.unwrap_or_default();
    sample.detail = serde_json::json!({
        "wire": wire,
        "fate": fate,
        "packets_per_s": run.packets_per_s,
        "worst_lateness_ms": run.worst_lateness.as_secs_f64() * 1e3,
        "max_in_flight": run.max_in_flight,
        "weir_status": account.status,
        "weir_report": account.report,
        "kernel": in_all.0,
    });
    sample
}

/// Policies as tables name them. A front that all of weir's have is said once.
pub struct Labels {
    /// What all of weir's policies have, as ` front=xdp`; empty if they differ.
    pub shared: &'static str,
}

impl Labels {
    /// Of these policies.
    pub fn of(policies: &[Policy]) -> Labels {
        const FRONTS: [&str; 2] = [" front=xdp", " front=tc"];
        let of_weir = |policy: &&Policy| matches!(policy.protection, policy::Protection::Weir(_));
        let have = |front: &str| {
            let mut all = policies.iter().filter(of_weir);
            all.all(|policy| policy.label.ends_with(front))
        };
        let shared = FRONTS.into_iter().find(|front| have(front)).unwrap_or("");
        Labels { shared }
    }

    /// A policy's name.
    pub fn short<'a>(&self, label: &'a str) -> &'a str {
        label.strip_suffix(self.shared).unwrap_or(label)
    }

    /// What all of weir's policies have, as a line; empty if they differ.
    pub fn shared_line(&self) -> String {
        match self.shared {
            "" => String::new(),
            shared => format!("All of weir's policies with{shared}.\n"),
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_of_all_policies_is_shared_and_one_of_some_is_not() {
        let of = |text| Labels::of(&policy::parse_list(text).unwrap()).shared;
        assert_eq!(
            of("default,reserv rst-syn front=xdp,no-syn-drop front=xdp"),
            " front=xdp"
        );
        assert_eq!(of("reserv front=xdp,reserv front=tc"), "");
    }

    #[test]
    fn an_x_anywhere_makes_rates_multiples() {
        assert_eq!(
            "0.5,1,4x".parse(),
            Ok(Rates::Multiples(vec![0.5, 1.0, 4.0]))
        );
        assert_eq!(
            "5000,2e4".parse(),
            Ok(Rates::PerSecond(vec![5000.0, 20_000.0]))
        );
        assert!("5000,-1".parse::<Rates>().is_err());
        assert!("".parse::<Rates>().is_err());
    }
}
