//! Clients whose ports stand in TIME-WAIT at the server, because it closes first: they come again in a SYN flood and in
//! overload, and the kernel would let them in.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_testbed::bed::{Counters, Tap};
use weir_testbed::program;

use crate::common::{Bed, PORT, Peer, Raw, connect, listen, until, within};
use weir_testbed::raw::{Segment, Shape, frame};

/// A flood lasts as long as the clients of a run come, and some seconds before.
const SYNS_PER_S: f64 = 80_000.0;
const BEFORE_CLIENTS: Duration = Duration::from_secs(2);
const CLIENTS: u16 = 1600;
const CLIENTS_PER_S: u32 = 200;
const FIRST_PORT: u16 = 20_000;
const BACKLOG: i32 = 511;
/// A client that is not refused waits so long, for a SYN that the kernel or weir dropped.
const PATIENT: Duration = Duration::from_secs(5);
/// Of those that are served in a flood.
const P99: Duration = Duration::from_millis(20);

/// A server that closes each connection first. nginx where it is, else a thread of this process.
enum Server {
    Nginx(Child),
    Own(TcpListener),
}

impl Server {
    fn start(bed: &Bed) -> Server {
        let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
        let Ok(nginx) = program::find("nginx") else {
            return Server::Own(listen(bed.server(), any, BACKLOG));
        };
        let folder = bed.folder.path();
        let config = folder.join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; worker_processes 1; pid {0}/nginx.pid; error_log {0}/nginx.log;\n\
             events {{ worker_connections 1000; }}\n\
             http {{ access_log off; keepalive_timeout 0; server {{ listen {PORT} backlog={BACKLOG}; \
             location / {{ return 200 \"hello\"; }} }} }}\n",
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
    fn serve(&self, stop: &AtomicBool) {
        self.serve_with(stop, || ());
    }

    /// The same; `work` is done for each connection.
    fn serve_with(&self, stop: &AtomicBool, work: impl Fn()) {
        let Server::Own(listener) = self else { return };
        listener.set_nonblocking(true).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
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
struct Visits {
    failed: Vec<String>,
    times: Vec<Duration>,
}

impl Visits {
    fn quantile(&mut self, permille: usize) -> Duration {
        self.times.sort();
        let last = self.times.len().saturating_sub(1);
        self.times
            .get(last * permille / 1000)
            .copied()
            .unwrap_or_default()
    }
}

/// A visit from each of these ports, `per_s` of them; 0: as fast as eight clients can.
fn visits(bed: &Bed, ports: std::ops::Range<u16>, per_s: u32) -> Visits {
    visits_of(8, bed, ports, per_s)
}

fn visits_of(clients: usize, bed: &Bed, ports: std::ops::Range<u16>, per_s: u32) -> Visits {
    let (next, begun) = (AtomicU16::new(ports.start), Instant::now());
    let all = Mutex::new(Visits::default());
    let at = bed.veth4().at(PORT);
    let client = || loop {
        let port = next.fetch_add(1, Ordering::Relaxed);
        if !ports.contains(&port) {
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

/// SYNs with spoofed sources, until `stop`; what the server answers is thrown away.
fn flood(wire: &Tap, stop: &AtomicBool, sent: &AtomicUsize) {
    let raw = Raw(wire);
    let segment = Segment {
        syn: true,
        ..Segment::default()
    };
    // Frames are made before: making one takes longer than sending it.
    let frames: Vec<Vec<u8>> = (0..200_000)
        .map(|number| frame(Peer::v4(number, PORT), Shape::Plain, &segment))
        .collect();
    let begun = Instant::now();
    let mut frames = frames.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * SYNS_PER_S) as usize;
        let mut count = sent.load(Ordering::Relaxed);
        while count < due && !stop.load(Ordering::Relaxed) {
            raw.send_frame(frames.next().unwrap());
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

/// Sets a flag when it goes, so that a test that fails ends its threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn flooded(policy: &str) {
    let Some(bed) = Bed::new() else { return };
    let server = Server::start(&bed);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ports = FIRST_PORT..FIRST_PORT + CLIENTS;
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| server.serve(&stop));
        let before = visits(&bed, ports.clone(), 0);
        assert!(before.failed.is_empty(), "{:?}", before.failed);
        scope.spawn(|| flood(&bed.links.wire, &stop, &sent));
        until("the flood runs", || {
            (sent.load(Ordering::Relaxed) > 0).then_some(())
        });
        let begun = Instant::now();
        // The kernel's own half-open connections are as many as it takes.
        until("the flood has filled the server's SYN queue", || {
            let counters = Counters::read(bed.server()).unwrap();
            (counters.get("TcpExt.SyncookiesSent") > 0).then_some(())
        });
        let _weir = bed.run(&format!("[[listener]]\naddress = \"*:{PORT}\"\n{policy}"));
        std::thread::sleep(BEFORE_CLIENTS);
        let mut after = visits(&bed, ports, CLIENTS_PER_S);
        let rate = sent.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        println!(
            "{policy:?}: {} of {CLIENTS} failed, p50 {:?}, p99 {:?}, most {:?}; {rate:.0} SYNs/s; {:?}",
            after.failed.len(),
            after.quantile(500),
            after.quantile(990),
            after.quantile(1000),
            bed.verdicts(0)
        );
        after.failed.truncate(5);
        assert!(after.failed.is_empty(), "{policy}: {:?}", after.failed);
        assert!(after.quantile(990) < P99, "{policy}");
    });
}

#[test]
fn no_syn_drop_serves_ports_in_time_wait_through_a_flood() {
    flooded("establish = \"no-syn-drop\"");
}

#[test]
fn reserv_serves_ports_in_time_wait_through_a_flood() {
    flooded("establish = \"reserv\"");
}
#[test]
fn priority_serves_ports_in_time_wait_through_a_flood() {
    flooded("queue = \"priority\"");
}

#[test]
fn the_xdp_front_lets_ports_in_time_wait_by_in_a_flood() {
    flooded("establish = \"no-syn-drop\"\nfront = \"xdp\"");
}

/// The server takes 2 ms for each connection, and 800 a second come for 2 s. The wait stands, and the queue never
/// overflows: weir drops SYNs, their clients repeat them, and nobody is refused.
#[test]
fn in_overload_no_syn_drop_refuses_no_port_in_time_wait() {
    const SERVICE: Duration = Duration::from_millis(2);
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let server = Server::Own(listener);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    let (stop, slow) = (AtomicBool::new(false), AtomicBool::new(false));
    let ports = FIRST_PORT..FIRST_PORT + CLIENTS;
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            server.serve_with(&stop, || {
                if slow.load(Ordering::Relaxed) {
                    std::thread::sleep(SERVICE);
                }
            });
        });
        let before = visits(&bed, ports.clone(), 0);
        assert!(before.failed.is_empty(), "{:?}", before.failed);
        slow.store(true, Ordering::Relaxed);
        let mut after = visits_of(CLIENTS.into(), &bed, ports, 800);
        println!(
            "{} of {CLIENTS} failed, p50 {:?}; {:?}",
            after.failed.len(),
            after.quantile(500),
            bed.verdicts(0)
        );
        after.failed.truncate(5);
        assert!(after.failed.is_empty(), "{:?}", after.failed);
    });
    assert_eq!(
        bed.counter(0, "syn_reset_full") + bed.counter(0, "syn_reset_wait"),
        0
    );
    assert!(
        bed.counter(0, "syn_dropped_wait") > 0,
        "there was no overload"
    );
}
