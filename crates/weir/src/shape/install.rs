//! Puts a tree on an interface and takes it off.

use std::io;
use std::os::fd::AsFd;

use weir_core::aqm::Discipline;
use weir_kernel::shape::Classifier;

use super::options::htb_root;
use super::tree::{self, Class, Tree};
use super::{CLASSIFIER, MAJOR};
use crate::failure::{Failure, ROOT_HINT, Result};
use crate::host::links::Link;
use crate::host::qdiscs::{self, Node, ROOT};

/// Shapes what the interface sends. A tree of ours that is there is replaced; for that moment the interface sends
/// unshaped. Packets that wait are dropped then, as by every change of a root qdisc.
///
/// # Errors
/// Somebody else's root qdisc is there; the kernel lacks a qdisc, exit code 3. The interface is then as before, or has
/// the kernel's default.
pub fn install(link: &Link, discipline: Discipline, rate: u64) -> Result<()> {
    let Some(tree) = tree::tree(discipline, rate) else {
        let message = format!("the kernel's qdiscs have no {discipline} as weir means it");
        return Err(Failure::usage(
            message,
            format!("there are {}", tree::names()),
        ));
    };
    match root(link)? {
        Some(root) if is_ours(&root) => take_off(link)?,
        Some(root) if root.handle != 0 => return Err(occupied(link, &root)),
        _ => {}
    }
    put_on(link, discipline, &tree).inspect_err(|_| {
        // The first cause is what the user needs; that nothing was there to remove is none.
        let _ = qdiscs::remove_root(link.index);
    })
}

/// Takes our tree off; the kernel's default takes its place. `false`: there is none.
///
/// # Errors
/// The kernel's, or somebody else's root qdisc is there.
pub fn remove(link: &Link) -> Result<bool> {
    match root(link)? {
        Some(root) if is_ours(&root) => take_off(link).map(|()| true),
        _ => Ok(false),
    }
}

/// Whether it is the root of a tree that [`install`] made.
pub fn is_ours(root: &Node) -> bool {
    root.kind == "htb" && root.handle == MAJOR
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
    let (index, name) = (link.index, &link.name);
    let classifier = tree.classifier.map(|rule| {
        let classifier = Classifier {
            high: MAJOR | tree::HIGH,
            low: MAJOR | tree::LOW,
            demoted: MAJOR | tree::DEMOTED,
            fin: rule.fin,
            limit: rule.limit,
        };
        classifier.load()
    });
    let classifier = classifier.transpose()?;
    qdiscs::add_qdisc(index, ROOT, MAJOR, "htb", &htb_root(tree::LOW))
        .map_err(|error| missing("htb", discipline, name, error))?;
    qdiscs::add_class(
        index,
        MAJOR,
        MAJOR | tree::LINK,
        "htb",
        &tree.link.options(),
    )
    .map_err(|error| failed(name, "make a class of HTB on", error))?;
    tree.classes
        .iter()
        .try_for_each(|class| add(link, discipline, class))?;
    let Some(program) = classifier else {
        return Ok(());
    };
    let label = format!("{CLASSIFIER}{discipline}");
    qdiscs::add_classifier(index, MAJOR, program.as_fd(), &label)
        .map_err(|error| missing("cls_bpf", discipline, name, error))
}

fn add(link: &Link, discipline: Discipline, class: &Class) -> Result<()> {
    let (index, id) = (link.index, MAJOR | class.minor);
    qdiscs::add_class(index, MAJOR | tree::LINK, id, "htb", &class.htb.options())
        .map_err(|error| failed(&link.name, "make a class of HTB on", error))?;
    qdiscs::add_qdisc(index, id, 0, class.kind, &class.options)
        .map_err(|error| missing(class.kind, discipline, &link.name, error))
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
