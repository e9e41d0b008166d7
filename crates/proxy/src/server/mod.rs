//! A running proxy: its threads, each with its own listening socket and event loop.

mod date;
mod http;
mod inbox;
mod settings;
mod tcp;
mod visitor;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::proxy::{Mode, Proxy};

use crate::metrics::{BackendCounters, ListenerCounters};
use crate::runtime::{ListenOptions, TcpListener};
use crate::upstream::{self, Question};
use worker::Order;

/// A proxy that runs until it is [drained](Server::drain).
pub struct Server {
    shared: Shared,
    address: SocketAddr,
    threads: Vec<Thread>,
}

struct Thread {
    orders: crate::runtime::Sender<Order>,
    /// Taken by `join`.
    join: Option<JoinHandle<io::Result<()>>>,
    counters: Counters,
}

/// What all threads have.
#[derive(Clone)]
struct Shared {
    settings: Arc<Proxy>,
    /// Of mode forward.
    resolver: Option<mpsc::Sender<Question>>,
}

/// The counters of one thread.
#[derive(Debug, Clone)]
struct Counters {
    listener: Arc<ListenerCounters>,
    backends: Vec<Arc<BackendCounters>>,
}

/// Why a proxy cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// As bind(2) and listen(2).
        cause: io::Error,
    },
    /// A setting that this machine does not take.
    #[error("cannot use {key} = {value:?}: {cause}")]
    Setting {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// As bind(2) and setsockopt(2).
        cause: io::Error,
    },
    /// A setting that does not go with another.
    #[error("cannot use {key}: {cause}")]
    Conflict {
        /// Its key.
        key: &'static str,
        /// Why not.
        cause: &'static str,
    },
    /// The kernel refuses a thread, an epoll or an event descriptor.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        cause: io::Error,
    },
}

/// Sums of the counters, each with its name and text.
pub struct Totals {
    /// The clients' side.
    pub listener: Vec<Total>,
    /// Each backend with its address.
    pub backends: Vec<(SocketAddr, Vec<Total>)>,
}

/// One sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// The counter's name.
    pub name: &'static str,
    /// What it counts.
    pub text: &'static str,
    /// Over all threads.
    pub value: u64,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Server({}, {} threads)",
            self.address,
            self.threads.len()
        )
    }
}

impl Server {
    /// Listens, and starts the threads. Port 0 is any free port.
    ///
    /// # Errors
    /// The address is taken or not of this machine, settings do not go together or not with this
    /// machine, or the kernel is out of something.
    pub fn start(settings: Proxy) -> Result<Server, Error> {
        settings::check(&settings)?;
        let threads = thread_count(&settings);
        let (address, listeners) = listen(&settings, threads)?;
        let start_resolver = || {
            upstream::start_resolver().map_err(|cause| Error::System {
                what: "start the thread that looks names up",
                cause,
            })
        };
        let resolver = match settings.mode {
            Mode::Forward => Some(start_resolver()?),
            Mode::Reverse | Mode::Tcp => None,
        };
        let settings = Arc::new(settings);
        let mut server = Server {
            shared: Shared { settings, resolver },
            address,
            threads: Vec::new(),
        };
        for (index, listener) in listeners.into_iter().enumerate() {
            let thread = server
                .thread(index, listener)
                .map_err(|cause| Error::System {
                    what: "start a thread",
                    cause,
                })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    fn thread(&self, index: usize, listener: OwnedFd) -> io::Result<Thread> {
        let backends = self.shared.settings.backends.iter();
        let counters = Counters {
            listener: Arc::default(),
            backends: backends.map(|_| Arc::default()).collect(),
        };
        let (started, starting) = mpsc::sync_channel(1);
        let (shared, own) = (self.shared.clone(), counters.clone());
        let share = self
            .shared
            .settings
            .max_clients
            .div_ceil(thread_count(&self.shared.settings) as u32);
        let join = std::thread::Builder::new()
            .name(format!("weir-proxy-{index}"))
            .spawn(move || worker::run(shared, own, listener, share as usize, &started))?;
        match starting.recv() {
            Ok(orders) => Ok(Thread {
                orders,
                join: Some(join),
                counters,
            }),
            // It ended without having started: its result says why.
            Err(_) => Err(joined(join).err().unwrap_or(io::ErrorKind::Other.into())),
        }
    }

    /// Where it listens; with the port that was free, if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is to do.
    pub fn settings(&self) -> &Proxy {
        &self.shared.settings
    }

    /// Sums of all threads' counters.
    pub fn totals(&self) -> Totals {
        let listener = self.threads.iter().map(|thread| &*thread.counters.listener);
        let backend = |(index, address): (usize, &SocketAddr)| {
            let threads = self.threads.iter();
            let counters = threads.map(|thread| &*thread.counters.backends[index]);
            let values = counters.map(|counters| counters.values().collect());
            (*address, sum(BackendCounters::NAMES, values))
        };
        Totals {
            listener: sum(
                ListenerCounters::NAMES,
                listener.map(|counters| counters.values().collect()),
            ),
            backends: self
                .shared
                .settings
                .backends
                .iter()
                .enumerate()
                .map(backend)
                .collect(),
        }
    }

    /// Accepts no more connections, and gives those that are busy this long to finish.
    pub fn drain(&self, time: Duration) {
        for thread in &self.threads {
            thread.orders.send(Order::Drain(time));
        }
    }

    /// Whether every thread has ended.
    pub fn is_finished(&self) -> bool {
        let mut joins = self
            .threads
            .iter()
            .filter_map(|thread| thread.join.as_ref());
        joins.all(JoinHandle::is_finished)
    }

    /// Waits until every thread has ended, which they do once they are drained; then what they did.
    ///
    /// # Errors
    /// A thread's event loop had failed.
    pub fn join(mut self) -> Result<Totals, Error> {
        let mut end = Ok(());
        for thread in &mut self.threads {
            if let Some(join) = thread.join.take() {
                end = end.and(joined(join));
            }
        }
        end.map(|()| self.totals()).map_err(|cause| Error::System {
            what: "wait for events",
            cause,
        })
    }
}

fn joined(join: JoinHandle<io::Result<()>>) -> io::Result<()> {
    match join.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn sum(
    names: &[(&'static str, &'static str)],
    threads: impl Iterator<Item = Vec<u64>>,
) -> Vec<Total> {
    let mut totals: Vec<Total> = names
        .iter()
        .map(|(name, text)| Total {
            name,
            text,
            value: 0,
        })
        .collect();
    for values in threads {
        for (total, value) in totals.iter_mut().zip(values) {
            total.value += value;
        }
    }
    totals
}

fn thread_count(settings: &Proxy) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads as usize,
    }
}

/// A listening socket for each thread, all on one port.
fn listen(settings: &Proxy, threads: usize) -> Result<(SocketAddr, Vec<OwnedFd>), Error> {
    let options = ListenOptions {
        backlog: settings.backlog,
        // In tcp mode the server may be the one who speaks first.
        defer_accept: (settings.mode != Mode::Tcp || settings.accept_proxy)
            .then_some(settings.head_timeout),
        side: settings.client.clone(),
    };
    let mut address = settings.listen;
    let mut listeners = Vec::new();
    for _ in 0..threads {
        let open = || {
            let fd = TcpListener::open(address, &options)?;
            let local = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
            Ok((fd, local))
        };
        let (fd, local) = open().map_err(|cause| Error::Listen { address, cause })?;
        address = local;
        listeners.push(fd);
    }
    Ok((address, listeners))
}
