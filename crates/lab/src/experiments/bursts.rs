//! Bursts of real sockets: more connect() calls at once, from every CPU, than the listen queue has
//! places. Shows whether a reservation is exact: no overflow, no client that believes in a connection
//! which the server never gets.
//!
//! The clients are in the client namespace, one thread a CPU. A SYN over veth is received on the
//! CPU that sends it, so the server's kernel decides about them on all CPUs at once. The server
//! greets each connection that it accepts with one byte; a connection without that byte, or with a
//! RST, was a false establishment.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, connect, getsockopt, recv, setsockopt,
    socket, sockopt,
};
use serde::Serialize;

use super::flash_crowd::ServerArgs;
use super::policy::{InForce, Policy};
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::client::new_histogram;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::report::{Times, count, ms, table};
use crate::server::{Program, Server, Spec};

/// Descriptors that clients of one burst may use; the limit of a process is 20 000 on the test machines.
const MAX_SIZE: usize = 18_000;

/// Arguments of `weir-lab bursts`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of bursts
    #[arg(long, default_value_t = 1000)]
    pub bursts: usize,
    /// Connections begun at once in each
    #[arg(long, default_value_t = 256)]
    pub size: usize,
    /// Length of the server's listen queue
    #[arg(long, default_value_t = 64)]
    pub backlog: u32,
    /// Policies, separated by commas (words as for flash-crowd)
    #[arg(long, default_value = "default,reserv rst-syn", value_parser = super::policy::parse_list)]
    pub policies: std::vec::Vec<Policy>,
    /// CPU time that the server spends on each connection, in µs
    #[arg(long, default_value_t = 20)]
    pub work_us: u32,
    /// How long an answer is waited for in each burst, in ms
    #[arg(long, default_value_t = 500)]
    pub give_up_ms: u64,
    /// Port on which the server listens
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<std::path::PathBuf>,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What became of all connections of all bursts under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The policy's words.
    pub policy: String,
    /// Bursts.
    pub bursts: usize,
    /// connect() calls.
    pub connects: u64,
    /// Greeted by the server.
    pub served: u64,
    /// ECONNREFUSED.
    pub refused: u64,
    /// connect() succeeded, but the server never greeted: RST, end, or silence.
    pub false_establishments: u64,
    /// connect() neither succeeded nor failed in time: the SYN was dropped.
    pub unanswered: u64,
    /// connect() to ECONNREFUSED.
    pub refusal: Times,
    /// connect() to its success, as far as the client, which begins others meanwhile, could see it.
    pub connect: Times,
    /// TcpExt.ListenOverflows of the server namespace.
    pub listen_overflows: i64,
    /// TcpExt.ListenDrops of the server namespace.
    pub listen_drops: i64,
    /// Duration of all bursts.
    pub seconds: f64,
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.size == 0 || self.size > MAX_SIZE {
            let cause = format!("it must be 1 to {MAX_SIZE} (descriptors)");
            return Err(Error::usage(format!("bad --size {}", self.size), cause));
        }
        if self.bursts == 0 || self.give_up_ms == 0 {
            return Err(Error::usage(
                "bad --bursts or --give-up-ms",
                "they must be above 0",
            ));
        }
        Ok(())
    }
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let outcomes = measure(args)?;
    if args.json {
        let json = serde_json::to_string_pretty(&outcomes).context("cannot write JSON")?;
        println!("{json}");
    } else {
        print!("{}", outcome_table(&outcomes));
    }
    Ok(())
}

/// All policies, one after the other.
pub fn measure(args: &Args) -> Result<Vec<Outcome>> {
    args.check()?;
    let server_args = ServerArgs {
        server: Program::Greeter {
            work_us: args.work_us,
        },
        port: args.port,
        backlog: args.backlog,
        work_us: args.work_us,
        weir: args.weir.clone(),
    };
    let stage = server_args.stage()?;
    args.policies
        .iter()
        .map(|policy| measure_policy(args, &stage.bed, &stage.server, policy))
        .collect()
}

