//! The cache, with real sockets.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use common::{Connection, Message, Origin, PATIENCE, chunked, connect, pattern};
use weir_core::proxy::{Mode, Proxy};
use weir_proxy::Server;

const MIB: u64 = 1 << 20;

fn settings(backend: SocketAddr) -> Proxy {
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), Mode::Reverse);
    settings.backends = vec![backend];
    settings.threads = 2;
    settings.cache = 64 * MIB;
    settings
}

fn caching(origin: &Origin) -> Server {
    Server::start(settings(origin.address)).unwrap()
}

fn count(proxy: &Server, name: &str) -> u64 {
    let totals = proxy.totals().listener;
    totals
        .iter()
        .find(|total| total.name == name)
        .unwrap()
        .value
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "still not: {what}");
        thread::yield_now();
    }
}

/// A server that counts its requests and gives all the same reply.
fn replying(reply: impl Into<Vec<u8>>) -> (Origin, Arc<AtomicUsize>) {
    let reply = reply.into();
    counting(move |connection, _, _| {
        let _ = connection.try_send(&reply);
        true
    })
}

/// A server that counts its requests; `serve` gets the number of each, from 0.
fn counting(
    serve: impl Fn(&mut Connection, Message, usize) -> bool + Send + Sync + 'static,
) -> (Origin, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let seen = requests.clone();
    let origin = Origin::serving(move |connection, request| {
        let number = requests.fetch_add(1, Ordering::SeqCst);
        serve(connection, request, number)
    });
    (origin, seen)
}

fn with_length(fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{fields}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const FRESH: &str = "Cache-Control: max-age=3600";

fn cache_status(reply: &Message) -> &str {
    reply.field("cache-status").unwrap_or("none")
}

#[test]
fn a_fresh_reply_is_served_again_without_its_server() {
    for size in [0, 1, 5000, 70_000, 3_000_000] {
        let (origin, requests) = replying(with_length(FRESH, &pattern(size)));
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        let first = client.get("/a");
        assert_eq!(cache_status(&first), "weir; fwd=uri-miss; stored");
        wait_until("it is kept", || count(&proxy, "cache_stored") == 1);
        for _ in 0..3 {
            let again = client.get("/a");
            assert!(again.body == pattern(size), "{size}");
            assert!(
                cache_status(&again).starts_with("weir; hit; ttl=3"),
                "{again:?}"
            );
            assert!(again.field("age").is_some());
        }
        assert_eq!(requests.load(Ordering::SeqCst), 1);
        assert_eq!(count(&proxy, "cache_hits"), 3);
        assert_eq!(count(&proxy, "cache_misses"), 1);
        let all = 3 * size as u64;
        wait_until("all is counted", || count(&proxy, "cache_bytes") == all);
    }
}

#[test]
fn chunks_are_kept_without_their_framing_and_served_with_a_length() {
    for size in [0, 1, 5000, 300_000] {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRESH}\r\n\r\n");
        let reply = [head.as_bytes(), &chunked(&pattern(size), 7000)].concat();
        let (origin, requests) = replying(reply);
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        let first = client.get("/a");
        assert_eq!(first.field("transfer-encoding"), Some("chunked"));
        assert!(first.body == pattern(size), "{size}");
        let again = client.get("/a");
        assert_eq!(again.field("content-length"), Some(&*size.to_string()));
        assert_eq!(again.field("transfer-encoding"), None);
        assert!(again.body == pattern(size), "{size}");
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn what_must_not_be_kept_is_not() {
    for fields in [
        "Cache-Control: no-store",
        "Cache-Control: private, max-age=60",
        "Cache-Control: max-age=60\r\nSet-Cookie: a=b",
        "Cache-Control: max-age=60\r\nVary: *",
        "X: y",
    ] {
        let (origin, requests) = replying(with_length(fields, b"hello"));
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        for _ in 0..2 {
            let reply = client.get("/a");
            assert!(cache_status(&reply).starts_with("weir; fwd=uri-miss; detail="));
            assert_eq!(reply.body, b"hello");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{fields}");
        assert_eq!(
            origin.connections(),
            1,
            "the connection is kept all the same"
        );
    }
}
