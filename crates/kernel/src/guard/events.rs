//! Sampled refusals.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use weir_core::refusals::{Refusal, Seen};
use weir_core::verdict::VERDICTS;

use super::skel::types::guard_event;
use crate::namespace::Namespace;
use crate::object::plain;

plain!(guard_event);

/// Names by slot, made once for each policy: there may be thousands of classes.
pub(super) struct Names {
    listeners: BTreeMap<u16, (Namespace, Arc<str>)>,
    classes: BTreeMap<u32, Arc<str>>,
}

impl Names {
    pub(super) fn new<'a>(
        listeners: impl Iterator<Item = (u16, Namespace, &'a str)>,
        classes: impl Iterator<Item = (u32, &'a str)>,
    ) -> Names {
        Names {
            listeners: listeners
                .map(|(slot, namespace, name)| (slot, (namespace, name.into())))
                .collect(),
            classes: classes.map(|(slot, name)| (slot, name.into())).collect(),
        }
    }

    /// The event as a refusal, and where it was; `now_ns` is the time on the clock of the BPF programs. `None`: of a
    /// listener that is gone.
    pub(super) fn refusal(&self, event: &guard_event, now_ns: u64) -> Option<(Namespace, Refusal)> {
        let (namespace, listener) = self.listeners.get(&event.listener)?;
        let verdict = VERDICTS.get(usize::from(event.verdict))?.verdict;
        let queue = Seen::Queue {
            length: event.queue_length,
            half_open: event.half_open,
            limit: event.queue_limit,
            wait: Duration::from_micros(event.wait_us.into()),
        };
        let refusal = Refusal {
            at: when(event.at_ms, now_ns),
            listener: listener.clone(),
            class: self.classes.get(&event.class).cloned(),
            reason: verdict.into(),
            source: SocketAddr::new(address(event.saddr), event.sport),
            destination: SocketAddr::new(address(event.daddr), event.dport),
            seen: queue.at(verdict),
            observe: event.observe != 0,
        };
        Some((*namespace, refusal))
    }
}

/// The time of which `at_ms` has the low 32 bits, at most 49 days ago.
pub(crate) fn when(at_ms: u32, now_ns: u64) -> Duration {
    let now_ms = now_ns / 1_000_000;
    let age_ms = (now_ms as u32).wrapping_sub(at_ms);
    // A clock that was read first may be a millisecond behind.
    let age_ms = if age_ms > u32::MAX / 2 { 0 } else { age_ms };
    Duration::from_millis(now_ms.saturating_sub(age_ms.into()))
}

/// From the words of an address as they stand in packets; IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn address(words: [u32; 4]) -> IpAddr {
    let octets = words.map(u32::to_ne_bytes);
    let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(octets.as_flattened()).expect("16 bytes"));
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_event_is_found_from_its_low_bits() {
        let days_60_ms = 60 * 86_400_000_u64;
        let now_ns = (days_60_ms + 5) * 1_000_000;
        let at = |ms: u64| when(ms as u32, now_ns).as_millis() as u64;
        assert_eq!(at(days_60_ms), days_60_ms);
        assert_eq!(at(days_60_ms - 3000), days_60_ms - 3000);
        assert_eq!(
            at(days_60_ms + 6),
            days_60_ms + 5,
            "no event is in the future"
        );
    }
}
