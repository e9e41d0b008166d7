//! `establish` and `reject_syn`: who gets a place in the listen queue, and what the others see.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};
use weir_testbed::netns::Netns;

use crate::common::{
    BACKLOG, Bed, Fate, PORT, Path, Peer, Raw, Segment, Shape, accept, connect, connect_patiently,
    echo_both_ways, fate, greet, listen, output, takes_cookies, until, within,
};

/// Handshakes that last longer stall.
const STALL: Duration = Duration::from_nanos(weir_models::stall::STALL_NS);

/// A config that guards the port on each path's address with the same policy.
fn on_each_path(bed: &Bed, policy: &str) -> String {
    let listener = |path: Path<'_>| {
        let (name, address) = (path.name, path.at(PORT));
        format!(
            "[[listener]]\nname = {name:?}\naddress = \"{address}\"\nadmit = \"queue\"\n{policy}\n"
        )
    };
    bed.paths().map(listener).concat()
}

fn listen_on_each_path(bed: &Bed) -> [TcpListener; 4] {
    bed.paths()
        .map(|path| listen(bed.server(), path.at(PORT), BACKLOG))
}

#[test]
fn reserv_rst_syn_refuses_exactly_what_does_not_fit_and_the_others_are_served_later() {
    let Some(bed) = Bed::new() else { return };
    let listeners = listen_on_each_path(&bed);
    let _weir = bed.run(&on_each_path(
        &bed,
        "establish = \"reserv\"\nreject_syn = \"rst\"",
    ));
    for (path, listener) in bed.paths().iter().zip(&listeners) {
        let mut clients = connect(path.client, path.at(PORT), 12);
        assert_eq!(clients.counts(), (4, 8, 0), "{}", path.name);
        greet(&mut accept(listener, 4));
        assert_eq!(clients.fates(), (4, 0, 0), "{}", path.name);
        assert_eq!(
            connect(path.client, path.at(PORT), 1).counts(),
            (1, 0, 0),
            "{}",
            path.name
        );
    }
    for number in 0..listeners.len() {
        assert_eq!(
            bed.verdicts(number),
            [("syn_admitted".into(), 5), ("syn_reset_full".into(), 8)]
        );
    }
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn reserv_drop_lets_the_client_come_again_and_serves_it_once_there_is_room() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!(
        "{PORT} --establish reserv --reject-syn drop --admit queue"
    ));
    let _first = connect(path.client, path.at(PORT), 4);
    let begun = Instant::now();
    let mut late = std::thread::scope(|scope| {
        let late = scope.spawn(|| connect_patiently(path.client, path.at(PORT)));
        until("its SYN is dropped", || {
            (bed.counter(0, "syn_dropped_full") > 0).then_some(())
        });
        greet(&mut accept(&listener, 4));
        late.join().unwrap()
    });
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "by a repeated SYN"
    );
    greet(&mut accept(&listener, 1));
    assert_eq!(fate(&mut late), Fate::Served);
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn a_repeated_syn_of_a_half_open_handshake_passes_while_the_queue_is_full() {
    let Some(bed) = Bed::new() else { return };
    let raw = Raw(&bed.links.wire);
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish reserv --admit queue"));
    let path = bed.loopback4();
    let waiting = connect(path.client, path.at(PORT), 3);
    for (number, peer) in [Peer::v4(0, PORT), Peer::v6(1, PORT)]
        .into_iter()
        .enumerate()
    {
        let server_seq = raw.half_open(peer);
        assert_eq!(connect(path.client, path.at(PORT), 1).counts(), (0, 1, 0));
        raw.syn(peer, 0);
        let answers = raw.answers_until_now(peer);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(answers[0].is_syn_ack(), "{answers:?}");
        assert_eq!(answers[0].header.sequence_number, server_seq);
        assert_eq!(bed.counter(0, "syn_repeated"), number as u64 + 1);
        raw.final_ack(peer, server_seq);
        assert_eq!(raw.answers_until_now(peer).len(), 0);
        accept(&listener, 1);
    }
    drop(waiting);
    assert_eq!(bed.overflows(), 0);
}

