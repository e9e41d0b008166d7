//! What helps a client that opens so many short connections to one backend address that its local ports run out:
//! each port is in TIME-WAIT for 60 s at the client, if that closes first.
//!
//! One client thread, one connection after the other, on a CPU of its own; the server on the other. First as many
//! connections as there are ports and more, then the window that counts. The client's namespace has fewer ports than the
//! kernel's default, so that they run out long before the first of them is free again.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::bed::{Bed, Layout, SERVER_VETH_V4};
use weir_testbed::sys::{IpOption, set_ip_option};
use weir_testbed::tcp_table::sockets_in_state;
use weir_testbed::weir::Weir;

use crate::error::{Context, Error, Result};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "timewait-ports",
    "What helps a client whose local ports to one backend are all in TIME-WAIT?",
)
.source("FTY99; issues of Envoy and HAProxy")
.flags(
    "",
    "--ways plain,client-rst --ports 256 --connections 300 --seconds 0.5 --rounds 1",
)];

const PORT: u16 = 8080;
const REPLY: &[u8] = b"hello";
/// include/net/tcp_states.h, as /proc/net/tcp has it.
const TIME_WAIT: &[u8] = &[0x06];
/// The client's addresses, of which all but the first are added for `four-addresses` only.
const ADDRESSES: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 66, 1, 2),
    Ipv4Addr::new(10, 66, 1, 3),
    Ipv4Addr::new(10, 66, 1, 4),
    Ipv4Addr::new(10, 66, 1, 5),
];
/// The first local port.
const FIRST_PORT: u32 = 32_768;
/// `wide-range` has so many times the ports.
const WIDER: u32 = 4;
const ROUNDS: usize = 3;

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Nothing: the client closes first
    Plain,
    /// The client binds its one address before connect()
    Bind,
    /// The client binds its one address with IP_BIND_ADDRESS_NO_PORT
    BindNoPort,
    /// Four addresses of the client in turn, with IP_BIND_ADDRESS_NO_PORT
    FourAddresses,
    /// ip_local_port_range with four times the ports
    WideRange,
    /// IP_LOCAL_PORT_RANGE asks for four times the ports
    LocalPortRange,
    /// tcp_tw_reuse = 1, and tcp_tw_reuse_delay = 1000
    #[value(name = "reuse-1000ms")]
    Reuse1000ms,
    /// tcp_tw_reuse = 1, and tcp_tw_reuse_delay = 100
    #[value(name = "reuse-100ms")]
    Reuse100ms,
    /// tcp_tw_reuse = 1, and tcp_tw_reuse_delay = 1
    #[value(name = "reuse-1ms")]
    Reuse1ms,
    /// The server closes first
    ServerFirst,
    /// The server closes first, and weir runs at the client with timewait = client-rst
    ClientRst,
    /// SO_LINGER with 0 s: the client closes by a RST
    #[value(name = "linger-0")]
    Linger0,
}

