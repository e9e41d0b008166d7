//! A flash crowd of QUIC clients: servers, guards, rates.
//!
//! Each client has a UDP socket of its own, comes when it is due whatever became of those before it, and asks for one answer.
//! Beside the crowd there are connections that were established before and ask all the time: they are what an overloaded
//! server owes most to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testbed::quic::{Crowd, CrowdResult, Steady, SteadyResult};
use weir_testbed::wait::Stops;

use super::quic_peak::{OTHER_DESCRIPTORS, find_peak, on_clients_cpu, open_bed, peak_now};
use super::slow_servers::unless_missing;
use crate::bed::Bed;
use crate::client::new_histogram;
use crate::error::{Error, Result};
use crate::quic::{self, Kind, PORT, Server};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, add_times, parameters,
};
use crate::weir::Weir;
use crate::{descriptors, interrupt};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "quic-crowd",
    "What does a flash crowd do to a QUIC server, plain and with new connections refused?",
)
.source("beyond the papers")
.flags(
    "--servers nginx,haproxy,caddy,quic-go --guards plain,own,vn,drop --seconds 12 --rounds 3",
    "--servers quinn --guards plain --rates 4 --peak-seconds 0.3 --seconds 1 --timeout 1 --steady 4",
)];

/// Arguments of `weir-lab quic-crowd`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Servers
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "quinn,nginx,haproxy"
    )]
    pub servers: Vec<Kind>,
    /// What is before them
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,vn,drop"
    )]
    pub guards: Vec<Guard>,
    /// Rates, in multiples of the server's own peak, which is measured first
    #[arg(long, value_delimiter = ',', default_value = "0.5,2,4")]
    pub rates: Vec<f64>,
    /// Length of each step of the search for the peak, in s
    #[arg(long, default_value_t = 2.0)]
    pub peak_seconds: f64,
    /// How long clients come, in s
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
    /// Established connections beside the crowd
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub steady: u16,
    /// Folder for the Debian 13 that programs of others run in; it is made once
    #[arg(long, default_value = "out/systems", value_name = "DIR")]
    pub systems: PathBuf,
}

/// What is before a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Guard {
    /// Nothing
    Plain,
    /// What the server has itself: nginx `quic_retry`, HAProxy `backlog 32`; others have nothing, and no such case
    Own,
    /// weir, which refuses by Version Negotiation
    Vn,
    /// weir, which drops
    Drop,
}

/// Distance of two requests of an established connection.
const STEADY_EVERY: Duration = Duration::from_millis(250);
const STEADY_LATE: Duration = Duration::from_millis(200);
/// Share of the clients that came more than 10 ms late above which a case does not count.
const MAX_LATE_SHARE: f64 = 0.05;
/// How often the wait for a crowd looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

impl Guard {
    /// weir.toml; `None` without weir.
    fn config(self) -> Option<String> {
        let refuse = match self {
            Guard::Plain | Guard::Own => return None,
            Guard::Vn => "vn",
            Guard::Drop => "drop",
        };
        Some(format!(
            "[[quic]]\nname = \"lab\"\naddress = \"*:{PORT}\"\nrefuse = \"{refuse}\"\n"
        ))
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        check_seconds("--peak-seconds", self.peak_seconds)?;
        check_seconds("--timeout", self.timeout)?;
        if self
            .rates
            .iter()
            .any(|rate| !(*rate > 0.0 && *rate <= 20.0))
        {
            let cause = "multiples of the peak are above 0 and at most 20";
            return Err(Error::usage("bad --rates", cause));
        }
        Ok(Box::new(QuicCrowd {
            args: self,
            program: program.clone(),
            peaks: BTreeMap::new(),
            peaks_of_rounds: BTreeMap::new(),
        }))
    }
}

struct QuicCrowd {
    args: Args,
    program: Program,
    /// Answers/s of each server without weir at its best rate, or why this machine cannot have the server.
    peaks: BTreeMap<Kind, std::result::Result<f64, String>>,
    /// The same of each round, of the servers that this machine has.
    peaks_of_rounds: BTreeMap<(Kind, usize), f64>,
}

impl Experiment for QuicCrowd {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |server: &Kind, rate: &f64| {
            let case = |guard: &Guard| {
                parameters([
                    ("server", word(server)),
                    ("rate", format!("{rate}x")),
                    ("guard", word(guard)),
                ])
            };
            let has = |guard: &&Guard| **guard != Guard::Own || server.has_own_limit();
            self.args.guards.iter().filter(has).map(case).collect()
        };
        let servers = self.args.servers.iter();
        servers
            .flat_map(|server| self.args.rates.iter().map(move |rate| group(server, rate)))
            .collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let Args {
            timeout, steady, ..
        } = self.args;
        let load = format!(
            "one connection and one request a client, at equal distances, time-out {timeout} s; \
             {steady} established connections with a request every 250 ms, late after 200 ms"
        );
        facts.insert("load".into(), load.into());
        for kind in self.args.servers.clone() {
            let peak = match known(facts, kind) {
                Some(peak) => peak,
                None => find_peak(kind, &self.args.systems, self.args.peak_seconds)?,
            };
            match &peak {
                Ok(peak) => facts.insert(peak_fact(kind), Value::from(*peak)),
                Err(reason) => facts.insert(skip_fact(kind), Value::from(reason.as_str())),
            };
            self.peaks.insert(kind, peak);
        }
        let most = self.peaks.values().flatten().copied().fold(0.0, f64::max)
            * self.args.rates.iter().copied().fold(0.0, f64::max);
        descriptors::allow((most * self.args.timeout * 1.2 + OTHER_DESCRIPTORS) as u64)?;
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        unless_missing(self.sample(case, turn.round))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let guarded = |case: &&Case| matches!(case.parameter("guard"), "vn" | "drop");
        let cases = results.cases.iter().filter(guarded);
        cases.flat_map(claims).collect()
    }

    fn show(&self) -> Show {
        show()
    }
}

