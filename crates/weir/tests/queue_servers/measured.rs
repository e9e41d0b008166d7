//! What a change costs the clients of a server that has time for all of them: weir switches a queue, ends, is
//! killed or starts, or the server reloads, while they ask. None may be held for longer than [`STALL`], and no
//! change may take long.

use std::cell::RefCell;
use std::time::Duration;

use nix::unistd::gettid;
use weir_testbed::needs;

use super::bed::Weir;
use super::faults::{Stage, pause, random};
use super::load::{self, Clock};
use super::servers::{Program, Server};

/// No connection takes longer from connect() to the end of its reply.
const STALL: Duration = Duration::from_millis(50);
/// A machine that is busy with something else can only make a change look worse: one of so many attempts has to
/// be good. That a connection fails is never forgiven.
const ATTEMPTS: usize = 3;

/// A server under load. It, and what this thread starts, run before all else on this machine, so that only what happens
/// to their connections holds the clients.
fn stage(role: &str, program: Program) -> Option<Stage> {
    schedule("-r", "1", gettid().as_raw() as u32);
    Stage::new(role, program)
}

/// Starts weir beside clients. It runs as anything else: they are not to wait for the CPU on which its programs are
/// verified.
fn start(stage: &Stage) -> Weir<'_> {
    let weir = stage.bed.start();
    schedule("-o", "0", weir.id());
    weir
}

fn schedule(policy: &str, priority: &str, process: u32) {
    let mut chrt = needs::command("chrt");
    chrt.args(["-a", policy, "-p", priority, &process.to_string()]);
    assert!(chrt.status().unwrap().success(), "{chrt:?}");
}

/// Runs `work` beside clients until it has held none of them.
fn holds_nobody(stage: &Stage, mut work: impl FnMut(Clock)) {
    let mut slowest = Vec::new();
    for _ in 0..ATTEMPTS {
        let outcome = load::light_during(&stage.bed, stage.port(), &mut work);
        outcome.print();
        outcome.assert_untroubled();
        if outcome.slowest < STALL {
            return;
        }
        slowest.push(outcome.slowest);
    }
    panic!("the slowest connection of each attempt took {slowest:?}");
}

#[test]
fn switching_a_queue_to_fifo_and_back_holds_no_connection() {
    let Some(stage) = stage("switch", Program::PythonSlow) else {
        return;
    };
    let weir = RefCell::new(stage.bed.start());
    weir.borrow_mut().until_parking(stage.port());
    holds_nobody(&stage, |clock| {
        for round in 0..20 {
            stage.configure(["fifo", "priority"][round % 2]);
            let begun = clock.now();
            weir.borrow_mut().reload();
            let ended = clock.now();
            println!("round {round}: from {begun:?} to {ended:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        // The last one is in force, not only asked for.
        weir.borrow_mut().until_parking(stage.port());
    });
}

#[test]
fn starts_and_stops_hold_no_connection() {
    let Some(stage) = stage("storm", Program::PythonSlow) else {
        return;
    };
    holds_nobody(&stage, |clock| {
        for round in 0..50 {
            let begun = clock.now();
            let mut weir = start(&stage);
            weir.until_parking(stage.port());
            let parks = clock.now();
            weir.stop();
            println!(
                "round {round}: parks after {:?}, ends after {:?}",
                parks - begun,
                clock.now() - parks
            );
        }
        // Most of it is the verifier, on the CPU that others leave.
        assert!(clock.now() < Duration::from_secs(100), "{:?}", clock.now());
    });
}

#[test]
fn kills_and_immediate_starts_hold_no_connection() {
    let Some(stage) = stage("kill-start", Program::PythonSlow) else {
        return;
    };
    holds_nobody(&stage, |clock| {
        for round in 0..20 {
            let begun = clock.now();
            let mut weir = start(&stage);
            weir.until_parking(stage.port());
            println!("round {round}: parks after {:?}", clock.now() - begun);
            weir.kill();
        }
    });
}

#[test]
fn two_hundred_reloads_of_random_policies_take_less_than_30_s() {
    let Some(stage) = stage("reloads", Program::PythonSlow) else {
        return;
    };
    let mut random = random("reloads");
    let mut weir = stage.bed.start();
    weir.until_parking(stage.port());
    holds_nobody(&stage, |clock| {
        for _ in 0..200 {
            let mut one_of = |words: &[&'static str]| words[random.usize(..words.len())];
            let keys = format!(
                "queue = \"{}\"\nadmit = \"{}\"\nestablish = \"{}\"\nageing = \"{}\"",
                one_of(&["fifo", "priority", "priority"]),
                one_of(&["queue", "wait"]),
                one_of(&["reserv", "no-syn-drop"]),
                one_of(&["off", "500ms", "2s"]),
            );
            stage.bed.configure_listeners(&[stage.port()], &keys);
            weir.reload();
        }
        println!("200 reloads in {:?}", clock.now());
        assert!(clock.now() < Duration::from_secs(30), "{:?}", clock.now());
    });
}

/// Reloads of the server itself, under a weir that parks before it.
fn reloads_of_the_server(role: &str, program: Program) {
    let Some(mut stage) = stage(role, program) else {
        return;
    };
    let server: RefCell<Server> = RefCell::new(stage.server.take().unwrap());
    let weir = RefCell::new(stage.bed.start());
    weir.borrow_mut().until_parking(stage.port());
    let mut random = random(role);
    holds_nobody(&stage, |clock| {
        for round in 0..5 {
            server.borrow_mut().reload(&stage.bed);
            println!("round {round}: reloaded at {:?}", clock.now());
            pause(&mut random, Duration::from_millis(600));
        }
        weir.borrow_mut().until_parking(stage.port());
    });
}

#[test]
fn a_haproxy_that_takes_over_from_another_holds_no_connection() {
    reloads_of_the_server("haproxy-sf-stall", Program::Haproxy);
}

#[test]
fn a_reload_of_haproxys_master_holds_no_connection() {
    reloads_of_the_server("haproxy-w-stall", Program::HaproxyMaster);
}

#[test]
fn a_reload_of_nginx_with_a_socket_for_each_worker_holds_no_connection() {
    reloads_of_the_server("nginx-stall", Program::NginxReuseport);
}
