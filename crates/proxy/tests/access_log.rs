//! Claims about the access log: each request and each tunnel has one line, with what became of it.

mod common;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use common::{
    Connection, Origin, PATIENCE, chunked, connect, end, pattern, refusing_address, settings,
};
use serde_json::Value;
use socket2::SockRef;
use weir_core::proxy::{Engine, Proxy, ProxyMode};
use weir_proxy::Server;

/// A log in a folder of its own.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> Log {
        let folder = std::env::temp_dir().join(format!("weir-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Log(folder.join("access.log"))
    }

    fn settings(&self, mode: ProxyMode, backends: &[SocketAddr]) -> Proxy {
        Proxy {
            name: "edge".to_owned(),
            access_log: Some(self.0.display().to_string()),
            ..settings(mode, backends)
        }
    }

    fn start(&self, mode: ProxyMode, backends: &[SocketAddr]) -> Server {
        Server::start(self.settings(mode, backends)).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn wait_for(&self, lines: usize) -> Vec<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.lines();
            if found.len() >= lines {
                return found;
            }
            assert!(Instant::now() < end, "{found:?}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn each_request_has_a_line_with_its_sizes_its_server_and_its_client() {
    let (log, origin) = (Log::new("requests"), Origin::start());
    let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
    let mut client = connect(proxy.address());
    let source = client.0.get_ref().local_addr().unwrap().to_string();
    assert_eq!(client.get("/length/200000").body.len(), 200_000);
    let post = "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(client.ask(post).body, b"hello");
    drop(client);
    end(proxy);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, method, target, up, down, reused) in [
        (&lines[0], "GET", "/length/200000", 0, 200_000, false),
        (&lines[1], "POST", "/echo", 5, 5, true),
    ] {
        assert_eq!(line["proxy"], "edge");
        assert_eq!(line["client"], source);
        assert_eq!(line["method"], method);
        assert_eq!(line["target"], target);
        assert_eq!(line["status"], 200);
        assert_eq!(line["bytes_up"], up);
        assert_eq!(line["bytes_down"], down);
        assert_eq!(line["backend"], origin.address.to_string());
        assert_eq!(line["reused"], reused);
        assert!(line["duration_ms"].as_f64().unwrap() > 0.0);
        assert!(line.get("reason").is_none(), "{line}");
    }
}

#[test]
fn a_line_names_host_agent_and_time_and_an_ipv4_client_as_such() {
    let (log, origin) = (Log::new("names"), Origin::start());
    let settings = Proxy {
        listen: "[::]:0".parse().unwrap(),
        ..log.settings(ProxyMode::Reverse, &[origin.address])
    };
    let proxy = Server::start(settings).unwrap();
    let mut client = connect((Ipv4Addr::LOCALHOST, proxy.address().port()).into());
    let source = client.0.get_ref().local_addr().unwrap();
    let agent = "a\"\\\tb".to_owned() + &"c".repeat(600);
    let fields = format!("Host: A.example:8080\r\nUser-Agent: {agent}\r\nUser-Agent: second\r\n");
    let before = SystemTime::now();
    client.ask(&format!("GET /length/1 HTTP/1.1\r\n{fields}\r\n"));
    client.ask(&format!(
        "GET http://b.example/length/2 HTTP/1.1\r\n{fields}\r\n"
    ));
    client.ask("GET /length/3 HTTP/1.0\r\n\r\n");
    drop(client);
    end(proxy);
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        assert_eq!(line["client"], source.to_string());
        // RFC 3339, and so in the order of time as text.
        let second = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs()
        };
        let time = line["time"].as_str().unwrap();
        let parsed = parse_rfc3339(time);
        assert!(
            (second(before)..=second(SystemTime::now())).contains(&parsed),
            "{time}"
        );
    }
    assert_eq!(lines[0]["host"], "A.example:8080");
    assert_eq!(lines[1]["host"], "b.example");
    for line in &lines[..2] {
        assert_eq!(line["user_agent"], agent[..512]);
    }
    assert_eq!(
        (lines[2].get("host"), lines[2].get("user_agent")),
        (None, None)
    );
}

