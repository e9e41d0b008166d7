//! The idle time of work whose peers still take what they were sent.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use super::executor::Clock;
use super::tcp::TcpStream;

/// Runs `work`, whose deadline moves as long as one of `peers` takes what it was sent before: the time of `idle` begins
/// when it last took some.
///
/// A slow peer may empty its send queue for longer than `idle` without an event: the kernel reports room when a third
/// of the queue is free, and only to a task that waits to fill it. So the kernel is asked when the deadline has passed;
/// before, this costs nothing. It is asked here, before any wait of the task sees that it is late: a tunnel waits for
/// bytes from the one side while the other still takes what came.
pub fn while_taken<const N: usize, T>(
    idle: Duration,
    peers: [&TcpStream; N],
    mut work: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = T> {
    // Half as long as a Duration: idle tunnels hold it.
    let idle = idle.as_millis() as Clock;
    poll_fn(move |context| {
        let handle = peers[0].handle();
        if handle.deadline_has_passed() {
            let last = peers.iter().filter_map(|peer| peer.last_took()).min();
            let left = last.map_or(0, |ago| idle.saturating_sub(ago.as_millis() as Clock));
            if left > 0 {
                handle.set_deadline(Duration::from_millis(left));
            }
        }
        work.as_mut().poll(context)
    })
}
