//! Open-loop load: one policy at one rate, with a server and a weir of its own.
//!
//! Every point starts a fresh server, so that nothing of the point before (accept queue, half-open
//! connections and their SYN/ACK timers, keep-alive connections) is in the way, and ends when the
//! server namespace has no connection left that still exchanges packets.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::policy::{Account, InForce, Policy};
use crate::bed::{Bed, Counters, Layout};
use crate::client::{Generator, Load, Phase, Run};
use crate::cpu::{self, Ticks};
use crate::error::Result;
use crate::server::pool::{Record, realtime};
use crate::server::{BUSY, Program, Server, Spec, sockets_in_state};

/// Connections that the kernel keeps retransmitting for are waited for this long at most.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Share of the server's CPU that other programs may take before a point does not count. The
/// kernel's receive work is not a program; weir's own daemon is one, but idle.
const MAX_TAKEN: f64 = 0.03;

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
}

impl OpenLoop {
    /// Measures one point.
    pub fn measure(&mut self, policy: &Policy, load: &Load) -> Result<Measured> {
        let mut server = Server::start(&self.bed, &self.server)?;
        let mut in_force =
            InForce::start(&self.bed, policy, self.weir.as_deref(), self.server.port)?;
        let before = self.bed.counters()?;
        let (mut run, edges) = run_load(&self.bed, &mut self.generator, server.session(), load)?;
        let taken = edges.1.ticks.taken_by_others_since(&edges.0.ticks);
        run.flaw = run.flaw.or_else(|| busy_flaw(taken));
        let after = self.bed.counters()?;
        server.check_alive()?;
        in_force.check_alive()?;
        let account = in_force.end()?;
        let accepts = match self.server.program {
            Program::Pool { .. } => server.records()?,
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

/// Why a point does not count of which other programs took this share of the server's CPU.
pub fn busy_flaw(taken: f64) -> Option<String> {
    let percent = taken * 100.0;
    (taken > MAX_TAKEN).then(|| format!("other programs took {percent:.0} % of the server's CPU"))
}

/// What is read at each edge of the window.
#[derive(Debug, Default)]
struct Edge {
    at: Duration,
    counters: Counters,
    ticks: Ticks,
}

/// Runs the generator on its CPU, and reads the kernel's counters at the window's edges here.
fn run_load(
    bed: &Bed,
    generator: &mut Generator,
    session: u32,
    load: &Load,
) -> Result<(Run, (Edge, Edge))> {
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
        for (phase, at) in phases {
            let ticks = Ticks::read(bed.layout.server_cpu, session)?;
            let edge = Edge {
                at,
                counters: bed.counters()?,
                ticks,
            };
            match phase {
                Phase::WindowBegins => edges.0 = edge,
                Phase::WindowEnds => edges.1 = edge,
            }
        }
        match thread.join() {
            Ok(run) => Ok((run?, edges)),
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
    pub server: Program,
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
            Program::BuiltIn { .. } => Program::BuiltIn {
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
