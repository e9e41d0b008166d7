//! What is otherwise than asked for: listeners that are not in force, interfaces, the XDP front, addresses, policies.

use weir_config::did_you_mean;
use weir_core::listener::Listener;

use super::{Attached, Session};
use crate::daemon::attachment::{carries, missing};
use crate::daemon::backend::Backend;
use crate::failure::{Cause, Result};
use crate::show::describe;

impl<B: Backend> Session<B> {
    /// Whether weir guards the listener anywhere: on an interface that carries it.
    pub(super) fn is_in_force(&self, listener: &Listener) -> bool {
        let mut links = self.links.iter();
        links.any(|link| carries(link, listener) && self.attached.contains_key(&link.index))
    }

    /// The listeners that weir guards nowhere, each with the reason.
    pub fn not_in_force(&self) -> Vec<Cause> {
        let asked = self.policies.iter().map(|policy| &policy.asked);
        asked
            .filter(|listener| !self.is_in_force(listener))
            .map(|listener| self.because(listener))
            .collect()
    }

    fn because(&self, listener: &Listener) -> Cause {
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
        self.warnings_with(fronts.map(|(why, names)| front_at_tc(&describe::examples(names), why)))
    }

    /// As [`Session::warnings`] with a sentence for each interface, so that what is said of one does
    /// not change with the others.
    pub fn warnings_apart(&self) -> Vec<String> {
        self.warnings_with(
            self.fronts_at_tc()
                .map(|(name, why)| front_at_tc(name, why)),
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
            .chain(self.failed.values().cloned())
            .chain(fronts)
            .chain(absent)
            .chain(self.backend.cpus_share_claims().then(cpus_share_claims))
            .collect()
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
        "this machine has more than {most} CPUs, and weir tells {most} apart: a full listen queue may get a few \
         connections too many"
    )
}

fn front_at_tc(names: &str, why: &str) -> String {
    format!("front = xdp stays at tc ingress on {names}: {why}")
}
