//! Peers that are slow, silent or no HTTP: each limit ends them, nothing of them stays, and others
//! are served meanwhile.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{
    Connection, ENGINES, Origin, chunked, connect, connect_narrow, start, total, wait_until,
};
use socket2::{Domain, SockRef, Socket, Type};
use weir_core::proxy::{Proxy, ProxyMode};
use weir_proxy::Server;

/// How often something comes of those that are slow.
const PACE: Duration = Duration::from_millis(5);

fn proxy(backend: SocketAddr, change: impl FnOnce(&mut Proxy)) -> Server {
    start(ProxyMode::Reverse, &[backend], change)
}

/// Sends one byte after the other, each once nothing has come for the pace's time; says how many
/// until something came.
fn drip(client: &mut Connection, bytes: &[u8]) -> usize {
    let stream = client.0.get_ref().try_clone().unwrap();
    stream.set_read_timeout(Some(PACE)).unwrap();
    let is_answered = |_: &&u8| stream.peek(&mut [0]).is_ok();
    let sent = bytes.iter().take_while(|byte| {
        (&stream).write_all(&[**byte]).unwrap();
        !is_answered(byte)
    });
    let sent = sent.count();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    sent
}

/// All clients of the proxy are gone and all that it held for them.
fn expect_no_client_left(proxy: &Server) {
    wait_until("clients are closed", || {
        let totals = proxy.totals();
        total(&totals, "clients_accepted") == total(&totals, "clients_closed")
    });
}

#[test]
fn a_head_that_comes_byte_by_byte_has_head_timeout_in_all() {
    let origin = Origin::start();
    let proxy = proxy(origin.address, |proxy| {
        proxy.head_timeout = Duration::from_millis(300);
    });
    let mut slow = connect(proxy.address());
    let head = format!("GET / HTTP/1.1\r\nHost: {}", "x".repeat(20_000));
    let sent = drip(&mut slow, head.as_bytes());
    assert!((1..head.len()).contains(&sent), "{sent} bytes");
    assert_eq!(origin.connections(), 0, "no server has heard of it");
    assert_eq!(slow.reply(false).status(), 408);
    assert!(slow.at_end());
    drop(slow);
    expect_no_client_left(&proxy);
}

#[test]
fn many_slow_heads_hold_no_other_client_up() {
    let origin = Origin::start();
    let proxy = proxy(origin.address, |_| {});
    let slow: Vec<Connection> = (0..200)
        .map(|_| {
            let mut slow = connect(proxy.address());
            slow.send("GET / HTTP/1.1\r\nHo");
            slow
        })
        .collect();
    wait_until("all are there", || {
        total(&proxy.totals(), "clients_accepted") == 200
    });
    assert_eq!(connect(proxy.address()).get("/length/5").status(), 200);
    drop(slow);
    expect_no_client_left(&proxy);
}

#[test]
fn a_body_may_trickle_as_long_as_it_comes_and_is_late_when_it_stops() {
    const BYTES: usize = 15;
    let (saw, seen) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let idle = Duration::from_secs(1);
    let proxy = proxy(listener.local_addr().unwrap(), |proxy| {
        proxy.idle_timeout = idle;
    });
    let server = thread::spawn(move || {
        let mut server = Connection::new(listener.accept().unwrap().0);
        server.head().unwrap();
        let mut byte = [0];
        while let Ok(1) = server.0.read(&mut byte) {
            saw.send(byte[0]).unwrap();
        }
    });
    let mut client = connect(proxy.address());
    client.send("PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n");
    // Longer than the idle time in all, and each byte before it has passed.
    let stream = client.0.get_ref().try_clone().unwrap();
    stream.set_read_timeout(Some(idle / 10)).unwrap();
    for byte in 0..BYTES as u8 {
        (&stream).write_all(&[byte]).unwrap();
        assert_eq!(seen.recv().unwrap(), byte);
        assert!(stream.peek(&mut [0]).is_err(), "an answer after {byte}");
    }
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    assert_eq!(client.reply(false).status(), 408);
    drop((client, stream));
    server.join().unwrap();
    expect_no_client_left(&proxy);
    assert_eq!(total(&proxy.totals(), "timed_out"), 1);
}

