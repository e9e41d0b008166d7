//! A flash crowd of clients that come by QUIC, and by TCP at once if QUIC refuses them, as browsers do.
//!
//! One nginx serves both. The question is what becomes of it as a whole when weir guards its QUIC only, and when it guards its
//! TCP port too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testbed::quic::{Crowd, CrowdResult, FallbackResult, fallback};

use super::quic_peak::{OTHER_DESCRIPTORS, find_peak, on_clients_cpu, open_bed};
use super::slow_servers::unless_missing;
use crate::client::new_histogram;
use crate::descriptors;
use crate::error::{Error, Result};
use crate::quic::{self, Kind, PORT, Server};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, add_times, parameters};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "quic-fallback",
    "Does a server of HTTP/3 and HTTP/2 stay at its peak when refused QUIC clients come by TCP at once?",
)
.source("beyond the papers")
.flags(
    "--rounds 3",
    "--guards both --rates 4 --peak-seconds 0.3 --seconds 1 --timeout 1",
)];

/// Arguments of `weir-lab quic-fallback`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What is before the server
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,quic,both"
    )]
    pub guards: Vec<Guard>,
    /// Rates, in multiples of what the server can answer over QUIC, which is measured first
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    pub rates: Vec<f64>,
    /// Length of each step of the search for the peak, in s
    #[arg(long, default_value_t = 2.0)]
    pub peak_seconds: f64,
    /// How long clients come, in s
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// The clients' patience, over QUIC and TCP together, in s
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
    /// Folder for the Debian 13 that nginx runs in; it is made once
    #[arg(long, default_value = "out/systems", value_name = "DIR")]
    pub systems: PathBuf,
}

/// What is before the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Guard {
    /// Nothing
    Plain,
    /// weir before its UDP port
    Quic,
    /// weir before both ports
    Both,
}

impl Guard {
    /// weir.toml; `None` without weir.
    fn config(self) -> Option<String> {
        let quic = format!("[[quic]]\nname = \"http3\"\naddress = \"*:{PORT}\"\n");
        let tcp = format!("[[listener]]\nname = \"https\"\naddress = \"*:{PORT}\"\n");
        match self {
            Guard::Plain => None,
            Guard::Quic => Some(quic),
            Guard::Both => Some(quic + &tcp),
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        for (flag, value) in [
            ("--seconds", self.seconds),
            ("--peak-seconds", self.peak_seconds),
            ("--timeout", self.timeout),
        ] {
            check_seconds(flag, value)?;
        }
        Ok(Box::new(QuicFallback {
            args: self,
            program: program.clone(),
            peak: Err("not opened".into()),
        }))
    }
}

struct QuicFallback {
    args: Args,
    program: Program,
    /// Answers/s over QUIC without weir at its best rate, or why this machine cannot have the server.
    peak: std::result::Result<f64, String>,
}

const PEAK: &str = "peak_per_s over QUIC";

impl Experiment for QuicFallback {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |rate: &f64| {
            let case =
                |guard: &Guard| parameters([("rate", format!("{rate}x")), ("guard", word(guard))]);
            self.args.guards.iter().map(case).collect()
        };
        self.args.rates.iter().map(group).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "nginx, one worker, HTTP/3 and HTTP/1.1; one request a client, by QUIC, and by TCP at once if that is refused; \
             time-out {} s",
            self.args.timeout
        );
        facts.insert("load".into(), load.into());
        self.peak = match facts.get(PEAK).and_then(Value::as_f64) {
            Some(peak) => Ok(peak),
            None => find_peak(Kind::NginxWeb, &self.args.systems, self.args.peak_seconds)?,
        };
        if let Ok(peak) = self.peak {
            facts.insert(PEAK.into(), peak.into());
            let most = self.args.rates.iter().copied().fold(0.0, f64::max) * peak;
            descriptors::allow((most * self.args.timeout * 2.4 + OTHER_DESCRIPTORS) as u64)?;
        }
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        unless_missing(self.sample(case))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let guarded = results.cases.iter();
        let guarded = guarded.filter(|case| case.parameter("guard") == "both");
        let claim = "guarded on both ports, the server keeps nine tenths of its peak";
        let kept = |case| Claim::about(claim, case, "of_peak", |share| share.median >= 0.9);
        guarded.map(kept).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("rate", "{rate}"),
            ("guard", "{guard}"),
            ("offered/s", "{offered_per_s|n}"),
            ("answers/s", "{answers_per_s:cell|n}"),
            ("of peak", "{of_peak|%}"),
            ("of these by QUIC", "{by_quic|%}"),
            ("mean ms", "{response_mean_ms|ms}"),
            ("p99", "{response_p99_ms|ms}"),
            ("refused by QUIC", "{quic_refused|%}"),
            ("refused by both", "{tcp_refused|%}"),
            ("timed out", "{timed_out|%}"),
        ])
    }
}

