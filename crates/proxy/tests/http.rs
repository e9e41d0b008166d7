//! Modes reverse and forward, with real sockets.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Connection, ENGINES, Origin, PATIENCE, chunked, connect, pattern, reverse, settings, total,
};
use socket2::SockRef;
use weir_core::proxy::{Engine, OddFieldNames, Proxy, ProxyMode};
use weir_proxy::Server;

/// Around every limit at which bodies are moved differently.
const SIZES: [usize; 15] = [
    0, 1, 1000, 10_000, 32_768, 33_000, 33_792, 65_000, 65_536, 70_000, 98_304, 128_000, 300_000,
    1_000_000, 5_000_000,
];

#[test]
fn replies_of_every_size_and_framing_arrive_whole_on_one_connection() {
    for engine in ENGINES {
        let origin = Origin::start();
        let proxy = reverse(&origin, engine);
        let mut client = connect(proxy.address());
        for size in SIZES {
            for kind in ["length", "chunked"] {
                let reply = client.get(&format!("/{kind}/{size}"));
                assert_eq!(reply.status(), 200);
                assert!(reply.body == pattern(size), "{engine:?} {kind} {size}");
                assert_eq!(reply.field("via"), Some("1.1 weir"));
            }
        }
        assert_eq!(
            origin.connections(),
            1,
            "{engine:?}: the server's connection is kept"
        );
    }
}

/// How long replies take whose server sends a piece once the client has all of the one before.
fn time_of_pieces(replies: usize, pieces: &'static [usize], engine: Engine) -> Duration {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (receiver, all) = (Mutex::new(receiver), pattern(pieces.iter().sum()));
    let body = all.clone();
    let origin = Origin::serving(move |connection, _| {
        let length = body.len();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
        ));
        connection.0.get_ref().set_nodelay(true).unwrap();
        let mut left = &body[..];
        for &piece in pieces {
            receiver.lock().unwrap().recv().unwrap();
            connection.send(left.split_off(..piece).unwrap());
        }
        true
    });
    let proxy = reverse(&origin, engine);
    let mut client = connect(proxy.address());
    let begun = Instant::now();
    for _ in 0..replies {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.head().unwrap().status(), 200);
        let mut got = vec![0; all.len()];
        let mut left = &mut got[..];
        for &piece in pieces {
            sender.send(()).unwrap();
            client
                .0
                .read_exact(left.split_off_mut(..piece).unwrap())
                .unwrap();
        }
        assert!(got == all, "{engine:?}");
    }
    begun.elapsed()
}

/// The kernel holds the end of a piece back for the next one for 200 ms.
#[test]
fn the_end_of_what_a_pausing_server_has_sent_is_not_held_back() {
    for engine in ENGINES {
        let in_one_body = time_of_pieces(1, &[50_000; 20], engine);
        let bound = Duration::from_secs(2);
        assert!(in_one_body < bound, "{engine:?}: {in_one_body:?}");
        let before_a_short_rest = time_of_pieces(20, &[50_000, 50_000, 10_000], engine);
        assert!(
            before_a_short_rest < bound,
            "{engine:?}: {before_a_short_rest:?}"
        );
    }
}

/// The proxy receives little more than the head of a reply that is likely to be long, and lets it wait for the body.
#[test]
fn a_head_is_not_held_back_for_a_body_that_pauses_behind_it() {
    const LENGTH: usize = 300_000;
    /// Heads are received in steps of so many bytes.
    const STEP: usize = 64;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let with_head = (head.len() / STEP + 1) * STEP - head.len();
    for engine in ENGINES {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (receiver, head) = (Mutex::new(receiver), head.clone());
        let origin = Origin::serving(move |connection, _| {
            let body = pattern(LENGTH);
            connection.send([head.as_bytes(), &body[..with_head]].concat());
            receiver.lock().unwrap().recv().unwrap();
            connection.send(&body[with_head..]);
            true
        });
        let proxy = reverse(&origin, engine);
        let mut client = connect(proxy.address());
        let begun = Instant::now();
        for _ in 0..20 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.head().unwrap().status(), 200);
            let mut body = vec![0; LENGTH];
            let (first, rest) = body.split_at_mut(with_head);
            client.0.read_exact(first).unwrap();
            sender.send(()).unwrap();
            client.0.read_exact(rest).unwrap();
            assert!(body == pattern(LENGTH), "{engine:?}");
        }
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(2), "{engine:?}: {taken:?}");
    }
}

