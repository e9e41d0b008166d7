//! `weir-lab demo`: a flash crowd and a burst of unimportant connections in three minutes, and what happened, in
//! sentences with numbers.

use std::path::PathBuf;

use super::flash_crowd::Labels;
use super::policy;
use super::vtfm01::order::{self, Behind, Queue};
use crate::cli::{self, RunFlags};
use crate::error::{Error, Result};
use crate::plot::picture;
use crate::run::experiment::Program;
use crate::run::results::{Case, Results};
use crate::run::store::Store;
use crate::show::format::{WIDTH, count, ms, wrapped};
use crate::show::print;
use crate::show::table::table;
use crate::show::template::fill;

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
const WEIR: &str = "reserv rst-syn front=xdp";
const COOKIES: &str = "no-syn-drop front=xdp";
const CROWD: &str = "demo-crowd";

/// So many times its peak is offered to a server that is overloaded: at the peak itself weir changes little.
const MIN_OVERLOAD: f64 = 1.3;

/// Connections of the second act: of a low class, and then of a high one; and µs of work for each.
const BURST: (usize, usize) = (200, 10);
const BURST_WORK_US: u32 = 5000;

/// Runs it: progress on stderr; tables, pictures and the sentences on stdout.
pub fn run(args: &Args) -> Result<()> {
    eprintln!(
        "weir-lab: the same server on the same kernel under the same load, plain and\n\
         with weir; this takes three minutes"
    );
    let program = Program {
        weir: args.weir.clone(),
    };
    let results = crowd(args, &program)?;
    let (tables, sentences) = (tables(&results)?, sentences(&results)?);
    print(&format!("\n{tables}\n{}\n\n", wrapped(WIDTH, &sentences)));
    let flawed: usize = results.cases.iter().filter(|case| !counts(case)).count();
    if flawed > 0 {
        let text = format!(
            "But {flawed} of the {} points (marked !) do not count: the machine was busy with other \
             programs. Run it again on a quiet machine.",
            results.cases.len()
        );
        print(&format!("{}\n\n", wrapped(WIDTH, &text)));
    }
    let out = args.out.display();
    let text = format!("All numbers and pictures are in {out}.");
    print(&format!("{}\n\n", wrapped(WIDTH, &text)));
    eprintln!("weir-lab: the second act: who is accepted first");
    let acts = order::behind_a_burst(BURST, BURST_WORK_US, &program)?;
    let (table, text) = (order_table(&acts), about_order(&acts)?);
    print(&format!("{table}\n{}\n", wrapped(WIDTH, &text)));
    Ok(())
}

/// The flash crowd, with the peak measured beside each rate.
fn crowd(args: &Args, program: &Program) -> Result<Results> {
    let entry = super::find(CROWD)?;
    let words = cli::split(entry.full);
    let mut experiment = entry.build(&cli::parse(entry, &words)?, program)?;
    let store = Store::at(&args.out)?;
    let words = [cli::split(&entry.subcommand()), words].concat();
    let results = cli::measure(
        entry,
        experiment.as_mut(),
        &RunFlags::default(),
        &words,
        Some(&store),
    )?;
    picture::write(&results, &args.out)?;
    Ok(results)
}

/// Whether any of its rounds counts.
fn counts(case: &Case) -> bool {
    case.flawed < case.rounds
}

