//! Clients and weir here, servers there.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::netns::Netns;
use weir_testbed::tcp_table::sockets_in_state;

use crate::common::{Bed, PATIENCE, PORT, Weir, listen, until, within};

/// The servers' addresses.
pub const THERE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 66, 1, 2));
pub const THERE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd66, 0, 0, 1, 0, 0, 0, 2));
/// include/net/tcp_states.h, as /proc/net/tcp has it.
const TIME_WAIT: &[u8] = &[0x06];
/// What every server here says before it closes.
pub const REPLY: &[u8] = b"hello";

/// Connections to the server's port, and none else.
pub const RULE: &str =
    "[[destination]]\nname = \"backends\"\nto_port = 8080\ntimewait = \"client-rst\"\n";

impl Bed {
    /// Where weir and the clients run.
    pub fn here(&self) -> &Netns {
        self.server()
    }

    /// Where the servers run.
    pub fn there(&self) -> &Netns {
        self.client()
    }

    /// Starts a weir where the servers run, and waits until it runs.
    pub fn run_there(&self, config: &str) -> Weir {
        let file = self.folder.path().join("there.toml");
        std::fs::write(&file, config).unwrap();
        let weir = self.spawn(self.there(), &format!("run --config {}", file.display()));
        until("weir runs there", || {
            (self.status_there()["running"] == true).then_some(())
        });
        weir
    }

    /// What that one reports.
    pub fn status_there(&self) -> Value {
        let output = within(self.there(), || self.command("status --json").output());
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    }

    /// A figure of the first destination's TIME-WAIT.
    pub fn figure(&self, name: &str) -> u64 {
        let status = self.status();
        let figure = &status["destinations"][0]["timewait"][name];
        figure
            .as_u64()
            .unwrap_or_else(|| panic!("no figure {name}: {status:#}"))
    }

    /// Waits until a figure has this value.
    pub fn figure_becomes(&self, name: &str, value: u64) {
        let mut last = Value::Null;
        let reached = weir_testbed::wait::try_until(PATIENCE, || {
            last = self.status()["destinations"][0]["timewait"].clone();
            (last[name] == value).then_some(())
        });
        assert!(reached.is_some(), "{name} is not {value}: {last}");
    }
}

/// TIME-WAIT sockets of a namespace.
pub fn time_waits(netns: &Netns) -> usize {
    netns
        .run(|| sockets_in_state(TIME_WAIT, None))
        .expect("/proc/net/tcp can be read")
}

/// Waits until a namespace has so many.
pub fn time_waits_become(netns: &Netns, count: usize) {
    let mut last = 0;
    let reached = weir_testbed::wait::try_until(PATIENCE, || {
        last = time_waits(netns);
        (last == count).then_some(())
    });
    assert!(
        reached.is_some(),
        "{last} TIME-WAIT, not {count}; what the kernel has counted there: {:?}",
        tcp_counters(netns)
    );
}

/// Counters of TCP of a namespace (`nstat`'s names) that are not 0.
fn tcp_counters(netns: &Netns) -> Vec<String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    let text = netns.run(|| Ok(read())).unwrap_or_default();
    let rows = |row: &str| {
        row.split(' ')
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut lines = text
        .lines()
        .filter(|row| row.starts_with("TcpExt:"))
        .map(rows);
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return Vec::new();
    };
    let pairs = names.iter().zip(&values).filter(|(_, value)| *value != "0");
    pairs
        .map(|(name, value)| format!("{name} {value}"))
        .collect()
}

/// Connections that the servers of this process have closed. A test has one client at a time.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// A server that answers each connection with [`REPLY`]; ends on drop.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    there: std::path::PathBuf,
}

/// Which end closes first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The server, as in HTTP/1.0.
    Server,
    /// The client: the server waits for its FIN.
    Client,
}

/// Whether weir can have servers negotiate that listen already: bpf_setsockopt() knows TCP_BPF_SOCK_OPS_CB_FLAGS.
fn marks_listeners() -> bool {
    weir_testbed::needs::linux_is_at_least(6, 12)
}