fn claims(case: &Case) -> Vec<Claim> {
    let none = |claim, metric| Claim::about(claim, case, metric, |n| n.median == 0.0);
    let rate: String = parsed(&case.parameters, "rate").unwrap_or_default();
    let is_overload = rate
        .trim_end_matches('x')
        .parse()
        .is_ok_and(|rate: f64| rate >= 1.0);
    let mut claims = vec![
        none("the server does not die", "server_died"),
        none(
            "no request of an established connection is lost",
            "steady_lost",
        ),
        none(
            "no request of an established connection is late",
            "steady_late",
        ),
    ];
    if !is_overload {
        claims.push(none("below the peak no client fails", "failed"));
        return claims;
    }
    claims.push(Claim::about(
        "an overloaded server keeps 95 % of its peak",
        case,
        "of_peak",
        |share| share.median >= 0.95,
    ));
    // Clients who are dropped come again after a second.
    if case.parameter("guard") == word(&Guard::Vn) {
        claims.push(Claim::about(
            "an overloaded server answers within 60 ms in the mean",
            case,
            "response_mean_ms",
            |mean| mean.median <= 60.0,
        ));
    }
    claims
}

fn show() -> Show {
    let picture = |name: &str, title: &str, metric: &str, logarithmic| Picture {
        name: name.into(),
        title: title.into(),
        panels: vec![Panel {
            title: "{server}".into(),
            x_title: "clients offered, times the server's own peak".into(),
            x: "rate".into(),
            y: vec![(metric.into(), String::new())],
            lines: vec!["guard".into()],
            per: vec!["server".into()],
            logarithmic,
            ..Panel::default()
        }],
    };
    Show::columns(&[
        ("server", "{server}"),
        ("rate", "{rate}"),
        ("guard", "{guard}"),
        ("offered/s", "{offered_per_s|n}"),
        ("answers/s", "{answers_per_s:cell|n}"),
        ("of peak", "{of_peak|%}"),
        ("mean ms", "{response_mean_ms|ms}"),
        ("p99", "{response_p99_ms|ms}"),
        ("failed", "{failed|%}"),
        ("refused", "{refused|%}"),
        ("refusal mean ms", "{refusal_mean_ms|ms}"),
        ("timed out", "{timed_out|%}"),
        ("requests of established", "{steady_requests|n}"),
        ("late", "{steady_late|n}"),
        ("lost", "{steady_lost|n}"),
        ("server died", "{server_died|n}"),
    ])
    .picture(picture(
        "quic-crowd-time",
        "Mean response time of the served, ms",
        "response_mean_ms",
        true,
    ))
    .picture(picture(
        "quic-crowd-answers",
        "Answers/s",
        "answers_per_s",
        false,
    ))
}

impl QuicCrowd {
    fn sample(&mut self, case: &Parameters, round: usize) -> Result<Sample> {
        let kind: Kind = chosen(case, "server")?;
        let guard: Guard = chosen(case, "guard")?;
        let rate: String = parsed(case, "rate")?;
        let multiple: f64 = rate.trim_end_matches('x').parse().unwrap_or(1.0);
        let peak_per_s = match self.peaks.get(&kind) {
            Some(Ok(peak_per_s)) => *peak_per_s,
            Some(Err(reason)) => {
                return Err(Error::unsupported(
                    format!("skipped {}", word(&kind)),
                    reason,
                ));
            }
            None => return Err(Error::failed(word(&kind), "its peak was not measured")),
        };
        let peak_now = self.peak_of(kind, round, peak_per_s)?;
        let bed = open_bed()?;
        let limited = guard == Guard::Own;
        let mut server = Server::start_with(&bed, kind, &self.args.systems, limited)?;
        let mut weir = match guard.config() {
            Some(config) => Some(Weir::run(&bed.server, self.program.path(), &config)?),
            None => None,
        };
        let crowd = self.args.crowd(kind, multiple * peak_per_s);
        let (crowd_result, steady) = self.beside_each_other(&bed, kind, &crowd)?;
        interrupt::check()?;
        // HAProxy's watchdog ends it where one turn of its loop takes 2 s.
        let died = server.check_alive().err();
        if let Some(error) = &died {
            eprintln!("  {}: {error}", word(&kind));
        }
        let status = match &mut weir {
            Some(weir) => {
                weir.check_alive()?;
                weir.status()?
            }
            None => Value::Null,
        };
        let mut sample = sample(&crowd, &crowd_result, &steady);
        let of_peak = sample.get("answers_per_s") / peak_now;
        sample.add([("of_peak", of_peak), ("peak_per_s", peak_now)]);
        sample.add([("server_died", f64::from(died.is_some()))]);
        sample.detail = json!({ "weir_status": status, "other": reasons(&crowd_result.other) });
        weir.map_or(Ok(()), Weir::end)?;
        Ok(sample)
    }

