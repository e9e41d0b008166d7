//! Shapes what an interface receives.
//!
//! Queueing disciplines are for what is sent. So packets that the interface has received go through an ifb, a device of
//! weir's own, before the stack sees them, and the ifb is shaped as any interface:
//!
//! ```text
//!   ppp0 ── clsact ── u32: all ── mirred ──▶ weir-in-7 (an ifb) ── root qdisc ──▶ on as received by ppp0
//! ```
//!
//! Whether the clsact qdisc is weir's as well is in the filter's priority. A program of weir's own in place of u32 and mirred cannot do it: an
//! ifb takes only packets that mirred has redirected.

use std::io;

use super::install::{self, Wish};
use super::{Backend, ifb};
use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::host::qdiscs::{self, CLSACT, CLSACT_HANDLE, EGRESS, Filter, INGRESS, Place};

/// Priorities of our filter: where the clsact qdisc is ours too, and where it was there. Behind those that people choose, so
/// that what others drop is not queued.
const WITH_CLSACT: u16 = 0x3e12;
const ALONE: u16 = 0x3e13;
/// Priorities of weir's redirects.
pub const PRIORITIES: [u16; 2] = [WITH_CLSACT, ALONE];
/// Group of an ifb whose interface had no clsact qdisc before: what stands there without a filter is ours, of a command
/// that was killed. The ifb comes before it and goes after it.
const GROUP_WITH_CLSACT: u32 = 0x3e12;

/// Our ifb for what the interface receives.
///
/// # Errors
/// The kernel does not answer.
pub fn device(link: &Link) -> Result<Option<Link>> {
    let mut all = links::list()?.into_iter();
    Ok(all.find(|other| ifb::index_behind(other) == Some(link.index)))
}

/// Shapes what the interface receives at the wish's rate. What weir put there before is replaced.
///
/// # Errors
/// The kernel lacks what is needed, exit code 3. The interface is then as before.
pub fn install(link: &Link, wish: Wish) -> Result<Backend> {
    let before = device(link)?;
    let through = match &before {
        Some(ifb) => ifb.clone(),
        None => create(link)?,
    };
    let shaper = install::before(&through, link.packet_bytes)?;
    let put = install::install(&through, wish, link.packet_bytes).and_then(|backend| {
        let redirected = set_up(&through).and_then(|()| redirect(link, &through));
        if redirected.is_err() {
            let _ = install::restore(&through, shaper);
        }
        redirected.map(|()| backend)
    });
    if put.is_err() && before.is_none() {
        let _ = remove(link);
    }
    put
}

fn create(link: &Link) -> Result<Link> {
    let name = ifb::name(link);
    let group = match has_clsact(link)? {
        true => 0,
        false => GROUP_WITH_CLSACT,
    };
    links::add_ifb(&name, group).map_err(|error| no_ifb(&link.name, error))?;
    device(link)?.ok_or_else(|| {
        Failure::failed(
            format!("the interface {name} has gone again"),
            "something else removes interfaces here",
        )
    })
}

/// What is redirected to a device that is down is lost.
fn set_up(through: &Link) -> Result<()> {
    if through.up {
        return Ok(());
    }
    links::set_up(through.index).map_err(|error| install::failed(&through.name, "set up", error))
}

/// Whether what the interface receives goes through this device.
///
/// # Errors
/// The kernel does not answer.
pub fn passes(link: &Link, through: &Link) -> Result<bool> {
    let received = filters(link, INGRESS)?;
    let mut own = received.iter().filter(|filter| ours(filter));
    Ok(own.any(|filter| filter.redirects_to == Some(through.index)))
}

/// EOPNOTSUPP says that the kernel has no such device, built in or as a module.
fn no_ifb(name: &str, error: io::Error) -> Failure {
    if error.raw_os_error() != Some(nix::libc::EOPNOTSUPP) {
        return install::failed(name, "make an ifb for", error);
    }
    Failure::unsupported(
        format!("shaping what {name} receives needs ifb, which this kernel does not have"),
        "shape at the other end of the link, where it is sent; or take a kernel that has it (CONFIG_IFB)",
    )
}

fn ours(filter: &Filter) -> bool {
    [WITH_CLSACT, ALONE].contains(&filter.priority) && filter.redirects_to.is_some()
}

fn filters(link: &Link, parent: u32) -> Result<Vec<Filter>> {
    let filters = qdiscs::filters(link.index, parent);
    filters.map_err(|error| Failure::io(format_args!("list the filters of {}", link.name), error))
}

