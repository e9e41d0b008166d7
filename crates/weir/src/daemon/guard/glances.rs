//! A look at the listeners of all network namespaces.

use std::time::Instant;

use super::GuardService;
use crate::daemon::backend::Backend;
use crate::daemon::session::Glance;

/// A look at all listeners.
pub(super) struct Glances {
    all: Vec<Glance>,
    /// So many of them, the first ones, are of weir's own namespace.
    own: usize,
}

impl Glances {
    pub fn all(&self) -> &[Glance] {
        &self.all
    }

    pub fn own(&self) -> &[Glance] {
        &self.all[..self.own]
    }
}

impl<B: Backend> GuardService<B> {
    /// The listeners of weir's own namespace, then those of others, each by its label.
    pub(super) fn glances(&mut self, now: Instant) -> Option<Glances> {
        let (session, elsewhere) = (&self.session, &self.elsewhere);
        let mut own = 0;
        let all = self.overload.look(now, || {
            let mut glances = session.glances()?;
            own = glances.len();
            glances.extend(elsewhere.glances(session.spaces())?);
            Ok(glances)
        })?;
        Some(Glances { all, own })
    }
}
