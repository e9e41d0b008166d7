//! What is otherwise than asked for: listeners that are not in force, interfaces, the XDP front, addresses, policies.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use weir_config::did_you_mean;
use weir_core::listener::Listener;

use super::{Attached, Session};
use crate::daemon::attachment::{carries, missing, named_ports};
use crate::daemon::backend::Backend;
use crate::failure::{Cause, Result};
use crate::host::vrf;
use crate::show::describe;

impl<B: Backend> Session<B> {
    /// Whether weir guards the listener: it is on an interface that carries it, and sees the SYNs that come.
    pub(super) fn is_in_force(&self, listener: &Listener) -> bool {
        self.is_attached(listener) && !self.sights.is_lost(&listener.name)
    }

    fn is_attached(&self, listener: &Listener) -> bool {
        let mut links = self.links.iter();
        links.any(|link| carries(link, listener) && self.attached.contains_key(&link.index))
    }

    /// Why the listener is not in force, as a clause; `None`: it is.
    pub(super) fn not_in_force_because(&self, listener: &Listener) -> Option<String> {
        if self.is_in_force(listener) {
            return None;
        }
        let Cause { message, .. } = self.because(listener);
        let because = message.split_once(" is not in force: ");
        because.map(|(_, why)| why.to_owned())
    }

    /// The listeners that weir does not guard, each with the reason.
    pub fn not_in_force(&self) -> Vec<Cause> {
        let asked = self.policies.iter().map(|policy| &policy.asked);
        asked
            .filter(|listener| !self.is_in_force(listener))
            .map(|listener| self.because(listener))
            .collect()
    }