/// Sends what the interface receives through the ifb.
fn redirect(link: &Link, through: &Link) -> Result<()> {
    let before = filters(link, INGRESS)?;
    let own = before.iter().find(|filter| ours(filter));
    if own.is_some_and(|filter| filter.redirects_to == Some(through.index)) {
        return Ok(());
    }
    if own.is_some() {
        // Its ifb has gone: what came in since then is lost.
        take_off(link, &before)?;
    }
    let priority = match has_clsact(link)? {
        true => ALONE,
        false => {
            let place = Place {
                index: link.index,
                parent: CLSACT,
                handle: CLSACT_HANDLE,
            };
            qdiscs::add_qdisc(place, "clsact", &[])
                .map_err(|error| missing("clsact", &link.name, error))?;
            WITH_CLSACT
        }
    };
    let done = qdiscs::add_redirect(link.index, priority, through.index);
    done.map_err(|error| {
        if priority == WITH_CLSACT {
            let _ = qdiscs::remove_clsact(link.index);
        }
        missing("u32 and mirred", &link.name, error)
    })
}

/// ENOENT says that the kernel has no such qdisc, filter or action.
fn missing(what: &str, name: &str, error: io::Error) -> Failure {
    if error.raw_os_error() != Some(nix::libc::ENOENT) {
        return install::failed(name, "redirect what is received by", error);
    }
    Failure::unsupported(
        format!("shaping what {name} receives needs {what}, which this kernel does not have"),
        "shape at the other end of the link, where it is sent",
    )
}

fn has_clsact(link: &Link) -> Result<bool> {
    let all = qdiscs::qdiscs().map_err(|error| Failure::io("list the qdiscs", error))?;
    let mut of_link = all.iter().filter(|qdisc| qdisc.index == link.index);
    Ok(of_link.any(|qdisc| qdisc.parent == CLSACT))
}

/// Takes our filter off, and with it the clsact qdisc if that is ours and nobody else uses it by now.
fn take_off(link: &Link, received: &[Filter]) -> Result<()> {
    let Some(own) = received.iter().find(|filter| ours(filter)) else {
        return Ok(());
    };
    let what = "take weir's filter off";
    qdiscs::remove_filters(link.index, INGRESS, own.priority)
        .map_err(|error| install::failed(&link.name, what, error))?;
    let is_used = received
        .iter()
        .any(|filter| filter.priority != own.priority);
    match own.priority == ALONE || is_used {
        true => Ok(()),
        false => remove_unused_clsact(link),
    }
}

/// Removes the clsact qdisc if there is one, without a filter.
fn remove_unused_clsact(link: &Link) -> Result<()> {
    let is_used = |parent| filters(link, parent).map(|filters| !filters.is_empty());
    if !has_clsact(link)? || is_used(INGRESS)? || is_used(EGRESS)? {
        return Ok(());
    }
    qdiscs::remove_clsact(link.index)
        .map_err(|error| install::failed(&link.name, "remove the clsact qdisc of", error))
}

/// Takes what weir put there off. `false`: what the interface receives is not shaped by weir.
///
/// # Errors
/// The kernel's.
pub fn remove(link: &Link) -> Result<bool> {
    let received = filters(link, INGRESS)?;
    // First, so that nothing is redirected to nowhere.
    take_off(link, &received)?;
    match device(link)? {
        Some(through) => {
            if through.group == GROUP_WITH_CLSACT {
                remove_unused_clsact(link)?;
            }
            remove_device(&through).map(|()| true)
        }
        None => Ok(received.iter().any(ours)),
    }
}

fn remove_device(device: &Link) -> Result<()> {
    install::remove(device)?;
    links::remove(device.index).map_err(|error| install::failed(&device.name, "remove", error))
}

/// Removes the ifbs of interfaces that have gone.
///
/// # Errors
/// The kernel's.
pub fn remove_unused() -> Result<()> {
    unused(&links::list()?).try_for_each(remove_device)
}

/// Whether there is an ifb of an interface that has gone.
pub fn has_unused(links: &[Link]) -> bool {
    unused(links).next().is_some()
}

fn unused(all: &[Link]) -> impl Iterator<Item = &Link> {
    let is_there = |index: u32| all.iter().any(|link| link.index == index);
    let is_unused =
        move |link: &&Link| ifb::index_behind(link).is_some_and(|index| !is_there(index));
    all.iter().filter(is_unused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    #[test]
    fn a_kernel_without_ifb_is_told_from_a_failure_and_the_other_end_is_advised() {
        let of = |code| no_ifb("ppp0", io::Error::from_raw_os_error(code));
        let refusal = of(nix::libc::EOPNOTSUPP);
        assert_eq!(refusal.code, Code::Unsupported);
        assert!(refusal.causes[0].message.contains("ifb"), "{refusal:?}");
        assert!(refusal.causes[0].hint.contains("other end"), "{refusal:?}");
        assert_eq!(of(nix::libc::ENOMEM).code, Code::Failed);
        let refusal = missing(
            "u32",
            "ppp0",
            io::Error::from_raw_os_error(nix::libc::ENOENT),
        );
        assert_eq!(refusal.code, Code::Unsupported);
        assert!(refusal.causes[0].hint.contains("other end"), "{refusal:?}");
    }
}
