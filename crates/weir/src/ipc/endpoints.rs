//! Where a service is asked: the control socket, the API, the metrics and the dashboard.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use weir_config::ApiSettings;

use crate::failure::Result;
use crate::ipc::api::Api;
use crate::ipc::call::Calls;
use crate::ipc::control::ControlSocket;
use crate::ipc::dashboard::{Dashboard, Others, Token};
use crate::ipc::scrape::Metrics;

/// All endpoints of a process. Dropped or closed, nobody finds the process any more.
pub struct Endpoints {
    control: Option<Box<dyn ControlSocket>>,
    api: Option<Api>,
    metrics: Option<Metrics>,
    dashboard: Option<Dashboard>,
    calls: Calls,
}

impl Endpoints {
    /// The control socket alone; `None`: the process has none.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new(control: Option<Box<dyn ControlSocket>>) -> Result<Endpoints> {
        Ok(Endpoints {
            control,
            api: None,
            metrics: None,
            dashboard: None,
            calls: Calls::new()?,
        })
    }

    /// Opens the API. `default` is its path if the settings have none.
    ///
    /// # Errors
    /// As [`Api::start`].
    pub fn open_api(&mut self, settings: &ApiSettings, default: PathBuf) -> Result<()> {
        let api = Api::start(settings, default, self.calls.line())?;
        tracing::info!("API on {}", api.socket().display());
        self.api = Some(api);
        Ok(())
    }

    /// Opens the metrics over TCP.
    ///
    /// # Errors
    /// As [`Metrics::start`].
    pub fn open_metrics(&mut self, address: SocketAddr) -> Result<()> {
        self.metrics = Some(Metrics::start(address, self.calls.line())?);
        Ok(())
    }

    /// Opens the dashboard. `token` is that of the settings' file; `others` knows the other processes.
    ///
    /// # Errors
    /// As [`Dashboard::start`].
    pub fn open_dashboard(
        &mut self,
        address: SocketAddr,
        token: Option<Token>,
        others: Others,
    ) -> Result<()> {
        let line = self.calls.line();
        self.dashboard = Some(Dashboard::start(address, token, line, others)?);
        Ok(())
    }

    /// Closes all. When it returns, a successor can listen at the same addresses.
    pub fn close(&mut self) {
        (self.control, self.api) = (None, None);
        (self.metrics, self.dashboard) = (None, None);
    }

    /// The control socket.
    pub fn control(&self) -> Option<&dyn ControlSocket> {
        self.control.as_deref()
    }

    /// Requests over HTTP.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// The descriptors that are readable when somebody asks: of HTTP, and of the control socket.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let control = self.control.iter().map(|control| control.as_fd());
        [self.calls.as_fd()].into_iter().chain(control)
    }
}
