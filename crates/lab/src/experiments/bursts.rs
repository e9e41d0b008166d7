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
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, connect, getsockopt, recv, setsockopt,
    socket, sockopt,
};

use super::point::{OpenLoop, ServerArgs};
use super::policy::{InForce, Policy};
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::client::new_histogram;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::poll::{INPUT, Poll};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn};
use crate::run::results::{
    Case, Claim, Facts, Parameters, Results, Sample, Show, add_times, parameters,
};
use crate::server::{Server, ServerProgram};
use crate::show::format::count;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "bursts",
    "Are reservations exact when more clients connect at once, from every CPU, than the listen queue has places?",
)
.source("SB06 Section VI-B")
.flags(
    "--bursts 10000 --size 256 --backlog 64 --policies \"reserv rst-syn\"",
    "--bursts 20 --size 128 --policies \"default,reserv rst-syn\"",
)];

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
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
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
        Ok(Box::new(Bursts {
            args: self,
            weir: program.weir.clone(),
            bed: None,
        }))
    }
}

struct Bursts {
    args: Args,
    weir: Option<PathBuf>,
    bed: Option<OpenLoop>,
}

impl Experiment for Bursts {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |policy: &Policy| parameters([("policy", policy.label.clone())]);
        vec![self.args.policies.iter().map(case).collect()]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let args = &self.args;
        let server = ServerArgs {
            server: ServerProgram::Greeter {
                work_us: args.work_us,
            },
            port: args.port,
            backlog: args.backlog,
            work_us: args.work_us,
        };
        let bed = server.open(self.weir.clone())?;
        facts.insert("server".into(), bed.server.describe().into());
        facts.insert(
            "load".into(),
            format!("{} bursts of {}", args.bursts, args.size).into(),
        );
        self.bed = Some(bed);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let policy = super::policy::of_case(&self.args.policies, case)?;
        let OpenLoop {
            bed, server: spec, ..
        } = self.bed.as_ref().expect("opened first");
        let mut server = Server::start(bed, spec)?;
        let mut in_force = InForce::start(bed, policy, self.weir.as_deref(), spec.port)?;
        let before = bed.counters()?;
        let begun = Instant::now();
        let seen = burst_from_all_cpus(&self.args, bed)?;
        let seconds = begun.elapsed().as_secs_f64();
        let delta = bed.counters()?.since(&before);
        server.check_alive()?;
        in_force.check_alive()?;
        in_force.end()?;
        let mut sample = Sample::of([
            ("connects", seen.connects as f64),
            ("served", seen.served as f64),
            ("refused", seen.refused_us.len() as f64),
            ("false_establishments", seen.false_establishments as f64),
            ("unanswered", seen.unanswered as f64),
            (
                "listen_overflows",
                delta.get("TcpExt.ListenOverflows") as f64,
            ),
            ("listen_drops", delta.get("TcpExt.ListenDrops") as f64),
            ("seconds", seconds),
        ]);
        add_times(&mut sample, "refusal", &seen.refused_us);
        add_times(&mut sample, "connect", &seen.connect_us);
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let reserves = |case: &&Case| case.parameter("policy").starts_with("reserv");
        let claims = [
            (
                "a reservation lets the listen queue never overflow",
                "listen_overflows",
            ),
            (
                "no client of a reservation believes in a connection that the server never gets",
                "false_establishments",
            ),
        ];
        let about = |case| {
            claims.map(|(claim, metric)| Claim::about(claim, case, metric, |n| n.range.1 == 0.0))
        };
        results
            .cases
            .iter()
            .filter(reserves)
            .flat_map(about)
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("policy", "{policy}"),
            ("connects", "{connects|n}"),
            ("served", "{served|n}"),
            ("refused", "{refused|n}"),
            ("false est.", "{false_establishments|n}"),
            ("unanswered", "{unanswered|n}"),
            ("overflows", "{listen_overflows|n}"),
            ("drops", "{listen_drops|n}"),
            ("refused in p50 ms", "{refusal_p50_ms|.3}"),
            ("p99", "{refusal_p99_ms|.3}"),
            ("p99.9", "{refusal_p999_ms|.3}"),
            ("max", "{refusal_max_ms|ms}"),
            ("seconds", "{seconds|.1}"),
        ])
    }
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
    let mut poll = Poll::new()?;
    let mut clients: Vec<Option<Client>> = Vec::with_capacity(share);
    for index in 0..share {
        let client = begin(args.port, seen)?;
        if let Some(client) = &client {
            poll.watch(&client.fd, index as u64, INPUT | EpollFlags::EPOLLOUT)?;
        }
        clients.push(client);
    }
    let give_up = Instant::now() + Duration::from_millis(args.give_up_ms);
    let mut open = clients.iter().flatten().count();
    while open > 0 {
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = EpollTimeout::from(left.as_millis().clamp(1, 1000) as u16);
        for event in 0..poll.wait(timeout)? {
            let slot = &mut clients[poll.key(event) as usize];
            let over = slot
                .as_mut()
                .is_some_and(|client| advance(client, event, &poll, seen));
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

/// Takes an event, by its number; returns whether the connection's fate is known.
fn advance(client: &mut Client, event: usize, poll: &Poll, seen: &mut Seen) -> bool {
    if !client.connected {
        match socket_error(&client.fd) {
            Ok(Some(Errno::ECONNREFUSED)) => {
                seen.refused_us.saturating_record(elapsed_us(client.begun));
                return true;
            }
            Ok(None) if poll.says(event).contains(EpollFlags::EPOLLOUT) => {
                seen.connect_us.saturating_record(elapsed_us(client.begun));
                client.connected = true;
                // Failing, the socket only reports more often than needed.
                let _ = poll.change(&client.fd, poll.key(event), INPUT);
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
