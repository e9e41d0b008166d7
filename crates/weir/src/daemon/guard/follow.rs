//! What the guard follows of its own network namespace: interfaces, servers, filters, services of IPVS, sysctls.

use std::time::{Duration, Instant};

use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_kernel::TcpOptions;

use super::{Follow, GuardService};
use crate::daemon::backend::Backend;
use crate::host::environment;
use crate::host::ipvs::{self, ServiceWatch};
use crate::host::links;

/// How often new servers are looked for (`weir protect all`).
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

impl<B: Backend> GuardService<B> {
    pub(super) fn follow_links(&mut self, now: Instant) {
        self.watch.clear();
        match links::list() {
            Ok(links) => {
                self.timewait.follow_links(&links);
                self.quic.follow_links(&links);
                self.shaping.follow_links(&links);
                self.session.links_changed(links);
                self.elsewhere.links_changed();
                self.log_new_warnings();
                let lacks = self.session.lacks_interfaces() || self.quic.lacks_interfaces();
                self.relook.note(lacks, now);
            }
            Err(failure) => {
                tracing::warn!("{failure}");
                // What was told of them is used up.
                self.relook.note(true, now);
            }
        }
        self.filters.hurry();
    }

    /// Tries again, if it is time to, what has failed on an interface.
    pub(super) fn look_again(&mut self, now: Instant) {
        if self.relook.due_at().is_some_and(|due| due <= now) {
            self.follow_links(now);
        }
    }

    /// Guards servers that come later too, each with the listener that is made for its port.
    pub fn follow_sockets(&mut self, listener: impl Fn(u16) -> Listener + 'static) {
        self.follow = Some(Follow {
            listener: Box::new(listener),
            due: Instant::now(),
            left_out: Vec::new(),
        });
    }

    pub(super) fn look_for_servers(&mut self, now: Instant) {
        let Some(follow) = self.follow.as_mut().filter(|follow| follow.due <= now) else {
            return;
        };
        follow.due = now + FOLLOW_EVERY;
        let environment = environment::read(self.filters.found().cloned());
        match self.session.follow_sockets(environment, &follow.listener) {
            Ok(followed) => {
                for listener in &followed.new {
                    let Listener { name, address, .. } = listener;
                    tracing::info!(
                        "{name}: a server listens on {address} now, which weir guards too"
                    );
                }
                if followed.left_out.len() > follow.left_out.len() {
                    tracing::warn!(
                        "no more than {MAX_LISTENERS} listeners can be guarded: not port {:?}",
                        followed.left_out
                    );
                }
                follow.left_out = followed.left_out;
                if !followed.new.is_empty() {
                    self.renew_timewait();
                    self.residences.set(self.session.asked());
                }
            }
            Err(failure) => tracing::error!("servers that have come are not guarded: {failure}"),
        }
    }

    pub(super) fn follow_filters(&mut self, now: Instant) {
        if now < self.filters.due_at() {
            return;
        }
        // The kernel may keep a look waiting, behind a driver that resets: a firewall may come meanwhile.
        let began = Instant::now();
        // One question for each interface tells who stands before weir and who behind it.
        self.look_before(now);
        let chains = self.session.chains();
        self.filters.look(now, || self.behind.first(chains));
        // Cookies end by themselves while the policy is not that of what was found.
        if self.fit_to_filters() {
            let next = self.filters.due_at().saturating_duration_since(now);
            self.session.looked_behind(began.elapsed(), next);
        }
    }

    /// Whether the policy in force is that of what was found. One that could not be put in force is tried again at each look.
    fn fit_to_filters(&mut self) -> bool {
        let found = self.filters.found().cloned();
        if self.session.syn_filter() == found.as_ref() {
            return true;
        }
        match (self.session.set_syn_filter(found.clone()), found) {
            (Ok(()), Some(filter)) => tracing::info!(
                "{filter} could drop SYNs here now: weir sends no SYN cookies of its own"
            ),
            (Ok(()), None) => tracing::info!(
                "nothing behind weir could drop SYNs any more: weir sends SYN cookies of its own again"
            ),
            (Err(failure), _) => {
                tracing::error!("a firewall has come or gone, but {failure}");
                return false;
            }
        }
        true
    }

    pub(super) fn follow_services(&mut self, now: Instant) {
        let Some(services) = self.services.look(now, ipvs::services) else {
            return;
        };
        match self.session.set_services(services) {
            Ok(()) => tracing::info!("services of IPVS have changed: weir passes what is theirs"),
            Err(failure) => {
                tracing::error!("services of IPVS have changed, but {failure}");
                // They are tried again.
                self.services = ServiceWatch::new(self.session.services().clone(), now);
            }
        }
    }

    pub(super) fn follow_sysctls(&mut self, now: Instant) {
        if !self.sysctls.look(now, TcpOptions::read) {
            return;
        }
        let environment = self.environment();
        match self.session.set_sysctls(environment) {
            Ok(()) => tracing::info!("sysctls of TCP have changed: weir follows"),
            Err(failure) => tracing::error!("sysctls of TCP have changed, but {failure}"),
        }
    }
}
