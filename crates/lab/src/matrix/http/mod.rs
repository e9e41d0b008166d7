//! HTTP/1.1 exchanges: a client that asks for replies, an origin that serves them, and what either
//! must see. The parsers are not the proxy's: a mistake must not be made twice.

mod asking;
pub(crate) mod body;
mod exchange;
mod reader;
mod serving;

pub use asking::{Asking, Fate};
pub use exchange::{Call, Exchange};
pub use serving::Serving;
