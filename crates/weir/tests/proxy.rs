//! `weir proxy` as a service: reload, status, upgrade, stop. Everything is on loopback, and each test
//! has a runtime directory of its own.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use common::{Folder, PATIENCE, full_pipe};

/// A server that begins each answer with its own letter, and then sends back what it gets.
fn echo(letter: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte) {
                    if stream.write_all(&[letter, byte[0]]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Sends a byte; the server's letter, if its answer is whole.
fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"x")?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer[1], b'x');
    Ok(answer[0])
}

/// A runtime directory and a config file.
struct Bed {
    folder: Folder,
}

/// A running `weir proxy`.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Deref for Bed {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Bed {
    fn new(name: &str) -> Bed {
        let folder = Folder::new(&format!("proxy-{name}"));
        Bed { folder }
    }

    /// Writes a config file with a tcp proxy to this backend; `keys` are added.
    fn configure(&self, backend: SocketAddr, keys: &str) {
        let text = format!(
            "[[proxy]]\nname = \"edge\"\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
             backends = [\"{backend}\"]\n{keys}\n"
        );
        self.write_config(&text);
    }

    fn start(&self, flags: &str) -> Running {
        Bed::started(self.command(&format!("proxy --config weir.toml {flags}")))
    }

    /// The proxy of the config file, in a process whose shell has run these words.
    fn limited(&self, ulimit: &str) -> Command {
        let weir = self.command("proxy --config weir.toml");
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{ulimit}; exec \"$@\""), "sh"])
            .arg(weir.get_program())
            .args(weir.get_args())
            .current_dir(&*self.path);
        command
    }

    fn started(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let (_, address) = line.split_once("proxy on ").expect(&line);
        let address = address.split(' ').next().unwrap().parse().unwrap();
        Running {
            child,
            stdout,
            address,
        }
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// What it says until its end, and whether that was well.
    fn end(&mut self) -> (String, bool) {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        (said, self.child.wait().unwrap().success())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A counter in a table for people.
fn count(text: &str, counter: &str) -> u64 {
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let values = lines.find_map(|mut words| (words.next() == Some(counter)).then_some(words));
    values.unwrap().next().unwrap().parse().unwrap()
}

#[test]
fn a_reload_changes_where_new_connections_go_and_leaves_those_that_stand() {
    let bed = Bed::new("reload");
    bed.configure(echo(b'a'), "");
    let mut proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    bed.configure(echo(b'b'), "idle_timeout = \"20s\"");
    let output = bed.weir("reload");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"1 proxy in force\n");
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'b');
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let status = bed.status();
    assert_eq!(status["proxies"][0]["idle_timeout"], "20s");
    assert_eq!(status["proxies"][0]["counters"]["clients_accepted"], 2);
    drop(tunnel);
    proxy.signal(Signal::SIGTERM);
    let (said, well) = proxy.end();
    assert!(well && count(&said, "clients_accepted") == 2, "{said}");
}

