//! Modes forward and reverse: HTTP/1 requests, one after the other, and tunnels.
//!
//! A connection of a client is one [task]. A head is read and sent on, the bodies are moved,
//! and it begins again; between requests nothing of the thread is held: what an exchange needs is in
//! the [pool](exchange_pool).

mod after;
mod body;
mod cached;
mod closing;
mod exchange;
mod exchange_pool;
mod failure;
mod finish;
mod forecast;
mod progress;
mod pseudonym;
mod read_request;
mod refuse;
mod reply;
mod request;
mod scratch;
mod serve;
mod target;
mod task;
mod unreachable;

pub use after::Served;
pub use forecast::Forecast;
pub use scratch::Scratch;
pub use target::Upstreams;
pub use task::ClientTask;
pub use unreachable::{GONE, unreachable};
