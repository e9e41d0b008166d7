//! `weir-lab demo`: a flash crowd and a burst of unimportant connections in three minutes, and what happened, in
//! sentences with numbers.

use std::path::PathBuf;

use clap::Parser;

use super::flash_crowd::{self, Labels, Results};
use super::vtfm01::order::{self, Behind, Queue};
use crate::error::{Error, Result};
use crate::report::{Summary, WIDTH, count, fate, ms, served, table, wrapped};

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

/// Connections of the second act: of a low class, and then of a high one; and µs of work for each.
const BURST: (usize, usize) = (200, 10);
const BURST_WORK_US: u32 = 5000;

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

/// Runs it: progress on stderr; tables, pictures and the sentences on stdout.
pub fn run(args: &Args) -> Result<()> {
    eprintln!(
        "weir-lab: the same server on the same kernel under the same crowd, plain and\n\
         with weir; this takes three minutes"
    );
    let flags = flash_crowd_args(args)?;
    let labels = Labels::of(&flags.policies);
    let results = flash_crowd::measure(&flags)?;
    flash_crowd::write_files(&results, &args.out)?;
    println!("\n{}", tables(&results, &labels));
    println!("{}\n", wrapped(WIDTH, &sentences(&results, &labels)?));
    let flawed = results.rows.iter().filter(|row| row.flaw.is_some()).count();
    if flawed > 0 {
        let text = format!(
            "But {flawed} of the {} points (marked !) do not count: the machine was busy with other \
             programs. Run it again on a quiet machine.",
            results.rows.len()
        );
        println!("{}\n", wrapped(WIDTH, &text));
    }
    let out = args.out.display();
    println!(
        "{}\n",
        wrapped(WIDTH, &format!("All numbers and pictures are in {out}."))
    );
    eprintln!("weir-lab: the second act: who is accepted first");
    let acts = order::behind_a_burst(BURST, BURST_WORK_US, args.weir.clone())?;
    println!("{}", order_table(&acts));
    println!("{}", wrapped(WIDTH, &about_order(&acts)?));
    Ok(())
}

/// What was served, and what became of the others.
fn tables(results: &Results, labels: &Labels) -> String {
    let name = |policy: &str| labels.short(policy).to_owned();
    format!(
        "{}\n{}\n{}\n{}\n{}",
        results.machine,
        results.server,
        labels.shared_line(),
        served(&results.summaries, &name),
        fate(&results.summaries, &name),
    )
}

/// What happened, in three sentences with numbers: at the highest rate of which all points count.
fn sentences(results: &Results, labels: &Labels) -> Result<String> {
    let missing = || Error::failed("cannot sum up the demo", "a point is missing");
    let peak = results.saturation_per_s.ok_or_else(missing)?;
    let of = |policy: &str| -> Vec<&Summary> {
        let all = results.summaries.iter();
        all.filter(|summary| summary.policy == policy).collect()
    };
    let [plain, weir, cookies] = [of(PLAIN), of(WEIR), of(COOKIES)];
    if plain.is_empty() || [&weir, &cookies].iter().any(|of| of.len() != plain.len()) {
        return Err(missing());
    }
    let counts = |i: &usize| {
        [&plain, &weir, &cookies]
            .iter()
            .all(|of| of[*i].median.flaw.is_none())
    };
    let Some(worst) = (0..plain.len())
        .filter(counts)
        .max_by(|a, b| plain[*a].rate_per_s.total_cmp(&plain[*b].rate_per_s))
    else {
        return Ok(
            "At no rate do the points of all three policies count: there is nothing to sum up."
                .into(),
        );
    };
    let (plain, weir, cookies) = (plain[worst], weir[worst], cookies[worst]);
    Ok([
        about_plain(plain, peak),
        about_weir(plain, weir, cookies, labels, peak),
        about_cost(weir, cookies, labels),
    ]
    .join("\n\n"))
}

fn order_table(acts: &[Behind]) -> String {
    let (low, high) = BURST;
    let row = |act: &Behind| {
        let queue = match act.queue {
            Queue::Fifo => "the kernel's own queue",
            Queue::Priority => "weir, queue = \"priority\"",
        };
        let first = act.places.first().copied().unwrap_or(0);
        let last = act.places.last().copied().unwrap_or(0);
        vec![
            queue.to_owned(),
            format!("{first} to {last}"),
            format!("{} ms", ms(act.wait.as_secs_f64() * 1e3)),
        ]
    };
    let rows: Vec<Vec<String>> = acts.iter().map(row).collect();
    let head = [
        format!("{low} low, then {high} gold connect"),
        "gold accepted as number".to_owned(),
        "all gold served after".to_owned(),
    ];
    table(&head.each_ref().map(String::as_str), &rows)
}

