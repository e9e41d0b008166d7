//! What status, metrics and logs say.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, ask, count, echo};
use crate::common::{PATIENCE, full_pipe};
use crate::names::{said_before, start_logged, start_logged_with};

#[test]
fn status_counts_clients_per_proxy_thread_and_backend() {
    let bed = Bed::new("status");
    let backend = echo(b'a');
    bed.configure(backend, "threads = 2");
    let proxy = bed.start("");
    let mut clients: Vec<TcpStream> = (0..5).map(|_| proxy.connect()).collect();
    assert!(clients.iter_mut().all(|client| ask(client).is_ok()));
    let status = bed.status();
    let edge = &status["proxies"][0];
    assert_eq!(edge["clients"], 5);
    assert_eq!(edge["address"], proxy.address.to_string());
    assert_eq!(edge["backends"][0]["address"], backend.to_string());
    assert_eq!(edge["backends"][0]["counters"]["connects"], 5);
    let threads = edge["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    assert!(threads.iter().all(|thread| thread["state"] == "accepting"));
    let sum: u64 = threads.iter().map(|t| t["clients"].as_u64().unwrap()).sum();
    assert_eq!(sum, 5);
    drop(clients);
    bed.until(|status| status["proxies"][0]["clients"] == 0);
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert_eq!(count(&text, "clients_closed"), 5, "{text}");
}

#[test]
fn a_backend_that_is_dead_and_not_checked_is_in_the_log_and_among_the_events_once() {
    let bed = Bed::new("dead");
    let gone = free_address();
    bed.configure(gone, "");
    let (proxy, mut log) = start_logged(&bed);
    for _ in 0..10 {
        assert!(ask(&mut proxy.connect()).is_err());
    }
    let words =
        format!("WARN proxy \"edge\": backend {gone} takes no connection: Connection refused");
    said_before(&mut log, &words);
    let events = String::from_utf8(bed.weir("events --json --kind backend_down").stdout).unwrap();
    assert_eq!(events.lines().count(), 1, "{events}");
    let event: Value = serde_json::from_str(&events).unwrap();
    assert_eq!(
        (&event["proxy"], &event["severity"]),
        (&"edge".into(), &"warn".into())
    );
    assert!(
        event["text"]
            .as_str()
            .unwrap()
            .contains("Connection refused"),
        "{event}"
    );
}

#[test]
fn a_verbose_proxy_names_the_fields_that_it_drops() {
    let bed = Bed::new("verbose");
    bed.write_config(&format!(
        "[[proxy]]\nlisten = \"127.0.0.1:0\"\nmode = \"reverse\"\nbackends = [\"{}\"]\n",
        free_address()
    ));
    let (proxy, mut log) = start_logged_with(&bed, "--verbose");
    let mut client = proxy.connect();
    write!(client, "GET / HTTP/1.1\r\nHost: a\r\nX_Odd: 1\r\n\r\n").unwrap();
    said_before(&mut log, "dropped X_Odd, an odd field name");
}

#[test]
fn status_and_metrics_say_which_backends_are_down_and_why() {
    let bed = Bed::new("health");
    let gone = free_address();
    let keys = format!(
        "health_check = \"tcp\"\nhealth_interval = \"10ms\"\n\
         [[proxy]]\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\nname = \"other\"\n\
         health_check = \"tcp\"\nhealth_interval = \"10ms\"\nbackends = [\"{gone}\"]"
    );
    bed.configure(echo(b'a'), &keys);
    let address = free_address();
    let proxy = bed.start(&format!("--metrics {address}"));
    let mut client = proxy.connect();
    assert_eq!(ask(&mut client).unwrap(), b'a');
    bed.until(|status| {
        let health = |proxy: usize| &status["proxies"][proxy]["backends"][0]["health"];
        health(0) == "up" && health(1) == "down"
    });
    let events = String::from_utf8(bed.weir("events --kind backend_down --json").stdout).unwrap();
    let event: weir_api::Event = serde_json::from_str(events.trim()).unwrap();
    assert_eq!(
        (event.proxy.as_deref(), event.backend),
        (Some("other"), Some(gone.to_string()))
    );
    assert!(event.text.contains("refused"), "{}", event.text);
    let status = bed.status();
    let (up, down) = (&status["proxies"][0], &status["proxies"][1]);
    assert_eq!(up["backends"][0]["connections"]["in_use"], 1, "{status}");
    assert_eq!(up["connections"]["in_use"], 1);
    let why = down["backends"][0]["last_check"].as_str().unwrap();
    assert!(why.contains("refused"), "{why}");
    assert_eq!(down["backends"][0]["counters"]["downs"], 1);
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(
        text.contains(": up; 1 in use, 0 idle; connect p50 "),
        "{text}"
    );
    assert_eq!(up["backends"][0]["times"]["connect"]["count"], 1);
    assert_eq!(up["times"]["request_duration"]["count"], 0);
    assert!(text.contains(&format!("backend {gone}: down (")), "{text}");
    let text = scrape(address, "/metrics");
    let line = format!("weir_proxy_backend_up{{proxy=\"other\",backend=\"{gone}\"}} 0");
    assert!(text.contains(&line), "{text}");
    let line = "weir_proxy_connect_seconds_bucket{le=\"+Inf\",proxy=\"edge\"} 1\n";
    assert!(text.contains(line), "{text}");
    drop(client);
}

#[test]
fn what_a_cache_holds_is_shown_and_one_that_a_reload_leaves_in_place_counts_once() {
    let bed = Bed::new("cache");
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = origin.local_addr().unwrap();
    thread::spawn(move || {
        for stream in origin.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let kept =
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nbody";
            stream.write_all(kept.as_bytes()).unwrap();
        }
    });
    let configure = |keys: &str| {
        bed.write_config(&format!(
            "[[proxy]]\nname = \"edge\"\nlisten = \"127.0.0.1:0\"\nmode = \"reverse\"\n\
             cache = \"4MiB\"\nbackends = [\"{backend}\"]\n{keys}\n"
        ));
    };
    configure("");
    let proxy = bed.start("");
    let mut client = proxy.connect();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    bed.until(|status| status["proxies"][0]["cache_memory"]["objects"] == 1);
    let memory = |status: &Value| status["proxies"][0]["cache_memory"].clone();
    assert_eq!(memory(&bed.status())["limit_bytes"], 4 << 20);
    assert!(memory(&bed.status())["held_bytes"].as_u64().unwrap() > 4);
    let text = String::from_utf8(bed.weir("status").stdout).unwrap();
    assert!(
        text.contains(" B of 4.0 MiB, 1 object\n") && !text.contains("cache: 0 B"),
        "{text}"
    );
    // The client stays with the old settings.
    configure("idle_timeout = \"59s\"");
    assert!(bed.weir("reload").status.success());
    assert_eq!(memory(&bed.status())["limit_bytes"], 4 << 20);
    assert_eq!(memory(&bed.status())["objects"], 1);
    drop(client);
}

