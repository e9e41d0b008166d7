//! The metrics of one simulation.

use weir_sim::Outcome;
use weir_sim::outcome::Record;

use crate::run::results::Sample;

const NS_PER_MS: f64 = 1e6;
/// Connections that begin earlier do not count: the link is still empty.
pub const WARM_UP_NS: u64 = 10_000_000_000;
/// Classes of size: name, least and most segments.
pub const SIZES: [(&str, u32, u32); 5] = [
    ("segments_1_ms", 1, 1),
    ("segments_2_3_ms", 2, 3),
    ("segments_4_10_ms", 4, 10),
    ("segments_11_50_ms", 11, 50),
    ("segments_51_ms", 51, 1 << 23),
];

/// Mean, ms; `None` of none.
pub fn mean_ms(times_ns: &[u64]) -> Option<f64> {
    let sum: u64 = times_ns.iter().sum();
    (!times_ns.is_empty()).then(|| sum as f64 / times_ns.len() as f64 / NS_PER_MS)
}

/// 95th percentile, ms; `None` of none.
pub fn p95_ms(mut times_ns: Vec<u64>) -> Option<f64> {
    times_ns.sort_unstable();
    let at = (times_ns.len() * 95).div_ceil(100).checked_sub(1)?;
    Some(times_ns[at] as f64 / NS_PER_MS)
}

/// A time, or what has gone by until the end, ns.
pub fn at_least(time_ns: Option<u64>, start_ns: u64, end_ns: u64) -> u64 {
    time_ns.unwrap_or(end_ns.saturating_sub(start_ns))
}

/// Of a simulation that lasted so long, s.
pub fn of(outcome: &Outcome, seconds: f64) -> Sample {
    let end_ns = (seconds * 1e9) as u64;
    let downloads = outcome.records.iter().filter(|record| record.segments > 0);
    let late: Vec<&Record> = downloads
        .filter(|record| record.start_ns >= WARM_UP_NS)
        .collect();
    let (bursts, usual): (Vec<&Record>, Vec<&Record>) =
        late.iter().partition(|record| record.of_burst);
    let connect = |record: &&Record| at_least(record.connect_ns, record.start_ns, end_ns);
    let response = |record: &&Record| at_least(record.response_ns, record.start_ns, end_ns);
    let connects: Vec<u64> = usual.iter().map(connect).collect();
    let responses: Vec<u64> = usual.iter().map(response).collect();
    let of_bursts: Vec<u64> = bursts.iter().map(connect).collect();
    let in_class = |least, most| -> Vec<u64> {
        let fits = usual
            .iter()
            .filter(|record| (least..=most).contains(&record.segments));
        fits.map(response).collect()
    };
    let mut sample = Sample::default();
    let classes = SIZES.map(|(name, least, most)| (name, mean_ms(&in_class(least, most))));
    let rtts = usual.iter().map(|record| record.last_rtt_ns);
    let times = [
        (
            "last_rtt_mean_ms",
            mean_ms(&rtts.filter(|rtt_ns| *rtt_ns > 0).collect::<Vec<_>>()),
        ),
        ("connect_mean_ms", mean_ms(&connects)),
        ("connect_p95_ms", p95_ms(connects)),
        ("response_mean_ms", mean_ms(&responses)),
        ("response_p95_ms", p95_ms(responses)),
        ("burst_connect_mean_ms", mean_ms(&of_bursts)),
        ("burst_connect_p95_ms", p95_ms(of_bursts)),
        ("short_mean_ms", mean_ms(&in_class(1, 3))),
    ];
    for (name, time) in times.into_iter().chain(classes) {
        sample
            .metrics
            .extend(time.map(|time| (name.to_owned(), time)));
    }
    sample.add(counts(outcome, &late));
    sample
}

fn counts(outcome: &Outcome, records: &[&Record]) -> [(&'static str, f64); 9] {
    let count = |of: fn(&Record) -> bool| records.iter().filter(|record| of(record)).count() as f64;
    let sum = |of: fn(&Record) -> u64| records.iter().map(|record| of(record)).sum::<u64>() as f64;
    let all = records.len().max(1) as f64;
    let down = outcome.queues[0];
    let rtts = sum(|record| record.rtt.0).max(1.0);
    let repeats = sum(|record| u64::from(record.repeat_delay.0)).max(1.0);
    [
        ("connections", records.len() as f64),
        ("unfinished", count(|record| record.response_ns.is_none())),
        ("syn_repeated", count(|record| record.syn_repeats > 0) / all),
        ("syns_dropped", outcome.dropped_syns[0] as f64),
        ("timeouts", sum(|record| u64::from(record.timeouts))),
        ("rtt_mean_ms", sum(|record| record.rtt.1) / rtts / NS_PER_MS),
        (
            "repeat_delay_mean_ms",
            sum(|record| record.repeat_delay.1) / repeats / NS_PER_MS,
        ),
        (
            "lost",
            down.dropped() as f64 / down.received.packets.max(1) as f64,
        ),
        (
            "marked",
            down.marked as f64 / down.received.packets.max(1) as f64,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_95th_percentile_is_a_value_and_of_none_there_is_none() {
        let ms = |count: u64| (1..=count).map(|n| n * 1_000_000).collect();
        assert_eq!(p95_ms(ms(100)), Some(95.0));
        assert_eq!(p95_ms(ms(1)), Some(1.0));
        assert_eq!((p95_ms(Vec::new()), mean_ms(&[])), (None, None));
    }

    #[test]
    fn a_connection_that_has_not_ended_counts_with_the_time_it_has_had() {
        assert_eq!(at_least(None, 30, 100), 70);
        assert_eq!(at_least(Some(5), 30, 100), 5);
    }
}
