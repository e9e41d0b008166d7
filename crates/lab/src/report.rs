//! Rows, medians and tables of an experiment.

mod points;

use std::path::Path;

use comfy_table::CellAlignment;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Fate, Wire};
use crate::error::{Context, Result};
use crate::experiments::point::{Measured, TableTwo};

pub use points::{fate, lost, served, table_two};

/// Columns of what is told.
pub const WIDTH: usize = 80;

/// A distribution of times in ms, of the connections counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Connections.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

impl Times {
    /// From a histogram of µs.
    pub fn of(histogram: &Histogram<u64>) -> Times {
        let ms = |us: u64| us as f64 / 1e3;
        if histogram.is_empty() {
            return Times::default();
        }
        Times {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e3,
            p50_ms: ms(histogram.value_at_quantile(0.5)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            p999_ms: ms(histogram.value_at_quantile(0.999)),
            max_ms: ms(histogram.max()),
        }
    }
}

/// One measured point, as `results.json` keeps it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    /// The policy's words.
    pub policy: String,
    /// Rate asked for, connections/s.
    pub rate_per_s: f64,
    /// Connections/s that were begun.
    pub offered_per_s: f64,
    /// Replies/s completed inside the window.
    pub replies_per_s: f64,
    /// Peak throughput of the unprotected server, measured beside this point, replies/s.
    pub peak_per_s: Option<f64>,
    /// First SYN to the end of the reply, of the served.
    pub response: Times,
    /// First SYN to the first SYN/ACK.
    pub connect: Times,
    /// First SYN to the RST, of the refused.
    pub refusal: Times,
    /// What became of the connections that began in the window.
    pub fate: Fate,
    /// What happened inside the window.
    pub wire: Wire,
    /// SB06's Table II.
    pub table_two: TableTwo,
    /// Times that the accept queue was full when a handshake completed (TcpExt.ListenOverflows).
    pub listen_overflows: i64,
    /// Packets that found the receive backlog of a CPU full (whole machine).
    pub softnet_drops: i64,
    /// Packets/s that the generator sent and received in the window.
    pub packets_per_s: (f64, f64),
    /// Latest SYN after its due time, ms.
    pub worst_lateness_ms: f64,
    /// Most connections in flight at once.
    pub max_in_flight: u64,
    /// Why the point does not count.
    pub flaw: Option<String>,
    /// `weir status --json` at the end of the load.
    pub weir_status: Option<Value>,
    /// What `weir protect` printed.
    pub weir_report: Option<String>,
    /// Kernel counters that moved during warm-up, window and drain.
    pub kernel: std::collections::BTreeMap<String, i64>,
}

impl Row {
    /// From a measurement.
    pub fn of(policy: &str, rate_per_s: f64, window_s: f64, measured: Measured) -> Row {
        let table_two = TableTwo::of(&measured);
        let Measured {
            run,
            in_all,
            account,
            ..
        } = measured;
        let (weir_status, weir_report) = account.map_or((None, None), |account| {
            (account.status, Some(account.report))
        });
        Row {
            policy: policy.to_string(),
            rate_per_s,
            offered_per_s: run.offered_per_s,
            replies_per_s: run.tally.wire.replies as f64 / window_s,
            peak_per_s: None,
            response: Times::of(&run.tally.response_us),
            connect: Times::of(&run.tally.connect_us),
            refusal: Times::of(&run.tally.refusal_us),
            fate: run.tally.fate,
            wire: run.tally.wire,
            table_two,
            listen_overflows: in_all.get("TcpExt.ListenOverflows"),
            softnet_drops: in_all.get("Softnet.Dropped"),
            packets_per_s: run.packets_per_s,
            worst_lateness_ms: run.worst_lateness.as_secs_f64() * 1e3,
            max_in_flight: run.max_in_flight,
            flaw: run.flaw,
            weir_status,
            weir_report,
            kernel: in_all.0,
        }
    }
}

/// The rounds of one policy at one rate.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The policy's words.
    pub policy: String,
    /// Rate asked for, connections/s.
    pub rate_per_s: f64,
    /// Rate in multiples of the measured saturation, where rates were given so.
    pub multiple: Option<f64>,
    /// Medians over the rounds, number by number.
    pub median: Row,
    /// Least and most replies/s.
    pub replies_range_per_s: (f64, f64),
    /// Replies/s over the peak beside it: median, least, most of the rounds.
    pub of_peak: Option<(f64, f64, f64)>,
    /// Rounds, and how many of them do not count.
    pub rounds: (usize, usize),
}

