//! Open-loop load: one policy at one rate, with a server and a weir of its own.
//!
//! Every point starts a fresh server, so that nothing of the point before (accept queue, half-open
//! connections and their SYN/ACK timers, keep-alive connections) is in the way, and ends when the
//! server namespace has no connection left that still exchanges packets.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::policy::{Account, InForce, Policy};
use crate::bed::{Bed, Counters, Layout};
use crate::client::{Generator, Load, Phase, Run};
use crate::cpu::{self, Spare, Ticks};
use crate::error::Result;
use crate::server::pool::{Record, realtime};
use crate::server::{BUSY, Server, ServerProgram, Spec, sockets_in_state};

/// Connections that the kernel keeps retransmitting for are waited for this long at most.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Share of the server's CPU that other programs and the machine's host may take before a point does not count. The
/// kernel's receive work is not a program; weir's own daemon is one, but idle.
const MAX_TAKEN: f64 = 0.03;
/// The same of each [`LOOK`]: a moment without a CPU fills a queue, and shows in a course or in a percentile, although
/// it is nothing beside the whole window. A tick of /proc/stat is a fiftieth of it.
const MAX_TAKEN_OF_A_LOOK: f64 = 0.2;
const LOOK: Duration = Duration::from_millis(500);

/// What stays the same from case to case.
#[derive(Debug)]
pub struct OpenLoop {
    /// Namespaces, wire, CPUs.
    pub bed: Bed,
    /// The server of every point.
    pub server: Spec,
    /// `weir`, if not the one found by [`crate::program::find`].
    pub weir: Option<PathBuf>,
    /// The load generator.
    pub generator: Generator,
}

/// Everything measured at a point.
#[derive(Debug)]
pub struct Measured {
    /// The generator's results.
    pub run: Run,
    /// The kernel's counters over the window.
    pub in_window: Counters,
    /// The kernel's counters over warm-up, window and drain.
    pub in_all: Counters,
    /// What weir said; `None` without weir.
    pub account: Option<Account>,
    /// All accepts of the server, of the pool only.
    pub accepts: Vec<Record>,
    /// When the window began and ended, since 1970 (the clock of the records).
    pub window: (Duration, Duration),
    /// Share of the server's CPU that was used in the window, by whatever: programs and receive work.
    pub cpu_used: f64,
}

impl OpenLoop {
    /// Measures one point.
    pub fn measure(&mut self, policy: &Policy, load: &Load) -> Result<Measured> {
        let mut server = Server::start(&self.bed, &self.server)?;
        let mut in_force =
            InForce::start(&self.bed, policy, self.weir.as_deref(), self.server.port)?;
        let before = self.bed.counters()?;
        let (mut run, edges, taken_by_look) =
            run_load(&self.bed, &mut self.generator, server.session(), load)?;
        let taken = edges.1.ticks.taken_by_others_since(&edges.0.ticks);
        run.flaw = run.flaw.or_else(|| busy_flaw(taken, &taken_by_look));
        let after = self.bed.counters()?;
        server.check_alive()?;
        in_force.check_alive()?;
        let account = in_force.end()?;
        let accepts = match self.server.program {
            ServerProgram::Pool { .. } => server.records()?,
            _ => Vec::new(),
        };
        drop(server);
        self.settle()?;
        let in_window = edges.1.counters.since(&edges.0.counters);
        Ok(Measured {
            run,
            in_window,
            in_all: after.since(&before),
            account,
            accepts,
            window: (edges.0.at, edges.1.at),
            cpu_used: 1.0 - edges.1.spare.share_since(&edges.0.spare),
        })
    }

    fn settle(&mut self) -> Result<()> {
        let OpenLoop { bed, generator, .. } = self;
        let begun = Instant::now();
        generator.settle(bed, || {
            let busy = bed.server.run(|| sockets_in_state(BUSY, None))?;
            Ok(busy == 0 || begun.elapsed() > SETTLE_LIMIT)
        })
    }
}