/// What the guard remembers of a destination for a second must not outlive its listener.
#[test]
fn a_server_that_is_restarted_within_a_second_is_judged_by_its_new_queue() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _weir = bed.protect(&format!("{PORT} --anyway --establish reserv --admit queue"));
    // A round takes some milliseconds, so most of them share their second with the one before.
    for round in 0..40 {
        // Of eight places one may be held back for the other CPU.
        let backlog = [BACKLOG, 7][round % 2];
        let _listener = listen(bed.server(), path.at(PORT), backlog);
        let clients = connect(path.client, path.at(PORT), 3 * BACKLOG as usize + 1);
        let places = backlog as usize;
        let counts = (places, 3 * BACKLOG as usize + 1 - places, 0);
        assert_eq!(clients.counts(), counts, "round {round}");
    }
    assert_eq!(bed.overflows(), 0);
}

/// The client of a number, by its family.
const V4: fn(u16) -> Peer = |number| Peer::v4(number.into(), PORT);
const V6: fn(u16) -> Peer = |number| Peer::v6(number, PORT);

/// Fills the listen queue but for two of the kernel's places, and begins more handshakes than that:
/// at their final ACKs the kernel would overflow.
fn overcommit(
    bed: &Bed,
    raw: &Raw<'_>,
    handshakes: u16,
    client: fn(u16) -> Peer,
) -> Vec<(Peer, u32)> {
    let path = bed.loopback4();
    std::mem::forget(connect(path.client, path.at(PORT), 3));
    let begin = |number| {
        let peer = client(number);
        (peer, raw.half_open(peer))
    };
    (0..handshakes).map(begin).collect()
}

/// Ends the handshakes; how many of them were reset.
fn end_handshakes(raw: &Raw<'_>, handshakes: &[(Peer, u32)]) -> usize {
    let mut resets = 0;
    for (peer, server_seq) in handshakes {
        raw.final_ack(*peer, *server_seq);
        let answers = raw.answers_until_now(*peer);
        resets += answers
            .iter()
            .filter(|answer| answer.header.rst && answer.sound)
            .count();
    }
    resets
}

#[test]
fn abort_resets_at_the_final_ack_where_the_kernel_would_overflow() {
    let Some(bed) = Bed::new() else { return };
    let raw = Raw(&bed.links.wire);
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish abort --reject-syn drop"));
    // As many as the kernel keeps half-open: none of them by a cookie of its own.
    let handshakes = overcommit(&bed, &raw, 4, V4);
    assert_eq!(end_handshakes(&raw, &handshakes), 2);
    assert_eq!(bed.counter(0, "ack_reset_full"), 2);
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn abort_resets_what_the_kernel_answered_with_a_cookie_too() {
    for client in [V4, V6] {
        let Some(bed) = Bed::new() else { return };
        let raw = Raw(&bed.links.wire);
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let _listener = listen(bed.server(), any, BACKLOG);
        let _weir = bed.protect(&format!("{PORT} --establish abort --reject-syn drop"));
        let handshakes = overcommit(&bed, &raw, 8, client);
        let family = handshakes[0].0;
        assert_eq!(end_handshakes(&raw, &handshakes), 6, "{family:?}");
        assert_eq!(bed.counter(0, "ack_reset_full"), 6, "{family:?}");
        // A request follows its final ACK at once, with the same numbers. Those with a cookie of the kernel's would count
        // again, as nine clients.
        assert_eq!(end_handshakes(&raw, &handshakes), 6, "{family:?}");
        assert_eq!(bed.counter(0, "ack_reset_full"), 6, "{family:?}");
        assert_eq!(bed.overflows(), 0, "{family:?}");
    }
}

#[test]
fn no_syn_drop_connects_everyone_and_resets_those_without_a_place() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let listeners = listen_on_each_path(&bed);
    let _weir = bed.run(&on_each_path(&bed, "establish = \"no-syn-drop\""));
    for (path, listener) in bed.paths().iter().zip(&listeners) {
        let mut clients = connect(path.client, path.at(PORT), 12);
        assert_eq!(clients.counts(), (12, 0, 0), "{}", path.name);
        greet(&mut accept(listener, 4));
        assert_eq!(clients.fates(), (4, 8, 0), "{}", path.name);
        let mut next = connect(path.client, path.at(PORT), 1);
        greet(&mut accept(listener, 1));
        assert_eq!(next.fates(), (1, 0, 0), "{}: room again", path.name);
    }
    for number in 0..listeners.len() {
        assert_eq!(bed.counter(number, "ack_reset_full"), 8);
        assert_eq!(bed.counter(number, "syn_reset_full"), 0);
    }
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn no_syn_drop_sends_no_cookie_while_nothing_is_reserved() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    for _ in 0..20 {
        let mut clients = connect(path.client, path.at(PORT), 1);
        greet(&mut accept(&listener, 1));
        assert_eq!(clients.fates(), (1, 0, 0));
    }
    assert_eq!(bed.verdicts(0), [("syn_admitted".into(), 20)]);
}

