//! What is claimed of SPA, and the ratios by which it is judged.

use super::sample::SIZES;
use crate::run::results::{Case, Claim, Parameters, Results, Sample};
use crate::run::statistics::Spread;

/// Disciplines that are compared.
const OWN: [&str; 4] = ["spa", "spa-paper", "spa-fq", "spa-fq-tc"];
/// Those over flow queues.
const OVER_FLOWS: [&str; 2] = ["spa-fq", "spa-fq-tc"];
/// With what: SPA as a single queue with the first three, and SPA over flow queues with FQ-CoDel and CAKE.
const PLAIN: [&str; 3] = ["fifo", "codel", "pie"];
const FLOWS: [&str; 2] = ["fq-codel", "cake"];
/// What is compared with those besides the classes of size.
const TIMES: [&str; 5] = [
    "response_p95_ms",
    "connect_mean_ms",
    "connect_p95_ms",
    "burst_connect_mean_ms",
    "burst_connect_p95_ms",
];
/// "Far ahead": at most this share of the other's time.
const FAR_AHEAD: f64 = 0.8;
/// "Before": at most this share; equal to rounding is not before.
const BEFORE: f64 = 0.999;

/// The name of a ratio.
fn ratio_name(metric: &str, other: &str) -> String {
    format!("{}_of_{other}", metric.trim_end_matches("_ms"))
}

/// Adds the ratios to the samples of one round.
pub fn add_ratios(round: &mut [(Parameters, Sample)]) {
    let all = round.to_vec();
    let of_flows: Vec<&str> = SIZES.iter().map(|(name, ..)| *name).chain(TIMES).collect();
    for (case, sample) in round.iter_mut() {
        if !OWN.contains(&case["discipline"].as_str()) {
            continue;
        }
        let of_plain = PLAIN.map(|other| (other, vec!["short_mean_ms", "response_p95_ms"]));
        let of_flows = FLOWS.map(|other| (other, of_flows.clone()));
        for (other, metrics) in of_plain.into_iter().chain(of_flows) {
            let mut wanted = case.clone();
            wanted.insert("discipline".into(), other.into());
            let Some((_, beside)) = all.iter().find(|(case, _)| *case == wanted) else {
                continue;
            };
            for metric in metrics {
                let ratio = sample.get(metric) / beside.get(metric);
                if ratio.is_finite() {
                    sample.metrics.insert(ratio_name(metric, other), ratio);
                }
            }
        }
    }
}

fn of_discipline<'a>(results: &'a Results, name: &'a str) -> impl Iterator<Item = &'a Case> {
    let cases = results.cases.iter();
    cases.filter(move |case| case.parameter("discipline") == name)
}

fn over_flows(results: &Results) -> impl Iterator<Item = &Case> {
    OVER_FLOWS
        .into_iter()
        .flat_map(|name| of_discipline(results, name))
}

/// A ratio whose median is under a limit.
fn ratio_claim(case: &Case, metric: &str, other: &str, what: &str, limit: f64) -> Claim {
    let name = case.parameter("discipline");
    let claim = format!("{name}: {what}, of {other}'s, is at most {limit}");
    let holds = |ratio: Spread| ratio.median <= limit;
    Claim::about(&claim, case, &ratio_name(metric, other), holds)
}

/// The claims about the paper's traffic.
pub fn of_traffic(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for name in OWN {
        for case in of_discipline(results, name) {
            let claim = format!("{name}: the downlink drops no SYN");
            let holds = |count: Spread| count.range.1 == 0.0;
            claims.push(Claim::about(&claim, case, "syns_dropped", holds));
        }
    }
    for name in ["spa", "spa-paper"] {
        for case in of_discipline(results, name) {
            for other in PLAIN {
                let what = "mean response of 1 to 3 segments";
                claims.push(ratio_claim(case, "short_mean_ms", other, what, FAR_AHEAD));
            }
        }
    }
    for case in over_flows(results) {
        for other in FLOWS {
            // CAKE is not in every run.
            claims.extend(of_classes(case, other).filter(|claim| claim.value.is_some()));
        }
    }
    claims
}

/// In each class of size, and in p95.
fn of_classes<'a>(case: &'a Case, other: &'a str) -> impl Iterator<Item = Claim> + 'a {
    let what = |metric: &str| {
        let class = metric
            .trim_start_matches("segments_")
            .trim_end_matches("_ms");
        match class.split_once('_') {
            Some((least, most)) => format!("mean response of {least} to {most} segments"),
            None if class == "1" => "mean response of 1 segment".to_owned(),
            None => format!("mean response of {class} segments and more"),
        }
    };
    let classes = SIZES.map(|(metric, ..)| (metric, what(metric)));
    let all = classes
        .into_iter()
        .chain([("response_p95_ms", "p95 of the response".to_owned())]);
    all.map(move |(metric, what)| ratio_claim(case, metric, other, &what, 1.0))
}

/// The claims about bursts.
pub fn of_bursts(results: &Results) -> Vec<Claim> {
    let of = |case| {
        let what = [
            ("burst_connect_mean_ms", "mean connect time of the burst"),
            (
                "burst_connect_p95_ms",
                "p95 of the connect time of the burst",
            ),
        ];
        what.into_iter().flat_map(move |(metric, what)| {
            let of = FLOWS.map(|other| ratio_claim(case, metric, other, what, BEFORE));
            of.into_iter().filter(|claim| claim.value.is_some())
        })
    };
    over_flows(results).flat_map(of).collect()
}
