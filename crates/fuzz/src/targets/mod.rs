//! The targets. None prints, sleeps or keeps anything from one input to the next.

mod api;
mod cache;
mod chunked;
mod config;
mod control;
mod http_head;
mod packet;
mod proxy_protocol;
mod trace;

/// A reader of foreign bytes.
pub struct Target {
    /// Its name, and that of its folder under `corpus`.
    pub name: &'static str,
    /// Panics where something does not hold that must, whatever the bytes.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "api",
        run: api::run,
    },
    Target {
        name: "cache",
        run: cache::run,
    },
    Target {
        name: "chunked",
        run: chunked::run,
    },
    Target {
        name: "config",
        run: config::run,
    },
    Target {
        name: "control",
        run: control::run,
    },
    Target {
        name: "http_head",
        run: http_head::run,
    },
    Target {
        name: "packet",
        run: packet::run,
    },
    Target {
        name: "proxy_protocol",
        run: proxy_protocol::run,
    },
    Target {
        name: "trace",
        run: trace::run,
    },
];
