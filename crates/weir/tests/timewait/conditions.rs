//! `timewait = "negotiate"` where the network or the kernel's settings are not the usual ones.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::bed::Counters;
use weir_testbed::closing::{Close, Plan, Servers};
use weir_testbed::cpu::pin_this_thread;
use weir_testbed::needs;
use weir_testbed::sys::tcp_option;
use weir_testbed::tcp_table::sockets_in_state;

use crate::bed::{
    First, REPLY, Server, THERE_V4, THERE_V6, ask_meanwhile, beside, run, there, time_waits,
    time_waits_become,
};
use crate::common::{Bed, PATIENCE, PORT, Weir, listen, output, until, within};
use crate::negotiate::{
    Ending, Ends, connect_often, end_first, figure_there, figures_become, listener, rule,
};

const TIMES: usize = 50;

/// At both ends.
fn set(bed: &Bed, sysctl: &str, value: &str) {
    for netns in [bed.here(), bed.there()] {
        netns.set_sysctl(sysctl, value).unwrap();
    }
}

/// At both ends; handshakes are the kernel's own there: reserv does not go with tcp_syncookies = 2.
fn start_beside_the_kernel(bed: &Bed, holder: &str) -> [Weir; 2] {
    let kernel = "establish = \"default\"\nreject_syn = \"drop\"\nadmit = \"queue\"\n";
    let there = bed.run_there(&(listener(holder) + kernel));
    [there, run(bed, &rule("any"))]
}

#[test]
fn without_timestamps_and_with_syn_cookies_the_holder_holds() {
    for (sysctl, value) in [("tcp_timestamps", "0"), ("tcp_syncookies", "2")] {
        let Some(bed) = Bed::new() else { return };
        set(&bed, &format!("net.ipv4.{sysctl}"), value);
        let start = || start_beside_the_kernel(&bed, "client");
        let _both = beside(&bed, First::Server, start);
        let all = connect_often(&bed, First::Server, TIMES);
        figures_become(&bed, [all, 0, 0], [0, all, all]);
        assert_eq!(time_waits(bed.there()), 0, "{sysctl}");

        let Some(bed) = Bed::new() else { return };
        set(&bed, &format!("net.ipv4.{sysctl}"), value);
        let start = || start_beside_the_kernel(&bed, "server");
        let _both = beside(&bed, First::Client, start);
        let all = connect_often(&bed, First::Client, TIMES);
        figures_become(&bed, [0, all, all], [all, 0, 0]);
        assert_eq!(time_waits(bed.here()), 0, "{sysctl}");
    }
}

#[test]
fn a_protected_time_wait_is_ended_all_the_same_and_status_says_so() {
    let Some(bed) = Bed::new() else { return };
    set(&bed, "net.ipv4.tcp_rfc1337", "1");
    let _both = beside(&bed, First::Client, || Ends::start(&bed, "any", "server"));
    status_there_warns_of(&bed, "tcp_rfc1337");
    for _ in 0..TIMES {
        end_first(&bed, THERE_V4, Ending::Shutdown);
    }
    let all = TIMES as u64;
    figures_become(&bed, [0, all, all], [all, 0, 0]);
    assert_eq!(time_waits(bed.here()), 0);
}

#[test]
fn a_middlebox_that_strips_the_option_leaves_plain_tcp() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nft"]) {
        return;
    }
    let rules = "add table inet t; add chain inet t output { type filter hook output priority 0; }; \
                 add rule inet t output reset tcp option 253";
    output(bed.here(), "nft", &[rules]);
    let _both = beside(&bed, First::Server, || Ends::start(&bed, "any", "client"));
    let all = connect_often(&bed, First::Server, TIMES);
    time_waits_become(bed.there(), all as usize);
    assert_eq!(time_waits(bed.here()), 0);
    figures_become(&bed, [0, 0, 0], [0, 0, 0]);
    assert_eq!(
        (bed.figure("fallback"), figure_there(&bed, "fallback")),
        (all, all)
    );
}

/// Gives the weir there other settings.
fn reload_there(bed: &Bed, config: &str) {
    std::fs::write(bed.folder.path().join("there.toml"), config).unwrap();
    let reload = within(bed.there(), || bed.command("reload").output()).unwrap();
    assert!(reload.status.success(), "{reload:?}");
}

