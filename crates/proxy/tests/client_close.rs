//! CLIENT_CLOSE between clients, the proxy and servers: who closes first, and what is left of it where one end does not know it.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{Connection, Message, Origin, connect, end, pattern, start, total, value, wait_until};
use weir_core::client_close::ClientClose;
use weir_core::proxy::{AcceptClientClose, Proxy, ProxyMode, SendClientClose, SendProxy};
use weir_proxy::{Server, ThreadState, Totals};

const ANNOUNCED: &str = "Connection: client-ends\r\n";

fn client_close() -> String {
    ClientClose { host: "test" }.to_string()
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n{fields}\r\n")
}

/// What a server has read of each of its connections: first lines, `knows` behind those that announce CLIENT_CLOSE, and
/// `end`.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Vec<String>>>>);

impl Seen {
    fn all(&self) -> Vec<Vec<String>> {
        self.0.lock().unwrap().clone()
    }

    fn becomes(&self, what: &[&[&str]]) {
        let mut last = Vec::new();
        let reached = weir_testbed::wait::try_until(common::PATIENCE, || {
            last = self.all();
            (last == what).then_some(())
        });
        assert!(reached.is_some(), "{last:?}, not {what:?}");
    }
}

/// A server that knows nothing of CLIENT_CLOSE unless `serve` does; that returns false to close.
fn origin(
    serve: impl Fn(&mut Connection, &Message) -> bool + Send + Sync + 'static,
) -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, serve) = (Seen::default(), Arc::new(serve));
    let shared = seen.clone();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            shared.0.lock().unwrap().push(Vec::new());
            let note = {
                let seen = shared.clone();
                move |what: String| seen.0.lock().unwrap()[number].push(what)
            };
            let serve = serve.clone();
            thread::spawn(move || {
                let mut connection = Connection::new(stream.unwrap());
                while let Some(request) = connection.request() {
                    let line = request.first_line.trim_end_matches(" HTTP/1.1");
                    let knows = request.field("connection") == Some("client-ends");
                    note(format!("{line}{}", if knows { " knows" } else { "" }));
                    if !serve(&mut connection, &request) {
                        return;
                    }
                }
                note("end".to_owned());
            });
        }
    });
    (address, seen)
}

