//! Which qdiscs and classes a discipline is made of.

use std::time::Duration;

use weir_core::aqm::Discipline;
use weir_core::aqm::limit::LimitParams;

use super::options::{Codel, Htb, fifo, pie, sfq};

/// A full packet of Ethernet, bytes.
const MTU: u32 = 1514;
/// Packets that the queue of control segments holds: a second of SYNs at 0.5 Mb/s.
const HIGH_LIMIT: u32 = 1000;
/// Packets that the queue of those over the limit holds. They are the flood's: a few are enough.
const DEMOTED_LIMIT: u32 = 256;
/// Bytes of the link for each byte of the demoted class while others wait.
const DEMOTED_DIVISOR: u64 = 32;
/// Full packets that a FIFO holds, as in BHD18, Table III.
const FIFO_LIMIT: u32 = 100;
/// What one wake-up of the kernel may send at once: its timer is late by that at most, or the link would idle.
const BURST: Duration = Duration::from_millis(2);

/// Minor numbers of the classes.
pub const LINK: u32 = 1;
/// Of control segments.
pub const HIGH: u32 = 0x10;
/// Of everything else.
pub const LOW: u32 = 0x20;
/// Of control segments over the limit.
pub const DEMOTED: u32 = 0x30;

/// A discipline as HTB classes with a qdisc each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The class that has the link's rate, above the others.
    pub link: Htb,
    /// The classes, each with its minor number.
    pub classes: Vec<Class>,
    /// Who goes where; `None`: everything is low.
    pub classifier: Option<Rule>,
}

/// A class and the qdisc in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its minor number.
    pub minor: u32,
    /// Its share of the link.
    pub htb: Htb,
    /// Its qdisc's kind.
    pub kind: &'static str,
    /// Its qdisc's options.
    pub options: Vec<u8>,
}

/// Which packets are high.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// FIN as well as SYN.
    pub fin: bool,
    /// What may overtake data; `None`: every control segment.
    pub limit: Option<LimitParams>,
}

/// The tree for a link that carries so many bytes/s; `None`: the kernel's qdiscs do not have the discipline.
pub fn tree(discipline: Discipline, rate: u64) -> Option<Tree> {
    let (kind, options) = low_queue(discipline, rate)?;
    let rule = rule(discipline, rate);
    Some(Tree {
        link: htb(rate, rate, 0),
        classes: classes(discipline, rate, rule, (kind, options)),
        classifier: rule,
    })
}

/// The names of the disciplines that [`tree`] has.
pub fn names() -> String {
    let all = Discipline::ALL.into_iter();
    let here = all.filter(|discipline| low_queue(*discipline, 1_000_000).is_some());
    here.map(Discipline::name).collect::<Vec<_>>().join(", ")
}

fn rule(discipline: Discipline, rate: u64) -> Option<Rule> {
    let unlimited = |fin| Some(Rule { fin, limit: None });
    match discipline {
        Discipline::SynPrio => unlimited(false),
        Discipline::SynFinPrio | Discipline::SpaPaper => unlimited(true),
        Discipline::Spa | Discipline::SpaFq => Some(Rule {
            fin: false,
            limit: Some(LimitParams::for_rate(rate)),
        }),
        _ => None,
    }
}

fn low_queue(discipline: Discipline, rate: u64) -> Option<(&'static str, Vec<u8>)> {
    let own = own_codel(rate);
    Some(match discipline {
        Discipline::Fifo | Discipline::SynPrio | Discipline::SynFinPrio => {
            ("pfifo", fifo(FIFO_LIMIT))
        }
        Discipline::Bfifo => ("bfifo", fifo(FIFO_LIMIT * MTU)),
        Discipline::Codel | Discipline::SpaPaper => ("codel", CODEL.options()),
        Discipline::FqCodel => ("fq_codel", FAIR.fair_options(MTU)),
        Discipline::Pie => ("pie", pie(1000, false)),
        Discipline::Sfq => ("sfq", sfq(MTU, 127)),
        Discipline::Spa => ("codel", own.options()),
        Discipline::SpaFq => (
            "fq_codel",
            Codel {
                limit: FAIR.limit,
                ..own
            }
            .fair_options(MTU),
        ),
        Discipline::Red | Discipline::Ared | Discipline::RedFavor => return None,
    })
}

