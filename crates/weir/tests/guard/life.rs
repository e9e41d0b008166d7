//! The life of a weir: start, reload, stop, kill. What it leaves behind, and what its clients notice.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use serde_json::Value;
use weir_testbed::cpu;
use weir_testbed::netns::Netns;
use weir_testbed::wait::Stops;

use crate::common::{
    BACKLOG, Bed, PATIENCE, PORT, SILENCE, Weir, accept, attempt, connect, listen, until, within,
};

fn config(policy: &str) -> String {
    format!("[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nadmit = \"queue\"\n{policy}\n")
}

const RESERV: &str = "establish = \"reserv\"";
const COOKIES: &str = "establish = \"no-syn-drop\"";

/// Ids of the BPF objects of one kind (`prog_id`, `link_id`) that a process holds open.
pub fn bpf_objects(pid: u32, kind: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .flatten();
    let texts = entries.flat_map(|entry| std::fs::read_to_string(entry.path()));
    let id = |text: String| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{kind}:")));
        line.and_then(|id| id.trim().parse().ok())
    };
    texts.filter_map(id).collect()
}

/// Whether there is one of this kind still (`prog`, `link`).
pub fn exists(kind: &str, id: u32) -> bool {
    let mut bpftool = Command::new("bpftool");
    bpftool.args([kind, "show", "id", &id.to_string()]);
    bpftool
        .output()
        .expect("bpftool is installed")
        .status
        .success()
}

/// Starts a guard, ends it by this signal, and sees all its programs and links go.
fn leaves_nothing_after(signal: Signal) {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let weir = bed.protect(&PORT.to_string());
    assert_eq!(connect(path.client, path.at(PORT), 6).counts(), (4, 2, 0));
    let programs = bpf_objects(weir.pid(), "prog_id");
    let links = bpf_objects(weir.pid(), "link_id");
    assert!(
        !programs.is_empty() && !links.is_empty(),
        "{programs:?} {links:?}"
    );
    assert!(
        programs.iter().all(|id| exists("prog", *id)),
        "bpftool sees them: {programs:?}"
    );
    weir.signal(signal);
    let (_, exit) = weir.end();
    if signal != Signal::SIGKILL {
        assert_eq!(exit.code(), Some(0));
    }
    until("no program and no link", || {
        let left = programs.iter().any(|id| exists("prog", *id));
        (!left && !links.iter().any(|id| exists("link", *id))).then_some(())
    });
    assert_eq!(bed.status()["running"], false);
    let full = connect(path.client, path.at(PORT), 2);
    assert_eq!(full.refused, 0, "the kernel is as without weir: {full:?}");
}

#[test]
fn sigint_leaves_nothing_attached() {
    leaves_nothing_after(Signal::SIGINT);
}

#[test]
fn sigterm_leaves_nothing_attached() {
    leaves_nothing_after(Signal::SIGTERM);
}

#[test]
fn kill_9_leaves_nothing_attached() {
    leaves_nothing_after(Signal::SIGKILL);
}

/// Sends one chunk through the connection and back, and compares it.
fn round_trip(client: &mut TcpStream, server: &mut TcpStream, round: u8) {
    let sent: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8 ^ round).collect();
    let mut received = vec![0; sent.len()];
    for (from, to) in [(&*client, &*server), (&*server, &*client)] {
        let (mut from, mut to) = (from, to);
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&sent).unwrap());
            to.read_exact(&mut received).unwrap();
        });
        assert!(received == sent, "round {round}");
    }
}

/// Carries data on a connection until told to stop; gives the number of rounds.
fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    rounds: &AtomicUsize,
    stop: &AtomicBool,
) -> (TcpStream, TcpStream) {
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        round_trip(&mut client, &mut server, round as u8);
    }
    (client, server)
}

