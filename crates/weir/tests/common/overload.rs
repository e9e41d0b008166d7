//! A guard and proxies over a server that gets more connections than it serves, in a network namespace of the test.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_testbed::needs::own_namespace;
use weir_testbed::wait;

use super::common::{Folder, Running};

/// The server's port.
pub const PORT: u16 = 8081;
/// Where the guard gives its metrics, and the proxies theirs.
pub const GUARD_METRICS: SocketAddr = SocketAddr::new(LOOPBACK, 9464);
/// As [`GUARD_METRICS`].
pub const PROXY_METRICS: SocketAddr = SocketAddr::new(LOOPBACK, 9465);
/// Where the guard has its dashboard.
pub const DASHBOARD: SocketAddr = SocketAddr::new(LOOPBACK, 9466);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Clients of the class gold.
const GOLD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The server is busy with a connection for so long.
const SERVICE: Duration = Duration::from_millis(4);
/// Each client tries again after so long.
const PAUSE: Duration = Duration::from_millis(2);
/// Clients, half of them of the class gold.
const CLIENTS: usize = 6;

/// Two listeners, classes, a controller, a proxy, the API, the metrics and the dashboard. Nothing listens at the second listener.
pub const CONFIG: &str = r#"
[[listener]]
name = "web"
address = "*:8081"

[[listener]]
name = "mail"
address = "*:8025"
mode = "observe"

[[class]]
name = "gold"
listener = "web"
from = "127.0.0.2/32"
priority = 1

[[class]]
name = "crawlers"
from = "127.0.0.3/32"
rate = 100.0
burst = 10

[[destination]]
name = "backends"
to_port = 8082
timewait = "client-rst"

[controller]
target_wait = "20ms"

[[proxy]]
name = "edge"
listen = "127.0.0.1:8090"
mode = "reverse"
backends = ["127.0.0.1:8082", "127.0.0.1:8083"]
health_check = "tcp"
health_interval = "50ms"
cache = "1MiB"

[metrics]
listen = "127.0.0.1:9464"
proxy_listen = "127.0.0.1:9465"

[dashboard]
listen = "127.0.0.1:9466"

[api]
"#;

/// A server of QUIC on loopback that reads nothing, to which a client has come.
pub fn quic_server(at: SocketAddr) -> UdpSocket {
    let server = UdpSocket::bind(at).unwrap();
    quic_attempt(at);
    server.peek(&mut [0]).unwrap();
    server
}

/// A client that comes to a server of QUIC: its first packet, as far as weir reads it.
pub fn quic_attempt(at: SocketAddr) {
    let mut initial = vec![0xc3, 0, 0, 0, 1, 8];
    initial.extend([1; 8]);
    initial.extend([4, 2, 2, 2, 2]);
    initial.resize(1200, 0);
    let client = UdpSocket::bind((at.ip(), 0)).unwrap();
    client.send_to(&initial, at).unwrap();
}

/// Threads that are told to stop and joined on drop.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Clients that connect again and again, and a server that accepts one at a time.
    pub fn start() -> Load {
        let listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Load {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        load.spawn(move |stop| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = listener.accept() {
                    std::thread::sleep(SERVICE);
                    let _ = stream.write_all(b"x");
                } else {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        for number in 0..CLIENTS {
            load.spawn(move |stop| {
                // They do not wait for their reply, so that the queue grows.
                let mut open = std::collections::VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    open.extend(connect(number % 2 == 0));
                    if open.len() > 64 {
                        open.pop_front();
                    }
                    std::thread::sleep(PAUSE);
                }
            });
        }
        load
    }

    fn spawn(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// One attempt; `None`: refused.
fn connect(is_gold: bool) -> Option<TcpStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let source = if is_gold { GOLD } else { Ipv4Addr::LOCALHOST };
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).ok()?;
    let [a, b, c, d] = source.octets();
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).ok()?;
    connect(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, PORT)).ok()?;
    Some(TcpStream::from(socket))
}

/// The guard and the proxies of [`CONFIG`], each with its process.
pub struct Bed {
    pub folder: Folder,
    pub guard: Running,
    pub proxies: Running,
    /// The backends; the second one is down.
    _backend: TcpListener,
}

impl Bed {
    /// `None` without root; says so.
    pub fn new(name: &str) -> Option<Bed> {
        Bed::with(name, "")
    }

    /// With further tables in the config.
    pub fn with(name: &str, further: &str) -> Option<Bed> {
        if !own_namespace() {
            return None;
        }
        let folder = Folder::new(name);
        folder.write_config(&format!("{further}{CONFIG}"));
        let backend = backend(SocketAddr::from(([127, 0, 0, 1], 8082)));
        let guard = Running::start(&folder, "run --config weir.toml");
        let proxies = Running::start(&folder, "proxy --config weir.toml");
        folder.until(|status| {
            let health = &status["proxies"][0]["backends"][1]["health"];
            status["running"] == true && health == "down"
        });
        Some(Bed {
            folder,
            guard,
            proxies,
            _backend: backend,
        })
    }

    /// The sockets of the guard's API and of the proxies', once they are there.
    pub fn sockets(&self) -> [PathBuf; 2] {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let names = [
            weir_client::default_socket_name(namespace),
            weir_client::default_proxy_socket_name(namespace),
        ];
        names.map(|name| {
            let path = self.folder.path.join(name);
            wait::until("an API socket", || path.exists().then_some(()));
            path
        })
    }
}

/// A server that answers each request with the same reply, until the test ends.
fn backend(address: SocketAddr) -> TcpListener {
    use std::io::Read;
    let listener = TcpListener::bind(address).unwrap();
    let accepts = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for mut stream in accepts.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                    let reply = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nhi";
                    if stream.write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    listener
}
