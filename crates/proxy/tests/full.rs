//! A proxy that has as many clients as it may, or no descriptor for another: the others wait, and their waiting costs
//! nothing. The tests watch the process's CPU time and limits, so each runs in a process of its own.

mod common;

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Connection, Origin, PATIENCE, answer, connect_tcp, settings, start, total, wait_until,
};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use socket2::{Domain, Socket, Type};
use weir_core::proxy::{Proxy, ProxyMode};
use weir_proxy::{Server, StartOptions};

/// Set in the process that runs one test alone.
const ALONE: &str = "WEIR_TEST_ALONE";

/// Runs a test of this file where no other one runs, or has left threads and descriptors.
fn alone(name: &str, test: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}{err}"
    );
}

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut writer = stream.unwrap();
                let _ = std::io::copy(&mut writer.try_clone().unwrap(), &mut writer);
            });
        }
    });
    address
}

fn tcp(change: impl FnOnce(&mut Proxy)) -> Server {
    start(ProxyMode::Tcp, &[echo()], change)
}

/// Clients now. Counters are read one after the other, and a busy machine may stop the reader in between for longer than a
/// hundred clients live: the difference is theirs only if none was accepted meanwhile.
fn clients(proxy: &Server) -> u64 {
    let mut before = proxy.totals();
    loop {
        let after = proxy.totals();
        let accepted = total(&before, "clients_accepted");
        if total(&after, "clients_accepted") == accepted {
            return accepted - total(&before, "clients_closed");
        }
        before = after;
    }
}

fn connect(proxy: &Server) -> TcpStream {
    connect_tcp(proxy.address())
}

fn is_served(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds() as u64)
}

/// A loop that turns without rest takes all the CPU that it gets, half a core at least; one that rests next to none.
fn expect_rest() {
    let (start, before) = (Instant::now(), cpu_time());
    thread::sleep(Duration::from_millis(400));
    let (time, used) = (start.elapsed(), cpu_time() - before);
    assert!(used < time / 10, "{used:?} of CPU in {time:?}");
}

#[test]
fn a_client_that_waits_for_a_slot_costs_no_cpu_and_gets_the_next_one() {
    alone(
        "a_client_that_waits_for_a_slot_costs_no_cpu_and_gets_the_next_one",
        || {
            for threads in [1, 2] {
                let proxy = tcp(|proxy| (proxy.threads, proxy.max_clients) = (threads, 2));
                let mut inside: Vec<TcpStream> = (0..2).map(|_| connect(&proxy)).collect();
                assert!(inside.iter_mut().all(is_served));
                let mut waiting: Vec<TcpStream> = (0..8).map(|_| connect(&proxy)).collect();
                expect_rest();
                assert_eq!(clients(&proxy), 2);
                drop(inside);
                // A place that becomes free is for the first of either queue.
                let until = Instant::now() + PATIENCE;
                while let Some(mut one) = waiting.pop() {
                    assert!(Instant::now() < until, "{} wait", waiting.len());
                    one.write_all(b"x").unwrap();
                    one.set_read_timeout(Some(Duration::from_millis(20)))
                        .unwrap();
                    if one.read(&mut [0]).is_err() {
                        waiting.insert(0, one);
                    }
                }
            }
        },
    );
}

#[test]
fn max_clients_is_exact_over_threads_and_no_waiting_client_is_forgotten() {
    alone(
        "max_clients_is_exact_over_threads_and_no_waiting_client_is_forgotten",
        || {
            const MOST: usize = 3;
            let proxy = tcp(|proxy| (proxy.threads, proxy.max_clients) = (4, MOST as u32));
            let served = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| {
                        for _ in 0..40 {
                            let mut client = connect(&proxy);
                            assert!(is_served(&mut client), "forgotten");
                            assert!(served.fetch_add(1, Ordering::SeqCst) < MOST);
                            assert!(is_served(&mut client));
                            served.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            wait_until("all are gone", || clients(&proxy) == 0);
            assert_eq!(total(&proxy.totals(), "clients_accepted"), 16 * 40);
        },
    );
}

/// Lets the process open so many descriptors more, until this is dropped.
struct Descriptors(u64, u64);

impl Descriptors {
    fn left(count: u64) -> Descriptors {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let next = TcpListener::bind("127.0.0.1:0").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::RLIMIT_NOFILE, next + count, hard).unwrap();
        Descriptors(soft, hard)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_NOFILE, self.0, self.1).unwrap();
    }
}

/// A client of the proxy and its connection to the server. From then on the proxy's thread has all descriptors that
/// it needs for itself, which under load it opens long after the start.
fn first_client(proxy: &Server, server: &TcpListener) -> (Connection, TcpStream) {
    let mut client = Connection::new(connect(proxy));
    client.send("GET /length/5 HTTP/1.1\r\nHost: test\r\n\r\n");
    (client, server.accept().unwrap().0)
}

/// Clients whose descriptors are there before the others run out.
fn unconnected(count: usize) -> Vec<Socket> {
    let new = |_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    (0..count).map(new).collect()
}

