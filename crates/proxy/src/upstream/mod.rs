//! The servers behind the proxy: which one is next, and connections to it.

mod backend;
mod backends;
mod checks;
mod door;
mod health;
mod link;
mod names;
mod origins;
mod places;
mod queue;
mod race;
mod resolver;
mod source;

pub use backend::{Backend, Ties};
pub use backends::{Asker, Backends, Turn};
pub use checks::{Checks, Question as CheckQuestion};
pub use door::{Door, Gate, Notice};
pub use health::{BackendState, HealthBoard};
pub use link::{Lease, Link};
pub use names::{Names, is_name_timeout};
pub use origins::Origins;
pub use race::race;
pub use resolver::{Resolved, Resolver};
