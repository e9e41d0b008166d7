//! A look at the listeners of all network namespaces.

use std::time::Instant;

use super::GuardService;
use crate::daemon::backend::Backend;
use crate::daemon::overload::Looked;
use crate::daemon::quic::QuicGlance;
use crate::daemon::refusals::Counted;
use crate::daemon::session::Glance;

/// A look at all listeners.
pub(super) struct Glances {
    all: Vec<Glance>,
    /// So many of them, the first ones, are of weir's own namespace.
    own: usize,
    /// The QUIC listeners.
    pub quic: Vec<QuicGlance>,
}

impl Glances {
    pub fn all(&self) -> &[Glance] {
        &self.all
    }

    /// What each has counted.
    pub fn counted(&self) -> Vec<Counted> {
        let quic = self.quic.iter();
        let quic =
            quic.map(|one| Counted::of_quic(&one.listener.name, one.listener.mode, &one.counters));
        self.all.iter().map(Counted::of).chain(quic).collect()
    }

    pub fn own(&self) -> &[Glance] {
        &self.all[..self.own]
    }
}

impl<B: Backend> GuardService<B> {
    /// The listeners of weir's own namespace, then those of others, each by its label.
    pub(super) fn glances(&mut self, now: Instant) -> Option<Glances> {
        let (session, elsewhere, quic) = (&self.session, &self.elsewhere, &self.quic);
        let mut own = 0;
        let looked = self.overload.look(now, || {
            let mut glances = session.glances()?;
            own = glances.len();
            glances.extend(elsewhere.glances(session.spaces())?);
            Ok(Looked {
                listeners: glances,
                quic: quic.glances()?,
            })
        })?;
        Some(Glances {
            all: looked.listeners,
            own,
            quic: looked.quic,
        })
    }
}