const CODEL: Codel = Codel {
    target: Duration::from_millis(5),
    interval: Duration::from_millis(100),
    limit: 1000,
    ecn: false,
};

const FAIR: Codel = Codel {
    limit: 10_240,
    ecn: true,
    ..CODEL
};

/// On a slow link a full packet takes longer than 5 ms, and no queue can be shorter than that: the target is at least
/// one and a half full packets.
fn own_codel(rate: u64) -> Codel {
    let packet = Duration::from_nanos(u64::from(MTU) * 1_500_000_000 / rate.max(1));
    let target = CODEL.target.max(packet);
    Codel {
        target,
        interval: CODEL.interval.max(2 * target),
        ecn: true,
        ..CODEL
    }
}

fn classes(
    discipline: Discipline,
    rate: u64,
    rule: Option<Rule>,
    low: (&'static str, Vec<u8>),
) -> Vec<Class> {
    let class = |minor, htb, (kind, options)| Class {
        minor,
        htb,
        kind,
        options,
    };
    let Some(rule) = rule else {
        return vec![class(LOW, htb(rate, rate, 1), low)];
    };
    let high = match discipline {
        Discipline::SpaPaper => ("codel", CODEL.options()),
        _ => ("pfifo", fifo(HIGH_LIMIT)),
    };
    // HTB serves classes that are within their rate before those that borrow, and each of the two by priority. The
    // high class never has to borrow: the limit keeps it under a tenth, and without a limit it has the whole link.
    let (high_rate, demoted) = match rule.limit {
        Some(_) => (rate / 8, rate / DEMOTED_DIVISOR),
        None => (rate - rate / DEMOTED_DIVISOR, 0),
    };
    let mut classes = vec![
        class(HIGH, htb(high_rate, rate, 0), high),
        class(LOW, htb(rate - high_rate - demoted, rate, 1), low),
    ];
    if demoted > 0 {
        let queue = ("pfifo", fifo(DEMOTED_LIMIT));
        classes.push(class(DEMOTED, htb(demoted, rate, 2), queue));
    }
    classes
}

fn htb(rate: u64, ceil: u64, priority: u32) -> Htb {
    let burst = (ceil as u128 * BURST.as_nanos() / 1_000_000_000) as u32;
    Htb {
        rate: rate.max(1),
        ceil,
        priority,
        quantum: MTU,
        burst: burst.max(MTU + 14),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_of_every_discipline_share_the_link() {
        for discipline in Discipline::ALL {
            for rate in [8_000, 300_000, 12_500_000, 12_500_000_000] {
                let Some(tree) = tree(discipline, rate) else {
                    assert!(discipline.name().contains("red"), "{discipline}");
                    continue;
                };
                let sum: u64 = tree.classes.iter().map(|class| class.htb.rate).sum();
                assert_eq!(sum, rate, "{discipline} at {rate}");
                assert!(tree.classes.iter().all(|class| class.htb.ceil == rate));
                assert!(tree.classes.iter().any(|class| class.minor == LOW));
            }
        }
    }

    #[test]
    fn a_high_class_with_a_limit_stays_within_its_rate() {
        let rate = 300_000;
        let tree = tree(Discipline::SpaFq, rate).unwrap();
        let high = tree
            .classes
            .iter()
            .find(|class| class.minor == HIGH)
            .unwrap();
        let limit = tree.classifier.unwrap().limit.unwrap();
        assert!(1_024_000_000_000 / limit.all.ns_per_kib <= high.htb.rate);
    }
}
