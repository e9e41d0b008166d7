//! queue = priority with the real daemon and a server that knows nothing of it. Each test has a network
//! namespace of its own.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6};
use nix::unistd::Pid;
use serde_json::Value;
use weir_kernel::exec::can_park;
use weir_testbed::needs::{mechanism, own_namespace};
use weir_testbed::sys::{Classic, attach_classic};

const CONFIG: &str = r#"
[[listener]]
name = "web"
address = "*:8080"
queue = "priority"
ageing = "off"
admit = "queue"

[[class]]
name = "gold"
from = "127.0.1.0/24"
priority = 1

[[class]]
name = "low"
from = "127.0.40.0/24"
priority = 40
"#;

struct Bed {
    folder: Folder,
    weir: Child,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

/// `None` without root; says so. The server listens before weir comes.
fn bed(name: &str) -> Option<(TcpListener, Bed)> {
    bed_with(name, CONFIG, 128)
}

fn bed_with(name: &str, config: &str, backlog: i32) -> Option<(TcpListener, Bed)> {
    if !mechanism(can_park()) || !own_namespace() {
        return None;
    }
    let server = TcpListener::bind("127.0.0.1:8080").unwrap();
    Some(before(server, name, config, backlog))
}

fn before(server: TcpListener, name: &str, config: &str, backlog: i32) -> (TcpListener, Bed) {
    socket::listen(&server, Backlog::new(backlog).unwrap()).unwrap();
    server.set_nonblocking(true).unwrap();
    let folder = Folder::new(name);
    folder.write_config(config);
    let weir = run(&folder);
    let bed = Bed { folder, weir };
    bed.until_parking();
    // On loopback a CPU receives what it sends. Of two that receive, the last of eight places is held back for one.
    weir_testbed::cpu::pin_this_thread(0).unwrap();
    (server, bed)
}

fn run(folder: &Folder) -> Child {
    let command = format!("run --config {}", folder.config().display());
    let mut command = folder.command(&command);
    command.stderr(Stdio::null()).spawn().unwrap()
}

impl Bed {
    /// Starts weir anew.
    fn start(&mut self) {
        self.weir = run(&self.folder);
        self.until_parking();
    }

