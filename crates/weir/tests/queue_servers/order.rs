//! The order test: a server is stopped, 40 low, 20 middle and 20 high connections queue, and it goes on.
//!
//! What the server's own socket held already cannot be overtaken: that is one connection (the depth), a low
//! one since these came first. All others are to be accepted by class, and those of one class in the order in
//! which they came. Of a server with several sockets this is so for each of them. Where several processes take
//! from one socket, one that loses its CPU between its accept and the number that it gives the connection makes
//! that one look out of order.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};

use super::bed::{Bed, CLASSES, PATIENCE};
use super::servers::{Program, Server};

/// Connections of the high, the middle and the low class.
const CONNECTIONS: [usize; 3] = [20, 20, 40];

/// A connection from `127.0.THIRD.1` that has sent its request.
fn ask(third: u8, port: u16) -> TcpStream {
    let (family, kind) = (AddressFamily::Inet, SockType::Stream);
    let fd: OwnedFd = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, third, 1, 0)).unwrap();
    socket::connect(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).unwrap();
    let mut stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    stream
}

/// What the server says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    /// A number that orders accepts.
    number: u64,
    /// The process, of servers with several sockets.
    worker: u64,
}

fn read_stamp(mut client: TcpStream) -> Stamp {
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("a reply");
    let number_after = |name: &str| {
        let (_, text) = reply.split_once(name)?;
        let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = text.find(|c: char| !c.is_ascii_digit());
        text[..end.unwrap_or(text.len())].parse().ok()
    };
    Stamp {
        number: number_after("stamp=").unwrap_or_else(|| panic!("no number in {reply:?}")),
        worker: number_after("worker=").unwrap_or(0),
    }
}

/// The class of a connection, and how manyth of it it was.
type Arrival = (usize, usize);

/// Connections in the order in which a server that was stopped accepted them.
fn accepted(bed: &Bed, server: &Server, port: u16, queued: impl FnOnce()) -> Vec<(Stamp, Arrival)> {
    server.stand_still();
    // The low class comes first, and each is let in before the next.
    let arrivals = (0..CLASSES.len()).rev();
    let arrivals = arrivals.flat_map(|class| (0..CONNECTIONS[class]).map(move |i| (class, i)));
    let arrivals: Vec<Arrival> = arrivals.collect();
    let clients = bed.within(|| {
        let clients = arrivals.iter().map(|(class, _)| ask(CLASSES[*class], port));
        clients.collect::<Vec<TcpStream>>()
    });
    queued();
    server.go_on();
    let stamps = clients.into_iter().map(read_stamp);
    let mut accepted: Vec<(Stamp, Arrival)> = stamps.zip(arrivals).collect();
    accepted.sort_unstable();
    accepted
}

/// How many one has to take away so that the rest is in order.
fn out_of_order<T: PartialOrd + Copy>(accepted: &[T]) -> usize {
    // Patience sorting: the least last element of an ordered part of each length.
    let mut ends: Vec<T> = Vec::new();
    for &one in accepted {
        let at = ends.partition_point(|end| *end <= one);
        match ends.get_mut(at) {
            Some(end) => *end = one,
            None => ends.push(one),
        }
    }
    accepted.len() - ends.len()
}

/// Pairs of which the lower class was accepted first.
fn inversions(accepted: &[Arrival]) -> usize {
    let later = |i: usize| accepted[i + 1..].iter();
    let before_higher = |i: usize| later(i).filter(|other| other.0 < accepted[i].0).count();
    (0..accepted.len()).map(before_higher).sum()
}

