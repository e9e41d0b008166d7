//! What the experiments with crowds of QUIC clients share: their bed, and the search for a server's peak.

use std::path::Path;
use std::time::Duration;

use weir_testbed::quic::Crowd;

use crate::bed::{Bed, Layout};
use crate::error::{Kind as Failure, Result};
use crate::quic::{self, Kind, Server};
use crate::run::experiment::word;
use crate::{cpu, descriptors};

/// Descriptors beside those of the crowd.
pub(super) const OTHER_DESCRIPTORS: f64 = 500.0;
/// Every peak is below this, and the clients' ports and CPU end soon above it.
const MAX_RATE_PER_S: f64 = 5_000.0;
/// The search begins here, connections/s, and goes on by this factor until the server answers less than this share.
const FIRST_RATE_PER_S: f64 = 100.0;
const NEXT_RATE: f64 = 1.3;
const KEPT_UP: f64 = 0.8;
/// The clients' patience then.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers/s of the unprotected server at its best rate, or why this machine cannot have the server. Each rate is offered for
/// so many s.
pub(super) fn find_peak(
    kind: Kind,
    systems: &Path,
    seconds: f64,
) -> Result<std::result::Result<f64, String>> {
    descriptors::allow((MAX_RATE_PER_S * SEARCH_TIMEOUT.as_secs_f64() + OTHER_DESCRIPTORS) as u64)?;
    let (mut peak, mut rate_per_s) = (0.0, FIRST_RATE_PER_S);
    while rate_per_s <= MAX_RATE_PER_S {
        let answers_per_s = match answers_per_s(kind, systems, rate_per_s, seconds) {
            Ok(answers_per_s) => answers_per_s,
            Err(error) if error.kind == Failure::Unsupported => {
                eprintln!("  SKIP: {}: {error}", word(&kind));
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        eprintln!(
            "  {}: offered {rate_per_s:.0}/s, answered {answers_per_s:.0}/s",
            word(&kind)
        );
        peak = f64::max(peak, answers_per_s);
        if answers_per_s < KEPT_UP * rate_per_s {
            break;
        }
        rate_per_s *= NEXT_RATE;
    }
    Ok(Ok(peak.round()))
}

/// The same of now, of a server whose peak was so many answers/s some time ago: the speed of a machine changes.
pub(super) fn peak_now(kind: Kind, systems: &Path, seconds: f64, known: f64) -> Result<f64> {
    let mut peak = 0.0;
    for rate_per_s in [known / NEXT_RATE, known, known * NEXT_RATE] {
        peak = f64::max(peak, answers_per_s(kind, systems, rate_per_s, seconds)?);
    }
    Ok(peak.round())
}

fn answers_per_s(kind: Kind, systems: &Path, rate_per_s: f64, seconds: f64) -> Result<f64> {
    let bed = open_bed()?;
    let server = Server::start(&bed, kind, systems)?;
    let crowd = Crowd {
        to: quic::address(),
        per_second: rate_per_s,
        seconds,
        timeout: SEARCH_TIMEOUT,
        request: Some(kind.request()),
    };
    let result = on_clients_cpu(&bed, || crowd.run(&bed.clients))?;
    drop(server);
    Ok(result.done_in_time as f64 / seconds)
}

/// The receive work of the clients' packets, and with it weir's, is the server CPU's, as on a machine of its own.
pub(super) fn open_bed() -> Result<Bed> {
    let bed = Bed::build(Layout::of_this_machine())?;
    bed.server
        .steer_receive_work("veth0", bed.layout.server_cpu)?;
    bed.clients
        .set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
    Ok(bed)
}

/// Work on the CPU of the clients.
pub(super) fn on_clients_cpu<T: Send>(
    bed: &Bed,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let on_cpu = || {
            cpu::pin_this_thread(bed.layout.client_cpu)?;
            work()
        };
        let joined = scope.spawn(on_cpu).join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
