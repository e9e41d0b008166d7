//! What the guard follows of its own network namespace: interfaces, servers, filters, services of IPVS, sysctls.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_core::quic::QuicListener;
use weir_kernel::{BoundUdp, TcpOptions};

use super::elsewhere::SETTLES;
use super::{Follow, GuardService};
use crate::daemon::backend::Backend;
use crate::daemon::quic::{self, QuicGuard};
use crate::failure::{Failure, Result};
use crate::host::environment;
use crate::host::ipvs::{self, ServiceWatch};
use crate::host::links;
use crate::host::udp::{self, UdpServer};

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

    /// Guards servers that come later too, each with the listener that is made for its port, and with a QUIC listener of this
    /// policy beside it where a UDP socket is bound to that port.
    pub fn follow_sockets(
        &mut self,
        listener: impl Fn(u16) -> Listener + 'static,
        quic: Option<QuicListener>,
    ) {
        self.follow = Some(Follow {
            listener: Box::new(listener),
            quic,
            not_quic: BTreeSet::new(),
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
        if let Err(failure) = self.look_for_udp() {
            tracing::error!("QUIC at UDP sockets that come is not guarded: {failure}");
            // It would fail again each second.
            self.follow.iter_mut().for_each(|follow| follow.quic = None);
        }
    }

    /// Guards QUIC at the UDP sockets that have come beside the servers.
    fn look_for_udp(&mut self) -> Result<()> {
        let Some(follow) = &mut self.follow else {
            return Ok(());
        };
        let Some(template) = &follow.quic else {
            return Ok(());
        };
        let mut list = self.quic.list().to_vec();
        let before = list.len();
        let mut sockets = udp::sockets().map_err(|error| Failure::io("read UDP sockets", error))?;
        let there: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
        follow.not_quic.retain(|inode| there.contains(inode));
        let guarded = |socket: &BoundUdp| list.iter().any(|one| udp::is_at(socket, one.address));
        // Beside a TCP server only, which may come later. Those of the kernel have no inode, and no process.
        let session = &self.session;
        let beside = |socket: &BoundUdp| {
            let mut asked = session.asked();
            asked.any(|one| udp::is_at(socket, one.address))
        };
        sockets.retain(|socket| {
            let is_new = socket.inode != 0 && !follow.not_quic.contains(&socket.inode);
            is_new && !guarded(socket) && beside(socket)
        });
        for UdpServer { socket, .. } in udp::servers(sockets.clone()).0 {
            let is_new = |one: &&Listener| {
                udp::is_at(&socket, one.address) && list.iter().all(|q| q.address != one.address)
            };
            let new = self.session.asked().find(is_new);
            let new = new.filter(|_| list.len() < QuicListener::MOST);
            list.extend(new.map(|one| quic::at(template, one.address)));
        }
        // Of each the processes are looked for once: every descriptor of the machine is read.
        let seen = sockets.iter().map(|socket| socket.inode);
        follow.not_quic.extend(seen);
        if list.len() > before {
            self.guard_quic(list)?;
        }
        for QuicListener { name, address, .. } in &self.quic.list()[before..] {
            tracing::info!(
                "{name}: a UDP socket is bound to {address} now: weir guards QUIC there too"
            );
        }
        Ok(())
    }

    /// Guards these QUIC listeners, in the place of those before. If some are in other network namespaces, it waits until they
    /// are in force, for [`SETTLES`] at most.
    ///
    /// # Errors
    /// As of `QuicGuard::set`: then those before stay.
    pub fn guard_quic(&mut self, list: Vec<QuicListener>) -> Result<()> {
        self.set_quic(list, self.quic.controller())?;
        self.settle_quic(Instant::now() + SETTLES);
        for warning in self.quic.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// The QUIC listeners in force, and where.
    pub fn quic(&self) -> &QuicGuard {
        &self.quic
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
