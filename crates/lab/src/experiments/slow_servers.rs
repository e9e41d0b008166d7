//! What the experiments with slow servers share: a bed on which each client has an address of its own, their load, and what
//! counts of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ipnet::Ipv4Net;
use serde_json::Value;

use crate::bed::{Bed, Layout, SERVER_VETH_V4};
use crate::client::new_histogram;
use crate::error::{Error, Kind, Result};
use crate::interrupt;
use crate::load::clients::{self, Outcome, Plan};
use crate::load::tally::Step;
use crate::netns::Netns;
use crate::run::results::{Sample, add_times};
use crate::weir::Weir;

/// The port that clients connect to.
pub const PORT: u16 = 80;
/// Length of the servers' listen queues.
pub const BACKLOG: u32 = 511;
/// Where the clients come from: each from another address, lest weir take them for a health check.
pub const CLIENTS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 99, 0, 0), 16);

/// Distance of two looks at weir's status.
const LOOK: Duration = Duration::from_millis(500);
/// A server answers so long after it listens, at the latest.
const READY_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// What clients connect to.
pub fn target() -> SocketAddr {
    SocketAddr::from((SERVER_VETH_V4, PORT))
}

/// A bed whose clients may have all addresses of [`CLIENTS`].
pub fn open() -> Result<Bed> {
    let bed = Bed::build(Layout::of_this_machine())?;
    add_clients(&bed, CLIENTS)?;
    bed.server.ip(&["link", "set", "lo", "up"])?;
    Ok(bed)
}

/// Clients may have these addresses too.
pub fn add_clients(bed: &Bed, network: Ipv4Net) -> Result<()> {
    let network = network.to_string();
    bed.clients
        .ip(&["route", "add", "local", &network, "dev", "lo"])?;
    bed.server
        .ip(&["route", "add", &network, "via", "10.66.1.2"])?;
    Ok(())
}

/// Waits until a server has served a client from this namespace.
pub fn await_answer(clients: &Netns, target: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while !clients.run(|| Ok(is_served(target)))? {
        interrupt::check()?;
        if begun.elapsed() > READY_LIMIT {
            let cause = format!("no reply with status 200 after {READY_LIMIT:?}");
            return Err(Error::failed("the server is not ready", cause));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn is_served(target: SocketAddr) -> bool {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&target, READY_LIMIT)?;
        stream.set_read_timeout(Some(READY_LIMIT))?;
        stream.write_all(&clients::request("lab", "/", false))?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        Ok(reply)
    };
    ask().is_ok_and(|reply| reply.get(8..13) == Some(b" 200 ".as_slice()))
}

/// The load, on the clients' CPU. Twice a second `look` has the time since its beginning and `weir status --json`.
pub fn run(
    bed: &Bed,
    plan: &Plan,
    weir: Option<&Weir<'_>>,
    mut look: impl FnMut(Duration, &Value),
) -> Result<Outcome> {
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            bed.clients.run_on(Some(bed.layout.client_cpu), || {
                clients::run(plan, &mut |_| {})
            })
        });
        let begun = Instant::now();
        while !load.is_finished() {
            std::thread::sleep(LOOK);
            if let Some(weir) = weir {
                look(begun.elapsed(), &weir.status()?);
            }
        }
        match load.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What the clients had in the steps but the first ones.
pub struct Counted {
    /// Shares of the clients, of `per_s` (the most that the server can serve), and the times of the served.
    pub sample: Sample,
    /// Response times of the served, µs.
    pub response_us: Histogram<u64>,
}

/// Counts all steps but so many at the beginning.
pub fn counted(outcome: &Outcome, skipped: usize, per_s: f64) -> Counted {
    let steps = &outcome.tally.steps[skipped..];
    let sum = |of: fn(&Step) -> u64| steps.iter().map(of).sum::<u64>() as f64;
    let begun = sum(|step| step.begun).max(1.0);
    let seconds: f64 = steps.iter().map(|step| step.length.as_secs_f64()).sum();
    let mut response_us: Histogram<u64> = new_histogram();
    for step in steps {
        response_us
            .add(&step.response_us)
            .expect("the bounds are the same");
    }
    // What is before a server replies with an error where the server or weir behind it refuses.
    let refused = sum(|step| step.refused + step.reset + step.error_replies());
    let mut sample = Sample::of([
        ("clients", begun),
        (
            "served",
            sum(|step| step.served_in_time) / (per_s * seconds),
        ),
        ("refused", refused / begun),
        ("timed_out", sum(|step| step.timed_out) / begun),
        (
            "other",
            sum(|step| step.cut_short + step.unreachable + step.not_begun) / begun,
        ),
        ("late", outcome.late_share),
    ]);
    add_times(&mut sample, "response", &response_us);
    Counted {
        sample,
        response_us,
    }
}

/// A server that is not installed is no measurement, and no reason to end the others.
pub fn unless_missing(sample: Result<Sample>) -> Result<Sample> {
    match sample {
        Err(error) if error.kind == Kind::Unsupported => Ok(Sample {
            flaw: Some(error.to_string()),
            ..Sample::default()
        }),
        sample => sample,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_installed_is_a_flaw_and_a_failure_ends_the_run() {
        let missing = Err(Error::unsupported("cannot start go", "it is not installed"));
        let sample = unless_missing(missing).unwrap();
        assert_eq!(
            sample.flaw.as_deref(),
            Some("cannot start go: it is not installed")
        );
        assert!(sample.metrics.is_empty());
        assert!(unless_missing(Err(Error::failed("no", "no"))).is_err());
    }
}
