//! The cache, with real sockets.

mod common;

use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Connection, Message, Origin, PATIENCE, chunked, connect, pattern, total, wait_until};
use socket2::SockRef;
use weir_core::proxy::{FinishOnAbort, Proxy, ProxyMode};
use weir_proxy::Server;

const MIB: u64 = 1 << 20;

fn settings(backend: SocketAddr) -> Proxy {
    let mut settings = common::settings(ProxyMode::Reverse, &[backend]);
    settings.threads = 2;
    settings.cache = 64 * MIB;
    settings
}

fn caching(origin: &Origin) -> Server {
    Server::start(settings(origin.address)).unwrap()
}

fn held(proxy: &Server) -> u64 {
    proxy.cache_memory().unwrap().held_bytes
}

fn count(proxy: &Server, name: &str) -> u64 {
    total(&proxy.totals(), name)
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
        let (origin, requests) = Origin::replying(with_length(FRESH, &pattern(size)));
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
        let (origin, requests) = Origin::replying(reply);
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
        let (origin, requests) = Origin::replying(with_length(fields, b"hello"));
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

fn get(client: &mut Connection, fields: &str) -> Message {
    client.ask(&format!(
        "GET /a HTTP/1.1\r\nHost: test\r\n{fields}\r\n\r\n"
    ))
}

#[test]
fn a_stale_reply_is_confirmed_by_its_server_and_not_sent_again() {
    let (origin, requests) = Origin::counting(|connection, request, _| {
        match request.field("if-none-match") {
            Some("\"one\"") => {
                connection.send("HTTP/1.1 304 Not Modified\r\nETag: \"one\"\r\nX-New: 1\r\n\r\n");
            }
            Some(other) => panic!("{other}"),
            None => connection.send(with_length(
                "Cache-Control: no-cache\r\nETag: \"one\"",
                b"hello",
            )),
        }
        true
    });
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/a").body, b"hello");
    for _ in 0..2 {
        let again = client.get("/a");
        assert_eq!((again.status(), &again.body[..]), (200, &b"hello"[..]));
        assert_eq!(cache_status(&again), "weir; fwd=stale; fwd-status=304");
        assert_eq!(again.field("x-new"), Some("1"));
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    assert_eq!(count(&proxy, "cache_revalidations"), 2);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn conditions_and_ranges_are_answered_from_what_is_kept() {
    let (origin, requests) = Origin::counting(|connection, request, _| {
        assert_eq!(request.field("if-none-match"), None, "it ends at the cache");
        let fields = format!("{FRESH}\r\nETag: \"one\"");
        connection.send(with_length(&fields, b"0123456789"));
        true
    });
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    for _ in 0..2 {
        client.send("GET /a HTTP/1.1\r\nHost: test\r\nIf-None-Match: \"one\"\r\n\r\n");
        let met = client.reply(true);
        assert_eq!((met.status(), met.field("content-length")), (304, None));
    }
    assert_eq!(
        get(&mut client, "If-None-Match: \"two\"").body,
        b"0123456789"
    );
    let part = get(&mut client, "Range: bytes=2-4");
    assert_eq!((part.status(), &part.body[..]), (206, &b"234"[..]));
    assert_eq!(part.field("content-range"), Some("bytes 2-4/10"));
    let outside = get(&mut client, "Range: bytes=10-");
    assert_eq!(
        (outside.status(), outside.field("content-range")),
        (416, Some("bytes */10"))
    );
    let head = client.ask("HEAD /a HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(
        (head.status(), head.field("content-length")),
        (200, Some("10"))
    );
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_reply_is_only_for_requests_that_say_the_same_in_what_it_varies_by() {
    let (origin, requests) = Origin::counting(|connection, request, _| {
        let language = request
            .field("accept-language")
            .unwrap_or("none")
            .to_owned();
        let fields = format!("{FRESH}\r\nVary: Accept-Language");
        connection.send(with_length(&fields, language.as_bytes()));
        true
    });
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    for _ in 0..2 {
        for language in ["de", "en"] {
            let reply = get(&mut client, &format!("Accept-Language: {language}"));
            assert_eq!(reply.body, language.as_bytes());
        }
        assert_eq!(client.get("/a").body, b"none");
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[test]
fn no_client_chooses_what_others_get() {
    let (origin, _) = Origin::counting(|connection, request, _| {
        let names = [
            "x-forwarded-host",
            "x-forwarded-uri",
            "x-http-host-override",
            "host",
        ];
        let said = names.iter().find_map(|name| request.field(name));
        let said = said.unwrap_or("none").to_owned();
        connection.send(with_length(FRESH, said.as_bytes()));
        true
    });
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    for (request, expected) in [
        (
            "GET /a HTTP/1.1\r\nHost: test\r\nX-Forwarded-Host: evil\r\n\r\n",
            "evil",
        ),
        (
            "GET /a HTTP/1.1\r\nHost: test\r\nX-Forwarded-Uri: /evil\r\n\r\n",
            "/evil",
        ),
        (
            "GET /a HTTP/1.1\r\nHost: test\r\nX-HTTP-Host-Override: worse\r\n\r\n",
            "worse",
        ),
        ("GET http://evil/a HTTP/1.1\r\nHost: test\r\n\r\n", "evil"),
        ("GET /a HTTP/1.1\r\nHost: test\r\n\r\n", "test"),
        ("GET http://test/a HTTP/1.1\r\nHost: evil\r\n\r\n", "test"),
        ("GET /a HTTP/1.1\r\nHost: TEST\r\n\r\n", "test"),
    ] {
        let reply = client.ask(request);
        assert_eq!(reply.body, expected.as_bytes(), "{request}");
    }
}

#[test]
fn a_client_that_writes_finds_what_it_wrote() {
    let (origin, requests) = Origin::counting(|connection, request, number| {
        match request.first_line.starts_with("GET") {
            true => connection.send(with_length(FRESH, number.to_string().as_bytes())),
            false => connection.send("HTTP/1.1 204 No Content\r\nLocation: /b\r\n\r\n"),
        }
        true
    });
    let proxy = caching(&origin);
    let (mut client, mut other) = (connect(proxy.address()), connect(proxy.address()));
    assert_eq!(client.get("/a").body, b"0");
    assert_eq!(client.get("/b").body, b"1");
    assert_eq!(client.get("/c").body, b"2");
    let post = "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n";
    client.send(post);
    assert_eq!(client.reply(true).status(), 204);
    assert_eq!(other.get("/a").body, b"4");
    assert_eq!(other.get("/b").body, b"5");
    assert_eq!(other.get("/c").body, b"2", "others stay");
    assert_eq!(requests.load(Ordering::SeqCst), 6);
}

#[test]
fn only_if_cached_never_reaches_a_server() {
    let (origin, requests) = Origin::replying(with_length(FRESH, b"hello"));
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    let only = "Cache-Control: only-if-cached";
    assert_eq!(get(&mut client, only).status(), 504);
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    client.get("/a");
    assert_eq!(get(&mut client, only).body, b"hello");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_stale_reply_stands_in_for_a_server_that_fails_if_it_may() {
    for (may, expected) in [(", stale-if-error=60", 200), ("", 503)] {
        let (origin, _) = Origin::counting(move |connection, _, number| {
            let fields = format!("Cache-Control: max-age=0{may}\r\nETag: \"one\"");
            match number {
                0 => connection.send(with_length(&fields, b"hello")),
                _ => connection.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"),
            }
            true
        });
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        client.get("/a");
        assert_eq!(client.get("/a").status(), expected);
    }
}

/// A server that sends half of a body of this length, and the rest when it is told to.
fn halting(length: usize, fields: &'static str) -> (Origin, Arc<AtomicUsize>, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let (origin, requests) = Origin::counting(move |connection, _, _| {
        let reply = with_length(fields, &pattern(length));
        let half = reply.len() - length / 2;
        let _ = connection.try_send(&reply[..half]);
        if wait.lock().unwrap().recv().is_err() {
            return false;
        }
        connection.try_send(&reply[half..]).is_ok()
    });
    (origin, requests, go)
}

const LARGE: usize = 2_000_000;

/// Asks, and reads the head and a quarter of the body.
fn begin(proxy: &Server) -> (Connection, Message, Vec<u8>) {
    let mut client = connect(proxy.address());
    client.send("GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.head().unwrap();
    let mut quarter = vec![0; LARGE / 4];
    client.0.read_exact(&mut quarter).unwrap();
    (client, head, quarter)
}

#[test]
fn many_clients_follow_one_fetch_and_none_waits_for_its_end() {
    let (origin, requests, go) = halting(LARGE, FRESH);
    let proxy = caching(&origin);
    let clients: Vec<_> = (0..10).map(|_| begin(&proxy)).collect();
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    go.send(()).unwrap();
    for (number, (mut client, head, mut body)) in clients.into_iter().enumerate() {
        let expected = match number {
            0 => "weir; fwd=uri-miss; stored",
            _ => "weir; fwd=uri-miss; collapsed",
        };
        assert_eq!(cache_status(&head), expected);
        body.resize(LARGE, 0);
        client.0.read_exact(&mut body[LARGE / 4..]).unwrap();
        assert!(body == pattern(LARGE));
    }
    assert_eq!(count(&proxy, "cache_collapsed"), 9);
}

#[test]
fn a_first_client_that_reads_nothing_holds_up_no_other() {
    let (origin, requests) = Origin::replying(with_length(FRESH, &pattern(LARGE)));
    let proxy = caching(&origin);
    let mut idle = connect(proxy.address());
    idle.send("GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("its fetch has begun", || {
        requests.load(Ordering::SeqCst) == 1
    });
    assert!(connect(proxy.address()).get("/a").body == pattern(LARGE));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert!(
        idle.reply(false).body == pattern(LARGE),
        "and loses nothing"
    );
}

#[test]
fn a_reply_whose_client_goes_away_is_finished_and_kept() {
    let (origin, requests, go) = halting(LARGE, FRESH);
    let settings = Proxy {
        threads: 1,
        ..settings(origin.address)
    };
    let proxy = Server::start(settings).unwrap();
    drop(begin(&proxy));
    go.send(()).unwrap();
    wait_until("it is finished", || count(&proxy, "cache_stored") == 1);
    assert_eq!(count(&proxy, "cache_finished"), 1);
    let mut client = connect(proxy.address());
    assert!(client.get("/a").body == pattern(LARGE));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    client.send("GET /b HTTP/1.1\r\nHost: test\r\n\r\n");
    go.send(()).unwrap();
    client.reply(false);
    assert_eq!(origin.connections(), 1, "the connection went back");
}

#[test]
fn a_reply_whose_client_goes_away_is_given_up_where_that_is_set() {
    let (origin, _, go) = halting(LARGE, FRESH);
    let settings = Proxy {
        finish_on_abort: FinishOnAbort::Off,
        ..settings(origin.address)
    };
    let proxy = Server::start(settings).unwrap();
    drop(begin(&proxy));
    wait_until("it is given up", || count(&proxy, "transfers_broken") > 0);
    wait_until("its memory is free", || held(&proxy) == 0);
    assert_eq!(count(&proxy, "cache_stored"), 0);
    drop(go);
}

#[test]
fn a_reply_that_breaks_off_is_not_kept_and_not_taken_for_whole() {
    let (origin, requests, go) = halting(LARGE, FRESH);
    let proxy = caching(&origin);
    let (mut first, _, _) = begin(&proxy);
    let (mut second, _, _) = begin(&proxy);
    drop(go);
    for client in [&mut first, &mut second] {
        let mut rest = Vec::new();
        let _ = client.0.read_to_end(&mut rest);
        assert!(rest.len() < LARGE - LARGE / 4);
    }
    wait_until("its memory is free", || held(&proxy) == 0);
    connect(proxy.address()).send("GET /a HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("it is fetched anew", || {
        requests.load(Ordering::SeqCst) == 2
    });
}

#[test]
fn the_cache_holds_no_more_than_its_size() {
    let (origin, _) = Origin::counting(|connection, request, _| {
        let length = request.first_line.split(['/', ' ']).nth(2).unwrap();
        let length: usize = length.parse().unwrap();
        connection.send(with_length(FRESH, &pattern(length)));
        true
    });
    let settings = Proxy {
        cache: MIB,
        cache_object: 100_000,
        ..settings(origin.address)
    };
    let proxy = Server::start(settings).unwrap();
    let mut client = connect(proxy.address());
    for number in 0..100 {
        let length = 40_000 + number;
        assert!(client.get(&format!("/{length}")).body == pattern(length));
        let memory = proxy.cache_memory().unwrap();
        assert_eq!(memory.limit_bytes, MIB);
        assert!(memory.held_bytes <= MIB, "{memory:?}");
        // Its last reader holds it a moment longer than the table.
        wait_until("objects are what was stored and not evicted", || {
            let kept = count(&proxy, "cache_stored") - count(&proxy, "cache_evicted");
            proxy.cache_memory().unwrap().objects == kept
        });
    }
    assert!(count(&proxy, "cache_evicted") > 50);
    let stored = count(&proxy, "cache_stored");
    let kept = client.get("/100000");
    assert_eq!(cache_status(&kept), "weir; fwd=uri-miss; stored");
    let passed = client.get("/100001");
    assert_eq!(
        cache_status(&passed),
        "weir; fwd=uri-miss; detail=too-large"
    );
    wait_until("one is kept", || {
        count(&proxy, "cache_stored") == stored + 1
    });
}

/// Asks, reads the half that the server sends first, and leaves with a RST: a plain end would only
/// say that it asks no more.
fn leave_after_half(proxy: &Server) {
    let (mut client, _, _) = begin(proxy);
    client.0.read_exact(&mut vec![0; LARGE / 4]).unwrap();
    let socket = SockRef::from(client.0.get_ref());
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn a_share_decides_by_how_much_of_a_reply_was_there_when_its_client_went() {
    for (share, is_finished) in [(50, true), (51, false)] {
        let (origin, _, go) = halting(LARGE, FRESH);
        let proxy = Server::start(Proxy {
            finish_on_abort: FinishOnAbort::Share(share),
            ..settings(origin.address)
        })
        .unwrap();
        leave_after_half(&proxy);
        if !is_finished {
            // The server is never told to go on.
            wait_until("it is given up", || count(&proxy, "transfers_broken") > 0);
            wait_until("its memory is free", || held(&proxy) == 0);
            assert_eq!(count(&proxy, "cache_stored"), 0);
            continue;
        }
        // Its client is gone for the proxy, too, before the rest comes.
        wait_until("the client is gone", || {
            count(&proxy, "clients_closed") == 1
        });
        go.send(()).unwrap();
        wait_until("it is finished", || count(&proxy, "cache_stored") == 1);
        assert_eq!(count(&proxy, "cache_finished"), 1);
        assert!(connect(proxy.address()).get("/a").body == pattern(LARGE));
    }
}

#[test]
fn a_time_decides_by_how_long_a_reply_takes_after_its_client_went() {
    for (time, is_finished) in [(PATIENCE, true), (Duration::from_millis(100), false)] {
        let (origin, _, go) = halting(LARGE, FRESH);
        let proxy = Server::start(Proxy {
            finish_on_abort: FinishOnAbort::Time(time),
            ..settings(origin.address)
        })
        .unwrap();
        drop(begin(&proxy));
        wait_until("the client is gone", || {
            count(&proxy, "clients_closed") == 1
        });
        if is_finished {
            go.send(()).unwrap();
            wait_until("it is finished", || count(&proxy, "cache_stored") == 1);
            assert!(connect(proxy.address()).get("/a").body == pattern(LARGE));
        } else {
            wait_until("its memory is free", || held(&proxy) == 0);
            assert_eq!(count(&proxy, "cache_stored"), 0);
            drop(go);
        }
    }
}

/// A server whose first reply is at once stale, and that says nothing to the next request until it is told: then it gives
/// this reply.
fn slow_to_confirm(then: Vec<u8>) -> (Origin, Arc<AtomicUsize>, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let fields = "Cache-Control: max-age=0, stale-while-revalidate=60\r\nETag: \"one\"";
    let (origin, requests) = Origin::counting(move |connection, _, number| {
        match number {
            0 => connection.send(with_length(fields, b"hello")),
            _ => {
                wait.lock().unwrap().recv().unwrap();
                connection.send(&then);
            }
        }
        true
    });
    (origin, requests, go)
}

#[test]
fn no_client_waits_until_a_stale_reply_is_confirmed() {
    let fields = "Cache-Control: max-age=60\r\nETag: \"one\"";
    let confirmed = format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n\r\n");
    let (origin, requests, go) = slow_to_confirm(confirmed.into());
    let proxy = caching(&origin);
    connect(proxy.address()).get("/a");
    let mut client = connect(proxy.address());
    for _ in 0..3 {
        for client in [&mut client, &mut connect(proxy.address())] {
            let stale = client.get("/a");
            assert_eq!(stale.body, b"hello");
            assert!(cache_status(&stale).starts_with("weir; hit"), "{stale:?}");
        }
    }
    wait_until("the server is asked", || {
        requests.load(Ordering::SeqCst) == 2
    });
    go.send(()).unwrap();
    wait_until("it is fresh", || {
        let reply = client.get("/a");
        cache_status(&reply).starts_with("weir; hit; ttl=5")
            || cache_status(&reply) == "weir; hit; ttl=60"
    });
    assert_eq!(requests.load(Ordering::SeqCst), 2, "one asks for all");
    assert_eq!(count(&proxy, "cache_revalidations"), 1);
}

#[test]
fn what_has_changed_meanwhile_takes_the_place_of_the_stale_reply() {
    let chunks = |size| {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRESH}\r\n\r\n");
        [head.as_bytes(), &chunked(&pattern(size), 7000)].concat()
    };
    for size in [0, 5000, 3_000_000] {
        for then in [with_length(FRESH, &pattern(size)), chunks(size)] {
            let (origin, requests, go) = slow_to_confirm(then);
            let proxy = caching(&origin);
            let mut client = connect(proxy.address());
            client.get("/a");
            go.send(()).unwrap();
            assert_eq!(client.get("/a").body, b"hello");
            wait_until("it is kept", || count(&proxy, "cache_stored") == 2);
            assert!(client.get("/a").body == pattern(size), "{size}");
            assert_eq!(requests.load(Ordering::SeqCst), 2);
        }
    }
}

#[test]
fn a_stale_reply_goes_when_the_server_gives_one_that_may_not_be_kept() {
    for size in [5, 3_000_000] {
        let then = with_length("Cache-Control: no-store", &pattern(size));
        let (origin, requests, go) = slow_to_confirm(then);
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        client.get("/a");
        go.send(()).unwrap();
        assert_eq!(client.get("/a").body, b"hello");
        wait_until("the server has replied", || {
            count(&proxy, "replies_2xx") == 3
        });
        go.send(()).unwrap();
        let news = client.get("/a");
        assert!(news.body == pattern(size), "{size}");
        assert!(
            cache_status(&news).starts_with("weir; fwd=uri-miss"),
            "{news:?}"
        );
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn a_forward_proxy_keeps_replies_by_the_host_that_they_are_from() {
    let origins = [b"one", b"two"].map(|body| Origin::replying(with_length(FRESH, body)));
    let mut settings = settings(origins[0].0.address);
    settings.mode = ProxyMode::Forward;
    settings.backends = Vec::new();
    let proxy = Server::start(settings).unwrap();
    let mut client = connect(proxy.address());
    for round in 0..3 {
        for ((origin, requests), body) in origins.iter().zip([b"one", b"two"]) {
            let host = origin.address;
            for target in [format!("http://{host}/a"), format!("HTTP://{host}/a")] {
                let reply = client.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert_eq!(&reply.body[..], body, "{round} {target}");
            }
            assert_eq!(requests.load(Ordering::SeqCst), 1, "{round}");
        }
    }
    assert_eq!(count(&proxy, "cache_hits"), 10);
    // What `Host` says is nothing to a target that names its server (RFC 9112 Section 3.2.2).
    let [(one, _), (two, _)] = &origins;
    let (one, two) = (one.address, two.address);
    let reply = client.ask(&format!(
        "GET http://{one}/a HTTP/1.1\r\nHost: {two}\r\n\r\n"
    ));
    assert!(reply.status() == 400 || reply.body == b"one", "{reply:?}");
}

/// Behind a proxy that ends TLS every request says so, and the server's own URIs begin with https.
#[test]
fn a_post_outdates_what_requests_with_other_forwarding_fields_were_given() {
    const PLAIN: &str = "";
    const TLS: &str = "X-Forwarded-Proto: https\r\n";
    for (kept_for, posted_by, named) in [
        (TLS, TLS, "/a"),
        (TLS, PLAIN, "/a"),
        (PLAIN, TLS, "/a"),
        (TLS, TLS, "https://test/a"),
        (TLS, TLS, "https://test:443/a"),
        (TLS, TLS, "//TEST/a#part"),
        (PLAIN, PLAIN, "http://test/a"),
    ] {
        for field in ["Location", "Content-Location", "X-Target"] {
            let (origin, requests) = Origin::counting(move |connection, request, _| {
                let reply = match request.first_line.starts_with("POST") {
                    true => with_length(&format!("{field}: {named}"), b""),
                    false => with_length(FRESH, b"kept"),
                };
                connection.send(reply);
                true
            });
            let proxy = caching(&origin);
            let mut client = connect(proxy.address());
            let get = format!("GET /a HTTP/1.1\r\nHost: test\r\n{kept_for}\r\n");
            client.ask(&get);
            wait_until("it is kept", || count(&proxy, "cache_stored") == 1);
            client.ask(&get);
            assert_eq!(requests.load(Ordering::SeqCst), 1, "it is kept");
            let target = if field == "X-Target" { "/a" } else { "/post" };
            client.ask(&format!(
                "POST {target} HTTP/1.1\r\nHost: test\r\n{posted_by}Content-Length: 0\r\n\r\n"
            ));
            client.ask(&get);
            let asked = requests.load(Ordering::SeqCst);
            assert_eq!(
                asked, 3,
                "{field}: {named}, kept for {kept_for:?}, by {posted_by:?}"
            );
        }
    }
}

#[test]
fn age_is_said_of_what_was_not_made_or_confirmed_for_the_request() {
    for (fields, first, again) in [
        ("Cache-Control: max-age=60", None, Some("0")),
        (
            "Cache-Control: max-age=60\r\nAge: 20",
            Some("20"),
            Some("20"),
        ),
        // Confirmed each time.
        ("Cache-Control: max-age=0\r\nETag: \"x\"", None, None),
    ] {
        let (origin, _) = Origin::counting(move |connection, request, _| {
            connection.send(match request.field("if-none-match") {
                Some(_) => b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".to_vec(),
                None => with_length(fields, b"kept"),
            });
            true
        });
        let proxy = caching(&origin);
        let mut client = connect(proxy.address());
        let reply = client.get("/a");
        assert_eq!(reply.field("age"), first, "{fields}");
        wait_until("it is kept", || count(&proxy, "cache_stored") == 1);
        let reply = client.get("/a");
        let age = reply.field("age");
        // A second may have passed.
        let is_so = match (age, again) {
            (Some(age), Some(least)) => {
                (0..3).contains(&(age.parse::<i64>().unwrap() - least.parse::<i64>().unwrap()))
            }
            (age, again) => age == again,
        };
        assert!(is_so, "{fields}: {age:?}");
    }
}

#[test]
fn a_reply_that_is_replaced_by_a_newer_one_is_not_evicted() {
    let (origin, _) = Origin::replying(with_length(FRESH, b"kept"));
    let proxy = caching(&origin);
    let mut client = connect(proxy.address());
    for times in 1..=10 {
        client.ask("GET /a HTTP/1.1\r\nHost: test\r\nCache-Control: no-cache\r\n\r\n");
        wait_until("it is kept", || count(&proxy, "cache_stored") == times);
    }
    assert_eq!(count(&proxy, "cache_evicted"), 0);
}

#[test]
fn chunks_that_are_malformed_from_the_first_byte_get_the_proxys_own_reply_with_a_cache_too() {
    for cache in [0, 64 << 20] {
        let origin = Origin::serving(|connection, _| {
            let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = connection.try_send(format!("{head}zz\r\n"));
            false
        });
        let proxy = Server::start(Proxy {
            cache,
            ..settings(origin.address)
        })
        .unwrap();
        assert_eq!(connect(proxy.address()).get("/").status(), 502, "{cache}");
        assert_eq!(count(&proxy, "replies_5xx"), 1, "{cache}");
        assert_eq!(count(&proxy, "replies_2xx"), 0, "{cache}");
    }
}
