//! The real command on the real kernel, as root. Each test has a network namespace of its own, which
//! goes with the test's thread and its children.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;
mod left_over;
mod observe;
mod protect;
mod trial;

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, sockopt};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::needs::own_namespace;

use common::{Folder, full_pipe};

const PORT: u16 = 8080;
/// Places in the test server's listen queue: the kernel takes one connection more than it was told,
/// reserv takes exactly these.
const BACKLOG: i32 = 4;
/// A refusal comes in microseconds; who is silent for this long has dropped the SYN.
const SILENCE: Duration = Duration::from_millis(300);

/// A network namespace with loopback up, and a folder for the control socket.
struct Bed {
    folder: Folder,
}

impl Deref for Bed {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Bed {
    /// `None` without root; says so.
    fn new(name: &str) -> Option<Bed> {
        if !own_namespace() {
            return None;
        }
        let folder = Folder::new(name);
        Some(Bed { folder })
    }

    /// Starts `weir protect` and waits for its first line.
    fn protect(&self, flags: &str) -> Protect {
        Bed::until_protected(self.command(&format!("protect {PORT} {flags}")))
    }

    fn until_protected(mut command: Command) -> Protect {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        Protect {
            child: Daemon(child),
            stdout,
            line,
        }
    }

    /// Starts `weir run` with these listeners and waits until it runs.
    fn run(&self, config: &str) -> Daemon {
        self.run_and_log_to(config, Stdio::piped())
    }

