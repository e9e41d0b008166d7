//! A limited number of connections to a backend, and the clients that wait for one.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, SockRef, Socket, Type};
use weir_core::class::Class;
use weir_core::prefix::parse_prefix;
use weir_core::proxy::{Balance, Proxy, ProxyMode};
use weir_proxy::Server;

use crate::common::{self, Connection, Message, Origin, PATIENCE, connect, value, wait_until};

fn settings(mode: ProxyMode, backend: SocketAddr, limit: u32) -> Proxy {
    let mut settings = common::settings(mode, &[backend]);
    settings.max_connections = limit;
    settings.queue_timeout = PATIENCE;
    settings.threads = 2;
    settings
}

fn connect_from(proxy: &Server, ip: &str) -> Connection {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let ip: IpAddr = ip.parse().unwrap();
    socket.bind(&SocketAddr::new(ip, 0).into()).unwrap();
    socket.connect(&proxy.address().into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Connection(BufReader::new(socket.into()))
}

/// Whether the peer has not closed it.
fn is_open(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = recv(stream, &mut [0; 1], flags);
    matches!(seen, Ok((_, 1..)) | Err(Errno::AGAIN))
}

/// A server that counts how many connections to it are open at once. It looks when it accepts one.
/// The end of another may be on its way then, and is waited for, while no client is answered: one that
/// is open in truth stays so.
fn counting_server(limit: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, answering) = (most.clone(), Arc::new(Mutex::new(())));
    thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            open.push(stream.try_clone().unwrap());
            let no_answers = answering.lock().unwrap();
            let start = Instant::now();
            while open.len() > limit && start.elapsed() < Duration::from_secs(1) {
                open.retain(is_open);
            }
            drop(no_answers);
            seen.fetch_max(open.len(), Ordering::Relaxed);
            let answering = answering.clone();
            thread::spawn(move || serve(stream, &answering));
        }
    });
    (address, most)
}

fn serve(stream: TcpStream, answering: &Mutex<()>) {
    let mut connection = Connection(BufReader::new(stream));
    while let Some(request) = connection.request() {
        let close = request.first_line.contains("close");
        let last = if close { "Connection: close\r\n" } else { "" };
        let may_answer = answering.lock().unwrap();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{last}\r\nok"
        ));
        drop(may_answer);
        if close {
            // The proxy closes first.
            let _ = connection.0.read_to_end(&mut Vec::new());
            return;
        }
    }
}