fn ok(connection: &mut Connection, body: &str) {
    let length = body.len();
    let _ = connection.try_send(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Replies with the path. To CLIENT_CLOSE it says nothing.
fn knowing(connection: &mut Connection, request: &Message) -> bool {
    let mut words = request.first_line.split(' ');
    if words.next() != Some("CLIENT_CLOSE") {
        ok(connection, words.next().unwrap());
    }
    true
}

fn accepting(address: SocketAddr, accept: AcceptClientClose) -> Server {
    start(ProxyMode::Reverse, &[address], |proxy| {
        proxy.accept_client_close = accept;
    })
}

fn sending(address: SocketAddr, send: SendClientClose, change: impl Fn(&mut Proxy)) -> Server {
    start(ProxyMode::Reverse, &[address], |proxy| {
        proxy.send_client_close = send;
        change(proxy);
    })
}

fn of_backend(totals: &Totals, name: &str) -> u64 {
    value(&totals.backends[0].1, name)
}

/// Whether the proxy has said something, or has closed.
fn has_come(client: &mut Connection) -> bool {
    let stream = client.0.get_ref();
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn off_it_is_a_method_that_is_not_implemented_and_no_server_gets_it() {
    let (address, seen) = origin(knowing);
    for mode in [ProxyMode::Reverse, ProxyMode::Forward] {
        let backends = [address];
        let backends = if mode == ProxyMode::Reverse {
            &backends[..]
        } else {
            &[]
        };
        let proxy = start(mode, backends, |_| {});
        let mut client = connect(proxy.address());
        assert_eq!(client.ask(&client_close()).status(), 501);
        // The connection goes on.
        assert_eq!(client.ask(&client_close()).status(), 501);
        let totals = end(proxy);
        assert_eq!(total(&totals, "client_closes"), 0);
    }
    assert!(seen.all().is_empty(), "{:?}", seen.all());
}

#[test]
fn it_ends_a_connection_without_a_reply_and_the_client_closes_first() {
    let (address, _) = origin(knowing);
    for accept in [AcceptClientClose::On, AcceptClientClose::Ask] {
        let proxy = accepting(address, accept);
        let mut client = connect(proxy.address());
        assert_eq!(client.get("/a").body, b"/a");
        client.send(client_close());
        wait_until("the proxy has read it", || {
            total(&proxy.totals(), "client_closes") == 1
        });
        assert!(!has_come(&mut client), "the proxy replies or closes first");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert!(client.at_end());
        let totals = end(proxy);
        assert_eq!(
            (total(&totals, "requests"), total(&totals, "timed_out")),
            (1, 0)
        );
    }
}

#[test]
fn replies_before_it_arrive_and_what_is_behind_it_is_no_request() {
    let (address, seen) = origin(knowing);
    let proxy = accepting(address, AcceptClientClose::On);
    let mut client = connect(proxy.address());
    client.send(get("/a", "") + &get("/b", "") + &client_close() + &get("/c", ""));
    assert_eq!(client.reply(false).body, b"/a");
    assert_eq!(client.reply(false).body, b"/b");
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert!(client.at_end());
    end(proxy);
    seen.becomes(&[&["GET /a", "GET /b", "end"]]);
}

#[test]
fn in_another_form_it_ends_nothing_and_no_server_gets_it() {
    let (address, seen) = origin(knowing);
    let proxy = accepting(address, AcceptClientClose::On);
    for (request, status, goes_on) in [
        // It came through an intermediary that does not know it, and that may have other clients.
        ("CLIENT_CLOSE * HTTP/1.1\r\nHost: a\r\n\r\n", 501, true),
        (
            "CLIENT_CLOSE / HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\n\r\n",
            501,
            true,
        ),
        (
            "CLIENT_CLOSE http://a/ HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\n\r\n",
            501,
            true,
        ),
        (
            "CLIENT_CLOSE * HTTP/1.0\r\nHost: a\r\nConnection: client-ends\r\n\r\n",
            501,
            false,
        ),
        // What follows is its body to one reader and the next request to another.
        (
            "CLIENT_CLOSE * HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\nContent-Length: 5\r\n\r\nhello",
            400,
            false,
        ),
        (
            "CLIENT_CLOSE * HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            false,
        ),
        (
            "CLIENT_CLOSE a:80 HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\n\r\n",
            400,
            false,
        ),
        (
            "client_close * HTTP/1.1\r\nHost: a\r\nConnection: client-ends\r\n\r\n",
            400,
            false,
        ),
    ] {
        let mut client = connect(proxy.address());
        assert_eq!(client.ask(request).status(), status, "{request}");
        match goes_on {
            true => assert_eq!(client.get("/a").body, b"/a", "{request}"),
            false => assert!(client.at_end(), "{request}"),
        }
    }
    assert_eq!(total(&end(proxy), "client_closes"), 0);
    let all = seen.all().concat();
    assert!(
        all.iter().all(|line| line == "GET /a" || line == "end"),
        "{all:?}"
    );
}

#[test]
fn a_client_that_says_so_and_does_not_close_is_closed_whatever_it_sends() {
    let (address, _) = origin(knowing);
    let proxy = accepting(address, AcceptClientClose::On);
    let mut silent = connect(proxy.address());
    let mut talking = connect(proxy.address());
    for client in [&mut silent, &mut talking] {
        client.send(client_close());
    }
    let block = pattern(64 << 10);
    wait_until("the proxy takes no more", || {
        talking.try_send(&block).is_err()
    });
    assert!(silent.at_end());
    assert_eq!(total(&end(proxy), "client_closes"), 2);
}

/// A proxy that has a client and is about to end: it accepts no more.
fn about_to_end(change: impl Fn(&mut Proxy)) -> (Server, Connection, Seen) {
    let (address, seen) = origin(|connection, request| {
        let _ = connection.try_send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n");
        let path = request.first_line.split(' ').nth(1).unwrap();
        let length = path.len();
        let _ = connection.try_send(format!("Content-Length: {length}\r\n\r\n{path}"));
        true
    });
    let mut proxy = start(ProxyMode::Reverse, &[address], |proxy| {
        proxy.accept_client_close = AcceptClientClose::Ask;
        change(proxy);
    });
    let mut client = connect(proxy.address());
    assert_eq!(client.ask(&get("/a", ANNOUNCED)).field("connection"), None);
    proxy.retire();
    becomes_draining(&proxy);
    (proxy, client, seen)
}

fn becomes_draining(proxy: &Server) {
    wait_until("the proxy accepts no more", || {
        proxy
            .threads()
            .all(|thread| thread.state == ThreadState::Draining)
    });
}

/// What the next reply says of the connection.
fn told(client: &mut Connection, fields: &str) -> Option<String> {
    let reply = client.ask(&get("/a", fields));
    assert_eq!((reply.status(), &reply.body[..]), (200, &b"/a"[..]));
    reply.field("connection").map(ToOwned::to_owned)
}

#[test]
fn a_proxy_that_ends_asks_a_client_that_knows_it_to_close() {
    for cache in [0, 1 << 20] {
        let (proxy, mut client, _) = about_to_end(|proxy| proxy.cache = cache);
        assert_eq!(told(&mut client, ANNOUNCED).as_deref(), Some("client-ends"));
        client.send(client_close());
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert!(client.at_end());
        let totals = end(proxy);
        let counted = ["client_closes_asked", "client_closes", "timed_out"];
        assert_eq!(counted.map(|name| total(&totals, name)), [1, 1, 0]);
    }
}

#[test]
fn a_fin_alone_does_what_was_asked_for() {
    let (proxy, mut client, _) = about_to_end(|_| {});
    assert_eq!(told(&mut client, ANNOUNCED).as_deref(), Some("client-ends"));
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert!(client.at_end());
    let totals = end(proxy);
    let counted = ["client_closes_asked", "client_closes", "timed_out"];
    assert_eq!(counted.map(|name| total(&totals, name)), [1, 0, 0]);
}

#[test]
fn a_request_that_was_on_its_way_when_the_client_was_asked_is_answered() {
    let (proxy, mut client, _) = about_to_end(|_| {});
    assert_eq!(told(&mut client, ANNOUNCED).as_deref(), Some("client-ends"));
    let late = client.ask(&get("/late", ANNOUNCED));
    assert_eq!((late.status(), &late.body[..]), (200, &b"/late"[..]));
    // It is asked once.
    assert_eq!(late.field("connection"), Some("close"));
    assert!(client.at_end());
    assert_eq!(total(&end(proxy), "client_closes_asked"), 1);
}

#[test]
fn a_client_that_was_asked_and_does_nothing_is_closed_in_time() {
    let (proxy, mut client, _) = about_to_end(|proxy| proxy.keep_alive = Duration::from_secs(3600));
    assert_eq!(told(&mut client, ANNOUNCED).as_deref(), Some("client-ends"));
    assert!(client.at_end());
    assert_eq!(total(&end(proxy), "timed_out"), 1);
}

#[test]
fn a_client_that_does_not_know_it_is_closed_as_ever() {
    let (proxy, mut client, _) = about_to_end(|_| {});
    assert_eq!(told(&mut client, "").as_deref(), Some("close"));
    assert!(client.at_end());
    assert_eq!(total(&end(proxy), "client_closes_asked"), 0);
}

#[test]
fn a_connection_without_a_request_ends_with_it_for_the_server_that_settings_name() {
    for (send, announced, last) in [
        (SendClientClose::Off, "", &[][..]),
        (SendClientClose::Asked, " knows", &[][..]),
        (
            SendClientClose::Always,
            " knows",
            &["CLIENT_CLOSE * knows"][..],
        ),
    ] {
        let (address, seen) = origin(knowing);
        // None is kept.
        let proxy = sending(address, send, |proxy| proxy.max_idle = 0);
        assert_eq!(connect(proxy.address()).get("/a").body, b"/a");
        let asks = format!("GET /a{announced}");
        let expected = [&[&asks[..]], last, &["end"]].concat();
        seen.becomes(&[&expected]);
        assert_eq!(
            of_backend(&end(proxy), "client_closes_sent"),
            last.len() as u64
        );
    }
}

#[test]
fn a_connection_that_its_server_asks_to_close_ends_with_it() {
    for (send, asks, sent) in [
        (SendClientClose::Off, 0, 0),
        (SendClientClose::Asked, 1, 1),
        (SendClientClose::Always, 1, 1),
    ] {
        let (address, seen) = origin(|connection, request| {
            if request.first_line.starts_with("GET /ask ") {
                connection.send(
                    "HTTP/1.1 200 OK\r\nConnection: client-ends\r\nContent-Length: 2\r\n\r\nok",
                );
                return true;
            }
            knowing(connection, request)
        });
        let proxy = sending(address, send, |_| {});
        let mut client = connect(proxy.address());
        assert_eq!(client.get("/a").body, b"/a");
        let reply = client.get("/ask");
        assert_eq!(
            (reply.field("connection"), &reply.body[..]),
            (None, &b"ok"[..])
        );
        // It was on another connection if that one was to be closed.
        assert_eq!(client.get("/b").body, b"/b");
        if sent == 1 {
            let first = [
                "GET /a knows",
                "GET /ask knows",
                "CLIENT_CLOSE * knows",
                "end",
            ];
            seen.becomes(&[&first, &["GET /b knows"]]);
        } else {
            seen.becomes(&[&["GET /a", "GET /ask", "GET /b"]]);
        }
        let totals = end(proxy);
        assert_eq!(of_backend(&totals, "asked_to_close"), asks);
        assert_eq!(of_backend(&totals, "client_closes_sent"), sent);
    }
}

#[test]
fn a_connection_that_was_idle_for_keep_alive_ends_with_it() {
    let (address, seen) = origin(knowing);
    let proxy = sending(address, SendClientClose::Always, |proxy| {
        proxy.keep_alive = Duration::from_millis(1);
    });
    assert_eq!(connect(proxy.address()).get("/a").body, b"/a");
    seen.becomes(&[&["GET /a knows", "CLIENT_CLOSE * knows", "end"]]);
    end(proxy);
}

#[test]
fn the_connection_of_one_client_ends_with_it_when_that_client_leaves() {
    let (address, seen) = origin_behind_proxy_header();
    let proxy = sending(address, SendClientClose::Always, |proxy| {
        proxy.send_proxy = SendProxy::V1;
    });
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/a").body, b"/a");
    assert_eq!(client.get("/b").body, b"/b");
    drop(client);
    seen.becomes(&[&["GET /a", "GET /b", "CLIENT_CLOSE *", "end"]]);
    end(proxy);
}

/// One that reads a PROXY header first.
fn origin_behind_proxy_header() -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Seen::default());
    let shared = seen.clone();
    thread::spawn(move || {
        let mut connection = Connection::new(listener.accept().unwrap().0);
        shared.0.lock().unwrap().push(Vec::new());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut connection.0, &mut line).unwrap();
        assert!(line.starts_with("PROXY TCP4 "), "{line}");
        let note = |what: &str| shared.0.lock().unwrap()[0].push(what.to_owned());
        while let Some(request) = connection.request() {
            note(request.first_line.trim_end_matches(" HTTP/1.1"));
            knowing(&mut connection, &request);
        }
        note("end");
    });
    (address, seen)
}

