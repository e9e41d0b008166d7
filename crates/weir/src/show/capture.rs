//! What a capture shows: a table, a picture, and what it means.

use weir_core::units::about_duration;
use weir_trace::{Counts, Figures, FloodFilter, Name, Report};

use crate::show::bars::{Bar, bars};
use crate::show::describe::count;
use crate::show::table::{Align, table};

use std::time::Duration;

/// Fewer SYNs than this say nothing about probabilities.
const SYNS_MIN: u64 = 100;
/// A lost SYN/ACK makes the client repeat its SYN too: twice the probability of other segments needs no further reason.
const BOTH_WAYS: f64 = 2.0;

/// All of it, for people.
pub fn text(report: &Report) -> String {
    let mut text = head(report) + "\n" + &figures(report);
    let notes = notes(report);
    if !notes.is_empty() {
        text += "\n";
        text += &notes;
    }
    let picture = picture(report);
    if !picture.is_empty() {
        text += "\n";
        text += &picture;
    }
    text + "\n" + &meaning(report) + "\n"
}

/// What was read.
fn head(report: &Report) -> String {
    let counts = &report.counts;
    let duration = match (report.first_ns, report.last_ns) {
        (Some(first), Some(last)) => Duration::from_nanos(last - first),
        _ => Duration::ZERO,
    };
    format!(
        "{} packets in {}, {} of TCP; {}\n",
        counts.packets,
        about_duration(duration),
        counts.tcp,
        count(counts.connections as usize, "connection"),
    )
}

fn name(name: Name) -> &'static str {
    match name {
        Name::ToServer => "to server",
        Name::ToClient => "to client",
    }
}