#[test]
fn an_established_connection_carries_every_byte_through_start_reload_stop_and_kill_9() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth6();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let client = connect(path.client, path.at(PORT), 1).connected.remove(0);
    let server = accept(&listener, 1).remove(0);
    let (rounds, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let carrier = scope.spawn(|| carry(client, server, &rounds, &stop));
        let _stop = Stops(&stop);
        let go_on = || {
            let seen = rounds.load(Ordering::Relaxed);
            until("the transfer goes on", || {
                assert!(!carrier.is_finished(), "the transfer broke off");
                (rounds.load(Ordering::Relaxed) > seen + 2).then_some(())
            });
        };
        go_on();
        let weir = bed.run(&config(RESERV));
        go_on();
        for policy in [COOKIES, "half_close = \"reset\"", RESERV] {
            bed.write_config(&config(policy));
            assert!(bed.weir("reload").status.success());
            go_on();
        }
        weir.signal(Signal::SIGTERM);
        go_on();
        assert_eq!(weir.end().1.code(), Some(0));
        go_on();
        let weir = bed.run(&config(COOKIES));
        go_on();
        weir.signal(Signal::SIGKILL);
        go_on();
        weir.end();
        go_on();
    });
}

#[test]
fn one_weir_per_namespace_and_any_number_of_namespaces() {
    let Some(bed) = Bed::new() else { return };
    let first = bed.protect(&format!("{PORT} --anyway"));
    let second = bed.weir("protect 8081 --anyway");
    refused(&second, 1, &format!("(pid {})", first.pid()));
    let elsewhere = bed.spawn(bed.client(), "protect 8081 --anyway");
    let running = || {
        within(bed.client(), || {
            bed.command("status --json").output().unwrap()
        })
    };
    until("a weir runs in the client namespace", || {
        let status: Value = serde_json::from_slice(&running().stdout).unwrap();
        (status["process"]["pid"] == elsewhere.pid()).then_some(())
    });
}

/// The exit code, a word of the error, and a hint.
fn refused(output: &Output, code: i32, word: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    assert!(stderr.contains("hint: "), "no hint: {stderr}");
}

#[test]
fn bad_input_gets_its_exit_code_and_a_hint() {
    let Some(bed) = Bed::new() else { return };
    refused(&bed.weir("protect 8080"), 1, "nothing listens on *:8080");
    refused(&bed.weir("protect 8080 --interface nope0"), 1, "nope0");
    refused(&bed.weir("protect 8080 --interface a/b"), 2, "a/b");
    refused(&bed.weir("protect 0"), 2, "0");
    refused(&bed.weir("reload"), 4, "no weir");
    bed.write_config("[[listener]\n");
    let run = format!("run --config {}", bed.config().display());
    refused(&bed.weir(&run), 2, "weir.toml");
    bed.write_config(&config("establish = \"reserve\""));
    refused(&bed.weir(&run), 2, "reserv");
    refused(
        &bed.weir("run --config /nonexistent/weir.toml"),
        2,
        "/nonexistent/weir.toml",
    );
    let unknown = bed.weir("protect 8080 --establish reserve");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("reserv"));
}

#[test]
fn without_root_it_fails_and_says_what_it_needs() {
    let Some(bed) = Bed::new() else { return };
    let program = bed.folder.path().join("weir");
    std::fs::copy(bed.command("").get_program(), &program).unwrap();
    std::fs::set_permissions(bed.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command
        .arg(program)
        .arg("--runtime-dir")
        .arg(bed.folder.path());
    command.args(["protect", "8080", "--anyway"]);
    let output = within(bed.server(), || command.output().unwrap());
    refused(&output, 1, "belongs to root");
    std::os::unix::fs::chown(bed.folder.path(), Some(65534), Some(65534)).unwrap();
    let output = within(bed.server(), || command.output().unwrap());
    refused(&output, 1, "CAP_NET_ADMIN");
}

#[test]
fn a_bad_config_on_sighup_leaves_the_running_policy_in_force() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let weir = bed.run(&config(RESERV));
    let _full = connect(path.client, path.at(PORT), 4);
    bed.write_config(&config("establish = \"nonsense\""));
    weir.signal(Signal::SIGHUP);
    refused(&bed.weir("reload"), 2, "nonsense");
    assert_eq!(connect(path.client, path.at(PORT), 3).counts(), (0, 3, 0));
    assert_eq!(bed.status()["listeners"][0]["establish"], "reserv");
}

