//! The real `weir` on the real kernel with real peers: what the server, its clients and everybody
//! else on the wire see while a listener is guarded.
//!
//! One file a theme. Every test builds a bed of its own (namespaces that go with it), so they run side by
//! side. Nothing sleeps: a test waits for a condition, at most [`common::PATIENCE`].

mod bursts;
mod classes;
mod close;
mod common;
mod establish;
mod events;
mod firewall;
mod front;
mod health;
mod life;
mod observe;
mod peers;
mod reason;
mod scope;
mod suggest;

/// Tests that judge rates and times: scripts/test runs each of them alone.
mod measured {
    mod controller;
    mod flood;
    mod flood_table;
    mod idle;
    mod load;
    mod page;
    mod refusals;
    mod slow;
    mod time_wait;
}
