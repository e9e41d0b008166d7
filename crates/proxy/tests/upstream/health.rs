//! Checks of backends: one that is down gets nothing new, one that comes back is seen, and the gauges of
//! connections beside them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use weir_core::proxy::{HealthCheck, Proxy, ProxyMode, SendProxy};
use weir_proxy::{BackendReport, BackendState, Connections, Server};

use crate::common::{Connection, Message, Origin, connect, settings, value, wait_until};

/// An origin with a health of its own.
struct Patient {
    origin: Origin,
    /// What a check gets.
    health: Arc<AtomicU16>,
    /// Requests that were no checks.
    served: Arc<AtomicUsize>,
}

impl Patient {
    fn start() -> Patient {
        Patient::serving(|_| {})
    }

    /// `before` is called with each request that is no check, before it is answered.
    fn serving(before: impl Fn(&Message) + Send + Sync + 'static) -> Patient {
        let health = Arc::new(AtomicU16::new(200));
        let served = Arc::new(AtomicUsize::new(0));
        let (status, count) = (health.clone(), served.clone());
        let origin = Origin::serving(move |connection, request| {
            if request.first_line.starts_with("GET /health ") {
                let status = status.load(Ordering::Relaxed);
                let _ = connection.try_send(format!("HTTP/1.1 {status} X\r\n\r\n"));
                return false;
            }
            before(&request);
            count.fetch_add(1, Ordering::Relaxed);
            let sent = connection.try_send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            sent.is_ok()
        });
        Patient {
            origin,
            health,
            served,
        }
    }

    fn turn(&self, status: u16) {
        self.health.store(status, Ordering::Relaxed);
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }
}

fn checked(check: HealthCheck, mode: ProxyMode, backends: &[SocketAddr]) -> Proxy {
    let mut settings = settings(mode, backends);
    settings.health.check = check;
    settings.health.path = "/health".to_owned();
    settings.health.interval = Duration::from_millis(10);
    settings
}

fn before(patients: &[&Patient]) -> Server {
    let backends: Vec<SocketAddr> = patients.iter().map(|one| one.origin.address).collect();
    Server::start(checked(HealthCheck::Http, ProxyMode::Reverse, &backends)).unwrap()
}

fn backend(proxy: &Server, index: usize) -> BackendReport {
    proxy.servers().backends.swap_remove(index)
}

fn wait_for(proxy: &Server, index: usize, state: BackendState) {
    wait_until(state.word(), || backend(proxy, index).state == state);
}

fn count(proxy: &Server, index: usize, name: &str) -> u64 {
    value(&proxy.totals().backends[index].1, name)
}

#[test]
fn a_backend_that_fails_its_checks_gets_nothing_new_and_is_seen_when_it_comes_back() {
    let (sick, well) = (Patient::start(), Patient::start());
    let proxy = before(&[&sick, &well]);
    wait_for(&proxy, 0, BackendState::Up);
    let mut client = connect(proxy.address());
    let mut ask = |times: usize| {
        for _ in 0..times {
            assert_eq!(client.get("/").status(), 200);
        }
    };
    ask(10);
    assert_eq!((sick.served(), well.served()), (5, 5));
    // An idle connection to it is kept by now: it is not used either.
    sick.turn(500);
    wait_for(&proxy, 0, BackendState::Down);
    assert_eq!(backend(&proxy, 0).last_check, "status 500");
    ask(10);
    assert_eq!((sick.served(), well.served()), (5, 15));
    wait_until("its idle connection is closed", || {
        backend(&proxy, 0).connections == Connections::default()
    });
    sick.turn(204);
    wait_for(&proxy, 0, BackendState::Up);
    ask(10);
    assert_eq!((sick.served(), well.served()), (10, 20));
    assert_eq!(count(&proxy, 0, "downs"), 1);
    assert_eq!(count(&proxy, 1, "checks_failed"), 0);
}

#[test]
fn a_failure_now_and_then_takes_no_backend_out() {
    let patient = Arc::new(AtomicUsize::new(0));
    let checks = patient.clone();
    let origin = Origin::serving(move |connection, _| {
        let status = match checks.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => 200,
            _ => 500,
        };
        let _ = connection.try_send(format!("HTTP/1.1 {status} X\r\n\r\n"));
        false
    });
    let settings = checked(HealthCheck::Http, ProxyMode::Reverse, &[origin.address]);
    let proxy = Server::start(settings).unwrap();
    wait_until("twenty checks", || patient.load(Ordering::Relaxed) > 20);
    assert_eq!(count(&proxy, 0, "downs"), 0);
    assert!(count(&proxy, 0, "checks_failed") > 10);
}