fn measure_policy(args: &Args, bed: &Bed, spec: &Spec, policy: &Policy) -> Result<Outcome> {
    eprintln!(
        "weir-lab: {} bursts of {} against {}: {}",
        args.bursts,
        args.size,
        spec.describe(),
        policy.label
    );
    let mut server = Server::start(bed, spec)?;
    let mut in_force = InForce::start(bed, policy, args.weir.as_deref(), spec.port)?;
    let before = bed.counters()?;
    let begun = Instant::now();
    let seen = burst_from_all_cpus(args, bed)?;
    let seconds = begun.elapsed().as_secs_f64();
    let delta = bed.counters()?.since(&before);
    server.check_alive()?;
    in_force.check_alive()?;
    in_force.end()?;
    Ok(Outcome {
        policy: policy.label.clone(),
        bursts: args.bursts,
        connects: seen.connects,
        served: seen.served,
        refused: seen.refused_us.len(),
        false_establishments: seen.false_establishments,
        unanswered: seen.unanswered,
        refusal: Times::of(&seen.refused_us),
        connect: Times::of(&seen.connect_us),
        listen_overflows: delta.get("TcpExt.ListenOverflows"),
        listen_drops: delta.get("TcpExt.ListenDrops"),
        seconds,
    })
}

/// A thread's counts.
struct Seen {
    connects: u64,
    served: u64,
    false_establishments: u64,
    unanswered: u64,
    refused_us: Histogram<u64>,
    connect_us: Histogram<u64>,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            connects: 0,
            served: 0,
            false_establishments: 0,
            unanswered: 0,
            refused_us: new_histogram(),
            connect_us: new_histogram(),
        }
    }

    fn add(mut self, other: Seen) -> Result<Seen> {
        self.connects += other.connects;
        self.served += other.served;
        self.false_establishments += other.false_establishments;
        self.unanswered += other.unanswered;
        self.refused_us
            .add(other.refused_us)
            .context("cannot join histograms")?;
        self.connect_us
            .add(other.connect_us)
            .context("cannot join histograms")?;
        Ok(self)
    }
}

fn burst_from_all_cpus(args: &Args, bed: &Bed) -> Result<Seen> {
    let cpus = bed.layout.server_cpu + 1;
    let barrier = Barrier::new(cpus);
    let stop = AtomicBool::new(false);
    let results: Vec<Result<Seen>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| {
                let (barrier, stop) = (&barrier, &stop);
                let share = args.size / cpus + usize::from(cpu < args.size % cpus);
                scope.spawn(move || {
                    bed.clients.run_on(Some(cpu), || {
                        Ok(burst_loop(args, share, cpu == 0, barrier, stop))
                    })?
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("burst threads do not panic"))
            .collect()
    });
    results
        .into_iter()
        .try_fold(Seen::new(), |sum, result| sum.add(result?))
}

/// All bursts of one thread. A thread that fails goes on meeting the others at the barrier, so that
/// none waits for ever, until all see the stop flag in the same round.
fn burst_loop(
    args: &Args,
    share: usize,
    leads: bool,
    barrier: &Barrier,
    stop: &AtomicBool,
) -> Result<Seen> {
    let mut seen = Seen::new();
    let mut failed = None;
    for burst in 0..args.bursts {
        if leads && interrupt::interrupted() {
            stop.store(true, Ordering::SeqCst);
        }
        barrier.wait();
        if stop.load(Ordering::SeqCst) {
            break;
        }
        // Nobody may set the flag before everybody has read it.
        barrier.wait();
        if let Err(error) = one_burst(args, share, &mut seen) {
            failed = Some(error);
            stop.store(true, Ordering::SeqCst);
        }
        if leads && (burst + 1) % 1000 == 0 {
            eprintln!("  {} bursts", count((burst + 1) as f64));
        }
    }
    match failed {
        Some(error) => Err(error),
        None => interrupt::check().map(|()| seen),
    }
}

/// One client socket.
struct Client {
    fd: OwnedFd,
    begun: Instant,
    connected: bool,
}

fn one_burst(args: &Args, share: usize, seen: &mut Seen) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot create an epoll")?;
    let mut clients: Vec<Option<Client>> = Vec::with_capacity(share);
    for index in 0..share {
        let client = begin(args.port, seen)?;
        if let Some(client) = &client {
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT, index as u64);
            epoll
                .add(&client.fd, event)
                .context("cannot watch a client socket")?;
        }
        clients.push(client);
    }
    let give_up = Instant::now() + Duration::from_millis(args.give_up_ms);
    let mut open = clients.iter().flatten().count();
    let mut events = [EpollEvent::empty(); 128];
    while open > 0 {
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = EpollTimeout::from(left.as_millis().clamp(1, 1000) as u16);
        let ready = match epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            ready => ready.context("cannot wait for client sockets")?,
        };
        for event in &events[..ready] {
            let slot = &mut clients[event.data() as usize];
            let over = slot
                .as_mut()
                .is_some_and(|client| advance(client, event, &epoll, seen));
            if over {
                *slot = None;
                open -= 1;
            }
        }
    }
    for client in clients.iter().flatten() {
        seen.false_establishments += u64::from(client.connected);
        seen.unanswered += u64::from(!client.connected);
    }
    Ok(())
}