impl QuicFallback {
    fn sample(&self, case: &Parameters) -> Result<Sample> {
        let guard: Guard = chosen(case, "guard")?;
        let rate: String = parsed(case, "rate")?;
        let multiple: f64 = rate.trim_end_matches('x').parse().unwrap_or(1.0);
        let peak = self.peak.as_ref();
        let peak = *peak.map_err(|reason| Error::unsupported("skipped nginx", reason.as_str()))?;
        let bed = open_bed()?;
        let mut server = Server::start(&bed, Kind::NginxWeb, &self.args.systems)?;
        let mut weir = match guard.config() {
            Some(config) => Some(Weir::run(&bed.server, self.program.path(), &config)?),
            None => None,
        };
        let crowd = Crowd {
            to: quic::address(),
            per_second: multiple * peak,
            seconds: self.args.seconds,
            timeout: Duration::from_secs_f64(self.args.timeout),
            request: Some(Kind::NginxWeb.request()),
        };
        let (door, followers) = fallback(crowd.to, crowd.timeout)?;
        let begun = Instant::now();
        let (by_quic, by_tcp) = std::thread::scope(|scope| {
            let by_tcp = scope.spawn(|| on_clients_cpu(&bed, || followers.run(&bed.clients)));
            let by_quic = on_clients_cpu(&bed, || {
                crowd.run_telling(&bed.clients, |begun| door.send(begun))
            });
            // The last one has come.
            drop(door);
            let by_tcp = by_tcp.join();
            let by_tcp = by_tcp.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok::<_, Error>((by_quic?, by_tcp?))
        })?;
        server.check_alive()?;
        let status = match &mut weir {
            Some(weir) => {
                weir.check_alive()?;
                weir.status()?
            }
            None => Value::Null,
        };
        weir.map_or(Ok(()), Weir::end)?;
        let mut sample = sample(&crowd, begun, &by_quic, &by_tcp);
        let of_peak = sample.get("answers_per_s") / peak;
        sample.add([("of_peak", of_peak), ("peak_per_s", peak)]);
        sample.detail = json!({ "weir_status": status, "other": [by_quic.other, by_tcp.other] });
        Ok(sample)
    }
}

/// Shares are of the clients; times count from a client's first Initial on.
fn sample(crowd: &Crowd, begun: Instant, by_quic: &CrowdResult, by_tcp: &FallbackResult) -> Sample {
    let clients = (crowd.per_second * crowd.seconds).round().max(1.0);
    let share = |count: usize| count as f64 / clients;
    let closes = begun + Duration::from_secs_f64(crowd.seconds);
    let in_time = by_tcp.answered.iter().filter(|(at, _)| *at <= closes);
    let in_time = by_quic.done_in_time + in_time.count();
    let answered = by_quic.answered.len() + by_tcp.answered.len();
    let mut sample = Sample::of([
        ("clients", clients),
        ("offered_per_s", crowd.per_second),
        ("answers_per_s", in_time as f64 / crowd.seconds),
        ("answered", share(answered)),
        (
            "by_quic",
            by_quic.answered.len() as f64 / answered.max(1) as f64,
        ),
        ("quic_refused", share(by_quic.version_refused.len())),
        ("tcp_refused", share(by_tcp.refused)),
        ("timed_out", share(by_quic.timed_out + by_tcp.timed_out)),
        ("other", share(by_quic.other.len() + by_tcp.other.len())),
        ("late", share(by_quic.late)),
    ]);
    let mut times = new_histogram();
    let by_tcp = by_tcp.answered.iter().map(|(_, after)| *after);
    for after in by_quic.answered.iter().copied().chain(by_tcp) {
        times.saturating_record(after.as_micros() as u64);
    }
    add_times(&mut sample, "response", &times);
    sample
}
