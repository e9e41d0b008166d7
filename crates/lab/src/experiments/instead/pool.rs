//! The slow pool: a load, and what became of it.

use std::path::Path;
use std::time::{Duration, Instant};

use super::guards::{Capacity, Guard};
use super::loads::{GREEDY, Offered, Part};
use super::setup::{self, Kind, Setup};
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::cpu::{Spare, Ticks};
use crate::error::{Error, Result};
use crate::experiments::flood::{self, Flood};
use crate::experiments::policy::InForce;
use crate::experiments::slow_servers::{self, PORT, target};
use crate::load::clients::{self, Outcome, Plan};
use crate::server::Server;

/// Steps of a load, of which the first is not counted.
pub const STEPS: usize = 4;
const LOOK: Duration = Duration::from_millis(20);
/// Lest two parts of a load come at the same moments: seeds of two runs are not so far apart.
const SEEDS_APART: u64 = 1 << 32;

/// What came of a load.
#[derive(Debug)]
pub struct Run {
    /// What became of each part of the clients.
    pub outcomes: Vec<Outcome>,
    /// What the server's CPU did in the steps that count.
    pub cpu: Cpu,
    /// Share of the flood that was not sent.
    pub unsent: f64,
}

/// Shares of the server's CPU.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// By whatever: programs and receive work.
    pub used: f64,
    /// By programs outside the server's session, and by the machine's host.
    pub taken: f64,
}

/// How clients come.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Length of a step.
    pub step: Duration,
    /// How long they wait.
    pub patience: Duration,
}

impl Pace {
    /// What each part of the clients does.
    pub fn plans(self, load: Offered, peak_per_s: f64, seed: u64) -> Vec<Plan> {
        let seeds = (0u64..).map(|number| seed.wrapping_add(number * SEEDS_APART));
        let plan = |(part, seed): (Part, u64)| Plan {
            target: target(),
            request: clients::request("pool", "/", false),
            rates_per_s: vec![part.multiple * peak_per_s; STEPS],
            step: self.step,
            together: false,
            patience: self.patience,
            stay: None,
            sources: Some(part.sources),
            seed,
        };
        load.parts().into_iter().zip(seeds).map(plan).collect()
    }
}

/// The pool and what stands before it.
#[derive(Debug, Clone, Copy)]
pub struct Guarded<'a> {
    /// What stands before it.
    pub guard: Guard,
    /// What that is told.
    pub capacity: Capacity,
    /// SYNs/s of a flood, if there is one.
    pub flood_per_s: Option<f64>,
    /// weir, if not the one that is found.
    pub weir: Option<&'a Path>,
}

impl Guarded<'_> {
    /// Starts it, and offers the plans.
    pub fn run(self, plans: &[Plan]) -> Result<Run> {
        let Guarded {
            guard, capacity, ..
        } = self;
        let files = Setup::write(Kind::Pool, guard, capacity)?;
        let bed = slow_servers::open()?;
        slow_servers::add_clients(&bed, GREEDY)?;
        let mut server = Server::start(&bed, &files.spec)?;
        slow_servers::await_answer(&bed.clients, target())?;
        setup::set(&bed, guard, capacity)?;
        let lay = |per_s| Flood::lay(&bed.server, bed.layout, (SERVER_VETH_V4, PORT), per_s);
        let flood = self.flood_per_s.map(lay).transpose()?;
        let mut in_force = InForce::start(&bed, &setup::policy(guard), self.weir, PORT)?;
        if let Some(class) = guard.class() {
            in_force.command(&class)?;
        }
        let session = server.session();
        let ((outcomes, cpu), unsent) =
            flood::beside(flood.as_ref(), || offer(&bed, session, plans))?;
        server.check_alive()?;
        in_force.check_alive()?;
        in_force.end()?;
        Ok(Run {
            outcomes,
            cpu,
            unsent,
        })
    }
}

/// The load, on the clients' CPU, and what the server's CPU did in the steps that count.
fn offer(bed: &Bed, session: u32, plans: &[Plan]) -> Result<(Vec<Outcome>, Cpu)> {
    let cpu = bed.layout.server_cpu;
    let read = || Ok::<_, Error>((Spare::read(cpu)?, Ticks::read(cpu, session)?));
    let step = plans.first().map_or(Duration::ZERO, |plan| plan.step);
    let (first, last) = (step, step * STEPS as u32);
    std::thread::scope(|scope| {
        let load = |plan| {
            scope.spawn(move || {
                bed.clients.run_on(Some(bed.layout.client_cpu), || {
                    clients::run(plan, &mut |_| {})
                })
            })
        };
        let loads: Vec<_> = plans.iter().map(load).collect();
        let begun = Instant::now();
        let mut edges = Vec::new();
        while loads.iter().any(|load| !load.is_finished()) {
            std::thread::sleep(LOOK);
            let due = [first, last].get(edges.len()).copied();
            if due.is_some_and(|due| begun.elapsed() >= due) {
                edges.push(read()?);
            }
        }
        let outcomes = loads.into_iter().map(|load| match load.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let outcomes = outcomes.collect::<Result<Vec<Outcome>>>()?;
        // The last client may have had its fate just before.
        let end = edges.get(1).copied().map_or_else(read, Ok)?;
        let begin = edges.first().copied().unwrap_or_default();
        let cpu = Cpu {
            used: 1.0 - end.0.share_since(&begin.0),
            taken: end.1.taken_by_others_since(&begin.1),
        };
        Ok((outcomes, cpu))
    })
}
