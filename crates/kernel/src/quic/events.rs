//! Sampled refusals of QUIC attempts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_core::quic::QUIC_VERDICTS;
use weir_core::refusals::{Refusal, Seen};

use super::skel::types::quic_event;
use crate::guard::events::{address, when};
use crate::object::plain;

plain!(quic_event);

/// The event as a refusal of this listener and class; `now_ns` is the time on the clock of the BPF programs. `None`: of a verdict that
/// nobody knows.
pub(super) fn refusal(
    event: &quic_event,
    listener: Arc<str>,
    class: Option<Arc<str>>,
    now_ns: u64,
) -> Option<Refusal> {
    let wait = (event.wait_us > 0).then(|| Duration::from_micros(event.wait_us.into()));
    Some(Refusal {
        at: when(event.at_ms, now_ns),
        listener,
        class,
        reason: QUIC_VERDICTS
            .get(usize::from(event.verdict))?
            .verdict
            .into(),
        source: SocketAddr::new(address(event.saddr), event.sport),
        destination: SocketAddr::new(address(event.daddr), event.dport),
        seen: Seen::Quic {
            pending: event.pending,
            wait,
            buffer: event.buffer,
            buffer_limit: event.buffer_limit,
        },
        observe: event.observe != 0,
    })
}
