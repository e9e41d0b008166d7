//! Loads that a QUIC server can serve: nobody is to be refused.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use weir_testbed::quic::{Crowd, CrowdResult};

use super::quic_peak::{OTHER_DESCRIPTORS, find_peak, on_clients_cpu, open_bed};
use super::slow_servers::unless_missing;
use crate::descriptors;
use crate::error::{Error, Result};
use crate::quic::{self, Kind, PORT, Server};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "quic-below",
    "Does weir let all QUIC clients in whom the server can serve, at an even rate and in bursts?",
)
.source("beyond the papers")
.flags("", "--connections 200 --bursts 2 --peak-seconds 0.3")];

/// Arguments of `weir-lab quic-below`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Loads
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "half-of-peak,bursts"
    )]
    pub loads: Vec<Load>,
    /// Connections at half of the server's peak
    #[arg(long, default_value_t = 100_000)]
    pub connections: u32,
    /// Bursts of 60 connections in 20 ms; each begins when the last client of the one before it has been served
    #[arg(long, default_value_t = 200)]
    pub bursts: u32,
    /// Length of each step of the search for the peak, in s
    #[arg(long, default_value_t = 2.0)]
    pub peak_seconds: f64,
    /// Folder for the Debian 13 of other experiments; not used by the test bed's own server
    #[arg(long, default_value = "out/systems", value_name = "DIR")]
    pub systems: PathBuf,
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Half of the server's peak, at equal distances
    HalfOfPeak,
    /// 60 in 20 ms
    Bursts,
}

const BURST: f64 = 60.0;
const BURST_SECONDS: f64 = 0.02;
const PATIENCE: Duration = Duration::from_secs(10);

impl Load {
    fn server(self) -> Kind {
        match self {
            Load::HalfOfPeak => Kind::Quinn,
            Load::Bursts => Kind::QuinnSocket1M,
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        Ok(Box::new(QuicBelow {
            args: self,
            program: program.clone(),
            peak_per_s: 0.0,
        }))
    }
}

struct QuicBelow {
    args: Args,
    program: Program,
    /// Answers/s without weir at its best rate.
    peak_per_s: f64,
}

const PEAK: &str = "peak_per_s of quinn";

impl Experiment for QuicBelow {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case =
            |load: &Load| parameters([("load", word(load)), ("server", word(&load.server()))]);
        self.args
            .loads
            .iter()
            .map(|load| vec![case(load)])
            .collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load =
            "one connection and one request a client; the server takes 2 ms for each connection";
        facts.insert("load".into(), load.into());
        let known = facts.get(PEAK).and_then(serde_json::Value::as_f64);
        let found = match known {
            Some(peak) => Ok(peak),
            None => find_peak(Kind::Quinn, &self.args.systems, self.args.peak_seconds)?,
        };
        self.peak_per_s = found.map_err(|reason| Error::failed("no peak", reason))?;
        facts.insert(PEAK.into(), self.peak_per_s.into());
        let open = self.peak_per_s * PATIENCE.as_secs_f64();
        descriptors::allow((open + OTHER_DESCRIPTORS) as u64).map(drop)
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        unless_missing(self.sample(case))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let none = |case| {
            let claim = "nobody is refused whom the server can serve";
            Claim::about(claim, case, "refused", |n| n.range.1 == 0.0)
        };
        results.cases.iter().map(none).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("load", "{load}"),
            ("server", "{server}"),
            ("offered/s", "{offered_per_s|n}"),
            ("connections", "{clients|n}"),
            ("answered", "{answered|n}"),
            ("refused", "{refused|n}"),
            ("timed out", "{timed_out|n}"),
            ("mean ms", "{mean_ms|ms}"),
        ])
    }
}

impl QuicBelow {
    fn sample(&self, case: &Parameters) -> Result<Sample> {
        let load: Load = chosen(case, "load")?;
        let kind = load.server();
        let bed = open_bed()?;
        let mut server = Server::start(&bed, kind, &self.args.systems)?;
        let config = format!("[[quic]]\nname = \"lab\"\naddress = \"*:{PORT}\"\n");
        let mut weir = Weir::run(&bed.server, self.program.path(), &config)?;
        let crowd = |per_second: f64, clients: f64| Crowd {
            to: quic::address(),
            per_second,
            seconds: clients / per_second,
            timeout: PATIENCE,
            request: Some(kind.request()),
        };
        let (crowd, times) = match load {
            Load::HalfOfPeak => (
                crowd(self.peak_per_s / 2.0, self.args.connections.into()),
                1,
            ),
            Load::Bursts => (crowd(BURST / BURST_SECONDS, BURST), self.args.bursts),
        };
        let mut all = CrowdResult::default();
        for _ in 0..times {
            let result = on_clients_cpu(&bed, || crowd.run(&bed.clients))?;
            all.answered.extend(result.answered);
            all.version_refused.extend(result.version_refused);
            all.timed_out += result.timed_out;
            all.other.extend(result.other);
            all.late += result.late;
        }
        server.check_alive()?;
        weir.check_alive()?;
        let status = weir.status()?;
        weir.end()?;
        let clients = f64::from(times) * crowd.per_second * crowd.seconds;
        let total: Duration = all.answered.iter().sum();
        let mut sample = Sample::of([
            ("clients", clients.round()),
            ("offered_per_s", crowd.per_second),
            ("answered", all.answered.len() as f64),
            ("refused", all.version_refused.len() as f64),
            ("timed_out", all.timed_out as f64),
            ("other", all.other.len() as f64),
            ("late", all.late as f64),
            (
                "mean_ms",
                total.as_secs_f64() * 1e3 / all.answered.len().max(1) as f64,
            ),
        ]);
        sample.detail = json!({ "weir_status": status, "other": all.other });
        Ok(sample)
    }
}