/// Why a point does not count in which others took this share of the server's CPU, and these of each [`LOOK`].
pub fn busy_flaw(taken: f64, taken_by_look: &[f64]) -> Option<String> {
    let most = taken_by_look.iter().copied().fold(0.0, f64::max);
    let (share, when) = if taken > MAX_TAKEN {
        (taken, "")
    } else if most > MAX_TAKEN_OF_A_LOOK {
        (most, " for half a second")
    } else {
        return None;
    };
    let percent = share * 100.0;
    Some(format!(
        "other programs, or the host of this machine, took {percent:.0} % of the server's CPU{when}"
    ))
}

/// What is read at each edge of the window.
#[derive(Debug, Default)]
struct Edge {
    at: Duration,
    counters: Counters,
    ticks: Ticks,
    spare: Spare,
}

/// Runs the generator on its CPU, and reads the kernel's counters at the window's edges here. The shares are those of the
/// server's CPU that others took, of each [`LOOK`] of the window.
fn run_load(
    bed: &Bed,
    generator: &mut Generator,
    session: u32,
    load: &Load,
) -> Result<(Run, (Edge, Edge), Vec<f64>)> {
    let (sender, phases) = mpsc::channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cpu::pin_this_thread(bed.layout.client_cpu)?;
            generator.run(bed, load, move |phase| {
                // The other end is gone only when reading the counters failed, which it reports.
                let _ = sender.send((phase, realtime()));
            })
        });
        let mut edges = (Edge::default(), Edge::default());
        let mut looks: Vec<Ticks> = Vec::new();
        let mut in_window = false;
        loop {
            let event = phases.recv_timeout(LOOK);
            let ticks = Ticks::read(bed.layout.server_cpu, session)?;
            let (phase, at) = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    looks.extend(in_window.then_some(ticks));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            in_window = matches!(phase, Phase::WindowBegins);
            looks.extend(in_window.then_some(ticks));
            let edge = Edge {
                at,
                counters: bed.counters()?,
                ticks,
                spare: Spare::read(bed.layout.server_cpu)?,
            };
            match phase {
                Phase::WindowBegins => edges.0 = edge,
                Phase::WindowEnds => edges.1 = edge,
            }
        }
        match thread.join() {
            Ok(run) => {
                let pairs = looks.windows(2);
                let taken = pairs.map(|pair| pair[1].taken_by_others_since(&pair[0]));
                Ok((run?, edges, taken.collect()))
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The server under test; the same flags for every experiment with open-loop load.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Server under test: built-in, nginx, or a shell command that stays in the foreground
    #[arg(
        long,
        default_value = "built-in",
        value_name = "built-in|nginx|COMMAND"
    )]
    pub server: ServerProgram,
    /// Port on which it listens
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// Length of its listen queue (built-in and nginx)
    #[arg(long, default_value_t = 128)]
    pub backlog: u32,
    /// CPU time that the built-in server spends on each request, in µs
    #[arg(long, default_value_t = 0)]
    pub work_us: u32,
}

impl ServerArgs {
    /// The server as these arguments describe it.
    pub fn spec(&self) -> Spec {
        let program = match &self.server {
            ServerProgram::BuiltIn { .. } => ServerProgram::BuiltIn {
                work_us: self.work_us,
            },
            other => other.clone(),
        };
        Spec {
            program,
            port: self.port,
            backlog: self.backlog,
        }
    }

    /// Builds the bed for it. `weir`: the program, if not the one found by [`crate::program::find`].
    pub fn open(&self, weir: Option<PathBuf>) -> Result<OpenLoop> {
        Ok(OpenLoop {
            bed: Bed::build(Layout::of_this_machine())?,
            server: self.spec(),
            weir,
            generator: Generator::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_a_cpu_is_a_flaw_of_a_long_point() {
        assert_eq!(busy_flaw(0.02, &[0.1, 0.05]), None);
        let flaw = busy_flaw(0.02, &[0.0, 0.26, 0.1]).unwrap();
        assert!(
            flaw.ends_with("took 26 % of the server's CPU for half a second"),
            "{flaw}"
        );
        let flaw = busy_flaw(0.04, &[0.26]).unwrap();
        assert!(flaw.ends_with("took 4 % of the server's CPU"), "{flaw}");
    }
}