impl Summary {
    /// Summarizes the rounds of one point. Rounds with a flaw count only if there are no others.
    pub fn of(rounds: &[Row], multiple: Option<f64>) -> Option<Summary> {
        let sound: Vec<&Row> = rounds.iter().filter(|row| row.flaw.is_none()).collect();
        let used = if sound.is_empty() {
            rounds.iter().collect()
        } else {
            sound.clone()
        };
        let first = used.first()?;
        let median = median_row(&used);
        let replies = || used.iter().map(|row| row.replies_per_s);
        Some(Summary {
            policy: first.policy.clone(),
            rate_per_s: first.rate_per_s,
            multiple,
            median,
            replies_range_per_s: (
                replies().fold(f64::INFINITY, f64::min),
                replies().fold(0.0, f64::max),
            ),
            of_peak: of_peak(&used),
            rounds: (rounds.len(), rounds.len() - sound.len()),
        })
    }
}

fn of_peak(rows: &[&Row]) -> Option<(f64, f64, f64)> {
    let ratio = |row: &&Row| Some(row.replies_per_s / row.peak_per_s?.max(1.0));
    let mut ratios: Vec<f64> = rows.iter().map(ratio).collect::<Option<_>>()?;
    ratios.sort_by(f64::total_cmp);
    Some((ratios[ratios.len() / 2], *ratios.first()?, *ratios.last()?))
}

fn median_row(rows: &[&Row]) -> Row {
    fn median<T: PartialOrd + Copy>(rows: &[&Row], field: impl Fn(&Row) -> T) -> T {
        let mut values: Vec<T> = rows.iter().map(|row| field(row)).collect();
        values.sort_by(|a, b| a.partial_cmp(b).expect("measured values are never NaN"));
        values[values.len() / 2]
    }
    macro_rules! times {
        ($of:ident) => {
            Times {
                count: median(rows, |r| r.$of.count),
                mean_ms: median(rows, |r| r.$of.mean_ms),
                p50_ms: median(rows, |r| r.$of.p50_ms),
                p99_ms: median(rows, |r| r.$of.p99_ms),
                p999_ms: median(rows, |r| r.$of.p999_ms),
                max_ms: median(rows, |r| r.$of.max_ms),
            }
        };
    }
    macro_rules! fields {
        ($type:ident, $of:ident, $($field:ident),+) => {
            $type { $($field: median(rows, |r| r.$of.$field)),+ }
        };
    }
    Row {
        policy: rows[0].policy.clone(),
        rate_per_s: rows[0].rate_per_s,
        offered_per_s: median(rows, |r| r.offered_per_s),
        replies_per_s: median(rows, |r| r.replies_per_s),
        response: times!(response),
        connect: times!(connect),
        refusal: times!(refusal),
        fate: fields!(
            Fate,
            fate,
            started,
            served,
            refused,
            reset,
            timed_out,
            bad_reply,
            false_establishments,
            waited_for_syn,
            waited_for_request,
            waited_for_fin,
            ignored_resets
        ),
        wire: fields!(
            Wire,
            wire,
            replies,
            syns,
            syn_ack_acks,
            syn_retransmissions,
            request_retransmissions,
            fin_retransmissions
        ),
        table_two: fields!(
            TableTwo,
            table_two,
            expected_syns,
            actual_syns,
            syn_ack_acks,
            established,
            ratio
        ),
        listen_overflows: median(rows, |r| r.listen_overflows),
        softnet_drops: median(rows, |r| r.softnet_drops),
        packets_per_s: (
            median(rows, |r| r.packets_per_s.0),
            median(rows, |r| r.packets_per_s.1),
        ),
        worst_lateness_ms: median(rows, |r| r.worst_lateness_ms),
        max_in_flight: median(rows, |r| r.max_in_flight),
        flaw: rows[0].flaw.clone(),
        ..Row::default()
    }
}

/// A table for people: right-aligned columns two spaces apart, the first left-aligned.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    table.add_rows(rows);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2)).set_cell_alignment(match number {
            0 => CellAlignment::Left,
            _ => CellAlignment::Right,
        });
    }
    table.trim_fmt() + "\n"
}

