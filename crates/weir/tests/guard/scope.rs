//! The guard's effect ends at its listener: other ports, addresses, interfaces, protocols, odd
//! packets and forwarded traffic are as without weir.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use weir_kernel::has_cookie_kfunc;
use weir_testbed::needs;
use weir_testbed::netns::Netns;

use crate::common::{
    BACKLOG, Bed, PATIENCE, PORT, Peer, Raw, Segment, Shape, Tunnel, accept, connect, greet,
    listen, listen_in_group, takes_cookies, within,
};

/// Connections to a queue of 4 places.
const CLIENTS: usize = 6;
/// How they fare with the kernel by itself, which takes 5: connected, refused, silent.
const AS_THE_KERNEL: (usize, usize, usize) = (5, 0, 1);

#[test]
fn other_ports_and_other_addresses_of_the_same_port_keep_the_kernel_s_behaviour() {
    let Some(bed) = Bed::new() else { return };
    let (guarded, other_address) = (bed.veth4(), bed.loopback4());
    let _listeners = [
        listen(bed.server(), guarded.at(PORT), BACKLOG),
        listen(bed.server(), guarded.at(PORT + 1), BACKLOG),
        listen(bed.server(), other_address.at(PORT), BACKLOG),
    ];
    let _weir = bed.protect(&format!(
        "{PORT} --address {} --admit queue",
        guarded.address
    ));
    assert_eq!(
        connect(guarded.client, guarded.at(PORT), CLIENTS).counts(),
        (4, 2, 0)
    );
    assert_eq!(
        connect(guarded.client, guarded.at(PORT + 1), CLIENTS).counts(),
        AS_THE_KERNEL
    );
    assert_eq!(
        connect(other_address.client, other_address.at(PORT), CLIENTS).counts(),
        AS_THE_KERNEL
    );
    assert_eq!(bed.overflows(), 2);
}

#[test]
fn only_the_named_interface_is_guarded() {
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --interface veth0 --admit queue"));
    let (veth, loopback) = (bed.veth4(), bed.loopback4());
    let clients = connect(veth.client, veth.at(PORT), CLIENTS);
    assert_eq!(clients.counts(), (4, 2, 0));
    accept(&listener, 4);
    assert_eq!(
        connect(loopback.client, loopback.at(PORT), CLIENTS).counts(),
        AS_THE_KERNEL
    );
}

#[test]
fn listeners_have_policies_of_their_own() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let policies = [
        ("reserv", "rst", (4, 2, 0)),
        ("reserv", "drop", (4, 0, 2)),
        // Without cookies of BPF it is as reserv.
        (
            "no-syn-drop",
            "rst",
            if has_cookie_kfunc() {
                (6, 0, 0)
            } else {
                (4, 2, 0)
            },
        ),
        ("default", "drop", AS_THE_KERNEL),
        ("default", "rst", (5, 1, 0)),
    ];
    let mut config = String::new();
    let mut listeners = Vec::new();
    for (number, (establish, reject_syn, _)) in policies.iter().enumerate() {
        let port = PORT + number as u16;
        listeners.push(listen(bed.server(), path.at(port), BACKLOG));
        config += &format!(
            "[[listener]]\naddress = \"*:{port}\"\nadmit = \"queue\"\n\
             establish = {establish:?}\nreject_syn = {reject_syn:?}\n"
        );
    }
    let _weir = bed.run(&config);
    for (number, (establish, reject_syn, expected)) in policies.iter().enumerate() {
        let counts = connect(path.client, path.at(PORT + number as u16), CLIENTS).counts();
        assert_eq!(counts, *expected, "{establish} {reject_syn}");
    }
}

#[test]
fn each_socket_of_a_reuseport_group_has_a_queue_of_its_own() {
    const SOCKETS: usize = 4;
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let group = [(); SOCKETS].map(|()| listen_in_group(bed.server(), path.at(PORT), BACKLOG));
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    // With 100 clients a socket without 4 of them is a chance in millions.
    let mut clients = connect(path.client, path.at(PORT), 100);
    let places = SOCKETS * BACKLOG as usize;
    assert_eq!(clients.counts(), (places, 100 - places, 0));
    let sockets = bed.status()["listeners"][0]["sockets"].clone();
    assert_eq!(sockets.as_array().unwrap().len(), SOCKETS, "{sockets:#}");
    for listener in &group {
        greet(&mut accept(listener, BACKLOG as usize));
    }
    assert_eq!(clients.fates(), (places, 0, 0));
    assert_eq!(bed.overflows(), 0);
}

