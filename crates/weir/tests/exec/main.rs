//! `weir exec` with real servers. Each test has a network namespace of its own.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

mod bed;

use std::os::unix::process::ExitStatusExt;

use bed::{Bed, Server, bed, class_of, connect, until};
use nix::sys::signal::Signal;

/// 40 low, 20 without a class, 20 gold, in this order, while the server is stopped; the classes (1, 40, 64)
/// in which it then accepts.
fn order_of_accepts(server: &mut Server) -> Vec<u8> {
    server.signal(Signal::SIGSTOP);
    let sources = [(40, 40), (10, 20), (1, 20)];
    let clients = sources.map(|(third, n)| (0..n).map(|_| connect(third)).collect::<Vec<_>>());
    until(|| bed::waiting() == 80, "80 connections wait");
    server.signal(Signal::SIGCONT);
    let order = (0..80).map(|_| class_of(&server.line())).collect();
    clients.into_iter().flatten().for_each(bed::expect_served);
    order
}

fn inversions(order: &[u8]) -> usize {
    let after = |i: usize| {
        order[i..]
            .iter()
            .filter(move |class| **class < order[i])
            .count()
    };
    (0..order.len()).map(after).sum()
}

#[test]
fn a_blocking_server_accepts_strictly_by_class() {
    let Some(bed) = bed("exec-blocking") else {
        return;
    };
    let mut server = bed.server("--order exact", "blocking", "0.0.0.0");
    let order = order_of_accepts(&mut server);
    assert_eq!(inversions(&order), 0, "{order:?}");
}

#[test]
fn without_weir_exec_the_same_test_finds_first_come_first_served() {
    let Some(bed) = bed("exec-control") else {
        return;
    };
    let mut server = bed.plain_server("blocking", "0.0.0.0");
    let order = order_of_accepts(&mut server);
    assert_eq!(inversions(&order), 40 * 40 - 20 * 20, "{order:?}");
}

#[test]
fn exit_status_signals_and_process_id_are_the_servers_own() {
    let Some(bed) = bed("exec-status") else {
        return;
    };
    for order in ["--order exact", "--order parking"] {
        let mut server = bed.server(order, "blocking", "127.0.0.1");
        assert_eq!(server.said_pid, server.child.id());
        server.signal(Signal::SIGTERM);
        let status = server.child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{order}");
        // Nobody waits in accept() for ever: the handler runs, and the status is what it exits with.
        let mut server = bed.server(order, "blocking", "127.0.0.1");
        until(|| server.sleeps(), "the server waits in accept()");
        server.signal(Signal::SIGUSR1);
        assert_eq!(server.line(), "interrupted");
        assert_eq!(server.child.wait().unwrap().code(), Some(7), "{order}");
    }
    until(|| bed.helpers().is_empty(), "no helper outlives its server");
}

#[test]
fn a_server_that_is_not_there_is_told_of_and_no_helper_stays() {
    let Some(bed) = bed("exec-missing") else {
        return;
    };
    for order in ["exact", "parking"] {
        let output = bed
            .folder
            .weir(&format!("exec --order {order} -- ./no-such-server"));
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("cannot run ./no-such-server"), "{text}");
    }
    until(|| bed.helpers().is_empty(), "no helper outlives its server");
}

#[test]
fn go_falls_back_from_mptcp_and_is_parked_for() {
    let Some(mut bed) = bed("exec-go") else {
        return;
    };
    let Some(program) = bed.go() else {
        return;
    };
    bed.run_weir();
    let is_mptcp = |bed: &Bed| {
        let listener = bed.listener()?;
        listener["sockets"][0]["mptcp"].as_bool()
    };
    let plain = bed.command(&[&program, "0.0.0.0:8080"]);
    until(|| is_mptcp(&bed) == Some(true), "Go listens with MPTCP");
    let way = |way: &'static str| {
        let bed = &bed;
        move || bed.listener().is_some_and(|l| l["queue_way"] == way)
    };
    until(way("fifo"), "MPTCP is not parked for");
    drop(plain);
    let _server = bed.exec("", &[&program, "0.0.0.0:8080"]);
    until(way("parking"), "weir parks for Go without MPTCP");
    assert_eq!(is_mptcp(&bed), Some(false));
    bed::expect_served(connect(1));
}
