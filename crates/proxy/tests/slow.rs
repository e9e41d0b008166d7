//! Peers that take what they were sent, but more slowly than the kernel reports by events: a peer that still takes
//! something is not late. (A peer that takes nothing is: `limits.rs`.)

mod common;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Connection, ENGINES, Origin, connect, connect_narrow, pattern, start, total, wait_until,
};
use socket2::SockRef;
use weir_core::proxy::{Proxy, ProxyMode};
use weir_proxy::Server;

const IDLE: Duration = Duration::from_millis(500);
/// What a slow peer takes at once, and how long it rests then: 160 KB in each idle time, far less than a third
/// of a send queue of 2.5 MB, which is what the kernel gives a connection on loopback.
const SIP_BYTES: usize = 8 * 1024;
const SIP_REST: Duration = Duration::from_millis(25);
/// What is sipped, for several idle times; then it is taken as fast as it comes.
const SIPPED_BYTES: usize = 1_000_000;
/// More than the send queue holds.
const BODY_BYTES: usize = 4 * SIPPED_BYTES;

fn proxy(backend: SocketAddr, change: impl FnOnce(&mut Proxy)) -> Server {
    start(ProxyMode::Reverse, &[backend], |proxy| {
        proxy.idle_timeout = IDLE;
        change(proxy);
    })
}

/// Passes on what it takes in sips.
fn sip(from: &mut impl Read, to: &mut impl Write) {
    let begun = Instant::now();
    let (mut sip, mut sipped) = ([0; SIP_BYTES], 0);
    while sipped < SIPPED_BYTES {
        // Its peer sees by itself that it has broken. What is shorter than a sip is an error's answer.
        let taken = match from.read(&mut sip) {
            Ok(taken @ 1..) => taken,
            _ => return,
        };
        if to.write_all(&sip[..taken]).is_err() {
            return;
        }
        sipped += taken;
        // It is slow: that is what is tested.
        thread::sleep(SIP_REST);
    }
    assert!(begun.elapsed() > 2 * IDLE, "no slow peer");
}

/// A connection over a line that is slow at first, on the way to the client.
fn connect_slowly(address: SocketAddr) -> Connection {
    let line = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(line.local_addr().unwrap()).unwrap();
    let (mut far, _) = line.accept().unwrap();
    let mut up = connect_narrow(address).0.into_inner();
    let (mut down, mut sent) = (up.try_clone().unwrap(), far.try_clone().unwrap());
    thread::spawn(move || io::copy(&mut far, &mut up));
    thread::spawn(move || {
        sip(&mut down, &mut sent);
        let _ = io::copy(&mut down, &mut sent);
        sent.shutdown(std::net::Shutdown::Write)
    });
    Connection::new(near)
}

/// Runs the cases side by side: each one takes the time of several idle times. The bodies are there before: to make one takes
/// longer than the idle time on a busy machine.
fn each<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    for length in [SIPPED_BYTES, BODY_BYTES] {
        let _ = pattern(length);
    }
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(case));
        }
    });
}

#[test]
fn a_tunnel_is_not_silent_while_its_receiver_takes_what_was_sent() {
    each(&ENGINES, |&engine| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = proxy(listener.local_addr().unwrap(), |proxy| {
            proxy.mode = ProxyMode::Tcp;
            proxy.engine = engine;
        });
        let mut client = connect_slowly(proxy.address());
        let (mut server, _) = listener.accept().unwrap();
        // All of it is with the proxy's kernel at once, and then nothing comes any more.
        let bytes = pattern(SIPPED_BYTES);
        server.write_all(&bytes).unwrap();
        let mut taken = Vec::new();
        client.0.read_to_end(&mut taken).unwrap();
        assert!(taken == bytes, "{engine:?}: {} bytes", taken.len());
        // Then it was silent: an end, no reset.
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "{engine:?}");
        wait_until("it is counted", || total(&proxy.totals(), "timed_out") == 1);
    });
}

#[test]
fn a_reply_is_not_late_while_its_client_takes_what_was_sent() {
    let cases = ENGINES.map(|engine| ["length", "chunked", "close"].map(|kind| (engine, kind)));
    each(cases.as_flattened(), |&(engine, kind)| {
        let origin = Origin::start();
        let proxy = proxy(origin.address, |proxy| proxy.engine = engine);
        let mut client = connect_slowly(proxy.address());
        let reply = client.get(&format!("/{kind}/{BODY_BYTES}"));
        assert_eq!(reply.status(), 200, "{reply:?}");
        assert!(reply.body == pattern(BODY_BYTES), "{engine:?} {kind}");
        assert_eq!(total(&proxy.totals(), "timed_out"), 0);
    });
}

#[test]
fn a_kept_reply_is_not_late_while_its_client_takes_it() {
    const FRESH: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n";
    each(&["length", "chunked"], |&kind| {
        let origin = Origin::serving(move |connection, _| {
            let body = pattern(BODY_BYTES);
            let rest = match kind {
                "length" => [b"Content-Length: 4000000\r\n\r\n", &body[..]].concat(),
                _ => {
                    let chunks = common::chunked(&body, 50_000);
                    [b"Transfer-Encoding: chunked\r\n\r\n", &chunks[..]].concat()
                }
            };
            connection.send([FRESH.as_bytes(), &rest].concat());
            true
        });
        let proxy = proxy(origin.address, |proxy| proxy.cache = 64 << 20);
        // The first is given what comes and is kept, the second what was kept.
        for _ in 0..2 {
            let reply = connect_slowly(proxy.address()).get("/");
            assert_eq!(reply.status(), 200, "{reply:?}");
            assert!(reply.body == pattern(BODY_BYTES), "{kind}");
        }
        assert_eq!(total(&proxy.totals(), "cache_hits"), 1, "{kind}");
        assert_eq!(total(&proxy.totals(), "transfers_broken"), 0, "{kind}");
    });
}

#[test]
fn an_upload_is_not_late_while_its_server_takes_it() {
    each(&ENGINES, |&engine| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Connections inherit it.
        let socket = SockRef::from(&listener);
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        let proxy = proxy(listener.local_addr().unwrap(), |proxy| {
            proxy.engine = engine;
        });
        let server = thread::spawn(move || {
            let mut server = Connection::new(listener.accept().unwrap().0);
            server.head().unwrap();
            let mut body = Vec::new();
            sip(&mut server.0, &mut body);
            let mut rest = vec![0; BODY_BYTES - body.len()];
            server.0.read_exact(&mut rest).unwrap();
            body.extend(rest);
            server.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            body
        });
        let mut client = connect(proxy.address());
        client.send(format!(
            "PUT /x HTTP/1.1\r\nHost: test\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        ));
        client.send(pattern(BODY_BYTES));
        assert_eq!(client.reply(false).status(), 200, "{engine:?}");
        assert!(server.join().unwrap() == pattern(BODY_BYTES), "{engine:?}");
        assert_eq!(total(&proxy.totals(), "timed_out"), 0, "{engine:?}");
    });
}
