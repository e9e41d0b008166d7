//! QUIC servers under test, on the server's CPU of a bed, and programs that are their clients.
//!
//! nginx, HAProxy and Caddy are those of Debian 13, because older builds speak no QUIC; [`debian`] makes the system that they run
//! in. The quinn server is the test bed's own, whose time for a connection is known.

pub mod clients;
pub mod debian;
mod go;
mod programs;
pub mod watch;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_testbed::quic::{Crowd, QuicServer, QuicServerKind, Request};

use crate::bed::{Bed, SERVER_VETH_V4};
use crate::error::{Error, Result};
use crate::{cpu, interrupt};
pub use programs::{PORT, Program};

/// A server answers so long after its start, at the latest.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// One client waits so long whether it does.
const TRIAL: Duration = Duration::from_millis(500);

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// The test bed's own, which queues inside itself and takes 2 ms for each new connection
    Quinn,
    /// The same, which queues in its UDP socket
    QuinnSocket,
    /// That one with a receive buffer of 1 MiB
    #[value(name = "quinn-socket-1m")]
    QuinnSocket1M,
    /// nginx of Debian 13, one worker
    Nginx,
    /// The same, which serves over TCP too
    NginxWeb,
    /// HAProxy of Debian 13, one thread
    Haproxy,
    /// Caddy of Debian 13, whose QUIC is an old quic-go
    Caddy,
    /// A Go program on a newer quic-go
    QuicGo,
}

/// What HAProxy's own limit lets be under way.
const HAPROXY_BACKLOG: u32 = 32;

/// Time that the quinn server takes for a new connection: about that of an RSA signature, which the others make.
const SERVICE: Duration = Duration::from_millis(2);
/// The kernel's default (net.core.rmem_default) by SO_RCVBUF, which the kernel doubles.
const RECEIVE_BUFFER_BYTES: usize = 212_992 / 2;

impl Kind {
    /// What a client of it asks.
    pub fn request(self) -> Request {
        match self {
            Kind::Quinn | Kind::QuinnSocket | Kind::QuinnSocket1M => Request::echo(b"GET /"),
            Kind::Nginx | Kind::NginxWeb | Kind::Haproxy | Kind::Caddy | Kind::QuicGo => {
                Request::http3_get_root("localhost")
            }
        }
    }

    /// Whether the server has a limit of its own against a crowd of new connections: nginx `quic_retry`, HAProxy `backlog`.
    pub fn has_own_limit(self) -> bool {
        matches!(self, Kind::Nginx | Kind::Haproxy)
    }
}

/// A running server; ended when it is dropped.
#[derive(Debug)]
pub enum Server {
    /// In this process.
    Quinn(QuicServer),
    /// A program of Debian's.
    Program(Program),
}

impl Server {
    /// Starts a server on a bed, and waits until it answers. `systems`: where Debian 13 is kept.
    ///
    /// # Errors
    /// Unsupported where this machine cannot have the server.
    pub fn start(bed: &Bed, kind: Kind, systems: &Path) -> Result<Server> {
        Server::start_with(bed, kind, systems, false)
    }

    /// The same, with its [own limit](Kind::has_own_limit) if `limited`.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(bed: &Bed, kind: Kind, systems: &Path, limited: bool) -> Result<Server> {
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let quinn = |kind| {
            // The server's thread inherits the CPU of the one that starts it.
            let started = std::thread::scope(|scope| {
                let start = || {
                    cpu::pin_this_thread(bed.layout.server_cpu)?;
                    QuicServer::start(&bed.server, any, kind)
                };
                scope.spawn(start).join()
            });
            match started {
                Ok(server) => server.map(Server::Quinn),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        };
        let mut server = match kind {
            Kind::Quinn => quinn(QuicServerKind::QueuesInside { service: SERVICE })?,
            Kind::QuinnSocket => quinn(in_socket(RECEIVE_BUFFER_BYTES))?,
            Kind::QuinnSocket1M => quinn(in_socket((1 << 20) / 2))?,
            Kind::Nginx => {
                let root = debian::root(systems)?;
                Server::Program(Program::nginx(bed, &root, limited)?)
            }
            Kind::NginxWeb => {
                let root = debian::root(systems)?;
                Server::Program(Program::nginx_web(bed, &root, true)?)
            }
            Kind::Haproxy => {
                let backlog = limited.then_some(HAPROXY_BACKLOG);
                Server::Program(Program::haproxy(bed, &debian::root(systems)?, backlog)?)
            }
            Kind::Caddy => Server::Program(Program::caddy(bed, &debian::root(systems)?)?),
            Kind::QuicGo => Server::Program(Program::quic_go(bed, &debian::root(systems)?)?),
        };
        server.await_answer(bed, kind)?;
        Ok(server)
    }

    /// Fails with what it said if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self {
            Server::Quinn(_) => Ok(()),
            Server::Program(program) => program.check_alive(),
        }
    }

    fn await_answer(&mut self, bed: &Bed, kind: Kind) -> Result<()> {
        let one = Crowd {
            to: address(),
            per_second: 1.0,
            seconds: 1.0,
            timeout: TRIAL,
            request: Some(kind.request()),
        };
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            self.check_alive()?;
            let result = one.run(&bed.clients)?;
            if result.answered.len() == 1 {
                return Ok(());
            }
            if begun.elapsed() > READY_LIMIT {
                let what = format!("the server is not ready ({kind:?})");
                let cause = format!("no answer after {READY_LIMIT:?}; the last client: {result:?}");
                return Err(Error::failed(what, cause));
            }
            // Where nobody has the port yet, the client knows at once.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn in_socket(receive_buffer_bytes: usize) -> QuicServerKind {
    QuicServerKind::QueuesInSocket {
        service: SERVICE,
        receive_buffer_bytes,
    }
}

/// Where clients connect to.
pub fn address() -> SocketAddr {
    (SERVER_VETH_V4, PORT).into()
}