/// Servers at a port there, and what `weirs` starts: after them, for servers mostly run before weir does. On a kernel
/// where those do not negotiate, weir is first.
pub fn beside<W>(bed: &Bed, first: First, weirs: impl FnOnce() -> W) -> ([Server; 2], W) {
    if marks_listeners() {
        let servers = Server::start(bed, PORT, first);
        return (servers, weirs());
    }
    let weirs = weirs();
    (Server::start(bed, PORT, first), weirs)
}

impl Server {
    /// Listens at a port there, on both addresses.
    pub fn start(bed: &Bed, port: u16, first: First) -> [Server; 2] {
        [THERE_V4, THERE_V6].map(|ip| Server::at(bed, SocketAddr::new(ip, port), first))
    }

    /// Listens at an address there.
    pub fn at(bed: &Bed, address: SocketAddr, first: First) -> Server {
        let listener = listen(bed.there(), address, 1024);
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if asked.load(Ordering::Relaxed) {
                    return;
                }
                answer(stream, first);
            }
        });
        Server {
            stop,
            thread: Some(thread),
            address,
            there: bed.there().path(),
        }
    }
}

/// Serves one connection.
pub fn answer(mut stream: TcpStream, first: First) {
    let _ = stream.write_all(REPLY);
    if first == First::Client {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.read(&mut [0]);
    }
    drop(stream);
    CLOSED.fetch_add(1, Ordering::SeqCst);
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let (address, there) = (self.address, self.there.clone());
        // Wakes it, past what stands between the namespaces.
        let _ = std::thread::spawn(move || {
            let there = std::fs::File::open(there).ok()?;
            nix::sched::setns(there, nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()
        })
        .join();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects from a port here (0: any), reads the reply to its end, and closes.
pub fn ask(bed: &Bed, from: u16, to: SocketAddr) -> Result<Vec<u8>, ErrorKind> {
    within(bed.here(), || ask_from_here(from, to))
}

fn ask_from_here(from: u16, to: SocketAddr) -> Result<Vec<u8>, ErrorKind> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).unwrap();
    // bind() draws a port at random, connect() takes one after the other.
    if from != 0 {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::new(any, from).into()).unwrap();
    }
    let closed = CLOSED.load(Ordering::SeqCst);
    socket
        .connect_timeout(&to.into(), PATIENCE)
        .map_err(|error| error.kind())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reply = Vec::new();
    stream
        .read_to_end(&mut reply)
        .map_err(|error| error.kind())?;
    // While the server is in close(), its socket takes no RST: one machine away it never is so long.
    until("the server has closed", || {
        (CLOSED.load(Ordering::SeqCst) > closed).then_some(())
    });
    Ok(reply)
}

/// So many connections to the server, one after the other.
pub fn ask_often(bed: &Bed, ip: IpAddr, port: u16, times: usize) {
    within(bed.here(), || {
        for _ in 0..times {
            let reply = ask_from_here(0, SocketAddr::new(ip, port));
            assert_eq!(reply.as_deref(), Ok(REPLY));
        }
    });
}

/// Runs `work` while a client asks, over both families and one connection after the other, and none fails. `work` gets a
/// function that waits until there were so many more. Returns how many there were.
pub fn ask_meanwhile(bed: &Bed, work: impl FnOnce(&dyn Fn(u64))) -> u64 {
    let (ended, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for ip in [THERE_V4, THERE_V6] {
                    let reply = ask(bed, 0, there(ip));
                    assert_eq!(reply.as_deref(), Ok(REPLY), "{ip}");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        work(&|more| {
            let enough = made.load(Ordering::Relaxed) + more;
            until("connections were made", || {
                assert!(!client.is_finished(), "a connection failed");
                (made.load(Ordering::Relaxed) >= enough).then_some(())
            });
        });
        ended.store(true, Ordering::Relaxed);
    });
    made.into_inner()
}

/// The server's address.
pub fn there(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, PORT)
}

/// Starts the weir under test here, and waits until it knows the destination.
pub fn run(bed: &Bed, config: &str) -> crate::common::Weir {
    let weir = bed.run(config);
    until("weir knows the destination", || {
        let status = bed.status();
        let known = status["destinations"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        known.then_some(())
    });
    weir
}
