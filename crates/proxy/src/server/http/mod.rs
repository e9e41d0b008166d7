//! Modes forward and reverse: HTTP/1 requests, one after the other, and tunnels.
//!
//! A client's connection is one [task]. It reads a head and sends it on, moves the bodies, and begins again. Between two
//! requests it holds nothing of the thread: what an exchange needs comes from a [pool](exchange_pool).
//!
//! ```text
//! task, exchange_pool    a client between requests, and the future that serves one
//! read_request, serve    from a client's bytes to what follows the reply
//! exchange               a server is chosen, the request sent, tried again where that is safe
//! reply, body            the reply's heads and its body
//! finish, closing        what follows a whole reply: the next request, a tunnel, the end
//! refuse, unreachable    replies of the proxy's own
//! prohibited             servers that a forward proxy takes no client to
//! cached                 what the cache does before, between and after these
//! ```

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
mod prohibited;
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
