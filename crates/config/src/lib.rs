//! The config file `weir.toml`: listeners and their policies, proxies and what they do, and `weir explain`.
//!
//! [`LISTENER_KEYS`] and [`PROXY_KEYS`] declare each key once; [`parse()`] reads a file by them,
//! [`example()`] writes one, [`lint()`] names what is odd, and [`fit()`] bends a policy to what the
//! network namespace allows.
#![forbid(unsafe_code)]

mod address;
mod api_keys;
mod class_check;
mod class_keys;
mod controller_keys;
mod error;
mod example;
pub mod explain;
mod fit;
pub mod keys;
mod lint;
mod metrics_keys;
mod parse;
mod proxy_keys;
mod suggest;
mod table;
mod unused;
mod value;

pub use address::{parse_ip, parse_listen_address, parse_port, parse_socket_address};
pub use api_keys::{API_KEYS, ApiSettings};
pub use class_check::check_classes;
pub use class_keys::CLASS_KEYS;
pub use controller_keys::CONTROLLER_KEYS;
pub use error::{Fault, Place, Problem, Problems};
pub use example::example;
pub use fit::{Environment, Fallback, Fitted, SynCookies, fit, mptcp_fallback, policy_words};
pub use keys::{LISTENER_KEYS, default_name};
pub use lint::lint;
pub use metrics_keys::{METRICS_KEYS, MetricsSettings};
pub use parse::parse;
pub use proxy_keys::PROXY_KEYS;
pub use suggest::did_you_mean;
pub use table::{Key, Kind, Table, WordText, change};
pub use value::{Given, Setting, parse_word};

use weir_core::class::Class;
use weir_core::listener::Listener;
use weir_core::proxy::Proxy;

/// A config file that was read without error.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The listeners in the order of the file, all defaults filled in.
    pub listeners: Vec<Listener>,
    /// The proxies in the order of the file, all defaults filled in.
    pub proxies: Vec<Proxy>,
    /// The classes in the order of the file, which decides nothing.
    pub classes: Vec<Class>,
    /// The controller; `None`: there is none.
    pub controller: Option<weir_core::controller::Settings>,
    /// The API; `None`: there is none.
    pub api: Option<ApiSettings>,
    /// The addresses of the metrics; `None`: nothing listens for scrapes.
    pub metrics: Option<MetricsSettings>,
    /// What is valid and yet hardly what was meant.
    pub warnings: Vec<Warning>,
}

/// Something valid that is hardly what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where; `None` for flags.
    pub place: Option<Place>,
    /// What is odd.
    pub text: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

#[cfg(test)]
mod tests;
