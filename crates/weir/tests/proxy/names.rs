//! Backends by name, with a real name server (dnsmasq) and the C library's resolver: the name server changes its mind,
//! says nothing, or knows the name no longer.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::netns::{bind_over, run_in_new};
use weir_testbed::{needs, wait};

use crate::bed::{Bed, Load, Running, ask, echo_at, stderr};

const NAME: &str = "app.internal";

/// dnsmasq on 127.0.0.1:53 of the calling thread's namespace, which is the only name server there.
struct NameServer<'a> {
    bed: &'a Bed,
    child: Child,
}

impl NameServer<'_> {
    fn start<'a>(bed: &'a Bed, addresses: &[&str]) -> NameServer<'a> {
        // The default of 5 s, twice, only makes the test longer.
        let files = [
            (
                "resolv.conf",
                "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
            ),
            ("nsswitch.conf", "hosts: files dns\n"),
            ("hosts", "127.0.0.1 localhost\n"),
        ];
        for (name, text) in files {
            let file = bed.path.join(name);
            std::fs::write(&file, text).unwrap();
            bind_over(&file, &Path::new("/etc").join(name)).unwrap();
        }
        let zone = bed.path.join("zone");
        write_zone(bed, addresses);
        let child = Command::new("dnsmasq")
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--no-resolv",
            ])
            .args([
                "--no-hosts",
                "--listen-address=127.0.0.1",
                "--bind-interfaces",
            ])
            .args(["--local=/internal/", "--user=root", "--pid-file"])
            .arg(format!("--addn-hosts={}", zone.display()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = NameServer { bed, child };
        wait::until("the name server answers", || {
            let output = Command::new("getent").args(["ahosts", NAME]).output();
            output.unwrap().status.success().then_some(())
        });
        server
    }

    /// From now on these are the addresses of the name; without any it does not exist.
    fn set(&self, addresses: &[&str]) {
        write_zone(self.bed, addresses);
        self.signal(Signal::SIGHUP);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

fn write_zone(bed: &Bed, addresses: &[&str]) {
    let lines = addresses
        .iter()
        .map(|address| format!("{address} {NAME}\n"));
    let new = bed.path.join("zone.new");
    std::fs::write(&new, lines.collect::<String>()).unwrap();
    std::fs::rename(&new, bed.path.join("zone")).unwrap();
}

impl Drop for NameServer<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `work` with a name server in namespaces of its own, whose only backends by that name are these.
fn with_name_server(name: &str, addresses: &[&str], work: impl FnOnce(&Bed, &NameServer) + Send) {
    if !needs::root("a network namespace") || !needs::programs(&["dnsmasq"]) {
        return;
    }
    run_in_new(|| {
        let bed = Bed::new(name);
        let server = NameServer::start(&bed, addresses);
        work(&bed, &server);
    })
    .unwrap();
}

/// Servers at 127.0.0.1, 127.0.0.2 and ::1, which answer a, b and c; their port.
fn servers() -> u16 {
    let port = echo_at("127.0.0.1:0".parse().unwrap(), b'a').port();
    echo_at(SocketAddr::from(([127, 0, 0, 2], port)), b'b');
    echo_at(format!("[::1]:{port}").parse().unwrap(), b'c');
    port
}

fn configure(bed: &Bed, port: u16, keys: &str) {
    bed.write_config(&format!(
        "[[proxy]]\nname = \"edge\"\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
         backends = [\"{NAME}:{port}\"]\nresolve_interval = \"100ms\"\n{keys}\n"
    ));
}

/// Starts the proxy of the config file, whose log can be read.
pub fn start_logged(bed: &Bed) -> (Running, BufReader<ChildStderr>) {
    start_logged_with(bed, "")
}

/// As [`start_logged`], with further flags.
pub fn start_logged_with(bed: &Bed, flags: &str) -> (Running, BufReader<ChildStderr>) {
    let mut command = bed.command(&format!("proxy --config weir.toml {flags}"));
    command.stderr(Stdio::piped());
    let mut proxy = Bed::started(command);
    let log = BufReader::new(proxy.child.stderr.take().unwrap());
    (proxy, log)
}

/// The log's lines before the one with these words.
pub fn said_before(log: &mut BufReader<ChildStderr>, words: &str) -> Vec<String> {
    // A reader that waits would wait for ever for what is not said.
    let flags = OFlag::from_bits_retain(fcntl(log.get_ref(), FcntlArg::F_GETFL).unwrap());
    let flags = FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK);
    fcntl(log.get_ref(), flags).unwrap();
    let (mut before, mut line) = (Vec::new(), Vec::new());
    let found = wait::try_until(wait::PATIENCE, || {
        while let Ok(1..) = log.read_until(b'\n', &mut line) {
            let said = String::from_utf8(std::mem::take(&mut line)).unwrap();
            match said.contains(words) {
                true => return Some(()),
                false => before.push(said),
            }
        }
        None
    });
    assert!(found.is_some(), "{words:?} is not among {before:?}");
    before
}

fn name_of(bed: &Bed) -> Value {
    bed.status()["proxies"][0]["names"][0].clone()
}

fn has_addresses(bed: &Bed, expected: &[&str]) {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    wait::until("these are the addresses", || {
        let name = name_of(bed);
        let mut found: Vec<&str> = name["addresses"]
            .as_array()?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        found.sort_unstable();
        (found == expected && name["resolved"] == true).then_some(())
    });
}

/// Whether clients are answered by each of these servers and by no other. Which server a client meets is the
/// proxy's choice, so it takes some clients to meet them all.
fn answered_by(proxy: &Running, servers: &[u8]) {
    let mut met = BTreeSet::new();
    for clients in 1..=200 {
        met.insert(ask(&mut proxy.connect()).unwrap());
        // Twice what must answer at least, so that one that must not has its chance.
        if met.len() >= servers.len() && clients >= 2 * servers.len() {
            break;
        }
    }
    assert_eq!(met, BTreeSet::from_iter(servers.iter().copied()));
}

#[test]
fn a_name_server_that_changes_its_answer_or_says_nothing_costs_no_client() {
    with_name_server("names-change", &["127.0.0.1"], |bed, server| {
        configure(bed, servers(), "threads = 2");
        let proxy = bed.start("");
        let mut tunnel = proxy.connect();
        assert_eq!(ask(&mut tunnel).unwrap(), b'a');
        let load = Load::start(proxy.address);
        for (addresses, expected) in [
            (&["127.0.0.2"][..], &b"b"[..]),
            (&["127.0.0.2", "::1"], b"bc"),
            (&["127.0.0.1", "127.0.0.2", "::1"], b"abc"),
            (&["::1"], b"c"),
            (&["127.0.0.1", "::1"], b"ac"),
        ] {
            server.set(addresses);
            has_addresses(bed, addresses);
            load.serve(50);
            answered_by(&proxy, expected);
        }
        server.signal(Signal::SIGSTOP);
        wait::until("it says that the name server is silent", || {
            let name = name_of(bed);
            (name["resolved"] == false && name["failing_seconds"].is_u64()).then_some(())
        });
        load.serve(50);
        answered_by(&proxy, b"ac");
        let text = String::from_utf8(bed.weir("status").stdout).unwrap();
        let line = "name app.internal: 2 addresses, which it keeps; not resolved for";
        assert!(text.contains(line), "{text}");
        server.signal(Signal::SIGCONT);
        has_addresses(bed, &["127.0.0.1", "::1"]);
        // It vanishes, and its last addresses stay.
        server.set(&[]);
        wait::until("it says that there is no such name", || {
            let why = name_of(bed)["lookup_error"].as_str()?.to_owned();
            why.contains("not known").then_some(())
        });
        load.serve(50);
        answered_by(&proxy, b"ac");
        let errors = load.errors();
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(ask(&mut tunnel).unwrap(), b'a');
    });
}

#[test]
fn a_start_without_its_name_server_is_soon_over_and_the_name_is_found_later() {
    with_name_server("names-start", &["127.0.0.1"], |bed, server| {
        configure(bed, servers(), "");
        // Longer than the start waits.
        let patient = "nameserver 127.0.0.1\noptions timeout:4 attempts:1\n";
        std::fs::write(bed.path.join("resolv.conf"), patient).unwrap();
        server.signal(Signal::SIGSTOP);
        let check = bed.weir("check weir.toml");
        assert!(check.status.success(), "{check:?}");
        let said = stderr(&check);
        assert!(
            said.contains("app.internal does not resolve here"),
            "{said}"
        );
        let begin = Instant::now();
        let (proxy, mut log) = start_logged(bed);
        assert!(begin.elapsed() < Duration::from_secs(8));
        let before = said_before(&mut log, "cannot resolve app.internal: ");
        let early = before
            .iter()
            .filter(|line| line.contains("no answer for the name"));
        assert_eq!(early.count(), 1, "{before:?}");
        assert!(ask(&mut proxy.connect()).is_err());
        assert_eq!(name_of(bed)["resolved"], false);
        server.signal(Signal::SIGCONT);
        has_addresses(bed, &["127.0.0.1"]);
        assert_eq!(ask(&mut proxy.connect()).unwrap(), b'a');
        let check = bed.weir("check weir.toml");
        assert!(!stderr(&check).contains("resolve"), "{check:?}");
    });
}

#[test]
fn a_name_that_does_not_exist_is_said_at_the_start_with_the_reason_alone() {
    with_name_server("names-none", &["127.0.0.1"], |bed, _| {
        bed.write_config(
            "[[proxy]]\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\nbackends = [\"other.internal:80\"]\n",
        );
        let (_proxy, mut log) = start_logged(bed);
        let before = said_before(&mut log, "cannot resolve other.internal: ");
        assert!(
            !before.iter().any(|line| line.contains("no answer")),
            "{before:?}"
        );
    });
}

#[test]
fn a_reload_and_a_successor_have_the_addresses_though_the_name_server_is_silent() {
    with_name_server("names-successor", &["127.0.0.2"], |bed, server| {
        let port = servers();
        configure(bed, port, "");
        let old = bed.start("");
        answered_by(&old, b"b");
        let load = Load::start(old.address);
        server.signal(Signal::SIGSTOP);
        configure(bed, port, "max_clients = 1000");
        let begin = Instant::now();
        assert!(bed.weir("reload").status.success());
        assert!(begin.elapsed() < Duration::from_secs(2));
        load.serve(50);
        let new = bed.start("--take-over");
        assert_eq!(new.address, old.address);
        load.serve(50);
        let mut old = old;
        let (said, well) = old.end();
        assert!(well, "{said}");
        let errors = load.errors();
        assert!(errors.is_empty(), "{errors:?}");
        answered_by(&new, b"b");
        server.signal(Signal::SIGCONT);
    });
}
