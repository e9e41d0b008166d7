//! The lab against the real kernel. Needs root, /dev/net/tun and, for the cross-check, httperf; a
//! test that cannot run says so and why.
//!
//! Nothing here depends on how fast the machine is: loads are modest, and figures are compared with
//! each other or with what must hold at any speed.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_lab::bed::{Bed, Layout};
use weir_lab::client::tcp::Kind;
use weir_lab::client::{Fate, Generator, Load, Pattern};
use weir_lab::experiments::crosscheck;
use weir_lab::experiments::point::{Measured, OpenLoop, ServerArgs};
use weir_lab::experiments::policy::Policy;
use weir_lab::idle::IdleMeter;
use weir_lab::run::experiment::{self, Flags};
use weir_lab::run::results::{Case, Results};
use weir_lab::run::scheduler;
use weir_lab::server::pool::Occupation;
use weir_lab::server::{ServerProgram, Spec};
use weir_testbed::netns::Netns;
use weir_testbed::{cpu, needs};

/// The tests take turns: each has the generator's and the server's CPU to itself.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns from a test, with the reason, if this machine cannot run it.
macro_rules! needs {
    ($condition:expr, $reason:literal) => {
        if !$condition {
            return needs::skip(concat!("needs ", $reason));
        }
    };
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn open_loop(program: ServerProgram, backlog: u32) -> OpenLoop {
    let spec = Spec {
        program,
        port: 80,
        backlog,
    };
    let bed = Bed::build(Layout::of_this_machine()).unwrap();
    OpenLoop {
        bed,
        server: spec,
        weir: None,
        generator: Generator::new(),
    }
}

fn load(bed: &OpenLoop, rate_per_s: f64, ipv6: bool) -> Load {
    Load {
        target: (bed.bed.server_address(ipv6), 80).into(),
        rate_per_s,
        pattern: Pattern::Constant,
        warm_up: Duration::ZERO,
        window: Duration::from_secs(1),
        timeout: Duration::from_secs(2),
        kind: Kind::Rfc793,
        server_closes_first: false,
        drain: true,
    }
}

fn measure(bed: &mut OpenLoop, load: &Load, policy: &str) -> Measured {
    let policy: Policy = policy.parse().unwrap();
    bed.measure(&policy, load).unwrap()
}

/// Every connection has one end and no RST came that did not fit.
fn assert_accounts_close(fate: &Fate) {
    assert_eq!(fate.started, fate.finished(), "{fate:?}");
    assert_eq!(fate.ignored_resets, 0, "{fate:?}");
}

#[test]
fn every_client_below_saturation_is_served_over_both_families() {
    needs!(is_root(), "root");
    let _turn = turn();
    let mut bed = open_loop(ServerProgram::BuiltIn { work_us: 0 }, 1024);
    for ipv6 in [false, true] {
        let load = load(&bed, 500.0, ipv6);
        let fate = measure(&mut bed, &load, "default").run.tally.fate;
        assert_accounts_close(&fate);
        assert_eq!(
            (fate.started, fate.served),
            (500, 500),
            "IPv6: {ipv6}, {fate:?}"
        );
    }
}

#[test]
fn close_rst_and_server_closes_first_are_served_too() {
    needs!(is_root(), "root");
    let _turn = turn();
    let mut bed = open_loop(ServerProgram::BuiltIn { work_us: 0 }, 1024);
    let base = load(&bed, 500.0, false);
    for (kind, server_closes_first) in [(Kind::CloseRst, false), (Kind::Rfc793, true)] {
        let load = Load {
            kind,
            server_closes_first,
            ..base.clone()
        };
        let measured = measure(&mut bed, &load, "default");
        assert_accounts_close(&measured.run.tally.fate);
        assert_eq!(
            measured.run.tally.fate.served, 500,
            "{kind:?}, {server_closes_first}"
        );
    }
}

#[test]
fn a_closed_port_refuses_rfc793_at_one_syn_and_win_emu_at_three() {
    needs!(is_root(), "root");
    let _turn = turn();
    let mut bed = open_loop(ServerProgram::BuiltIn { work_us: 0 }, 16);
    // The server listens on port 80; nobody on 81.
    let target = (bed.bed.server_address(false), 81).into();
    let base = Load {
        target,
        ..load(&bed, 200.0, false)
    };
    for (kind, syns_each) in [(Kind::Rfc793, 1), (Kind::WinEmu, 3)] {
        let load = Load {
            kind,
            ..base.clone()
        };
        let tally = measure(&mut bed, &load, "default").run.tally;
        assert_eq!(tally.fate.refused, 200, "{kind:?}");
        // A SYN that leaves behind the window's end is not in its counts.
        let expected = 200 * syns_each - 100..=200 * syns_each;
        assert!(
            expected.contains(&tally.wire.syns),
            "{kind:?}: {} SYNs",
            tally.wire.syns
        );
        assert_eq!(tally.refusal_us.len(), 200);
    }
}

#[test]
fn an_overloaded_plain_server_overflows_and_every_client_s_fate_is_known() {
    needs!(is_root(), "root");
    let _turn = turn();
    // 5 ms a request: 200 requests/s at most, on any machine.
    let mut bed = open_loop(ServerProgram::BuiltIn { work_us: 5000 }, 8);
    let load = load(&bed, 1000.0, false);
    let measured = measure(&mut bed, &load, "default");
    let fate = measured.run.tally.fate;
    assert_accounts_close(&fate);
    assert!(fate.timed_out > 0 && fate.served < fate.started, "{fate:?}");
    assert!(
        measured.run.tally.wire.syn_retransmissions + fate.waited_for_syn > 0,
        "{fate:?}"
    );
    assert!(measured.in_all.get("TcpExt.ListenOverflows") > 0);
}

#[test]
fn kernel_abort_resets_clients_and_is_undone_afterwards() {
    needs!(is_root(), "root");
    let _turn = turn();
    let mut bed = open_loop(ServerProgram::BuiltIn { work_us: 5000 }, 8);
    // So many at once that SYNs pass a queue which is full when their final ACKs come.
    let load = load(&bed, 20_000.0, false);
    let fate = measure(&mut bed, &load, "kernel-abort").run.tally.fate;
    assert_accounts_close(&fate);
    assert!(fate.reset > 0 && fate.false_establishments > 0, "{fate:?}");
    let fate = measure(&mut bed, &load, "default").run.tally.fate;
    assert_eq!(fate.reset, 0, "{fate:?}");
}

#[test]
fn nginx_serves_from_the_helper_s_configuration() {
    needs!(is_root(), "root");
    let _turn = turn();
    needs!(Command::new("nginx").arg("-v").output().is_ok(), "nginx");
    let mut bed = open_loop(ServerProgram::Nginx, 511);
    let load = load(&bed, 200.0, false);
    let fate = measure(&mut bed, &load, "default").run.tally.fate;
    assert_eq!((fate.started, fate.served), (200, 200), "{fate:?}");
}

#[test]
fn a_server_that_dies_is_reported_with_its_stderr() {
    needs!(is_root(), "root");
    let _turn = turn();
    let command = "echo no such luck >&2; exit 7".to_string();
    let mut bed = open_loop(ServerProgram::Command(command), 1);
    let load = load(&bed, 10.0, false);
    let error = bed.measure(&"default".parse().unwrap(), &load).unwrap_err();
    assert!(error.cause.contains("no such luck"), "{error}");
}

#[test]
fn namespaces_are_gone_after_drop_and_after_a_panic() {
    needs!(is_root(), "root");
    let _turn = turn();
    let netns = Netns::create("drop").unwrap();
    let path = netns.path();
    assert!(path.exists());
    drop(netns);
    assert!(!path.exists());
    let path = Mutex::new(None);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let netns = Netns::create("panic").unwrap();
        *path.lock().unwrap() = Some(netns.path());
        std::panic::panic_any("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!path.lock().unwrap().as_ref().unwrap().exists());
}

fn compare(server: ServerProgram, rate_per_s: f64) -> Results {
    let args = crosscheck::Args {
        rates: vec![rate_per_s],
        seconds: 2.0,
        timeout: 1.0,
        server: ServerArgs {
            server,
            port: 80,
            backlog: 128,
            work_us: 0,
        },
    };
    let mut experiment = args.experiment(&experiment::Program::default()).unwrap();
    scheduler::once(experiment.as_mut()).unwrap()
}

fn httperf(results: &Results) -> &Case {
    results.case([("by", "httperf")])
}

#[test]
fn httperf_and_the_generator_agree_below_and_above_saturation() {
    needs!(is_root(), "root");
    let _turn = turn();
    needs!(
        Command::new("httperf").arg("--version").output().is_ok(),
        "httperf"
    );
    let below = compare(ServerProgram::BuiltIn { work_us: 0 }, 300.0);
    assert_eq!(httperf(&below).median("other_errors"), 0.0, "{below:?}");
    for case in &below.cases {
        assert_eq!(
            (case.median("connections"), case.median("replies")),
            (600.0, 600.0),
            "{below:?}"
        );
    }
    // 2.5 ms a request: 400 requests/s at most. httperf has descriptors for about 1000 in flight.
    // The server waits and does not compute: the two run one after the other, and on a shared host
    // the same computing gave 585 replies in one run and 1084 in another. Whether httperf kept to
    // its rate is not known: hence the median of several sound comparisons.
    let waits = ServerProgram::Pool {
        workers: 1,
        service_us: 2500,
        occupation: Occupation::Wait,
        body_bytes: 900,
        listeners: 1,
    };
    let (mut above, mut flawed) = (Vec::new(), Vec::new());
    while above.len() < 3 && above.len() + flawed.len() < 5 {
        let comparison = compare(waits.clone(), 800.0);
        match comparison.cases.iter().any(|case| case.flaw.is_some()) {
            false => above.push(comparison),
            true => flawed.push(comparison),
        }
    }
    if above.is_empty() {
        above = flawed;
    }
    for comparison in &above {
        for case in &comparison.cases {
            for (metric, expected) in [
                ("refused", 0.0),
                ("reset", 0.0),
                ("connections", 1600.0),
                ("other_errors", 0.0),
            ] {
                assert_eq!(case.median(metric), expected, "{metric}: {comparison:?}");
            }
            let known = case.median("replies") + case.median("timed_out");
            assert_eq!(known, 1600.0, "{comparison:?}");
        }
    }
    let share = |by| median(&above, |c| c.case([("by", by)]).median("served_share"));
    let apart = share("httperf") - share("weir-lab");
    assert!(
        apart.abs() < 0.10,
        "shares served differ by {apart:.2}: {above:?}"
    );
}

fn median(comparisons: &[Results], value: impl Fn(&Results) -> f64) -> f64 {
    let mut values: Vec<f64> = comparisons.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn a_busy_loop_on_the_cpu_is_not_idle_time() {
    needs!(is_root(), "root for an idle cgroup");
    let _turn = turn();
    let meter = IdleMeter::start(0).unwrap();
    let worker = std::thread::spawn(move || {
        cpu::pin_this_thread(0).unwrap();
        let (begun, before) = (Instant::now(), meter.idle());
        while begun.elapsed() < Duration::from_millis(50) {}
        meter.idle() - before
    });
    let idle = worker.join().unwrap();
    assert!(idle < Duration::from_millis(5), "{idle:?} of 50 ms");
}