#[test]
fn metrics_are_those_of_status_and_move_to_a_successor() {
    let bed = Bed::new("metrics");
    bed.configure(echo(b'a'), "threads = 1");
    let address = free_address();
    let mut old = bed.start(&format!("--metrics {address}"));
    let mut client = old.connect();
    assert_eq!(ask(&mut client).unwrap(), b'a');
    let text = scrape(address, "/metrics");
    assert!(
        text.contains("weir_proxy_clients_accepted_total{proxy=\"edge\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("weir_proxy_clients{proxy=\"edge\",thread=\"0\"} 1\n"),
        "{text}"
    );
    assert!(scrape(address, "/").starts_with("HTTP/1.1 404 "));
    // A client that says nothing does not hold up a command that asks the process.
    let silent = TcpStream::connect(address).unwrap();
    assert_eq!(bed.status()["proxies"][0]["clients"], 1);
    drop((silent, client));
    let new = bed.start(&format!("--take-over --metrics {address}"));
    assert_eq!(ask(&mut new.connect()).unwrap(), b'a');
    assert!(scrape(address, "/metrics").starts_with("HTTP/1.1 200 "));
    assert!(old.end().1);
}

#[test]
fn logs_that_nobody_reads_hold_neither_reloads_nor_clients_nor_the_end_up() {
    let bed = Bed::new("log");
    bed.configure(echo(b'a'), "access_log = \"-\"");
    let (_log, stderr) = full_pipe();
    let mut command = bed.command("proxy --config weir.toml");
    command.stderr(stderr);
    let mut running = Bed::started(command);
    for letter in [b'b', b'c'] {
        bed.configure(echo(letter), "access_log = \"-\"");
        let reload = bed.weir("reload");
        assert!(reload.status.success(), "{reload:?}");
        assert_eq!(ask(&mut running.connect()).unwrap(), letter);
    }
    assert_eq!(bed.status()["proxies"][0]["counters"]["tunnels"], 2);
    running.signal(Signal::SIGTERM);
    assert!(running.end().1);
}

#[test]
fn a_line_of_the_log_begins_with_the_time_unless_the_journal_takes_it() {
    let bed = Bed::new("log-time");
    bed.configure(echo(b'a'), "");
    for journal in [true, false] {
        let (log, stderr) = std::io::pipe().unwrap();
        let stat = nix::sys::stat::fstat(&stderr).unwrap();
        // One that is set for another descriptor says nothing.
        let inode = stat.st_ino + u64::from(!journal);
        let mut command = bed.command("proxy --config weir.toml");
        command.env("JOURNAL_STREAM", format!("{}:{inode}", stat.st_dev));
        command.stderr(stderr);
        let _running = Bed::started(command);
        assert!(bed.weir("reload").status.success());
        let mut lines = BufReader::new(log).lines().map(Result::unwrap);
        let told = lines
            .find(|line| line.contains("reload asked for"))
            .unwrap();
        let (before, _) = told.split_once("INFO").unwrap();
        let digits = before.trim_end().replace(|c: char| c.is_ascii_digit(), "0");
        let expected = match journal {
            true => "",
            false => "0000-00-00T00:00:00.000Z",
        };
        assert_eq!(digits.trim_start(), expected, "{told}");
    }
}

/// An address that nobody listens on.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn scrape(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