/// Spoofed SYNs hold every place, or half of them, and are younger than a second. By the time in which handshakes on
/// a local network end they are known for what they are.
#[test]
fn handshakes_that_stall_refuse_no_client() {
    const ROOMY: i32 = 16;
    for policy in [
        "establish = \"reserv\"",
        "establish = \"no-syn-drop\"",
        "queue = \"priority\"",
        "front = \"xdp\"",
    ] {
        let Some(bed) = Bed::new() else { return };
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let listener = listen(bed.server(), any, ROOMY);
        let _weir = bed.run(&format!("[[listener]]\naddress = \"*:{PORT}\"\n{policy}\n"));
        let raw = Raw(&bed.links.wire);
        let begun = Instant::now();
        for number in 0..2 * ROOMY as u32 {
            raw.syn(Peer::v4(number, PORT), number);
        }
        until("handshakes of local clients would have ended", || {
            (begun.elapsed() > 3 * STALL).then_some(())
        });
        for path in [bed.veth4(), bed.veth6()] {
            for round in 0..10 {
                let mut client = connect(path.client, path.at(PORT), 1);
                let what = || format!("{policy} {} {round}: {:?}", path.name, bed.verdicts(0));
                assert_eq!(client.counts(), (1, 0, 0), "{}", what());
                greet(&mut accept(&listener, 1));
                assert_eq!(client.fates(), (1, 0, 0), "{}", what());
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "they were young");
        assert_eq!(bed.overflows(), 0);
    }
}

/// The kernel gives clients without a choice of their own ports from here on (ip_local_port_range).
const FIRST_OF_THE_KERNELS_PORTS: u16 = 32_768;

/// A connection attempt from a port of the client's choice, which no client without a choice can have.
pub fn connect_from(netns: &Netns, port: u16, to: SocketAddr) -> Result<TcpStream, ErrorKind> {
    assert!(
        port < FIRST_OF_THE_KERNELS_PORTS,
        "another client may have {port}"
    );
    within(netns, || {
        let (family, any): (_, SocketAddr) = match to {
            SocketAddr::V4(_) => (AddressFamily::Inet, (Ipv4Addr::UNSPECIFIED, port).into()),
            SocketAddr::V6(_) => (AddressFamily::Inet6, (Ipv6Addr::UNSPECIFIED, port).into()),
        };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let any = SockaddrStorage::from(any);
        bind(fd.as_raw_fd(), &any).unwrap();
        let connected = nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to));
        connected.map_err(|errno| std::io::Error::from(errno).kind())?;
        Ok(TcpStream::from(fd))
    })
}

#[test]
fn no_syn_drop_serves_a_client_that_comes_again_from_a_port_in_time_wait() {
    const CLIENT_PORT: u16 = 25_678;
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let path = bed.veth4();
    let listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop --admit queue"));
    let again = || connect_from(path.client, CLIENT_PORT, path.at(PORT));
    let first = again().unwrap();
    // The server closes first, and so remembers.
    drop(accept(&listener, 1));
    drop(first);
    until("the server's side is in TIME_WAIT", || {
        let sockets = bed.output("ss", &["-tanH", "state", "time-wait"]);
        sockets.contains(&format!(":{CLIENT_PORT}")).then_some(())
    });
    let _full = connect(path.client, path.at(PORT), BACKLOG as usize);
    // The kernel by itself has a place for one more than the backlog.
    let mut client = again().unwrap_or_else(|e| panic!("{e}: {:?}", bed.verdicts(0)));
    greet(&mut accept(&listener, BACKLOG as usize + 1));
    assert_eq!(fate(&mut client), Fate::Served, "{:?}", bed.verdicts(0));
    assert_eq!(bed.counter(0, "syn_time_wait"), 1);
}