#[test]
fn the_record_of_a_connection_that_is_still_closing_goes_with_its_rule() {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nft"]) {
        return;
    }
    let _servers = Server::start(&bed, PORT, First::Client);
    let other = "[[listener]]\nname = \"other\"\naddress = \"*:8081\"\ntimewait = \"negotiate\"\n";
    let _there = bed.run_there(&(listener("server") + other));
    let _here = run(&bed, &rule("any"));
    within(bed.here(), || {
        let mut stream = TcpStream::connect(there(THERE_V4)).unwrap();
        stream.read_exact(&mut [0; REPLY.len()]).unwrap();
        let no_last_ack = "add table inet t; add chain inet t input { type filter hook input priority 0; }; \
                           add rule inet t input tcp flags == ack drop";
        output(bed.there(), "nft", &[no_last_ack]);
    });
    let held = |count| {
        until(&format!("{count} records are held there"), || {
            (figure_there(&bed, "held") == count).then_some(())
        });
    };
    held(1);
    let off = listener("server")
        .replace("negotiate", "off")
        .replace("holder = \"server\"\n", "");
    reload_there(&bed, &(off + other));
    held(0);
}

fn save_syn(listener: &TcpListener, set: Option<i32>) -> i32 {
    tcp_option(listener, libc::TCP_SAVE_SYN, set).unwrap()
}

#[test]
fn a_server_that_has_its_syns_kept_still_has_and_another_one_only_while_it_holds() {
    let Some(bed) = Bed::new() else { return };
    let with_syns = listen(bed.there(), there(THERE_V4), 128);
    let without = listen(bed.there(), there(THERE_V6), 128);
    save_syn(&with_syns, Some(2));
    let _weir = bed.run_there(&listener("client"));
    for (holder, kept) in [("client", 0), ("server", 1), ("client", 0)] {
        reload_there(&bed, &listener(holder));
        until("the other server's SYNs are kept or not", || {
            (save_syn(&without, None) == kept).then_some(())
        });
        assert_eq!(save_syn(&with_syns, None), 2, "{holder}");
    }
}

#[test]
fn where_packets_of_each_kind_get_lost_the_holder_alone_remembers_each_connection() {
    const ALL: u64 = 400;
    const PERMILLE: u32 = 50;
    const AT_A_TIME: usize = 64;
    for (holder, closes) in [
        ("client", vec![Close::Server]),
        ("server", vec![Close::Client, Close::ClientShutdown]),
    ] {
        let Some(bed) = Bed::new() else { return };
        if !needs::programs(&["nft"]) {
            return;
        }
        let _router = bed.links.lose_between(PERMILLE).unwrap();
        let _weirs = start_beside_the_kernel(&bed, holder);
        let servers = [there(THERE_V4), there(THERE_V6)];
        let plan = Plan {
            servers: servers.to_vec(),
            clients: AT_A_TIME,
            connections: ALL,
            time: 4 * PATIENCE,
            closes,
            bursts: (1, 1),
            sizes: vec![(1, REPLY.len())],
            first_port: Some(20_000),
            seed: 1,
        };
        let running = Servers::open(bed.there(), &servers).unwrap();
        let tally = running
            .run(&plan, (bed.there(), None, AT_A_TIME), (bed.here(), None))
            .unwrap();
        assert_eq!((tally.made, tally.failures()), (ALL, 0), "{tally:?}");
        let forgets = match holder {
            "client" => bed.there(),
            _ => bed.here(),
        };
        let held = || match holder {
            "client" => bed.figure("held"),
            _ => figure_there(&bed, "held"),
        };
        until("the holder has a record of each", || {
            (held() == ALL).then_some(())
        });
        until("the other end remembers none", || {
            (time_waits(forgets) == 0).then_some(())
        });
    }
}

#[test]
fn kills_at_either_end_leave_plain_tcp() {
    const KILLS: u32 = 8;
    const BETWEEN: u64 = 100;
    let Some(bed) = Bed::new() else { return };
    let _servers = Server::start(&bed, PORT, First::Server);
    let made = ask_meanwhile(&bed, |wait_for| {
        for turn in 0..KILLS {
            let mut weirs = [bed.run_there(&listener("client")), run(&bed, &rule("any"))];
            wait_for(BETWEEN);
            // One end first, then the other one.
            weirs.rotate_left(turn as usize % 2);
            for weir in weirs {
                weir.signal(Signal::SIGKILL);
                weir.end();
            }
        }
    });
    assert!(made >= u64::from(KILLS) * BETWEEN, "{made}");
}

/// A server that reads a byte of each of so many connections, replies, and closes first.
fn serve_after_a_byte(listener: &Socket, connections: usize) {
    for _ in 0..connections {
        let (socket, _) = listener.accept().unwrap();
        let mut stream = TcpStream::from(socket);
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(REPLY).unwrap();
    }
}

/// Sends a byte, and reads the reply to its end.
fn ask_with_a_byte(socket: Socket) {
    socket.connect(&there(THERE_V4).into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"?").unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, REPLY);
}

fn status_there_warns_of(bed: &Bed, word: &str) {
    until(&format!("status warns of {word}"), || {
        let status = bed.status_there();
        let warnings = status["warnings"].as_array()?;
        let of = |text: &Value| text.as_str().is_some_and(|text| text.contains(word));
        warnings.iter().any(of).then_some(())
    });
}