#[test]
fn there_are_never_more_connections_than_allowed_whichever_thread_asks() {
    let (backend, most) = counting_server(3);
    let proxy = Server::start(settings(ProxyMode::Reverse, backend, 3)).unwrap();
    thread::scope(|scope| {
        for number in 0..30 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut client = connect(proxy.address());
                for round in 0..20 {
                    let path = match (number + round) % 3 {
                        0 => "/close",
                        _ => "/keep",
                    };
                    assert_eq!(client.get(path).status(), 200);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), 3);
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn a_kept_connection_goes_to_the_thread_that_needs_it() {
    let origin = Origin::start();
    let proxy = Server::start(settings(ProxyMode::Reverse, origin.address, 1)).unwrap();
    let mut clients: Vec<Connection> = (0..20).map(|_| connect(proxy.address())).collect();
    for _ in 0..5 {
        for client in &mut clients {
            assert_eq!(client.get("/length/70000").status(), 200);
        }
    }
    assert_eq!(origin.connections(), 1);
    let connections = proxy.servers().backends[0].connections;
    assert_eq!(connections.in_use + connections.idle, 1);
}

/// A server that answers a request when it is told to, and says which it was.
fn server_on_command() -> (Origin, Sender<()>, Receiver<String>) {
    let (go, wait) = channel::<()>();
    let (tell, told) = channel();
    let wait = Mutex::new(wait);
    let tell = Mutex::new(tell);
    let serve = move |connection: &mut Connection, request: Message| {
        let path = request.first_line.split(' ').nth(1).unwrap().to_owned();
        tell.lock().unwrap().send(path).unwrap();
        if wait.lock().unwrap().recv().is_err() {
            return false;
        }
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        true
    };
    (Origin::serving(serve), go, told)
}

fn ask(client: &mut Connection, path: &str) {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
}

fn gold_and_silver() -> Vec<Class> {
    let class = |name: &str, from: &str, priority| Class {
        from: vec![parse_prefix(from).unwrap()],
        priority,
        ..Class::new(name)
    };
    vec![
        class("gold", "127.0.2.0/24", 1),
        class("silver", "127.0.3.0/24", 2),
    ]
}

/// One request with the server, and these waiting, in the order in which they came.
fn busy_with(proxy: &Server, told: &Receiver<String>, waiting: &[(&str, &str)]) -> Vec<Connection> {
    let mut clients = vec![connect(proxy.address())];
    ask(&mut clients[0], "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    for (count, (ip, path)) in waiting.iter().enumerate() {
        let mut client = connect_from(proxy, ip);
        ask(&mut client, path);
        wait_until("it waits", || proxy.waiting() == count + 1);
        clients.push(client);
    }
    clients
}

#[test]
fn a_waiting_client_is_served_by_class_and_within_it_in_turn() {
    let (origin, go, told) = server_on_command();
    let mut settings = settings(ProxyMode::Reverse, origin.address, 1);
    settings.classes = gold_and_silver();
    let proxy = Server::start(settings).unwrap();
    let waiting = [
        ("127.0.4.1", "/none-1"),
        ("127.0.3.1", "/silver-1"),
        ("127.0.4.2", "/none-2"),
        ("127.0.2.1", "/gold-1"),
        ("127.0.3.2", "/silver-2"),
        ("127.0.2.2", "/gold-2"),
    ];
    let _clients = busy_with(&proxy, &told, &waiting);
    assert_eq!(proxy.waiting_by_priority(), [(1, 2), (2, 2), (64, 2)]);
    let mut order = Vec::new();
    for _ in waiting {
        go.send(()).unwrap();
        order.push(told.recv_timeout(PATIENCE).unwrap());
    }
    let expected = [
        "/gold-1",
        "/gold-2",
        "/silver-1",
        "/silver-2",
        "/none-1",
        "/none-2",
    ];
    assert_eq!(order, expected);
    for priority in [1, 2, 64] {
        assert_eq!(queued(&proxy, priority, ["waited", "served"]), [2, 2]);
        assert_ne!(queued(&proxy, priority, ["wait_ns"]), [0]);
    }
}

/// Counters of the clients of one priority that had to wait.
fn queued<const N: usize>(proxy: &Server, priority: u8, names: [&str; N]) -> [u64; N] {
    let totals = proxy.totals();
    let of = totals.queue.iter().find(|(own, _)| *own == priority);
    let (_, totals) = of.expect("a client waited");
    names.map(|name| value(totals, name))
}

#[test]
fn in_a_full_queue_the_last_of_the_lowest_class_is_refused() {
    let (origin, go, told) = server_on_command();
    let mut settings = settings(ProxyMode::Reverse, origin.address, 1);
    settings.classes = gold_and_silver();
    settings.queue_limit = 2;
    let proxy = Server::start(settings).unwrap();
    let waiting = [("127.0.3.1", "/silver-1"), ("127.0.3.2", "/silver-2")];
    let mut clients = busy_with(&proxy, &told, &waiting);
    let mut gold = connect_from(&proxy, "127.0.2.1");
    ask(&mut gold, "/gold");
    let assert_lost = |client: &mut Connection| {
        let reply = client.reply(false);
        assert_eq!(reply.status(), 503);
        let why = reply.field("proxy-status").unwrap();
        assert!(why.contains("error=connection_limit_reached"), "{why}");
    };
    assert_lost(&mut clients[2]);
    let mut late = connect_from(&proxy, "127.0.3.3");
    ask(&mut late, "/silver-3");
    assert_lost(&mut late);
    for path in ["/gold", "/silver-1"] {
        go.send(()).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), path);
    }
    let names = ["waited", "served", "refused"];
    assert_eq!(
        queued(&proxy, 2, names),
        [2, 1, 2],
        "one had no place at all"
    );
    assert_eq!(queued(&proxy, 1, names), [1, 1, 0]);
}