/// What was served, and what became of the others.
fn tables(results: &Results) -> Result<String> {
    let labels = labels();
    let served: &[(&str, &str)] = &[
        ("offered/s", "{offered_per_s|n}"),
        ("replies/s", "{replies_per_s|n}"),
        ("of peak", "{of_peak|%}"),
        ("mean ms", "{response_mean_ms|ms}"),
        ("p99 ms", "{response_p99_ms|ms}"),
        ("max ms", "{response_max_ms|ms}"),
    ];
    let fate: &[(&str, &str)] = &[
        ("refused", "{refused|n}"),
        ("reset", "{reset|n}"),
        ("timed out", "{timed_out|n}"),
        ("false est.", "{false_establishments|n}"),
        ("overflows", "{listen_overflows|n}"),
    ];
    let mut text = format!("{}\n", results.machine);
    text += results
        .facts
        .get("server")
        .and_then(|fact| fact.as_str())
        .unwrap_or_default();
    text += &format!("\n{}", labels.shared_line());
    for columns in [served, fate] {
        let head = ["policy", "load"]
            .into_iter()
            .chain(columns.iter().map(|(head, _)| *head));
        let row = |case: &Case| {
            let mark = if counts(case) { "" } else { "!" };
            let rate = case.parameter("rate").replace('x', "×");
            let mut row = vec![
                labels.short(case.parameter("policy")).to_owned(),
                rate + mark,
            ];
            for (_, template) in columns {
                row.push(fill(template, results, case)?);
            }
            Ok(row)
        };
        let rows: Vec<Vec<String>> = results.cases.iter().map(row).collect::<Result<_>>()?;
        text += &format!(
            "{}\n",
            table(&head.map(str::to_owned).collect::<Vec<_>>(), &rows)
        );
    }
    Ok(text)
}

fn labels() -> Labels {
    Labels::of(
        &[PLAIN, WEIR, COOKIES].map(|policy| policy.parse::<policy::Policy>().expect("a policy")),
    )
}

/// What happened, in three sentences with numbers: at the highest overload of which all points count.
fn sentences(results: &Results) -> Result<String> {
    let missing = || Error::failed("cannot sum up the demo", "a point is missing");
    let of = |policy: &str| -> Vec<&Case> {
        let all = results.cases.iter();
        all.filter(|case| case.parameter("policy") == policy)
            .collect()
    };
    let [plain, weir, cookies] = [of(PLAIN), of(WEIR), of(COOKIES)];
    if plain.is_empty() || [&weir, &cookies].iter().any(|of| of.len() != plain.len()) {
        return Err(missing());
    }
    let all_count = |i: &usize| [&plain, &weir, &cookies].iter().all(|of| counts(of[*i]));
    let rate = |i: usize| plain[i].median("rate_per_s");
    let overloads = |i: &usize| rate(*i) > MIN_OVERLOAD * plain[*i].median("peak_per_s");
    let Some(worst) = (0..plain.len())
        .filter(overloads)
        .filter(all_count)
        .max_by(|a, b| rate(*a).total_cmp(&rate(*b)))
    else {
        return Ok(
            "At no load above the server's peak do the points of all three policies count: there is nothing to sum up."
                .into(),
        );
    };
    let (plain, weir, cookies) = (plain[worst], weir[worst], cookies[worst]);
    let paragraphs = [
        fill(
            "The plain server, which peaked at {peak_per_s|n} replies/s beside this, got {offered_per_s|n} \
             connections/s: it kept {of_peak|%} of its peak, but those it served waited {response_mean_ms|ms} ms on \
             average (99th percentile {response_p99_ms|ms} ms), {timed_out|n} clients gave up after 10 s, and \
             {false_establishments|n} had been told that they were connected though the server never took them.",
            results,
            plain,
        )?,
        about_weir(results, plain, weir, cookies)?,
        about_cost(results, weir, cookies)?,
    ];
    Ok(paragraphs.join("\n\n"))
}

fn about_weir(results: &Results, plain: &Case, weir: &Case, cookies: &Case) -> Result<String> {
    let mean = |case: &Case| case.median("response_mean_ms");
    let times = count(mean(plain) / mean(weir).max(0.001));
    let first = fill(
        "With weir ({policy}) the same server under the same load kept {of_peak|%} of its peak and served in \
         {response_mean_ms|ms} ms on average (99th percentile {response_p99_ms|ms} ms)",
        results,
        weir,
    )?;
    let second = fill(
        "{timed_out|n} time-outs and {listen_overflows|n} overflows of its listen queue",
        results,
        weir,
    )?;
    let other = labels().short(COOKIES).to_owned();
    let third = fill(
        "it kept {of_peak|%} at {response_mean_ms|ms} ms",
        results,
        cookies,
    )?;
    Ok(format!(
        "{first}, {times} times faster, with {second}; with {other} {third}."
    ))
}