    /// Answers/s at the best rate in this round, which is measured at its first case of the server.
    fn peak_of(&mut self, kind: Kind, round: usize, known: f64) -> Result<f64> {
        if let Some(peak) = self.peaks_of_rounds.get(&(kind, round)) {
            return Ok(*peak);
        }
        let Args {
            systems,
            peak_seconds,
            ..
        } = &self.args;
        let peak = peak_now(kind, systems, *peak_seconds, known)?;
        self.peaks_of_rounds.insert((kind, round), peak);
        Ok(peak)
    }

    /// The crowd, and the established connections as long as clients come.
    fn beside_each_other(
        &self,
        bed: &Bed,
        kind: Kind,
        crowd: &Crowd,
    ) -> Result<(CrowdResult, SteadyResult)> {
        let steady = Steady {
            to: quic::address(),
            connections: self.args.steady.into(),
            every: STEADY_EVERY,
            late_after: STEADY_LATE,
            lost_after: crowd.timeout,
            request: kind.request(),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (ready, is_ready) = mpsc::channel();
            let steady = scope.spawn(|| {
                // Nobody listens only where the crowd has failed.
                let ready = move || _ = ready.send(());
                on_clients_cpu(bed, || steady.run(&bed.clients, &stop, ready))
            });
            let stops = Stops(&stop);
            // Closed where they could not be established, which their thread reports.
            let crowd_result = match is_ready.recv() {
                Err(_) => Ok(CrowdResult::default()),
                Ok(()) => {
                    let of_crowd = scope.spawn(|| on_clients_cpu(bed, || crowd.run(&bed.clients)));
                    let begun = Instant::now();
                    while begun.elapsed().as_secs_f64() < crowd.seconds
                        && !of_crowd.is_finished()
                        && !interrupt::interrupted()
                    {
                        std::thread::sleep(LOOK);
                    }
                    drop(stops);
                    of_crowd
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
            };
            let steady = steady
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((crowd_result?, steady))
        })
    }
}

impl Args {
    fn crowd(&self, kind: Kind, per_second: f64) -> Crowd {
        Crowd {
            to: quic::address(),
            per_second,
            seconds: self.seconds,
            timeout: Duration::from_secs_f64(self.timeout),
            request: Some(kind.request()),
        }
    }
}

/// Shares are of the clients; times count from a client's first Initial on.
fn sample(crowd: &Crowd, result: &CrowdResult, steady: &SteadyResult) -> Sample {
    let clients = (crowd.per_second * crowd.seconds).round().max(1.0);
    let share = |count: usize| count as f64 / clients;
    let failed = clients as usize - result.answered.len();
    let mut sample = Sample::of([
        ("clients", clients),
        ("offered_per_s", crowd.per_second),
        ("answers_per_s", result.done_in_time as f64 / crowd.seconds),
        ("answered", share(result.answered.len())),
        ("failed", share(failed)),
        ("refused", share(result.version_refused.len())),
        ("timed_out", share(result.timed_out)),
        ("other", share(result.other.len())),
        ("late", share(result.late)),
        ("steady_requests", steady.requests as f64),
        ("steady_in_time", steady.in_time as f64),
        ("steady_late", steady.late as f64),
        ("steady_lost", steady.lost as f64),
        ("steady_ended", steady.ended as f64),
    ]);
    for (name, times) in [
        ("response", &result.answered),
        ("refusal", &result.version_refused),
    ] {
        let mut histogram = new_histogram();
        for time in times {
            histogram.saturating_record(time.as_micros() as u64);
        }
        add_times(&mut sample, name, &histogram);
    }
    if share(result.late) > MAX_LATE_SHARE {
        let percent = share(result.late) * 100.0;
        sample.flaw = Some(format!(
            "{percent:.0} % of the clients came late: other programs took their CPU"
        ));
    }
    sample
}

/// How often each.
fn reasons(other: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for reason in other {
        *counts.entry(reason.as_str()).or_default() += 1;
    }
    counts
}

/// What an earlier run has found out.
fn known(facts: &Facts, kind: Kind) -> Option<std::result::Result<f64, String>> {
    let peak = facts.get(&peak_fact(kind)).and_then(Value::as_f64);
    let skipped = facts.get(&skip_fact(kind)).and_then(Value::as_str);
    peak.map(Ok)
        .or(skipped.map(|reason| Err(reason.to_owned())))
}

fn peak_fact(kind: Kind) -> String {
    format!("peak_per_s of {}", word(&kind))
}

fn skip_fact(kind: Kind) -> String {
    format!("skipped: {}", word(&kind))
}
