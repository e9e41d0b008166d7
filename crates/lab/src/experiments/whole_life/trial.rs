//! One measurement of a row: all that runs, and all that comes.
//!
//! ```text
//!   near namespace (clients, the clients' weir)          far namespace (the server's machine)
//!   gold, silver, bronze  ─┐                        ┌─▶ [weir run] ─▶ :80 weir proxy ─▶ 127.0.0.1:8080 pool
//!   strangers             ─┼─▶ link0 ═ slow link ═ link0
//!   readers of transfers  ◀┘                        └── :9000 source of the transfers
//!                                                    flood0 ◀── SYNs from 172.16.0.0/12
//! ```
//!
//! Proxy, pool and the receive work of the server's packets share one CPU; clients and flood have the other.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bulk::Bulk;
use super::rows::Row;
use super::site::{
    BACKLOG, BODY_BYTES, CAPACITY_PER_S, DEVICE, HELD, POOL_PORT, SERVICE_US, SITE, TRANSFERS,
    WORKERS, link,
};
use super::strangers::{self, Strangers};
use crate::bed::Layout;
use crate::cpu::Spare;
use crate::error::Result;
use crate::experiments::flood::{self, Flood};
use crate::experiments::slow_servers;
use crate::interrupt;
use crate::link::Emulated;
use crate::link::report::Report;
use crate::load::clients::{self, Outcome, Plan};
use crate::process::Usage;
use crate::server::pool::{Occupation, Record, realtime};
use crate::server::{Server, ServerProgram, Spec, sockets_in_state};
use crate::weir::Weir;

/// Steps of the load, of which the first is not counted: meanwhile the queues fill.
pub const STEPS: usize = 3;
const LOOK: Duration = Duration::from_millis(250);
/// States of a socket as /proc/net/tcp has them: the client has sent its FIN, the server has not.
const CLOSE_WAIT: &[u8] = &[0x08];
const TIME_WAIT: &[u8] = &[0x06];
/// Lest two kinds of clients come at the same moments: seeds of two runs are not so far apart.
const SEEDS_APART: u64 = 1 << 32;

/// How clients come.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Length of a step.
    pub step: Duration,
    /// How long clients wait.
    pub patience: Duration,
    /// SYNs/s of the flood.
    pub flood_per_s: f64,
    /// Seed of everything random.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Measured {
    /// Of each class, the highest first.
    pub classes: Vec<Outcome>,
    /// Of those who want no reply.
    pub strangers: Strangers,
    /// What was seen at the server in the steps that count.
    pub watched: Watched,
    /// When the pool accepted connections.
    pub accepts: Vec<Record>,
    /// What the link has counted, from the beginning on.
    pub link: Report,
    /// Share of the flood that was not sent.
    pub unsent: f64,
    /// `weir status --json` of the guard at the end of the load.
    pub status: Option<Value>,
}

/// What was seen at the server.
#[derive(Debug, Default)]
pub struct Watched {
    /// Begin and end, since 1970.
    pub window: (Duration, Duration),
    /// Share of the server's CPU that was used, by whatever.
    pub server_cpu: f64,
    /// CPU that the programs of weir used, in parts of one CPU: the proxy, and `weir run` at the server. What the kernel
    /// does for packets is not in it, mostly.
    pub weir_cpu: f64,
    /// Connections of the proxy's port whose client has sent its FIN and whose server has not: the mean of all looks.
    pub half_closed: f64,
    /// Connections of the proxy's port in TIME-WAIT at the end.
    pub time_wait: f64,
    /// Bytes of the transfers that clients received.
    pub bulk_bytes: u64,
}

/// Measures a row.
pub fn measure(row: Row, pace: Pace, weir: Option<&Path>) -> Result<Measured> {
    let layout = Layout::of_this_machine();
    let bed = Emulated::start(link(pace.seed))?;
    for (netns, cpu) in [
        (&bed.far, layout.server_cpu),
        (&bed.near, layout.client_cpu),
    ] {
        netns.steer_receive_work(DEVICE, cpu)?;
    }
    let mut pool = Server::start_in(&bed.far, layout.server_cpu, &pool())?;
    let config = row.config();
    let mut proxy = Weir::proxy(&bed.far, layout.server_cpu, weir, &config)?;
    slow_servers::await_answer(&bed.near, SITE.into())?;
    let at_server = row.has_guard();
    let mut guard = at_server
        .then(|| Weir::run(&bed.far, weir, &config))
        .transpose()?;
    let mut at_clients = row
        .clients_config()
        .map(|config| Weir::run(&bed.near, weir, config))
        .transpose()?;
    let flood = Flood::lay(&bed.far, layout, SITE, pace.flood_per_s)?;
    let bulk = Bulk::start(&bed, layout, TRANSFERS)?;
    let guard_pid = guard.as_ref().map(Weir::pid);
    let server = AtServer {
        cpu: layout.server_cpu,
        programs: guard_pid.into_iter().chain([proxy.pid()]).collect(),
        bulk: &bulk,
    };
    let (come, unsent) = flood::beside(Some(&flood), || come(&bed, layout, pace, &server))?;
    bulk.stop()?;
    pool.check_alive()?;
    proxy.check_alive()?;
    for weir in [&mut guard, &mut at_clients].into_iter().flatten() {
        weir.check_alive()?;
    }
    let status = guard.as_ref().map(Weir::status).transpose()?;
    for weir in [guard, at_clients].into_iter().flatten() {
        weir.end()?;
    }
    let accepts = pool.records()?;
    // What the proxy still has would drain for long.
    drop((proxy, pool, flood));
    Ok(Measured {
        classes: come.classes,
        strangers: come.strangers,
        watched: come.watched,
        accepts,
        link: bed.stop()?,
        unsent,
        status,
    })
}