/// Begins a connection; `None` if it was refused at once. Over veth the answer has usually come
/// before connect() returns, so its time is taken here and not when all others have begun.
fn begin(port: u16, seen: &mut Seen) -> Result<Option<Client>> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .context("cannot create a client socket")?;
    // Closing with RST leaves no TIME_WAIT, so that ports never run out.
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&fd, sockopt::Linger, &linger).context("cannot set SO_LINGER")?;
    let target = SockaddrIn::from(SocketAddrV4::new(SERVER_VETH_V4, port));
    seen.connects += 1;
    let begun = Instant::now();
    let refused = match connect(fd.as_raw_fd(), &target) {
        Ok(()) | Err(Errno::EINPROGRESS) => socket_error(&fd)? == Some(Errno::ECONNREFUSED),
        Err(Errno::ECONNREFUSED) => true,
        Err(error) => return Err(Error::failed(format!("cannot connect to {target}"), error)),
    };
    if refused {
        seen.refused_us.saturating_record(elapsed_us(begun));
        return Ok(None);
    }
    Ok(Some(Client {
        fd,
        begun,
        connected: false,
    }))
}

/// Takes an event; returns whether the connection's fate is known.
fn advance(client: &mut Client, event: &EpollEvent, epoll: &Epoll, seen: &mut Seen) -> bool {
    if !client.connected {
        match socket_error(&client.fd) {
            Ok(Some(Errno::ECONNREFUSED)) => {
                seen.refused_us.saturating_record(elapsed_us(client.begun));
                return true;
            }
            Ok(None) if event.events().contains(EpollFlags::EPOLLOUT) => {
                seen.connect_us.saturating_record(elapsed_us(client.begun));
                client.connected = true;
                let mut input = EpollEvent::new(EpollFlags::EPOLLIN, event.data());
                // Failing, the socket only reports more often than needed.
                let _ = epoll.modify(&client.fd, &mut input);
            }
            // A RST after the SYN/ACK that came before we looked.
            Ok(Some(Errno::ECONNRESET | Errno::EPIPE)) => {
                seen.false_establishments += 1;
                return true;
            }
            _ => return false,
        }
    }
    let mut byte = [0];
    match recv(client.fd.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT) {
        Ok(1) => seen.served += 1,
        Err(Errno::EAGAIN | Errno::EINTR) => return false,
        _ => seen.false_establishments += 1,
    }
    true
}

fn socket_error(fd: &OwnedFd) -> Result<Option<Errno>> {
    let number = getsockopt(fd, sockopt::SocketError).context("cannot read SO_ERROR")?;
    Ok((number != 0).then(|| Errno::from_raw(number)))
}

fn elapsed_us(begun: Instant) -> u64 {
    (begun.elapsed().as_micros() as u64).max(1)
}

fn outcome_table(outcomes: &[Outcome]) -> String {
    let head = [
        "policy",
        "connects",
        "served",
        "refused",
        "false est.",
        "unanswered",
        "overflows",
        "drops",
        "refused in p50 ms",
        "p99",
        "p99.9",
        "max",
        "seconds",
    ];
    let row = |outcome: &Outcome| {
        let n = |value: u64| count(value as f64);
        vec![
            outcome.policy.clone(),
            n(outcome.connects),
            n(outcome.served),
            n(outcome.refused),
            n(outcome.false_establishments),
            n(outcome.unanswered),
            count(outcome.listen_overflows as f64),
            count(outcome.listen_drops as f64),
            format!("{:.3}", outcome.refusal.p50_ms),
            format!("{:.3}", outcome.refusal.p99_ms),
            format!("{:.3}", outcome.refusal.p999_ms),
            ms(outcome.refusal.max_ms),
            format!("{:.1}", outcome.seconds),
        ]
    };
    table(&head, &outcomes.iter().map(row).collect::<Vec<_>>())
}