/// Arguments of `weir-lab timewait-ports`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What is done about it, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,bind,bind-no-port,four-addresses,wide-range,local-port-range,reuse-1000ms,reuse-100ms,reuse-1ms,server-first,client-rst,linger-0"
    )]
    pub ways: Vec<Way>,
    /// Local ports of the client; the kernel has 28 232 by default
    #[arg(long, default_value_t = 4096)]
    pub ports: u32,
    /// Connections before the window
    #[arg(long, default_value_t = 4500)]
    pub connections: u32,
    /// Length of the window, in s
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        if !(2..=8192).contains(&self.ports) {
            let cause = "from 2 to 8192, as four times as many must fit above 32768";
            return Err(Error::usage(format!("bad --ports {}", self.ports), cause));
        }
        Ok(Box::new(Ports {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Ports {
    args: Args,
    program: Program,
}

impl Experiment for Ports {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |way: &Way| parameters([("way", word(way))]);
        vec![self.args.ways.iter().map(case).collect()]
    }

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "one connection after the other to one address and port, {} local ports; {} connections, then {} s",
            self.args.ports, self.args.connections, self.args.seconds
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let way: Way = chosen(case, "way")?;
        let bed = Bed::build(Layout::of_this_machine())?;
        prepare(&bed, way, self.args.ports)?;
        let weir = match way {
            Way::ClientRst => Some(weir(&bed, self.program.path())?),
            _ => None,
        };
        let server = Server::start(&bed, way)?;
        let window = Duration::from_secs_f64(self.args.seconds);
        let (ports, connections) = (self.args.ports, self.args.connections);
        let cpu = Some(bed.layout.client_cpu);
        let tally = bed
            .clients
            .run_on(cpu, || Ok(load(way, ports, connections, window)))?;
        server.stop(&bed)?;
        let time_waits = || sockets_in_state(TIME_WAIT, None);
        let mut sample = tally.sample(window);
        sample.add([
            ("time_wait_client", bed.clients.run(time_waits)? as f64),
            ("time_wait_server", bed.server.run(time_waits)? as f64),
        ]);
        if let Some(weir) = weir {
            let status = weir.status()?;
            let refused = &status["destinations"][0]["timewait"]["refused"];
            sample.add([("refused", refused.as_f64().unwrap_or(f64::NAN))]);
            weir.end()?;
        }
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let mut claims = Vec::new();
        for case in &results.cases {
            match case.parameter("way") {
                "plain" | "bind" | "bind-no-port" | "local-port-range" => {
                    claims.push(Claim::about(
                        "connect() fails once all ports are in TIME-WAIT",
                        case,
                        "failed",
                        |failed| failed.median > 0.9,
                    ))
                }
                "client-rst" => {
                    claims.push(Claim::about(
                        "client-rst leaves the client its ports",
                        case,
                        "failed",
                        |failed| failed.mean < 0.001,
                    ));
                    claims.push(Claim::about(
                        "client-rst leaves the server few TIME-WAIT sockets",
                        case,
                        "time_wait_server",
                        |count| count.mean < 0.05 * f64::from(self.args.connections),
                    ));
                }
                _ => {}
            }
        }
        claims
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("way", "{way}"),
            ("connections/s", "{connections_per_s|n}"),
            ("quartiles", "{connections_per_s:quartiles|n}"),
            ("failed", "{failed|%}"),
            ("connect() µs of CPU", "{connect_us|.1}"),
            ("TIME-WAIT client", "{time_wait_client|n}"),
            ("server", "{time_wait_server|n}"),
        ])
    }
}

fn prepare(bed: &Bed, way: Way, ports: u32) -> Result<()> {
    let times = if way == Way::WideRange { WIDER } else { 1 };
    let range = format!("{FIRST_PORT} {}", FIRST_PORT + ports * times - 1);
    bed.clients
        .set_sysctl("net.ipv4.ip_local_port_range", &range)?;
    let reuse = |delay| {
        bed.clients.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        bed.clients.set_sysctl("net.ipv4.tcp_tw_reuse_delay", delay)
    };
    match way {
        Way::Reuse1000ms => reuse("1000"),
        Way::Reuse100ms => reuse("100"),
        Way::Reuse1ms => reuse("1"),
        Way::FourAddresses => {
            let line = |address: &Ipv4Addr| format!("addr add {address}/24 dev veth0\n");
            bed.clients
                .ip_batch(&ADDRESSES[1..].iter().map(line).collect::<String>())
        }
        _ => Ok(()),
    }
}

fn weir<'a>(bed: &'a Bed, program: Option<&Path>) -> Result<Weir<'a>> {
    let config = format!(
        "[[destination]]\nname = \"backends\"\nto_port = {PORT}\ntimewait = \"client-rst\"\n"
    );
    Weir::run(&bed.clients, program, &config)
}

/// Answers one connection after the other.
struct Server {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Server {
    fn start(bed: &Bed, way: Way) -> Result<Server> {
        let address = SocketAddr::from((SERVER_VETH_V4, PORT));
        let listener = bed
            .server
            .run(|| TcpListener::bind(address).context(format!("cannot listen on {address}")))?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let (begins, begun) = std::sync::mpsc::channel();
        let thread = bed.server.spawn(bed.layout.server_cpu, move || {
            let _ = begins.send(());
            let waits = !matches!(way, Way::ServerFirst | Way::ClientRst);
            for stream in listener.incoming() {
                if asked.load(Ordering::Relaxed) {
                    break;
                }
                // A client that is gone is the next one's affair.
                let _ = stream.and_then(|stream| answer(stream, waits));
            }
            Ok(())
        })?;
        // It begins with a copy of all descriptors, which would keep connections open that the client closes.
        let _ = begun.recv();
        Ok(Server { stop, thread })
    }

