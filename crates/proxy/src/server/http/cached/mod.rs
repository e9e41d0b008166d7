//! Requests that the cache may answer.
//!
//! ```text
//! answer      looks in the cache; serves, follows another's fetch, or lets the request go out
//! decide      at the head of the server's reply: what the cache makes of it
//! carry_out   does that; what the cache does not take goes by the engines, as without a cache
//! ```
//!
//! Everything here is boxed where the plain path calls it, so that connections of a proxy without a
//! cache carry none of it.

mod asked;
mod carry_out;
mod context;
mod decide;
mod fill;
mod go_out;
mod keep;
mod lookup;
mod refresh;
mod serve;
mod status;
mod tee;

pub use asked::Asked;
pub use carry_out::{ServerReply, carry_out, stand_in};
pub use context::CacheContext;
pub use decide::{Decision, decide, outdate};
pub use lookup::answer;