fn about_order(acts: &[Behind]) -> Result<String> {
    let of = |queue: Queue| acts.iter().find(|act| act.queue == queue);
    let (Some(plain), Some(weir)) = (of(Queue::Fifo), of(Queue::Priority)) else {
        return Err(Error::failed(
            "cannot sum up the demo",
            "a queue is missing",
        ));
    };
    let (low, high) = BURST;
    Ok(format!(
        "A server that works {} ms for each connection stood still while {low} connections of a low class \
         and then {high} of class gold came. When it went on, all of gold had their replies after {} ms by \
         the kernel's queue, and after {} ms with weir: the server is unchanged, and its accept() returns \
         the connection of the highest class first.",
        BURST_WORK_US / 1000,
        ms(plain.wait.as_secs_f64() * 1e3),
        ms(weir.wait.as_secs_f64() * 1e3),
    ))
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

fn about_weir(
    plain: &Summary,
    weir: &Summary,
    cookies: &Summary,
    labels: &Labels,
    peak: f64,
) -> String {
    let cookies_label = labels.short(COOKIES);
    let (before, after) = (plain.median.response.mean_ms, weir.median.response.mean_ms);
    format!(
        "With weir ({WEIR}) the same server under the same crowd kept {} of its peak and served in {} ms \
         on average (99th percentile {} ms), {} times faster, with {} time-outs and {} overflows of its \
         listen queue; with {cookies_label} it kept {} at {} ms.",
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

fn about_cost(weir: &Summary, cookies: &Summary, labels: &Labels) -> String {
    let cookies_label = labels.short(COOKIES);
    let (row, other) = (&weir.median, &cookies.median);
    format!(
        "The price is that {} of the {} clients, more than the server could serve in any case, were \
         refused, and knew it after {} ms (99th percentile {} ms) instead of waiting in vain; {cookies_label} \
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
    use crate::report::Row;

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
        let labels = Labels::of(&[]);
        assert!(sentences(&results, &labels).is_err());
    }

    /// Points at 1 and 4 times saturation, of which those in `flawed` do not count.
    fn results(flawed: &[(&str, f64)]) -> Results {
        let summary = |policy: &str, multiple: f64| {
            let row = Row {
                policy: policy.into(),
                replies_per_s: 1000.0,
                offered_per_s: 1000.0 * multiple,
                flaw: flawed.contains(&(policy, multiple)).then(|| "busy".into()),
                ..Row::default()
            };
            let mut summary = Summary::of(&[row], Some(multiple)).unwrap();
            summary.rate_per_s = 1000.0 * multiple;
            summary
        };
        let policies = [PLAIN, WEIR, COOKIES].into_iter();
        Results {
            machine: String::new(),
            server: String::new(),
            load: String::new(),
            saturation_per_s: Some(1000.0),
            summaries: policies
                .flat_map(|policy| [1.0, 4.0].map(|multiple| summary(policy, multiple)))
                .collect(),
            rows: Vec::new(),
        }
    }

    #[test]
    fn the_headline_is_of_a_rate_at_which_every_point_counts() {
        let labels = Labels::of(&[]);
        let told = |flawed: &[_]| sentences(&results(flawed), &labels).unwrap();
        assert!(told(&[]).contains("got 4 000 connections/s"));
        assert!(told(&[(COOKIES, 4.0)]).contains("got 1 000 connections/s"));
        assert!(told(&[(COOKIES, 4.0), (PLAIN, 1.0)]).contains("nothing to sum up"));
    }

    #[test]
    fn what_is_told_fits_80_columns() {
        let flags = flash_crowd_args(&Args {
            weir: None,
            out: "x".into(),
        });
        let labels = Labels::of(&flags.unwrap().policies);
        let mut results = results(&[(WEIR, 4.0)]);
        for summary in &mut results.summaries {
            summary.median.offered_per_s = 123_456.0;
            summary.median.fate.refused = 1_234_567;
            summary.median.fate.timed_out = 123_456;
            summary.median.listen_overflows = 1_234_567;
        }
        let acts = [Queue::Fifo, Queue::Priority].map(|queue| Behind {
            queue,
            places: (201..=210).collect(),
            wait: std::time::Duration::from_millis(1050),
        });
        let text = [
            tables(&results, &labels),
            wrapped(WIDTH, &sentences(&results, &labels).unwrap()),
            order_table(&acts),
            wrapped(WIDTH, &about_order(&acts).unwrap()),
        ];
        for line in text.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
