//! One frame for all experiments: what they are ([`experiment`]), when they run ([`scheduler`]), what they say
//! ([`results`], [`statistics`]) and where it is kept ([`store`]).

pub mod experiment;
pub mod results;
pub mod scheduler;
pub mod statistics;
pub mod store;