    fn stop(self, bed: &Bed) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let address = SocketAddr::from((SERVER_VETH_V4, PORT));
        // From its own namespace, whose ports are free.
        bed.server
            .run(|| TcpStream::connect(address).context("cannot wake the server"))?;
        self.thread.join().expect("the server does not panic")
    }
}

/// `waits`: for the client to close first.
fn answer(mut stream: TcpStream, waits: bool) -> std::io::Result<()> {
    stream.write_all(REPLY)?;
    if waits {
        stream.read_exact(&mut [0])?;
    }
    Ok(())
}

/// What the client met.
#[derive(Default)]
struct Tally {
    connected: u32,
    failed: u32,
    /// CPU time of this thread in connect().
    connect: Duration,
    /// Of all calls of the window.
    lasted: Duration,
}

impl Tally {
    fn sample(&self, window: Duration) -> Sample {
        let attempts = f64::from((self.connected + self.failed).max(1));
        let lasted = self.lasted.max(window).as_secs_f64();
        Sample::of([
            ("connections_per_s", f64::from(self.connected) / lasted),
            ("failed", f64::from(self.failed) / attempts),
            ("connect_us", self.connect.as_secs_f64() * 1e6 / attempts),
        ])
    }
}

fn load(way: Way, ports: u32, connections: u32, window: Duration) -> Tally {
    let mut turn = 0;
    let mut tally = Tally::default();
    // Some ports may be taken twice: then the first failure ends the filling too.
    while tally.connected < connections && tally.failed == 0 {
        one(way, ports, turn, &mut tally);
        turn += 1;
    }
    let mut tally = Tally::default();
    let begun = Instant::now();
    while begun.elapsed() < window {
        one(way, ports, turn, &mut tally);
        turn += 1;
    }
    tally.lasted = begun.elapsed();
    tally
}

fn one(way: Way, ports: u32, turn: usize, tally: &mut Tally) {
    match connection(way, ports, turn, &mut tally.connect) {
        Ok(()) => tally.connected += 1,
        Err(_) => tally.failed += 1,
    }
}

/// One connection from the first call to the last.
fn connection(way: Way, ports: u32, turn: usize, connect: &mut Duration) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let no_port = || set_ip_option(&socket, IpOption::BindAddressNoPort, 1);
    let bind = |ip: Ipv4Addr| socket.bind(&SocketAddr::new(IpAddr::V4(ip), 0).into());
    match way {
        Way::Bind => bind(ADDRESSES[0])?,
        Way::BindNoPort => no_port()
            .map_err(Into::into)
            .and_then(|()| bind(ADDRESSES[0]))?,
        Way::FourAddresses => {
            no_port()?;
            bind(ADDRESSES[turn % ADDRESSES.len()])?;
        }
        Way::LocalPortRange => {
            let last = FIRST_PORT + ports * WIDER - 1;
            set_ip_option(&socket, IpOption::LocalPortRange, last << 16 | FIRST_PORT)?;
        }
        Way::Linger0 => socket.set_linger(Some(Duration::ZERO))?,
        _ => {}
    }
    let server = SocketAddr::from((SERVER_VETH_V4, PORT));
    let before = cpu_time();
    let connected = socket.connect(&server.into());
    *connect += cpu_time() - before;
    connected?;
    let mut stream = TcpStream::from(socket);
    let mut reply = [0; REPLY.len() + 1];
    match way {
        // To its end: the server closes first.
        Way::ServerFirst | Way::ClientRst => {
            let mut got = 0;
            loop {
                match stream.read(&mut reply[got..])? {
                    0 => break,
                    more => got += more,
                }
            }
            match got == REPLY.len() {
                true => Ok(()),
                false => Err(ErrorKind::UnexpectedEof.into()),
            }
        }
        _ => stream.read_exact(&mut reply[..REPLY.len()]),
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(Duration::ZERO, Duration::from)
}