#[test]
fn a_reload_of_a_named_process_leaves_the_others_as_they_are() {
    let bed = Bed::new("named");
    let write = |file: &str, name: &str, keys: &str| {
        let text = format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nmode = \"forward\"\n{keys}\n"
        );
        std::fs::write(bed.path.join(file), text).unwrap();
    };
    let start = |file: &str| Bed::started(bed.command(&format!("proxy --config {file}")));
    write("one.toml", "one", "");
    write("two.toml", "two", "");
    let (one, two) = (start("one.toml"), start("two.toml"));
    let pid = two.child.id().to_string();
    let [file_of_one, file] =
        ["one.toml", "two.toml"].map(|file| bed.path.join(file).display().to_string());
    let max_clients = |name: &str| {
        let status = bed.status();
        let proxies = status["proxies"].as_array().unwrap();
        let named = proxies.iter().find(|proxy| proxy["name"] == name);
        named.unwrap()["max_clients"].as_u64().unwrap()
    };
    let before = max_clients("one");
    write("one.toml", "one", "max_clients = 1");
    for (limit, by) in (2..).zip(["two", pid.as_str(), file.as_str(), "two.toml two"]) {
        write("two.toml", "two", &format!("max_clients = {limit}"));
        let output = bed.weir(&format!("reload {by}"));
        assert_eq!(output.stdout, b"1 proxy in force\n", "{by}: {output:?}");
        assert_eq!(max_clients("two"), limit, "{by}");
    }
    write("two.toml", "two", "max_clients = 7");
    let output = bed.weir("reload two three");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("\"three\""), "{output:?}");
    assert_eq!([max_clients("one"), max_clients("two")], [before, 5]);
    // All of them, one of which cannot.
    write("two.toml", "two", "max_clients = \"none\"");
    let output = bed.weir("reload --json");
    assert_eq!(output.status.code(), Some(2));
    let reloads: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |process: &Running| {
        let all = reloads.as_array().unwrap().iter();
        let pid = process.child.id();
        all.clone().find(|reload| reload["pid"] == pid).unwrap()
    };
    assert_eq!(of(&one)["proxies"], 1);
    assert_eq!(of(&one)["config"], file_of_one);
    assert_eq!(of(&one)["errors"], serde_json::json!([]));
    assert_eq!(of(&two)["proxies"], Value::Null);
    assert!(
        of(&two)["errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("max_clients")
    );
    assert_eq!([max_clients("one"), max_clients("two")], [1, 5]);
    let said = bed.weir("reload one two").stdout;
    let expected = format!("{file_of_one} (pid {}): 1 proxy in force\n", one.child.id());
    assert_eq!(String::from_utf8(said).unwrap(), expected);
}

#[test]
fn a_hangup_reloads() {
    let bed = Bed::new("hangup");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    bed.configure(echo(b'b'), "max_clients = 7");
    proxy.signal(Signal::SIGHUP);
    bed.until(|status| status["proxies"][0]["max_clients"] == 7);
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'b');
}

#[test]
fn a_bad_file_leaves_the_running_proxies_in_force() {
    let bed = Bed::new("bad");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    for (keys, code, cause) in [
        ("idle_timeout = 3", 2, "is a number, not a duration"),
        (
            "[[proxy]]\nlisten = \"192.0.2.1:1\"\nmode = \"forward\"",
            1,
            "cannot listen on 192.0.2.1:1",
        ),
    ] {
        bed.configure(echo(b'b'), keys);
        let output = bed.weir("reload");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(cause), "{output:?}");
        assert_eq!(ask(&mut proxy.connect()).unwrap(), b'a', "{keys}");
        assert_eq!(ask(&mut tunnel).unwrap(), b'a', "{keys}");
    }
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

#[test]
fn a_proxy_that_the_file_has_no_more_is_drained_and_a_new_one_started() {
    let bed = Bed::new("swap");
    bed.configure(echo(b'a'), "");
    let proxy = bed.start("");
    let mut tunnel = proxy.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let text = format!(
        "[[proxy]]\nname = \"other\"\nlisten = \"127.0.0.2:0\"\nmode = \"tcp\"\nbackends = [\"{}\"]\n",
        echo(b'b')
    );
    bed.write_config(&text);
    assert!(bed.weir("reload").status.success());
    let named = |status: &Value, name: &str| {
        let proxies = status["proxies"].as_array().unwrap();
        proxies.iter().find(|proxy| proxy["name"] == name).cloned()
    };
    let status = bed.status();
    assert_eq!(named(&status, "edge").unwrap()["accepting"], false);
    let address = named(&status, "other").unwrap()["address"].clone();
    let mut client = TcpStream::connect(address.as_str().unwrap()).unwrap();
    assert_eq!(ask(&mut client).unwrap(), b'b');
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    drop(tunnel);
    bed.until(|status| named(status, "edge").is_none());
    assert!(TcpStream::connect(proxy.address).is_err());
}

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
    assert!(scrape(address, "/metrics").contains("# EOF"));
    assert!(old.end().1);
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

/// Clients that connect, ask once and close, again and again.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<Vec<std::io::Error>>>,
}

impl Load {
    fn start(address: SocketAddr) -> Load {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = || {
            let (stop, served) = (stop.clone(), served.clone());
            thread::spawn(move || {
                let mut errors = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match TcpStream::connect(address).and_then(|mut stream| ask(&mut stream)) {
                        Ok(_) => drop(served.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => errors.push(error),
                    }
                }
                errors
            })
        };
        let threads = (0..8).map(|_| client()).collect();
        Load {
            stop,
            served,
            threads,
        }
    }

