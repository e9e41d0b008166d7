//! The generator against Debian's httperf: the same server, the same rates, side by side.
//!
//! httperf uses the kernel's sockets in the client namespace over veth; the generator uses its own
//! TCP over the wire. Where both measure the same thing they must agree.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use super::flash_crowd::ServerArgs;
use super::point::{Stage, busy_flaw};
use super::policy::{Policy, Protection};
use crate::bed::SERVER_VETH_V4;
use crate::client::tcp::Kind;
use crate::client::{Load, Pattern};
use crate::cpu::Ticks;
use crate::error::{Context, Error, Result};
use crate::report::{Times, count, ms, table};
use crate::server::Server;

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
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// What one of the two measured at one rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Connections begun.
    pub connections: u64,
    /// Replies.
    pub replies: u64,
    /// connect(), mean, ms.
    pub connect_ms: f64,
    /// First SYN to the end of the reply (httperf: to the close), mean of the served, ms.
    pub response_ms: f64,
    /// Clients that gave up.
    pub timed_out: u64,
    /// ECONNREFUSED.
    pub refused: u64,
    /// ECONNRESET.
    pub reset: u64,
    /// Anything else that httperf failed at (descriptors, ports); must be 0 for a sound comparison.
    pub other_errors: u64,
}

impl Figures {
    /// Share of the connections that were served.
    pub fn served_share(&self) -> f64 {
        self.replies as f64 / self.connections.max(1) as f64
    }
}

/// Both at one rate.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Connections/s.
    pub rate_per_s: f64,
    /// httperf's figures.
    pub httperf: Figures,
    /// The generator's.
    pub generator: Figures,
    /// Why one of the two runs does not count.
    pub flaw: Option<String>,
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let comparisons = measure(args)?;
    if args.json {
        let json = serde_json::to_string_pretty(&comparisons).context("cannot write JSON")?;
        println!("{json}");
    } else {
        print!("{}", comparison_table(&comparisons));
    }
    Ok(())
}

/// All rates, httperf and generator in turn.
pub fn measure(args: &Args) -> Result<Vec<Comparison>> {
    let positive = |value: &f64| *value > 0.0 && *value <= 1e6;
    if ![args.seconds, args.timeout]
        .iter()
        .chain(&args.rates)
        .all(positive)
    {
        return Err(Error::usage(
            "bad --rates, --seconds or --timeout",
            "they must be above 0",
        ));
    }
    let mut stage = args.server.stage()?;
    eprintln!(
        "weir-lab: httperf and the generator against {}",
        stage.server.describe()
    );
    let compare = |&rate_per_s: &f64| {
        let (httperf, busy) = run_httperf(args, &stage, rate_per_s)?;
        let (generator, flaw) = run_generator(args, &mut stage, rate_per_s)?;
        eprintln!("  {}/s done", count(rate_per_s));
        Ok(Comparison {
            rate_per_s,
            httperf,
            generator,
            flaw: busy.or(flaw),
        })
    };
    args.rates.iter().map(compare).collect()
}

fn run_generator(
    args: &Args,
    stage: &mut Stage,
    rate_per_s: f64,
) -> Result<(Figures, Option<String>)> {
    let load = Load {
        target: (stage.bed.server_address(false), args.server.port).into(),
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
    let run = stage.measure(&plain, &load)?.run;
    let fate = run.tally.fate;
    let figures = Figures {
        connections: fate.started,
        replies: fate.served,
        connect_ms: Times::of(&run.tally.connect_us).mean_ms,
        response_ms: Times::of(&run.tally.response_us).mean_ms,
        timed_out: fate.timed_out,
        refused: fate.refused,
        reset: fate.reset,
        other_errors: fate.bad_reply,
    };
    Ok((figures, run.flaw))
}

fn run_httperf(args: &Args, stage: &Stage, rate_per_s: f64) -> Result<(Figures, Option<String>)> {
    let server = Server::start(&stage.bed, &stage.server)?;
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
    let cpu = stage.bed.layout.server_cpu;
    let before = Ticks::read(cpu, server.session())?;
    let output = stage
        .bed
        .clients
        .run_on(Some(stage.bed.layout.client_cpu), || {
            command.output().map_err(|cause| {
                Error::failed("cannot run httperf", cause)
                    .hint("install it: apt-get install httperf")
            })
        })?;
    let taken = Ticks::read(cpu, server.session())?.taken_by_others_since(&before);
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = parse_httperf(&text).ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Error::failed("cannot read httperf's report", format!("{text}{stderr}"))
    })?;
    Ok((figures, busy_flaw(taken)))
}

/// Takes the figures from httperf's report.
fn parse_httperf(text: &str) -> Option<Figures> {
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
    let count = |value: f64| value as u64;
    let unavailable = errors("fd-unavail ")? + errors("addrunavail ")? + errors("ftab-full ")?;
    Some(Figures {
        connections: count(number("Total: ", "connections ")?),
        replies: count(number("Total: ", "replies ")?),
        connect_ms: number("Connection time [ms]: connect", "connect ").unwrap_or(0.0),
        response_ms: number("Connection time [ms]: min", "avg ").unwrap_or(0.0),
        timed_out: count(errors("client-timo ")? + errors("socket-timo ")?),
        refused: count(errors("connrefused ")?),
        reset: count(errors("connreset ")?),
        other_errors: count(unavailable + errors("other ")?),
    })
}

fn comparison_table(comparisons: &[Comparison]) -> String {
    let head = [
        "rate/s",
        "by",
        "connections",
        "replies",
        "connect ms",
        "response ms",
        "timed out",
        "refused",
        "reset",
    ];
    let row = |rate_per_s: f64, by: &str, figures: &Figures| {
        let n = |value: u64| count(value as f64);
        vec![
            count(rate_per_s),
            by.to_string(),
            n(figures.connections),
            n(figures.replies),
            ms(figures.connect_ms),
            ms(figures.response_ms),
            n(figures.timed_out),
            n(figures.refused),
            n(figures.reset),
        ]
    };
    let rows: Vec<Vec<String>> = comparisons
        .iter()
        .flat_map(|c| {
            [
                row(c.rate_per_s, "httperf", &c.httperf),
                row(c.rate_per_s, "weir-lab", &c.generator),
            ]
        })
        .collect();
    let flaws = comparisons.iter().filter_map(|c| {
        c.flaw
            .as_ref()
            .map(|flaw| format!("! {}/s does not count: {flaw}\n", count(c.rate_per_s)))
    });
    table(&head, &rows) + &flaws.collect::<String>()
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
        let figures = parse_httperf(REPORT).unwrap();
        assert_eq!((figures.connections, figures.replies), (1000, 997));
        assert_eq!((figures.connect_ms, figures.response_ms), (0.2, 0.4));
        assert_eq!(
            (figures.timed_out, figures.refused, figures.other_errors),
            (1, 2, 0)
        );
    }

    #[test]
    fn a_report_that_is_cut_short_gives_no_figures() {
        assert_eq!(parse_httperf(&REPORT[..60]), None);
    }
}
