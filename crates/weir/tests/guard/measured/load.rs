//! What measurements under a SYN flood share: a server that closes first, its clients, and the flood.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_testbed::bed::Tap;
use weir_testbed::program;
use weir_testbed::raw::{Segment, Shape, frame};

use crate::common::{Bed, PORT, Peer, Raw, connect, listen, until, within};
use crate::firewall::PORT_BESIDE;

/// SYNs of the flood in a second.
const SYNS_PER_S: f64 = 80_000.0;
/// Clients of one kind in a measurement.
pub const CLIENTS: u16 = 1600;
/// How many of them come in a second.
pub const CLIENTS_PER_S: u32 = 200;
/// So many failed visits say enough: a run ends in time.
const FAILED_ENOUGH: usize = 40;
/// Places of the server, as many as nginx takes by itself.
pub const BACKLOG: i32 = 511;
/// A client that is not refused waits so long, for a SYN that the kernel or weir dropped.
const PATIENT: Duration = Duration::from_secs(5);
/// Of those that are served in a flood, where the machine itself lets nobody wait longer.
const P99: Duration = Duration::from_millis(20);
/// How many times longer they may take than those who come to the same server beside them, where weir leaves it alone: how
/// long these take is the machine's own share. The flood does not go there.
const TIMES_BESIDE: u32 = 2;
const PORTS_BESIDE: u16 = 25_000;

/// A server that closes each connection first. nginx where it is, else a thread of this process.
pub enum Server {
    Nginx(Child),
    Own(Vec<TcpListener>),
}