    fn because(&self, listener: &Listener) -> Cause {
        if self.is_attached(listener) {
            return self.unseen(listener);
        }
        let port = named_ports(std::slice::from_ref(listener), &self.links).pop();
        if let Some(Cause { message, hint }) = port {
            return Cause {
                message: format!("listener {:?} is not in force: {message}", listener.name),
                hint,
            };
        }
        let absent = missing(std::slice::from_ref(listener), &self.links);
        let there: Vec<&str> = self.links.iter().map(|link| link.name.as_str()).collect();
        let (why, hint) = match absent.as_slice() {
            [] => (
                "weir could attach to none of its interfaces".to_owned(),
                "`weir status` says why, for each interface".to_owned(),
            ),
            [name] => (
                format!("interface {name} does not exist"),
                match did_you_mean(name, &there) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("the interfaces are {}", describe::examples(&there)),
                },
            ),
            names => (
                format!("interfaces {} do not exist", names.join(", ")),
                format!("the interfaces are {}", describe::examples(&there)),
            ),
        };
        Cause {
            message: format!("listener {:?} is not in force: {why}", listener.name),
            hint: format!("{hint}; weir guards the listener once its interface appears"),
        }
    }

    /// Where the guard stands otherwise than asked: interfaces, the front, addresses. A sentence each,
    /// for interfaces that share a reason one together. [`Session::fallbacks`] are the policies.
    pub fn warnings(&self) -> Vec<String> {
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for (name, why) in self.fronts_at_tc() {
            match by_reason.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, names)) => names.push(name),
                None => by_reason.push((why, vec![name])),
            }
        }
        let fronts = by_reason.iter();
        let fronts = fronts.map(|(why, names)| front_at_tc(&describe::examples(names), why));
        self.warnings_with(fronts.chain(self.goes_before_in_short()))
    }

    /// As [`Session::warnings`] with a sentence for each interface, so that what is said of one does
    /// not change with the others.
    pub fn warnings_apart(&self) -> Vec<String> {
        self.warnings_with(
            self.fronts_at_tc()
                .map(|(name, why)| front_at_tc(name, why))
                .chain(self.goes_before()),
        )
    }

    fn warnings_with(&self, fronts: impl Iterator<Item = String>) -> Vec<String> {
        let asked: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        // Those of a listener that is not in force are named with it.
        let in_force: Vec<Listener> = asked
            .iter()
            .filter(|listener| self.is_in_force(listener))
            .cloned()
            .collect();
        let missing = missing(&in_force, &self.links)
            .into_iter()
            .map(|name| format!("interface {name} does not exist; it is guarded once it appears"));
        let ports = named_ports(&in_force, &self.links).into_iter();
        let ports = ports.map(|port| sentence(&port));
        let unguarded = self.not_in_force();
        let unguarded = unguarded.iter().map(sentence);
        let absent = asked.iter().filter_map(|listener| {
            let ip = listener.address.ip?;
            (!self.backend.has_address(ip)).then(|| {
                format!(
                    "listener {:?}: no interface has the address {ip}, so no packet is for it yet \
                     (`ip address` lists those that are there)",
                    listener.name
                )
            })
        });
        unguarded
            .chain(missing)
            .chain(ports)
            .chain(self.failed.values().cloned())
            .chain(fronts)
            .chain(absent)
            .chain(self.in_vrfs())
            .chain(self.backend.cpus_share_claims().then(cpus_share_claims))
            .collect()
    }

    /// Servers of the listeners that the guard does not find, since their sockets are bound to a VRF: a sentence for each address.
    fn in_vrfs(&self) -> BTreeSet<String> {
        let bound = self.backend.vrf_sockets();
        // Without a VRF, as almost everywhere, they are not asked for.
        let sockets = match bound.is_empty() {
            true => Vec::new(),
            false => self.backend.listen_sockets().unwrap_or_default(),
        };
        let said = |listener: &Listener| -> Vec<String> {
            let its = self.serving(listener, &sockets).into_iter();
            let its = its.filter_map(|socket| {
                let Cause { message, hint } = vrf::cause(bound.get(&socket.inode)?);
                let address = SocketAddr::new(socket.ip, socket.port);
                let name = &listener.name;
                Some(format!(
                    "listener {name:?}: the socket on {address} {message} ({hint})"
                ))
            });
            its.collect()
        };
        self.asked().flat_map(said).collect()
    }

    /// Interfaces where the XDP front is wanted and is not, with the reason.
    fn fronts_at_tc<'a>(&'a self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let front = |attached: &'a Attached| {
            let why = attached.no_front.as_deref()?;
            Some((attached.wanted.name.as_str(), why))
        };
        self.attached.values().filter_map(front)
    }

    /// Everything that is otherwise than asked: [`Session::warnings`] and [`Session::fallbacks`].
    ///
    /// # Errors
    /// The sockets cannot be read.
    pub fn notices(&self) -> Result<Vec<String>> {
        let mut notices = self.warnings();
        notices.extend(self.fallbacks()?);
        Ok(notices)
    }

    /// As [`Session::notices`], with the listeners that are not in force apart.
    ///
    /// # Errors
    /// The sockets cannot be read.
    pub fn notices_apart(&self) -> Result<(Vec<Cause>, Vec<String>)> {
        let not_in_force = self.not_in_force();
        let said: Vec<String> = not_in_force.iter().map(sentence).collect();
        let mut others = self.notices()?;
        others.retain(|notice| !said.contains(notice));
        Ok((not_in_force, others))
    }

    /// What was asked for and is carried out otherwise, a sentence each.
    ///
    /// # Errors
    /// The sockets cannot be read.
    fn fallbacks(&self) -> Result<Vec<String>> {
        let reports = self.listeners()?;
        let told = |r: &weir_api::Listener| {
            let (policy, because) = (r.fallback.as_ref()?, r.fallback_because.as_ref()?);
            Some(format!(
                "listener {:?} falls back to {policy}: {because}",
                r.name
            ))
        };
        Ok(reports.iter().filter_map(told).collect())
    }
}

fn sentence(Cause { message, hint }: &Cause) -> String {
    format!("{message} ({hint})")
}

fn cpus_share_claims() -> String {
    let most = weir_core::abi::MAX_CPUS;
    format!(
        "a CPU with a number of {most} or more is online, and weir tells {most} apart: a full listen queue may get a few \
         connections too many"
    )
}

fn front_at_tc(names: &str, why: &str) -> String {
    format!("front = xdp stays at tc ingress on {names}: {why}")
}
