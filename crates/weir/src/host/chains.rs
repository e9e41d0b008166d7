//! What a packet meets on an interface before netfilter, in order: XDP, the programs at tc ingress (tcx), and the filters
//! of clsact or an ingress qdisc. A tcx program that ends the chain also keeps packets from these filters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use weir_kernel::{Program, is_own};

use crate::failure::Failure;
use crate::host::links::{self, Link};
use crate::host::qdiscs;
use crate::shape::ingress::PRIORITIES;

/// Names of weir's programs, also of another process of weir: its guard, TIME-WAIT, QUIC, and the XDP front.
const OURS: [&str; 4] = ["guard_tc", "timewait_tc", "quic_in", "guard_xdp"];

/// Programs of others behind weir at tc ingress, by the interface's index, where that is known already.
pub type Chains = BTreeMap<u32, Vec<Program>>;

/// The programs and filters of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// The interface.
    pub interface: String,
    /// XDP programs, each with where it runs.
    pub xdp: Vec<(&'static str, Program)>,
    /// Programs at tc ingress, in order.
    pub tcx: Vec<Program>,
    /// Filters at clsact or ingress, with their priorities, the first one first.
    pub filters: Vec<(u16, String)>,
}

/// The interfaces that receive for themselves, those without any program or filter too. Programs of which the kernel does not
/// say, as without root, are left out.
///
/// # Errors
/// The interfaces, their qdiscs or their filters cannot be read.
pub fn all() -> io::Result<Vec<Chain>> {
    chains(
        |index| Ok(weir_kernel::xdp(index).unwrap_or_default()),
        |index| Ok(weir_kernel::chain(index).unwrap_or_default()),
        None,
    )
}

/// What can stand behind weir on these interfaces: all but XDP, where weir has no front. Asked each second, and each
/// answer about XDP takes a socket. `known`: the programs behind weir, of interfaces of which they need not be asked for.
/// `links`: the interfaces, where they are known.
///
/// # Errors
/// Something of it cannot be read: there may be more than is known.
pub fn behind(known: &Chains, links: Option<&[Link]>) -> io::Result<Vec<Chain>> {
    let tcx = |index| match known.get(&index) {
        // Behind the front are also the programs before weir at tc.
        Some(behind) if !weir_kernel::has_front() => Ok(behind.clone()),
        _ => weir_kernel::chain(index),
    };
    match weir_kernel::has_front() {
        true => chains(weir_kernel::xdp, tcx, links),
        false => chains(|_| Ok(Vec::new()), tcx, links),
    }
}