    /// Waits until so many more have been served.
    fn serve(&self, more: usize) {
        let goal = self.served.load(Ordering::Relaxed) + more;
        let end = Instant::now() + PATIENCE;
        while self.served.load(Ordering::Relaxed) < goal {
            assert!(
                Instant::now() < end,
                "not {more} served within {PATIENCE:?}"
            );
            thread::yield_now();
        }
    }

    fn errors(self) -> Vec<std::io::Error> {
        self.stop.store(true, Ordering::Relaxed);
        let join = |thread: thread::JoinHandle<_>| thread.join().unwrap();
        self.threads.into_iter().flat_map(join).collect()
    }
}

#[test]
fn an_upgrade_under_load_refuses_and_resets_no_connection() {
    let bed = Bed::new("upgrade");
    bed.configure(echo(b'a'), "threads = 2");
    let mut old = bed.start("");
    let mut tunnel = old.connect();
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    let load = Load::start(old.address);
    let mut olds = Vec::new();
    for _ in 0..5 {
        load.serve(50);
        let new = bed.start("--take-over");
        assert_eq!(new.address, old.address);
        olds.push(std::mem::replace(&mut old, new));
    }
    load.serve(50);
    let errors = load.errors();
    assert!(errors.is_empty(), "{errors:?}");
    // The oldest has a client still.
    assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    drop(tunnel);
    for mut old in olds {
        let (said, well) = old.end();
        assert!(well, "{said}");
    }
    assert_eq!(bed.status()["proxies"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&mut old.connect()).unwrap(), b'a');
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let bed = Bed::new("failed-upgrade");
    bed.configure(echo(b'a'), "");
    let old = bed.start("");
    bed.configure(
        echo(b'b'),
        "[[proxy]]\nlisten = \"192.0.2.1:1\"\nmode = \"forward\"",
    );
    let output = bed.weir("proxy --config weir.toml --take-over");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let letters: Vec<u8> = (0..20).map(|_| ask(&mut old.connect()).unwrap()).collect();
    assert!(letters.iter().all(|letter| *letter == b'a'), "{letters:?}");
    assert_eq!(bed.status()["proxies"][0]["pid"], old.child.id());
}

#[test]
fn reloads_under_load_refuse_and_reset_no_connection() {
    let bed = Bed::new("reload-load");
    let backend = echo(b'a');
    bed.configure(backend, "threads = 2");
    let proxy = bed.start("");
    let load = Load::start(proxy.address);
    for seconds in 1..10 {
        load.serve(20);
        bed.configure(
            backend,
            &format!("threads = 2\nhead_timeout = \"{seconds}s\""),
        );
        assert!(bed.weir("reload").status.success());
    }
    load.serve(20);
    let errors = load.errors();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn after_a_kill_status_and_reload_pass_the_dead_process_over() {
    let bed = Bed::new("killed");
    bed.configure(echo(b'a'), "");
    drop(bed.start(""));
    assert_eq!(bed.status()["proxies"], serde_json::json!([]));
    assert!(stderr(&bed.weir("reload")).contains("no weir is running"));
    let proxy = bed.start("--take-over");
    assert_eq!(ask(&mut proxy.connect()).unwrap(), b'a');
}

#[test]
fn the_limit_of_descriptors_is_raised_and_one_that_is_too_low_is_said() {
    let bed = Bed::new("descriptors");
    // The default of 100 000 clients is a bound that nobody has asked for.
    let cases = [
        ("max_clients = 100", false),
        ("max_clients = 300", true),
        ("", false),
    ];
    for (key, said) in cases {
        bed.configure(echo(b'a'), key);
        let mut command = bed.limited("ulimit -Sn 64; ulimit -Hn 512");
        command.stderr(Stdio::piped());
        let mut proxy = Bed::started(command);
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.child.id()));
        let limits = limits.unwrap();
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let files: Vec<&str> = files.unwrap().split_whitespace().collect();
        assert_eq!(files[3..5], ["512", "512"]);
        proxy.signal(Signal::SIGTERM);
        let mut stderr = String::new();
        let mut pipe = proxy.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr.contains("need 600 descriptors"), said, "{stderr}");
        assert_eq!(stderr.contains("descriptors"), said, "{stderr}");
    }
}

