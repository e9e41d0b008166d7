//! The claims ledger (bpf/lib/ledger.h): with threads for CPUs, and loaded, at a clock of 100 Hz and with a CPU that stands
//! still (BPF_PROG_TEST_RUN, as root: what is let in there never reaches the stack, as on such a CPU).

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use etherparse::PacketBuilder;
use nix::time::{ClockId, clock_getres, clock_gettime};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use weir_core::listener::{Admit, ListenAddress, Listener};
use weir_kernel::Guard;
use weir_testbed::cpu::pin_this_thread;
use weir_testbed::{needs, netns, wait};

const PASS: i32 = -1;
const REDIRECT: i32 = 7;
const HZ_100: u32 = 10_000_000;

/// The ledger with threads for CPUs. `None`: it does not compile so, or does not run.
fn compiled(folder: &Path, sanitizer: Option<&str>) -> Option<PathBuf> {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let program = folder.join("ledger");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-pthread", "-fno-strict-aliasing"]);
    cc.args(sanitizer)
        .arg(format!("-I{}", bpf.display()))
        .arg(bpf.join("tests/ledger.c"));
    let is_compiled = cc.arg("-o").arg(&program).output().expect("cc runs");
    let runs = || {
        Command::new(&program)
            .args(["1", "8", "1", "1", "0", "0"])
            .output()
    };
    (is_compiled.status.success() && runs().is_ok_and(|ran| ran.status.success()))
        .then_some(program)
}

/// The same, watched by ThreadSanitizer where that can be had: not every machine has its library, or lets it map its memory.
fn threads() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), Some("-fsanitize=thread")).unwrap_or_else(|| {
        eprintln!("without ThreadSanitizer");
        compiled(folder.path(), None).expect("it compiles and runs")
    });
    (folder, program)
}

/// Rounds: batches of each thread. `stands`: some stand still in a batch for 50 ms. On x86-64 also with what is left out
/// there, and is needed where loads and stores pass one another.
fn never_overflows(cpus: u32, places: u32, batch: u32, rounds: u32, stands: bool) {
    let (_folder, program) = threads();
    let of_this_machine: &[u32] = if cfg!(target_arch = "x86_64") {
        &[0, 1]
    } else {
        &[0]
    };
    for &ordered in of_this_machine {
        let arguments = [cpus, places, batch, rounds, stands.into(), ordered];
        holds(&program, arguments);
    }
}

fn holds(program: &Path, arguments: [u32; 6]) {
    let arguments = arguments.map(|n| n.to_string());
    let output = Command::new(program).args(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(
        output.status.success(),
        "{:?}: {said}{wrong}",
        output.status
    );
}

#[test]
fn reserv_never_overflows_on_8_cpus() {
    never_overflows(8, 64, 8, 600, false);
}

#[test]
fn reserv_never_overflows_on_64_cpus() {
    never_overflows(64, 512, 8, 100, false);
}

#[test]
fn reserv_never_overflows_on_64_cpus_with_lists_of_64_packets() {
    // More packets at once than net.core.gro_normal_batch says.
    never_overflows(64, 32_768, 64, 20, false);
}

#[test]
fn reserv_never_overflows_with_a_cpu_stopped_for_50_ms() {
    never_overflows(8, 512, 8, 400, true);
}

/// A guard, and a listening socket of which all places but so many are taken. `None` without root.
fn world(tick_ns: u32, backlog: i32, free: i32) -> Option<(Guard, TcpListener, Vec<TcpStream>)> {
    if !needs::root("BPF_PROG_TEST_RUN") {
        return None;
    }
    netns::enter_new().expect("a network namespace of our own");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any_port.into()).unwrap();
    socket.listen(backlog).unwrap();
    let socket = TcpListener::from(socket);
    let to = socket.local_addr().unwrap();
    let taken = (0..backlog - free)
        .map(|_| TcpStream::connect(to).unwrap())
        .collect();
    let mut guard = Guard::load_with_tick(tick_ns).expect("the guard loads");
    let address = ListenAddress {
        ip: None,
        port: to.port(),
    };
    let listener = Listener {
        admit: Admit::Queue,
        ..Listener::new("web", address)
    };
    guard.apply(&[listener], &[]).expect("the policy is taken");
    // Claims are kept by CPU.
    pin_this_thread(0).expect("a CPU");
    Some((guard, socket, taken))
}

/// The SYN of this number.
fn syn(socket: &TcpListener, number: u16, payload: &[u8]) -> Vec<u8> {
    let to = socket.local_addr().unwrap();
    let ip = PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4([10, 0, 0, 1], [127, 0, 0, 1], 64);
    let mut frame = Vec::new();
    let tcp = ip.tcp(number, to.port(), 1, 65_535).syn();
    tcp.write(&mut frame, payload).expect("a vector");
    frame
}