#[test]
fn a_client_that_waits_for_a_descriptor_costs_no_cpu_and_is_served_when_there_are_some() {
    alone(
        "a_client_that_waits_for_a_descriptor_costs_no_cpu_and_is_served_when_there_are_some",
        || {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut settings = settings(ProxyMode::Tcp, &[server.local_addr().unwrap()]);
            settings.connect_timeout = PATIENCE;
            let proxy = Server::start(settings).unwrap();
            let _first = first_client(&proxy, &server);
            // The server accepts no other connection itself: the kernel does.
            let sockets = unconnected(5);
            let none = Descriptors::left(0);
            for socket in &sockets {
                socket.connect(&proxy.address().into()).unwrap();
            }
            wait_until("it tries in vain", || {
                total(&proxy.totals(), "accepts_failed") > 1
            });
            expect_rest();
            assert_eq!(clients(&proxy), 1);
            drop(none);
            wait_until("all are served", || clients(&proxy) == 6);
        },
    );
}

#[test]
fn a_request_without_a_descriptor_for_its_server_is_told_so_and_the_server_is_not_blamed() {
    alone(
        "a_request_without_a_descriptor_for_its_server_is_told_so_and_the_server_is_not_blamed",
        || {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            let proxy = Server::start(settings(ProxyMode::Reverse, &[address])).unwrap();
            let first = first_client(&proxy, &server);
            let socket = unconnected(1).remove(0);
            // For the client alone.
            let few = Descriptors::left(1);
            socket.connect(&proxy.address().into()).unwrap();
            let mut client = Connection::new(socket.into());
            let refused = client.get("/length/5");
            assert_eq!(refused.status(), 503);
            let why = refused.field("proxy-status").unwrap();
            assert!(
                why.contains("connection_limit_reached") && why.contains("no descriptor"),
                "{why}"
            );
            drop(few);
            // A thread that is blocked in accept(2) has the descriptor of its next client already, which would count above.
            drop((server, first));
            let _origin = Origin::at(address, |connection, request| answer(connection, &request));
            assert_eq!(client.get("/length/5").status(), 200);
        },
    );
}

/// 400 clients, and descriptors for a third of them and their servers.
#[test]
fn a_process_with_few_descriptors_serves_all_clients_though_not_at_once() {
    alone(
        "a_process_with_few_descriptors_serves_all_clients_though_not_at_once",
        || {
            const CLIENTS: usize = 400;
            let origin = Origin::start();
            for mode in [ProxyMode::Tcp, ProxyMode::Reverse] {
                let (start, done) = (Barrier::new(CLIENTS), AtomicUsize::new(0));
                // The clients and the origin have theirs in this process too: the proxy is told of its own.
                let options = StartOptions {
                    descriptors: Some(200),
                    ..StartOptions::default()
                };
                // Of one thread: counters of several are not read at one instant.
                let settings = settings(mode, &[origin.address]);
                let proxy = Server::start_with(settings, options).unwrap();
                let most = proxy.clients_at_once();
                assert!((50..100).contains(&most), "{most}");
                let counted = AtomicBool::new(false);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while !counted.load(Ordering::SeqCst) {
                            let servers = proxy.servers().backends[0].connections;
                            assert!(servers.in_use <= most as u64, "{servers:?}");
                            assert!(clients(&proxy) <= most as u64);
                        }
                    });
                    let ask = || {
                        let mut client = Connection::new(connect(&proxy));
                        start.wait();
                        let reply = client.get("/length/5");
                        assert_eq!(reply.status(), 200);
                        done.fetch_add(1, Ordering::SeqCst);
                    };
                    let asking: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
                    let asked = asking.into_iter().all(|client| client.join().is_ok());
                    counted.store(true, Ordering::SeqCst);
                    assert!(asked);
                });
                assert_eq!(done.load(Ordering::SeqCst), CLIENTS);
                assert_eq!(total(&proxy.totals(), "accepts_failed"), 0);
            }
        },
    );
}

/// Memory of the process that is in RAM, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let mut words = line.unwrap().split_whitespace();
    words.nth(1).unwrap().parse().unwrap()
}

#[test]
fn clients_whose_requests_never_end_get_408_and_their_memory_goes_back() {
    alone(
        "clients_whose_requests_never_end_get_408_and_their_memory_goes_back",
        || {
            const CLIENTS: usize = 4000;
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
            let proxy = start(ProxyMode::Reverse, &[echo()], |proxy| {
                proxy.threads = 2;
                proxy.head_timeout = Duration::from_secs(5);
            });
            let half = |_| {
                let mut client = Connection::new(connect(&proxy));
                client.send("GET / HTTP/1.1\r\nHost: test\r\nX-Half: ");
                client
            };
            let before = resident();
            let mut most = 0;
            // The second time in memory that has been used: a buffer of it is in RAM as a whole.
            for round in 1..=2 {
                let mut halves: Vec<Connection> = (0..CLIENTS).map(half).collect();
                wait_until("all are there", || {
                    let totals = proxy.totals();
                    total(&totals, "clients_accepted") == (round * CLIENTS) as u64
                });
                most = resident();
                // With their futures, which are large in this build, and the test's own sockets.
                assert!(most < before + 24 * CLIENTS, "{before} {most} KiB");
                for client in &mut halves {
                    let reply = client.reply(false);
                    assert_eq!(reply.status(), 408);
                    assert!(client.at_end());
                }
            }
            let all = 2 * CLIENTS as u64;
            assert_eq!(total(&proxy.totals(), "timed_out"), all);
            assert_eq!(total(&proxy.totals(), "replies_4xx"), all);
            assert!(most > before + CLIENTS, "{before} {most} KiB");
            let quarter = before + (most - before) / 4;
            wait_until("memory goes back", || resident() < quarter);
        },
    );
}