/// How many are out of order, and how many may be.
fn judge(program: Program, accepted: &[(Stamp, Arrival)]) -> (usize, usize) {
    let of = |worker: u64| {
        let its = accepted
            .iter()
            .filter(move |(stamp, _)| stamp.worker == worker);
        its.map(|(_, arrival)| *arrival).collect::<Vec<Arrival>>()
    };
    let queues: BTreeSet<u64> = accepted.iter().map(|(stamp, _)| stamp.worker).collect();
    assert_eq!(queues.len(), program.sockets());
    if program.sockets() == program.workers() {
        let worst = queues
            .into_iter()
            .map(|worker| out_of_order(&of(worker)))
            .max();
        return (worst.unwrap(), 1);
    }
    let classes: Vec<usize> = accepted.iter().map(|(_, (class, _))| *class).collect();
    // Each of the processes but one that runs may lose its CPU, and on a busy machine twice.
    (out_of_order(&classes), 1 + 2 * (program.workers() - 1))
}

/// All of the servers run beside each other, under one weir.
fn accept_by_class(role: &str, programs: &[Program]) {
    let Some(bed) = Bed::new(role) else { return };
    let installed = programs.iter().filter(|program| program.is_installed());
    let servers: Vec<(Program, Server)> =
        installed.map(|p| (*p, Server::start(&bed, *p))).collect();
    let ports: Vec<u16> = servers.iter().map(|(p, _)| p.port()).collect();
    bed.configure(&ports, "ageing = \"off\"");
    let mut weir = bed.start();
    let mut faults = Vec::new();
    for (program, server) in &servers {
        let port = program.port();
        weir.until_parking(port);
        let total = CONNECTIONS.iter().sum::<usize>();
        let order = accepted(&bed, server, port, || {
            weir.until("all wait", port, |l| l["queue_length"] == total);
        });
        let (worst, most) = judge(*program, &order);
        let arrivals: Vec<Arrival> = order.iter().map(|(_, arrival)| *arrival).collect();
        let text = format!(
            "{program:?}: {worst} of {} out of order, at most {most} may; {} inversions: {order:?}",
            order.len(),
            inversions(&arrivals)
        );
        println!(
            "{}",
            text.split_once(": [")
                .map_or(text.as_str(), |(head, _)| head)
        );
        if worst > most {
            faults.push(text);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn servers_of_one_process_accept_by_class_however_they_wait() {
    accept_by_class(
        "one",
        &[
            Program::Nginx,
            Program::PythonBlocking,
            Program::PythonSelectors,
            Program::PythonLevel,
            Program::PythonEdge,
            Program::Go,
            Program::Node,
            Program::WeirProxy,
        ],
    );
}

#[test]
fn servers_of_several_processes_accept_by_class() {
    accept_by_class(
        "several",
        &[
            Program::NginxMultiAccept,
            Program::NginxReuseport,
            Program::ApachePrefork,
        ],
    );
}

#[test]
fn without_weir_a_server_accepts_in_the_order_of_arrival() {
    let Some(bed) = Bed::new("stock") else { return };
    let program = Program::PythonBlocking;
    if !program.is_installed() {
        return;
    }
    let server = Server::start(&bed, program);
    let order = accepted(&bed, &server, program.port(), || ());
    let order: Vec<Arrival> = order.into_iter().map(|(_, arrival)| arrival).collect();
    assert_eq!(out_of_order(&order), CONNECTIONS[0] + CONNECTIONS[1]);
    assert_eq!(inversions(&order), 40 * 40 + 20 * 20);
}

#[test]
fn go_with_mptcp_keeps_the_kernel_s_order_and_status_says_why() {
    let Some(bed) = Bed::new("mptcp") else { return };
    let program = Program::GoMptcp;
    if !program.is_installed() {
        return;
    }
    let server = Server::start(&bed, program);
    bed.configure(&[program.port()], "ageing = \"off\"");
    let mut weir = bed.start();
    let status = weir.until("weir says why", program.port(), |l| {
        l["queue_way_because"].is_string()
    });
    assert_eq!(status["queue_way"], "fifo");
    let because = status["queue_way_because"].as_str().unwrap();
    assert!(because.contains("MPTCP"), "{because}");
    let order = accepted(&bed, &server, program.port(), || ());
    assert_eq!(order.len(), CONNECTIONS.iter().sum::<usize>());
}