#[test]
fn a_dual_stack_listener_has_one_queue_for_both_families() {
    let Some(bed) = Bed::new() else { return };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _listener = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let [veth4, veth6, ..] = bed.paths();
    let v4 = connect(veth4.client, veth4.at(PORT), 2);
    assert_eq!(v4.counts(), (2, 0, 0));
    let v6 = connect(veth6.client, veth6.at(PORT), 4);
    assert_eq!(v6.counts(), (2, 2, 0));
    assert_eq!(connect(veth4.client, veth4.at(PORT), 2).counts(), (0, 2, 0));
    assert_eq!(bed.overflows(), 0);
}

const ORIGIN_V4: Ipv4Addr = Ipv4Addr::new(10, 66, 2, 2);
const ORIGIN_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 2, 0, 0, 0, 2);

/// A server behind the bed's server namespace, which routes to it.
fn origin_behind_the_router(bed: &Bed) -> Netns {
    let origin = Netns::create("origin").unwrap();
    let router = bed.server();
    // Neighbour discovery for forwarded packets waits for the check of the link-local address.
    for netns in [router, &origin] {
        netns
            .set_sysctl("net.ipv6.conf.default.accept_dad", "0")
            .unwrap();
    }
    let (name, peer) = ("veth1", origin.name());
    router
        .ip(&[
            "link", "add", name, "type", "veth", "peer", "name", "veth0", "netns", peer,
        ])
        .unwrap();
    router
        .ip_batch(
            "addr add 10.66.2.1/24 dev veth1
             addr add fd66:0:0:2::1/64 dev veth1 nodad
             link set veth1 up",
        )
        .unwrap();
    origin
        .ip_batch(
            "addr add 10.66.2.2/24 dev veth0
             addr add fd66:0:0:2::2/64 dev veth0 nodad
             link set veth0 up
             route add default via 10.66.2.1
             -6 route add default via fd66:0:0:2::1",
        )
        .unwrap();
    bed.client()
        .ip_batch("-6 route add default via fd66:0:0:1::1")
        .unwrap();
    router.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    router
        .set_sysctl("net.ipv6.conf.all.forwarding", "1")
        .unwrap();
    origin
}

#[test]
fn forwarded_connections_are_not_touched_whether_the_router_s_own_listener_is_full_or_not() {
    let Some(bed) = Bed::new() else { return };
    let origin = origin_behind_the_router(&bed);
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let far = listen(&origin, any, 64);
    let own = listen(bed.server(), any, BACKLOG);
    for policy in [
        "--establish reserv",
        "--establish no-syn-drop",
        "--establish reserv --half-close reset",
    ] {
        let _weir = bed.protect(&format!("{PORT} --admit queue {policy}"));
        for full in [false, true] {
            let places = if full { BACKLOG as usize } else { 0 };
            let _own_clients = connect(bed.server(), bed.loopback4().at(PORT), places);
            for address in [ORIGIN_V4.into(), ORIGIN_V6.into()] {
                let mut clients = connect(bed.client(), SocketAddr::new(address, PORT), 8);
                assert_eq!(
                    clients.counts(),
                    (8, 0, 0),
                    "{policy}, full: {full}, {address}"
                );
                for client in &clients.connected {
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                }
                greet(&mut accept(&far, 8));
                assert_eq!(
                    clients.fates(),
                    (8, 0, 0),
                    "{policy}, full: {full}, {address}"
                );
            }
            let own_syns = [("syn_admitted".to_owned(), BACKLOG as u64)];
            assert_eq!(
                bed.verdicts(0),
                own_syns[..usize::from(full)],
                "{policy}, full: {full}"
            );
        }
        accept(&own, BACKLOG as usize);
    }
}

