//! The tables that a file may have, one file each: their keys, and the checks of keys together.

pub(crate) mod api;
pub(crate) mod class;
pub(crate) mod controller;
pub(crate) mod dashboard;
pub(crate) mod destination;
pub(crate) mod events;
pub(crate) mod listener;
pub(crate) mod listener_lint;
pub(crate) mod metrics;
pub(crate) mod proxy;
pub(crate) mod proxy_types;
pub(crate) mod quic;
pub(crate) mod shape;
