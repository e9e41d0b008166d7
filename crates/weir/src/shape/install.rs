//! Shapes what an interface sends, and takes that off again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use weir_core::aqm::{Discipline, Setup};
use weir_kernel::shape::{Classifier, qdisc};

use super::options::{Htb, htb_root};
use super::show::of_link;
use super::tree::{self, Rule, Tree};
use super::{Backend, CLASSIFIER, Owner, own};
use crate::failure::{Code, Failure, ROOT_HINT, Result};
use crate::host::links::Link;
use crate::host::qdiscs::{self, Node, Place, ROOT};

/// An interface whose packets are shorter has the parameters of one with this: every IPv4 network takes so much (RFC 791).
const SHORTEST_FULL_PACKET: u32 = 576;

/// How an interface is to be shaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The queueing discipline.
    pub discipline: Discipline,
    /// What the link carries, bytes/s.
    pub rate: u64,
    /// What does the work; `None`: the kernel's qdiscs, or where one is missing the qdisc in BPF.
    pub backend: Option<Backend>,
    /// Who takes it off.
    pub owner: Owner,
}

/// What is put on an interface.
#[derive(Debug)]
pub struct Shaper {
    how: How,
    owner: Owner,
}

#[derive(Debug)]
enum How {
    Tree(Discipline, Box<Tree>),
    Own(Box<qdisc::Spec>),
}

/// Shapes the interface. What weir put there before is replaced; for that moment the interface sends unshaped. Packets
/// that wait are dropped then, as by every change of a root qdisc. What does the work is returned. packet_bytes: length of
/// a full packet, with the link's header.
///
/// # Errors
/// Somebody else's root qdisc is there; the kernel lacks what is needed, exit code 3. The interface is then shaped as
/// before.
pub fn install(link: &Link, wish: Wish, packet_bytes: u32) -> Result<Backend> {
    let ways = ways(wish, packet_bytes)?;
    // What is there stays as it is, with its counters, where nothing else is to be had.
    if wish.backend == Some(Backend::Bpf) {
        qdisc::supported()?;
    }
    let before = match root(link)? {
        Some(root) if Backend::of(&root).is_some() => before(link, packet_bytes)?,
        Some(root) if root.handle != 0 => return Err(occupied(link, &root)),
        _ => None,
    };
    remove(link)?;
    let mut first = None;
    for shaper in &ways {
        let error = match put_on(link, shaper) {
            Ok(backend) => return Ok(backend),
            Err(error) => error,
        };
        // Only what the kernel lacks is a reason to try another way; the first cause is what the user needs.
        let is_missing = error.code == Code::Unsupported;
        first.get_or_insert(error);
        if !is_missing {
            break;
        }
    }
    if let Some(shaper) = before {
        let _ = put_on(link, &shaper);
    }
    Err(first.expect("there is a way, or an error before"))
}

/// The ways to do what is wished, the best first.
fn ways(wish: Wish, packet_bytes: u32) -> Result<Vec<Shaper>> {
    let setup = setup(wish.rate, packet_bytes);
    let of = |backend| shaper(backend, wish.discipline, &setup, wish.owner);
    let (ways, names) = match wish.backend {
        Some(Backend::Tc) => (vec![of(Backend::Tc)], tree::names()),
        Some(Backend::Bpf) => (vec![of(Backend::Bpf)], own::names()),
        None => (vec![of(Backend::Tc), of(Backend::Bpf)], tree::names()),
    };
    let ways: Vec<_> = ways.into_iter().flatten().collect();
    if !ways.is_empty() {
        return Ok(ways);
    }
    let discipline = wish.discipline;
    let message = match wish.backend {
        Some(Backend::Bpf) => format!("weir's qdisc in BPF has no {discipline}"),
        _ => format!("the kernel's qdiscs have no {discipline} as weir means it"),
    };
    Err(Failure::usage(message, format!("there are {names}")))
}