fn pool() -> Spec {
    Spec {
        program: ServerProgram::Pool {
            workers: WORKERS,
            service_us: SERVICE_US,
            occupation: Occupation::Wait,
            body_bytes: BODY_BYTES,
            listeners: 1,
        },
        port: POOL_PORT,
        backlog: BACKLOG,
    }
}

/// What is watched at the server.
struct AtServer<'a> {
    cpu: usize,
    /// Processes of weir.
    programs: Vec<u32>,
    bulk: &'a Bulk,
}

impl AtServer<'_> {
    fn edge(&self) -> Result<Edge> {
        let usage = self.programs.iter().map(|pid| Usage::of(*pid));
        Ok(Edge {
            at: realtime(),
            spare: Spare::read(self.cpu)?,
            weir: usage.sum::<Result<Usage>>()?,
            bulk_bytes: self.bulk.received(),
        })
    }
}

/// What is read at each edge of the steps that count.
struct Edge {
    /// Since 1970.
    at: Duration,
    spare: Spare,
    weir: Usage,
    bulk_bytes: u64,
}

/// What came of those who came.
struct Come {
    classes: Vec<Outcome>,
    strangers: Strangers,
    watched: Watched,
}

/// All clients at the same time, and a look at the server meanwhile.
fn come(bed: &Emulated, layout: Layout, pace: Pace, server: &AtServer<'_>) -> Result<Come> {
    let length = pace.step * STEPS as u32;
    let plans = plans(pace);
    let cpu = Some(layout.client_cpu);
    std::thread::scope(|scope| {
        let classes: Vec<_> = plans
            .iter()
            .map(|plan| {
                let load = || clients::run(plan, &mut |_| {});
                scope.spawn(move || bed.near.run_on(cpu, load))
            })
            .collect();
        let strangers = scope.spawn(move || {
            let seed = pace.seed.wrapping_sub(SEEDS_APART);
            let run = || strangers::run(length, pace.patience, seed);
            bed.near.run_on(cpu, run)
        });
        let watched = watch(bed, pace.step, server);
        Ok(Come {
            classes: classes.into_iter().map(joined).collect::<Result<_>>()?,
            strangers: joined(strangers)?,
            watched: watched?,
        })
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What the clients of each class do.
fn plans(pace: Pace) -> Vec<Plan> {
    let seeds = (0u64..).map(|number| pace.seed.wrapping_add(number * SEEDS_APART));
    let plan = |(class, seed): (&super::site::Class, u64)| Plan {
        target: SocketAddr::from(SITE),
        request: clients::request("site", "/", false),
        rates_per_s: vec![class.offered * CAPACITY_PER_S; STEPS],
        step: pace.step,
        together: false,
        patience: pace.patience,
        stay: None,
        sources: Some(class.from),
        seed,
    };
    HELD.iter().zip(seeds).map(plan).collect()
}

/// Looks at the server from the second step on until the last is over.
fn watch(bed: &Emulated, step: Duration, server: &AtServer<'_>) -> Result<Watched> {
    let begun = Instant::now();
    let wait_until = |at: Duration| std::thread::sleep(at.saturating_sub(begun.elapsed()));
    let in_state = |states| {
        let count = bed.far.run(|| sockets_in_state(states, Some(SITE.1)));
        count.map(|count| count as f64)
    };
    wait_until(step);
    let first = server.edge()?;
    let mut looks = Vec::new();
    for at in (1..).map(|number| step + LOOK * number) {
        if at > step * STEPS as u32 {
            break;
        }
        wait_until(at);
        interrupt::check()?;
        looks.push(in_state(CLOSE_WAIT)?);
    }
    let last = server.edge()?;
    let length = (last.at - first.at).as_secs_f64();
    Ok(Watched {
        window: (first.at, last.at),
        server_cpu: 1.0 - last.spare.share_since(&first.spare),
        weir_cpu: last.weir.since(&first.weir).cpu.as_secs_f64() / length,
        half_closed: looks.iter().sum::<f64>() / looks.len().max(1) as f64,
        time_wait: in_state(TIME_WAIT)?,
        bulk_bytes: last.bulk_bytes - first.bulk_bytes,
    })
}