    /// Ends weir in order.
    fn stop(&mut self) {
        kill(Pid::from_raw(self.weir.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.weir.wait().unwrap().success());
    }

    fn until_parking(&self) {
        self.until(|listener| listener["queue_way"] == "parking");
    }

    fn until_waiting(&self, n: u64) {
        self.until(|listener| listener["queue_length"] == n);
    }

    /// Those before the server's own queue, as the thread that releases them knows them.
    fn until_parked(&self, n: u64) {
        self.until(|listener| listener["parked"] == n);
    }

    /// Low ones, until one of them is parked.
    fn connect_until_parked(&self) -> Vec<TcpStream> {
        let clients = std::cell::RefCell::new(Vec::new());
        self.until(|listener| {
            clients.borrow_mut().push(connect(40));
            listener["parked"].as_u64() > Some(0)
        });
        clients.into_inner()
    }

    fn until_counted(&self, verdict: &str, n: u64) {
        self.until(|listener| listener["counters"][verdict] == n);
    }

    fn until(&self, wanted: impl Fn(&Value) -> bool) {
        self.folder.until(|status| wanted(&status["listeners"][0]));
    }
}

/// A connection from `127.0.THIRD.1`.
fn connect(third: u8) -> TcpStream {
    try_connect(third).unwrap()
}

fn try_connect(third: u8) -> Result<TcpStream, Errno> {
    let fd: OwnedFd = socket::socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let from = SockaddrIn::new(127, 0, third, 1, 0);
    socket::bind(fd.as_raw_fd(), &from).unwrap();
    let to = SockaddrIn::new(127, 0, 0, 1, 8080);
    socket::connect(fd.as_raw_fd(), &to)?;
    Ok(fd.into())
}

/// Waits for the end of a connection, which is to be a RST.
fn assert_reset(mut client: &TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = client.read(&mut [0]).map_err(|e| e.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

fn assert_open(mut client: &TcpStream) {
    client.set_nonblocking(true).unwrap();
    let end = client.read(&mut [0]).map_err(|e| e.kind());
    assert_eq!(end, Err(ErrorKind::WouldBlock));
}

fn addresses<'a>(clients: impl IntoIterator<Item = &'a TcpStream>) -> Vec<SocketAddr> {
    clients
        .into_iter()
        .map(|c| c.local_addr().unwrap())
        .collect()
}

fn accepted(server: &TcpListener) -> SocketAddr {
    let end = Instant::now() + PATIENCE;
    loop {
        match server.accept() {
            Ok((_, from)) => return from,
            Err(_) => assert!(Instant::now() < end, "nobody is to be accepted"),
        }
    }
}

#[test]
fn the_server_accepts_the_higher_class_first_and_only_who_was_in_its_queue_already_is_before() {
    let Some((server, bed)) = bed("queue-order") else {
        return;
    };
    let mut clients = Vec::new();
    for third in [40, 10, 1] {
        clients.extend((0..20).map(|_| connect(third)));
    }
    bed.until_waiting(60);
    // The highest class waits in the server's own queue: nobody comes who is to be before it.
    bed.until_parked(39);
    bed.until(|listener| listener["overtook"] == 20 && listener["released"] == 0);
    let order: Vec<u8> = clients
        .iter()
        .map(|_| match accepted(&server) {
            SocketAddr::V4(from) => from.ip().octets()[2],
            SocketAddr::V6(from) => panic!("{from}"),
        })
        .collect();
    // Of those from 127.0.10.0/24 no class is: they come last. One of the first was in the server's queue.
    assert_eq!(order[0], 40);
    assert!(order[1..21].iter().all(|third| *third == 1), "{order:?}");
    assert!(order[21..40].iter().all(|third| *third == 40), "{order:?}");
    assert!(order[40..].iter().all(|third| *third == 10), "{order:?}");
}

#[test]
fn a_highest_class_with_a_queue_limit_is_parked_too_and_reset_above_it() {
    let config = CONFIG.replace("priority = 1\n", "priority = 1\nqueue_limit = 2\n");
    let Some((server, bed)) = bed_with("queue-high-limit", &config, 128) else {
        return;
    };
    let low = connect(40);
    bed.until_waiting(1);
    let high: Vec<TcpStream> = (1..=2)
        .map(|n| {
            let client = connect(1);
            bed.until_parked(n);
            client
        })
        .collect();
    assert_reset(&connect(1));
    bed.until_counted("queue_reset_limit", 1);
    let expected = addresses([&low].into_iter().chain(&high));
    let got: Vec<SocketAddr> = expected.iter().map(|_| accepted(&server)).collect();
    assert_eq!(got, expected);
}

#[test]
fn what_waits_reaches_the_server_when_weir_is_killed_and_another_weir_parks_again() {
    let Some((server, mut bed)) = bed("queue-kill") else {
        return;
    };
    for _ in 0..3 {
        let clients: Vec<TcpStream> = (0..30).map(|_| connect(40)).collect();
        bed.until_waiting(30);
        kill(Pid::from_raw(bed.weir.id() as i32), Signal::SIGKILL).unwrap();
        bed.weir.wait().unwrap();
        let mut expected: Vec<SocketAddr> =
            clients.iter().map(|c| c.local_addr().unwrap()).collect();
        let mut got: Vec<SocketAddr> = clients.iter().map(|_| accepted(&server)).collect();
        expected.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, expected);
        let _unguarded = connect(1);
        accepted(&server);
        bed.start();
    }
}

/// Closes a server's socket. A process that another test is about to start has a copy of it until its exec(): so
/// that it ceases to listen nevertheless, it is shut down first.
fn gone(server: TcpListener) {
    socket::shutdown(server.as_raw_fd(), socket::Shutdown::Both).unwrap();
}

/// Closes the server's socket, and makes another one at once. `None`: its port is in use.
fn restarted(server: TcpListener, backlog: i32) -> Option<TcpListener> {
    gone(server);
    let server = TcpListener::bind("127.0.0.1:8080").ok()?;
    socket::listen(&server, Backlog::new(backlog).unwrap()).unwrap();
    server.set_nonblocking(true).unwrap();
    Some(server)
}

#[test]
fn a_server_that_restarts_at_once_gets_its_port_and_is_parked_for_again() {
    let Some((mut server, mut bed)) = bed_with("queue-restart", CONFIG, 4096) else {
        return;
    };
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    for waiting in [0, 5, 1000, 0] {
        let _clients: Vec<TcpStream> = (0..waiting).map(|_| connect(40)).collect();
        bed.until_waiting(waiting);
        server = restarted(server, 4096).unwrap_or_else(|| panic!("{waiting} waited"));
        assert!(
            TcpListener::bind("127.0.0.1:8080").is_err(),
            "a second server on the port"
        );
        // Who came before belonged to the one that is gone.
        bed.until(|listener| listener["queue_length"] == 0 && listener["parked"] == 0);
        let low = bed.connect_until_parked();
        let gold = connect(1);
        bed.until_waiting(low.len() as u64 + 1);
        let order: Vec<SocketAddr> = (0..=low.len()).map(|_| accepted(&server)).collect();
        let mine = gold.local_addr().unwrap();
        assert!(order[..low.len()].contains(&mine), "one was parked before");
    }
    assert_eq!(reuses_port(&server), Some(true), "while weir parks");
    bed.stop();
    assert_eq!(reuses_port(&server), Some(false), "it had been lent");
}

#[test]
fn a_burst_of_500_at_full_speed_is_in_order_and_the_high_class_is_before_it() {
    let Some((server, bed)) = bed_with("queue-burst", CONFIG, 600) else {
        return;
    };
    let low: Vec<TcpStream> = (0..500).map(|_| connect(40)).collect();
    let gold: Vec<TcpStream> = (0..20).map(|_| connect(1)).collect();
    bed.until_waiting(520);
    let order: Vec<SocketAddr> = (0..520).map(|_| accepted(&server)).collect();
    let mut expected = addresses(&low[..1]);
    expected.extend(addresses(&gold));
    expected.extend(addresses(&low[1..]));
    assert_eq!(order, expected);
}

/// The guard has 512 slots for listening sockets, and keeps one for 30 s after its last SYN.
#[test]
fn connections_that_are_parked_take_no_place_from_the_queues_of_other_servers() {
    const PORTS: std::ops::Range<u16> = 9001..9017;
    let others: String = PORTS
        .map(|port| format!("[[listener]]\nname = \"p{port}\"\naddress = \"*:{port}\"\n"))
        .collect();
    // Who has no sure place may be refused at the final ACK: weir looks at ACKs.
    let config = CONFIG.replace("ageing", "overbook = 0.5\nageing");
    let Some((_server, bed)) = bed_with("queue-slots", &(config + &others), 1024) else {
        return;
    };
    let _parked: Vec<TcpStream> = (0..600).map(|_| connect(40)).collect();
    bed.until_waiting(600);
    for port in PORTS {
        let other = TcpListener::bind(("127.0.0.1", port)).unwrap();
        TcpStream::connect(other.local_addr().unwrap()).unwrap();
    }
    let status = bed.folder.status();
    let listeners = status["listeners"].as_array().unwrap();
    let counted = |verdict: &str| -> Vec<u64> {
        let each = listeners.iter().map(|l| l["counters"][verdict].as_u64());
        each.map(Option::unwrap).collect()
    };
    assert_eq!(counted("syn_unjudged"), vec![0; listeners.len()]);
    assert_eq!(counted("syn_admitted")[1..], vec![1; PORTS.len()]);
}

#[test]
fn when_the_servers_socket_gets_a_filter_nothing_is_parked_any_more_and_status_and_doctor_say_why()
{
    let Some((server, bed)) = bed("queue-filtered") else {
        return;
    };
    let clients = bed.connect_until_parked();
    // It lets all packets by.
    attach_classic(&server, Classic::Filter, u32::MAX).unwrap();
    let is_said = |because: &str| because.contains("SO_ATTACH_FILTER");
    bed.until(|listener| {
        let because = listener["queue_way_because"].as_str();
        listener["queue_way"] == "fifo" && because.is_some_and(is_said)
    });
    for _ in &clients {
        accepted(&server);
    }
    let said = bed.folder.weir("doctor");
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("priority at 127.0.0.1:8080"), "{said}");
    assert!(is_said(&said), "{said}");
}

#[test]
fn what_a_killed_weir_has_left_is_taken_off_by_detach_and_by_the_next_one() {
    let Some((server, mut bed)) = bed("queue-left") else {
        return;
    };
    kill(Pid::from_raw(bed.weir.id() as i32), Signal::SIGKILL).unwrap();
    bed.weir.wait().unwrap();
    assert_eq!(reuses_port(&server), Some(true));
    let said = bed.folder.command("detach").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("on 1 listening socket"), "{said}");
    assert_eq!(reuses_port(&server), Some(false));
    let said = bed.folder.command("detach").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("nothing is attached"), "{said}");

    bed.start();
    kill(Pid::from_raw(bed.weir.id() as i32), Signal::SIGKILL).unwrap();
    bed.weir.wait().unwrap();
    bed.start();
    bed.stop();
    assert_eq!(reuses_port(&server), Some(false));
}

