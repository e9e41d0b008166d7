//! The real `weir` on the real kernel with real peers: what the server, its clients and everybody
//! else on the wire see while a listener is guarded.
//!
//! One file a theme. Every test builds a bed of its own (namespaces that go with it), so they run side by
//! side. Nothing sleeps: a test waits for a condition, at most [`common::PATIENCE`].

mod bursts;
mod chain;
mod classes;
mod close;
mod common;
mod devices;
mod docker;
mod doctor;
mod elsewhere;
mod establish;
mod events;
mod firewall;
mod front;
mod group;
mod health;
mod life;
mod mptcp;
mod observe;
mod packet_filters;
mod peers;
mod podman;
mod published;
mod quic;
mod reason;
mod reuse;
mod scope;
mod suggest;
mod sysctls;

/// Tests that judge rates and times: scripts/test runs each of them alone.
mod measured {
    mod controller;
    mod dropped;
    mod elsewhere;
    mod fates;
    mod flood;
    mod flood_table;
    mod forecast;
    mod idle;
    mod load;
    mod machine;
    mod page;
    mod pool;
    mod quic;
    mod quic_forecast;
    mod refusals;
    mod residence;
    mod slow;
    mod time_wait;
}