/// Seconds since 1970 of `2026-11-24T12:13:14.123456Z`, by `date`.
fn parse_rfc3339(time: &str) -> u64 {
    assert!(
        time.len() == "2026-11-24T12:13:14.123456Z".len() && time.ends_with('Z'),
        "{time}"
    );
    let date = Command::new("date")
        .args(["-u", "+%s", "-d", time])
        .output()
        .unwrap();
    let text = String::from_utf8(date.stdout).unwrap();
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("date(1) cannot read {time}"))
}

#[test]
fn what_is_refused_says_why() {
    let log = Log::new("refused");
    let (_held, refusing) = refusing_address();
    let proxy = log.start(ProxyMode::Reverse, &[refusing]);
    assert_eq!(connect(proxy.address()).get("/").status(), 502);
    let malformed = "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    assert_eq!(connect(proxy.address()).ask(malformed).status(), 400);
    end(proxy);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let reason = |line: &Value| line["reason"].as_str().unwrap().to_owned();
    assert_eq!(
        (lines[0]["status"].as_u64(), lines[1]["status"].as_u64()),
        (Some(502), Some(400))
    );
    assert!(
        reason(&lines[0]).starts_with("connection_refused: "),
        "{lines:?}"
    );
    assert!(
        reason(&lines[1]).contains("more than one Host"),
        "{lines:?}"
    );
}