    fn run_and_log_to(&self, config: &str, stderr: impl Into<Stdio>) -> Daemon {
        self.write_config(config);
        let file = self.config();
        let mut command = self.command(&format!("run --config {}", file.display()));
        let daemon = Daemon(command.stderr(stderr).spawn().unwrap());
        self.until(|status| status["running"] == true);
        daemon
    }
}

/// A weir in the background; killed on drop.
struct Daemon(Child);

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    /// Ends it; what it has logged.
    fn log(mut self) -> String {
        self.signal(Signal::SIGTERM);
        let mut log = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Protect {
    child: Daemon,
    stdout: BufReader<ChildStdout>,
    line: String,
}

impl Protect {
    /// What it prints from now to its end, and how it ends.
    fn end(mut self) -> (String, ExitStatus) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait())
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

/// A server that listens and never accepts.
fn idle_server(port: u16) -> OwnedFd {
    let (family, kind) = (AddressFamily::Inet, SockType::Stream);
    let server = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::setsockopt(&server, sockopt::ReuseAddr, &true).unwrap();
    let address = SockaddrIn::from(SocketAddrV4::new([0, 0, 0, 0].into(), port));
    socket::bind(server.as_raw_fd(), &address).unwrap();
    socket::listen(&server, Backlog::new(BACKLOG).unwrap()).unwrap();
    server
}

/// How connection attempts ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attempts {
    connected: Vec<u16>,
    refused: usize,
    silent: usize,
}

/// Connections stay open until `kept` goes.
fn connect(times: usize, kept: &mut Vec<TcpStream>) -> Attempts {
    let address = SocketAddr::from(([127, 0, 0, 1], PORT));
    let mut attempts = Attempts::default();
    for _ in 0..times {
        match TcpStream::connect_timeout(&address, SILENCE) {
            Ok(stream) => {
                attempts.connected.push(stream.local_addr().unwrap().port());
                kept.push(stream);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => attempts.refused += 1,
            Err(error) if error.kind() == ErrorKind::TimedOut => attempts.silent += 1,
            Err(error) => panic!("connect: {error}"),
        }
    }
    attempts
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_does_not_fit_is_refused_counted_and_summed_up() {
    let Some(bed) = Bed::new("protect") else {
        return;
    };
    let _server = idle_server(PORT);
    let protect = bed.protect("");
    assert_eq!(
        protect.line,
        "weir: protecting port 8080 (reserv rst-syn, admit wait 20ms) on lo; \
         listen queue 0 of 4; Ctrl-C takes it off\n"
    );
    let mut kept = Vec::new();
    let attempts = connect(12, &mut kept);
    assert_eq!(
        (attempts.connected.len(), attempts.refused),
        (4, 8),
        "{attempts:?}"
    );
    let status = bed.status();
    let listener = &status["listeners"][0];
    assert_eq!(listener["queue_length"], 4);
    assert_eq!(listener["queue_limit"], 4);
    assert_eq!(listener["counters"]["syn_admitted"], 4);
    assert_eq!(listener["counters"]["syn_reset_full"], 8);
    protect.child.signal(Signal::SIGINT);
    let (summary, exit) = protect.end();
    assert!(
        summary.contains("admitted 4, refused 8 (67 %)\n"),
        "{summary}"
    );
    assert_eq!(exit.code(), Some(0));
    assert_eq!(bed.status()["running"], false);
}

#[test]
fn observe_counts_and_touches_nothing() {
    let Some(bed) = Bed::new("observe") else {
        return;
    };
    let _server = idle_server(PORT);
    let protect = bed.protect("--observe");
    assert!(
        protect.line.starts_with("weir: observing port 8080 "),
        "{}",
        protect.line
    );
    let attempts = connect(8, &mut Vec::new());
    assert_eq!(attempts.refused, 0, "{attempts:?}");
    assert!(
        attempts.silent > 0,
        "the kernel drops what does not fit: {attempts:?}"
    );
    let counters = &bed.status()["listeners"][0]["counters"];
    assert!(counters["syn_reset_full"].as_u64() > Some(0), "{counters}");
}

#[test]
fn a_second_weir_is_refused_with_the_pid_of_the_first() {
    let Some(bed) = Bed::new("second") else {
        return;
    };
    let _server = idle_server(PORT);
    let first = bed.protect("");
    let second = bed.weir("protect 8081 --anyway");
    assert_eq!(second.status.code(), Some(1));
    let pid = format!("(pid {})", first.child.0.id());
    assert!(stderr(&second).contains(&pid), "{}", stderr(&second));
}

#[test]
fn bad_input_is_refused_with_a_hint() {
    let Some(bed) = Bed::new("input") else { return };
    let unheard = bed.weir("protect 8080");
    assert_eq!(unheard.status.code(), Some(1));
    assert!(
        stderr(&unheard).contains("nothing listens on *:8080"),
        "{}",
        stderr(&unheard)
    );
    assert!(
        stderr(&unheard).contains("--anyway"),
        "{}",
        stderr(&unheard)
    );
    let elsewhere = bed.weir("protect 8080 --interface nope0");
    assert_eq!(elsewhere.status.code(), Some(1));
    assert!(
        stderr(&elsewhere).contains("there are lo;"),
        "{}",
        stderr(&elsewhere)
    );
    let protect = bed.protect("--anyway");
    assert!(
        protect.line.contains("nothing listens there yet"),
        "{}",
        protect.line
    );
}

#[test]
fn detach_ends_a_protect_which_then_sums_up() {
    let Some(bed) = Bed::new("detach") else {
        return;
    };
    let _server = idle_server(PORT);
    let protect = bed.protect("");
    let detach = bed.weir("detach");
    assert_eq!(detach.status.code(), Some(0), "{}", stderr(&detach));
    let (summary, exit) = protect.end();
    assert!(
        summary.starts_with("weir: protection of port 8080 is off"),
        "{summary}"
    );
    assert_eq!(exit.code(), Some(0));
    assert_eq!(
        std::fs::read_dir(&bed.path).unwrap().count(),
        0,
        "nothing stays behind"
    );
}

#[test]
fn status_shows_again_and_again_what_it_shows() {
    let Some(bed) = Bed::new("watch") else {
        return;
    };
    assert_eq!(bed.weir("status --watch").status.code(), Some(4));
    let _daemon = bed.run(RESERV);
    let mut watch = bed.command("status --watch --json");
    let mut watch = Daemon(watch.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let status: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(status["listeners"][0]["name"], "web");
    }
    drop(lines);
    // The reader has gone, so it ends.
    assert!(watch.wait().success());
}

const RESERV: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8080\"\n";
const DEFAULT: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8080\"\n\
                       establish = \"default\"\nreject_syn = \"drop\"\n";

#[test]
fn run_warns_of_a_small_backlog() {
    let Some(bed) = Bed::new("run-backlog") else {
        return;
    };
    let _server = idle_server(PORT);
    let log = bed.run(RESERV).log();
    assert!(log.contains("WARN backlog of 0.0.0.0:8080 (live-"), "{log}");
    assert!(
        log.contains("hint: call listen() with a larger backlog"),
        "{log}"
    );
}

#[test]
fn a_bad_config_leaves_the_running_policy_in_force_and_a_good_one_keeps_the_counters() {
    let Some(bed) = Bed::new("reload") else {
        return;
    };
    let _server = idle_server(PORT);
    let daemon = bed.run(RESERV);
    let mut kept = Vec::new();
    assert_eq!(connect(6, &mut kept).refused, 2);
    bed.write_config("[[listener]]\nadress = \"*:8080\"\n");
    let bad = bed.weir("reload");
    assert_eq!(bad.status.code(), Some(2));
    assert!(
        stderr(&bad).contains("did you mean address?"),
        "{}",
        stderr(&bad)
    );
    assert_eq!(
        connect(1, &mut kept).refused,
        1,
        "the running policy is in force"
    );
    bed.write_config(DEFAULT);
    let good = bed.weir("reload");
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    let listener = bed.status()["listeners"][0].clone();
    assert_eq!(listener["establish"], "default");
    assert_eq!(listener["counters"]["syn_reset_full"], 3, "counters go on");
    bed.write_config(RESERV);
    daemon.signal(Signal::SIGHUP);
    bed.until(|status| status["listeners"][0]["establish"] == "reserv");
    let log = daemon.log();
    assert_eq!(log.matches("reload failed").count(), 1, "{log}");
    assert!(log.contains("did you mean address?"), "{log}");
}

/// Each reload warns of seven interfaces for each of them, in the log too.
fn listeners_to_warn_of(count: usize) -> String {
    let listener = |n| {
        let missing = (0..7).map(|m| format!("none-{n}-{m}"));
        let interfaces: Vec<String> = missing.chain(["lo".to_owned()]).collect();
        format!("[[listener]]\nname = \"l{n}\"\naddress = \"*:{n}\"\ninterfaces = {interfaces:?}\n")
    };
    (1..=count).map(listener).collect()
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up_and_says_how_many_lines_it_lost() {
    let Some(bed) = Bed::new("log") else {
        return;
    };
    let (log, stderr) = full_pipe();
    let config = RESERV.to_owned() + &listeners_to_warn_of(100);
    let mut daemon = bed.run_and_log_to(&config, stderr);
    let lost = |status: &Value| status["process"]["log_lost"].as_u64().unwrap();
    for _ in 0..100 {
        let reload = bed.weir("reload");
        assert!(reload.status.success(), "{reload:?}");
        if lost(&bed.status()) > 500 {
            break;
        }
    }
    let lost = lost(&bed.status());
    assert!(lost > 500, "{lost}");
    let mut lines = BufReader::new(log).lines().map(Result::unwrap);
    let told =
        lines.find(|line| line.ends_with("lines of the log are lost here: nobody read it in time"));
    let words: Vec<String> = told
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert!(words[0].ends_with('Z'), "the time: {words:?}");
    assert_eq!(words[1..3], ["WARN".to_owned(), lost.to_string()]);
    bed.weir("class add late --from-port 1");
    assert!(lines.next().unwrap().contains("class"), "it flows again");
    daemon.signal(Signal::SIGTERM);
    assert!(
        lines.last().unwrap().contains("l100: off;"),
        "the last line"
    );
    assert!(daemon.wait().success());
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_weir_from_its_end() {
    let Some(bed) = Bed::new("log-end") else {
        return;
    };
    let (_log, stderr) = full_pipe();
    let mut daemon = bed.run_and_log_to(RESERV, stderr);
    assert!(bed.weir("detach").status.success());
    assert!(daemon.wait().success());
}

#[test]
fn reload_says_what_is_in_force_otherwise_than_asked_and_so_do_status_and_the_log() {
    let Some(bed) = Bed::new("warnings") else {
        return;
    };
    let _server = idle_server(PORT);
    let daemon = bed.run(RESERV);
    // 192.0.2.0/24 belongs to nobody (RFC 5737).
    bed.write_config(
        "[[listener]]\naddress = \"*:8080\"\nfront = \"xdp\"\n\
         [[listener]]\naddress = \"192.0.2.1:8081\"\ninterfaces = [\"nope0\"]\n",
    );
    let reload = bed.weir("reload");
    assert_eq!(reload.status.code(), Some(5), "{}", stderr(&reload));
    let said = String::from_utf8_lossy(&reload.stdout);
    assert_eq!(said, "1 of 2 listeners in force\n");
    let not_in_force =
        "error: listener \"port-8081\" is not in force: interface nope0 does not exist\n  hint: ";
    assert!(
        stderr(&reload).contains(not_in_force),
        "{}",
        stderr(&reload)
    );
    let status = bed.status()["warnings"].to_string();
    let log = daemon.log();
    for told in [stderr(&reload), status, log] {
        for what in [
            "interface nope0 does not exist",
            "front = xdp stays at tc ingress on lo",
            "no interface has the address 192.0.2.1",
        ] {
            assert_eq!(told.matches(what).count(), 1, "{what}: {told}");
        }
    }
}

#[test]
fn status_without_a_weir_here_exits_with_4_and_names_one_elsewhere() {
    let Some(bed) = Bed::new("elsewhere") else {
        return;
    };
    let none = bed.weir("status");
    assert_eq!(none.status.code(), Some(4));
    assert!(none.stdout.is_empty(), "{none:?}");
    assert!(stderr(&none).contains("hint: start it: "), "{none:?}");
    let daemon = bed.run(RESERV);
    let mut outside = Command::new("unshare");
    let inside = bed.command("status");
    outside
        .arg("--net")
        .arg(inside.get_program())
        .args(inside.get_args());
    let outside = outside.output().unwrap();
    assert_eq!(outside.status.code(), Some(4), "{outside:?}");
    let said = stderr(&outside);
    let started = said.contains("hint: one guards the network namespace of ");
    assert!(started && said.contains("--net weir status`"), "{said}");
    let mut outside = Command::new("unshare");
    let inside = bed.command("detach");
    outside
        .arg("--net")
        .arg(inside.get_program())
        .args(inside.get_args());
    let outside = outside.output().unwrap();
    assert!(outside.status.success(), "{outside:?}");
    let said = String::from_utf8(outside.stdout).unwrap();
    let nothing = "no weir is running in this network namespace; nothing is attached\none guards the network namespace of ";
    assert!(
        said.starts_with(nothing) && said.contains("--net weir detach`"),
        "{said}"
    );
    assert!(bed.weir("status").status.success());
    drop(daemon);
}

#[test]
fn a_reload_whose_only_listener_is_nowhere_in_force_exits_with_5_and_says_why_in_json_too() {
    let Some(bed) = Bed::new("nowhere") else {
        return;
    };
    let _server = idle_server(PORT);
    let daemon = bed.run(RESERV);
    bed.write_config(&RESERV.replace("\"web\"", "\"web\"\ninterfaces = [\"l0\"]"));
    let check = bed.weir("check weir.toml");
    assert_eq!(check.status.code(), Some(0));
    let slip = "warning: weir.toml: listener \"web\": interface l0 does not exist in this network namespace (did you mean lo?)";
    assert!(stderr(&check).contains(slip), "{}", stderr(&check));
    let reload = bed.weir("reload --json");
    assert_eq!(reload.status.code(), Some(5), "{reload:?}");
    let said: Value = serde_json::from_slice(&reload.stdout).unwrap();
    let why = said[0]["not_in_force"][0]["message"].as_str().unwrap();
    assert!(why.starts_with("listener \"web\" is not in force"), "{why}");
    assert_eq!(bed.status()["listeners"][0]["in_force"], false);
    let mut kept = Vec::new();
    assert_eq!(connect(6, &mut kept).refused, 0, "nothing is protected");
    let log = daemon.log();
    assert!(log.contains("0 of 1 listener in force"), "{log}");
    assert!(
        log.contains("ERROR listener \"web\" is not in force"),
        "{log}"
    );
}

#[test]
fn a_start_says_which_listener_is_not_in_force_until_its_interface_appears() {
    let Some(bed) = Bed::new("start") else {
        return;
    };
    let listener = RESERV.replace("\"web\"", "\"web\"\ninterfaces = [\"weir7\"]");
    let daemon = bed.run(&listener);
    assert!(
        bed.status()["warnings"][0]
            .as_str()
            .unwrap()
            .contains("\"web\" is not in force")
    );
    run("ip", &["link", "add", "weir7", "type", "bridge"]);
    bed.until(|status| status["listeners"][0]["in_force"] == true);
    let log = daemon.log();
    let error = "ERROR listener \"web\" is not in force: interface weir7 does not exist";
    assert_eq!(log.matches(error).count(), 1, "{log}");
    assert!(log.contains("guarding interface weir7"), "{log}");
}

#[test]
fn an_address_that_is_not_there_is_warned_of_and_guarded_all_the_same() {
    let Some(bed) = Bed::new("address") else {
        return;
    };
    let _server = idle_server(PORT);
    let protect = bed.protect("--address 192.0.2.1");
    assert!(
        protect.line.contains("protecting 192.0.2.1:8080"),
        "{}",
        protect.line
    );
    let log = protect.child.log();
    assert!(
        log.contains("no interface has the address 192.0.2.1"),
        "{log}"
    );
}

#[test]
fn after_kill_9_nothing_is_attached_and_status_and_detach_say_so() {
    let Some(bed) = Bed::new("killed") else {
        return;
    };
    let _server = idle_server(PORT);
    let mut daemon = bed.run(RESERV);
    let mut kept = Vec::new();
    assert_eq!(connect(6, &mut kept).refused, 2);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    assert_eq!(bed.status()["running"], false);
    let after = connect(3, &mut kept);
    assert_eq!(after.refused, 0, "the kernel is as without weir: {after:?}");
    assert_eq!(bed.weir("detach").status.code(), Some(0));
    let left = std::fs::read_dir(&bed.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["weir.toml"]);
    drop(bed.run(RESERV));
}

#[test]
fn interfaces_are_guarded_as_they_appear_and_left_as_they_join_a_bridge() {
    let Some(bed) = Bed::new("links") else { return };
    let has = |status: &Value, name: &str| {
        status["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .any(|i| i["name"] == name)
    };
    let _daemon = bed.run(RESERV);
    run(
        "ip",
        &[
            "link", "add", "weir0", "type", "veth", "peer", "name", "weir1",
        ],
    );
    bed.until(|status| has(status, "weir0") && has(status, "weir1"));
    run("ip", &["link", "add", "weirbr", "type", "bridge"]);
    run("ip", &["link", "set", "weir0", "master", "weirbr"]);
    bed.until(|status| has(status, "weirbr") && !has(status, "weir0"));
    run("ip", &["link", "del", "weir1"]);
    bed.until(|status| !has(status, "weir1"));
}

#[test]
fn cookies_that_the_kernel_forbids_fall_back_and_what_cannot_be_counted_is_refused() {
    let Some(bed) = Bed::new("sysctl") else {
        return;
    };
    let _server = idle_server(PORT);
    // /proc/sys shows the network namespace of the thread that opens it.
    let set = |value| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", value);
    if let Err(error) = set("2") {
        println!("SKIP: tcp_syncookies cannot be written: {error}");
        return;
    }
    let refused = bed.weir("protect 8080");
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        stderr(&refused).contains("tcp_syncookies=1"),
        "{}",
        stderr(&refused)
    );
    set("0").unwrap();
    let protect = bed.protect("--establish no-syn-drop");
    assert!(
        protect.line.contains("(reserv rst-syn, "),
        "{}",
        protect.line
    );
    let listener = bed.status()["listeners"][0].clone();
    assert_eq!(listener["establish"], "no-syn-drop");
    assert_eq!(listener["fallback"], "reserv rst-syn");
}

#[test]
fn doctor_works_here_and_names_a_small_backlog() {
    let Some(bed) = Bed::new("doctor") else {
        return;
    };
    let _server = idle_server(PORT);
    let output = bed.weir("doctor --json");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(diagnosis["ok"], true);
    let advice = diagnosis["advice"].as_array().unwrap();
    let mechanisms = diagnosis["mechanisms"].as_array().unwrap();
    for name in [
        "guard-tc",
        "guard-tc-bare",
        "guard-xdp",
        "queue",
        "timewait",
        "shape",
    ] {
        let row = mechanisms.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row["state"], "ok", "{row:#}");
    }
    let rows = mechanisms.iter().chain(advice);
    let syncookies = rows.filter(|row| row["name"].as_str().unwrap().contains("syncookies"));
    assert_eq!(syncookies.count(), 1, "{diagnosis:#}");
    let small = |finding: &&Value| finding["name"] == "backlog of 0.0.0.0:8080";
    assert_eq!(
        advice.iter().find(small).expect("4 is small")["state"],
        "warn"
    );
}

/// Without these rights the kernel takes programs for tc, holds them to the verifier's rules for users who are not root, and
/// takes none for tracing.
const LESS: [&str; 2] = [
    "--bounding-set=-perfmon,-sys_admin",
    "--inh-caps=-perfmon,-sys_admin",
];

#[test]
fn doctor_says_which_programs_the_kernel_refuses_why_and_what_does_not_work() {
    let Some(bed) = Bed::new("refused") else {
        return;
    };
    let plain = bed.command("doctor --json");
    let mut command = Command::new("setpriv");
    command.args(LESS).arg("--").arg(plain.get_program());
    let output = command.args(plain.get_args()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("guard-tc"), "{}", stderr(&output));
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(diagnosis["ok"], false);
    let mechanisms = diagnosis["mechanisms"].as_array().unwrap();
    for (name, state, cause, without) in [
        ("tcx", "ok", "", "nothing works"),
        ("guard-tc", "no", "not permitted", "nothing works"),
        ("guard-xdp", "warn", "guard-tc", "at tc ingress"),
        (
            "shape",
            "warn",
            "the verifier refuses shape_classify: ",
            "[[shape]]",
        ),
    ] {
        let row = mechanisms.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row["state"], state, "{row:#}");
        let has = |key: &str, part: &str| row[key].as_str().unwrap_or_default().contains(part);
        assert!(has("cause", cause), "{row:#}");
        assert!(has("without", without), "{row:#}");
    }
}

#[test]
fn the_end_of_the_terminal_ends_protect_but_not_under_nohup() {
    let Some(bed) = Bed::new("nohup") else {
        return;
    };
    let _server = idle_server(PORT);
    // The process that runs the tests may ignore the signal too, and all below inherit it.
    let protect = |disposition: &str| {
        let plain = bed.command(&format!("protect {PORT}"));
        let mut command = Command::new("env");
        command
            .arg(disposition)
            .arg(plain.get_program())
            .args(plain.get_args());
        let protect = Bed::until_protected(command);
        protect.child.signal(Signal::SIGHUP);
        protect
    };
    assert_eq!(protect("--default-signal=HUP").end().1.code(), Some(0));

    let protect = protect("--ignore-signal=HUP");
    // The signal is pending before the request comes, and is looked at first.
    assert_eq!(bed.status()["running"], true);
    protect.child.signal(Signal::SIGTERM);
    assert_eq!(protect.end().1.code(), Some(0));
}
