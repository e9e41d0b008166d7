//! Which qdiscs and classes a discipline is made of.

use std::time::Duration;

use weir_core::aqm::discipline::DEFAULT_PACKETS;
use weir_core::aqm::{CodelParams, Discipline, LimitParams, Setup, SpaParams};

use super::options::{Htb, codel, fifo, fq_codel, pie, sfq};

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

/// The tree for a link; `None`: the kernel's qdiscs do not have the discipline. Its parameters are those of the model.
pub fn tree(discipline: Discipline, setup: &Setup) -> Option<Tree> {
    let low = low_queue(discipline, setup)?;
    let spa = spa(discipline, setup);
    let rate = setup.rate_bytes_per_s;
    Some(Tree {
        link: htb(setup, rate, 0),
        classes: classes(setup, spa.as_ref(), low),
        classifier: spa.map(|spa| Rule {
            fin: spa.fin,
            limit: spa.limit,
        }),
    })
}

/// The names of the disciplines that [`tree`] has.
pub fn names() -> String {
    let all = Discipline::ALL.into_iter();
    let here = all.filter(|discipline| tree(*discipline, &Setup::new(1_000_000)).is_some());
    here.map(Discipline::name).collect::<Vec<_>>().join(", ")
}

/// Of the disciplines with a high queue.
fn spa(discipline: Discipline, setup: &Setup) -> Option<SpaParams> {
    let paper = setup.spa_paper();
    match discipline {
        Discipline::SynPrio => Some(SpaParams {
            fin: false,
            ..paper
        }),
        Discipline::SynFinPrio | Discipline::SpaPaper => Some(paper),
        Discipline::Spa | Discipline::SpaFq => Some(setup.spa()),
        _ => None,
    }
}

/// A qdisc: its kind and its options.
type Qdisc = (&'static str, Vec<u8>);

fn low_queue(discipline: Discipline, setup: &Setup) -> Option<Qdisc> {
    Some(match discipline {
        Discipline::Fifo | Discipline::SynPrio | Discipline::SynFinPrio => {
            ("pfifo", fifo(setup.buffer_packets))
        }
        Discipline::Bfifo => ("bfifo", fifo(setup.buffer_packets * setup.mtu_bytes)),
        Discipline::Codel | Discipline::SpaPaper => {
            ("codel", codel(&setup.codel(), DEFAULT_PACKETS))
        }
        // The kernel's default has marks.
        Discipline::FqCodel => {
            let marks = CodelParams {
                ecn: true,
                ..setup.codel()
            };
            ("fq_codel", fq_codel(&setup.flows(marks)))
        }
        Discipline::Pie => ("pie", pie(&setup.pie())),
        Discipline::Sfq => ("sfq", sfq(&setup.sfq())),
        Discipline::Spa => ("codel", codel(&setup.own_codel(), setup.own_packets())),
        Discipline::SpaFq => ("fq_codel", fq_codel(&setup.own_fq_codel())),
        // The last is what `spa-fq` is here, under the simulator's name.
        Discipline::Red
        | Discipline::Ared
        | Discipline::RedFavor
        | Discipline::Cake
        | Discipline::SpaFqTc => return None,
    })
}

fn classes(setup: &Setup, spa: Option<&SpaParams>, low: Qdisc) -> Vec<Class> {
    let rate = setup.rate_bytes_per_s;
    let class = |minor, htb, (kind, options)| Class {
        minor,
        htb,
        kind,
        options,
    };
    let Some(spa) = spa else {
        return vec![class(LOW, htb(setup, rate, 1), low)];
    };
    // HTB serves classes that are within their rate before those that borrow, and each of the two by priority. The
    // high class never has to borrow: the limit keeps it under a tenth, and without a limit it has nearly the whole
    // link.
    let (high_rate, demoted) = match spa.limit {
        Some(_) => (rate / 8, rate >> spa.demoted_log),
        None => (rate - rate / 32, 0),
    };
    // A limit keeps the high queue short by itself; where the paper has none, it has CoDel.
    let high = match (spa.limit, low.0) {
        (None, "codel") => ("codel", codel(&spa.high, spa.limit_packets)),
        _ => ("pfifo", fifo(spa.limit_packets)),
    };
    let mut classes = vec![
        class(HIGH, htb(setup, high_rate, 0), high),
        class(LOW, htb(setup, rate - high_rate - demoted, 1), low),
    ];
    if demoted > 0 {
        let queue = ("pfifo", fifo(spa.demoted_packets));
        classes.push(class(DEMOTED, htb(setup, demoted, 2), queue));
    }
    classes
}

/// A class with this rate in bytes/s, which may borrow the link's.
fn htb(setup: &Setup, rate: u64, priority: u32) -> Htb {
    let ceil = setup.rate_bytes_per_s;
    let burst = (ceil as u128 * BURST.as_nanos() / 1_000_000_000) as u32;
    Htb {
        rate: rate.max(1),
        ceil,
        priority,
        quantum: setup.mtu_bytes,
        burst: burst.max(setup.mtu_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::shape::DISCIPLINES;

    #[test]
    fn the_classes_of_every_discipline_share_the_link() {
        for discipline in Discipline::ALL {
            for rate in [8_000, 300_000, 12_500_000, 12_500_000_000] {
                let Some(tree) = tree(discipline, &Setup::new(rate)) else {
                    let others = ["red", "ared", "red-favor", "cake", "spa-fq-tc"];
                    assert!(others.contains(&discipline.name()), "{discipline}");
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
    fn the_disciplines_of_the_file_are_those_of_the_kernel() {
        for discipline in Discipline::ALL {
            let is_here = tree(discipline, &Setup::new(1_000_000)).is_some();
            assert_eq!(DISCIPLINES.contains(&discipline), is_here, "{discipline}");
        }
    }

    #[test]
    fn a_high_class_with_a_limit_stays_within_its_rate() {
        let rate = 300_000;
        let tree = tree(Discipline::SpaFq, &Setup::new(rate)).unwrap();
        let high = tree
            .classes
            .iter()
            .find(|class| class.minor == HIGH)
            .unwrap();
        let limit = tree.classifier.unwrap().limit.unwrap();
        assert!(1_024_000_000_000 / limit.all.ns_per_kib <= high.htb.rate);
    }
}