/// Only what reached a server a second time was sent again.
#[test]
fn retries_are_what_was_sent_again_and_not_what_failed() {
    let log = Log::new("retries");
    let seen = Arc::<AtomicU64>::default();
    let requests = seen.clone();
    let origin = Origin::serving(move |connection, request| {
        requests.fetch_add(1, Ordering::Relaxed);
        let answers = request.first_line.contains("/good");
        if answers {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        answers
    });
    let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
    let mut client = connect(proxy.address());
    let mut lines = 0;
    // On a new connection there is no second try; on one that was kept there is one.
    for (path, status, sent) in [("/never", 502, 1), ("/good", 200, 1), ("/never", 502, 2)] {
        seen.store(0, Ordering::Relaxed);
        assert_eq!(client.get(path).status(), status);
        assert_eq!(seen.load(Ordering::Relaxed), sent, "{path}");
        lines += 1;
        let line = log.wait_for(lines).pop().unwrap();
        assert_eq!(line["retries"], sent - 1, "{line}");
    }
    assert_eq!(common::total(&proxy.totals(), "retries"), 1);
    drop(client);
    end(proxy);
}

#[test]
fn a_tunnel_has_one_line_at_its_end() {
    let (log, origin) = (Log::new("tunnel"), Origin::start());
    for (mode, backends) in [
        (ProxyMode::Tcp, &[origin.address][..]),
        (ProxyMode::Forward, &[]),
    ] {
        let proxy = log.start(mode, backends);
        let mut client = connect(proxy.address());
        if mode == ProxyMode::Forward {
            client.send(format!(
                "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
                origin.address
            ));
            assert_eq!(client.head().unwrap().status(), 200);
        }
        assert_eq!(client.get("/length/10").body.len(), 10);
        assert_eq!(log.lines(), [] as [Value; 0], "not before its end");
        drop(client);
        end(proxy);
        let line = log.lines().remove(0);
        assert_eq!(line["tunnel"], true, "{line}");
        assert_eq!(line["backend"], origin.address.to_string());
        assert!(
            line["bytes_up"].as_u64().unwrap() > 10 && line["bytes_down"].as_u64().unwrap() > 10
        );
        assert_eq!(line.get("method").is_some(), mode == ProxyMode::Forward);
        std::fs::remove_file(&log.0).unwrap();
    }
}

#[test]
fn a_server_that_takes_no_connection_is_named() {
    let log = Log::new("unreached");
    let (_held, refusing) = refusing_address();
    for mode in [ProxyMode::Reverse, ProxyMode::Tcp, ProxyMode::Forward] {
        let backends = [refusing];
        let backends = if mode == ProxyMode::Forward {
            &[]
        } else {
            &backends[..]
        };
        let proxy = log.start(mode, backends);
        let mut client = connect(proxy.address());
        let _ = client.try_send(format!(
            "GET http://{refusing}/ HTTP/1.1\r\nHost: {refusing}\r\n\r\n"
        ));
        let line = log.wait_for(1).remove(0);
        assert_eq!(line["backend"], refusing.to_string(), "{mode:?} {line}");
        let reason = line["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("connection_refused: "),
            "{mode:?} {line}"
        );
        drop(client);
        end(proxy);
        std::fs::remove_file(&log.0).unwrap();
    }
}

#[test]
fn a_reply_that_breaks_off_has_the_status_that_its_client_got_and_names_the_side_that_ended_it() {
    let reset = |connection: &Connection| {
        let socket = SockRef::from(connection.0.get_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    };
    for (framing, resets, cached, reason) in [
        (
            "Content-Length: 1000",
            false,
            false,
            "http_response_incomplete: the server ended early",
        ),
        (
            "Content-Length: 1000",
            true,
            false,
            "http_response_incomplete: Connection reset by peer",
        ),
        (
            "Transfer-Encoding: chunked",
            false,
            false,
            "http_response_incomplete: the server ended early",
        ),
        (
            "Transfer-Encoding: chunked",
            false,
            true,
            "http_response_incomplete: the server ended early",
        ),
        (
            "Content-Length: 1000",
            false,
            true,
            "http_response_incomplete: the server ended early",
        ),
    ] {
        let log = Log::new("broken");
        let (go, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        let origin = Origin::serving(move |connection, _| {
            let head =
                format!("HTTP/1.1 201 Created\r\nCache-Control: max-age=9\r\n{framing}\r\n\r\n");
            connection
                .send(head.replace("201 Created", if cached { "200 OK" } else { "201 Created" }));
            connection.send("100\r\nhalf");
            wait.lock().unwrap().recv().unwrap();
            if resets {
                reset(connection);
            }
            false
        });
        let mut settings = log.settings(ProxyMode::Reverse, &[origin.address]);
        settings.cache = if cached { 1 << 20 } else { 0 };
        let proxy = Server::start(settings).unwrap();
        let mut client = connect(proxy.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.head().unwrap();
        go.send(()).unwrap();
        let line = log.wait_for(1).remove(0);
        assert_eq!(
            line["status"],
            if cached { 200 } else { 201 },
            "{framing} {line}"
        );
        let told = line["reason"].as_str().unwrap();
        assert!(told.starts_with(reason), "{framing} {line}");
        drop(client);
        end(proxy);
    }
}

#[test]
fn a_tunnel_that_breaks_says_which_side_has_reset_it() {
    for (client_resets, reason) in [(true, "client_gone: "), (false, "server_gone: ")] {
        let log = Log::new("side");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = log.start(ProxyMode::Tcp, &[listener.local_addr().unwrap()]);
        let mut client = connect(proxy.address());
        client.send("hello");
        let mut server = Connection::new(listener.accept().unwrap().0);
        server.0.read_exact(&mut [0; 5]).unwrap();
        let resetting = if client_resets { &client } else { &server };
        let socket = SockRef::from(resetting.0.get_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        match client_resets {
            true => drop(client),
            false => drop(server),
        }
        let line = log.wait_for(1).remove(0);
        let told = line["reason"].as_str().unwrap();
        assert!(told.starts_with(reason), "{line}");
        end(proxy);
    }
}

#[test]
fn bytes_of_bodies_are_their_data_without_the_framing_of_chunks() {
    let origin = Origin::start();
    for size in [5, 70_000, 1_000_000] {
        let log = Log::new("chunks");
        let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
        let mut client = connect(proxy.address());
        client.get(&format!("/chunked/{size}"));
        client.send("POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&pattern(size), 30_000));
        assert!(client.reply(false).body == pattern(size));
        let lines = log.wait_for(2);
        assert_eq!(lines[0]["bytes_down"], size, "{}", lines[0]);
        assert_eq!(lines[1]["bytes_up"], size, "{}", lines[1]);
        drop(client);
        end(proxy);
    }
}

#[test]
fn a_rotated_log_goes_on_in_a_new_file() {
    let (log, origin) = (Log::new("rotated"), Origin::start());
    let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
    let mut client = connect(proxy.address());
    client.get("/length/1");
    log.wait_for(1);
    let old = Log(log.0.with_file_name("old"));
    std::fs::rename(&log.0, &old.0).unwrap();
    proxy.reopen_log();
    client.get("/length/2");
    assert_eq!(log.wait_for(1)[0]["target"], "/length/2");
    assert_eq!(old.lines().len(), 1);
    drop(client);
    end(proxy);
}

#[test]
fn a_writer_that_falls_behind_loses_lines_and_stops_no_client() {
    let (log, origin) = (Log::new("stuck"), Origin::start());
    // An unread pipe is full after 64 KiB; the queue takes some thousand lines more.
    let status = std::process::Command::new("mkfifo").arg(&log.0).status();
    assert!(status.unwrap().success());
    let mut reader = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&log.0)
        .unwrap();
    let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
    let lost = || {
        let totals = proxy.totals();
        let mut all = totals.listener.iter();
        all.find(|total| total.name == "access_log_lost")
            .unwrap()
            .value
    };
    let mut client = connect(proxy.address());
    let end_of_patience = Instant::now() + PATIENCE;
    while lost() == 0 {
        client.send("GET /length/0 HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100));
        (0..100).for_each(|_| assert_eq!(client.reply(false).status(), 200));
        assert!(Instant::now() < end_of_patience, "no line is lost");
    }
    // Lets the writer end.
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while reader.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    drop(client);
    end(proxy);
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error() {
    let mut settings = Proxy::new("edge", "127.0.0.1:0".parse().unwrap(), ProxyMode::Forward);
    settings.access_log = Some("/nowhere/access.log".to_owned());
    let error = Server::start(settings).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot use access_log = \"/nowhere/access.log\": "),
        "{error}"
    );
}

#[test]
fn a_reply_from_the_cache_is_logged_with_its_status_and_size() {
    let log = Log::new("cached");
    let origin = Origin::serving(|connection, _| {
        connection
            .send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nhello");
        true
    });
    let mut settings = log.settings(ProxyMode::Reverse, &[origin.address]);
    settings.cache = 1 << 20;
    let proxy = Server::start(settings).unwrap();
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/").body, b"hello");
    assert_eq!(client.get("/").body, b"hello");
    assert_eq!(origin.connections(), 1);
    drop(client);
    end(proxy);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line["status"] == 200 && line["bytes_down"] == 5),
        "{lines:?}"
    );
    assert!(lines[1].get("backend").is_none(), "{lines:?}");
}

#[test]
fn the_engine_of_a_line_is_the_one_that_moved_its_bytes() {
    let origin = Origin::start();
    for (engine, path, expected) in [
        (Engine::Auto, "/length/100", "copy"),
        (Engine::Auto, "/length/1000000", "splice"),
        (Engine::Copy, "/length/1000000", "copy"),
        (Engine::Splice, "/length/1000000", "splice"),
    ] {
        let log = Log::new("engine");
        for mode in [ProxyMode::Reverse, ProxyMode::Tcp] {
            let mut settings = log.settings(mode, &[origin.address]);
            settings.engine = engine;
            let proxy = Server::start(settings).unwrap();
            let mut client = connect(proxy.address());
            assert_eq!(client.get(path).status(), 200);
            drop(client);
            let totals = end(proxy);
            let line = log.lines().pop().unwrap();
            assert_eq!(line["engine"], expected, "{engine:?} {mode:?} {path}");
            if mode == ProxyMode::Reverse {
                let spliced = common::total(&totals, "bytes_spliced") > 500_000;
                assert_eq!(spliced, expected == "splice");
            }
        }
    }
    let log = Log::new("no-engine");
    let proxy = log.start(ProxyMode::Reverse, &[origin.address]);
    connect(proxy.address()).get("/length/0");
    end(proxy);
    assert_eq!(log.lines()[0].get("engine"), None);
}
