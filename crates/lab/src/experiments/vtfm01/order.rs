//! In which order a server accepts what has queued while it was stopped (FINDINGS, section 2).
//!
//! The server is stopped (SIGSTOP), 40 low, 20 middle and 20 high connections come in random order, and it goes
//! on. An inversion is a pair of which the lower class was accepted first. The kernel's FIFO has about half of
//! the 2000 possible ones; strict priority has none but those of connections that the server's own queue held
//! already, which no one can take back.

use nix::sys::signal::Signal;
use serde::Serialize;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Common, PORT, Spread, Stage, address, config, strict, target, unpoliced};
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::plot::lines::{Line, Panel, Picture};
use crate::report::{self, table};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, Program, Server, Spec};
use crate::weir::Weir;

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
    pub common: Common,
}

/// Queues of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// The kernel alone
    Fifo,
    /// weir's `queue = "priority"`
    Priority,
}

impl Queue {
    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Queue::Fifo => "kernel's FIFO",
            Queue::Priority => "priority",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Whose queue.
    pub queue: Queue,
    /// Seed of the order of arrival.
    pub seed: u64,
    /// Classes in the order in which they connected.
    pub arrived: Vec<u8>,
    /// Classes in the order in which they were accepted.
    pub accepted: Vec<u8>,
    /// Pairs of which the lower class was accepted first.
    pub inversions: usize,
    /// Connections accepted before one of a higher class: with strict priority only those that the server's
    /// own queue held when the others came.
    pub out_of_order: usize,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server.
    pub server: String,
    /// By queue.
    pub summaries: Vec<Summary>,
    /// Every run.
    pub rows: Vec<Row>,
}

/// All runs with a queue.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Whose queue.
    pub queue: Queue,
    /// Pairs of which the lower class was accepted first.
    pub inversions: Spread,
    /// Connections accepted before one of a higher class.
    pub out_of_order: Spread,
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

/// Measures with the kernel alone and with priority, in turns; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    let stage = Stage::build(&args.common)?;
    let spec = spec(SERVICE_US);
    let mut rows = Vec::new();
    for round in 0..args.common.rounds as u64 {
        for &queue in &args.queues {
            let seed = args.common.seed + round;
            let arrived = arrivals(&args.connections, seed);
            let (accepted, _) = run_once(&stage, &spec, queue, &arrived)?;
            let row = Row {
                queue,
                seed,
                inversions: inversions(&accepted),
                out_of_order: out_of_order(&accepted),
                arrived,
                accepted,
            };
            eprintln!(
                "  {}: {} inversions, {} connections out of order",
                queue.name(),
                row.inversions,
                row.out_of_order
            );
            rows.push(row);
        }
    }
    let spread = |queue: Queue, value: fn(&Row) -> usize| {
        let of = rows.iter().filter(|row| row.queue == queue);
        Spread::of(of.map(|row| value(row) as f64))
    };
    let summarize = |&queue: &Queue| Summary {
        queue,
        inversions: spread(queue, |row| row.inversions),
        out_of_order: spread(queue, |row| row.out_of_order),
    };
    Ok(Results {
        machine: report::machine(),
        server: spec.describe(),
        summaries: args.queues.iter().map(summarize).collect(),
        rows,
    })
}

fn spec(service_us: u32) -> Spec {
    Spec {
        program: Program::Pool {
            workers: 1,
            service_us,
            occupation: Occupation::Spin,
            body_bytes: FILE_BYTES,
            listeners: 1,
        },
        port: PORT,
        backlog: super::BACKLOG,
    }
}

/// What became of a few high connections behind a burst of low ones.
#[derive(Debug, Clone)]
pub struct Behind {
    /// Whose queue.
    pub queue: Queue,
    /// At which places the high ones were accepted, from 1.
    pub places: Vec<usize>,
    /// From the moment the server went on until the last of them had its reply.
    pub wait: Duration,
}

/// So many low connections come to a stopped server, then some high ones; it takes `service_us` for each. With
/// the kernel's queue and with weir's.
pub fn behind_a_burst(
    (low, high): (usize, usize),
    service_us: u32,
    weir: Option<std::path::PathBuf>,
) -> Result<Vec<Behind>> {
    let stage = Stage::build(&Common::short(Duration::from_secs(1), weir))?;
    let arrived = [vec![3; low], vec![1; high]].concat();
    let of = |queue| {
        let (accepted, wait) = run_once(&stage, &spec(service_us), queue, &arrived)?;
        let places = (1..).zip(&accepted).filter(|(_, class)| **class == 1);
        Ok(Behind {
            queue,
            places: places.map(|(place, _)| place).collect(),
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
    stage: &Stage,
    spec: &Spec,
    queue: Queue,
    arrived: &[u8],
) -> Result<(Vec<u8>, Duration)> {
    let mut server = Server::start(&stage.bed, spec)?;
    let config = config(&strict(), &unpoliced(3));
    let weir = (queue == Queue::Priority)
        .then(|| stage.weir(&config))
        .transpose()?;
    server.signal(Signal::SIGSTOP)?;
    let clients = stage.bed.clients.run(|| {
        let clients = arrived.iter().map(|&class| connect(class));
        clients.collect::<Result<Vec<TcpStream>>>()
    });
    server.signal(Signal::SIGCONT)?;
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
    let class = (1..=super::CLASSES).find(|class| IpAddr::from(address(*class)) == source);
    class.ok_or_else(|| Error::failed("an accept from a stranger", source))
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(&results);
    args.common
        .tell("order", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let head = ["queue", "inversions", "connections out of order"];
    let row = |summary: &Summary| {
        vec![
            summary.queue.name().to_string(),
            summary.inversions.cell(0),
            summary.out_of_order.cell(0),
        ]
    };
    let rows: Vec<Vec<String>> = results.summaries.iter().map(row).collect();
    format!(
        "{}\n{}\n\n{}",
        results.machine,
        results.server,
        table(&head, &rows)
    )
}

/// Class over place in the order of accepts, of the first run of each.
fn picture(results: &Results) -> Picture {
    let queues = || results.summaries.iter().map(|summary| summary.queue);
    let panel = |(name, queue): (usize, Queue)| {
        let row = results.rows.iter().find(|row| row.queue == queue);
        let classes = row.map_or(&[][..], |row| &row.accepted).iter();
        let points = (1..)
            .zip(classes)
            .map(|(place, &class)| (f64::from(place), class.into()));
        Panel {
            title: format!("Class, {}", queue.name()),
            x_title: "Place in the order of accept()".into(),
            lines: vec![Line {
                name,
                points: points.collect(),
                dots: true,
                ..Line::default()
            }],
            ..Panel::default()
        }
    };
    Picture {
        title: "Who is accepted first: classes (1 is the highest) in the order of accept()".into(),
        note: format!("{}; {}", results.machine, results.server),
        panels: queues().enumerate().map(panel).collect(),
        names: queues().map(|queue| queue.name().to_string()).collect(),
    }
}

/// One run of each, for tests.
pub fn short(weir: Option<std::path::PathBuf>) -> Args {
    Args {
        connections: vec![20, 20, 40],
        queues: vec![Queue::Fifo, Queue::Priority],
        common: Common::short(Duration::from_secs(1), weir),
    }
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
