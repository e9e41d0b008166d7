//! Servers whose accept() calls are answered by `weir exec --order exact`, as their supervisors tell once a second.

use std::time::Instant;

use weir_api::ExecReport;

use super::Session;
use crate::daemon::backend::Backend;
use crate::failure::Result;

impl<B: Backend> Session<B> {
    /// A supervisor tells for which sockets its orderer answers: nothing is parked for them any more.
    ///
    /// # Errors
    /// The queues cannot be prioritized.
    pub fn exec_told(&mut self, report: ExecReport, now: Instant) -> Result<()> {
        let before = self.exec.sockets();
        self.exec.tell(report, now);
        match self.exec.sockets() == before {
            true => Ok(()),
            false => self.prioritize(),
        }
    }
}