#[test]
fn a_client_that_waits_too_long_is_refused_and_may_ask_again() {
    let (origin, go, told) = server_on_command();
    let mut settings = settings(ProxyMode::Reverse, origin.address, 1);
    settings.queue_timeout = Duration::from_millis(50);
    let proxy = Server::start(settings).unwrap();
    let _first = busy_with(&proxy, &told, &[]);
    let mut late = connect(proxy.address());
    assert_eq!(late.get("/late").status(), 503);
    assert_eq!(proxy.waiting(), 0);
    go.send(()).unwrap();
    go.send(()).unwrap();
    wait_until("its place is free", || late.get("/again").status() == 200);
    assert_eq!(queued(&proxy, 64, ["late"]), [1]);
}

#[test]
fn a_client_that_is_gone_does_not_wait() {
    let (origin, go, told) = server_on_command();
    let proxy = Server::start(settings(ProxyMode::Reverse, origin.address, 1)).unwrap();
    let mut clients = busy_with(&proxy, &told, &[("127.0.4.1", "/gone")]);
    let gone = clients.pop().unwrap();
    SockRef::from(gone.0.get_ref())
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(gone);
    wait_until("it has left", || proxy.waiting() == 0);
    assert_eq!(queued(&proxy, 64, ["gone", "served"]), [1, 0]);
    go.send(()).unwrap();
    assert_eq!(clients[0].reply(false).status(), 200);
}

/// Ends the client's half, as both close(2) and shutdown(2) do: the proxy cannot tell them apart.
fn end_half(client: &Connection) {
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
}

#[test]
fn a_client_that_ends_its_half_keeps_its_turn_unless_abort_on_close_is_set() {
    for abort_on_close in [false, true] {
        let (origin, go, told) = server_on_command();
        let mut settings = settings(ProxyMode::Reverse, origin.address, 1);
        settings.abort_on_close = abort_on_close;
        let proxy = Server::start(settings).unwrap();
        let waiting = [("127.0.5.1", "/ended"), ("127.0.5.2", "/last")];
        let mut clients = busy_with(&proxy, &told, &waiting);
        end_half(&clients[1]);
        if abort_on_close {
            wait_until("it has left", || proxy.waiting() == 1);
            assert!(clients[1].at_end());
        }
        let expected: &[&str] = match abort_on_close {
            true => &["/last"],
            false => &["/ended", "/last"],
        };
        for path in expected {
            go.send(()).unwrap();
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), *path);
        }
        go.send(()).unwrap();
        assert_eq!(clients[2].reply(false).status(), 200);
        if !abort_on_close {
            assert_eq!(clients[1].reply(false).status(), 200);
        }
        let gone = u64::from(abort_on_close);
        assert_eq!(queued(&proxy, 64, ["gone", "served"]), [gone, 2 - gone]);
    }
}

#[test]
fn a_client_that_had_ended_before_it_had_to_wait_does_not_wait_with_abort_on_close() {
    let (origin, go, told) = server_on_command();
    let mut settings = settings(ProxyMode::Reverse, origin.address, 1);
    settings.abort_on_close = true;
    let proxy = Server::start(settings).unwrap();
    let mut clients = busy_with(&proxy, &told, &[]);
    let mut ended = connect_from(&proxy, "127.0.5.3");
    ended.send("PUT /ended HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    end_half(&ended);
    assert!(ended.at_end());
    assert_eq!(queued(&proxy, 64, ["gone", "served"]), [1, 0]);
    go.send(()).unwrap();
    assert_eq!(clients[0].reply(false).status(), 200);
}

#[test]
fn in_mode_tcp_too_a_client_that_ends_its_half_keeps_its_turn_unless_abort_on_close_is_set() {
    for abort_on_close in [false, true] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = settings(ProxyMode::Tcp, server.local_addr().unwrap(), 1);
        settings.abort_on_close = abort_on_close;
        let proxy = Server::start(settings).unwrap();
        let first = TcpStream::connect(proxy.address()).unwrap();
        let (served, _) = server.accept().unwrap();
        let mut ended = TcpStream::connect(proxy.address()).unwrap();
        ended.set_read_timeout(Some(PATIENCE)).unwrap();
        ended.write_all(b"hello").unwrap();
        ended.shutdown(Shutdown::Write).unwrap();
        if abort_on_close {
            let reset = ended.read(&mut [0]).unwrap_err();
            assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
            assert_eq!(queued(&proxy, 64, ["gone", "served"]), [1, 0]);
            continue;
        }
        wait_until("it waits", || proxy.waiting() == 1);
        drop((first, served));
        let (mut served, _) = server.accept().unwrap();
        let mut hello = Vec::new();
        served.read_to_end(&mut hello).unwrap();
        assert_eq!(hello, b"hello");
    }
}

