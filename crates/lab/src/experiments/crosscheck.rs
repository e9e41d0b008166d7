//! The generator against Debian's httperf: the same server, the same rates, side by side.
//!
//! httperf uses the kernel's sockets in the client namespace over veth; the generator uses its own
//! TCP over the wire. Where both measure the same thing they must agree.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::point::{OpenLoop, ServerArgs, busy_flaw};
use super::policy::{Policy, Protection};
use crate::bed::SERVER_VETH_V4;
use crate::client::tcp::Kind;
use crate::client::{Load, Pattern};
use crate::cpu::Ticks;
use crate::error::{Error, Result};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, check_seconds, parsed};
use crate::run::results::{
    Case, Claim, Facts, Parameters, Results, Sample, Show, add_times, parameters,
};
use crate::server::Server;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "crosscheck",
    "Does the load generator measure what Debian's httperf measures, side by side?",
)
.source("the lab itself")
.flags("--rounds 3", "--rates 300 --seconds 1")];

/// Arguments of `weir-lab crosscheck`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates, connections/s
    #[arg(long, default_value = "500,1000,2000", value_delimiter = ',')]
    pub rates: Vec<f64>,
    /// How long each rate is offered, in s
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 2.0)]
    pub timeout: f64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        check_seconds("--timeout", self.timeout)?;
        let positive = |rate: &f64| *rate > 0.0 && *rate <= 1e6;
        if !self.rates.iter().all(positive) {
            return Err(Error::usage("bad --rates", "they must be above 0"));
        }
        Ok(Box::new(Crosscheck {
            args: self,
            program: program.clone(),
            bed: None,
        }))
    }
}

struct Crosscheck {
    args: Args,
    program: Program,
    bed: Option<OpenLoop>,
}

const HTTPERF: &str = "httperf";
const GENERATOR: &str = "weir-lab";

impl Experiment for Crosscheck {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |rate: &f64| {
            [HTTPERF, GENERATOR]
                .map(|by| parameters([("rate", rate.to_string()), ("by", by.into())]))
                .into()
        };
        self.args.rates.iter().map(group).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let bed = self.args.server.open(self.program.weir.clone())?;
        facts.insert("server".into(), bed.server.describe().into());
        self.bed = Some(bed);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let rate_per_s = parsed(case, "rate")?;
        let bed = self.bed.as_mut().expect("opened first");
        let mut sample = match case.get("by").map(String::as_str) {
            Some(HTTPERF) => run_httperf(&self.args, bed, rate_per_s),
            _ => run_generator(&self.args, bed, rate_per_s),
        }?;
        sample.add([(
            "served_share",
            sample.get("replies") / sample.get("connections").max(1.0),
        )]);
        Ok(sample)
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let httperf: Vec<_> = round
            .iter()
            .filter(|(case, _)| case["by"] == HTTPERF)
            .cloned()
            .collect();
        for (case, sample) in round {
            let beside = httperf
                .iter()
                .find(|(other, _)| other["rate"] == case["rate"]);
            if let Some((_, beside)) = beside {
                sample.add([(
                    "share_apart",
                    sample.get("served_share") - beside.get("served_share"),
                )]);
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let of_generator = results
            .cases
            .iter()
            .filter(|case| case.parameter("by") == GENERATOR);
        let claim = "both serve the same share of the connections, to a tenth";
        let about = |case: &Case| {
            Claim::about(claim, case, "share_apart", |apart| apart.median.abs() < 0.1)
        };
        of_generator.map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("rate/s", "{rate}"),
            ("by", "{by}"),
            ("connections", "{connections|n}"),
            ("replies", "{replies|n}"),
            ("connect ms", "{connect_mean_ms|ms}"),
            ("response ms", "{response_mean_ms|ms}"),
            ("timed out", "{timed_out|n}"),
            ("refused", "{refused|n}"),
            ("reset", "{reset|n}"),
            ("other errors", "{other_errors|n}"),
        ])
    }
}

