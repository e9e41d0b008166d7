//! Sampled refusals.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use weir_core::verdict::{VERDICTS, Verdict};

use super::skel::types::guard_event;
use crate::object::plain;

plain!(guard_event);

/// One sampled refusal. The guard keeps at most 20 a second and listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The listener's name.
    pub listener: String,
    /// The class's name; `None`: the listener has no classes.
    pub class: Option<String>,
    /// What was decided.
    pub verdict: Verdict,
    /// Client.
    pub source: SocketAddr,
    /// Server.
    pub destination: SocketAddr,
    /// Connections that waited for accept().
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The queue's limit.
    pub queue_limit: u32,
    /// Estimated wait in the queue.
    pub wait: Duration,
    /// Observed only: the packet passed.
    pub observe: bool,
}

/// Names by slot.
pub(super) struct Names {
    pub listeners: BTreeMap<u16, String>,
    pub classes: BTreeMap<u32, String>,
}

impl Event {
    /// `None`: of a listener that is gone.
    pub(super) fn of(event: &guard_event, names: &Names) -> Option<Event> {
        Some(Event {
            listener: names.listeners.get(&event.listener)?.clone(),
            class: names.classes.get(&event.class).cloned(),
            verdict: VERDICTS.get(usize::from(event.verdict))?.verdict,
            source: SocketAddr::new(address(event.saddr), event.sport),
            destination: SocketAddr::new(address(event.daddr), event.dport),
            queue_length: event.queue_length,
            half_open: event.half_open,
            queue_limit: event.queue_limit,
            wait: Duration::from_micros(event.wait_us.into()),
            observe: event.observe != 0,
        })
    }
}

/// From the words of an address as they stand in packets; IPv4 as `::ffff:a.b.c.d`.
pub(super) fn address(words: [u32; 4]) -> IpAddr {
    let octets = words.map(u32::to_ne_bytes);
    let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(octets.as_flattened()).expect("16 bytes"));
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}
