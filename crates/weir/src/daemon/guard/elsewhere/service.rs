//! What a guard does with its listeners in other namespaces.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_core::forecast::Would;
use weir_core::listener::Listener;
use weir_core::quic::QuicListener;
use weir_kernel::{BoundUdp, Namespace, NamespacePath};

use super::{Elsewhere, Every};
use crate::daemon::backend::Backend;
use crate::daemon::guard::GuardService;
use crate::failure::{Cause, Result};
use crate::host::{links, udp};

impl<B: Backend> GuardService<B> {
    /// Those of other network namespaces.
    pub fn elsewhere(&self) -> &Elsewhere {
        &self.elsewhere
    }

    pub(in crate::daemon::guard) fn elsewhere_report(
        &self,
        asked: &Listener,
        own: Option<weir_api::Listener>,
    ) -> Result<weir_api::Listener> {
        let mut report = self.elsewhere.report(self.session.spaces(), asked, own);
        (report.classes, report.classes_left_out) = self.session.classes_that_name(&asked.name)?;
        let labels = self.elsewhere.labels(&asked.name).chain([&*asked.name]);
        let all = labels.filter_map(|label| self.overload.would(label));
        let would = all.reduce(|sum, one| Would {
            offered: sum.offered + one.offered,
            refused: sum.refused + one.refused,
        });
        (report.offered, report.would_refuse) =
            would.map(|would| (would.offered, would.refused)).unzip();
        for one in &mut report.workloads {
            let label = self.elsewhere.label_at(one.netns_cookie, &asked.name);
            let would = self.overload.would(label.unwrap_or(&asked.name));
            (one.offered, one.would_refuse) =
                would.map(|would| (would.offered, would.refused)).unzip();
        }
        let target = weir_api::metrics::target_wait(&report);
        report.target_in_force_us = target.map(|target| target.as_micros() as u64);
        Ok(report)
    }

    /// Listeners that are not in force everywhere that they are to be.
    pub fn elsewhere_not_in_force(&self) -> Vec<Cause> {
        let off = self.elsewhere_off(true).into_iter();
        let cause = |(listener, why): (&Listener, String)| Cause {
            message: format!("listener {:?} is not in force: {why}", listener.name),
            hint: "`weir status` names each place".to_owned(),
        };
        off.map(cause).collect()
    }

    /// Those that are in force nowhere yet, which is no fault: a sentence each.
    pub fn elsewhere_waits(&self) -> Vec<String> {
        let off = self.elsewhere_off(false).into_iter();
        off.map(|(listener, why)| format!("listener {:?}: {why}", listener.name))
            .collect()
    }

    /// Why listeners are not in force; `somewhere`: in a place that weir knows.
    fn elsewhere_off(&self, somewhere: bool) -> Vec<(&Listener, String)> {
        let kernel = self.session.spaces();
        let because = |asked| {
            let report = self.elsewhere.report(kernel, asked, None);
            let is_somewhere = report.workloads.iter().any(|one| !one.in_force);
            let is_own = self.session.asked().any(|own| own.name == asked.name);
            let says = is_somewhere == somewhere && (is_somewhere || !is_own);
            let why = report.not_in_force_because.filter(|_| says)?;
            Some((asked, why))
        };
        self.elsewhere.asked().iter().filter_map(because).collect()
    }

    /// Follows what has happened in other namespaces.
    pub(in crate::daemon::guard) fn follow_elsewhere(&mut self, now: Instant) {
        let ports =
            |all: &[Listener]| -> Vec<u16> { all.iter().map(|one| one.address.port).collect() };
        let asked = ports(self.elsewhere.asked());
        self.elsewhere.work(self.session.spaces_mut(), now);
        if ports(self.elsewhere.asked()) != asked {
            self.session.know(self.elsewhere.asked().to_vec());
        }
        self.follow_own();
        if self.elsewhere.has_news() {
            self.follow_quic();
        }
        self.elsewhere.look_at_own(now);
        for event in self.elsewhere.events(now) {
            self.events.note(event);
        }
    }

    /// Guards every server in a place, also those that come (`weir protect all --where`).
    ///
    /// # Errors
    /// As of [`Elsewhere::set`].
    pub fn guard_every(&mut self, every: Every) -> Result<()> {
        self.elsewhere
            .guard_every(every, self.session.spaces_mut())?;
        self.session.know(self.elsewhere.asked().to_vec());
        self.settle_elsewhere();
        self.follow_own();
        Ok(())
    }

    /// At the start and after a reload.
    pub(in crate::daemon::guard) fn settle_elsewhere(&mut self) {
        let until = Instant::now() + super::SETTLES;
        self.elsewhere.settle(self.session.spaces_mut(), until);
        self.settle_quic(until);
    }

    /// Those of these QUIC listeners of other places at whose port a UDP socket is bound, in some namespace with a server of the
    /// listener that they go with.
    pub fn with_udp_socket(&self, mut quic: Vec<QuicListener>) -> Vec<QuicListener> {
        let mut looked: BTreeMap<Option<Namespace>, Vec<BoundUdp>> = BTreeMap::new();
        quic.retain(|one| {
            let mut places = self.elsewhere.places_of(one).into_iter();
            places.any(|place| {
                let namespace = place.map(|(namespace, _)| namespace);
                let sockets = looked.entry(namespace).or_insert_with(|| bound_at(place));
                sockets.iter().any(|socket| udp::is_at(socket, one.address))
            })
        });
        quic
    }

    /// Puts QUIC listeners of other places in force, and waits until they are, but not longer than until then.
    pub(in crate::daemon::guard) fn settle_quic(&mut self, until: Instant) {
        self.follow_quic();
        self.quic.settle(until);
    }

    /// QUIC listeners go with the listeners of other places.
    fn follow_quic(&mut self) {
        if self.quic.is_elsewhere() {
            let sights = self.elsewhere.sights(self.quic.list());
            if self.quic.follow_sights(sights)
                && let Ok(links) = links::list()
            {
                self.quic.follow_links(&links);
            }
        }
    }

    /// Listeners of other places are about sockets of weir's own namespace too, which may have come.
    fn follow_own(&mut self) {
        if self.elsewhere.asked().is_empty() {
            return;
        }
        let wanted = self.elsewhere.own();
        if self.session.asked().eq(&wanted) || self.elsewhere.refused.as_ref() == Some(&wanted) {
            return;
        }
        self.elsewhere.refused = None;
        match self
            .session
            .set_listeners(self.environment(), wanted.clone())
        {
            Ok(()) => self.log_new_warnings(),
            Err(failure) => {
                tracing::error!("servers that have come are not guarded: {failure}");
                self.elsewhere.refused = Some(wanted);
            }
        }
    }
}

/// The UDP sockets of a namespace that may speak QUIC (`None`: of weir's own), without those that only keep published ports.
fn bound_at(place: Option<(Namespace, &NamespacePath)>) -> Vec<BoundUdp> {
    let Some((namespace, path)) = place else {
        let (servers, _) = udp::servers(udp::sockets().unwrap_or_default());
        return servers.into_iter().map(|one| one.socket).collect();
    };
    let sockets = path.enter_if(namespace, || Ok(udp::sockets()));
    let failed = |error: String| {
        tracing::warn!(
            "UDP sockets of another network namespace cannot be read, so no QUIC is guarded there: {error}"
        );
        Vec::new()
    };
    match sockets {
        Ok(sockets) => sockets.unwrap_or_else(|error| failed(error.to_string())),
        Err(error) => failed(error.to_string()),
    }
}