#[test]
fn a_reply_until_the_end_of_the_connection_arrives_whole() {
    for engine in ENGINES {
        let origin = Origin::start();
        let proxy = reverse(&origin, engine);
        for size in SIZES {
            let mut client = connect(proxy.address());
            let reply = client.get(&format!("/close/{size}"));
            assert!(reply.body == pattern(size), "{engine:?} {size}");
            assert_eq!(reply.field("connection"), Some("close"));
        }
    }
}

#[test]
fn request_bodies_of_every_size_and_framing_arrive_whole() {
    for engine in ENGINES {
        let origin = Origin::start();
        let proxy = reverse(&origin, engine);
        let mut client = connect(proxy.address());
        for size in SIZES {
            let body = pattern(size);
            client.send(format!(
                "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: {size}\r\n\r\n"
            ));
            client.send(&body);
            assert!(client.reply(false).body == body, "{engine:?} {size}");
            client.send("POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&body, 40_000));
            assert!(
                client.reply(false).body == body,
                "{engine:?} chunked {size}"
            );
        }
        assert_eq!(origin.connections(), 1);
    }
}

#[test]
fn both_sides_get_framing_in_one_form_and_servers_no_odd_field_names() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let (origin, _) = Origin::counting(move |connection, request, _| {
        record.lock().unwrap().push(request.clone());
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding:\tChunked\t\r\nA_B: c\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
        true
    });
    for (odd_field_names, dropped) in [(OddFieldNames::Drop, 2), (OddFieldNames::Pass, 0)] {
        let settings = Proxy {
            odd_field_names,
            ..settings(ProxyMode::Reverse, &[origin.address])
        };
        let proxy = Server::start(settings).unwrap();
        let mut client = connect(proxy.address());
        client.send(
            "POST /a HTTP/1.1\r\nHost:\ttest \r\nContent-Length:\t03\t\r\nTransfer_Encoding: chunked\r\n\r\nabc\
             POST /b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\t\r\nX.Y: z\r\n\r\n1\r\nd\r\n0\r\n\r\n",
        );
        for _ in 0..2 {
            let reply = client.reply(false);
            assert_eq!(reply.field("transfer-encoding"), Some("chunked"));
            assert_eq!((reply.field("a_b"), &*reply.body), (Some("c"), &b"hi"[..]));
        }
        drop(client);
        assert_eq!(total(&common::end(proxy), "fields_dropped"), dropped);
        let requests = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(requests.len(), 2, "{requests:?}");
        let [length, chunks] = &requests[..] else {
            unreachable!()
        };
        assert_eq!(
            (length.field("host"), length.field("content-length")),
            (Some("test"), Some("3"))
        );
        assert_eq!(length.body, b"abc");
        assert_eq!(
            (chunks.field("transfer-encoding"), &*chunks.body),
            (Some("chunked"), &b"d"[..])
        );
        let odd = [length.field("transfer_encoding"), chunks.field("x.y")];
        assert_eq!(
            odd.iter().flatten().count(),
            2 - dropped as usize,
            "{requests:?}"
        );
    }
}