/// The parameters for a link with this rate in bytes/s, and packets of at most so many bytes. Packets that are longer than Ethernet's count as
/// Ethernet's: what crosses a slow link is seldom longer, even where the interface would send it.
fn setup(rate: u64, packet_bytes: u32) -> Setup {
    let usual = Setup::new(rate);
    Setup {
        mtu_bytes: packet_bytes.clamp(SHORTEST_FULL_PACKET, usual.mtu_bytes),
        ..usual
    }
}

fn shaper(backend: Backend, discipline: Discipline, setup: &Setup, owner: Owner) -> Option<Shaper> {
    let how = match backend {
        Backend::Tc => How::Tree(discipline, Box::new(tree::tree(discipline, setup)?)),
        Backend::Bpf => How::Own(Box::new(own::spec(discipline, setup)?)),
    };
    Some(Shaper { how, owner })
}

/// What weir has put on the interface. packet_bytes: as [`install`] was given it.
///
/// # Errors
/// The kernel does not answer.
pub fn before(link: &Link, packet_bytes: u32) -> Result<Option<Shaper>> {
    let (Some(owner), Some(shape)) = (owner(link)?, of_link(link)?) else {
        return Ok(None);
    };
    let backends = [Backend::Tc, Backend::Bpf].into_iter();
    let mut named = backends.filter(|backend| backend.name() == shape.backend);
    let (backend, discipline) = (named.next(), shape.discipline.parse());
    let (Some(backend), Ok(discipline)) = (backend, discipline) else {
        return Ok(None);
    };
    Ok(shaper(
        backend,
        discipline,
        &setup(shape.rate_bits_per_s / 8, packet_bytes),
        owner,
    ))
}

/// Puts back what [`before`] has found.
///
/// # Errors
/// The kernel's.
pub fn restore(link: &Link, before: Option<Shaper>) -> Result<()> {
    remove(link)?;
    match before {
        Some(shaper) => put_on(link, &shaper).map(drop),
        None => Ok(()),
    }
}

/// Takes what weir put there off; the kernel's default takes its place. `false`: there is nothing of weir's.
///
/// # Errors
/// The kernel's.
pub fn remove(link: &Link) -> Result<bool> {
    let Some(root) = root(link)? else {
        return Ok(false);
    };
    let Some(backend) = Backend::of(&root) else {
        return Ok(false);
    };
    qdiscs::remove_root(link.index)
        .map_err(|error| failed(&link.name, "remove the root qdisc of", error))?;
    if backend == Backend::Bpf {
        qdisc::unregister(&root.kind)?;
        // Those whose interface has gone meanwhile.
        qdisc::unregister_unused()?;
    }
    Ok(true)
}

/// Who has shaped what the interface sends; `None`: not weir.
///
/// # Errors
/// The kernel does not answer.
pub fn owner(link: &Link) -> Result<Option<Owner>> {
    Ok(root(link)?.and_then(|root| Owner::of(&root)))
}

fn root(link: &Link) -> Result<Option<Node>> {
    let all = qdiscs::qdiscs().map_err(|error| Failure::io("list the qdiscs", error))?;
    let mut roots = all
        .into_iter()
        .filter(|qdisc| qdisc.index == link.index && qdisc.parent == ROOT);
    Ok(roots.next())
}

fn occupied(link: &Link, root: &Node) -> Failure {
    let name = &link.name;
    let message = format!(
        "{name} has a root qdisc that is not weir's: {} {:x}:",
        root.kind,
        root.handle >> 16
    );
    Failure::failed(
        message,
        format!("`tc qdisc del dev {name} root` removes it"),
    )
}

fn put_on(link: &Link, shaper: &Shaper) -> Result<Backend> {
    let major = shaper.owner.major();
    match &shaper.how {
        How::Tree(discipline, tree) => {
            put_tree(link, major, *discipline, tree).map(|()| Backend::Tc)
        }
        How::Own(spec) => put_own(link, major, spec).map(|()| Backend::Bpf),
    }
}

