//! Servers whose accept() calls are answered by `weir exec --order exact`, as their supervisors tell once a second.

use super::Session;
use crate::daemon::backend::Backend;
use crate::failure::Result;
use crate::ipc::control::ExecReport;

impl<B: Backend> Session<B> {
    /// A supervisor tells for which sockets its orderer answers: nothing is parked for them any more.
    ///
    /// # Errors
    /// As [`Session::start`] has them for queues.
    pub fn exec_told(&mut self, report: ExecReport) -> Result<()> {
        let before = self.exec.sockets();
        self.exec.tell(report);
        match self.exec.sockets() == before {
            true => Ok(()),
            false => self.prioritize(),
        }
    }
}