#[test]
fn body_bytes_after_the_length_belong_to_the_next_request() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    let mut bytes = Vec::new();
    for size in SIZES {
        write!(
            bytes,
            "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: {size}\r\n\r\n"
        )
        .unwrap();
        bytes.extend(pattern(size));
        write!(bytes, "GET /length/{size} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    }
    let mut sender = client.0.get_ref().try_clone().unwrap();
    let sending = thread::spawn(move || sender.write_all(&bytes).unwrap());
    for size in SIZES {
        assert!(client.reply(false).body == pattern(size), "POST {size}");
        assert!(client.reply(false).body == pattern(size), "GET {size}");
    }
    sending.join().unwrap();
}

#[test]
fn a_reply_to_head_has_a_length_and_no_body() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    for _ in 0..2 {
        let reply = client.ask("HEAD /length/70000 HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(reply.field("content-length"), Some("70000"));
    }
}

#[test]
fn a_1_0_client_gets_chunks_without_their_framing_and_then_the_end() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    for size in SIZES {
        let mut client = connect(proxy.address());
        let reply = client.ask(&format!("GET /chunked/{size} HTTP/1.0\r\n\r\n"));
        assert!(reply.body == pattern(size), "{size}");
    }
}

#[test]
fn a_client_that_waits_for_100_gets_it_from_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    let proxy = Server::start(settings(ProxyMode::Reverse, &[backend])).unwrap();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut server = Connection::new(stream);
        let head = server.head().unwrap();
        assert_eq!(head.field("expect"), Some("100-continue"));
        server.send("HTTP/1.1 100 Continue\r\n\r\n");
        let mut body = [0; 5];
        server.0.read_exact(&mut body).unwrap();
        server.send("HTTP/1.1 204 No Content\r\n\r\n");
        body
    });
    let mut client = connect(proxy.address());
    client
        .send("PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.reply(false).status(), 100);
    client.send("hello");
    assert_eq!(client.reply(true).status(), 204);
    assert_eq!(&server.join().unwrap(), b"hello");
}

#[test]
fn an_upgrade_becomes_a_tunnel() {
    let origin = Origin::serving(|connection, request| {
        assert_eq!(request.field("upgrade"), Some("echo"));
        connection.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello",
        );
        let mut bytes = Vec::new();
        connection.0.read_to_end(&mut bytes).unwrap();
        connection.send(bytes);
        false
    });
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    client
        .send("GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nahead");
    assert_eq!(client.reply(true).status(), 101);
    client.send(", and more");
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut bytes = String::new();
    client.0.read_to_string(&mut bytes).unwrap();
    assert_eq!(bytes, "helloahead, and more");
}

#[test]
fn an_upgrade_to_what_was_not_offered_is_no_tunnel() {
    for (offer, taken, status) in [
        ("websocket", "Upgrade: WebSocket\r\n", 101),
        ("echo, websocket/13", "Upgrade: websocket/13\r\n", 101),
        ("websocket", "Upgrade: foo\r\n", 502),
        ("websocket", "Upgrade: websocket, foo\r\n", 502),
        ("websocket", "Upgrade:\r\n", 502),
        ("websocket", "", 502),
    ] {
        let origin = Origin::serving(move |connection, _| {
            connection.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{taken}\r\n"
            ));
            connection.at_end();
            false
        });
        let proxy = reverse(&origin, Engine::Auto);
        let mut client = connect(proxy.address());
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: {offer}\r\n\r\n"
        ));
        let head = client.head().unwrap();
        assert_eq!(head.status(), status, "{offer} {taken}");
    }
}

#[test]
fn a_forward_proxy_goes_where_the_client_says() {
    let origins = [Origin::start(), Origin::start()];
    let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
    let mut client = connect(proxy.address());
    for round in 0..2 {
        for origin in &origins {
            let address = origin.address;
            let by_name = format!("localhost:{}", address.port());
            for host in [address.to_string(), by_name] {
                let request =
                    format!("GET http://{host}/length/4000 HTTP/1.1\r\nHost: {host}\r\n\r\n");
                assert!(client.ask(&request).body == pattern(4000), "{round} {host}");
            }
            assert_eq!(origin.connections(), 1);
        }
    }
}