impl Server {
    pub fn start(bed: &Bed) -> Server {
        let Ok(nginx) = program::find("nginx") else {
            let at = |port| listen(bed.server(), (Ipv4Addr::UNSPECIFIED, port).into(), BACKLOG);
            return Server::Own([PORT, PORT_BESIDE].map(at).into());
        };
        let folder = bed.folder.path();
        let config = folder.join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; worker_processes 1; pid {0}/nginx.pid; error_log {0}/nginx.log;\n\
             events {{ worker_connections 1000; }}\n\
             http {{ access_log off; keepalive_timeout 0; server {{ listen {PORT} backlog={BACKLOG}; \
             listen {PORT_BESIDE} backlog={BACKLOG}; location / {{ return 200 \"hello\"; }} }} }}\n",
            folder.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(nginx);
        command.arg("-c").arg(&config).arg("-p").arg(folder);
        let child = within(bed.server(), || command.spawn().unwrap());
        let server = Server::Nginx(child);
        let at = bed.veth4().at(PORT);
        until("nginx listens", || {
            connect(bed.client(), at, 1).connected.pop()
        });
        server
    }

    /// Serves until `stop`, if it is this process that serves.
    pub fn serve(&self, stop: &AtomicBool) {
        self.serve_with(stop, || ());
    }

    /// The same; `work` is done for each connection.
    pub fn serve_with(&self, stop: &AtomicBool, work: impl Fn()) {
        let Server::Own(listeners) = self else { return };
        for listener in listeners {
            listener.set_nonblocking(true).unwrap();
        }
        while !stop.load(Ordering::Relaxed) {
            let mut accepted = listeners
                .iter()
                .filter_map(|listener| listener.accept().ok());
            let Some((mut stream, _)) = accepted.next() else {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            // A client that is gone is counted where it was.
            let _ = stream.read(&mut [0; 100]);
            work();
            let _ = stream.write_all(b"hello");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Server::Nginx(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One whole visit from this port; the server closes first. The error is of connect() or of the transfer.
fn visit(port: u16, at: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.connect_timeout(&at.into(), PATIENT)?;
    socket.set_read_timeout(Some(PATIENT))?;
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    match reply.ends_with(b"hello") {
        true => Ok(()),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// How the visits of a run ended.
#[derive(Default)]
pub struct Visits {
    pub failed: Vec<String>,
    pub times: Vec<Duration>,
}

impl Visits {
    pub fn quantile(&mut self, permille: usize) -> Duration {
        self.times.sort();
        let last = self.times.len().saturating_sub(1);
        self.times
            .get(last * permille / 1000)
            .copied()
            .unwrap_or_default()
    }
}

/// A visit from each of these ports, `per_s` of them; 0: as fast as eight clients can.
pub fn visits(bed: &Bed, ports: Range<u16>, per_s: u32) -> Visits {
    visits_of(8, bed, ports, per_s)
}

pub fn visits_of(clients: usize, bed: &Bed, ports: Range<u16>, per_s: u32) -> Visits {
    visits_at(PORT, clients, bed, ports, per_s)
}

fn visits_at(at: u16, clients: usize, bed: &Bed, ports: Range<u16>, per_s: u32) -> Visits {
    let (next, begun) = (AtomicU16::new(ports.start), Instant::now());
    let all = Mutex::new(Visits::default());
    let at = bed.veth4().at(at);
    let client = || loop {
        let port = next.fetch_add(1, Ordering::Relaxed);
        if !ports.contains(&port) || all.lock().unwrap().failed.len() > FAILED_ENOUGH {
            return;
        }
        if per_s > 0 {
            let due = begun + Duration::from_secs(1) * u32::from(port - ports.start) / per_s;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let start = Instant::now();
        let end = visit(port, at);
        let mut all = all.lock().unwrap();
        match end {
            Ok(()) => all.times.push(start.elapsed()),
            Err(error) => all.failed.push(error.to_string()),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| within(bed.client(), client));
        }
    });
    all.into_inner().unwrap()
}

impl Visits {
    /// The 99th percentile of a second's clients, in the median of the seconds. Whom weir or the kernel keeps waiting is kept
    /// in each of them; a stop of the machine is in one.
    fn usual_p99(&self) -> Duration {
        let seconds = self.times.chunks_exact(CLIENTS_PER_S as usize);
        let mut p99s: Vec<Duration> = seconds
            .map(|second| {
                let mut second = second.to_vec();
                second.sort();
                second[(second.len() - 1) * 990 / 1000]
            })
            .collect();
        p99s.sort();
        p99s.get(p99s.len() / 2).copied().unwrap_or(Duration::MAX)
    }
}

/// What the clients of a flood's port are held against: as many, at the same time, at a port that weir leaves alone.
pub fn visits_beside(bed: &Bed) -> Visits {
    let ports = PORTS_BESIDE..PORTS_BESIDE + CLIENTS;
    visits_at(PORT_BESIDE, 8, bed, ports, CLIENTS_PER_S)
}

/// None of these clients was refused, and none waited but for the machine.
pub fn judge(kind: &str, visits: &mut Visits, beside: &Visits) {
    let (failed, p99) = (visits.failed.len(), visits.usual_p99());
    let [p50, most]: [Duration; 2] = [500, 1000].map(|permille| visits.quantile(permille));
    assert!(beside.failed.is_empty(), "beside: {:?}", beside.failed);
    let limit = P99.max(TIMES_BESIDE * beside.usual_p99());
    println!(
        "{kind}: {failed} of {CLIENTS} failed, p50 {p50:?}, p99 of a second {p99:?} (limit {limit:?}), most {most:?}"
    );
    visits.failed.truncate(5);
    assert!(visits.failed.is_empty(), "{kind}: {:?}", visits.failed);
    assert!(p99 < limit, "{kind}: {p99:?}");
}

/// The flood's SYNs, each from another address. Made before: making one takes longer than sending it.
pub fn spoofed() -> Vec<Vec<u8>> {
    let segment = Segment {
        syn: true,
        ..Segment::default()
    };
    let frame = |number| frame(Peer::v4(number, PORT), Shape::Plain, &segment);
    (0..200_000).map(frame).collect()
}

/// Sends these SYNs over and over, until `stop`; what the server answers is thrown away.
pub fn flood(wire: &Tap, syns: &[Vec<u8>], stop: &AtomicBool, sent: &AtomicUsize) {
    let raw = Raw(wire);
    let begun = Instant::now();
    let mut syns = syns.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * SYNS_PER_S) as usize;
        let mut count = sent.load(Ordering::Relaxed);
        while count < due && !stop.load(Ordering::Relaxed) {
            raw.send_frame(syns.next().unwrap());
            count += 1;
            if count.is_multiple_of(64) {
                raw.discard();
            }
        }
        sent.store(count, Ordering::Relaxed);
        raw.discard();
        std::thread::yield_now();
    }
}
