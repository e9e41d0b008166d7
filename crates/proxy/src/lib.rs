//! The splicing proxy of weir: forwards HTTP and TCP between clients and servers.
//!
//! One thread per core runs its own event loop; a connection stays on its thread. The bytes of a
//! body move through one receive and one send if they are few, and through splice(2) if they are
//! many; at the end of a body the proxy has both connections back.

pub mod access_log;
mod address;
mod cache;
mod counter;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod handover;
pub mod histogram;
pub mod http;
mod local_address;
pub mod metrics;
mod own_listeners;
pub mod proxy_protocol;
pub mod runtime;
mod server;
mod shortage;
mod sys;
pub mod transfer;
mod upstream;

pub use cache::CacheMemory;
pub use own_listeners::{OwnListener, OwnListeners};
pub use server::{
    BackendReport, BackendState, Connections, Error, FIRST_ANSWERS, KnownAddresses, LookUp,
    NameReport, ReloadState, Server, Servers, Sockets, StartOptions, ThreadReport, ThreadState,
    Total, Totals, Waker, resolve_all, thread_count,
};
pub use upstream::{HealthChange, OnHealth};
