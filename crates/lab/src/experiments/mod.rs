//! The experiments, and the registry of them.

pub mod bursts;
pub mod crosscheck;
pub mod demo;
pub mod flash_crowd;
mod flood;
pub mod instead;
pub mod judges;
pub mod link_traffic;
pub mod point;
pub mod policy;
pub mod pools;
pub mod proxy_bench;
pub mod proxy_delay;
pub mod proxy_idle;
pub mod proxy_lossy;
pub mod proxy_matrix;
pub mod proxy_mixed;
pub mod proxy_slow;
pub mod quic_below;
pub mod quic_clients;
pub mod quic_crowd;
pub mod quic_fallback;
mod quic_peak;
pub mod residence;
pub mod response_time;
pub mod saturation;
pub mod sim;
pub mod slow_servers;
pub mod soak;
pub mod syn_timeouts;
pub mod timewait;
pub mod timewait_ports;
pub mod trace_links;
pub mod vtfm01;
pub mod whole_life;

use crate::error::{Error, Result};
use crate::run::experiment::Entry;

/// One line an experiment: its file has the rest.
const REGISTRY: &[&[Entry]] = &[
    flash_crowd::ENTRIES,
    bursts::ENTRIES,
    pools::ENTRIES,
    instead::ENTRIES,
    residence::ENTRIES,
    whole_life::ENTRIES,
    quic_crowd::ENTRIES,
    quic_clients::ENTRIES,
    quic_fallback::ENTRIES,
    quic_below::ENTRIES,
    crosscheck::ENTRIES,
    proxy_bench::ENTRIES,
    proxy_delay::ENTRIES,
    proxy_mixed::ENTRIES,
    proxy_lossy::ENTRIES,
    proxy_idle::ENTRIES,
    proxy_slow::ENTRIES,
    proxy_matrix::ENTRIES,
    sim::ENTRIES,
    response_time::ENTRIES,
    link_traffic::ENTRIES,
    trace_links::ENTRIES,
    judges::ENTRIES,
    soak::ENTRIES,
    syn_timeouts::ENTRIES,
    timewait_ports::ENTRIES,
    timewait::duplicates::ENTRIES,
    timewait::holders::ENTRIES,
    timewait::load::ENTRIES,
    vtfm01::preferred::ENTRIES,
    vtfm01::priorities::ENTRIES,
    vtfm01::police_high::ENTRIES,
    vtfm01::order::ENTRIES,
    vtfm01::overload::ENTRIES,
    vtfm01::controller::ENTRIES,
    vtfm01::accuracy::ENTRIES,
];

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    REGISTRY.iter().flat_map(|entries| entries.iter())
}

/// The one with this id.
pub fn find(id: &str) -> Result<&'static Entry> {
    let found = all().find(|entry| entry.id == id);
    found.ok_or_else(|| {
        Error::usage(
            format!("no experiment `{id}`"),
            "the registry does not have it",
        )
        .hint("`weir-lab list` shows those that are there")
    })
}