#[test]
fn when_all_are_down_all_are_used() {
    let (one, other) = (Patient::start(), Patient::start());
    one.turn(500);
    other.turn(404);
    let proxy = before(&[&one, &other]);
    wait_for(&proxy, 0, BackendState::Down);
    wait_for(&proxy, 1, BackendState::Down);
    let mut client = connect(proxy.address());
    for _ in 0..10 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!((one.served(), other.served()), (5, 5));
    other.turn(200);
    wait_for(&proxy, 1, BackendState::Up);
    for _ in 0..10 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!((one.served(), other.served()), (5, 15));
}

#[test]
fn the_share_of_a_backend_that_is_down_goes_to_all_others_alike() {
    let patients: Vec<Patient> = (0..4).map(|_| Patient::start()).collect();
    patients[1].turn(503);
    let proxy = before(&patients.iter().collect::<Vec<_>>());
    wait_for(&proxy, 1, BackendState::Down);
    let mut client = connect(proxy.address());
    for _ in 0..30 {
        assert_eq!(client.get("/").status(), 200);
    }
    let served: Vec<usize> = patients.iter().map(Patient::served).collect();
    assert_eq!(served, [10, 0, 10, 10]);
}

#[test]
fn a_server_that_is_not_there_costs_no_client_an_attempt() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let echo = TcpListener::bind("127.0.0.1:0").unwrap();
    let backends = [address, echo.local_addr().unwrap()];
    thread::spawn(move || {
        for stream in echo.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                std::io::copy(&mut reader, &mut stream)
            });
        }
    });
    let proxy = Server::start(checked(HealthCheck::Tcp, ProxyMode::Tcp, &backends)).unwrap();
    wait_for(&proxy, 0, BackendState::Down);
    let mut byte = [0];
    for _ in 0..10 {
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut byte).unwrap();
    }
    assert_eq!(count(&proxy, 0, "connects_failed"), 0);
    let _back = TcpListener::bind(address).unwrap();
    wait_for(&proxy, 0, BackendState::Up);
    assert_eq!(backend(&proxy, 0).last_check, "connected");
}

#[test]
fn a_server_that_accepts_and_says_nothing_fails_by_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let backends = [silent.local_addr().unwrap()];
    let mut settings = checked(HealthCheck::Http, ProxyMode::Reverse, &backends);
    settings.health.timeout = Duration::from_millis(50);
    let proxy = Server::start(settings).unwrap();
    wait_for(&proxy, 0, BackendState::Down);
    let last = backend(&proxy, 0).last_check;
    assert_eq!(last, "no reply: health_timeout has passed");
}

#[test]
fn a_reply_that_the_proxy_would_not_pass_on_is_no_health() {
    let origin = Origin::serving(|connection, _| {
        let _ = connection.try_send("HTTP/1.1 200 OK\r\nContent-Length: 1,2\r\n\r\n");
        false
    });
    let settings = checked(HealthCheck::Http, ProxyMode::Reverse, &[origin.address]);
    let proxy = Server::start(settings).unwrap();
    wait_for(&proxy, 0, BackendState::Down);
    let last = backend(&proxy, 0).last_check;
    assert!(last.starts_with("no reply that could pass: "), "{last}");
}

/// The first lines of what a check sends.
fn sent_by_a_check(change: impl FnOnce(&mut Proxy)) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backends = [listener.local_addr().unwrap()];
    let mut settings = checked(HealthCheck::Http, ProxyMode::Reverse, &backends);
    change(&mut settings);
    let _proxy = Server::start(settings).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut sent = Vec::new();
    let mut byte = [0];
    while !sent.ends_with(b"\r\n\r\n") || sent.len() < 20 {
        stream.read_exact(&mut byte).unwrap();
        sent.push(byte[0]);
    }
    sent
}

