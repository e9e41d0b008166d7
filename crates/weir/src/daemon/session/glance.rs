//! A listener at one moment, as the log, the profiles and the sampled refusals want it.

use std::time::Duration;

use weir_core::forecast::{self, Look, Rule};
use weir_core::listener::Mode;
use weir_core::verdict::Counters;
use weir_core::wait::LEAST_MIN;
use weir_kernel::ListenSocket;

/// A listener in short.
#[derive(Debug, Clone)]
pub struct Glance {
    /// Its name.
    pub name: String,
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// What was done since it is guarded.
    pub counters: Counters,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in its listen queues.
    pub queue_limit: u32,
    /// Sockets that have these queues.
    pub sockets: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Connections that have come over interfaces on which it is guarded, whether or not weir has seen their SYNs; `None`
    /// where the kernel does not say.
    pub came: Option<u64>,
    /// The estimated wait for accept(), the longest of its sockets; `None` while not known.
    pub wait: Option<Duration>,
    /// Whether one of its queues is full, or has more waiting than keep the server busy, for longer than the target in force.
    pub waits_too_long: bool,
    /// What its server accepts a second while it is busy, over all sockets; `None` while not known.
    pub accepts: Option<f64>,
    /// So many may wait where one service takes longer than the target, over all sockets.
    pub kept: u32,
    /// By what it refuses, or would.
    pub rule: Rule,
    /// A program of the server's chooses among its sockets: weir cannot know in which queue a connection will be.
    pub steered: bool,
}

impl Glance {
    /// What a forecast is made of.
    pub fn seen(&self, at: Duration) -> Look {
        let came = self.came.map(|came| came as i64);
        Look {
            at,
            offered: forecast::offered(&self.counters, self.half_open),
            full: forecast::found_full(&self.counters),
            accepted: came.map(|came| came - i64::from(self.queue_length)),
            queue_length: self.queue_length,
            queue_limit: self.queue_limit,
            accepts: self.accepts,
            kept: self.kept,
            wait: self.wait,
            observed: self.mode == Mode::Observe,
        }
    }
}

/// What the server behind these sockets accepts a second while it is busy: those of them together that were seen busy; `None`
/// while none was.
pub fn accepts<'a>(sockets: impl Iterator<Item = &'a ListenSocket>) -> Option<f64> {
    let rates = sockets.filter_map(|socket| Some(1.0 / socket.service?.as_secs_f64()));
    rates.reduce(|all, one| all + one)
}

/// Whether the queue of a socket is full, or more wait in it, for `target` or longer, than `least` and than keep the server
/// busy. Where no wait is kept, `target` is `None`.
pub fn waits_too_long(socket: &ListenSocket, target: Option<Duration>, least: u32) -> bool {
    let length = socket.queue_length;
    let kept = socket.kept_length.max(LEAST_MIN).max(least);
    let is_full = length > 0 && length >= socket.queue_limit;
    is_full || target.is_some_and(|target| length >= kept && socket.wait >= Some(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_keeps_a_slow_pool_busy_is_no_overload() {
        let target = Some(Duration::from_millis(20));
        let over = |queue_length, wait_ms, least| {
            let socket = ListenSocket {
                queue_length,
                queue_limit: 511,
                kept_length: 6,
                wait: Some(Duration::from_millis(wait_ms)),
                ..crate::daemon::backend::fake::socket("10.0.0.1", 80)
            };
            let too_long = waits_too_long(&socket, target, least);
            let is_full = waits_too_long(&socket, None, least);
            assert_eq!(is_full, queue_length >= 511, "where no wait is kept");
            too_long
        };
        assert!(!over(5, 2500, 0), "as few as keep it busy");
        assert!(over(6, 3000, 0) && !over(6, 3000, 7));
        assert!(!over(400, 19, 0), "a fast server");
        assert!(over(511, 19, 0), "it is full");
        assert!(!over(0, 0, 0));
    }
}
