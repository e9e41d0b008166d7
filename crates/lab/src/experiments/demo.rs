//! `weir-lab demo`: a flash crowd in under three minutes, and what happened in three sentences.

use std::path::PathBuf;

use clap::Parser;

use super::flash_crowd::{self, Results};
use crate::error::{Error, Result};
use crate::report::{Summary, count, ms};

/// Arguments of `weir-lab demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json and the pictures
    #[arg(long, default_value = "out/demo", value_name = "DIR")]
    pub out: PathBuf,
}

const PLAIN: &str = "default";
// The server's device can refuse in its driver (native XDP), off the server's core.
const WEIR: &str = "reserv rst-syn front=xdp";
const COOKIES: &str = "no-syn-drop front=xdp";

/// The flash crowd of the demo. 50 µs of work for each request are little for an application, and
/// enough that the generator, not the server, has CPU time to spare at four times saturation.
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    flash_crowd: flash_crowd::Args,
}

fn flash_crowd_args(args: &Args) -> Result<flash_crowd::Args> {
    let policies = [PLAIN, WEIR, COOKIES].join(",");
    let words = [
        "demo",
        "--rates=0.5,1,2,4x",
        "--work-us=50",
        "--warm-up=1.5",
        "--seconds=5.5",
    ];
    let words = words
        .map(str::to_string)
        .into_iter()
        .chain([format!("--policies={policies}")]);
    let mut flags = Flags::try_parse_from(words)
        .map_err(|cause| Error::failed("the demo's own arguments are bad", cause))?
        .flash_crowd;
    flags.out = args.out.clone();
    flags.server.weir = args.weir.clone();
    Ok(flags)
}

/// Runs it: progress on stderr; table, pictures and the sentences on stdout.
pub fn run(args: &Args) -> Result<()> {
    eprintln!(
        "weir-lab: the same server on the same kernel under the same crowd, plain and with weir; \
         this takes under three minutes"
    );
    let results = flash_crowd::measure(&flash_crowd_args(args)?)?;
    print!("\n{}", flash_crowd::tables(&results));
    flash_crowd::write_files(&results, &args.out)?;
    println!("\n{}", sentences(&results)?);
    let flawed = results.rows.iter().filter(|row| row.flaw.is_some()).count();
    if flawed > 0 {
        println!(
            "\nBut {flawed} of the {} points (marked !) do not count: the machine was busy with other \
             programs. Run it again on a quiet machine.",
            results.rows.len()
        );
    }
    Ok(())
}

/// What happened, in three sentences with numbers.
fn sentences(results: &Results) -> Result<String> {
    let missing = || Error::failed("cannot sum up the demo", "a point is missing");
    let peak = results.saturation_per_s.ok_or_else(missing)?;
    let worst = |policy: &str| {
        let points = results
            .summaries
            .iter()
            .filter(|summary| summary.policy == policy);
        points
            .max_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s))
            .ok_or_else(missing)
    };
    let (plain, weir, cookies) = (worst(PLAIN)?, worst(WEIR)?, worst(COOKIES)?);
    Ok([
        about_plain(plain, peak),
        about_weir(plain, weir, cookies, peak),
        about_cost(weir, cookies),
    ]
    .join("\n\n"))
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole.max(1.0))
}

fn about_plain(plain: &Summary, peak: f64) -> String {
    let row = &plain.median;
    format!(
        "The plain server, which peaks at {} replies/s, got {} connections/s: it kept {} of its peak, \
         but those it served waited {} ms on average (99th percentile {} ms), {} clients gave up after \
         10 s, and {} had been told that they were connected though the server never took them.",
        count(peak),
        count(row.offered_per_s),
        percent(row.replies_per_s, peak),
        ms(row.response.mean_ms),
        ms(row.response.p99_ms),
        count(row.fate.timed_out as f64),
        count(row.fate.false_establishments as f64),
    )
}

fn about_weir(plain: &Summary, weir: &Summary, cookies: &Summary, peak: f64) -> String {
    let (before, after) = (plain.median.response.mean_ms, weir.median.response.mean_ms);
    format!(
        "With weir ({WEIR}) the same server under the same crowd kept {} of its peak and served in {} ms \
         on average (99th percentile {} ms), {} times faster, with {} time-outs and {} overflows of its \
         listen queue; with {COOKIES} it kept {} at {} ms.",
        percent(weir.median.replies_per_s, peak),
        ms(after),
        ms(weir.median.response.p99_ms),
        count(before / after.max(0.001)),
        count(weir.median.fate.timed_out as f64),
        count(weir.median.listen_overflows as f64),
        percent(cookies.median.replies_per_s, peak),
        ms(cookies.median.response.mean_ms),
    )
}

fn about_cost(weir: &Summary, cookies: &Summary) -> String {
    let (row, other) = (&weir.median, &cookies.median);
    format!(
        "The price is that {} of the {} clients, more than the server could serve in any case, were \
         refused, and knew it after {} ms (99th percentile {} ms) instead of waiting in vain; {COOKIES} \
         let every client connect and reset {} of them when their turn could not come.",
        percent(row.fate.refused as f64, row.fate.started as f64),
        count(row.fate.started as f64),
        ms(row.refusal.mean_ms),
        ms(row.refusal.p99_ms),
        percent(other.fate.reset as f64, other.fate.started as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_s_own_arguments_are_valid() {
        let args = Args {
            weir: None,
            out: "x".into(),
        };
        let flags = flash_crowd_args(&args).unwrap();
        flags.check().unwrap();
        assert_eq!(flags.policies.len(), 3);
    }

    #[test]
    fn a_missing_point_is_an_error_and_no_number() {
        let results = Results {
            machine: String::new(),
            server: String::new(),
            load: String::new(),
            saturation_per_s: Some(1.0),
            summaries: Vec::new(),
            rows: Vec::new(),
        };
        assert!(sentences(&results).is_err());
    }
}
