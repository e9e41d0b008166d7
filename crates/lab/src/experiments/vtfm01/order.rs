//! In which order a server accepts what has queued while it was stopped (FINDINGS, section 2).
//!
//! The server is stopped (SIGSTOP), 40 low, 20 middle and 20 high connections come in random order, and it goes
//! on. An inversion is a pair of which the lower class was accepted first. The kernel's FIFO has about half of
//! the 2000 possible ones; strict priority has none but those of connections that the server's own queue held
//! already, which no one can take back.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::closed::{ClosedLoop, PORT, WindowArgs, address, config, strict, target, unpoliced};
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{
    Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, Server, ServerProgram, Spec};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "vtfm01-order",
    "In which order does a server accept what has queued while it was stopped?",
)
.source("VTFM01 Section 3.2")
.flags("--rounds 5", "--connections 5,5,10")];

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const SERVICE_US: u32 = 1000;

/// Arguments of `weir-lab vtfm01 order`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Connections of the high, the middle and the low class
    #[arg(long, value_delimiter = ',', default_value = "20,20,40")]
    pub connections: Vec<usize>,
    /// Queues to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,priority"
    )]
    pub queues: Vec<Queue>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub window: WindowArgs,
}

/// Queues of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Queue {
    /// The kernel alone
    Fifo,
    /// weir's `queue = "priority"`
    Priority,
}

/// Pairs of which the lower class (the higher number) comes first.
pub fn inversions(classes: &[u8]) -> usize {
    let pairs = (0..classes.len()).flat_map(|i| (i + 1..classes.len()).map(move |j| (i, j)));
    pairs.filter(|&(i, j)| classes[i] > classes[j]).count()
}

/// Those that stand before one of a higher class.
fn out_of_order(classes: &[u8]) -> usize {
    let stands_before = |i: &usize| classes[i + 1..].iter().any(|class| *class < classes[*i]);
    (0..classes.len()).filter(stands_before).count()
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Order {
            args: self,
            program: program.clone(),
            bed: None,
        }))
    }
}

struct Order {
    args: Args,
    program: Program,
    bed: Option<ClosedLoop>,
}

impl Experiment for Order {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |queue: &Queue| parameters([("queue", word(queue))]);
        vec![self.args.queues.iter().map(case).collect()]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert("server".into(), spec(SERVICE_US).describe().into());
        self.bed = Some(ClosedLoop::build(&self.args.window, &self.program)?);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let arrived = arrivals(&self.args.connections, turn.seed);
        let bed = self.bed.as_ref().expect("opened first");
        let (accepted, _) = run_once(bed, &spec(SERVICE_US), chosen(case, "queue")?, &arrived)?;
        let mut sample = Sample::of([
            ("inversions", inversions(&accepted) as f64),
            ("out_of_order", out_of_order(&accepted) as f64),
        ]);
        let series = |classes: &[u8]| classes.iter().map(|&class| class.into()).collect();
        sample.series.insert(
            "position".into(),
            (1..=accepted.len()).map(|n| n as f64).collect(),
        );
        sample.series.insert("accepted".into(), series(&accepted));
        sample.series.insert("arrived".into(), series(&arrived));
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let claim =
            "with weir at most the connections that the server's own queue held are out of order";
        let of_weir = results
            .cases
            .iter()
            .filter(|case| case.parameter("queue") == "priority");
        of_weir
            .map(|case| Claim::about(claim, case, "out_of_order", |n| n.range.1 <= 2.0))
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("queue", "{queue}"),
            ("inversions", "{inversions:cell|n}"),
            ("connections out of order", "{out_of_order:cell|n}"),
        ])
        .picture(Picture {
            name: "order".into(),
            title: "Who is accepted first: classes (1 is the highest) in the order of accept()"
                .into(),
            panels: vec![Panel {
                title: "Class, {queue}".into(),
                x_title: "Position in the order of accept()".into(),
                x: "position".into(),
                y: vec![("accepted".into(), String::new())],
                lines: vec!["queue".into()],
                per: vec!["queue".into()],
                is_course: true,
                dots: true,
                ..Panel::default()
            }],
        })
    }
}

fn spec(service_us: u32) -> Spec {
    Spec {
        program: ServerProgram::Pool {
            workers: 1,
            service_us,
            occupation: Occupation::Spin,
            body_bytes: FILE_BYTES,
            listeners: 1,
        },
        port: PORT,
        backlog: super::closed::BACKLOG,
    }
}

/// What became of a few high connections behind a burst of low ones.
#[derive(Debug, Clone)]
pub struct Behind {
    /// Whose queue.
    pub queue: Queue,
    /// In which positions the high ones were accepted, from 1.
    pub positions: Vec<usize>,
    /// From the moment the server went on until the last of them had its reply.
    pub wait: Duration,
}

