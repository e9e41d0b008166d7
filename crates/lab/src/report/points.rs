//! Tables of points in 80 columns: what was served, what became of the rest, and SB06's Table II. The rates of a
//! policy stand below its words, however many these are.

use super::{Row, Summary, WIDTH, count, ms, table, wrapped};

/// What was served, and how fast: ms from the first SYN to the end of the reply.
pub fn served(summaries: &[Summary], name: &dyn Fn(&str) -> String) -> String {
    let head = ["replies/s", "of peak", "mean ms", "p50", "p99", "max"];
    let cells = |summary: &Summary| {
        let (row, rounds) = (&summary.median, summary.rounds.0);
        let times = &row.response;
        let (least, most) = summary.replies_range_per_s;
        let spread = match rounds {
            1 => String::new(),
            _ => format!(" ±{}", count((most - least) / 2.0)),
        };
        let of_peak = summary.of_peak.map(|of| of_peak_cell(of, rounds));
        let counts = [
            count(row.replies_per_s) + &spread,
            of_peak.unwrap_or("-".into()),
        ];
        let times = [times.mean_ms, times.p50_ms, times.p99_ms, times.max_ms].map(ms);
        counts.into_iter().chain(times).collect()
    };
    let mut text = by_policy("served", &head, summaries, name, &cells);
    if summaries
        .iter()
        .any(|summary| summary.median.flaw.is_some())
    {
        let legend = "! a point that does not count: the load was not offered as stated, or other programs used \
                      the server's CPU";
        text += &format!("{}\n", wrapped(WIDTH, legend));
    }
    text
}

/// What became of the connections that were not served.
pub fn fate(summaries: &[Summary], name: &dyn Fn(&str) -> String) -> String {
    let head = ["refused", "reset", "timed out", "false est.", "overflows"];
    by_count("not served", head, summaries, name, |row| {
        let fate = &row.fate;
        let overflows = row.listen_overflows.max(0) as u64;
        let (refused, falsely) = (fate.refused, fate.false_establishments);
        [refused, fate.reset, fate.timed_out, falsely, overflows]
    })
}

/// Connections that waited until a packet was sent again, and packets that the kernel lost before weir.
pub fn lost(summaries: &[Summary], name: &dyn Fn(&str) -> String) -> String {
    let head = ["SYN", "request", "FIN", "softnet drops"];
    by_count("sent again", head, summaries, name, |row| {
        let fate = &row.fate;
        let drops = row.softnet_drops.max(0) as u64;
        let (syn, request) = (fate.waited_for_syn, fate.waited_for_request);
        [syn, request, fate.waited_for_fin, drops]
    })
}

/// SB06's Table II of the same points.
pub fn table_two(summaries: &[Summary], name: &dyn Fn(&str) -> String) -> String {
    let head = [
        "expected SYN",
        "actual SYN",
        "SYN/ACK ACK",
        "established",
        "est./SYN",
    ];
    let cells = |summary: &Summary| {
        let counts = &summary.median.table_two;
        let counted = [
            counts.expected_syns,
            counts.actual_syns,
            counts.syn_ack_acks,
            counts.established,
        ];
        let ratio = format!("{:.2}", counts.ratio);
        counted.map(n).into_iter().chain([ratio]).collect()
    };
    by_policy("offered/s", &head, summaries, name, &cells)
}

/// A table of numbers of connections or packets.
fn by_count<const N: usize>(
    title: &str,
    head: [&str; N],
    summaries: &[Summary],
    name: &dyn Fn(&str) -> String,
    counts: fn(&Row) -> [u64; N],
) -> String {
    let cells = |summary: &Summary| counts(&summary.median).map(n).into();
    by_policy(title, &head, summaries, name, &cells)
}

