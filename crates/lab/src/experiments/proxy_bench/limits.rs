//! What weir must hold against the other contenders, and whether it did.

use serde::Serialize;

use super::case::{Case, Kind};
use super::summary::{Row, Spread, Summary};
use crate::proxy::contender::{Contender, Program};

/// Whom weir is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rival {
    /// The better of HAProxy and nginx.
    Better,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// weir's own copying engine.
    Copy,
}

impl Rival {
    /// Who it stands for: of each of these, the best of its tunings that were measured.
    fn programs(self) -> &'static [Program] {
        match self {
            Rival::Better => &[Program::Haproxy, Program::Nginx],
            Rival::Haproxy => &[Program::Haproxy],
            Rival::Nginx => &[Program::Nginx],
            Rival::Copy => &[Program::Weir],
        }
    }

    fn includes(self, contender: Contender) -> bool {
        match self {
            Rival::Copy => contender == Contender::Copy,
            _ => self.programs().contains(&contender.program()),
        }
    }
}

/// A measured quantity; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// CPU time on the proxy's core per request.
    Cpu,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
}

impl Quantity {
    fn of(self, row: &Row) -> f64 {
        match self {
            Quantity::Cpu => row.cpu_us,
            Quantity::P50 => row.p50_us,
            Quantity::P99 => row.p99_us,
        }
    }
}

/// weir's quantity over a rival's shall be at most `most`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// What is compared.
    pub quantity: Quantity,
    /// With whom.
    pub rival: Rival,
    /// Largest ratio that holds.
    pub most: f64,
}

const fn limit(quantity: Quantity, rival: Rival, most: f64) -> Limit {
    Limit {
        quantity,
        rival,
        most,
    }
}

/// The limits of a case: the project's must-hold table, and RR02's directions.
fn limits(case: &Case) -> Vec<Limit> {
    use Quantity::{Cpu, P50, P99};
    const MIB: usize = 1 << 20;
    const KIB: usize = 1 << 10;
    let cpu: &[Limit] = match (case.kind, case.size.0) {
        (Kind::Get, bytes) if bytes >= MIB => &[
            limit(Cpu, Rival::Haproxy, 0.90),
            limit(Cpu, Rival::Nginx, 0.55),
        ],
        (Kind::Get, bytes) if bytes >= 33 * KIB => &[limit(Cpu, Rival::Better, 0.80)],
        (Kind::Get, _) => &[limit(Cpu, Rival::Better, 0.75)],
        (Kind::Tunnel, bytes) if bytes >= MIB => &[
            limit(Cpu, Rival::Haproxy, 0.95),
            limit(Cpu, Rival::Nginx, 0.65),
        ],
        (Kind::Tunnel, _) => &[limit(Cpu, Rival::Haproxy, 0.88)],
        (Kind::Connect | Kind::TunnelConnect, _) => &[limit(Cpu, Rival::Better, 0.90)],
    };
    let directions = [
        limit(P99, Rival::Better, 1.0),
        limit(Cpu, Rival::Copy, 1.0),
        limit(P50, Rival::Copy, 1.0),
    ];
    [cpu, &directions].concat()
}

/// Whether a limit held in a case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// The limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Whom weir comes off worst against, of those that the rival stands for.
    pub contender: Contender,
    /// What was measured, round by round, against that one.
    pub ratio: Spread,
    /// What the median would be if weir's own code took no time, and only the kernel's work for it were left: of the
    /// CPU time only.
    pub floor: Option<f64>,
    /// Whether it is within the limit.
    pub held: bool,
}

/// Checks every limit whose contenders were measured.
pub fn check(summaries: &[Summary]) -> Vec<Verdict> {
    let weirs = summaries
        .iter()
        .filter(|summary| summary.contender == Contender::Weir);
    weirs
        .flat_map(|weir| {
            let verdicts = limits(&weir.case).into_iter();
            verdicts.filter_map(|limit| verdict(weir, limit, summaries))
        })
        .collect()
}

fn verdict(weir: &Summary, limit: Limit, summaries: &[Summary]) -> Option<Verdict> {
    let rivals: Vec<&Summary> = summaries
        .iter()
        .filter(|summary| summary.case == weir.case && limit.rival.includes(summary.contender))
        .collect();
    let measured = |program: &Program| rivals.iter().any(|one| one.contender.program() == *program);
    if !limit.rival.programs().iter().all(measured) {
        return None;
    }
    let ratios = rivals
        .iter()
        .map(|rival| (rival, weir.ratio(rival, |row| limit.quantity.of(row))));
    let (rival, ratio) = ratios.max_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))?;
    let own = weir.median.user_us / weir.median.cpu_us;
    // Bodies that take longer than the window have no latency.
    ratio.median.is_finite().then_some(Verdict {
        case: weir.case,
        limit,
        contender: rival.contender,
        ratio,
        floor: (limit.quantity == Quantity::Cpu).then_some(ratio.median * (1.0 - own)),
        held: ratio.median <= limit.most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::proxy_bench::case::Size;

    fn summary(contender: Contender, cpu_us: f64) -> Summary {
        let case = Case {
            kind: Kind::Get,
            size: Size(1024),
            clients: 40,
        };
        let row = Row {
            cpu_us,
            user_us: cpu_us / 5.0,
            p99_us: 1.0,
            ..Row::new(contender, case)
        };
        Summary::of(&[row]).unwrap()
    }

    fn cpu_verdict(weir_us: f64) -> Verdict {
        let summaries = [
            summary(Contender::Weir, weir_us),
            summary(Contender::Haproxy, 12.0),
            summary(Contender::Nginx, 10.0),
        ];
        let verdicts = check(&summaries);
        let cpu = |verdict: &&Verdict| verdict.limit.quantity == Quantity::Cpu;
        *verdicts.iter().find(cpu).unwrap()
    }

    #[test]
    fn weir_is_held_against_the_better_of_the_two() {
        assert!(cpu_verdict(7.5).held);
        assert!(!cpu_verdict(7.6).held);
        assert_eq!(cpu_verdict(7.5).ratio.median, 0.75);
        assert_eq!(cpu_verdict(7.5).floor, Some(0.75 * 0.8));
    }

    #[test]
    fn weir_is_held_against_the_best_tuning_of_a_rival() {
        let summaries = [
            summary(Contender::Weir, 7.5),
            summary(Contender::Haproxy, 12.0),
            summary(Contender::Haproxy64k, 9.0),
            summary(Contender::Nginx, 10.0),
        ];
        let verdicts = check(&summaries);
        let cpu = |verdict: &&Verdict| verdict.limit.quantity == Quantity::Cpu;
        let verdict = verdicts.iter().find(cpu).unwrap();
        assert_eq!(verdict.contender, Contender::Haproxy64k);
        assert!(!verdict.held);
    }

    #[test]
    fn nothing_is_said_of_rivals_that_were_not_measured() {
        assert_eq!(check(&[summary(Contender::Weir, 1.0)]), []);
        let both = [
            summary(Contender::Weir, 1.0),
            summary(Contender::Haproxy, 9.0),
        ];
        assert_eq!(check(&both), []);
    }
}
