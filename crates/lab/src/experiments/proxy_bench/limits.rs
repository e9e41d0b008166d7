//! What weir must hold against the other contenders, and whether it did.

use super::kind::Kind;
use crate::error::Result;
use crate::proxy::bed::Link;
use crate::proxy::contender::Contender;
use crate::proxy::size::Size;
use crate::run::experiment::{chosen, parsed, word};
use crate::run::results::{Case, Claim, Parameters, Results, Sample};

/// Whom weir is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// The better of HAProxy and nginx.
    Better,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// weir's own copying engine.
    Copy,
    /// The better of weir's own copying and splicing engines.
    Engine,
}

impl Rival {
    /// Who it stands for: of each of these sets at least one contender must have been measured, and the best of all
    /// counts.
    fn sets(self) -> &'static [&'static [Contender]] {
        use Contender::*;
        const HAPROXY: &[Contender] = &[Haproxy, Haproxy32k, Haproxy64k];
        const NGINX: &[Contender] = &[Nginx, Nginx16k, NginxDirect];
        match self {
            Rival::Better => &[HAPROXY, NGINX],
            Rival::Haproxy => &[HAPROXY],
            Rival::Nginx => &[NGINX],
            Rival::Copy => &[&[Copy]],
            Rival::Engine => &[&[Copy], &[Splice]],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Rival::Better => "the better peer's",
            Rival::Haproxy => "HAProxy's",
            Rival::Nginx => "nginx'",
            Rival::Copy => "the copying engine's",
            Rival::Engine => "the cheaper engine's",
        }
    }
}

/// weir's quantity over a rival's shall be at most `most`. Of each less is better.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// `cpu`, `p50` or `p99`.
    quantity: &'static str,
    rival: Rival,
    most: f64,
}

const QUANTITIES: [&str; 3] = ["cpu", "p50", "p99"];

const fn limit(quantity: &'static str, rival: Rival, most: f64) -> Limit {
    Limit {
        quantity,
        rival,
        most,
    }
}

/// The limits of a case: where a card takes the packets' work, the project's must-hold table and RR02's directions; on
/// other links, that `auto` has chosen well, and that neither peer does better.
fn limits(link: Link, kind: Kind, size: Size) -> Vec<Limit> {
    if link != Link::Card {
        return vec![
            limit("cpu", Rival::Engine, 1.05),
            limit("cpu", Rival::Better, 1.0),
        ];
    }
    const MIB: usize = 1 << 20;
    const KIB: usize = 1 << 10;
    let cpu: &[Limit] = match (kind, size.0) {
        (Kind::Get, bytes) if bytes >= MIB => &[
            limit("cpu", Rival::Haproxy, 0.90),
            limit("cpu", Rival::Nginx, 0.55),
        ],
        (Kind::Get, bytes) if bytes >= 33 * KIB => &[limit("cpu", Rival::Better, 0.80)],
        (Kind::Get, _) => &[limit("cpu", Rival::Better, 0.75)],
        (Kind::Tunnel, bytes) if bytes >= MIB => &[
            limit("cpu", Rival::Haproxy, 0.95),
            limit("cpu", Rival::Nginx, 0.65),
        ],
        (Kind::Tunnel, _) => &[limit("cpu", Rival::Haproxy, 0.88)],
        (Kind::Connect | Kind::TunnelConnect | Kind::TunnelSsl, _) => {
            &[limit("cpu", Rival::Better, 0.90)]
        }
    };
    let directions = [
        limit("p99", Rival::Better, 1.0),
        limit("cpu", Rival::Copy, 1.0),
        limit("p50", Rival::Copy, 1.0),
    ];
    [cpu, &directions].concat()
}