#[test]
fn connect_opens_a_tunnel_that_carries_every_byte() {
    let origin = Origin::start();
    let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
    let mut client = connect(proxy.address());
    let host = origin.address;
    client.send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(client.reply(true).status(), 200);
    for size in SIZES {
        assert!(
            client.get(&format!("/length/{size}")).body == pattern(size),
            "{size}"
        );
    }
}

#[test]
fn a_reset_before_the_tunnel_stands_is_a_reset_to_the_server() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = origin.local_addr().unwrap();
    let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
    // Most of the resets come before the proxy has answered.
    for _ in 0..50 {
        let mut client = connect(proxy.address());
        client.send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let socket = SockRef::from(client.0.get_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let (mut server, _) = origin.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = server.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::ConnectionReset));
    }
}

#[test]
fn a_forward_proxy_answers_what_it_cannot_forward() {
    let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET https://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (
            "GET http://no.such.host.invalid/ HTTP/1.1\r\nHost: no.such.host.invalid\r\n\r\n",
            502,
        ),
        (
            "CONNECT no.such.host.invalid:443 HTTP/1.1\r\nHost: no.such.host.invalid:443\r\n\r\n",
            502,
        ),
        (
            "GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
            502,
        ),
    ] {
        assert_eq!(
            connect(proxy.address()).ask(request).status(),
            status,
            "{request}"
        );
    }
}

#[test]
fn what_stands_behind_a_refused_connect_is_never_taken_for_a_request() {
    let origin = Origin::start();
    let inner = format!(
        "GET http://{}/length/5 HTTP/1.1\r\nHost: x\r\n\r\n",
        origin.address
    );
    for (mode, destination, status) in [
        (ProxyMode::Forward, "127.0.0.1:1", 502),
        (ProxyMode::Forward, "169.254.169.254:80", 403),
        (ProxyMode::Reverse, "127.0.0.1:1", 405),
    ] {
        let backends = [origin.address];
        let backends = if mode == ProxyMode::Reverse {
            &backends[..]
        } else {
            &[]
        };
        let proxy = Server::start(settings(mode, backends)).unwrap();
        let mut client = connect(proxy.address());
        client.send(format!(
            "CONNECT {destination} HTTP/1.1\r\nHost: x\r\n\r\n{inner}"
        ));
        let reply = client.reply(false);
        assert_eq!(
            (reply.status(), reply.field("connection")),
            (status, Some("close"))
        );
        assert!(client.at_end(), "{mode:?} {destination}");
    }
    assert_eq!(origin.connections(), 0, "nothing of it reaches a server");
}

#[test]
fn replies_are_counted_by_the_class_of_their_status_whoever_made_them() {
    let origin = Origin::serving(|connection, request| {
        let status = request.first_line.split(['/', ' ']).nth(2).unwrap();
        let framing = match request.first_line.contains("?chunked") {
            true => "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            false => "Content-Length: 0\r\n\r\n",
        };
        let status = &status[..3];
        let kept = "Cache-Control: max-age=60";
        connection.send(format!("HTTP/1.1 {status} X\r\n{kept}\r\n{framing}"));
        true
    });
    for cache in [0, 1 << 20] {
        let mut settings = settings(ProxyMode::Reverse, &[origin.address]);
        settings.cache = cache;
        let proxy = Server::start(settings).unwrap();
        let mut client = connect(proxy.address());
        for path in [
            "/200",
            "/200?chunked",
            "/200",
            "/301",
            "/404",
            "/500",
            "/503?chunked",
        ] {
            client.get(path);
        }
        // The proxy's own.
        client.ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
        let totals = proxy.totals();
        let classes = ["replies_2xx", "replies_3xx", "replies_4xx", "replies_5xx"];
        let counted = classes.map(|class| total(&totals, class));
        assert_eq!(counted, [3, 1, 2, 2], "cache of {cache} bytes");
    }
}