#[test]
fn a_connection_of_mode_tcp_waits_for_another_to_end() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = server.local_addr().unwrap();
    let proxy = Server::start(settings(ProxyMode::Tcp, backend, 1)).unwrap();
    let first = TcpStream::connect(proxy.address()).unwrap();
    let (served, _) = server.accept().unwrap();
    let mut second = TcpStream::connect(proxy.address()).unwrap();
    second.write_all(b"hello").unwrap();
    wait_until("it waits", || proxy.waiting() == 1);
    drop((first, served));
    let (mut served, _) = server.accept().unwrap();
    let mut hello = [0; 5];
    served.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
}

#[test]
fn a_backend_that_is_down_gets_no_client_while_another_is_there() {
    let down = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (backend, most) = counting_server(2);
    let mut settings = settings(ProxyMode::Reverse, backend, 2);
    settings.backends = vec![down.into(), backend.into()];
    let proxy = Server::start(settings).unwrap();
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = connect(proxy.address());
                for _ in 0..20 {
                    assert_eq!(client.get("/close").status(), 200);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), 2);
}

/// A server that takes one connection and one request, and is gone before it answers; says when it has the request, and
/// goes when it is told to.
fn server_that_dies() -> (SocketAddr, Sender<()>, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (die, told) = channel();
    let (tell, has_request) = channel();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut connection = Connection(BufReader::new(stream));
        connection.request().unwrap();
        tell.send(()).unwrap();
        told.recv().unwrap();
        drop(listener);
    });
    (address, die, has_request)
}

#[test]
fn a_backend_that_dies_under_a_request_costs_no_client_while_another_is_there() {
    for other_is_busy in [false, true] {
        let (dying, die, has_request) = server_that_dies();
        let (other, go, told) = server_on_command();
        let mut settings = settings(ProxyMode::Reverse, dying, 1);
        settings.backends = vec![dying.into(), other.address.into()];
        let proxy = Server::start(settings).unwrap();
        let mut first = connect(proxy.address());
        ask(&mut first, "/first");
        has_request.recv_timeout(PATIENCE).unwrap();
        let mut busy = connect(proxy.address());
        if other_is_busy {
            ask(&mut busy, "/busy");
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/busy");
        }
        die.send(()).unwrap();
        if other_is_busy {
            wait_until("it waits", || proxy.waiting() == 1);
            go.send(()).unwrap();
            assert_eq!(busy.reply(false).status(), 200);
        }
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
        go.send(()).unwrap();
        assert_eq!(first.reply(false).status(), 200, "busy: {other_is_busy}");
    }
}

#[test]
fn least_prefers_the_backend_with_the_fewest_requests() {
    let (slow, go, told) = server_on_command();
    let quick = Origin::start();
    let mut settings = settings(ProxyMode::Reverse, slow.address, 0);
    settings.backends = vec![slow.address.into(), quick.address.into()];
    settings.balance = Balance::Least;
    settings.threads = 1;
    let proxy = Server::start(settings).unwrap();
    let mut held = connect(proxy.address());
    ask(&mut held, "/length/1");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/length/1");
    let mut client = connect(proxy.address());
    for _ in 0..10 {
        assert_eq!(client.get("/length/1").status(), 200);
    }
    assert!(told.try_recv().is_err(), "the busy backend was asked");
    go.send(()).unwrap();
    assert_eq!(held.reply(false).status(), 200);
}
