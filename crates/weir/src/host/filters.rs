//! What could drop a SYN behind weir, or what the kernel would answer to it.
//!
//! Behind tc ingress a packet meets other programs at tc, netfilter's hooks, IPsec's policies and the socket; an answer
//! of the kernel meets some of them again. docs/operating-path.md has the table.

use std::io;

use weir_config::SynFilter;
use weir_kernel::{PacketFilters, packet_filters, tables_that_drop};

use crate::host::chains::Chains;
use crate::host::links::Link;
use crate::host::{self, ipsec, ipvs, nftables};

/// Each kind of filter, those first that are told soonest.
const KINDS: [fn(&mut Look) -> Vec<SynFilter>; 8] = [
    conntrack,
    hooks,
    services,
    programs_of_netfilter,
    policies,
    tables,
    chains,
    programs_at_tc,
];

/// What is on a packet's way behind weir in the calling thread's network namespace, the same at each look.
#[derive(Debug, Default)]
pub struct Filters {
    chains: nftables::Ruleset,
}

struct Look<'a> {
    there: PacketFilters,
    chains: &'a mut nftables::Ruleset,
    known: &'a Chains,
    /// The interfaces, where they are known.
    links: Option<&'a [Link]>,
    /// Whoever asks guards nothing: no weir's programs are among them.
    only_looks: bool,
}

impl Filters {
    /// The first that is found; `None`: whatever weir lets in, nothing behind it keeps out. Of interfaces whose programs are known
    /// the kernel is not asked.
    pub fn first(&mut self, known: &Chains) -> Option<SynFilter> {
        let mut look = self.look(known);
        KINDS.iter().flat_map(|kind| kind(&mut look)).next()
    }

    /// The same where these are the interfaces.
    pub fn first_behind(&mut self, links: &[Link]) -> Option<SynFilter> {
        let known = Chains::new();
        let mut look = self.look(&known);
        look.links = Some(links);
        KINDS.iter().flat_map(|kind| kind(&mut look)).next()
    }

    /// All that are found, for who guards nothing himself: programs of a weir are not among them.
    pub fn all(&mut self) -> Vec<SynFilter> {
        let known = Chains::new();
        let mut look = self.look(&known);
        look.only_looks = true;
        KINDS.iter().flat_map(|kind| kind(&mut look)).collect()
    }

    fn look<'a>(&'a mut self, known: &'a Chains) -> Look<'a> {
        Look {
            there: packet_filters(),
            chains: &mut self.chains,
            known,
            links: None,
            only_looks: false,
        }
    }
}

fn conntrack(look: &mut Look) -> Vec<SynFilter> {
    Vec::from_iter(look.there.conntrack.then_some(SynFilter::Conntrack))
}

/// Where the lists of hooks cannot be read, anything may be in them.
fn hooks(look: &mut Look) -> Vec<SynFilter> {
    let unread = look.there.unread.take();
    let unread = unread.map(|cause| SynFilter::Unread {
        what: "netfilter",
        cause,
    });
    Vec::from_iter(unread)
}

fn programs_of_netfilter(look: &mut Look) -> Vec<SynFilter> {
    Vec::from_iter(look.there.bpf.then_some(SynFilter::NetfilterProgram))
}

fn services(_: &mut Look) -> Vec<SynFilter> {
    Vec::from_iter(ipvs::has_services().then_some(SynFilter::Ipvs))
}

fn policies(look: &mut Look) -> Vec<SynFilter> {
    let found = || match look.there.ipsec_blocks || ipsec::guards_tcp()? {
        true => Ok(vec![SynFilter::IpsecPolicy]),
        false => Ok(Vec::new()),
    };
    match look.there.ipsec || look.there.ipsec_blocks {
        true => read("IPsec", found()),
        false => Vec::new(),
    }
}

fn tables(_: &mut Look) -> Vec<SynFilter> {
    let named = |(program, table)| SynFilter::Table { program, table };
    let found = tables_that_drop().map(|all| all.into_iter().map(named).collect());
    read("iptables", found)
}

fn chains(look: &mut Look) -> Vec<SynFilter> {
    match look.there.nftables {
        true => read("nftables", look.chains.that_drop()),
        false => Vec::new(),
    }
}

/// Programs of others, and tc filters, that a packet meets behind weir, before netfilter.
fn programs_at_tc(look: &mut Look) -> Vec<SynFilter> {
    let behind = match look.only_looks {
        true => host::chains::Chain::behind_any_weir,
        false => host::chains::Chain::behind_weir,
    };
    let program = |chain: host::chains::Chain| {
        Some(SynFilter::Program {
            name: behind(&chain)?,
            device: chain.interface,
        })
    };
    let found = host::chains::behind(look.known, look.links);
    read(
        "tc",
        found.map(|chains| chains.into_iter().filter_map(program).collect()),
    )
}

/// Rules that cannot be read could drop.
fn read(what: &'static str, found: io::Result<Vec<SynFilter>>) -> Vec<SynFilter> {
    found.unwrap_or_else(|error| {
        vec![SynFilter::Unread {
            what,
            cause: error.to_string(),
        }]
    })
}

#[cfg(test)]
mod tests {
    use std::fs::metadata;

    use nix::unistd::{Gid, Uid, setfsgid, setfsuid, setgroups};
    use weir_testbed::needs;
    use weir_testbed::netns::run_in_new;

    use super::*;

    /// As weir has it that runs as another user: the rights of root's files go with the file system's user.
    #[test]
    fn tables_whose_names_are_root_s_are_not_taken_for_none() {
        if !needs::root("a network namespace") {
            return;
        }
        let found = run_in_new(|| {
            if metadata("/proc/thread-self/net/ip_tables_names").is_err() {
                needs::lacking("CONFIG_IP_NF_IPTABLES");
                return None;
            }
            assert_eq!(Filters::default().all(), []);
            setgroups(&[]).unwrap();
            setfsgid(Gid::from_raw(65534));
            setfsuid(Uid::from_raw(65534));
            Some(Filters::default().all())
        });
        let Some(found) = found.unwrap() else { return };
        let unread = |filter: &SynFilter| {
            matches!(
                filter,
                SynFilter::Unread {
                    what: "iptables",
                    ..
                }
            )
        };
        assert!(found.iter().any(unread), "{found:?}");
    }
}