#[test]
fn a_malformed_request_is_answered_and_the_connection_closed() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    let reply =
        client.ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /length/1 HTTP/1.1\r\n");
    assert_eq!(
        (reply.status(), reply.field("connection")),
        (400, Some("close"))
    );
    assert!(client.at_end());
    assert_eq!(origin.connections(), 0, "nothing of it reaches the server");
}

#[test]
fn a_kept_connection_that_the_server_closed_is_replaced_unnoticed() {
    let origin = Origin::serving(|connection, _| {
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        false
    });
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    for _ in 0..20 {
        assert_eq!(client.get("/").body, b"ok");
    }
}

#[test]
fn a_request_that_may_be_repeated_goes_to_another_server_when_one_says_nothing() {
    let silent = Origin::serving(|_, _| false);
    let good = Origin::start();
    let backends = [silent.address, good.address];
    let proxy = Server::start(settings(ProxyMode::Reverse, &backends)).unwrap();
    let mut client = connect(proxy.address());
    for _ in 0..10 {
        assert_eq!(client.get("/length/5").status(), 200);
    }
    assert!(silent.connections() > 0);
    let post = "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n";
    let statuses: Vec<u16> = (0..4)
        .map(|_| connect(proxy.address()).ask(post).status())
        .collect();
    assert!(
        statuses.contains(&502),
        "a POST is not sent twice: {statuses:?}"
    );
}

#[test]
fn a_server_that_says_nothing_in_time_is_a_504() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(ProxyMode::Reverse, &[listener.local_addr().unwrap()]);
    settings.idle_timeout = Duration::from_millis(50);
    let proxy = Server::start(settings).unwrap();
    assert_eq!(connect(proxy.address()).get("/").status(), 504);
}

#[test]
fn a_head_that_comes_too_slowly_is_a_408() {
    let origin = Origin::start();
    let mut settings = settings(ProxyMode::Reverse, &[origin.address]);
    settings.head_timeout = Duration::from_millis(50);
    let proxy = Server::start(settings).unwrap();
    let mut client = connect(proxy.address());
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: te").status(), 408);
    assert!(client.at_end());
}

#[test]
fn a_drain_closes_idle_connections_and_lets_requests_finish() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::serving(move |connection, request| {
        if request.first_line.contains("slow") {
            wait.lock().unwrap().recv().unwrap();
        }
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        true
    });
    let mut proxy = reverse(&origin, Engine::Auto);
    let (mut idle, mut busy) = (connect(proxy.address()), connect(proxy.address()));
    assert_eq!(idle.get("/").body, b"ok");
    busy.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
    while origin.connections() < 1
        || proxy
            .totals()
            .listener
            .iter()
            .any(|total| total.name == "requests" && total.value < 2)
    {
        thread::yield_now();
    }
    proxy.drain(PATIENCE);
    assert!(idle.at_end());
    go.send(()).unwrap();
    let reply = busy.reply(false);
    assert_eq!(
        (reply.body.as_slice(), reply.field("connection")),
        (&b"ok"[..], Some("close"))
    );
    drop(busy);
    let totals = proxy.join().unwrap();
    assert_eq!(total(&totals, "requests"), 2);
    assert_eq!(total(&totals, "transfers_broken"), 0);
}

/// As `docker exec` asks for it.
const UPGRADE: &str =
    "POST /exec/x/start HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n";
const SWITCHES: &str = "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

/// Sends back what comes, up to the end.
fn echo(connection: &mut Connection) {
    let mut bytes = [0; 1000];
    while let Ok(n @ 1..) = connection.0.read(&mut bytes) {
        connection.send(&bytes[..n]);
    }
}

