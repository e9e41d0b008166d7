//! The real `weir` on the real kernel with real peers: what the server, its clients and everybody
//! else on the wire see while a listener is guarded.
//!
//! One file a theme. Every test builds a bed of its own (namespaces that go with it), so they run in
//! parallel or one at a time. Nothing sleeps: a test waits for a condition, at most [`common::PATIENCE`].

mod bursts;
mod classes;
mod close;
mod common;
mod controller;
mod establish;
mod flood;
mod front;
mod life;
mod observe;
mod peers;
mod reason;
mod scope;
