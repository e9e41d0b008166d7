//! `weir exec` with real servers. Each test has a network namespace of its own.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

mod bed;

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bed::{Bed, Server, bed, class_of, connect, until};
use nix::sys::signal::Signal;
use weir_kernel::exec::can_park;
use weir_testbed::needs;

/// 40 low, 20 without a class, 20 gold, in this order, while the server is stopped; the classes (1, 40, 64)
/// in which it then accepts.
fn order_of_accepts(server: &mut Server) -> Vec<u8> {
    server.stop();
    let sources = [(40, 40), (10, 20), (1, 20)];
    let clients = sources.map(|(third, n)| (0..n).map(|_| connect(third)).collect::<Vec<_>>());
    until(|| bed::waiting() == 80, "80 connections wait");
    server.signal_all(Signal::SIGCONT);
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
fn epoll_servers_accept_by_class_and_one_connection_at_most_is_overtaken() {
    let Some(bed) = bed("exec-epoll") else {
        return;
    };
    for kind in ["level", "edge"] {
        let mut server = bed.server("--order exact", kind, "0.0.0.0");
        for _ in 0..2 {
            let order = order_of_accepts(&mut server);
            assert!(inversions(&order) <= 1, "{kind}: {order:?}");
        }
    }
}

#[test]
fn both_workers_of_nginx_accept_by_class() {
    let Some(bed) = bed("exec-nginx") else {
        return;
    };
    let Some(mut server) = bed.nginx("--order exact") else {
        return;
    };
    let order = order_of_accepts(&mut server);
    // What they log is not in the order of accept() to the last place, of 1200 possible inversions.
    assert!(inversions(&order) <= 40, "{order:?}");
}

#[test]
fn go_with_mptcp_accepts_by_class() {
    let Some(bed) = bed("exec-go-exact") else {
        return;
    };
    let Some(program) = bed.go() else {
        return;
    };
    let mut server = bed.go_server("--order exact", &program);
    let order = order_of_accepts(&mut server);
    assert!(inversions(&order) <= 1, "{order:?}");
}

#[test]
fn flags_addresses_and_errors_of_accept_are_as_the_kernel_has_them() {
    let Some(bed) = bed("exec-flags") else {
        return;
    };
    let said_by = |mut server: Server| {
        let _clients: Vec<_> = (0..5).map(|_| connect(1)).collect();
        let lines: Vec<String> = (0..7).map(|_| server.line()).collect();
        server.child.wait().unwrap();
        lines
    };
    let expected = [
        "False False False False",
        "True False True False",
        "False True False True",
        "True True True True",
        "True True True 16",
        "-1 22",
        "-1 11",
    ];
    let alone = said_by(bed.plain_server("flags", "127.0.0.1"));
    assert_eq!(alone, expected, "the kernel alone");
    let with_weir = said_by(bed.server("--order exact", "flags", "127.0.0.1"));
    assert_eq!(with_weir, expected, "weir exec");
}

#[test]
fn servers_of_ipv6_get_addresses_of_both_families() {
    let Some(bed) = bed("exec-ipv6") else {
        return;
    };
    let mut server = bed.server("--order exact", "blocking", "::");
    bed::expect_served(connect(40));
    assert!(server.line().starts_with("::ffff:127.0.40.1 "));
    let mut six = std::net::TcpStream::connect("[::1]:8080").unwrap();
    std::io::Write::write_all(&mut six, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    bed::expect_served(six);
    assert!(server.line().starts_with("::1 "));
}

#[test]
fn the_orderer_is_killed_under_load_and_every_connection_is_served() {
    let Some(bed) = bed("exec-kill") else {
        return;
    };
    for kind in ["blocking", "edge", "level"] {
        let mut server = bed.server("--order exact", kind, "0.0.0.0");
        let said = server.drain();
        let served = under_load(|served| {
            for _ in 0..4 {
                let before = served.load(Relaxed);
                let enough = || served.load(Relaxed) >= before + 30;
                until(enough, "this orderer serves some");
                let orderer = bed::some(|| bed.orderer(), "there is an orderer");
                // At a moment of the load's own.
                std::thread::sleep(std::time::Duration::from_micros(moment()));
                bed::kill_process(orderer);
                until(
                    || bed.orderer().is_some_and(|next| next != orderer),
                    "another orderer answers",
                );
            }
        });
        assert!(served > 100, "{kind}: {served}");
        drop(server);
        let accepted = said.join().unwrap();
        assert!(accepted >= served, "{kind}: {accepted} of {served}");
        until(|| bed.helpers().is_empty(), "no helper outlives its server");
    }
}

/// Some microseconds, up to 20 ms.
fn moment() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(now.unwrap().subsec_nanos()) / 7 % 20_000
}

#[test]
fn an_orderer_that_dies_again_and_again_leaves_the_order_to_the_kernel() {
    let Some(bed) = bed("exec-plain") else {
        return;
    };
    let mut server = bed.server("--order exact", "blocking", "0.0.0.0");
    for _ in 0..5 {
        let orderer = bed::some(|| bed.orderer(), "there is an orderer");
        bed::kill_process(orderer);
        until(
            || bed.orderer().is_some_and(|next| next != orderer),
            "another orderer answers",
        );
    }
    let order = order_of_accepts(&mut server);
    assert_eq!(inversions(&order), 1200, "{order:?}");
}

/// A server that has paused after three of five, at the moment at which nothing is in the kernel's queue but the
/// orderer's own wake connection; and the five.
fn paused_over_a_wake_connection(bed: &Bed) -> (Server, Vec<std::net::TcpStream>) {
    let mut server = bed.server("--order exact", "pausing", "0.0.0.0");
    server.stop();
    let clients = (0..5).map(|_| connect(40)).collect();
    until(|| bed::waiting() == 5, "5 connections wait");
    server.signal_all(Signal::SIGCONT);
    for _ in 0..3 {
        assert_eq!(class_of(&server.line()), 40);
    }
    assert_eq!(server.line(), "pauses");
    assert_eq!(
        bed::sources_waiting(),
        ["127.0.0.1"],
        "the wake connection's"
    );
    (server, clients)
}

/// Does it, and waits for another orderer than before.
fn await_successor(bed: &Bed, of: impl FnOnce(i32)) {
    let orderer = bed::some(|| bed.orderer(), "there is an orderer");
    of(orderer);
    until(
        || bed.orderer().is_some_and(|next| next != orderer),
        "another orderer answers",
    );
}

#[test]
fn successors_of_an_orderer_give_the_server_its_clients_and_nobody_else() {
    let Some(bed) = bed("exec-wake") else {
        return;
    };
    let killed = || await_successor(&bed, bed::kill_process);
    let replaced = || {
        let config = std::fs::read_to_string(bed.folder.config()).unwrap();
        let other = config.replace("priority = 40", "priority = 41");
        await_successor(&bed, |_| bed.folder.write_config(&other));
    };
    // The last one leaves the order to the kernel.
    let killed_often = || (0..6).for_each(|_| killed());
    let ways: [(&str, &dyn Fn()); 3] = [
        ("killed", &killed),
        ("replaced", &replaced),
        ("killed often", &killed_often),
    ];
    for (way, happens) in ways {
        let (mut server, mut clients) = paused_over_a_wake_connection(&bed);
        happens();
        server.signal(Signal::SIGUSR2);
        for _ in 0..2 {
            assert!(server.line().starts_with("127.0.40.1 "), "{way}");
        }
        clients.push(connect(1));
        assert!(server.line().starts_with("127.0.1.1 "), "{way}");
        clients.into_iter().for_each(bed::expect_served);
    }
}

#[test]
fn an_orderer_that_is_stopped_is_replaced_and_everybody_is_served() {
    let Some(bed) = bed("exec-stopped") else {
        return;
    };
    // Blocking: its call is with the orderer when that stops. By levels: there is no call.
    for kind in ["blocking", "level"] {
        let mut server = bed.server("--order exact", kind, "0.0.0.0");
        bed::expect_served(connect(1));
        server.line();
        until(|| server.sleeps(), "the server waits for more");
        let orderer = bed::some(|| bed.orderer(), "there is an orderer");
        bed::stop_process(orderer);
        let clients: Vec<_> = [40, 10, 1].map(connect).into();
        clients.into_iter().for_each(bed::expect_served);
        let next = bed::some(|| bed.orderer(), "there is an orderer");
        assert_ne!(next, orderer, "{kind}");
    }
}

#[test]
fn the_helpers_are_not_called_weir() {
    let Some(bed) = bed("exec-names") else {
        return;
    };
    let _server = bed.server("--order exact", "blocking", "0.0.0.0");
    let orderer = bed::some(|| bed.orderer(), "there is an orderer");
    let named = |pid: i32| bed::name_of(pid).unwrap_or_default();
    until(
        || named(orderer) == "weir-orderer",
        "the orderer has its name",
    );
    let helpers = bed.helpers();
    let mut names: Vec<String> = helpers.into_iter().map(named).collect();
    names.sort();
    assert_eq!(names, ["weir-orderer", "weir-supervisor"]);
}

#[test]
fn no_descriptor_is_left_in_the_orderer_or_the_server() {
    let Some(bed) = bed("exec-descriptors") else {
        return;
    };
    let mut server = bed.server("--order exact", "level", "0.0.0.0");
    bed::expect_served(connect(1));
    server.line();
    let orderer = bed::some(|| bed.orderer(), "there is an orderer");
    let pids = [orderer, server.child.id() as i32];
    let counts = || pids.map(bed::descriptors);
    let before = counts();
    let served = under_load(|_| {
        for _ in 0..200 {
            server.line();
        }
    });
    assert!(served > 100, "{served}");
    until(|| counts() == before, "as many descriptors as before");
}

#[test]
fn when_the_server_ends_those_who_wait_are_reset_and_the_port_is_free() {
    let Some(bed) = bed("exec-end") else {
        return;
    };
    let mut server = bed.server("--order exact", "one", "127.0.0.1");
    let waiting: Vec<_> = (0..10).map(|_| connect(40)).collect();
    server.line();
    drop(server);
    for mut client in waiting {
        let mut reply = Vec::new();
        let got = std::io::Read::read_to_end(&mut client, &mut reply);
        // The one that was served is closed in order.
        assert!(got.is_err() || !reply.is_empty(), "{got:?}");
    }
    until(
        || std::net::TcpListener::bind("127.0.0.1:8080").is_ok(),
        "the port is free",
    );
    until(|| bed.helpers().is_empty(), "no helper outlives its server");
}

#[test]
fn a_full_queue_loses_the_youngest_of_the_lowest_class_for_a_higher_one() {
    let Some(bed) = bed("exec-full") else {
        return;
    };
    let mut server = bed.server_with_backlog("--order exact", "one", "127.0.0.1", 8);
    let first = connect(40);
    server.line();
    // The server accepts nobody now. One is in the kernel's queue, up to eight are held.
    let mut low: Vec<_> = (0..20).map(|_| connect(40)).collect();
    let gold: Vec<_> = (0..4).map(|_| connect(1)).collect();
    let is_reset = |client: &std::net::TcpStream| {
        client.set_nonblocking(true).unwrap();
        // Told once as an error, then as the end.
        !matches!(client.peek(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    };
    until(
        || low.iter().filter(|c| is_reset(c)).count() >= 14,
        "low ones are reset",
    );
    assert!(!is_reset(&low[0]), "the oldest stays");
    assert!(!gold.iter().any(is_reset), "the higher class stays");
    low.clear();
    drop(first);
}

#[test]
fn classes_follow_the_file_and_the_running_weir() {
    let Some(mut bed) = bed("exec-classes") else {
        return;
    };
    let mut server = bed.server("--order exact", "level", "0.0.0.0");
    let orderer = bed::some(|| bed.orderer(), "there is an orderer");
    let config = std::fs::read_to_string(bed.folder.config()).unwrap();
    let swapped = config
        .replace("priority = 40", "priority = 2")
        .replace("priority = 1\n", "priority = 40\n");
    bed.folder.write_config(&swapped);
    until(
        || bed.orderer().is_some_and(|next| next != orderer),
        "the orderer has the new classes",
    );
    let order = order_of_accepts(&mut server);
    assert!(order[..39].iter().all(|class| *class == 40), "{order:?}");
    bed.run_weir();
    let listener = || bed.listener().unwrap_or_default();
    until(
        || listener()["queue_way"] == "exec",
        "weir knows who answers",
    );
    let because = listener()["queue_way_because"].to_string();
    assert!(because.contains(&server.said_pid.to_string()), "{because}");
    let orderer = bed.orderer();
    assert!(
        bed.folder
            .weir("class set gold --priority 1")
            .status
            .success()
    );
    until(
        || bed.orderer().is_some_and(|next| Some(next) != orderer),
        "the orderer has the new class",
    );
    let order = order_of_accepts(&mut server);
    assert!(inversions(&order) <= 1, "{order:?}");
}

/// Clients that come and are served one after the other while something is done, which sees how many were.
/// Returns that number.
fn under_load(done: impl FnOnce(&AtomicUsize)) -> usize {
    let (over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let client = |number: u8| {
        while !over.load(Relaxed) {
            bed::expect_served(connect([1, 10, 40][usize::from(number) % 3]));
            served.fetch_add(1, Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let client = &client;
        for number in 0..8 {
            scope.spawn(move || client(number));
        }
        done(&served);
        over.store(true, Relaxed);
    });
    served.into_inner()
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
fn who_parks_for_nobody_and_what_is_wrong_with_the_file_is_told() {
    let Some(mut bed) = bed("exec-told") else {
        return;
    };
    let said = |bed: &Bed, options: &str| {
        let output = bed
            .folder
            .weir(&format!("exec --order parking {options} -- /bin/true"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let good = format!("--config {}", bed.folder.config().display());
    let text = said(&bed, &good);
    assert!(text.contains("no weir runs in this network"), "{text}");
    std::fs::write(bed.folder.path.join("bad.toml"), "[[class]]\n").unwrap();
    let text = said(&bed, "--config bad.toml");
    assert!(text.contains("bad.toml:1:1: class"), "{text}");
    bed.run_weir();
    until(|| bed.listener().is_some(), "weir answers");
    assert_eq!(said(&bed, &good), "");
    std::fs::write(
        bed.folder.path.join("other.toml"),
        "[[listener]]\naddress = \"*:8080\"\n",
    )
    .unwrap();
    let text = said(&bed, "--config other.toml");
    assert!(
        text.contains("the classes are those of the running"),
        "{text}"
    );
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
    if !needs::mechanism(can_park()) {
        return;
    }
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