/// So many low connections come to a stopped server, then some high ones; it takes `service_us` for each. With
/// the kernel's queue and with weir's.
pub fn behind_a_burst(
    (low, high): (usize, usize),
    service_us: u32,
    program: &Program,
) -> Result<Vec<Behind>> {
    let window = WindowArgs {
        seconds: 1.0,
        warm_up: 0.0,
    };
    let bed = ClosedLoop::build(&window, program)?;
    let arrived = [vec![3; low], vec![1; high]].concat();
    let of = |queue| {
        let (accepted, wait) = run_once(&bed, &spec(service_us), queue, &arrived)?;
        let positions = (1..).zip(&accepted).filter(|(_, class)| **class == 1);
        Ok(Behind {
            queue,
            positions: positions.map(|(position, _)| position).collect(),
            wait,
        })
    };
    [Queue::Fifo, Queue::Priority].into_iter().map(of).collect()
}

fn arrivals(connections: &[usize], seed: u64) -> Vec<u8> {
    let by_class = (1..).zip(connections);
    let mut classes: Vec<u8> = by_class
        .flat_map(|(class, &count)| std::iter::repeat_n(class, count))
        .collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut classes);
    classes
}

/// Connects in this order to a stopped server. Returns the order in which it accepts, and how long after it went
/// on the highest class had all its replies.
fn run_once(
    bed: &ClosedLoop,
    spec: &Spec,
    queue: Queue,
    arrived: &[u8],
) -> Result<(Vec<u8>, Duration)> {
    let mut server = Server::start(&bed.bed, spec)?;
    let config = config(&strict(), &unpoliced(3));
    let weir = (queue == Queue::Priority)
        .then(|| bed.weir(&config))
        .transpose()?;
    server.stand_still()?;
    let clients = bed.bed.clients.run(|| {
        let clients = arrived.iter().map(|&class| connect(class));
        clients.collect::<Result<Vec<TcpStream>>>()
    });
    server.go_on()?;
    let begun = Instant::now();
    let highest = arrived.iter().min();
    let (high, low): (Vec<_>, Vec<_>) = clients?
        .into_iter()
        .zip(arrived)
        .partition(|(_, class)| Some(*class) == highest);
    let read = |clients: Vec<(TcpStream, &u8)>| {
        let mut clients = clients.into_iter();
        clients.try_for_each(|(client, _)| read_reply(client))
    };
    read(high)?;
    let wait = begun.elapsed();
    read(low)?;
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        server.check_alive()?;
        let records = server.records()?;
        if records.len() >= arrived.len() {
            weir.map_or(Ok(()), Weir::end)?;
            let classes = records.iter().map(|record| class_of(record.source));
            return Ok((classes.collect::<Result<_>>()?, wait));
        }
        if begun.elapsed() > PATIENCE {
            let cause = format!("{} of {} are recorded", records.len(), arrived.len());
            return Err(Error::failed(
                "the server did not accept all connections",
                cause,
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect(class: u8) -> Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .context("cannot create a client socket")?;
    let connected = socket
        .bind(&SocketAddr::from((address(class), 0)).into())
        .and_then(|()| socket.connect_timeout(&SocketAddr::V4(target(PORT)).into(), PATIENCE));
    connected.context("cannot connect to the stopped server")?;
    let mut stream = TcpStream::from(socket);
    let ready = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.write_all(REQUEST));
    ready.context("cannot send a request to the stopped server")?;
    Ok(stream)
}

fn read_reply(mut client: TcpStream) -> Result<()> {
    let mut reply = Vec::new();
    client
        .read_to_end(&mut reply)
        .context("a client got no reply")?;
    if reply.len() < FILE_BYTES {
        let cause = format!("it is of {} bytes", reply.len());
        return Err(Error::failed("a client got no whole reply", cause));
    }
    Ok(())
}

fn class_of(source: IpAddr) -> Result<u8> {
    let class = (1..=super::closed::CLASSES).find(|class| IpAddr::from(address(*class)) == source);
    class.ok_or_else(|| Error::failed("an accept from a stranger", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversions_are_pairs_and_out_of_order_are_connections() {
        assert_eq!((inversions(&[1, 2, 3]), out_of_order(&[1, 2, 3])), (0, 0));
        assert_eq!((inversions(&[3, 1, 2]), out_of_order(&[3, 1, 2])), (2, 1));
        assert_eq!(
            (inversions(&[2, 2, 1, 3]), out_of_order(&[2, 2, 1, 3])),
            (2, 2)
        );
    }

    #[test]
    fn arrivals_are_mixed_and_of_all_classes() {
        let classes = arrivals(&[20, 20, 40], 1);
        assert_eq!(classes.iter().filter(|class| **class == 3).count(), 40);
        assert!((800..1200).contains(&inversions(&classes)), "{classes:?}");
    }
}
