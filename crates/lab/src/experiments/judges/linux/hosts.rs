//! Connections of the kernel's own TCP through a router whose two devices are the bottleneck.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use socket2::{Domain, Socket, Type};
use weir_sim::Outcome;
use weir_sim::connection::{Job, Spec};
use weir_sim::outcome::Record;

use super::qdiscs::{sent_and_dropped, tc};
use crate::error::{Context, Result};
use crate::experiments::judges::trial::{RTT_MS, outcome};
use crate::netns::Netns;
use crate::sys::{Offload, set_offload, tcp_round_trip_us};

/// The router's device towards the client.
pub const DOWN: &str = "to-client";
/// And towards the server.
pub const UP: &str = "to-server";
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);
const PORT: u16 = 80;
/// Payload of a full segment and of a request, bytes.
const MSS: usize = weir_sim::segment::MSS as usize;
const REQUEST_BYTES: usize = 100;
/// In a request: the client sends without end.
const UPLOAD: u32 = u32::MAX;
const CONGESTION_CONTROL: &str = "cubic";
/// What is written at once.
static PIECE: [u8; 16 * MSS] = [0; 16 * MSS];

/// A client, a router and a server, with the delays of the wires. The router's qdiscs are the caller's.
#[derive(Debug)]
pub struct Hosts {
    client: Netns,
    /// Its devices are [`DOWN`] and [`UP`].
    pub router: Netns,
    server: Netns,
}

impl Hosts {
    /// Connects them.
    pub fn new() -> Result<Hosts> {
        let hosts = Hosts {
            client: Netns::create("client")?,
            router: Netns::create("router")?,
            server: Netns::create("server")?,
        };
        hosts.router.set_sysctl("net/ipv4/ip_forward", "1")?;
        for (device, host, address) in [(DOWN, &hosts.client, CLIENT), (UP, &hosts.server, SERVER)]
        {
            let [a, b, c, _] = address.octets();
            let (name, gateway) = (host.name(), Ipv4Addr::new(a, b, c, 1));
            hosts.router.ip_batch(&format!(
                "link add {device} type veth peer name eth0 netns {name}
                 addr add {gateway}/24 dev {device}
                 link set {device} up"
            ))?;
            host.ip_batch(&format!(
                "addr add {address}/24 dev eth0
                 link set eth0 up
                 route add default via {gateway}"
            ))?;
            host.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            host.set_sysctl("net/core/somaxconn", "4096")?;
            host.set_sysctl("net/ipv4/tcp_max_syn_backlog", "4096")?;
            host.set_sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
            host.run(|| set_offload("eth0", Offload::Tso, false).context("cannot switch TSO off"))?;
            // The wire, half of it on each side.
            let delay = RTT_MS / 2;
            tc(
                host,
                &format!("qdisc add dev eth0 root netem delay {delay}ms limit 100000"),
            )?;
        }
        Ok(hosts)
    }

    /// Carries the connections; those that have not ended after so many seconds are cut off.
    pub fn run(&self, specs: &[Spec], seconds: f64) -> Result<Outcome> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let address = SocketAddr::from((SERVER, PORT));
        let listener = self.server.run(|| {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None);
            let listener = listener.context("cannot create a socket")?;
            is_cubic(&listener)?;
            listener.bind(&address.into()).context("cannot bind")?;
            listener.listen(4096).context("cannot listen")?;
            listener.set_nonblocking(false).context("cannot block")?;
            Ok(TcpListener::from(listener))
        })?;
        let rtts = Mutex::new(vec![0; specs.len()]);
        let ended = AtomicBool::new(false);
        let records = std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, end, &ended, &rtts));
            let records = self.client.run(|| Ok(call(address, specs, end)));
            ended.store(true, Ordering::Relaxed);
            // So that the listener looks.
            let _ = self.client.run(|| {
                Ok(TcpStream::connect_timeout(
                    &address,
                    Duration::from_secs(60),
                ))
            });
            records
        });
        let rtts = rtts.into_inner().unwrap_or_default();
        let mut records = records?;
        for (record, rtt_us) in records.iter_mut().zip(rtts) {
            record.last_rtt_ns = u64::from(rtt_us) * 1000;
        }
        let (sent, dropped) = sent_and_dropped(&self.router, DOWN)?;
        Ok(outcome(records, sent, dropped))
    }
}

fn is_cubic(socket: &Socket) -> Result<()> {
    let what = format!("cannot choose {CONGESTION_CONTROL}");
    setsockopt(socket, TcpCongestion, &CONGESTION_CONTROL.into()).context(what)
}