/// Whether the socket has SO_REUSEPORT.
fn reuses_port(server: &TcpListener) -> Option<bool> {
    socket::getsockopt(server, socket::sockopt::ReusePort).ok()
}

#[test]
fn ipv6_connections_are_parked_and_accepted_by_class_too() {
    if !mechanism(can_park()) || !own_namespace() {
        return;
    }
    for address in ["fd00:1::1/128", "fd00:40::1/128"] {
        let added = std::process::Command::new("ip")
            .args(["address", "add", address, "dev", "lo", "nodad"])
            .status();
        assert!(added.unwrap().success());
    }
    let config = CONFIG.replace("127.0.1.0/24", "fd00:1::/32");
    let config = config.replace("127.0.40.0/24", "fd00:40::/32");
    let server = TcpListener::bind("[::1]:8080").unwrap();
    let (server, bed) = before(server, "queue-v6", &config, 128);
    let low: Vec<TcpStream> = (0..20).map(|_| connect_v6("[fd00:40::1]:0")).collect();
    let gold: Vec<TcpStream> = (0..20).map(|_| connect_v6("[fd00:1::1]:0")).collect();
    bed.until_waiting(40);
    let mut expected = addresses(&low[..1]);
    expected.extend(addresses(&gold));
    expected.extend(addresses(&low[1..]));
    let got: Vec<SocketAddr> = expected.iter().map(|_| accepted(&server)).collect();
    assert_eq!(got, expected);
    let server = {
        gone(server);
        TcpListener::bind("[::1]:8080").expect("its port at once")
    };
    server.set_nonblocking(true).unwrap();
    bed.until_parking();
    let client = connect_v6("[fd00:1::1]:0");
    assert_eq!(accepted(&server), client.local_addr().unwrap());
}

