//! The servers behind the proxy: which one is next, and connections to it.

mod backend;
mod backends;
mod door;
mod link;
mod names;
mod origins;
mod places;
mod queue;
mod source;

pub use backend::Backend;
pub use backends::{Asker, Backends, Turn};
pub use door::{Door, Gate, Notice};
pub use link::{Lease, Link};
pub use names::{Names, Question, Resolved, start_resolver};
pub use origins::Origins;