/// Accepts until it has ended.
fn serve(listener: &TcpListener, end: Instant, ended: &AtomicBool, rtts: &Mutex<Vec<u32>>) {
    std::thread::scope(|scope| {
        for stream in listener.incoming().map_while(std::result::Result::ok) {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            let thread = std::thread::Builder::new().stack_size(128 << 10);
            let answer = move || {
                let answered = answer(stream, end);
                let mut rtts = rtts
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if let Ok((number, rtt_us)) = answered
                    && let Some(place) = rtts.get_mut(number)
                {
                    *place = rtt_us;
                }
            };
            if thread.spawn_scoped(scope, answer).is_err() {
                return;
            }
        }
    });
}

/// Replies to one client; which connection it is, and its round-trip time at the end, µs.
fn answer(mut stream: TcpStream, end: Instant) -> std::io::Result<(usize, u32)> {
    stream.set_read_timeout(Some(left_until(end)?))?;
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request)?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| request[at + n]));
    let (number, segments) = (word(0), word(4));
    if segments != UPLOAD {
        let mut left = segments as usize * MSS;
        while left > 0 {
            stream.set_write_timeout(Some(left_until(end)?))?;
            left -= stream.write(&PIECE[..left.min(PIECE.len())])?;
        }
        stream.shutdown(Shutdown::Write)?;
    }
    read_to_end(&mut stream, end, |_| {})?;
    let rtt_us = tcp_round_trip_us(&stream)?;
    Ok((number as usize, rtt_us))
}

/// Opens the connections at their times, and waits for them.
fn call(address: SocketAddr, specs: &[Spec], end: Instant) -> Vec<Record> {
    let began = Instant::now();
    let record = |spec: &Spec| {
        let segments = match spec.job {
            Job::Download(segments) => segments,
            Job::Upload => 0,
        };
        Mutex::new(Record {
            of_burst: spec.of_burst,
            ..Record::new(spec.start_ns, segments)
        })
    };
    let records: Vec<Mutex<Record>> = specs.iter().map(record).collect();
    std::thread::scope(|scope| {
        for (number, record) in (0..).zip(&records) {
            let start_ns = locked(record).start_ns;
            let start = began + Duration::from_nanos(start_ns);
            std::thread::sleep(start.saturating_duration_since(Instant::now()));
            let thread = std::thread::Builder::new().stack_size(128 << 10);
            // What fails has not ended, and counts so.
            let _ =
                thread.spawn_scoped(scope, move || connect(address, number, record, start, end));
        }
    });
    let records = records.into_iter();
    records
        .map(|record| record.into_inner().unwrap_or_default())
        .collect()
}

fn locked(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn connect(
    address: SocketAddr,
    number: u32,
    record: &Mutex<Record>,
    start: Instant,
    end: Instant,
) -> std::io::Result<()> {
    let ns = || start.elapsed().as_nanos() as u64;
    let segments = locked(record).segments;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    setsockopt(&socket, TcpCongestion, &CONGESTION_CONTROL.into())?;
    socket.connect_timeout(&address.into(), left_until(end)?)?;
    let connect_ns = ns();
    {
        let mut record = locked(record);
        record.connect_ns = Some(connect_ns);
        record.syn_repeats = u32::from(connect_ns >= 1_000_000_000);
    }
    let mut stream = TcpStream::from(socket);
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&number.to_be_bytes());
    let wanted = if segments == 0 { UPLOAD } else { segments };
    request[4..8].copy_from_slice(&wanted.to_be_bytes());
    stream.write_all(&request)?;
    if segments == 0 {
        loop {
            stream.set_write_timeout(Some(left_until(end)?))?;
            stream.write_all(&PIECE)?;
        }
    }
    let bytes = segments as usize * MSS;
    read_to_end(&mut stream, end, |received| {
        let mut record = locked(record);
        if received >= bytes && record.response_ns.is_none() {
            record.response_ns = Some(ns());
        }
    })
}

/// Reads until the other end has no more, or the end; tells how much has come so far.
fn read_to_end(
    stream: &mut TcpStream,
    end: Instant,
    mut tell: impl FnMut(usize),
) -> std::io::Result<()> {
    let (mut buffer, mut received) = ([0; PIECE.len()], 0);
    loop {
        stream.set_read_timeout(Some(left_until(end)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                received += count;
                tell(received);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn left_until(end: Instant) -> std::io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}
