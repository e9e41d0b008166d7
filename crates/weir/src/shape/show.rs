//! Reads back what [`super::install`] put on interfaces, with what it has counted.

use weir_api::{Shape, ShapeQueue};
use weir_kernel::shape::qdisc::{self, Counts, Instance};

use super::options::htb_ceil;
use super::tree::{DEMOTED, HIGH, LINK, LOW};
use super::{Backend, CLASSIFIER, ifb};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::host::qdiscs::{self, Node, ROOT};

/// The queues, in the order in which they are served.
const NAMES: [&str; 3] = ["high", "low", "demoted"];
/// The directions.
const EGRESS: &str = "egress";
const INGRESS: &str = "ingress";

/// All shaped interfaces of this network namespace, each direction by itself; also ifbs whose interface has gone.
///
/// # Errors
/// The kernel does not answer.
pub fn shapes() -> Result<Vec<Shape>> {
    let links = links::list()?;
    let name = |index| {
        let mut links = links.iter().filter(|link| link.index == index);
        links.next().map(|link| link.name.clone())
    };
    let mut shapes = Vec::new();
    for (link, shape) in links.iter().zip(of_links(&links)?) {
        let Some(shape) = shape else {
            continue;
        };
        match ifb::index_behind(link).map(name) {
            None => shapes.push(shape),
            Some(Some(dev)) => shapes.push(Shape {
                dev,
                direction: INGRESS.into(),
                ..shape
            }),
            // Its interface has gone, so that it stands under its own name.
            Some(None) => shapes.push(Shape {
                direction: INGRESS.into(),
                ..shape
            }),
        }
    }
    // Both directions of one beside each other, what it sends first.
    shapes.sort_by(|one, other| (&one.dev, &one.direction).cmp(&(&other.dev, &other.direction)));
    Ok(shapes)
}

/// How what this interface sends is shaped; `None`: not by weir.
///
/// # Errors
/// The kernel does not answer.
pub fn of_link(link: &Link) -> Result<Option<Shape>> {
    Ok(of_links(std::slice::from_ref(link))?.pop().flatten())
}

/// The same of each of these.
fn of_links(links: &[Link]) -> Result<Vec<Option<Shape>>> {
    let all = qdiscs::qdiscs().map_err(|error| Failure::io("list the qdiscs", error))?;
    // Only where one is in use: reading them needs more rights than the rest.
    let own = match all
        .iter()
        .any(|qdisc| Backend::of(qdisc) == Some(Backend::Bpf))
    {
        true => qdisc::instances()?,
        false => Vec::new(),
    };
    let shaped = links.iter().map(|link| {
        let mut of_link = all.iter().filter(|qdisc| qdisc.index == link.index);
        let root = of_link.find(|qdisc| qdisc.parent == ROOT);
        let backend = root.and_then(|root| Some((root, Backend::of(root)?)));
        match backend {
            Some((root, Backend::Tc)) => tree(link, root.handle, &all).map(Some),
            Some((root, Backend::Bpf)) => {
                let of_root = own.iter().find(|own| own.kind == root.kind);
                Ok(of_root.map(|own| in_bpf(link, own)))
            }
            None => Ok(None),
        }
    });
    shaped.collect()
}

fn in_bpf(link: &Link, own: &Instance) -> Shape {
    let queue = |(name, counts): (_, &Counts)| queue(name, own.kind.clone(), *counts);
    let queues = NAMES.into_iter().zip(&own.queues);
    Shape {
        dev: link.name.clone(),
        direction: EGRESS.into(),
        backend: Backend::Bpf.name().into(),
        discipline: own.discipline.clone(),
        rate_bits_per_s: own.rate_bytes_per_s * 8,
        queues: queues.map(queue).collect(),
    }
}

fn tree(link: &Link, major: u32, qdiscs: &[Node]) -> Result<Shape> {
    let failed = |error| Failure::io(format_args!("list the classes of {}", link.name), error);
    let classes = qdiscs::classes(link.index).map_err(failed)?;
    let names = qdiscs::classifiers(link.index).map_err(failed)?;
    let rate = classes.iter().find(|class| class.handle == major | LINK);
    let rate = rate.and_then(|class| htb_ceil(&class.options)).unwrap_or(0);
    let leaf = |minor| {
        let mut of_link = qdiscs.iter().filter(|qdisc| qdisc.index == link.index);
        of_link.find(|qdisc| qdisc.parent == major | minor)
    };
    let low = leaf(LOW).map_or("", |qdisc| qdisc.kind.as_str());
    let queue = |(name, minor)| {
        let class = classes.iter().find(|class| class.handle == major | minor)?;
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
        direction: EGRESS.into(),
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
