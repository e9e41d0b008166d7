//! Why a client was refused, and who is refused most, for people.

use std::time::{Duration, UNIX_EPOCH};

use weir_api::{KeptRefusal, Refusal, RefusedMinute, TopSource, TopSources, Why};
use weir_core::rfc3339::Rfc3339;
use weir_core::units::about_duration;

use super::describe::{count, percent};
use super::table::{Align, indent, table};

/// Rows of each table.
const ROWS: usize = 10;

/// The answer.
pub fn text(why: &Why) -> String {
    let mut text = format!("{}.\n", why.text);
    let refused = match why.observed {
        true => "would refuse",
        false => "refused",
    };
    text += &match why.observed {
        true => format!(
            "weir only observes; what it would have refused is kept since {}.\n",
            time(why.since_unix_ms)
        ),
        false => format!("Refusals are kept since {}.\n", time(why.since_unix_ms)),
    };
    if !why.refusals.is_empty() {
        text += &format!("\n{}", kept_table(&why.refusals, refused));
        text += &more(why.refusals.len());
        let verdict = &why.refusals[0].refusal.verdict;
        text += &format!("`weir explain {verdict}` says what to do about it.\n");
    }
    if why.refusals.is_empty() && !why.observed {
        text +=
            "`weir status` counts every refusal; a client of `weir proxy` is in its access log.\n";
    }
    let network = &why.network;
    if network.addresses > why.refusals.len().min(1) {
        text += &format!(
            "\nOf its network {}, {} of {} are kept: about {}.\n",
            network.prefix,
            if why.observed {
                "such attempts"
            } else {
                "refusals"
            },
            count(network.addresses, "address"),
            count(network.estimated as usize, "connection"),
        );
    }
    if !why.gaps.is_empty() {
        text += match why.observed {
            true => "\nNot all that would have been refused in these minutes is kept:\n",
            false => "\nNot every refusal of these minutes is kept:\n",
        };
        let head = [
            ("minute", Align::Left),
            (refused, Align::Right),
            ("kept", Align::Right),
            ("verdicts", Align::Left),
        ];
        let rows: Vec<Vec<String>> = why.gaps.iter().take(ROWS).map(gap).collect();
        text += &table(&head, &rows);
        text += &more(why.gaps.len());
    }
    text
}