#[test]
fn an_upgrade_with_a_body_has_its_tunnel_behind_the_body() {
    for engine in ENGINES {
        for size in [17, 70_000] {
            let origin = Origin::serving(move |connection, request| {
                assert_eq!(request.field("upgrade"), Some("tcp"));
                assert!(request.body == pattern(size), "{engine:?} {size}");
                connection.send(SWITCHES);
                echo(connection);
                false
            });
            let proxy = reverse(&origin, engine);
            let sized = format!("Content-Length: {size}\r\n\r\n").into_bytes();
            let in_chunks = "Transfer-Encoding: chunked\r\n\r\n".as_bytes();
            for (framing, body) in [
                (&sized[..], pattern(size)),
                (in_chunks, chunked(&pattern(size), 5000)),
            ] {
                let mut client = connect(proxy.address());
                client.send([UPGRADE.as_bytes(), framing, &body, b"first"].concat());
                assert_eq!(client.reply(false).status(), 101);
                client.send("second");
                let mut echoed = [0; 11];
                client.0.read_exact(&mut echoed).unwrap();
                assert_eq!(&echoed, b"firstsecond");
            }
        }
    }
}

#[test]
fn a_server_that_switches_before_it_has_the_body_gets_the_body_and_then_the_tunnel() {
    let origin = Origin::at_head(|connection| {
        connection.send(SWITCHES);
        let mut bytes = [0; 9];
        connection.0.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hellotcp!");
        connection.send("pong");
    });
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    client.send(format!("{UPGRADE}Content-Length: 5\r\n\r\n"));
    assert_eq!(client.reply(false).status(), 101);
    client.send("hel");
    client.send("lotcp!");
    let mut answer = String::new();
    client.0.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "pong");
}

#[test]
fn a_client_that_leaves_in_the_body_of_an_upgrade_opens_no_tunnel() {
    let (sender, ended) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let origin = Origin::at_head(move |connection| {
        connection.send(SWITCHES);
        let mut bytes = Vec::new();
        let end = connection.0.read_to_end(&mut bytes);
        sender.lock().unwrap().send((bytes, end.is_err())).unwrap();
    });
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    client.send(format!("{UPGRADE}Content-Length: 5\r\n\r\nhel"));
    assert_eq!(client.reply(false).status(), 101);
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    let (bytes, _) = ended.recv_timeout(PATIENCE).unwrap();
    assert_eq!(bytes, b"hel", "no end of the body is made up");
    let end = client.0.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(total(&common::end(proxy), "tunnels"), 0);
}

/// A server may take such a body for the next request: then the reply to it would be another client's.
#[test]
fn the_connection_of_an_upgrade_with_a_body_that_stays_http_carries_nothing_more() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    for request in [
        "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "GET /length/5 HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
            .to_owned(),
        UPGRADE.replace("/exec/x/start", "/echo") + "Content-Length: 5\r\n\r\nhello",
    ] {
        assert_eq!(client.ask(&request).status(), 200);
        assert_eq!(origin.connections(), 1);
    }
    assert_eq!(
        client.get("/length/5").status(),
        200,
        "the client's goes on"
    );
    assert_eq!(origin.connections(), 2);
}

#[test]
fn sizes_of_chunks_that_old_servers_fill_up_with_blanks_reach_clients_of_both_versions() {
    let padded = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2   \r\nok\r\n0   \r\n\r\n";
    let (origin, _) = Origin::replying(padded);
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/").body, b"ok");
    assert_eq!(client.get("/").body, b"ok", "its end was found");
    assert_eq!(origin.connections(), 1);
    let mut old = connect(proxy.address());
    assert_eq!(old.ask("GET / HTTP/1.0\r\n\r\n").body, b"ok");
    let request = "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n2   \r\nok\r\n0\r\n\r\n";
    assert_eq!(client.ask(request).status(), 400, "a client is not old");
}

#[test]
fn who_speaks_http2_or_tls_to_the_proxy_is_told_so() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    for (bytes, status, word) in [
        (
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            505,
            "this is HTTP/2",
        ),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            400,
            "this is TLS",
        ),
    ] {
        let mut client = connect(proxy.address());
        client.send(bytes);
        let reply = client.reply(false);
        assert_eq!(reply.status(), status);
        let why = reply.field("proxy-status").unwrap();
        assert!(why.contains(word), "{why}");
    }
}