fn put_own(link: &Link, major: u32, spec: &qdisc::Spec) -> Result<()> {
    let kind = qdisc::register(spec)?;
    qdiscs::add_qdisc(place(link, ROOT, major), &kind, &[]).map_err(|error| {
        // The error of the interface is the one that says why.
        let _ = qdisc::unregister(&kind);
        failed(&link.name, "put weir's qdisc on", error)
    })
}

fn put_tree(link: &Link, major: u32, discipline: Discipline, tree: &Tree) -> Result<()> {
    let name = &link.name;
    // Before anything is changed.
    let classifier = tree.classifier.map(|rule| load(major, rule)).transpose()?;
    qdiscs::add_qdisc(place(link, ROOT, major), "htb", &htb_root(tree::LOW))
        .map_err(|error| missing("htb", discipline, name, error))?;
    let filled = fill_tree(link, major, discipline, tree, classifier);
    if filled.is_err() {
        // It is the one from above, nobody else's.
        let _ = qdiscs::remove_root(link.index);
    }
    filled
}

fn fill_tree(
    link: &Link,
    major: u32,
    discipline: Discipline,
    tree: &Tree,
    classifier: Option<OwnedFd>,
) -> Result<()> {
    let name = &link.name;
    add_class(link, major, 0, tree::LINK, &tree.link)?;
    for class in &tree.classes {
        add_class(link, major, tree::LINK, class.minor, &class.htb)?;
        let place = place(link, major | class.minor, 0);
        qdiscs::add_qdisc(place, class.kind, &class.options)
            .map_err(|error| missing(class.kind, discipline, name, error))?;
    }
    let Some(program) = classifier else {
        return Ok(());
    };
    let label = format!("{CLASSIFIER}{discipline}");
    qdiscs::add_classifier(link.index, major, program.as_fd(), &label)
        .map_err(|error| missing("cls_bpf", discipline, name, error))
}

fn load(major: u32, rule: Rule) -> Result<OwnedFd> {
    let classifier = Classifier {
        high: major | tree::HIGH,
        low: major | tree::LOW,
        demoted: major | tree::DEMOTED,
        fin: rule.fin,
        limit: rule.limit,
    };
    Ok(classifier.load()?)
}

fn add_class(link: &Link, major: u32, parent: u32, minor: u32, class: &Htb) -> Result<()> {
    let place = place(link, major | parent, major | minor);
    qdiscs::add_class(place, "htb", &class.options())
        .map_err(|error| failed(&link.name, "make a class of HTB on", error))
}

fn place(link: &Link, parent: u32, handle: u32) -> Place {
    Place {
        index: link.index,
        parent,
        handle,
    }
}

/// What could not be done to an interface.
pub fn failed(name: &str, what: &str, error: io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ROOT_HINT,
        _ => "",
    };
    Failure::failed(format!("cannot {what} {name}: {error}"), hint)
}

/// ENOENT says that the kernel has no such qdisc, built in or as a module.
fn missing(kind: &str, discipline: Discipline, name: &str, error: io::Error) -> Failure {
    if error.raw_os_error() != Some(nix::libc::ENOENT) {
        return failed(name, &format!("put {kind} on"), error);
    }
    let message = format!("{discipline} needs {kind}, which this kernel does not have");
    let hint = match kind {
        "htb" | "cls_bpf" => "load its module, or take a kernel that has it",
        _ => "`--discipline syn-prio` needs no other qdiscs than htb and pfifo",
    };
    Failure::unsupported(message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's psched_mtu(). With 14 bytes too many a new flow would send two packets in its first turn.
    #[test]
    fn a_new_flow_s_first_turn_is_a_full_packet_of_the_link() {
        let first_turn = |packet_bytes| setup(300_000, packet_bytes).own_flows().fresh_bytes;
        assert_eq!(first_turn(1500), 1500);
        assert_eq!(first_turn(1420), 1420);
        assert_eq!(first_turn(1514), 1514);
        assert_eq!(first_turn(9014), 1514);
        assert_eq!(first_turn(68), 576);
    }
}
