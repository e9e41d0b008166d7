//! What a config file comes to once it has been read without an error.
//!
//! [`crate::schema`] fills it, one field for each kind of table.

use std::fmt;

use crate::error::Location;
use crate::tables::api::ApiSettings;
use crate::tables::dashboard::DashboardSettings;
use crate::tables::events::EventsSettings;
use crate::tables::metrics::MetricsSettings;
use weir_core::class::Class;
use weir_core::controller;
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;
use weir_core::quic::QuicListener;
use weir_core::shape::Shape;
use weir_core::timewait::Destination;

/// A config file that was read without error, all defaults filled in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// The listeners, in the order of the file.
    pub listeners: Vec<Listener>,
    /// The QUIC listeners, in the order of the file.
    pub quic: Vec<QuicListener>,
    /// The proxies, in the order of the file; each has its classes.
    pub proxies: Vec<Proxy>,
    /// The classes, in the order of the file, which decides nothing.
    pub classes: Vec<Class>,
    /// The destinations, in the order of the file, which decides nothing.
    pub destinations: Vec<Destination>,
    /// The shaped interfaces, in the order of the file, which decides nothing.
    pub shapes: Vec<Shape>,
    /// The controller, if the file has a `[controller]`.
    pub controller: Option<controller::Settings>,
    /// The API, if the file has an `[api]`.
    pub api: Option<ApiSettings>,
    /// The addresses of the metrics, if the file has a `[metrics]`; without it nothing listens for scrapes.
    pub metrics: Option<MetricsSettings>,
    /// The dashboard, if the file has a `[dashboard]`.
    pub dashboard: Option<DashboardSettings>,
    /// What becomes of events, if the file has an `[events]`.
    pub events: Option<EventsSettings>,
    /// Settings that are valid and that the user hardly meant, in the order of their lines.
    pub warnings: Vec<Warning>,
}

impl Config {
    /// Whether the file has something for `weir run`.
    pub fn is_for_run(&self) -> bool {
        !self.listeners.is_empty()
            || !self.quic.is_empty()
            || !self.destinations.is_empty()
            || !self.shapes.is_empty()
    }
}

/// A setting that is valid and that the user hardly meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it stands in the file; `None` for flags.
    pub location: Option<Location>,
    /// What is odd, in one sentence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Some(location) => write!(f, "{location}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}