/// The table: rows as in Tables I and II of BHD18, then what belongs to them.
fn figures(report: &Report) -> String {
    type Cell = fn(&Figures) -> String;
    let rows: [(&str, Cell); 14] = [
        ("packets", |f| f.packets.to_string()),
        ("connections", |f| f.connections.to_string()),
        ("packet rtx probability", |f| {
            probability(f.packet_rtx_probability)
        }),
        ("syn share of rtx", |f| probability(f.syn_share_of_rtx)),
        ("syn rtx probability", |f| {
            probability(f.syn_rtx_probability)
        }),
        ("mean rtx delay, ms", |f| ms(f.mean_rtx_delay_ms)),
        ("  with syn loss", |f| ms(f.mean_rtx_delay_with_syn_loss_ms)),
        ("  without syn loss", |f| {
            ms(f.mean_rtx_delay_without_syn_loss_ms)
        }),
        ("segments (data, SYN, FIN)", |f| f.segments.to_string()),
        ("segment rtx probability", |f| {
            probability(f.segment_rtx_probability)
        }),
        ("retransmissions", |f| f.retransmissions.to_string()),
        ("  of SYNs and SYN/ACKs", |f| {
            f.syn_retransmissions.to_string()
        }),
        ("filtered over 45 s", |f| f.filtered_over_45s.to_string()),
        ("filtered syn flood hosts", |f| {
            f.filtered_syn_flood_hosts.to_string()
        }),
    ];
    let head = [
        ("", Align::Left),
        (name(report.directions[0].name), Align::Right),
        (name(report.directions[1].name), Align::Right),
    ];
    let row = |(label, cell): &(&str, Cell)| {
        let cells = report.directions.each_ref().map(cell);
        [&[(*label).to_owned()][..], &cells].concat()
    };
    table(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

fn probability(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.2} %", value * 100.0))
}

fn ms(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// What is not in the figures, and why.
fn notes(report: &Report) -> String {
    let Counts {
        without_syn,
        other,
        copies,
        fragments,
        cut,
        malformed,
        unknown_link,
        unknown_blocks,
        keep_alives,
        stray,
        judged_early,
        judged_open,
        hosts_forgotten,
        ..
    } = report.counts;
    let of_unknown_delay: u64 = report
        .directions
        .iter()
        .map(|f| f.rtx_of_unknown_delay)
        .sum();
    let lines: [(u64, &str); 14] = [
        (
            without_syn,
            "TCP packets of connections whose SYN is not in the capture",
        ),
        (other, "packets that are not TCP over IP"),
        (
            copies,
            "TCP packets that the capture had before, from another interface or a mirror port",
        ),
        (unknown_link, "packets of links that weir does not read"),
        (
            unknown_blocks,
            "pcapng blocks of a kind that weir does not know",
        ),
        (keep_alives, "keep-alives and window probes (as segments)"),
        (
            stray,
            "TCP packets far from all that their connection has sent (as segments)",
        ),
        (
            report.filtered_not_established,
            "connections that are not established, or without data",
        ),
        (
            cut,
            "packets that the snap length cuts before the TCP flags",
        ),
        (fragments, "later fragments of packets"),
        (malformed, "packets that are malformed"),
        (
            of_unknown_delay,
            "retransmissions whose first transmission is not known (in no mean)",
        ),
        (
            judged_open,
            "connections that were still open when --max-connections was reached (what came later)",
        ),
        (
            hosts_forgotten,
            "hosts that the SYN-flood filter forgot when --max-connections was reached",
        ),
    ];
    let mut text: String = lines
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("not counted: {count} {what}\n"))
        .collect();
    if judged_early > 0 {
        text += &format!(
            "{judged_early} connections were judged before the end of the capture, because --max-connections was reached\n"
        );
    }
    text += &doubts(report);
    if report.flood_filter == FloodFilter::OneDirection {
        text += "one direction only: the SYN-flood filter needs both\n";
    }
    text
}

/// What makes the figures doubtful.
fn doubts(report: &Report) -> String {
    let Counts {
        acks_of_unseen,
        rtx_at_once,
        ..
    } = report.counts;
    let rtx: u64 = report.directions.iter().map(|f| f.retransmissions).sum();
    let mut text = String::new();
    if rtx_at_once > 0 && rtx_at_once * 2 >= rtx {
        text += &format!(
            "doubtful: {rtx_at_once} of {rtx} retransmissions come within 1 ms, before a sender knows of a loss: the capture \
             may have packets more than once. Capture on one interface\n"
        );
    }
    if acks_of_unseen > 0 {
        text += &format!(
            "doubtful: {acks_of_unseen} acknowledgements of data that are not in the capture: it has lost packets, or other \
             packets take another way\n"
        );
    }
    text
}

/// Figure 1 of BHD18, as bars: how likely a packet and a SYN are sent again, and how long that takes.
fn picture(report: &Report) -> String {
    type Value = fn(&Figures) -> Option<f64>;
    let bars_of = |rows: [(&str, Value); 2], text: fn(f64) -> String| {
        let of_direction = |figures: &Figures| {
            rows.map(|(what, value)| {
                value(figures).map(|value| Bar {
                    label: format!("{}, {what}", name(figures.name)),
                    value,
                    text: text(value),
                })
            })
        };
        let all: Vec<Bar> = report
            .directions
            .iter()
            .flat_map(of_direction)
            .flatten()
            .collect();
        bars(&all)
    };
    let likely = bars_of(
        [
            ("segments", |f| f.segment_rtx_probability),
            ("SYNs", |f| f.syn_rtx_probability),
        ],
        |value| format!("{:.2} %", value * 100.0),
    );
    let long = bars_of(
        [
            ("SYN lost", |f| f.mean_rtx_delay_with_syn_loss_ms),
            ("others", |f| f.mean_rtx_delay_without_syn_loss_ms),
        ],
        |value| format!("{value:.0} ms"),
    );
    let mut text = String::new();
    for (title, bars) in [("Sent again:", likely), ("After, on average:", long)] {
        if !bars.is_empty() {
            text += &format!("{title}\n{bars}");
        }
    }
    text
}

/// Two sentences, about the direction with more SYNs sent again.
fn meaning(report: &Report) -> String {
    let [to_server, to_client] = &report.directions;
    let figures = match to_client.syn_retransmissions > to_server.syn_retransmissions {
        true => to_client,
        false => to_server,
    };
    let way = match figures.name {
        Name::ToServer => "to servers",
        Name::ToClient => "to clients",
    };
    let Some(syn) = figures.syn_rtx_probability else {
        return "No connection was opened in this capture.\nIt says nothing about lost SYNs."
            .to_owned();
    };
    let syns = figures.syns;
    if figures.syn_retransmissions == 0 {
        let share = probability(figures.segment_rtx_probability);
        return format!(
            "None of {syns} SYNs {way} was sent again, and {share} of all segments.\n\
             A queue that lets SYNs go first would change nothing here."
        );
    }
    let of_all = probability(figures.syn_share_of_rtx);
    let others = others(figures);
    let compared = match others {
        Some(others) if others > 0.0 => {
            format!(", {:.1} times as often as other segments", syn / others)
        }
        _ => ", and no other segment".to_owned(),
    };
    let first = format!(
        "Of the SYNs and SYN/ACKs {way}, {} are retransmissions{compared}; they are {of_all} of all retransmissions.",
        probability(Some(syn)),
    );
    let waits = figures.mean_rtx_delay_with_syn_loss_ms.unwrap_or(0.0);
    let waits = about_duration(Duration::from_secs_f64(waits / 1000.0));
    let many = count(figures.connections_with_syn_rtx as usize, "connection");
    let second = match (others, refused(report)) {
        _ if syns < SYNS_MIN => format!("{syns} SYNs are too few to conclude from."),
        (_, Some(refused)) => refused,
        (Some(others), None) if syn <= others * BOTH_WAYS => format!(
            "That is no more than losses in both directions explain; {many} waited {waits} for a retransmission on average."
        ),
        _ => format!(
            "{many} waited {waits} for a retransmission on average: a queue at the bottleneck that lets SYNs go first \
             would spare them that, if the SYNs were lost there and not refused by the server."
        ),
    };
    format!("{first}\n{second}")
}

/// What a capture at the server shows of it: most SYNs and SYN/ACKs came again because it took no connection in.
fn refused(report: &Report) -> Option<String> {
    let counts = &report.counts;
    let (syns, acks) = (counts.syns_unanswered, counts.final_acks_unheeded);
    let again: u64 = report
        .directions
        .iter()
        .map(|f| f.syn_retransmissions)
        .sum();
    let is_at_server = counts.syns_answered_at_once * 2 > counts.syns_answered;
    (is_at_server && (syns + acks) * 2 > again).then(|| {
        format!(
            "{syns} SYNs were here, at the server, and got no answer, and {acks} final ACKs were not heeded: its listen queue was \
             full, or a firewall there took them. That is no loss on the path; `weir protect` is for the queue."
        )
    })
}

/// The probability that a segment other than a SYN is sent again.
fn others(figures: &Figures) -> Option<f64> {
    let segments = figures.segments - figures.syns;
    let again = figures.retransmissions - figures.syn_retransmissions;
    (segments > 0).then(|| again as f64 / segments as f64)
}