/// What was seen has a column where some of them have it: of a queue, or of a server of QUIC.
fn kept_table(all: &[KeptRefusal], refused: &'static str) -> String {
    use Align::{Left, Right};
    let any = |has: fn(&Refusal) -> bool| all.iter().any(|kept| has(&kept.refusal));
    let any_quic = any(|one| one.pending.is_some());
    let any_tcp = any(|one| one.pending.is_none());
    let any_class = any_tcp || all.iter().any(|kept| kept.class.is_some());
    type Column = (&'static str, Align, bool, fn(&KeptRefusal) -> String);
    let columns: [Column; 9] = [
        ("last", Left, true, |kept| time(kept.at_unix_ms)),
        (refused, Right, true, estimated),
        ("listener", Left, true, |kept| kept.listener.clone()),
        ("class", Left, any_class, |kept| or_dash(kept.class.clone())),
        ("verdict", Left, true, verdict),
        ("queue", Right, any_tcp, |kept| queue(&kept.refusal)),
        ("pending", Right, any_quic, |kept| {
            or_dash(kept.refusal.pending.map(|n| n.to_string()))
        }),
        ("buffer", Right, any_quic, |kept| buffer(&kept.refusal)),
        ("wait", Right, true, |kept| {
            let wait = kept.refusal.wait_us.map(Duration::from_micros);
            or_dash(wait.map(about_duration))
        }),
    ];
    let shown = columns.into_iter().filter(|(_, _, shown, _)| *shown);
    let shown: Vec<Column> = shown.collect();
    let head: Vec<(&str, Align)> = shown
        .iter()
        .map(|(name, align, ..)| (*name, *align))
        .collect();
    let row = |kept| shown.iter().map(|(.., cell)| cell(kept)).collect();
    let rows: Vec<Vec<String>> = all.iter().take(ROWS).map(row).collect();
    table(&head, &rows)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn estimated(kept: &KeptRefusal) -> String {
    match kept.estimated > kept.sampled {
        true => format!("~{}", kept.estimated),
        false => kept.sampled.to_string(),
    }
}

fn verdict(kept: &KeptRefusal) -> String {
    let observed = if kept.observed {
        " (observed only)"
    } else {
        ""
    };
    format!("{}{observed}", kept.refusal.verdict)
}

fn queue(refusal: &Refusal) -> String {
    let queue = refusal.queue_length.zip(refusal.queue_limit);
    or_dash(queue.map(|(length, limit)| format!("{length}/{limit}")))
}

fn buffer(refusal: &Refusal) -> String {
    let buffer = refusal.buffer.zip(refusal.buffer_limit);
    let share = |(bytes, limit): (u32, u32)| f64::from(bytes) / f64::from(limit.max(1));
    or_dash(buffer.map(share).map(percent))
}

fn gap(minute: &RefusedMinute) -> Vec<String> {
    let verdicts: Vec<String> = minute
        .verdicts
        .iter()
        .map(|(verdict, n)| format!("{verdict} {n}"))
        .collect();
    vec![
        time(minute.at_unix_ms),
        minute.refused.to_string(),
        minute.kept.to_string(),
        verdicts.join(", "),
    ]
}

/// The sources that are refused most.
pub fn top(sources: &TopSources) -> String {
    let left_out = [&sources.addresses, &sources.networks].map(|of| of.get(ROWS));
    let left_out = left_out.into_iter().flatten().map(|source| source.share);
    let (refused, each) = match sources.observed {
        true => ("would have been refused", "would refuse/s"),
        false => ("refused", "refused/s"),
    };
    let mut text = format!(
        "{:.0} connections/s {refused}, {}; every source with more than {} of them is here.\n",
        sources.refused_per_second,
        mean_over(sources),
        percent(left_out.fold(sources.smallest_share, f64::max))
    );
    for (title, of) in [
        ("address", &sources.addresses),
        ("network", &sources.networks),
    ] {
        if of.is_empty() {
            continue;
        }
        let head = [
            (title, Align::Left),
            (each, Align::Right),
            ("share", Align::Right),
            ("listener", Align::Left),
            ("class", Align::Left),
            ("last verdict", Align::Left),
        ];
        let rows: Vec<Vec<String>> = of.iter().take(ROWS).map(source).collect();
        text += &format!("\n{}", table(&head, &rows));
    }
    text
}

/// `in the mean of the last 6 s` while weir has not run for longer; then each second counts less than the next.
fn mean_over(sources: &TopSources) -> String {
    let half_life = sources.half_life_s as f64;
    // What the weights of so many seconds add up to (`TopSources::refused`).
    let weights = sources.refused / sources.refused_per_second;
    let left = 1.0 - weights * std::f64::consts::LN_2 / half_life;
    match -half_life * left.log2() {
        so_far if so_far < half_life => format!("in the mean of the last {so_far:.0} s"),
        _ => format!("in a moving mean: half of the weight is of the last {half_life} s"),
    }
}

fn source(source: &TopSource) -> Vec<String> {
    vec![
        source.source.clone(),
        format!("{:.1}", source.per_second),
        percent(source.share),
        source.listener.clone(),
        source.class.clone().unwrap_or_else(|| "-".to_owned()),
        source.verdict.clone(),
    ]
}

fn more(rows: usize) -> String {
    match rows.saturating_sub(ROWS) {
        0 => String::new(),
        more => indent(&format!("and {more} more: --json has them\n")),
    }
}

fn time(unix_ms: u64) -> String {
    format!(
        "{:.0}",
        Rfc3339(UNIX_EPOCH + Duration::from_millis(unix_ms))
    )
}

#[cfg(test)]
mod tests {
    use weir_api::SourceNetwork;

    use super::*;

    #[test]
    fn a_table_that_is_cut_does_not_say_that_all_are_there() {
        let source = |share| TopSource {
            share,
            ..TopSource::default()
        };
        let mut sources = TopSources {
            smallest_share: 0.004,
            addresses: vec![source(0.08); ROWS],
            ..TopSources::default()
        };
        assert!(top(&sources).contains("more than 0.4 % of them"));
        sources.networks = vec![source(0.08); ROWS + 1];
        assert!(top(&sources).contains("more than 8 % of them"));
    }

    #[test]
    fn what_was_only_observed_is_not_said_to_be_refused() {
        let sources = TopSources {
            observed: true,
            addresses: vec![TopSource::default()],
            ..TopSources::default()
        };
        let said = top(&sources);
        assert!(said.contains("connections/s would have been refused"));
        let why = Why {
            observed: true,
            text: "weir would not have refused 203.0.113.7".into(),
            gaps: vec![RefusedMinute::default()],
            ..Why::default()
        };
        let said = format!("{said}{}", text(&why));
        assert!(
            said.contains("would refuse/s") && !said.contains("refused  "),
            "{said}"
        );
        assert!(
            !said.contains("Refusals") && !said.contains("every refusal"),
            "{said}"
        );
    }

    #[test]
    fn a_rate_is_said_to_be_of_no_more_time_than_there_was() {
        let text = |refused| {
            top(&TopSources {
                half_life_s: 60,
                refused,
                refused_per_second: 200.0,
                ..TopSources::default()
            })
        };
        // 200 a second for 6 s, each counted less with its age, and for ever.
        let moving = "in a moving mean: half of the weight is of the last 60 s";
        for (refused, over) in [(1159.0, "in the mean of the last 6 s"), (17_312.0, moving)] {
            assert!(text(refused).contains(over), "{}", text(refused));
        }
        let none = top(&TopSources {
            half_life_s: 60,
            ..TopSources::default()
        });
        assert!(none.contains(moving), "{none}");
    }

    #[test]
    fn the_answer_has_the_reason_and_what_was_seen() {
        let why = Why {
            address: "203.0.113.7".into(),
            answer: "refused".into(),
            text: "weir refused 203.0.113.7 2 times".into(),
            observed: false,
            since_unix_ms: 1_790_000_000_000,
            refusals: vec![KeptRefusal {
                at_unix_ms: 1_790_000_001_000,
                sampled: 2,
                estimated: 2,
                listener: "web".into(),
                refusal: Refusal {
                    verdict: "syn_reset_wait".into(),
                    queue_length: Some(300),
                    queue_limit: Some(511),
                    wait_us: Some(42_000),
                    ..Refusal::default()
                },
                ..KeptRefusal::default()
            }],
            network: SourceNetwork {
                prefix: "203.0.113.0/24".into(),
                addresses: 3,
                sampled: 9,
                estimated: 12,
            },
            gaps: Vec::new(),
        };
        let text = text(&why);
        for part in [
            "syn_reset_wait",
            "300/511",
            "42 ms",
            "203.0.113.0/24",
            "`weir explain syn_reset_wait`",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_refused_quic_attempt_has_what_was_seen_of_its_server_and_no_queue() {
        let kept = KeptRefusal {
            listener: "h3".into(),
            refusal: Refusal {
                verdict: "quic_vn_wait".into(),
                pending: Some(12),
                buffer: Some(3000),
                buffer_limit: Some(212_992),
                wait_us: Some(35_000),
                ..Refusal::default()
            },
            ..KeptRefusal::default()
        };
        let head = |all: &[KeptRefusal]| {
            let text = kept_table(all, "refused");
            let lines: Vec<Vec<&str>> = text
                .lines()
                .map(|line| line.split_whitespace().collect())
                .collect();
            (lines[0].join(" "), lines[1][3..].join(" "))
        };
        let quic = head(std::slice::from_ref(&kept));
        assert_eq!(quic.0, "last refused listener verdict pending buffer wait");
        assert_eq!(quic.1, "quic_vn_wait 12 1 % 35 ms");
        let both = head(&[kept, KeptRefusal::default()]);
        assert_eq!(
            both.0,
            "last refused listener class verdict queue pending buffer wait"
        );
    }
}
