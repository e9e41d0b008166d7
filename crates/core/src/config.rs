//! The config file `weir.toml`: listeners and their policies.
//!
//! [`keys::LISTENER_KEYS`] declares each key once; [`parse()`] reads a file by it, [`example()`]
//! writes one, [`lint()`] names what is odd, and [`fit()`] bends a policy to what the network
//! namespace allows.

mod address;
mod error;
mod example;
mod fit;
pub mod keys;
mod lint;
mod parse;
mod suggest;
mod word;

pub use address::{parse_ip, parse_port, parse_socket_address};
pub use error::{Fault, Place, Problem, Problems};
pub use example::example;
pub use fit::{Environment, Fallback, Fitted, SynCookies, fit, mptcp_fallback, policy_words};
pub use lint::lint;
pub use parse::{default_name, parse};
pub use suggest::did_you_mean;
pub use word::{Word, WordInfo};

use crate::listener::Listener;

/// A config file that was read without error.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The listeners in the order of the file, all defaults filled in.
    pub listeners: Vec<Listener>,
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
