//! The servers behind the proxy: which one is next, and connections to it.

mod announced;
mod backend;
mod backend_set;
mod backends;
mod checks;
mod ending;
mod health;
mod limit;
mod lookups;
mod names;
mod origins;
mod queue;
mod race;
mod reach;
mod recheck;
mod resolver;
mod shared_backend;
mod slots;
mod source;

pub use announced::{HealthChange, OnHealth};
pub use backend::{Backend, BackendContext, Lease, Link};
pub use backend_set::{BackendSet, KnownAddresses};
pub use backends::{BackendWalk, Backends, Requester, is_without_address};
pub use checks::{Checks, KnownHealth, Question as CheckQuestion};
pub use health::{BackendHealth, BackendState};
pub use limit::{ConnectionLimit, Notice, ThreadConnectionLimit};
pub use lookups::{LookUp, Lookups, NameReport, resolve_all};
pub use names::{Names, is_name_timeout};
pub use origins::Origins;
pub use race::race;
pub use resolver::{Resolved, Resolver};
pub use shared_backend::{BackendAccount, SharedBackend};
