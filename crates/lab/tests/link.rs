//! `weir-lab link`: a command behind an emulated link, with real TCP. Needs root and /dev/net/tun.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use weir_testbed::{needs, wait};

fn link(flags: &str, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
    command.arg("link").args(flags.split_whitespace());
    command.args(["--", "bash", "-c", script]);
    command
}

fn output(flags: &str, script: &str) -> Output {
    link(flags, script).output().unwrap()
}

fn can_run() -> bool {
    needs::root("an emulated link") && needs::programs(&["bash"])
}

/// Reads so many bytes from the far side.
fn get(bytes: u32) -> String {
    format!(
        "exec 3<>/dev/tcp/$WEIR_FAR/80 && printf 'GET /bytes/{bytes} HTTP/1.1\\r\\n\\r\\n' >&3 && cat <&3 | wc -c"
    )
}

/// What is left of a lab with this process id.
fn namespaces_of(pid: u32) -> usize {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten();
    let prefix = format!("weir-lab-{pid}-");
    names
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .count()
}

#[test]
fn a_command_has_the_far_side_at_the_link_s_rate_and_distance() {
    if !can_run() {
        return;
    }
    const BYTES: u32 = 300_000;
    let flags = "--json --down 2mbit --up 1mbit --delay 30ms --discipline spa-fq";
    let began = std::time::Instant::now();
    let output = output(flags, &get(BYTES));
    let took = began.elapsed().as_secs_f64();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let bytes: u32 = errors.trim().parse().unwrap();
    assert!((BYTES..BYTES + 200).contains(&bytes), "{bytes}");
    // 1.2 s on the link, and the way there and back for the handshake and the request.
    assert!(took > 1.2 + 0.12, "{took} s");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |way: &str, what: &str| report[way][what].as_u64().unwrap();
    assert_eq!(report["down"]["discipline"], "spa-fq");
    // The SYN/ACK down, and the SYN up.
    assert_eq!((of("down", "high"), of("up", "high")), (1, 1));
    assert!(of("down", "sent_bytes") > u64::from(BYTES));
    for way in ["down", "up"] {
        let gone = of(way, "dropped_full") + of(way, "dropped_delay") + of(way, "sent_packets");
        assert_eq!(
            of(way, "received_packets"),
            gone + of(way, "waiting_packets"),
            "{report:#}"
        );
        assert_eq!((of(way, "lost"), of(way, "refused")), (0, 0), "{report:#}");
    }
}

#[test]
fn a_wire_that_loses_packets_is_told_apart_from_a_queue_that_drops_them() {
    if !can_run() {
        return;
    }
    let flags = "--json --down 10mbit --up 10mbit --delay 1ms --loss 3%/30% --up-loss 0%";
    let output = output(flags, &get(1_000_000));
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let down = |what: &str| report["down"][what].as_u64().unwrap();
    let share = down("lost") as f64 / down("sent_packets") as f64;
    // 0.03 / (1 - 0.3 + 0.03) of about 750 packets, within four standard deviations of runs of losses.
    assert!((0.01..0.09).contains(&share), "{share}");
    // The link may end while an acknowledgement is under way.
    let arrived_or_not = down("lost") + down("delivered") + down("on_the_wire");
    assert_eq!(arrived_or_not, down("sent_packets"));
    assert_eq!(report["up"]["lost"], 0);
}

#[test]
fn exit_codes_are_those_of_the_lab_and_nothing_is_left() {
    if !can_run() {
        return;
    }
    for (command, code, part) in [
        (link("", "exit 7"), 1, "exit status: 7"),
        (link("--down 1kbit", "true"), 2, "12kbit"),
        (link("--loss 2", "true"), 2, "1%/30%"),
        (
            link("--discipline dualpi2", "true"),
            2,
            "no queueing discipline is called `dualpi2`",
        ),
    ] {
        let mut command = command;
        let child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(part), "{errors}");
        assert_eq!(namespaces_of(pid), 0);
    }
}

#[test]
fn the_next_link_removes_what_a_killed_one_has_left() {
    if !can_run() {
        return;
    }
    let mut killed = link("", "echo up; exec sleep 600")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = killed.id();
    let mut line = [0; 3];
    std::io::Read::read_exact(killed.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(namespaces_of(pid), 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(output("", "true").status.success());
    assert_eq!(namespaces_of(pid), 0);
}

#[test]
fn a_signal_ends_the_command_and_removes_everything() {
    if !can_run() {
        return;
    }
    let mut child = link("", "echo $$; exec sleep 600")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(namespaces_of(child.id()), 0);
    let command = format!("/proc/{}", line.trim());
    wait::until("the command has ended", || {
        (!Path::new(&command).exists()).then_some(())
    });
}
