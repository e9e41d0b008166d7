//! The services that stay: the guard and the proxies, and what they are made of.

pub mod attachment;
pub mod backend;
pub mod controller;
pub mod guard;
pub mod proxies;
pub mod queue;
pub mod report;
pub mod session;