/// Accepts, greets and closes until a client says nothing but good-bye, or none comes any more;
/// gives the number of those that were greeted.
fn serve(listener: &TcpListener) -> usize {
    let patience = TimeVal::new(PATIENCE.as_secs() as i64, 0);
    setsockopt(listener, sockopt::ReceiveTimeout, &patience).unwrap();
    let mut served = 0;
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            return served;
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = [0];
        if stream.read(&mut request).unwrap() == 0 {
            return served;
        }
        stream.write_all(b"hello").unwrap();
        served += 1;
    }
}

/// What a visitor says whose SYN, or the answer to it, got lost.
const SYN_LOST: &str = "connect: timed out";

/// Connects and waits for the greeting, over and over; gives the errors.
fn visit(
    netns: &Netns,
    address: SocketAddr,
    visits: &AtomicUsize,
    stop: &AtomicBool,
) -> Vec<String> {
    let mut errors = Vec::new();
    let visit_once = || -> Result<(), String> {
        let mut stream = attempt(address, SILENCE).map_err(|kind| format!("connect: {kind}"))?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"?")
            .map_err(|error| format!("write: {error}"))?;
        let mut greeting = [0; 5];
        stream
            .read_exact(&mut greeting)
            .map_err(|error| format!("read: {error}"))
    };
    within(netns, || {
        while !stop.load(Ordering::Relaxed) {
            errors.extend(visit_once().err());
            visits.fetch_add(1, Ordering::Relaxed);
        }
    });
    errors
}

/// Asks for a reload through the control socket, as `weir reload` does, and gives the answer.
fn reload(bed: &Bed) -> String {
    let entries = std::fs::read_dir(bed.folder.path()).unwrap().flatten();
    let is_socket = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "sock");
    let socket = entries
        .map(|entry| entry.path())
        .find(is_socket)
        .expect("weir runs");
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"{\"command\":\"reload\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn a_thousand_reloads_under_load_cost_no_connection_and_refuse_nobody() {
    const RELOADS: usize = 1000;
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), 1024);
    let _weir: Weir = bed.run(&config(RESERV));
    let (visits, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let dropped_before = cpu::dropped().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener));
        let visitors =
            [(); 2].map(|()| scope.spawn(|| visit(path.client, path.at(PORT), &visits, &stop)));
        let stopper = Stops(&stop);
        for round in 0..RELOADS {
            bed.write_config(&config(
                [RESERV, COOKIES, "establish = \"abort\""][round % 3],
            ));
            let answer = reload(&bed);
            assert!(answer.contains("reloaded"), "{answer}");
        }
        until("clients enough", || {
            (visits.load(Ordering::Relaxed) >= RELOADS).then_some(())
        });
        drop(stopper);
        let errors = visitors.map(|visitor| visitor.join().unwrap()).concat();
        drop(connect(path.client, path.at(PORT), 1));
        let verdicts = bed.verdicts(0);
        // A flood of another test may fill a CPU's queue. The kernel counts what it loses there.
        let lost = errors.iter().filter(|error| *error == SYN_LOST).count();
        let dropped = cpu::dropped().unwrap() - dropped_before;
        assert!(
            lost == errors.len() && lost as u64 <= dropped,
            "{errors:?} of {visits:?} visits, {dropped} packets dropped, {verdicts:?}"
        );
        assert_eq!(
            server.join().unwrap(),
            visits.load(Ordering::Relaxed) - lost
        );
    });
    let verdicts = bed.verdicts(0);
    let refusals: Vec<_> = verdicts
        .iter()
        .filter(|(name, _)| name.contains("reset") || name.contains("dropped"))
        .collect();
    assert!(refusals.is_empty(), "{verdicts:?}");
    assert_eq!(bed.overflows(), 0);
}