fn run_generator(args: &Args, bed: &mut OpenLoop, rate_per_s: f64) -> Result<Sample> {
    let load = Load {
        target: (bed.bed.server_address(false), args.server.port).into(),
        rate_per_s,
        pattern: Pattern::Constant,
        warm_up: Duration::ZERO,
        window: Duration::from_secs_f64(args.seconds),
        timeout: Duration::from_secs_f64(args.timeout),
        kind: Kind::Rfc793,
        server_closes_first: false,
        drain: true,
    };
    let plain = Policy {
        label: "default".into(),
        protection: Protection::None,
    };
    let run = bed.measure(&plain, &load)?.run;
    let fate = run.tally.fate;
    let mut sample = Sample::of([
        ("connections", fate.started as f64),
        ("replies", fate.served as f64),
        ("timed_out", fate.timed_out as f64),
        ("refused", fate.refused as f64),
        ("reset", fate.reset as f64),
        ("other_errors", fate.bad_reply as f64),
    ]);
    add_times(&mut sample, "connect", &run.tally.connect_us);
    add_times(&mut sample, "response", &run.tally.response_us);
    sample.flaw = run.flaw;
    Ok(sample)
}

fn run_httperf(args: &Args, bed: &OpenLoop, rate_per_s: f64) -> Result<Sample> {
    let server = Server::start(&bed.bed, &bed.server)?;
    let connections = (rate_per_s * args.seconds).round();
    let mut command = Command::new("httperf");
    command.args(["--hog", "--uri", "/", "--num-calls", "1"]);
    command.args([
        "--server",
        &SERVER_VETH_V4.to_string(),
        "--port",
        &args.server.port.to_string(),
    ]);
    command.args([
        "--num-conns",
        &connections.to_string(),
        "--rate",
        &rate_per_s.to_string(),
    ]);
    command
        .args(["--timeout", &args.timeout.to_string()])
        .stdin(Stdio::null());
    let cpu = bed.bed.layout.server_cpu;
    let before = Ticks::read(cpu, server.session())?;
    let output = bed
        .bed
        .clients
        .run_on(Some(bed.bed.layout.client_cpu), || {
            command.output().map_err(|cause| {
                Error::failed("cannot run httperf", cause)
                    .hint("install it: apt-get install httperf")
            })
        })?;
    let taken = Ticks::read(cpu, server.session())?.taken_by_others_since(&before);
    let text = String::from_utf8_lossy(&output.stdout);
    let sample = parse_httperf(&text).ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Error::failed("cannot read httperf's report", format!("{text}{stderr}"))
    })?;
    Ok(Sample {
        flaw: busy_flaw(taken, &[]),
        ..sample
    })
}

/// Takes the figures from httperf's report.
fn parse_httperf(text: &str) -> Option<Sample> {
    let number = |line: &str, key: &str| -> Option<f64> {
        let rest = text
            .lines()
            .find(|l| l.starts_with(line))?
            .split_once(key)?
            .1;
        rest.split_whitespace().next()?.parse().ok()
    };
    let errors =
        |key: &str| number("Errors: total", key).or_else(|| number("Errors: fd-unavail", key));
    let unavailable = errors("fd-unavail ")? + errors("addrunavail ")? + errors("ftab-full ")?;
    Some(Sample::of([
        ("connections", number("Total: ", "connections ")?),
        ("replies", number("Total: ", "replies ")?),
        (
            "connect_mean_ms",
            number("Connection time [ms]: connect", "connect ").unwrap_or(0.0),
        ),
        // To the close.
        (
            "response_mean_ms",
            number("Connection time [ms]: min", "avg ").unwrap_or(0.0),
        ),
        (
            "timed_out",
            errors("client-timo ")? + errors("socket-timo ")?,
        ),
        ("refused", errors("connrefused ")?),
        ("reset", errors("connreset ")?),
        // Descriptors and ports: none in a sound comparison.
        ("other_errors", unavailable + errors("other ")?),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Total: connections 1000 requests 998 replies 997 test-duration 0.999 s

Connection rate: 1000.9 conn/s (1.0 ms/conn, <=3 concurrent connections)
Connection time [ms]: min 0.1 avg 0.4 max 9.7 median 0.5 stddev 0.3
Connection time [ms]: connect 0.2
Connection length [replies/conn]: 1.000

Errors: total 3 client-timo 1 socket-timo 0 connrefused 2 connreset 0
Errors: fd-unavail 0 addrunavail 0 ftab-full 0 other 0
";

    #[test]
    fn httperfs_report_is_read() {
        let sample = parse_httperf(REPORT).unwrap();
        for (metric, value) in [
            ("connections", 1000.0),
            ("replies", 997.0),
            ("connect_mean_ms", 0.2),
            ("response_mean_ms", 0.4),
            ("timed_out", 1.0),
            ("refused", 2.0),
            ("other_errors", 0.0),
        ] {
            assert_eq!(sample.get(metric), value, "{metric}");
        }
    }

    #[test]
    fn a_report_that_is_cut_short_gives_no_figures() {
        assert_eq!(parse_httperf(&REPORT[..60]), None);
    }
}
