//! Reads back what [`super::install`] put on interfaces, with what it has counted.

use weir_api::{Shape, ShapeQueue};
use weir_kernel::shape::qdisc::{self, Counts, Instance};

use super::options::htb_ceil;
use super::tree::{DEMOTED, HIGH, LINK, LOW};
use super::{Backend, CLASSIFIER, MAJOR};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::host::qdiscs::{self, Node, ROOT};

/// The queues, in the order in which they are served.
const NAMES: [&str; 3] = ["high", "low", "demoted"];

/// All shaped interfaces of this network namespace.
///
/// # Errors
/// The kernel does not answer.
pub fn shapes() -> Result<Vec<Shape>> {
    let all = qdiscs::qdiscs().map_err(|error| Failure::io("list the qdiscs", error))?;
    let links = links::list()?;
    // Only where one is in use: reading them needs more rights than the rest.
    let own = match all
        .iter()
        .any(|qdisc| Backend::of(qdisc) == Some(Backend::Bpf))
    {
        true => qdisc::instances()?,
        false => Vec::new(),
    };
    let shaped = links.iter().filter_map(|link| {
        let mut of_link = all.iter().filter(|qdisc| qdisc.index == link.index);
        let root = of_link.find(|qdisc| qdisc.parent == ROOT)?;
        match Backend::of(root)? {
            Backend::Tc => Some(tree(link, &all)),
            Backend::Bpf => {
                let of_root = own.iter().find(|own| own.kind == root.kind)?;
                Some(Ok(in_bpf(link, of_root)))
            }
        }
    });
    shaped.collect()
}

fn in_bpf(link: &Link, own: &Instance) -> Shape {
    let queue = |(name, counts): (_, &Counts)| queue(name, own.kind.clone(), *counts);
    let queues = NAMES.into_iter().zip(&own.queues);
    Shape {
        dev: link.name.clone(),
        backend: Backend::Bpf.name().into(),
        discipline: own.discipline.clone(),
        rate_bits_per_s: own.rate_bytes_per_s * 8,
        queues: queues.map(queue).collect(),
    }
}

fn tree(link: &Link, qdiscs: &[Node]) -> Result<Shape> {
    let failed = |error| Failure::io(format_args!("list the classes of {}", link.name), error);
    let classes = qdiscs::classes(link.index).map_err(failed)?;
    let names = qdiscs::classifiers(link.index).map_err(failed)?;
    let rate = classes.iter().find(|class| class.handle == MAJOR | LINK);
    let rate = rate.and_then(|class| htb_ceil(&class.options)).unwrap_or(0);
    let leaf = |minor| {
        let mut of_link = qdiscs.iter().filter(|qdisc| qdisc.index == link.index);
        of_link.find(|qdisc| qdisc.parent == MAJOR | minor)
    };
    let low = leaf(LOW).map_or("", |qdisc| qdisc.kind.as_str());
    let queue = |(name, minor)| {
        let class = classes.iter().find(|class| class.handle == MAJOR | minor)?;
        let Some(qdisc) = leaf(minor) else {
            return Some(queue(name, String::new(), class.counts));
        };
        // A packet that its qdisc drops when it comes is counted there, one that CoDel drops later in both.
        let dropped_packets = qdisc
            .counts
            .dropped_packets
            .max(class.counts.dropped_packets);
        let counts = Counts {
            dropped_packets,
            ..qdisc.counts
        };
        Some(queue(name, qdisc.kind.clone(), counts))
    };
    Ok(Shape {
        dev: link.name.clone(),
        backend: Backend::Tc.name().into(),
        discipline: discipline(&names, low),
        rate_bits_per_s: rate * 8,
        queues: NAMES
            .into_iter()
            .zip([HIGH, LOW, DEMOTED])
            .filter_map(queue)
            .collect(),
    })
}

fn queue(name: &str, qdisc: String, counts: Counts) -> ShapeQueue {
    ShapeQueue {
        name: name.into(),
        qdisc,
        sent_packets: counts.sent_packets,
        sent_bytes: counts.sent_bytes,
        dropped_packets: counts.dropped_packets,
        waiting_packets: counts.waiting_packets,
        waiting_bytes: counts.waiting_bytes,
    }
}

/// The classifier has its name; without one the low queue is all there is.
fn discipline(classifiers: &[String], low: &str) -> String {
    let name = classifiers
        .iter()
        .find_map(|name| name.strip_prefix(CLASSIFIER));
    name.map_or_else(
        || low.replace("pfifo", "fifo").replace('_', "-"),
        str::to_owned,
    )
}
