//! Classes of connections: which one a connection is of, what it is worth, and how many may come.
//!
//! The contract is docs/design/classes.md: the most specific rule that fits decides, so the order of
//! the file does not matter, and two rules that could both decide are an error.

mod bucket;
mod definition;
mod rules;
mod ties;

pub use bucket::{Bucket, BucketLimit, UNITS_PER_NS, default_burst};
pub use definition::{
    Class, LOWEST_PRIORITY, MAX_CLASSES, MAX_MASKS, MAX_RULES, OTHER, OTHER_PRIORITY, OverRate,
    OwnerId, Tuple,
};
pub use rules::{Fields, Rule, Rules, TooMany};
pub use ties::Tie;
