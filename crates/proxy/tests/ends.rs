//! How exchanges end that cannot go on: what was sent before arrives, and nothing that broke off
//! looks whole.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Connection, Origin, answer, connect, connect_narrow, pattern, reverse, settings, total,
    wait_until,
};
use socket2::SockRef;
use weir_core::proxy::{Engine, ProxyMode};
use weir_proxy::Server;

fn caching(origin: &Origin) -> Server {
    let mut settings = settings(ProxyMode::Reverse, &[origin.address]);
    settings.cache = 1 << 20;
    Server::start(settings).unwrap()
}

/// Heads and first bytes of replies that their origin leaves, and whether with a RST.
const BROKEN: [(&str, bool); 3] = [
    ("Content-Length: 1000\r\n\r\nonly this", false),
    ("Transfer-Encoding: chunked\r\n\r\n10\r\nonly this", false),
    ("Connection: close\r\n\r\nonly this", true),
];

/// An origin that leaves replies to `/broken` and sends the others.
fn breaking(head: &'static str, reset: bool) -> Origin {
    Origin::serving(move |connection, request| {
        if !request.first_line.contains("/broken") {
            return answer(connection, &request);
        }
        connection.send(format!("HTTP/1.1 200 OK\r\n{head}"));
        if reset {
            leave_with_reset(connection);
        }
        false
    })
}