#[test]
fn a_client_that_never_reads_is_reset_after_the_idle_time() {
    for engine in ENGINES {
        for framing in [
            "Content-Length: 1000000000",
            "Transfer-Encoding: chunked",
            "Connection: close",
        ] {
            let origin = Origin::serving(move |connection, _| {
                connection.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n"));
                let chunk = chunked(&[7; 100_000], 100_000);
                let chunk = &chunk[..chunk.len() - "0\r\n\r\n".len()];
                while connection.0.get_mut().write_all(chunk).is_ok() {}
                false
            });
            let proxy = proxy(origin.address, |proxy| {
                proxy.idle_timeout = Duration::from_millis(500);
                proxy.engine = engine;
            });
            let mut client = connect_narrow(proxy.address());
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            expect_clients_closed(&proxy, 1);
            assert_eq!(
                total(&proxy.totals(), "timed_out"),
                1,
                "{engine:?} {framing}"
            );
            let read = client.0.read_to_end(&mut Vec::new());
            assert_eq!(
                read.unwrap_err().kind(),
                ErrorKind::ConnectionReset,
                "{engine:?} {framing}: what is not whole must not look whole"
            );
        }
    }
}

fn expect_clients_closed(proxy: &Server, clients: u64) {
    wait_until("clients came and went", || {
        total(&proxy.totals(), "clients_closed") == clients
    });
}

#[test]
fn a_tunnel_whose_receiver_never_reads_is_reset_after_the_idle_time() {
    for engine in ENGINES {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = proxy(listener.local_addr().unwrap(), |proxy| {
            proxy.mode = ProxyMode::Tcp;
            proxy.idle_timeout = Duration::from_secs(1);
            proxy.engine = engine;
        });
        let mut client = connect_narrow(proxy.address());
        let (mut server, _) = listener.accept().unwrap();
        let sending = thread::spawn(move || server.write_all(&vec![7; 30_000_000]));
        expect_clients_closed(&proxy, 1);
        let read = client.0.read_to_end(&mut Vec::new());
        assert_eq!(
            read.unwrap_err().kind(),
            ErrorKind::ConnectionReset,
            "{engine:?}"
        );
        assert!(sending.join().unwrap().is_err());
    }
}

#[test]
fn a_server_that_takes_no_connection_in_time_is_a_504() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    // One connection fills the queue of length 0; the next one's SYN is dropped.
    let _first = TcpStream::connect(address).unwrap();
    let proxy = proxy(address, |proxy| {
        proxy.connect_timeout = Duration::from_millis(100);
    });
    assert_eq!(connect(proxy.address()).get("/").status(), 504);
    expect_no_client_left(&proxy);
}

/// `Proxy-Status` of the reply to one request, and its status.
fn verdict(proxy: &Server) -> (u16, String) {
    let mut client = connect(proxy.address());
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut reply = client.reply(false);
    while reply.status() < 200 {
        reply = client.reply(false);
    }
    let why = reply.field("proxy-status").unwrap_or_default().to_owned();
    (reply.status(), why)
}

#[test]
fn interim_replies_give_the_final_one_its_time_anew() {
    let idle = Duration::from_millis(600);
    let origin = Origin::serving(move |connection, _| {
        // Longer than the idle time in all.
        for _ in 0..10 {
            connection.send("HTTP/1.1 102 Processing\r\n\r\n");
            thread::sleep(idle / 6);
        }
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        true
    });
    let proxy = proxy(origin.address, |proxy| proxy.idle_timeout = idle);
    let mut client = connect(proxy.address());
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    for _ in 0..10 {
        assert_eq!(client.reply(false).status(), 102);
    }
    assert_eq!(client.reply(false).status(), 200);
}

#[test]
fn a_server_that_only_sends_interim_replies_is_ended() {
    let origin = Origin::serving(|connection, _| {
        while connection
            .try_send("HTTP/1.1 103 Early Hints\r\n\r\n")
            .is_ok()
        {}
        false
    });
    let proxy = proxy(origin.address, |_| {});
    let (status, why) = verdict(&proxy);
    assert_eq!(status, 502);
    assert!(why.contains("1000 interim replies"), "{why}");
    expect_no_client_left(&proxy);
}