fn chains(
    xdp: impl Fn(u32) -> weir_kernel::Result<Vec<(&'static str, Program)>>,
    tcx: impl Fn(u32) -> weir_kernel::Result<Vec<Program>>,
    links: Option<&[Link]>,
) -> io::Result<Vec<Chain>> {
    let listed = |failure: Failure| io::Error::other(failure.causes[0].message.clone());
    let links = match links {
        Some(links) => Cow::Borrowed(links),
        None => Cow::Owned(links::list().map_err(listed)?),
    };
    let qdiscs = qdiscs::qdiscs()?;
    let has_filters = |index: u32| {
        let mut its = qdiscs.iter().filter(|qdisc| qdisc.index == index);
        its.any(|qdisc| ["clsact", "ingress"].contains(&qdisc.kind.as_str()))
    };
    let own = links.iter().filter(|link| !link.port);
    own.map(|link| {
        Ok(Chain {
            interface: link.name.clone(),
            xdp: xdp(link.index).map_err(io::Error::other)?,
            tcx: tcx(link.index).map_err(io::Error::other)?,
            filters: match has_filters(link.index) {
                true => qdiscs::filter_names(link.index)?,
                false => Vec::new(),
            },
        })
    })
    .collect()
}

impl Chain {
    /// The name of what a packet meets first behind this process's guard, or behind where it will stand: before all others
    /// at tc ingress.
    pub fn behind_weir(&self) -> Option<String> {
        self.behind(|program| is_own(program.id))
    }

    /// The same for whoever only looks: whichever weir has its programs there, it is no packet filter.
    pub fn behind_any_weir(&self) -> Option<String> {
        self.behind(|program| OURS.contains(&&*program.name))
    }

    fn behind(&self, is_weir_s: impl Fn(&Program) -> bool) -> Option<String> {
        // Behind the XDP front is all of tc.
        let front = self.xdp.iter().any(|(_, program)| is_weir_s(program));
        let tcx = match self.tcx.iter().position(&is_weir_s) {
            Some(weir) if !front => &self.tcx[weir..],
            _ => &self.tcx[..],
        };
        let program = tcx.iter().find(|program| !is_weir_s(program));
        // The redirect of weir's own drops nobody by who he is. But what it redirects waits in a qdisc, and the listener
        // that an ACK with a cookie of weir's is for may have been freed when its turn comes.
        let filter = || {
            let (priority, kind) = self.filters.first()?;
            let name = match PRIORITIES.contains(priority) {
                true => "weir shape --ingress",
                false => kind.as_str(),
            };
            Some(format!("{name} (tc filter, priority {priority})"))
        };
        let program = program.map(|program| program.name.clone());
        program.or_else(filter)
    }

    /// The chain in a line, weir's own marked; `None`: nothing is on the interface. Without ids, so that interfaces with
    /// the same chain have the same line.
    pub fn line(&self) -> Option<String> {
        let program = |Program { name, .. }: &Program| match name.as_str() {
            ours if OURS.contains(&ours) => format!("weir ({name})"),
            "xdp_dispatcher" => format!("{name}, which runs others (libxdp)"),
            _ => name.clone(),
        };
        let xdp = self.xdp.iter();
        let xdp = xdp.map(|(mode, one)| format!("XDP ({mode}): {}", program(one)));
        let tcx: Vec<String> = self.tcx.iter().map(program).collect();
        let tcx = (!tcx.is_empty()).then(|| format!("tcx: {}", tcx.join(", then ")));
        let filters = self.filters.iter().map(|(priority, name)| {
            let ours = match PRIORITIES.contains(priority) {
                true => "weir's ",
                false => "",
            };
            format!("{ours}{name} (priority {priority})")
        });
        let filters: Vec<String> = filters.collect();
        let filters =
            (!filters.is_empty()).then(|| format!("tc filters: {}", filters.join(", then ")));
        let parts: Vec<String> = xdp.chain(tcx).chain(filters).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Whether a guard is at tc ingress, of whichever weir.
    pub fn is_guarded(&self) -> bool {
        self.tcx.iter().any(|program| program.name == OURS[0])
    }

    /// The programs of others before weir's guard at tc ingress.
    pub fn before_weir(&self) -> &[Program] {
        let weir = self.tcx.iter().position(|program| program.name == OURS[0]);
        &self.tcx[..weir.unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(id: u32, name: &str) -> Program {
        let name = name.to_owned();
        Program { id, name }
    }

    #[test]
    fn a_line_shows_the_order_and_where_weir_is() {
        let chain = Chain {
            interface: "eth0".into(),
            xdp: vec![("driver", program(3, "xdp_dispatcher"))],
            tcx: vec![program(9, "guard_tc"), program(7, "cil_from_netdev")],
            filters: vec![(1, "flower".into()), (15890, "u32".into())],
        };
        assert_eq!(
            chain.line().unwrap(),
            "XDP (driver): xdp_dispatcher, which runs others (libxdp); tcx: weir (guard_tc), then cil_from_netdev; \
             tc filters: flower (priority 1), then weir's u32 (priority 15890)"
        );
        assert!(chain.before_weir().is_empty());
        assert_eq!(chain.behind_any_weir().as_deref(), Some("cil_from_netdev"));
        let alone = Chain {
            tcx: vec![program(9, "guard_tc"), program(8, "timewait_tc")],
            ..Chain::default()
        };
        assert_eq!(alone.behind_any_weir(), None);
        // To a weir that guards, another one is.
        assert_eq!(alone.behind_weir().as_deref(), Some("guard_tc"));
        assert!(chain.is_guarded() && !Chain::default().is_guarded());
        assert_eq!(Chain::default().line(), None);
    }

    #[test]
    fn whoever_is_not_weir_is_behind_it_until_weir_is_attached() {
        let mut chain = Chain {
            tcx: vec![program(u32::MAX, "cil_from_netdev")],
            ..Chain::default()
        };
        assert_eq!(chain.behind_weir().unwrap(), "cil_from_netdev");
        chain.tcx.clear();
        assert_eq!(chain.behind_weir(), None);
        chain.filters = vec![(15900, "flower".into())];
        assert_eq!(
            chain.behind_weir().unwrap(),
            "flower (tc filter, priority 15900)"
        );
        chain.filters.insert(0, (15890, "u32".into()));
        assert_eq!(
            chain.behind_weir().unwrap(),
            "weir shape --ingress (tc filter, priority 15890)",
            "its own redirect, behind which packets wait"
        );
    }
}