/// What a server does on CLIENT_CLOSE that does not know it.
type Unaware = fn(&mut Connection) -> bool;

const UNAWARE: [Unaware; 6] = [
    |connection| {
        let _ =
            connection.try_send("HTTP/1.1 501 Not Implemented\r\nContent-Length: 5\r\n\r\nstale");
        true
    },
    |connection| {
        let _ = connection.try_send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nstale");
        false
    },
    // As if it were the reply to the next request.
    |connection| {
        ok(connection, "stale");
        true
    },
    |connection| {
        let _ = connection.try_send(b"\0\xff no HTTP\n".repeat(100));
        false
    },
    |connection| {
        // More than the proxy takes.
        let _ = connection.try_send(pattern(4 << 20));
        false
    },
    |connection| {
        let socket = socket2::SockRef::from(connection.0.get_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        false
    },
];

#[test]
fn the_reply_of_a_server_that_does_not_know_it_is_nobodys() {
    for (number, unaware) in UNAWARE.into_iter().enumerate() {
        let (address, seen) = origin(move |connection, request| {
            match request.first_line.starts_with("CLIENT_CLOSE") {
                true => unaware(connection),
                false => knowing(connection, request),
            }
        });
        let proxy = sending(address, SendClientClose::Always, |proxy| proxy.max_idle = 1);
        // Two at a time, so that each time one of their connections is closed.
        let clients: Vec<_> = (0..2)
            .map(|client| {
                let address = proxy.address();
                thread::spawn(move || {
                    let mut connection = connect(address);
                    for request in 0..30 {
                        let path = format!("/{client}/{request}");
                        let reply = connection.get(&path);
                        assert_eq!((reply.status(), &reply.body[..]), (200, path.as_bytes()));
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        let totals = end(proxy);
        let failed = ["failures", "connects_failed"].map(|name| of_backend(&totals, name));
        assert_eq!(failed, [0, 0], "way {number}");
        assert_eq!(total(&totals, "retries"), 0, "way {number}");
        // The server may still be reading.
        let sent = of_backend(&totals, "client_closes_sent");
        wait_until(&format!("{sent} were heard, way {number}"), || {
            let all = seen.all().concat();
            let said = all.iter().filter(|line| line.starts_with("CLIENT_CLOSE"));
            said.count() as u64 == sent
        });
    }
}

#[test]
fn two_proxies_in_a_row_close_from_the_front() {
    let (address, _) = origin(knowing);
    let mut back = accepting(address, AcceptClientClose::Ask);
    let front = sending(back.address(), SendClientClose::Asked, |_| {});
    let mut client = connect(front.address());
    assert_eq!(client.get("/a").body, b"/a");
    back.retire();
    becomes_draining(&back);
    assert_eq!(client.get("/b").body, b"/b");
    wait_until("the back has ended", || back.is_finished());
    let totals = back.totals();
    let counted = ["client_closes_asked", "client_closes", "timed_out"];
    assert_eq!(counted.map(|name| total(&totals, name)), [1, 1, 0]);
    assert_eq!(of_backend(&end(front), "client_closes_sent"), 1);
}

#[test]
fn a_server_that_closes_itself_is_told_nothing() {
    let origin = Origin::start();
    let proxy = sending(origin.address, SendClientClose::Always, |proxy| {
        proxy.max_idle = 0
    });
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/close/5").body, pattern(5));
    assert_eq!(of_backend(&end(proxy), "client_closes_sent"), 0);
}

#[test]
fn tunnels_are_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = start(ProxyMode::Tcp, &[listener.local_addr().unwrap()], |proxy| {
        proxy.accept_client_close = AcceptClientClose::On;
        proxy.send_client_close = SendClientClose::Always;
    });
    let mut client = common::connect_tcp(proxy.address());
    client.write_all(client_close().as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = String::new();
    let (mut server, _) = listener.accept().unwrap();
    server.read_to_string(&mut got).unwrap();
    assert_eq!(got, client_close());
    drop(server);
    end(proxy);
}
