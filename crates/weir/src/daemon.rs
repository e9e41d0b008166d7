//! The services that stay: the guard and the proxies, and what they are made of.

pub mod at_start;
pub mod attachment;
pub mod backend;
pub mod config_file;
pub mod controller;
pub mod events;
pub mod filters;
pub mod frame;
pub mod guard;
pub mod notify;
pub mod overload;
pub mod profiles;
pub mod proxies;
pub mod queue;
pub mod quic;
pub mod refusals;
mod relook;
pub mod report;
pub mod residence;
pub mod rights;
pub mod service;
pub mod session;
mod shaping;
pub mod signals;
pub mod sysctls;
pub mod timewait;
mod unjudged;