#[test]
fn mptcp_is_left_alone_and_status_says_so() {
    let mptcp = Some(Protocol::from(libc::IPPROTO_MPTCP));
    let Some(bed) = Bed::new() else { return };
    let listener = within(bed.there(), || {
        Socket::new(Domain::IPV4, Type::STREAM, mptcp)
    });
    let Ok(listener) = listener else {
        return needs::skip("this kernel has no MPTCP");
    };
    listener.bind(&there(THERE_V4).into()).unwrap();
    listener.listen(8).unwrap();
    let _ends = Ends::start(&bed, "any", "client");
    status_there_warns_of(&bed, "MPTCP");
    std::thread::scope(|scope| {
        scope.spawn(|| serve_after_a_byte(&listener, 2));
        for protocol in [mptcp, None] {
            within(bed.here(), || {
                ask_with_a_byte(Socket::new(Domain::IPV4, Type::STREAM, protocol).unwrap());
            });
        }
    });
    // The one by MPTCP; the other one may negotiate.
    assert_ne!(figure_there(&bed, "fallback"), 0);
}

#[test]
fn tcp_fast_open_is_left_alone_and_status_says_so() {
    const TIMES: usize = 3;
    let Some(bed) = Bed::new() else { return };
    set(&bed, "net.ipv4.tcp_fastopen", "3");
    let listener = within(bed.there(), || {
        Socket::new(Domain::IPV4, Type::STREAM, None)
    })
    .unwrap();
    listener.bind(&there(THERE_V4).into()).unwrap();
    listener.listen(8).unwrap();
    tcp_option(&listener, libc::TCP_FASTOPEN, Some(8)).unwrap();
    let _weirs = start_beside_the_kernel(&bed, "client");
    status_there_warns_of(&bed, "TCP Fast Open");
    std::thread::scope(|scope| {
        scope.spawn(|| serve_after_a_byte(&listener, TIMES));
        for _ in 0..TIMES {
            within(bed.here(), || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                tcp_option(&socket, libc::TCP_FASTOPEN_CONNECT, Some(1)).unwrap();
                ask_with_a_byte(socket);
            });
        }
    });
    // The first one asks for a cookie.
    let passive = Counters::read(bed.there())
        .unwrap()
        .get("TcpExt.TCPFastOpenPassive");
    assert_eq!(passive, TIMES as i64 - 1);
    assert_eq!(figure_there(&bed, "fallback"), TIMES as u64 - 1);
    time_waits_become(bed.there(), TIMES - 1);
}

/// A server that ends its direction first. Of every other connection it sees when the client's FIN comes; of the others it
/// calls close() about then, a little later each time.
fn close_as_the_fin_comes(listener: &TcpListener, connections: u32) {
    const AROUND: Duration = Duration::from_micros(10);
    const LATER: Duration = Duration::from_nanos(100);
    let mut usual = AROUND;
    for turn in 0..connections {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let since = Instant::now();
        if turn % 2 == 0 {
            while stream.peek(&mut [0]).is_err() {}
            usual = (usual * 3 + since.elapsed()) / 4;
        } else {
            let until = (usual + LATER * (turn / 2 % 200)).saturating_sub(AROUND);
            while since.elapsed() < until {
                std::hint::spin_loop();
            }
        }
    }
}

#[test]
fn a_fin_that_comes_during_close_leaves_no_socket() {
    const ALL: u32 = 25_000;
    /// FIN-WAIT-2 and TIME-WAIT, as /proc/net/tcp has them.
    const WAITING: &[u8] = &[0x05, 0x06];
    /// Of its own: the kernel chooses clients' ports by addresses and this, and so many connections to the port of all tests
    /// would have theirs come back to used ones, whatever their namespace.
    const OWN_PORT: u16 = 8099;
    let Some(bed) = Bed::new() else { return };
    let server = SocketAddr::new(THERE_V4, OWN_PORT);
    let at_own_port = |config: String| config.replace(&PORT.to_string(), &OWN_PORT.to_string());
    let listener_there = listen(bed.there(), server, 64);
    let _there = bed.run_there(&at_own_port(listener("client")));
    let _here = run(&bed, &at_own_port(rule("any")));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_this_thread(0).unwrap();
            close_as_the_fin_comes(&listener_there, ALL)
        });
        within(bed.here(), || {
            pin_this_thread(1).unwrap();
            for _ in 0..ALL {
                let mut stream = TcpStream::connect(server).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
        });
    });
    let waiting = || bed.there().run(|| sockets_in_state(WAITING, None)).unwrap();
    let mut last = 0;
    let none = weir_testbed::wait::try_until(PATIENCE, || {
        last = waiting();
        (last == 0).then_some(())
    });
    assert!(none.is_some(), "{last} sockets of {ALL} wait");
}
