//! The end of a client's connection: what was sent must arrive before the connection goes.

use std::io::ErrorKind;
use std::time::Duration;

use super::After;
use crate::runtime::Clock;
use crate::server::visitor::Visitor;
use crate::server::worker::Worker;

/// A client that has all of its replies and sends nothing for so long has ended, for all that matters.
const LINGER_QUIET: Duration = Duration::from_secs(2);
/// How long it may go on sending what is not wanted: whoever sends a large body before it reads the
/// reply that came early would lose that reply to a RST (RFC 9112, Section 9.6).
const LINGER_MOST: Duration = Duration::from_secs(30);
/// How often it is looked whether a client has acknowledged its replies: no event tells it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Ends the connection as `after` says; the caller drops it then.
pub async fn say(worker: &Worker, client: &mut Visitor, after: After) {
    match after {
        After::Continue | After::Close => {}
        After::Linger => linger(worker, client).await,
        After::CutOff => {
            let_replies_arrive(worker, client, 0).await;
            client.stream.reset_on_close();
        }
        After::Reset => client.stream.reset_on_close(),
    }
}

/// Waits until the client has what it was sent before the last `given_up` bytes: the RST that follows would throw it
/// away. A client that takes nothing more for the idle time is waited for no longer.
pub async fn let_replies_arrive(worker: &Worker, client: &Visitor, given_up: u64) {
    let given_up = usize::try_from(given_up).unwrap_or(usize::MAX);
    let left = || client.stream.unacknowledged().saturating_sub(given_up);
    let mut arrival = Arrival::begins(worker);
    while arrival.goes_on(left(), worker.handle.now()) {
        worker.handle.sleep(LOOK_AGAIN).await;
    }
}

/// Ends the proxy's half and throws away what the client sends until it ends too, falls silent, or
/// has sent for long enough; it has more time as long as it still takes what it was sent.
async fn linger(worker: &Worker, client: &mut Visitor) {
    client.stream.shut_down_write();
    let mut arrival = Arrival::begins(worker);
    let over = worker.handle.now() + LINGER_MOST.as_millis() as Clock;
    worker.handle.set_deadline(LINGER_QUIET);
    loop {
        client.inbox.consume(client.inbox.bytes().len());
        let silent = match client.receive(&worker.lanes.buffers).await {
            Ok(1..) => false,
            Err(error) if error.kind() == ErrorKind::TimedOut => true,
            Ok(0) | Err(_) => return,
        };
        let now = worker.handle.now();
        let done = silent || now >= over;
        if done && !arrival.goes_on(client.stream.unacknowledged(), now) {
            return;
        }
        worker.handle.set_deadline(LINGER_QUIET);
    }
}

/// How what was sent is arriving.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// Bytes on the way when some last arrived.
    left: usize,
    since: Clock,
    /// Milliseconds.
    idle: Clock,
}

impl Arrival {
    fn begins(worker: &Worker) -> Arrival {
        Arrival {
            left: usize::MAX,
            since: worker.handle.now(),
            idle: worker.settings.idle_timeout.as_millis() as Clock,
        }
    }

    /// Whether to wait on: something is left, and some of it arrived within the idle time.
    fn goes_on(&mut self, left: usize, now: Clock) -> bool {
        if left < self.left {
            (self.left, self.since) = (left, now);
        }
        left > 0 && now - self.since < self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Arrival = Arrival {
        left: 100,
        since: 0,
        idle: 1000,
    };

    #[test]
    fn waiting_ends_when_all_has_arrived() {
        let mut arrival = BEGUN;
        assert!(arrival.goes_on(50, 10));
        assert!(!arrival.goes_on(0, 20));
    }

    #[test]
    fn waiting_ends_when_nothing_arrives_for_the_idle_time_and_each_arrival_restarts_it() {
        let mut arrival = BEGUN;
        assert!(arrival.goes_on(100, 999));
        assert!(arrival.goes_on(99, 999));
        assert!(arrival.goes_on(99, 1998));
        assert!(!arrival.goes_on(99, 1999));
    }
}
