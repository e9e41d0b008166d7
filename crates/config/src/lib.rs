//! The config file `weir.toml`: its tables and keys, and everything that follows from their declaration.
//!
//! # One declaration
//!
//! A key is declared once, beside the other keys of its table in `tables/`:
//!
//! ```text
//! Key::new("reject_syn", field!(Listener, reject_syn), word(),
//!     "What answers a SYN that weir refuses"),
//! ```
//!
//! Its name, the field that it sets, the type of its values ([`types`]), its text. From this follow the file's
//! parser ([`parse()`]), the flags of `weir protect`, `weir proxy` and `weir class` with their help and man
//! pages, the fields of classes in the API ([`change`]), `weir explain` ([`explain`]), the example file
//! ([`example()`]) and the reference page `docs/reference.md` ([`reference()`]). **To add a key**: the field in the
//! settings struct with its default, and one declaration. Then `WEIR_BLESS=1 cargo test -p weir-config` renews
//! the example and the reference. `src/tests/declare.rs` does it for a table that weir does not have.
//!
//! **To add a table**: a file in `tables/` that implements [`Table`], a field of [`Config`], a line in
//! `schema.rs`.
//!
//! # Layers
//!
//! Each file uses those above it only:
//!
//! | file | what it has |
//! |---|---|
//! | `error`, `value`, `suggest` | faults with hints and locations; values as they are given and shown |
//! | `types`, `key`, `table` | the types of values, a key, a kind of table |
//! | `address`, `names`, `tables/` | the keys of each kind of table |
//! | `config`, `reader`, `schema` | the whole file's tables, and the list of all kinds |
//! | `class_check`, `unused`, `parse` | tables of different kinds together; the file |
//! | `example`, `reference`, `explain` | what people read |
//!
//! [`fit()`] stands beside: it bends a listener's policy to what the network namespace allows.
#![forbid(unsafe_code)]

mod error;
mod suggest;
mod value;

#[macro_use]
pub mod key;
pub mod types;

mod address;
mod names;
mod table;
mod tables;

mod config;
mod reader;
mod schema;

mod class_check;
mod parse;
mod unused;

mod example;
pub mod explain;
mod reference;

mod fit;
mod syn_filter;

pub use address::{parse_ip, parse_listen_address, parse_port, parse_socket_address};
pub use class_check::check_classes;
pub use config::{Config, Warning};
pub use error::{Fault, Location, Problem, Problems};
pub use example::{example, wrap};
pub use fit::{
    Environment, Fallback, Fitted, SynCookies, fit, mptcp_fallback, policy_words,
    services_fallback, steered_fallback,
};
pub use key::Key;
pub use names::{parse_interface, parse_name};
pub use parse::parse;
pub use reference::reference;
pub use schema::{KeyDoc, TableDoc, tables};
pub use suggest::did_you_mean;
pub use syn_filter::SynFilter;
pub use table::{Table, change};
pub use tables::api::ApiSettings;
pub use tables::dashboard::DashboardSettings;
pub use tables::events::EventsSettings;
pub use tables::listener::parse_where;
pub use tables::metrics::MetricsSettings;
pub use types::{Kind, parse_word};
pub use value::{Given, Setting};

#[cfg(test)]
mod tests;
