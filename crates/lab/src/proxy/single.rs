//! One contender between many clients and the origin, on a bed of its own.

use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;

use super::bed::{Bed, LINK_MBIT, Link, ORIGIN, Receive};
use super::contender::{Capacity, Contender, ProxyMode, Running, Setting};
use super::many::{Clients, Demand, Origins, Task};
use super::sockets::SocketMemory;
use crate::bed::Layout;
use crate::error::{Error, Result};
use crate::process::{self, Holdings};

const ORIGIN_PORT: u16 = 8080;
/// With less memory left on the machine, in bytes, nothing more is tried.
const LEAST_AVAILABLE: u64 = 6 << 30;

/// A contender that runs, with its origin. Removed on drop, in this order.
#[derive(Debug)]
pub struct SingleProxy {
    /// The contender.
    pub running: Running,
    /// Processes that it was given; weir's have one thread each, as HAProxy's and nginx's.
    pub processes: usize,
    mode: ProxyMode,
    _origins: Origins,
    bed: Bed,
}

/// What it all holds at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Snapshot {
    /// The contender's processes.
    #[serde(flatten)]
    pub holdings: Holdings,
    /// TCP's queues.
    #[serde(flatten)]
    pub sockets: SocketMemory,
}

impl SingleProxy {
    /// Starts all, for so many connections of clients. The contender has as many processes as it takes to hold
    /// them as tunnels.
    pub fn build(
        contender: Contender,
        mode: ProxyMode,
        connections: usize,
        weir: Option<&Path>,
    ) -> Result<SingleProxy> {
        let bed = Bed::build(
            Layout::of_this_machine(),
            Link::Card,
            Receive::AtOnce,
            LINK_MBIT,
        )?;
        let origins = Origins::open(&bed.origin, bed.layout.client_cpu, ORIGIN_PORT, connections)?;
        let processes = connections.div_ceil(Capacity::MANY.maxconn).max(1);
        let setting = Setting {
            modes: &[mode],
            origin: SocketAddr::from((ORIGIN, ORIGIN_PORT)),
            weir,
            processes,
            capacity: Capacity::MANY,
            cache: None,
            connect_timeout: None,
        };
        Ok(SingleProxy {
            running: Running::start(&bed.proxy, bed.layout.server_cpu, contender, &setting)?,
            processes,
            mode,
            _origins: origins,
            bed,
        })
    }

    /// So many clients that have connected and asked for `bytes`.
    pub fn connect(&self, count: usize, bytes: usize, demand: Demand) -> Result<Clients> {
        let task = Task {
            target: self.running.contender.address(self.mode),
            bytes,
            demand,
        };
        Clients::connect(&self.bed.client, self.bed.layout.client_cpu, count, task)
    }

    /// What is held now.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.running.check_alive()?;
        Ok(Snapshot {
            holdings: self.running.holdings()?,
            sockets: SocketMemory::read(&self.bed.proxy)?,
        })
    }
}

/// Fails before the machine runs out of memory.
pub fn check_memory() -> Result<u64> {
    let available = process::available_bytes()?;
    if available >= LEAST_AVAILABLE {
        return Ok(available);
    }
    let cause = format!("{} MiB are available", available >> 20);
    Err(Error::failed("stopped before memory runs out", cause).hint("ask for fewer connections"))
}