#[test]
fn a_check_asks_for_what_it_is_told_to_and_says_that_it_is_the_proxys_own() {
    let sent = sent_by_a_check(|settings| {
        settings.health.host = Some("web.example".to_owned());
        settings.send_proxy = SendProxy::V1;
    });
    let sent = String::from_utf8(sent).unwrap();
    let begin = "PROXY UNKNOWN\r\nGET /health HTTP/1.1\r\nHost: web.example\r\nUser-Agent: weir/";
    assert!(sent.starts_with(begin), "{sent:?}");
    assert!(sent.contains("\r\nConnection: close\r\n"), "{sent:?}");
    let sent = sent_by_a_check(|settings| settings.send_proxy = SendProxy::V2);
    // Version 2, LOCAL.
    assert_eq!(sent[12], 0x20, "{sent:?}");
}

#[test]
fn a_path_that_makes_no_request_is_refused_at_start() {
    let mut settings = checked(
        HealthCheck::Http,
        ProxyMode::Reverse,
        &[([127, 0, 0, 1], 1).into()],
    );
    settings.health.path = "no path".to_owned();
    let refused = Server::start(settings).unwrap_err().to_string();
    assert!(refused.contains("health_path"), "{refused}");
}

#[test]
fn a_waiting_client_gets_no_connection_to_a_server_that_went_down() {
    let (tell, told) = channel();
    let held = || {
        let (go, wait) = channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let tell = tell.clone();
        let patient = Patient::serving(move |request| {
            tell.send(request.first_line.clone()).unwrap();
            wait.lock().unwrap().recv().unwrap();
        });
        (patient, go)
    };
    let ((sick, let_sick_go), (well, let_well_go)) = (held(), held());
    let backends = [sick.origin.address, well.origin.address];
    let mut settings = checked(HealthCheck::Http, ProxyMode::Reverse, &backends);
    settings.max_connections = 1;
    let proxy = Server::start(settings).unwrap();
    let ask = |path: &str| {
        let mut client = connect(proxy.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        client
    };
    let mut busy: Vec<Connection> = ["/first", "/second"].map(ask).into();
    told.recv().unwrap();
    told.recv().unwrap();
    let mut waiting = ask("/third");
    wait_until("it waits", || proxy.waiting() == 1);
    sick.turn(500);
    wait_for(&proxy, 0, BackendState::Down);
    let_sick_go.send(()).unwrap();
    wait_until("the connection to it is closed", || {
        backend(&proxy, 0).connections == Connections::default()
    });
    assert_eq!(proxy.waiting(), 1);
    let_well_go.send(()).unwrap();
    let_well_go.send(()).unwrap();
    assert_eq!(waiting.reply(false).status(), 200);
    assert_eq!((sick.served(), well.served()), (1, 2));
    for client in &mut busy {
        assert_eq!(client.reply(false).status(), 200);
    }
}

#[test]
fn connections_are_counted_while_they_are_busy_and_while_they_are_kept() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::serving(move |connection, _| {
        wait.lock().unwrap().recv().unwrap();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        true
    });
    let address = origin.address;
    for (mode, target) in [
        (ProxyMode::Reverse, "/".to_owned()),
        (ProxyMode::Forward, format!("http://{address}/")),
    ] {
        let backends: &[SocketAddr] = match mode {
            ProxyMode::Forward => &[],
            _ => &[address],
        };
        let proxy = Server::start(settings(mode, backends)).unwrap();
        let has = |in_use, idle| {
            let servers = proxy.servers();
            let backend = servers.backends.first().map(|backend| backend.connections);
            backend.unwrap_or(servers.origins) == Connections { in_use, idle }
        };
        let mut client = connect(proxy.address());
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n"));
        wait_until("it is in use", || has(1, 0));
        go.send(()).unwrap();
        assert_eq!(client.reply(false).status(), 200);
        wait_until("it is kept", || has(0, 1));
    }
}

#[test]
fn a_proxy_that_accepts_no_more_checks_no_more() {
    let patient = Patient::start();
    let mut proxy = before(&[&patient]);
    wait_for(&proxy, 0, BackendState::Up);
    proxy.retire();
    assert_eq!(backend(&proxy, 0).state, BackendState::Unchecked);
    let checks = count(&proxy, 0, "checks");
    wait_until("it has ended", || proxy.is_finished());
    assert_eq!(count(&proxy, 0, "checks"), checks);
}