fn about_cost(results: &Results, weir: &Case, cookies: &Case) -> Result<String> {
    let first = fill(
        "The price is that {refused/started|%} of the {started|n} clients, more than the server could serve in any \
         case, were refused, and knew it after {refusal_mean_ms|ms} ms (99th percentile {refusal_p99_ms|ms} ms) \
         instead of waiting in vain",
        results,
        weir,
    )?;
    let other = labels().short(COOKIES).to_owned();
    let second = fill(
        "let every client connect and reset {reset/started|%} of them when their turn could not come",
        results,
        cookies,
    )?;
    Ok(format!("{first}; {other} {second}."))
}

fn order_table(acts: &[Behind]) -> String {
    let (low, high) = BURST;
    let row = |act: &Behind| {
        let queue = match act.queue {
            Queue::Fifo => "the kernel's own queue",
            Queue::Priority => "weir, queue = \"priority\"",
        };
        let first = act.positions.first().copied().unwrap_or(0);
        let last = act.positions.last().copied().unwrap_or(0);
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
    table(&head, &rows)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::parameters;
    use crate::run::statistics::Spread;

    #[test]
    fn a_missing_point_is_an_error_and_no_number() {
        assert!(sentences(&Results::default()).is_err());
    }

    /// Points at 1, 2 and 4 times saturation, of which those in `flawed` do not count.
    fn results(flawed: &[(&str, f64)]) -> Results {
        let case = |policy: &str, multiple: f64| {
            let is_flawed = flawed.contains(&(policy, multiple));
            let metrics = [
                ("rate_per_s", 1000.0 * multiple),
                ("offered_per_s", 1000.0 * multiple),
                ("peak_per_s", 1000.0),
                ("replies_per_s", 900.0),
                ("of_peak", 0.9),
                ("started", 1_234_567.0),
                ("refused", 1_234_567.0),
                ("reset", 1_234_567.0),
                ("timed_out", 123_456.0),
                ("listen_overflows", 1_234_567.0),
                ("response_mean_ms", 12_345.0),
                ("response_p99_ms", 12_345.0),
                ("response_max_ms", 12_345.0),
            ];
            Case {
                parameters: parameters([
                    ("policy", policy.into()),
                    ("rate", format!("{multiple}x")),
                ]),
                rounds: 1,
                flawed: usize::from(is_flawed),
                flaw: is_flawed.then(|| "busy".into()),
                metrics: metrics
                    .map(|(name, value)| (name.to_owned(), Spread::one(value)))
                    .into(),
                ..Case::default()
            }
        };
        let policies = [PLAIN, WEIR, COOKIES].into_iter();
        Results {
            cases: policies
                .flat_map(|policy| [1.0, 2.0, 4.0].map(|multiple| case(policy, multiple)))
                .collect(),
            ..Results::default()
        }
    }

    #[test]
    fn the_headline_is_of_an_overload_at_which_every_point_counts() {
        let told = |flawed: &[_]| sentences(&results(flawed)).unwrap();
        assert!(told(&[]).contains("got 4 000 connections/s"));
        assert!(told(&[(COOKIES, 4.0)]).contains("got 2 000 connections/s"));
        assert!(told(&[(COOKIES, 4.0), (PLAIN, 2.0)]).contains("nothing to sum up"));
    }

    #[test]
    fn what_was_kept_is_of_the_peak_beside_it() {
        let mut results = results(&[]);
        // The machine has become slower since the saturation was looked for.
        results
            .facts
            .insert("saturation_per_s".into(), 2000.0.into());
        assert!(
            sentences(&results)
                .unwrap()
                .contains("kept 90 % of its peak")
        );
    }

    #[test]
    fn what_is_told_fits_80_columns() {
        let results = results(&[(WEIR, 4.0)]);
        let acts = [Queue::Fifo, Queue::Priority].map(|queue| Behind {
            queue,
            positions: (201..=210).collect(),
            wait: std::time::Duration::from_millis(1050),
        });
        let text = [
            tables(&results).unwrap(),
            wrapped(WIDTH, &sentences(&results).unwrap()),
            order_table(&acts),
            wrapped(WIDTH, &about_order(&acts).unwrap()),
        ];
        for line in text.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