/// Adds the ratios within a round: weir's quantities over everyone's (`cpu_of_haproxy`), with what the CPU ratio would
/// be if weir's own code took no time and only the kernel's work for it were left (`kernel_of_haproxy`); everyone's CPU
/// time over weir's and its copying engine's; and everyone's 99th percentile and replies over weir's. Beside Squid, what
/// everyone saves against the copying engine as a part of Squid's CPU time (RR02, Figure 12).
pub fn compare(round: &mut [(Parameters, Sample)]) {
    let all = round.to_vec();
    for (case, sample) in round {
        let beside = |(other, _): &&(Parameters, Sample)| {
            let same = |name: &str| other.get(name) == case.get(name);
            same("link") && same("kind") && same("size") && same("clients")
        };
        let contender = case["contender"].clone();
        let own = sample.get("user_us") / sample.get("cpu_us");
        let cpu_us = |name: &str| {
            let one = all
                .iter()
                .filter(beside)
                .find(|(other, _)| other["contender"] == name);
            one.map(|(_, sample)| sample.get("cpu_us"))
        };
        if let (Some(copy_us), Some(squid_us)) = (cpu_us("copy"), cpu_us("squid")) {
            let saved_us = copy_us - sample.get("cpu_us");
            sample.add([("saved_of_squid", saved_us / squid_us)]);
        }
        for (other, of_other) in all.iter().filter(beside) {
            let other = other["contender"].as_str();
            let ratio = |quantity: &str| {
                let metric = format!("{quantity}_us");
                sample.get(&metric) / of_other.get(&metric)
            };
            let replies = sample.get("replies_per_s") / of_other.get("replies_per_s");
            let ratios = QUANTITIES.map(|quantity| (quantity, ratio(quantity)));
            if contender == "weir" && other != "weir" {
                for (quantity, ratio) in ratios {
                    sample
                        .metrics
                        .insert(format!("{quantity}_of_{other}"), ratio);
                }
                sample
                    .metrics
                    .insert(format!("kernel_of_{other}"), ratios[0].1 * (1.0 - own));
                continue;
            }
            if !["weir", "copy"].contains(&other) {
                continue;
            }
            let metrics = &mut sample.metrics;
            metrics.insert(format!("cpu_of_{other}"), ratios[0].1);
            if other == "weir" {
                metrics.insert("p99_of_weir".into(), ratios[2].1);
                metrics.insert("replies_of_weir".into(), replies);
            }
        }
    }
}

