//! Shapes both directions of an interface, and takes that off again.

use super::ingress;
use super::install::{self, Wish};
use super::{Backend, Owner, ifb};
use crate::failure::Result;
use crate::host::links::{self, Link};
use crate::host::qdiscs;

/// Shapes what the interface sends and, with a rate for it in bytes/s, what it receives. What weir put there before is
/// replaced. What does the work is returned.
///
/// # Errors
/// As of [`install::install`] and [`ingress::install`]. The interface is then shaped as before.
pub fn install(link: &Link, wish: Wish, received: Option<u64>) -> Result<Backend> {
    let before = install::before(link, link.packet_bytes)?;
    let backend = install::install(link, wish, link.packet_bytes)?;
    let done = match received {
        Some(rate) => ingress::install(link, Wish { rate, ..wish }).map(drop),
        None => ingress::remove(link).map(drop),
    };
    if done.is_err() {
        let _ = install::restore(link, before);
    }
    done.map(|()| backend)
}

/// Takes what weir put there off, in both directions. `false`: there is nothing of weir's.
///
/// # Errors
/// The kernel's.
pub fn remove(link: &Link) -> Result<bool> {
    let sent = install::remove(link);
    let received = ingress::remove(link);
    Ok(sent? | received?)
}

/// Takes off what a `weir run` that was killed has left in this network namespace; the names of the interfaces.
///
/// # Errors
/// The kernel's.
pub fn remove_left_over() -> Result<Vec<String>> {
    let all = links::list()?;
    let roots =
        qdiscs::qdiscs().map_err(|error| crate::failure::Failure::io("list the qdiscs", error))?;
    let is_left = |link: &&Link| {
        let through = all
            .iter()
            .find(|other| ifb::index_behind(other) == Some(link.index));
        let indices = [Some(link.index), through.map(|ifb| ifb.index)];
        let mut of_link = roots
            .iter()
            .filter(|root| indices.contains(&Some(root.index)));
        of_link.any(|root| Owner::of(root) == Some(Owner::Run))
    };
    let mut names = Vec::new();
    // An ifb goes with its interface.
    let interfaces = all.iter().filter(|link| ifb::index_behind(link).is_none());
    for link in interfaces.filter(is_left) {
        remove(link)?;
        names.push(link.name.clone());
    }
    ingress::remove_unused()?;
    Ok(names)
}