#[test]
fn a_process_with_200_descriptors_serves_400_clients_that_come_at_once() {
    const CLIENTS: usize = 400;
    let bed = Bed::new("few");
    // Two proxies share the descriptors; the clients of one must not take those of the other's servers.
    let table = |name: &str| {
        let backend = echo(b'a');
        format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
             backends = [\"{backend}\"]\n"
        )
    };
    for proxies in [&["one"][..], &["one", "two"]] {
        let tables: String = proxies.iter().map(|name| table(name)).collect();
        bed.write_config(&tables);
        let proxy = Bed::started(bed.limited("ulimit -n 200"));
        let served = AtomicUsize::new(0);
        let all_have_come = Barrier::new(CLIENTS);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = proxy.connect();
                    all_have_come.wait();
                    served.fetch_add(usize::from(ask(&mut client).is_ok()), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(served.into_inner(), CLIENTS);
    }
}

#[test]
fn a_second_process_on_the_same_address_is_refused_unless_it_takes_over() {
    let bed = Bed::new("second");
    bed.configure(echo(b'a'), "threads = 2");
    let first = bed.start("");
    let listen = |backend: SocketAddr| {
        format!(
            "proxy --listen {} --mode tcp --threads 2 --backend {backend}",
            first.address
        )
    };
    let second = bed.weir(&listen(echo(b'b')));
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = stderr(&second);
    assert!(
        said.contains("Address already in use") && said.contains("--take-over"),
        "{said}"
    );
    for _ in 0..16 {
        assert_eq!(ask(&mut first.connect()).unwrap(), b'a');
    }
}

#[test]
fn a_second_process_that_shares_the_port_has_its_part_of_the_clients() {
    let bed = Bed::new("share");
    bed.configure(echo(b'a'), "");
    let first = bed.start("");
    let other = Bed::new("share-too");
    other.write_config(&format!(
        "[[proxy]]\nlisten = \"{}\"\nmode = \"tcp\"\nshare_port = true\nbackends = [\"{}\"]\n",
        first.address,
        echo(b'b')
    ));
    let _second = other.start("");
    let asked = |_| ask(&mut first.connect()).unwrap();
    let letters: Vec<u8> = (0..64).map(asked).collect();
    assert!(
        letters.contains(&b'a') && letters.contains(&b'b'),
        "{letters:?}"
    );
}

#[test]
fn one_process_listens_on_one_address_and_on_all_of_the_same_port() {
    let bed = Bed::new("overlap");
    // Free on all addresses.
    let port = TcpListener::bind("0.0.0.0:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let (narrow, wide) = (echo(b'n'), echo(b'w'));
    let table = |name, ip, backend| {
        format!(
            "[[proxy]]\nname = \"{name}\"\nlisten = \"{ip}:{port}\"\nmode = \"tcp\"\nbackends = [\"{backend}\"]\n"
        )
    };
    bed.write_config(&(table("narrow", "127.0.0.1", narrow) + &table("wide", "0.0.0.0", wide)));
    let _running = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    for (ip, letter) in [("127.0.0.1", b'n'), ("127.0.0.2", b'w')] {
        let mut client = TcpStream::connect((ip, port)).unwrap();
        assert_eq!(ask(&mut client).unwrap(), letter);
    }
}

#[test]
fn a_start_removes_the_sockets_of_proxies_that_were_killed_and_no_others() {
    let bed = Bed::new("killed");
    let sockets = || {
        let entries = std::fs::read_dir(&bed.path).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".sock")).collect();
        names.sort();
        names
    };
    bed.configure(echo(b'a'), "");
    let living = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    });
    let kept = sockets();
    let mut killed = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // One of another namespace, whose process is gone too, and one that is no proxy's.
    let other = format!("proxy-1-{}.sock", killed.child.id());
    for name in [other.as_str(), "weir-1.sock"] {
        drop(std::os::unix::net::UnixListener::bind(bed.path.join(name)).unwrap());
    }
    assert_eq!(sockets().len(), 4);
    let next = bed.start("");
    bed.until(|status| {
        status["proxies"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    let left = sockets();
    assert!(kept.iter().all(|name| left.contains(name)), "{left:?}");
    assert!(
        left.contains(&"weir-1.sock".to_owned()) && left.len() == 3,
        "{left:?}"
    );
    drop((living, next));
}