/// Paragraphs, which empty lines part, in lines of so many columns.
pub fn wrapped(width: usize, text: &str) -> String {
    let paragraph = |text: &str| {
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let line = lines.last_mut().expect("there is a line");
            if line.is_empty() {
                *line = word.to_owned();
            } else if line.chars().count() + 1 + word.chars().count() <= width {
                *line += &format!(" {word}");
            } else {
                lines.push(word.to_owned());
            }
        }
        lines.join("\n")
    };
    let paragraphs: Vec<String> = text.split("\n\n").map(paragraph).collect();
    paragraphs.join("\n\n")
}

/// A count with thin groups of three digits: `12 345`.
pub fn count(value: impl Into<f64>) -> String {
    let digits = format!("{:.0}", value.into());
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits.as_str()), |rest| ("-", rest));
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group));
    format!("{sign}{}", groups.collect::<Vec<_>>().join(" "))
}

/// ms with about three significant digits.
pub fn ms(value: f64) -> String {
    match value {
        v if v >= 99.95 => count(v),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Writes results as JSON into `results.json` of a folder, which is created; returns the JSON.
pub fn write_json(results: &impl Serialize, out: &Path) -> Result<String> {
    let what = "cannot write the results as JSON";
    let json = serde_json::to_string_pretty(results).context(what)?;
    let path = out.join("results.json");
    std::fs::create_dir_all(out).context(format!("cannot create folder {}", out.display()))?;
    std::fs::write(&path, &json).context(format!("cannot write {}", path.display()))?;
    eprintln!("weir-lab: wrote {}", path.display());
    Ok(json)
}

/// Prints results for programs, as the JSON that [`write_json`] returned, or else for people.
pub fn show(json: &str, as_json: bool, for_people: impl FnOnce() -> String) {
    if as_json {
        println!("{json}");
    } else {
        print!("{}", for_people());
    }
}

/// The machine in one line: kernel and processors.
pub fn machine() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = cpuinfo
        .lines()
        .filter(|line| line.starts_with("model name"))
        .filter_map(|line| line.split_once(": "))
        .map(|(_, model)| model)
        .collect();
    let version: String = kernel.trim().split('-').next().unwrap_or_default().into();
    format!(
        "Linux {version}, {} × {}",
        models.len(),
        models.first().unwrap_or(&"unknown processor")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(replies_per_s: f64, flaw: Option<&str>) -> Row {
        Row {
            policy: "p".into(),
            replies_per_s,
            flaw: flaw.map(str::to_string),
            ..Row::default()
        }
    }

    #[test]
    fn medians_leave_flawed_rounds_out_unless_all_are() {
        let summary = Summary::of(
            &[row(1.0, None), row(900.0, Some("late")), row(3.0, None)],
            None,
        )
        .unwrap();
        assert_eq!(summary.replies_range_per_s, (1.0, 3.0));
        assert_eq!(summary.rounds, (3, 1));
        assert!(summary.median.flaw.is_none());
        assert_eq!(summary.of_peak, None, "no peak was measured");
        let flawed = Summary::of(&[row(9.0, Some("late"))], None).unwrap();
        assert_eq!(flawed.median.replies_per_s, 9.0);
        assert!(flawed.median.flaw.is_some());
    }

    #[test]
    fn the_share_of_the_peak_is_a_median_of_each_round_s_own_ratio() {
        let beside = |replies: f64, peak: f64| Row {
            peak_per_s: Some(peak),
            ..row(replies, None)
        };
        let rounds = [
            beside(100.0, 100.0),
            beside(40.0, 50.0),
            beside(180.0, 200.0),
        ];
        let summary = Summary::of(&rounds, None).unwrap();
        assert_eq!(summary.of_peak, Some((0.9, 0.8, 1.0)));
    }

    #[test]
    fn numbers_are_grouped_and_columns_aligned() {
        assert_eq!(
            [count(1_234_567.0), count(999.4), count(-1000.0)],
            ["1 234 567", "999", "-1 000"]
        );
        assert_eq!(
            [ms(0.123), ms(12.34), ms(1234.6)],
            ["0.12", "12.3", "1 235"]
        );
        let text = table(&["a", "bb"], &[vec!["×é".into(), "1".into()]]);
        assert_eq!(text, "a   bb\n×é   1\n");
    }
}
