//! The servers behind the proxy: which one is next, and connections to it.

mod backend;
mod backends;
mod checks;
mod health;
mod limit;
mod names;
mod origins;
mod queue;
mod race;
mod resolver;
mod slots;
mod source;

pub use backend::{Backend, BackendContext, Lease, Link};
pub use backends::{BackendWalk, Backends, Requester};
pub use checks::{Checks, Question as CheckQuestion};
pub use health::{BackendState, HealthBoard};
pub use limit::{ConnectionLimit, Notice, ThreadConnectionLimit};
pub use names::{Names, is_name_timeout};
pub use origins::Origins;
pub use race::race;
pub use resolver::{Resolved, Resolver};