/// A device of a container on the server's own, which does not forward. `None`: the kernel has none.
fn container_on_the_server_s_device(bed: &Bed, mode: &str) -> Option<Netns> {
    let container = Netns::create("container").unwrap();
    let server = bed.server();
    server.set_sysctl("net.ipv4.ip_forward", "0").unwrap();
    server
        .set_sysctl("net.ipv6.conf.all.forwarding", "0")
        .unwrap();
    let add = format!("link add link veth0 name child type macvlan mode {mode}");
    if !needs::kernel_can(server, "CONFIG_MACVLAN", &add) {
        return None;
    }
    server
        .ip(&["link", "set", "child", "netns", container.name()])
        .unwrap();
    let lines = "addr add 10.66.1.7/24 dev child
                 addr add fd66:0:0:1::7/64 dev child nodad
                 link set child up";
    container.ip_batch(lines).unwrap();
    Some(container)
}

const CONTAINER_V4: Ipv4Addr = Ipv4Addr::new(10, 66, 1, 7);
const CONTAINER_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 1, 0, 0, 0, 7);

/// It has the server's Ethernet address and all that comes to the device, as a virtual machine behind macvtap has.
#[test]
fn connections_of_a_container_that_has_the_server_s_device_are_not_touched() {
    let Some(bed) = Bed::new() else { return };
    let Some(container) = container_on_the_server_s_device(&bed, "passthru") else {
        return;
    };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let far = listen(&container, any, 64);
    let _own = listen(bed.server(), any, BACKLOG);
    let _full = connect(bed.server(), bed.loopback4().at(PORT), BACKLOG as usize + 1);
    for policy in ["--establish abort", "--establish reserv"] {
        let _weir = bed.protect(&format!("{PORT} --admit queue {policy}"));
        for address in [CONTAINER_V4.into(), CONTAINER_V6.into()] {
            let mut clients = connect(bed.client(), SocketAddr::new(address, PORT), 8);
            assert_eq!(clients.counts(), (8, 0, 0), "{policy} {address}");
            greet(&mut accept(&far, 8));
            assert_eq!(clients.fates(), (8, 0, 0), "{policy} {address}");
        }
        assert_eq!(bed.verdicts(0), [], "{policy}");
    }
}

#[test]
fn a_server_is_guarded_on_a_device_that_a_container_shares() {
    let Some(bed) = Bed::new() else { return };
    let Some(_container) = container_on_the_server_s_device(&bed, "bridge") else {
        return;
    };
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let own = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    for path in [bed.veth4(), bed.veth6()] {
        let clients = connect(path.client, path.at(PORT), CLIENTS);
        assert_eq!(clients.counts(), (4, 2, 0), "{}", path.name);
        accept(&own, 4);
    }
}

#[test]
fn forwarded_syns_take_no_place_from_the_router_s_own_clients() {
    let Some(bed) = Bed::new() else { return };
    let origin = origin_behind_the_router(&bed);
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let _far = listen(&origin, any, 64);
    let _own = listen(bed.server(), any, BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let forwarded = connect(bed.client(), (ORIGIN_V4, PORT).into(), 32);
    assert_eq!(forwarded.counts(), (32, 0, 0));
    assert_eq!(
        connect(bed.client(), bed.veth4().at(PORT), 4).counts(),
        (4, 0, 0)
    );
}

#[test]
fn udp_icmp_and_fragments_pass() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _listener = listen(bed.server(), path.at(PORT), BACKLOG);
    let _weir = bed.protect(&format!("{PORT} --establish no-syn-drop"));
    let server = within(bed.server(), || UdpSocket::bind(path.at(PORT)).unwrap());
    let client = within(path.client, || UdpSocket::bind("0.0.0.0:0").unwrap());
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut buffer = [0; 8192];
    for bytes in [1, 1000, 4000] {
        client.send_to(&vec![7; bytes], path.at(PORT)).unwrap();
        let (received, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..received], from).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), bytes);
    }
    let raw = Raw(&bed.links.wire);
    let host = Peer::v4(0, PORT).client.ip();
    for bytes in [56, 4000] {
        assert_eq!(raw.ping(host, bytes), bytes);
    }
    assert_eq!(bed.verdicts(0), []);
}

