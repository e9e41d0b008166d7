//! Shapes both directions of an interface, and takes that off again.

use super::install::{self, Wish};
use super::lock::Changes;
use super::{Backend, Owner, ifb, ingress, show};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::host::qdiscs;

/// Shapes what the interface sends and, with a rate for it in bytes/s, what it receives. What weir put there before is
/// replaced. What does the work is returned.
///
/// # Errors
/// As of [`install::install`] and [`ingress::install`], or `weir run` is to shape what the user has shaped. The interface
/// is then shaped as before.
pub fn install(link: &Link, wish: Wish, received: Option<u64>) -> Result<Backend> {
    if wish.owner == Owner::Run && is_of(Owner::User, link)? {
        let message = format!("`weir shape install` has shaped {}", link.name);
        let hint = format!("`weir shape remove --dev {}` removes that", link.name);
        return Err(Failure::failed(message, hint));
    }
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

/// Whether weir shapes a direction of the interface for this owner.
///
/// # Errors
/// The kernel does not answer.
pub fn is_of(owner: Owner, link: &Link) -> Result<bool> {
    let owns = |link: &Link| install::owner(link).map(|there| there == Some(owner));
    Ok(owns(link)? || ingress::device(link)?.is_some_and(|ifb| owns(&ifb).unwrap_or(false)))
}

/// Takes off what `weir run` has put there, and nothing that the user has.
///
/// # Errors
/// The kernel's.
pub fn remove_of_run(link: &Link) -> Result<()> {
    let is_users = |link: &Link| install::owner(link).map(|owner| owner == Some(Owner::User));
    if !is_users(link)? {
        install::remove(link)?;
    }
    match ingress::device(link)? {
        Some(ifb) if is_users(&ifb)? => Ok(()),
        _ => ingress::remove(link).map(drop),
    }
}

/// What is not there any more of what [`install()`] has put on an interface, as part of a sentence; `None`: it is all there.
/// `links`: the interfaces of the network namespace.
///
/// # Errors
/// The kernel does not answer.
pub fn lost(
    link: &Link,
    wish: Wish,
    received: Option<u64>,
    links: &[Link],
) -> Result<Option<String>> {
    if !is_as_wished(link, wish)? {
        return Ok(Some("its queues are gone".to_owned()));
    }
    let Some(rate) = received else {
        return Ok(None);
    };
    let name = ifb::name(link);
    let of_link = |other: &&Link| ifb::index_behind(other) == Some(link.index);
    let Some(through) = links.iter().find(of_link) else {
        return Ok(Some(format!("{name} is gone")));
    };
    Ok(if !through.up {
        Some(format!("{name} is down"))
    } else if !is_as_wished(through, Wish { rate, ..wish })? {
        Some(format!("the queues of {name} are gone"))
    } else if !ingress::passes(link, through)? {
        Some(format!("the filter that redirects to {name} is gone"))
    } else {
        None
    })
}

fn is_as_wished(link: &Link, wish: Wish) -> Result<bool> {
    if install::owner(link)? != Some(wish.owner) {
        return Ok(false);
    }
    Ok(show::of_link(link)?.is_some_and(|shape| {
        let is_backend = |backend: Backend| backend.name() == shape.backend;
        shape.discipline == wish.discipline.name()
            && shape.rate_bits_per_s / 8 == wish.rate
            && wish.backend.is_none_or(is_backend)
    }))
}

/// Takes off what a `weir run` that was killed has left in this network namespace; the names of the interfaces.
///
/// # Errors
/// The kernel's.
pub fn remove_left_over(changes: &Changes) -> Result<Vec<String>> {
    let all = links::list()?;
    let roots = qdiscs::qdiscs().map_err(|error| Failure::io("list the qdiscs", error))?;
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
    let left: Vec<_> = interfaces.filter(is_left).collect();
    if left.is_empty() && !ingress::has_unused(&all) {
        return Ok(names);
    }
    let _lock = changes.begin()?;
    for link in left {
        remove_of_run(link)?;
        names.push(link.name.clone());
    }
    ingress::remove_unused()?;
    Ok(names)
}