fn leave_with_reset(connection: &Connection) {
    let socket = SockRef::from(connection.0.get_ref());
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// What is left to read, and how the connection ends.
fn rest(client: &mut Connection) -> (String, Result<(), ErrorKind>) {
    let mut rest = Vec::new();
    let end = client.0.read_to_end(&mut rest);
    let rest = String::from_utf8(rest).unwrap();
    (rest, end.map(drop).map_err(|error| error.kind()))
}

#[test]
fn a_reply_that_breaks_off_takes_nothing_of_those_before_it() {
    for (head, reset) in BROKEN {
        let origin = breaking(head, reset);
        let proxy = reverse(&origin, Engine::Auto);
        let mut client = connect_narrow(proxy.address());
        client.send(
            "GET /length/300000 HTTP/1.1\r\nHost: test\r\n\r\n\
             GET /broken HTTP/1.1\r\nHost: test\r\n\r\n",
        );
        wait_until("the reply has broken off", || {
            total(&proxy.totals(), "transfers_broken") == 1
        });
        assert!(client.reply(false).body == pattern(300_000), "{head:?}");
        let (rest, end) = rest(&mut client);
        assert!(rest.ends_with("only this"), "{head:?}: {rest:?}");
        let due = match reset {
            true => Err(ErrorKind::ConnectionReset),
            false => Ok(()),
        };
        assert_eq!(end, due, "{head:?}");
    }
}

#[test]
fn chunks_that_break_off_are_reset_to_a_1_0_client_which_does_not_see_their_end() {
    let origin = breaking(BROKEN[1].0, false);
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    client.send("GET /broken HTTP/1.0\r\n\r\n");
    let (rest, end) = rest(&mut client);
    assert!(rest.ends_with("\r\n\r\nonly this"), "{rest:?}");
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_client_that_ends_its_half_early_still_gets_what_was_sent_before_the_reset() {
    let origin = breaking(BROKEN[2].0, true);
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect_narrow(proxy.address());
    client.send(
        "GET /length/300000 HTTP/1.1\r\nHost: test\r\n\r\n\
         GET /broken HTTP/1.1\r\nHost: test\r\n\r\n",
    );
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    wait_until("the reply has broken off", || {
        total(&proxy.totals(), "transfers_broken") == 1
    });
    assert!(client.reply(false).body == pattern(300_000));
    let (_, end) = rest(&mut client);
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

#[test]
fn an_upgrade_that_is_reset_takes_nothing_of_the_replies_before_it() {
    let origin = Origin::serving(|connection, request| {
        if request.field("upgrade").is_none() {
            return answer(connection, &request);
        }
        connection
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        leave_with_reset(connection);
        false
    });
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect_narrow(proxy.address());
    client.send(
        "GET /length/300000 HTTP/1.1\r\nHost: test\r\n\r\n\
         GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    );
    wait_until("the tunnel has broken", || {
        total(&proxy.totals(), "transfers_broken") == 1
    });
    assert!(client.reply(false).body == pattern(300_000));
    let (_, end) = rest(&mut client);
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

/// A proxy in front of a server for one connection.
fn before_one(serve: impl FnOnce(Connection) + Send + 'static) -> (Server, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    let proxy = Server::start(settings(ProxyMode::Reverse, &[backend])).unwrap();
    let server = thread::spawn(move || serve(Connection::new(listener.accept().unwrap().0)));
    (proxy, server)
}

#[test]
fn an_early_reply_reaches_a_client_that_is_still_sending_whatever_it_said_of_its_connection() {
    for persistence in ["keep-alive", "close"] {
        let (proxy, server) = before_one(|mut server| {
            server.head().unwrap();
            server.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 300000\r\n\r\n");
            server.send(pattern(300_000));
            let _ = server.0.read_to_end(&mut Vec::new());
        });
        let mut client = connect_narrow(proxy.address());
        client.send(format!(
            "PUT /x HTTP/1.1\r\nHost: test\r\nConnection: {persistence}\r\n\
             Content-Length: 1000000000\r\n\r\nbegin"
        ));
        wait_until("the reply is there", || {
            client.0.get_ref().peek(&mut [0]).unwrap() > 0
        });
        let mut sender = client.0.get_ref().try_clone().unwrap();
        for _ in 0..10 {
            let _ = sender.write(&[b'x'; 10_000]);
        }
        let reply = client.reply(false);
        assert_eq!(reply.status(), 413, "{persistence}");
        assert!(reply.body == pattern(300_000), "{persistence}");
        assert!(client.at_end(), "{persistence}");
        drop((client, sender));
        server.join().unwrap();
    }
}

/// As one on a slow link does that reads its reply only when it has sent its body.
#[test]
fn a_client_that_goes_on_sending_for_seconds_after_an_early_reply_is_not_reset() {
    let (proxy, server) = before_one(|mut server| {
        server.head().unwrap();
        server.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nlong");
        let _ = server.0.read_to_end(&mut Vec::new());
    });
    let mut client = connect(proxy.address());
    client.send("PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nbegin");
    wait_until("the reply is there", || {
        client.0.get_ref().peek(&mut [0]).unwrap() > 0
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        client.send("more");
        thread::sleep(Duration::from_millis(50));
    }
    let reply = client.reply(false);
    assert_eq!((reply.status(), &reply.body[..]), (413, &b"long"[..]));
    assert!(client.at_end());
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_client_that_ends_before_its_request_does_still_gets_the_reply_that_has_begun() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (proxy, server) = before_one(move |mut server| {
        server.head().unwrap();
        server.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 8\r\n\r\nhalf");
        wait.recv().unwrap();
        server.send("half");
        let _ = server.0.read_to_end(&mut Vec::new());
    });
    let mut client = connect(proxy.address());
    client.send("PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nbegin");
    assert_eq!(client.head().unwrap().status(), 400);
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    go.send(()).unwrap();
    let mut body = String::new();
    client.0.read_to_string(&mut body).unwrap();
    assert_eq!(body, "halfhalf");
    drop(client);
    server.join().unwrap();
}

/// An error is told to one call only: here to the send of the request's body, and the reader of the
/// reply sees an end.
#[test]
fn a_reset_that_the_upload_meets_first_is_no_end_of_the_reply() {
    for engine in [Engine::Auto, Engine::Copy, Engine::Splice] {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = settings(ProxyMode::Reverse, &[listener.local_addr().unwrap()]);
        settings.engine = engine;
        let proxy = Server::start(settings).unwrap();
        let server = thread::spawn(move || {
            let mut server = Connection::new(listener.accept().unwrap().0);
            server.head().unwrap();
            server.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonly this");
            wait.recv().unwrap();
            leave_with_reset(&server);
        });
        let mut client = connect(proxy.address());
        client.send("PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000\r\n\r\n");
        let mut sender = client.0.get_ref().try_clone().unwrap();
        // Until the upload stands still: the server does not read it.
        sender
            .set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        while sender.write(&[b'x'; 100_000]).is_ok() {}
        assert_eq!(client.head().unwrap().status(), 200);
        go.send(()).unwrap();
        let (rest, end) = rest(&mut client);
        assert_eq!(rest, "only this");
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{engine:?}");
        server.join().unwrap();
    }
}

/// Segments that a connection has received: tcpi_segs_in of struct tcp_info, of kernel 4.2.
#[allow(unsafe_code)]
fn segments_in(connection: &Connection) -> u32 {
    const SEGS_IN: usize = 140 / size_of::<u32>();
    let mut info = [0u32; SEGS_IN + 1];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which lives until it has.
    let result = unsafe {
        libc::getsockopt(
            connection.0.get_ref().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!((result, length as usize), (0, size_of_val(&info)));
    info[SEGS_IN]
}

#[test]
fn the_end_of_a_connection_comes_with_the_last_bytes_of_its_reply() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    for (method, path, status) in [
        ("GET", "/length/5", 200),
        ("GET", "/length/10000", 200),
        ("HEAD", "/length/10000", 200),
    ] {
        let mut client = connect(proxy.address());
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(client.reply(method == "HEAD").status(), status);
        assert!(client.at_end());
        // The handshake, the ACK of the request, and all of the reply with the FIN.
        assert_eq!(segments_in(&client), 3, "{method} {path}");
    }
}

#[test]
fn the_end_of_a_connection_comes_with_what_the_proxy_has_kept_or_says_itself() {
    let origin = Origin::serving(|connection, _| {
        connection.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n");
        connection.send("ETag: \"a\"\r\nContent-Length: 10000\r\n\r\n");
        connection.send(pattern(10_000));
        true
    });
    let proxy = caching(&origin);
    connect(proxy.address()).get("/");
    for (request, status) in [
        (
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
            200,
        ),
        ("GET / HTTP/1.0\r\nHost: test\r\n\r\n", 200),
        ("HEAD / HTTP/1.0\r\nHost: test\r\n\r\n", 200),
        (
            "GET / HTTP/1.0\r\nHost: test\r\nRange: bytes=5-9\r\n\r\n",
            206,
        ),
        (
            "GET / HTTP/1.0\r\nHost: test\r\nIf-None-Match: \"a\"\r\n\r\n",
            304,
        ),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        (
            "OPTIONS * HTTP/1.0\r\nHost: test\r\nMax-Forwards: 0\r\n\r\n",
            200,
        ),
    ] {
        let mut client = connect(proxy.address());
        client.send(request);
        let reply = client.reply(request.starts_with("HEAD") || status == 304);
        assert_eq!(reply.status(), status, "{request}");
        assert!(client.at_end());
        // As for what comes from a server.
        assert_eq!(segments_in(&client), 3, "{request}");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn the_last_hit_of_a_connection_arrives_whatever_stands_behind_its_request() {
    let body = pattern(100_000);
    let origin = Origin::serving(move |connection, _| {
        connection.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n");
        connection.send("Content-Length: 100000\r\n\r\n");
        connection.send(&body);
        true
    });
    let proxy = caching(&origin);
    connect(proxy.address()).get("/");
    let mut client = connect_narrow(proxy.address());
    // More than is received at once: a close would be a RST, and take what the client has no room for yet.
    let behind = "x".repeat(100_000);
    client.send(format!("GET / HTTP/1.0\r\nHost: test\r\n\r\n{behind}"));
    assert!(client.reply(false).body == pattern(100_000));
    assert!(client.at_end());
}

#[test]
fn a_request_that_could_not_be_sent_is_not_read_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    // It replies and resets before it has read: often before the request is sent, which fails then.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
            SockRef::from(&stream)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
    });
    let proxy = Server::start(settings(ProxyMode::Reverse, &[backend])).unwrap();
    let mut answered = 0;
    for _ in 0..5 {
        let mut clients: Vec<_> = (0..100).map(|_| connect(proxy.address())).collect();
        for client in &mut clients {
            client.send("POST /pay HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello");
        }
        for client in &mut clients {
            let reply = client.reply(false);
            answered += u32::from(reply.status() == 200);
            // The last that there is: nothing may come before its end but the one reply to this.
            let last = "GET /last HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
            if client.try_send(last).is_ok() {
                let (replies, _) = rest(client);
                assert!(replies.matches("HTTP/1.1 ").count() <= 1, "{replies}");
            }
        }
    }
    assert!(answered > 0, "no server answered before it reset");
}