#[test]
fn a_504_says_whether_the_server_said_nothing_or_not_enough() {
    for (said, why) in [
        ("", "connection_read_timeout"),
        (
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            "connection_read_timeout",
        ),
        ("HTTP/1.1 200 OK\r\nX: y", "http_response_timeout"),
    ] {
        let origin = Origin::serving(move |connection, _| {
            connection.send(said);
            true
        });
        let proxy = proxy(origin.address, |proxy| {
            proxy.idle_timeout = Duration::from_millis(100);
        });
        let (status, told) = verdict(&proxy);
        assert_eq!(status, 504, "{said:?}");
        assert!(told.contains(why), "{said:?}: {told}");
    }
}

#[test]
fn a_head_that_breaks_off_is_a_reply_that_broke_off_and_is_not_asked_for_again() {
    for said in [
        "HTTP/1.1 200 OK\r\nX: y",
        "HTTP/1.1 20",
        "HTTP/1.1 103 Early Hints\r\n\r\n",
    ] {
        for reset in [false, true] {
            let origin = Origin::serving(move |connection, request| {
                if request.first_line.contains("/good") {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    return true;
                }
                connection.send(said);
                if reset {
                    // The proxy has read it by then.
                    thread::sleep(Duration::from_millis(50));
                    let socket = SockRef::from(connection.0.get_ref());
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
                false
            });
            let proxy = proxy(origin.address, |_| {});
            // On a kept connection, where a reply that did not begin is asked for again.
            assert_eq!(connect(proxy.address()).get("/good").status(), 200);
            let (status, why) = verdict(&proxy);
            assert_eq!(status, 502, "{said:?} {reset}");
            assert!(why.contains("http_response_incomplete"), "{said:?}: {why}");
            assert_eq!(origin.connections(), 1, "{said:?}");
        }
    }
}

/// What a server says that is no reply, or none that may pass.
const GARBAGE: [&str; 14] = [
    "\r\n",
    "\0\0\0\0\0\0\0\0",
    "SSH-2.0-OpenSSH_9.2p1\r\n",
    "\x16\x03\x01\x02\0\x01\0\x01\x7c\x03\x03",
    "220 mail.example ESMTP\r\n",
    "GET / HTTP/1.1\r\nHost: test\r\n\r\n",
    "HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
];

#[test]
fn servers_that_send_garbage_are_a_502_and_their_connection_is_not_kept() {
    let origin = Origin::serving(|connection, request| {
        let mut path = request.first_line.split(['/', ' ']);
        match path.nth(2).unwrap().parse::<usize>() {
            Ok(index) => connection.send(GARBAGE[index]),
            Err(_) => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        }
        true
    });
    let proxy = proxy(origin.address, |proxy| {
        proxy.idle_timeout = Duration::from_millis(500);
    });
    let mut client = connect(proxy.address());
    for (index, garbage) in GARBAGE.iter().enumerate() {
        let before = origin.connections();
        let status = client.get(&format!("/{index}")).status();
        // What could still become a reply is waited for.
        assert!(matches!(status, 502 | 504), "{garbage:?}: {status}");
        assert_eq!(client.get("/good").body, b"ok", "after {garbage:?}");
        assert!(origin.connections() > before, "after {garbage:?}");
    }
    drop(client);
    expect_no_client_left(&proxy);
}

#[test]
fn a_head_or_a_line_of_a_chunk_without_end_is_given_up() {
    for endless in [
        "HTTP/1.1 200 OK\r\nX: ",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n1;",
    ] {
        let origin = Origin::serving(move |connection, _| {
            let _ = connection.0.get_mut().write_all(endless.as_bytes());
            while connection.0.get_mut().write_all(&[b'x'; 1000]).is_ok() {}
            false
        });
        let proxy = proxy(origin.address, |_| {});
        let mut client = connect(proxy.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        client.0.read_to_string(&mut all).unwrap();
        let is_whole_reply_of_origin = all.ends_with("0\r\n\r\n");
        assert!(!is_whole_reply_of_origin && all.len() < 100_000, "{all}");
        expect_no_client_left(&proxy);
    }
}

#[test]
fn a_server_that_goes_on_after_its_reply_is_not_asked_again_on_that_connection() {
    let origin = Origin::serving(|connection, _| {
        connection.send(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\
             HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        );
        true
    });
    let proxy = proxy(origin.address, |_| {});
    let mut client = connect(proxy.address());
    for _ in 0..50 {
        assert_eq!(client.get("/").body, b"ok");
    }
}