/// A line with the words of each policy, and below it one for each of its rates.
fn by_policy(
    title: &str,
    head: &[&str],
    summaries: &[Summary],
    name: &dyn Fn(&str) -> String,
    cells: &dyn Fn(&Summary) -> Vec<String>,
) -> String {
    let head: Vec<&str> = std::iter::once(title).chain(head.iter().copied()).collect();
    let row = |summary| [vec![offered(summary)], cells(summary)].concat();
    let rows: Vec<Vec<String>> = summaries.iter().map(row).collect();
    let lines = table(&head, &rows);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    let mut above = "";
    for (summary, line) in summaries.iter().zip(lines) {
        if summary.policy != above {
            above = &summary.policy;
            text += &format!("{}\n", name(above));
        }
        text += &format!("{line}\n");
    }
    text
}

/// Connections/s that were offered, as a multiple of the peak too where they were asked for so.
fn offered(summary: &Summary) -> String {
    let multiple = summary.multiple.map_or(String::new(), |n| format!("{n}×"));
    let mark = if summary.median.flaw.is_some() {
        "!"
    } else {
        ""
    };
    format!(
        "{multiple:>5} {:>7}{mark}",
        count(summary.median.offered_per_s)
    )
}

fn n(value: u64) -> String {
    count(value as f64)
}

fn of_peak_cell((median, least, most): (f64, f64, f64), rounds: usize) -> String {
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    match rounds {
        1 => percent(median) + " %",
        _ => format!(
            "{} % ({}–{})",
            percent(median),
            percent(least),
            percent(most)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(policy: &str, replies_per_s: f64) -> Summary {
        let row = |replies_per_s| Row {
            policy: policy.into(),
            offered_per_s: 123_456.0,
            replies_per_s,
            peak_per_s: Some(20_000.0),
            flaw: Some("busy".into()),
            ..Row::default()
        };
        Summary::of(
            &[row(replies_per_s), row(replies_per_s - 10_000.0)],
            Some(0.5),
        )
        .unwrap()
    }

    #[test]
    fn every_table_fits_80_columns_with_large_numbers_and_long_policies() {
        let policy = "no-syn-drop rst-syn admit=wait target-wait=20ms overbook=0.25 front=xdp";
        let mut points = [point(policy, 20_200.0), point("default", 20_200.0)];
        for point in &mut points {
            let row = &mut point.median;
            (row.response.mean_ms, row.response.max_ms) = (12_345.0, 12_345.0);
            (row.response.p50_ms, row.response.p99_ms) = (12_345.0, 12_345.0);
            let fate = &mut row.fate;
            (fate.refused, fate.reset, fate.timed_out) = (1_234_567, 1_234_567, 1_234_567);
            (fate.waited_for_syn, fate.waited_for_request) = (1_234_567, 1_234_567);
            (row.listen_overflows, row.softnet_drops) = (1_234_567, 1_234_567);
            (row.table_two.expected_syns, row.table_two.actual_syns) = (1_234_567, 1_234_567);
        }
        let tables = [served, fate, lost, table_two].map(|table| table(&points, &str::to_owned));
        for line in tables.iter().flat_map(|table| table.lines()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        for table in &tables {
            assert_eq!(table.matches(policy).count(), 1, "{table}");
            assert_eq!(table.matches("0.5× 123 456!").count(), 2, "{table}");
        }
    }

    #[test]
    fn the_rates_of_a_policy_stand_below_its_words() {
        let points = ["default", "default", "reserv"].map(|policy| point(policy, 20_000.0));
        let text = fate(&points, &|policy| format!("<{policy}>"));
        let starts: Vec<&str> = text.lines().map(|line| &line[..8]).collect();
        assert_eq!(
            starts,
            [
                "not serv", "<default", " 0.5× 1", " 0.5× 1", "<reserv>", " 0.5× 1"
            ]
        );
    }

    #[test]
    fn the_share_of_the_peak_has_its_range_over_rounds() {
        assert_eq!(of_peak_cell((0.9, 0.8, 1.0), 3), "90 % (80–100)");
        assert_eq!(of_peak_cell((0.9, 0.8, 1.0), 1), "90 %");
    }
}
