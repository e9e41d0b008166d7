//! `timewait = "client-rst"` (FTY99, Section 4.1): the server closes first, and is rid of its TIME-WAIT.

use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use crate::bed::{
    First, REPLY, RULE, Server, THERE_V4, THERE_V6, answer, ask, ask_often, run, there, time_waits,
    time_waits_become,
};
use crate::common::{Bed, PORT, within};

const TIMES: usize = 100;

#[test]
fn a_server_that_closes_first_keeps_no_time_wait_and_each_connection_has_a_record_here() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    // A new connection from the port of a TIME-WAIT would end that.
    let from_ports = |range| {
        let sysctl = "net.ipv4.ip_local_port_range";
        bed.here().set_sysctl(sysctl, range).unwrap();
    };
    from_ports("30000 39999");
    ask_often(&bed, THERE_V4, PORT, TIMES);
    time_waits_become(bed.there(), TIMES);
    from_ports("40000 59999");
    let _weir = run(&bed, RULE);
    let mut swapped = 0;
    for timestamps in ["1", "0"] {
        for netns in [bed.here(), bed.there()] {
            netns
                .set_sysctl("net.ipv4.tcp_timestamps", timestamps)
                .unwrap();
        }
        for ip in [THERE_V4, THERE_V6] {
            ask_often(&bed, ip, PORT, TIMES);
            swapped += TIMES as u64;
            // The last one's RST may still be on its way.
            bed.figure_becomes("swapped", swapped);
        }
    }
    // Those from before weir came are as they were.
    time_waits_become(bed.there(), TIMES);
    assert_eq!(time_waits(bed.here()), 0);
    bed.figure_becomes("held", swapped);
    assert_eq!(bed.figure("bytes"), swapped * 128);
    assert_eq!(bed.figure("fallback"), 0);
}

#[test]
fn a_server_that_protects_its_time_wait_keeps_it_and_nothing_else_changes() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    bed.there().set_sysctl("net.ipv4.tcp_rfc1337", "1").unwrap();
    let _weir = run(&bed, RULE);
    ask_often(&bed, THERE_V4, PORT, TIMES);
    bed.figure_becomes("swapped", TIMES as u64);
    assert_eq!(time_waits(bed.there()), TIMES);
}

#[test]
fn a_client_that_closes_first_is_in_time_wait_as_ever() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Client);
    let _weir = run(&bed, RULE);
    let address = there(THERE_V4);
    within(bed.here(), || {
        for _ in 0..TIMES {
            let stream = std::net::TcpStream::connect(address).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut reply = Vec::new();
            std::io::Read::read_to_end(&mut &stream, &mut reply).unwrap();
        }
    });
    time_waits_become(bed.here(), TIMES);
    assert_eq!(time_waits(bed.there()), 0);
    assert_eq!(bed.figure("swapped"), 0);
}

#[test]
fn connections_that_no_destination_names_are_left_alone() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let config = "[[destination]]\nname = \"others\"\nto = [\"10.66.1.3\", \"fd66:0:0:1::/64\"]\nto_port = 8080\n\
                  timewait = \"client-rst\"\n";
    let _weir = run(&bed, config);
    ask_often(&bed, THERE_V4, PORT, TIMES);
    time_waits_become(bed.there(), TIMES);
    assert_eq!(bed.figure("swapped"), 0);
    ask_often(&bed, THERE_V6, PORT, TIMES);
    bed.figure_becomes("swapped", TIMES as u64);
    time_waits_become(bed.there(), TIMES);
}

