//! HTTP/1 as pure functions on bytes: heads, framing, chunks, rewriting. No I/O and no clock.
//!
//! A message goes through in this order:
//!
//! 1. [`read_request`] or [`read_reply`] reads a head, or says why it is refused ([`Refusal`]).
//! 2. Its `facts` say what follows the head ([`BodyKind`]) and whether the connection lives on.
//! 3. [`rewrite`] writes the head that goes out on the other side.
//! 4. [`ChunkScanner`] finds the end of a chunked body; all other ends are numbers.
//!
//! What goes out is safer than what came in: every head is written with one meaning only, so that
//! the next reader cannot see another message in the same bytes (RFC 9112 Section 11.2).

#[macro_use]
mod reasons;

pub mod answer;
mod chunked;
mod diagnosis;
mod field;
mod field_scan;
mod framing;
mod head;
mod limits;
mod lines;
mod refusal;
pub mod rewrite;
mod target;

pub use chunked::{ChunkScanner, Next, Piece, Scanned};
pub(crate) use field::is_odd_name;
pub use framing::{BodyKind, Delivery, Method, ReplyFacts, RequestFacts, Role, Version, persists};
pub use head::{FieldSlots, ReplyHead, RequestHead, read_reply, read_request};
pub use limits::Limits;
pub use refusal::Refusal;
pub use target::{Authority, Scheme, Target};