fn connect_v6(from: &str) -> TcpStream {
    let fd: OwnedFd = socket::socket(
        AddressFamily::Inet6,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let address = |text: &str| SockaddrIn6::from(text.parse::<SocketAddrV6>().unwrap());
    socket::bind(fd.as_raw_fd(), &address(from)).unwrap();
    socket::connect(fd.as_raw_fd(), &address("[::1]:8080")).unwrap();
    TcpStream::from(fd)
}

#[test]
fn in_a_full_queue_the_youngest_of_the_lowest_is_reset_for_each_higher_one_and_that_one_is_served()
{
    let Some((server, bed)) = bed_with("queue-full", CONFIG, 8) else {
        return;
    };
    let mut low = Vec::new();
    for n in 1..=8 {
        low.push(connect(40));
        bed.until_waiting(n);
    }
    assert_eq!(
        try_connect(40).unwrap_err(),
        Errno::ECONNREFUSED,
        "no place for one more of the lowest"
    );
    let mut gold = Vec::new();
    for n in 1..=3 {
        gold.push(connect(1));
        bed.until_counted("queue_reset_full", n);
    }
    low[5..].iter().for_each(assert_reset);
    low[..5].iter().for_each(assert_open);
    bed.until(|listener| {
        let classes = listener["classes"].as_array().unwrap();
        let class = |name| classes.iter().find(|class| class["name"] == name).unwrap();
        let (gold, low) = (class("gold"), class("low"));
        // The high ones are in the server's own queue.
        listener["queue_length"] == 8
            && gold["waiting"] == 0
            && gold["counters"].get("queue_reset_full").is_none()
            && low["waiting"] == 4
            && low["counters"]["queue_reset_full"] == 3
    });
    // The first of the low ones was in the server's own queue.
    let mut expected = addresses(&low[..1]);
    expected.extend(addresses(&gold));
    expected.extend(addresses(&low[1..5]));
    let got: Vec<SocketAddr> = expected.iter().map(|_| accepted(&server)).collect();
    assert_eq!(got, expected);
}

#[test]
fn who_has_aged_is_still_parked_and_gives_its_place_to_a_higher_one() {
    const AGEING: Duration = Duration::from_millis(20);
    let config = CONFIG.replace("ageing = \"off\"", "ageing = \"20ms\"");
    let Some((server, bed)) = bed_with("queue-aged", &config, 8) else {
        return;
    };
    let low: Vec<TcpStream> = (0..8).map(|_| connect(40)).collect();
    let since = Instant::now();
    bed.until(|listener| listener["parked"] == 7 && since.elapsed() > 5 * AGEING);
    let gold = connect(1);
    bed.until_counted("queue_reset_full", 1);
    assert_reset(&low[7]);
    // It came after those who have aged as far as its priority.
    let expected = addresses(low[..7].iter().chain([&gold]));
    let got: Vec<SocketAddr> = expected.iter().map(|_| accepted(&server)).collect();
    assert_eq!(got, expected);
}

#[test]
fn more_of_a_class_than_its_queue_limit_are_reset_and_the_other_classes_are_not() {
    let config = format!("{CONFIG}queue_limit = 2\n");
    let Some((server, bed)) = bed_with("queue-limit", &config, 128) else {
        return;
    };
    // One is in the server's own queue, which is not of weir's order.
    let low: Vec<TcpStream> = (1..=3)
        .map(|n| {
            let client = connect(40);
            bed.until_waiting(n);
            client
        })
        .collect();
    bed.until_parked(2);
    for n in 1..=2 {
        let over = connect(40);
        assert_reset(&over);
        bed.until_counted("queue_reset_limit", n);
    }
    let others: Vec<TcpStream> = (0..5).map(|_| connect(10)).collect();
    bed.until_parked(7);
    low.iter().chain(&others).for_each(assert_open);
    bed.until_counted("queue_reset_limit", 2);
    let expected = addresses(low.iter().chain(&others));
    let got: Vec<SocketAddr> = expected.iter().map(|_| accepted(&server)).collect();
    assert_eq!(got, expected);
}

/// A server in a process of its own; killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of the user nobody that may bind port 80, as systemd starts one by `User=`. It listens.
fn server_of_nobody() -> Server {
    let python = "import socket, time\n\
                  server = socket.create_server(('127.0.0.1', 80), backlog=1024)\n\
                  print('on', flush=True)\n\
                  time.sleep(1000)";
    let mut server = Server(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args([
                "--inh-caps=+net_bind_service",
                "--ambient-caps=+net_bind_service",
            ])
            .args(["--", "/usr/bin/python3", "-c", python])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = [0; 3];
    let mut stdout = server.0.stdout.take().unwrap();
    stdout.read_exact(&mut line).unwrap();
    server
}

/// The capabilities of the packaged unit, as setpriv(1) has them.
fn capabilities_of_the_unit() -> String {
    let unit = include_str!("../../../packaging/weir.service");
    let mut lines = unit.lines();
    let set = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = set.unwrap().split(' ').map(|name| {
        let name = name.strip_prefix("CAP_").unwrap();
        format!(",+{}", name.to_lowercase())
    });
    format!("--bounding-set=-all{}", names.collect::<String>())
}

fn run_as_the_unit(folder: &Folder, stderr: Stdio) -> Child {
    let run = folder.command(&format!("run --config {}", folder.config().display()));
    Command::new("setpriv")
        .args(["--no-new-privs", "--inh-caps=-all"])
        .args([&capabilities_of_the_unit(), "--"])
        .arg(run.get_program())
        .args(run.get_args())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

#[test]
fn with_the_capabilities_of_the_packaged_unit_it_parks_for_a_server_of_another_user() {
    if !mechanism(can_park()) || !own_namespace() {
        return;
    }
    let _server = server_of_nobody();
    let folder = Folder::new("queue-unit");
    folder.write_config(&CONFIG.replace("*:8080", "*:80"));
    let log = folder.path.join("log");
    let weir = run_as_the_unit(&folder, File::create(&log).unwrap().into());
    let bed = Bed { folder, weir };
    let said_so = |listener: &Value| {
        listener["queue_way"] == "parking" || listener["queue_way_because"].is_string()
    };
    bed.until(said_so);
    let listener = &bed.folder.status()["listeners"][0];
    assert_eq!(
        listener["queue_way"], "parking",
        "{}",
        listener["queue_way_because"]
    );
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("WARN"), "{log}");
}

#[test]
fn what_a_killed_weir_has_left_is_taken_off_and_a_weir_that_runs_is_not() {
    let Some((server, mut bed)) = bed("queue-left-over") else {
        return;
    };
    let clean_up = |bed: &Bed| {
        let output = bed.folder.weir("detach --left-over");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shared = || socket::getsockopt(&server, socket::sockopt::ReusePort).unwrap();
    assert!(clean_up(&bed).contains("it stays"));
    assert!(shared(), "it still parks");
    bed.weir.kill().unwrap();
    bed.weir.wait().unwrap();
    assert!(clean_up(&bed).contains("on 1 listening socket"));
    assert!(!shared());
}

mod measured {
    use super::*;

    /// The unit may not look into the tables of the one that was killed: it parks when the kernel has freed these.
    #[test]
    fn with_the_capabilities_of_the_packaged_unit_it_parks_again_soon_after_it_was_killed() {
        const SOON: Duration = Duration::from_secs(3);
        let Some((server, mut bed)) = bed("queue-unit-kill") else {
            return;
        };
        for _ in 0..5 {
            bed.weir.kill().unwrap();
            bed.weir.wait().unwrap();
            let begun = Instant::now();
            bed.weir = run_as_the_unit(&bed.folder, Stdio::null());
            bed.until_parking();
            println!("parks after {:?}", begun.elapsed());
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        }
        let client = connect(1);
        assert_eq!(accepted(&server), client.local_addr().unwrap());
    }
}