/// SYNs that the guard does not hold against the queue, to a full queue and to one with room: for each whether the
/// kernel answered it with a SYN/ACK, a RST, or not at all.
fn answers_to_odd_syns(bed: &Bed) -> Vec<String> {
    let raw = Raw(&bed.links.wire);
    let mut answers = Vec::new();
    for shape in [Shape::Options, Shape::Vlan] {
        for (number, port) in [(10, PORT), (11, PORT + 1)] {
            for peer in [Peer::v4(number.into(), port), Peer::v6(number, port)] {
                raw.send(
                    peer,
                    shape,
                    &Segment {
                        syn: true,
                        ..Segment::default()
                    },
                );
                let kinds = raw.answers_until_now(peer);
                let kinds = kinds
                    .iter()
                    .map(|a| (a.header.syn, a.header.ack, a.header.rst));
                answers.push(format!(
                    "{shape:?} {peer:?}: {:?}",
                    kinds.collect::<Vec<_>>()
                ));
                // The next round begins anew.
                raw.send(
                    peer,
                    Shape::Plain,
                    &Segment {
                        seq: 1,
                        rst: true,
                        ..Segment::default()
                    },
                );
            }
        }
    }
    answers
}

#[test]
fn vlan_tags_are_left_to_the_kernel_and_options_are_not_held_against_the_queue() {
    let Some(bed) = Bed::new() else { return };
    let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let _full = listen(bed.server(), any(PORT), BACKLOG);
    let _roomy = listen(bed.server(), any(PORT + 1), 64);
    let loopback = bed.loopback4();
    let _clients = connect(loopback.client, loopback.at(PORT), BACKLOG as usize + 1);
    let plain = answers_to_odd_syns(&bed);
    assert!(
        plain
            .iter()
            .any(|kinds| kinds.contains("Options") && kinds.contains("(true, true, false)")),
        "{plain:#?}"
    );
    let listener = |port| format!("[[listener]]\naddress = \"*:{port}\"\nestablish = \"reserv\"\n");
    let _weir = bed.run(&(listener(PORT) + &listener(PORT + 1)));
    assert_eq!(answers_to_odd_syns(&bed), plain);
    let of_two = vec![("syn_not_plain".to_owned(), 2)];
    assert_eq!((bed.verdicts(0), bed.verdicts(1)), (of_two.clone(), of_two));
}

/// Hosts behind the TUN device.
fn behind_tun(number: u16) -> [Peer; 2] {
    let mut peers = [Peer::v4(0, PORT), Peer::v6(0, PORT)];
    peers[0]
        .client
        .set_ip(Ipv4Addr::new(10, 67, 0, number as u8).into());
    peers[1]
        .client
        .set_ip(Ipv6Addr::new(0xfd67, 0, 0, 0, 0, 0, 0, number).into());
    peers
}

#[test]
fn devices_without_a_link_header_are_guarded_like_any_other() {
    let Some(bed) = Bed::new() else { return };
    if !takes_cookies() {
        return;
    }
    let tun = Tunnel::create(bed.server(), "tun0").unwrap();
    bed.server()
        .ip_batch(
            "link set tun0 up
             route add 10.67.0.0/24 dev tun0
             -6 route add fd67::/64 dev tun0",
        )
        .unwrap();
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let listener = listen(bed.server(), any, BACKLOG);
    let raw = Raw(&tun);
    let fill = || connect(bed.server(), bed.loopback4().at(PORT), BACKLOG as usize);
    let weir = bed.protect(&format!(
        "{PORT} --admit queue --establish no-syn-drop --half-close reset"
    ));
    let clients = fill();
    let handshakes = behind_tun(2).map(|peer| (peer, raw.half_open(peer)));
    assert_eq!(bed.counter(0, "cookie_sent"), 2);
    accept(&listener, clients.connected.len());
    for (peer, server_seq) in handshakes {
        raw.final_ack(peer, server_seq);
        let _server = accept(&listener, 1);
        let ack = Some(server_seq.wrapping_add(1));
        let fin = Segment {
            seq: 1,
            ack,
            fin: true,
            ..Segment::default()
        };
        raw.send(peer, Shape::Plain, &fin);
        let answer = raw.answer(peer);
        assert!(answer.header.rst && answer.sound, "{answer:?}");
    }
    assert_eq!(bed.counter(0, "cookie_accepted"), 2);
    assert_eq!(bed.counter(0, "fin_reset"), 2);
    drop(weir);
    let _weir = bed.protect(&format!("{PORT} --admit queue"));
    let _full = fill();
    for peer in behind_tun(3) {
        raw.syn(peer, 7);
        let answer = raw.answer(peer);
        assert!(answer.header.rst && answer.sound, "{answer:?}");
    }
    assert_eq!(bed.counter(0, "syn_reset_full"), 2);
}