/// What the guard does with it.
fn action(guard: &Guard, socket: &TcpListener, number: u16) -> i32 {
    let frame = syn(socket, number, &[]);
    guard.judge_tc(&frame).expect("a test run").action
}

/// The kernel's clock that goes by its ticks.
fn ticked() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)
        .unwrap()
        .into()
}

fn tick() -> Duration {
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)
        .unwrap()
        .into()
}

#[test]
fn a_claim_is_not_over_at_the_next_tick_at_100_hertz() {
    const FREE: u16 = 4;
    let Some((guard, socket, _taken)) = world(HZ_100, 8, FREE.into()) else {
        return;
    };
    let mut number = 0;
    let mut next = || {
        number += 1;
        action(&guard, &socket, number)
    };
    // Where this test was kept from running, the tick is over: then once more, when the claims are.
    wait::until("a look one tick after the claims", || {
        let began = ticked();
        let filled = (0..FREE).all(|_| next() == PASS) && next() == REDIRECT;
        if !filled || ticked() != began {
            return None;
        }
        while ticked() == began {}
        let later = next();
        if ticked() - began != tick() {
            return None;
        }
        assert_eq!(
            later,
            REDIRECT,
            "the place of a SYN that came {:?} before",
            tick()
        );
        Some(())
    });
}

#[test]
fn no_place_is_given_twice_with_a_cpu_stopped_for_50_ms() {
    const FREE: i32 = 4;
    let cpus = libbpf_rs::num_possible_cpus().unwrap() as i32;
    let tick_ns = tick().as_nanos() as u32;
    let Some((guard, socket, _taken)) = world(tick_ns, 64 * cpus, FREE) else {
        return;
    };
    let began = ticked();
    for number in 1..=FREE {
        assert_eq!(action(&guard, &socket, number as u16), PASS, "{number}");
    }
    wait::until("50 ms have passed", || {
        (ticked() - began > Duration::from_millis(50)).then_some(())
    });
    let (later, at) = (action(&guard, &socket, 10), ticked() - began);
    assert!(
        later == REDIRECT || at > Duration::from_millis(100),
        "{later} after {at:?}"
    );
    // What the stack has dropped on an idle CPU holds no place for ever.
    wait::until("the claims are over", || {
        (action(&guard, &socket, 11) == PASS).then_some(())
    });
}

/// One SYN a tick, which the stack does not get: too few for a batch to tell that those before are over, and the last is
/// never old.
#[test]
fn a_trickle_of_syns_that_come_to_nothing_leaves_places_free() {
    let tick_ns = tick().as_nanos() as u32;
    // Claims that are up to twice 8 ms and a tick old, and a tick for what the clock leaves out.
    let held = 2 * (8_000_000 / tick_ns + 3) as i32;
    if held >= 14 {
        return needs::lacking("ticks so long that no batch of packets comes before");
    }
    let Some((guard, socket, _taken)) = world(tick_ns, 32, held + 1) else {
        return;
    };
    for number in 1..=100 {
        let began = ticked();
        assert_eq!(action(&guard, &socket, number), PASS, "{number}");
        while ticked() == began {}
    }
}

/// They hold no places beyond the half of the queue, however many there are.
#[test]
fn a_syn_with_a_wrong_sum_makes_no_claim_in_a_queue_that_is_not_half_empty() {
    for payload in [&[][..], b"GET / HTTP/1.1"] {
        let Some((guard, socket, _taken)) = world(HZ_100, 8, 4) else {
            return;
        };
        for number in 1..=20 {
            let mut frame = syn(&socket, number, payload);
            // Of the sum.
            frame[14 + 20 + 16] ^= 1;
            assert_eq!(guard.judge_tc(&frame).expect("a test run").action, PASS);
        }
        for number in 21..=24 {
            let frame = syn(&socket, number, payload);
            let action = guard.judge_tc(&frame).expect("a test run").action;
            assert_eq!(action, PASS, "{number}");
        }
    }
}

#[test]
fn near_the_limit_a_place_is_held_back_for_another_cpu_that_lets_connections_in() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return needs::lacking("a second CPU");
    }
    let Some((guard, socket, _taken)) = world(HZ_100, 16, 4) else {
        return;
    };
    // Where this test was kept from running, the claims were over meanwhile.
    wait::until("three of four places are given away on two CPUs", || {
        let began = ticked();
        pin_this_thread(1).expect("a second CPU");
        let first = action(&guard, &socket, 1);
        pin_this_thread(0).expect("a CPU");
        let others = [2, 3, 4].map(|number| action(&guard, &socket, number));
        let in_time = ticked() == began;
        (in_time && (first, others) == (PASS, [PASS, PASS, REDIRECT])).then_some(())
    });
}