/// Checks every limit whose contenders were measured.
pub fn check(results: &Results) -> Vec<Claim> {
    let weirs = results
        .cases
        .iter()
        .filter(|case| case.parameter("contender") == "weir");
    weirs
        .flat_map(|weir| {
            limits_of(&weir.parameters)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|limit| claim(weir, limit))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn limits_of(case: &Parameters) -> Result<Vec<Limit>> {
    let (link, kind) = (chosen(case, "link")?, chosen(case, "kind")?);
    Ok(limits(link, kind, parsed(case, "size")?))
}

fn claim(weir: &Case, limit: Limit) -> Option<Claim> {
    let is_measured = |rival: &&Contender| weir.metrics.contains_key(&metric(limit, **rival));
    let sets = limit.rival.sets().iter();
    let sets: Vec<Vec<Contender>> = sets
        .map(|set| set.iter().filter(is_measured).copied().collect())
        .collect();
    if sets.iter().any(Vec::is_empty) {
        return None;
    }
    let rivals = sets.concat();
    let median = |rival: &Contender| weir.median(&metric(limit, *rival));
    let worst = rivals
        .into_iter()
        .max_by(|a, b| median(a).total_cmp(&median(b)))?;
    let Limit {
        quantity,
        rival,
        most,
    } = limit;
    let text = format!("{quantity} is at most {most} of {}", rival.name());
    Some(Claim::about(&text, weir, &metric(limit, worst), |ratio| {
        ratio.median <= most
    }))
}

fn metric(limit: Limit, rival: Contender) -> String {
    format!("{}_of_{}", limit.quantity, word(&rival))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::{Verdict, parameters};
    use crate::run::statistics::Spread;

    fn measured(contenders: &[(&str, f64)]) -> Results {
        measured_on("card", contenders)
    }

    fn measured_on(link: &str, contenders: &[(&str, f64)]) -> Results {
        let sample = |(contender, cpu_us): &(&str, f64)| {
            let case = parameters([
                ("link", link.to_owned()),
                ("kind", "get".into()),
                ("size", "1K".into()),
                ("clients", "40".into()),
                ("contender", (*contender).into()),
            ]);
            let sample = Sample::of([
                ("cpu_us", *cpu_us),
                ("user_us", cpu_us / 5.0),
                ("p50_us", 1.0),
                ("p99_us", 1.0),
            ]);
            (case, sample)
        };
        let mut round: Vec<_> = contenders.iter().map(sample).collect();
        compare(&mut round);
        let case = |(parameters, sample): (Parameters, Sample)| Case {
            parameters,
            rounds: 1,
            metrics: sample
                .metrics
                .into_iter()
                .map(|(name, value)| (name, Spread::one(value)))
                .collect(),
            ..Case::default()
        };
        Results {
            cases: round.into_iter().map(case).collect(),
            ..Results::default()
        }
    }

    fn cpu_claim(weir_us: f64) -> (Verdict, f64, f64) {
        let results = measured(&[("weir", weir_us), ("haproxy", 12.0), ("nginx", 10.0)]);
        let claim = check(&results)
            .into_iter()
            .find(|claim| claim.claim.starts_with("cpu"))
            .unwrap();
        let kernel = results.cases[0].median("kernel_of_nginx");
        (claim.verdict, claim.value.unwrap().median, kernel)
    }

    #[test]
    fn weir_is_held_against_the_better_of_the_two() {
        let (verdict, ratio, kernel) = cpu_claim(7.5);
        assert_eq!((verdict, ratio), (Verdict::Held, 0.75));
        assert!((kernel - 0.75 * 0.8).abs() < 1e-9);
        assert_eq!(cpu_claim(7.6).0, Verdict::NotHeld);
    }

    #[test]
    fn weir_is_held_against_the_best_tuning_of_a_rival() {
        let results = measured(&[
            ("weir", 7.5),
            ("haproxy", 12.0),
            ("haproxy-64k", 9.0),
            ("nginx", 10.0),
        ]);
        let claim = check(&results)
            .into_iter()
            .find(|claim| claim.claim.starts_with("cpu"))
            .unwrap();
        assert_eq!(claim.value.unwrap().median, 7.5 / 9.0);
        assert_eq!(claim.verdict, Verdict::NotHeld);
    }

    #[test]
    fn auto_is_held_against_the_cheaper_engine_on_a_link_without_a_card() {
        let claims = |weir_us| {
            let contenders = [("weir", weir_us), ("copy", 60.0), ("splice", 150.0)];
            let claims = check(&measured_on("tso", &contenders)).into_iter();
            claims.map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(claims(63.0), [Verdict::Held]);
        assert_eq!(claims(149.0), [Verdict::NotHeld]);
        let without_splice = measured_on("tso", &[("weir", 60.0), ("copy", 60.0)]);
        assert_eq!(check(&without_splice), []);
    }

    #[test]
    fn what_is_saved_is_a_part_of_squid_s_time_where_squid_was_measured() {
        let results = measured(&[("splice", 60.0), ("copy", 80.0), ("squid", 200.0)]);
        assert_eq!(results.cases[0].median("saved_of_squid"), 0.1);
        let without = measured(&[("splice", 60.0), ("copy", 80.0)]);
        assert!(!without.cases[0].metrics.contains_key("saved_of_squid"));
    }

    #[test]
    fn nothing_is_said_of_rivals_that_were_not_measured() {
        assert_eq!(check(&measured(&[("weir", 1.0)])), []);
        assert_eq!(check(&measured(&[("weir", 1.0), ("haproxy", 9.0)])), []);
    }
}