#[test]
fn an_old_duplicate_for_a_port_in_time_wait_is_the_kernels_to_answer() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop --admit queue"));
    let raw = Raw(&bed.links.wire);
    for peer in [Peer::v4(0, PORT), Peer::v6(0, PORT)] {
        let server_seq = raw.half_open(peer);
        raw.final_ack(peer, server_seq);
        // The server closes first, then the client, at sequence number 1.
        drop(accept(&listener, 1));
        until("the server's FIN", || {
            raw.answer(peer).header.fin.then_some(())
        });
        let fin = Segment {
            seq: 1,
            ack: Some(server_seq.wrapping_add(2)),
            fin: true,
            ..Segment::default()
        };
        raw.send(peer, Shape::Plain, &fin);
        until("the server's side is in TIME_WAIT", || {
            let sockets = bed.output("ss", &["-tanH", "state", "time-wait"]);
            sockets
                .contains(&peer.client.port().to_string())
                .then_some(())
        });
        let loopback = bed.loopback4();
        let full = connect(loopback.client, loopback.at(PORT), BACKLOG as usize);
        let answer_to = |seq| {
            raw.discard();
            raw.syn(peer, seq);
            let header = raw.answer(peer).header;
            (header.syn, header.ack, header.rst)
        };
        // The last byte that the server had was number 1: 2 is not after what it expects, 3 is.
        assert_eq!(answer_to(2), (false, true, false), "an ACK to {peer:?}");
        assert_eq!(answer_to(3), (true, true, false), "a SYN/ACK to {peer:?}");
        drop(accept(&listener, full.connected.len()));
        raw.send(
            peer,
            Shape::Plain,
            &Segment {
                seq: 4,
                rst: true,
                ..Segment::default()
            },
        );
        drop(full);
    }
    assert_eq!(bed.counter(0, "syn_repeated"), 2);
    assert_eq!(bed.counter(0, "syn_time_wait"), 2);
}

/// Clients of an IPv4 and IPv6 listener of which half is held by handshakes under way, so that all
/// others get cookies; and how `ss` sees the server's side of each.
fn cookie_connections(bed: &Bed) -> Vec<(&'static str, String)> {
    const ROOMY: i32 = 16;
    for netns in [bed.client(), bed.server()] {
        // The largest window in bytes; it makes clients offer window scale 11.
        netns
            .set_sysctl("net.ipv4.tcp_rmem", "4096 131072 67108864")
            .unwrap();
    }
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, ROOMY);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    let raw = Raw(&bed.links.wire);
    for number in 0..ROOMY as u32 / 2 {
        raw.half_open(Peer::v4(number, PORT));
    }
    let mut seen = Vec::new();
    for (number, path) in bed.paths().iter().enumerate() {
        let mut client = connect_patiently(path.client, path.at(PORT));
        let mut server = accept(&listener, 1).remove(0);
        assert_eq!(
            bed.counter(0, "cookie_accepted"),
            number as u64 + 1,
            "{}: {:?}",
            path.name,
            bed.verdicts(0)
        );
        let filter = format!("dport = :{}", client.local_addr().unwrap().port());
        seen.push((path.name, output(bed.server(), "ss", &["-tinoOH", &filter])));
        echo_both_ways(&mut client, &mut server, 1 << 20);
    }
    seen
}

/// The words of `ss -i` that say what the handshake agreed on.
fn agreed(ss: &str) -> Vec<&str> {
    let told = |word: &&str| {
        ["ts", "sack"].contains(word) || word.starts_with("wscale:") || word.starts_with("mss:")
    };
    ss.split_whitespace().filter(told).collect()
}

#[test]
fn cookies_keep_mss_window_scale_sack_and_timestamps_and_carry_data_intact() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    for (path, ss) in cookie_connections(&bed) {
        // A cookie has room for four sizes; that of Ethernet is the largest.
        let mss = if path.ends_with('6') {
            "mss:1428"
        } else {
            "mss:1448"
        };
        assert_eq!(
            agreed(&ss),
            ["ts", "sack", "wscale:11,7", mss],
            "{path}: {ss}"
        );
    }
}

#[test]
fn cookies_keep_mss_window_scale_and_sack_for_clients_without_timestamps() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    for netns in [bed.client(), bed.server()] {
        netns.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    }
    for (path, ss) in cookie_connections(&bed) {
        let mss = if path.ends_with('6') {
            "mss:1440"
        } else {
            "mss:1460"
        };
        assert_eq!(agreed(&ss), ["sack", "wscale:11,7", mss], "{path}: {ss}");
    }
}

#[test]
fn default_leaves_everything_to_the_kernel() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let outcome = |port: u16| {
        let _listener = listen(bed.server(), path.at(port), BACKLOG);
        let before = bed.overflows();
        let clients = connect(path.client, path.at(port), 6);
        (clients.counts(), bed.overflows() - before)
    };
    let plain = outcome(PORT);
    let _weir = bed.protect(&format!(
        "{PORT} --anyway --establish default --reject-syn drop"
    ));
    assert_eq!(outcome(PORT), plain);
    assert_eq!(plain, ((5, 0, 1), 1), "the kernel drops what does not fit");
}
