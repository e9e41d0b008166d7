//! Puts a tree on an interface and takes it off.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use weir_core::aqm::Discipline;
use weir_kernel::shape::Classifier;

use super::options::{Htb, htb_root};
use super::show::shapes;
use super::tree::{self, Rule, Tree};
use super::{CLASSIFIER, MAJOR, is_ours};
use crate::failure::{Failure, ROOT_HINT, Result};
use crate::host::links::Link;
use crate::host::qdiscs::{self, Node, Place, ROOT};

/// Shapes what the interface sends to so many bytes/s. A tree of ours that is there is replaced; for that moment the
/// interface sends unshaped. Packets that wait are dropped then, as by every change of a root qdisc.
///
/// # Errors
/// Somebody else's root qdisc is there; the kernel lacks a qdisc, exit code 3. The interface is then shaped as before.
pub fn install(link: &Link, discipline: Discipline, rate: u64) -> Result<()> {
    let Some(tree) = tree::tree(discipline, rate) else {
        let message = format!("the kernel's qdiscs have no {discipline} as weir means it");
        return Err(Failure::usage(
            message,
            format!("there are {}", tree::names()),
        ));
    };
    let before = match root(link)? {
        Some(root) if is_ours(&root) => before(link)?,
        Some(root) if root.handle != 0 => return Err(occupied(link, &root)),
        _ => None,
    };
    remove(link)?;
    put_on(link, discipline, &tree).inspect_err(|_| {
        // The first cause is what the user needs.
        let _ = remove(link);
        if let Some((discipline, tree)) = before {
            let _ = put_on(link, discipline, &tree);
        }
    })
}

/// The tree of ours that is on the interface.
fn before(link: &Link) -> Result<Option<(Discipline, Tree)>> {
    let shape = shapes()?.into_iter().find(|shape| shape.dev == link.name);
    Ok(shape.and_then(|shape| {
        let discipline = shape.discipline.parse().ok()?;
        Some((
            discipline,
            tree::tree(discipline, shape.rate_bits_per_s / 8)?,
        ))
    }))
}

/// Takes our tree off; the kernel's default takes its place. `false`: there is none.
///
/// # Errors
/// The kernel's.
pub fn remove(link: &Link) -> Result<bool> {
    match root(link)? {
        Some(root) if is_ours(&root) => take_off(link).map(|()| true),
        _ => Ok(false),
    }
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

fn take_off(link: &Link) -> Result<()> {
    qdiscs::remove_root(link.index)
        .map_err(|error| failed(&link.name, "remove the root qdisc of", error))
}

fn put_on(link: &Link, discipline: Discipline, tree: &Tree) -> Result<()> {
    let name = &link.name;
    // Before anything is changed.
    let classifier = tree.classifier.map(load).transpose()?;
    qdiscs::add_qdisc(place(link, ROOT, MAJOR), "htb", &htb_root(tree::LOW))
        .map_err(|error| missing("htb", discipline, name, error))?;
    add_class(link, MAJOR, tree::LINK, &tree.link)?;
    for class in &tree.classes {
        add_class(link, MAJOR | tree::LINK, class.minor, &class.htb)?;
        let place = place(link, MAJOR | class.minor, 0);
        qdiscs::add_qdisc(place, class.kind, &class.options)
            .map_err(|error| missing(class.kind, discipline, name, error))?;
    }
    let Some(program) = classifier else {
        return Ok(());
    };
    let label = format!("{CLASSIFIER}{discipline}");
    qdiscs::add_classifier(link.index, MAJOR, program.as_fd(), &label)
        .map_err(|error| missing("cls_bpf", discipline, name, error))
}

fn load(rule: Rule) -> Result<OwnedFd> {
    let classifier = Classifier {
        high: MAJOR | tree::HIGH,
        low: MAJOR | tree::LOW,
        demoted: MAJOR | tree::DEMOTED,
        fin: rule.fin,
        limit: rule.limit,
    };
    Ok(classifier.load()?)
}

fn add_class(link: &Link, parent: u32, minor: u32, class: &Htb) -> Result<()> {
    let place = place(link, parent, MAJOR | minor);
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

fn failed(name: &str, what: &str, error: io::Error) -> Failure {
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
