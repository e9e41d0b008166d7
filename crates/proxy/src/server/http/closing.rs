//! The end of a client's connection: what was sent must arrive before the connection goes.

use std::io::ErrorKind;
use std::time::Duration;

use super::after::After;
use super::request::Request;
use crate::runtime::Clock;
use crate::server::client::Client;
use crate::server::worker::Worker;

/// A client that has all of its replies and sends nothing for so long has ended, for all that matters.
const LINGER_QUIET: Duration = Duration::from_secs(2);
/// How long it may go on sending what the proxy does not want. A client that sends a large body before it reads an early
/// reply would lose that reply to a RST (RFC 9112 Section 9.6).
const LINGER_MOST: Duration = Duration::from_secs(30);
/// How long a client that says that it closes, or that was asked to, may take for it.
pub const CLIENT_CLOSES_IN: Duration = Duration::from_secs(2);
/// How soon the proxy looks again whether a client has acknowledged more of its replies, in ms: no event reports it.
const LOOK_AGAIN: Clock = 10;
/// How late at most, when it has stood still for longer than that, in ms.
const LOOK_LATEST: Clock = 1000;

/// What follows a whole reply that is the last on its connection; the last of it may have been held back for the end.
/// `uploaded`: the whole request was read.
pub fn after_last_reply(client: &Client, request: &Request, uploaded: bool) -> After {
    // It may be sending the rest of its request, or the next one, which the proxy will not read.
    if !uploaded || request.facts.keep_alive || !client.buffer.is_empty() {
        return After::Linger;
    }
    // Before the close: with unread bytes that is a RST, which would throw away what waits for the end.
    client.stream.shut_down_write();
    After::Close
}

/// Ends the connection as `after` says; the caller drops it then.
pub async fn close(worker: &Worker, client: &mut Client, after: After) {
    match after {
        After::Continue | After::Close | After::Tunnelled => {}
        After::Linger => linger(worker, client).await,
        After::AwaitEnd => await_end(worker, client).await,
        After::CutOff => {
            wait_until_acknowledged(worker, client, 0).await;
            client.stream.reset_on_close();
        }
        After::Reset => client.stream.reset_on_close(),
    }
}

/// Waits until the client has what it was sent before the last `given_up` bytes: the RST that follows would throw it
/// away. A client that takes nothing more for the idle time is waited for no longer.
pub async fn wait_until_acknowledged(worker: &Worker, client: &Client, given_up: u64) {
    let given_up = usize::try_from(given_up).unwrap_or(usize::MAX);
    let left = || client.stream.unacknowledged().saturating_sub(given_up);
    let mut arrival = Arrival::begins(worker);
    while arrival.goes_on(left(), worker.handle.now()) {
        let pause = arrival.pause(worker.handle.now());
        worker.handle.sleep(Duration::from_millis(pause)).await;
    }
}

/// Waits for the client's end, so that the client closes first, and throws away what comes before it: behind CLIENT_CLOSE
/// there is no request any more.
async fn await_end(worker: &Worker, client: &mut Client) {
    let over = worker.handle.now() + CLIENT_CLOSES_IN.as_millis() as Clock;
    worker.handle.set_deadline(CLIENT_CLOSES_IN);
    loop {
        client.buffer.consume(client.buffer.bytes().len());
        match client.receive(&worker.resources.buffers).await {
            // What comes without a pause lets no deadline pass.
            Ok(1..) if worker.handle.now() < over => worker.handle.yield_now().await,
            _ => return,
        }
    }
}

/// Ends the proxy's half and throws away what the client sends until it ends too, falls silent, or
/// has sent for long enough; it has more time as long as it still takes what it was sent.
async fn linger(worker: &Worker, client: &mut Client) {
    client.stream.shut_down_write();
    let mut arrival = Arrival::begins(worker);
    let over = worker.handle.now() + LINGER_MOST.as_millis() as Clock;
    worker.handle.set_deadline(LINGER_QUIET);
    loop {
        client.buffer.consume(client.buffer.bytes().len());
        let silent = match client.receive(&worker.resources.buffers).await {
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

/// How the bytes that were sent arrive at the client.
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

    /// Milliseconds until the next look: as many as nothing has arrived for. So thousands of clients that take nothing cost
    /// next to nothing, and the wait for a client that goes on is at most doubled.
    fn pause(&self, now: Clock) -> Clock {
        (now - self.since).clamp(LOOK_AGAIN, LOOK_LATEST)
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
    fn a_client_that_takes_nothing_is_looked_at_ever_more_rarely_and_one_that_goes_on_often() {
        let mut arrival = Arrival {
            idle: 300_000,
            ..BEGUN
        };
        let (mut now, mut looks) = (0, 0);
        while arrival.goes_on(100, now) {
            now += arrival.pause(now);
            looks += 1;
        }
        assert!((300..320).contains(&looks), "{looks} looks in 300 s");
        let mut arrival = BEGUN;
        assert!(arrival.goes_on(50, 900));
        assert_eq!(arrival.pause(900), 10);
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