#[test]
fn a_reload_takes_a_destination_away_and_puts_another_in_force() {
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let _weir = run(&bed, RULE);
    ask_often(&bed, THERE_V4, PORT, TIMES);
    bed.figure_becomes("swapped", TIMES as u64);
    bed.write_config(&RULE.replace("8080", "8081"));
    assert!(bed.weir("reload").status.success());
    ask_often(&bed, THERE_V4, PORT, TIMES);
    time_waits_become(bed.there(), TIMES);
    assert_eq!(bed.figure("swapped"), TIMES as u64, "its figures stay");
    bed.write_config(&RULE.replace("to_port = 8080\n", "to = \"10.66.1.0/24\"\n"));
    assert!(bed.weir("reload").status.success());
    ask_often(&bed, THERE_V4, PORT, TIMES);
    bed.figure_becomes("swapped", 2 * TIMES as u64);
    time_waits_become(bed.there(), TIMES);
}

#[test]
fn over_the_loopback_device_both_ends_are_rid_of_it() {
    let Some(bed) = Bed::new() else { return };
    let listener = crate::common::listen(bed.here(), ([127, 0, 0, 1], PORT).into(), 128);
    let _weir = run(&bed, RULE);
    let thread = std::thread::spawn(move || {
        for _ in 0..TIMES {
            answer(listener.accept().unwrap().0, First::Server);
        }
    });
    for _ in 0..TIMES {
        let reply = ask(&bed, 0, SocketAddr::from(([127, 0, 0, 1], PORT)));
        assert_eq!(reply.as_deref(), Ok(REPLY));
    }
    thread.join().unwrap();
    bed.figure_becomes("swapped", TIMES as u64);
    time_waits_become(bed.here(), 0);
}

#[test]
fn mptcp_connections_are_left_alone() {
    const MPTCP: i32 = 262;
    let Some(bed) = Bed::new() else { return };
    let socket = || {
        let protocol = Some(Protocol::from(MPTCP));
        Socket::new(Domain::IPV4, Type::STREAM, protocol)
    };
    let listener = within(bed.there(), || {
        let socket = socket().ok()?;
        socket.bind(&there(THERE_V4).into()).unwrap();
        socket.listen(128).unwrap();
        Some(std::net::TcpListener::from(socket))
    });
    let Some(listener) = listener else {
        weir_testbed::needs::skip("the kernel has no MPTCP");
        return;
    };
    let _weir = run(&bed, RULE);
    let server = std::thread::spawn(move || {
        for _ in 0..TIMES {
            answer(listener.accept().unwrap().0, First::Server);
        }
    });
    within(bed.here(), || {
        for _ in 0..TIMES {
            let client = socket().unwrap();
            client.connect(&there(THERE_V4).into()).unwrap();
            let mut reply = Vec::new();
            std::io::Read::read_to_end(&mut &client, &mut reply).unwrap();
            assert_eq!(reply, REPLY);
        }
    });
    server.join().unwrap();
    assert_eq!((bed.figure("swapped"), bed.figure("fallback")), (0, 0));
}

/// The links between programs and devices that a process has.
fn links_of(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = entries
        .flatten()
        .flat_map(|entry| std::fs::read_to_string(entry.path()));
    let id = |text: String| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("link_id:"))?;
        line.trim().parse().ok()
    };
    texts.filter_map(id).collect()
}

fn exists(link: u32) -> bool {
    let mut bpftool = std::process::Command::new("bpftool");
    bpftool.args(["link", "show", "id", &link.to_string()]);
    bpftool
        .output()
        .expect("bpftool is installed")
        .status
        .success()
}

#[test]
fn detach_leaves_nothing_attached() {
    let Some(bed) = Bed::new() else { return };
    if !weir_testbed::needs::programs(&["bpftool"]) {
        return;
    }
    let _servers = Server::start(&bed, PORT, First::Server);
    let weir = run(&bed, RULE);
    let links = links_of(weir.pid());
    assert!(
        !links.is_empty() && links.iter().all(|id| exists(*id)),
        "{links:?}"
    );
    assert!(bed.weir("detach").status.success());
    assert!(!links.iter().any(|id| exists(*id)), "{links:?}");
    assert!(weir.end().1.success());
    ask_often(&bed, THERE_V4, PORT, TIMES);
    time_waits_become(bed.there(), TIMES);
}
