//! Ports that are published from other network namespaces, by rules as Docker has them: plain namespaces, no engine.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::quic::{QuicServer, QuicServerKind, attempt};

use crate::common::{BACKLOG, Bed, PATIENCE, PORT, connect, listen};
use crate::elsewhere::{Server, workloads};
use crate::firewall::nft;

/// A namespace at this number of a network of the bed's server, where a server listens, at port 80 unless said otherwise.
struct Container {
    netns: Netns,
    _server: Server,
}

impl Container {
    fn new(bed: &Bed, number: u8) -> Container {
        Container::at(bed, number, 80)
    }

    /// With its server at another port.
    fn at(bed: &Bed, number: u8, port: u16) -> Container {
        let netns = Netns::create("container").unwrap();
        let host = bed.server();
        host.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        let inside = netns.name();
        host.ip_batch(&format!(
            "link add name c{number} type veth peer name eth0 netns {inside}
             addr add 10.73.{number}.1/24 dev c{number}
             link set c{number} up"
        ))
        .unwrap();
        netns
            .ip_batch(&format!(
                "addr add 10.73.{number}.2/24 dev eth0
                 link set eth0 up
                 route add default via 10.73.{number}.1"
            ))
            .unwrap();
        let server = Server::inside(&netns, port);
        Container {
            netns,
            _server: server,
        }
    }
}

/// Translates what comes to the bed's server by these rules; `false` where the kernel cannot.
fn publish(bed: &Bed, rules: &str) -> bool {
    let chain = "table ip nat {\n chain in {\n type nat hook prerouting priority dstnat;\n";
    if !needs::programs(&["nft"]) {
        return false;
    }
    if !nft(bed, &format!("{chain} }}\n }}\n")) {
        needs::lacking("nat of nftables");
        return false;
    }
    assert!(nft(bed, &format!("{chain} {rules}\n }}\n }}\n")), "{rules}");
    true
}

#[test]
fn a_published_port_is_guarded_where_its_server_is() {
    let Some(bed) = Bed::new() else { return };
    let container = Container::new(&bed, 2);
    let name = container.netns.name();
    if !publish(&bed, "tcp dport 8080 dnat to 10.73.2.2:80") {
        return;
    }
    let mut weir = bed.protect("8080 --admit queue");
    assert_eq!(
        weir.line,
        format!(
            "weir: 8080 is published from network namespace {name}, port 80: guarded there, as `--where netns:{name} 80`\n"
        )
    );
    let on = weir.next_line();
    assert!(on.starts_with("weir: protecting port 80 "), "{on}");
    assert_eq!(workloads(&bed, "port-8080", 1)[0]["name"], name);
    let clients = connect(bed.client(), bed.veth4().at(8080), 6);
    assert_eq!(clients.counts(), (4, 2, 0));
    assert_eq!(bed.counter(0, "syn_reset_full"), 2);
}

#[test]
fn a_published_port_is_guarded_inside_by_udp_too_where_a_socket_is_bound_there() {
    let Some(bed) = Bed::new() else { return };
    let container = Container::new(&bed, 2);
    let inside = SocketAddr::from(([10, 73, 2, 2], 80));
    let kind = QuicServerKind::QueuesInside {
        service: Duration::ZERO,
    };
    let _server = QuicServer::start(&container.netns, inside, kind).unwrap();
    let rules = "tcp dport 8080 dnat to 10.73.2.2:80; udp dport 8080 dnat to 10.73.2.2:80";
    if !publish(&bed, rules) {
        return;
    }
    let mut weir = bed.protect("8080");
    let lines = [weir.line.clone(), weir.next_line().to_owned()];
    assert!(
        lines[1].starts_with("weir: protecting port 80 "),
        "{lines:?}"
    );
    let _queue = weir.next_line().to_owned();
    let udp = weir.next_line();
    assert!(udp.starts_with("  UDP port 80 too: "), "{udp}");
    let path = bed.veth4();
    attempt(path.client, path.at(8080), PATIENCE)
        .unwrap()
        .connected();
    let status = bed.status();
    let quic = &status["quic"][0];
    assert_eq!(quic["name"], "quic-8080");
    assert_eq!(quic["counters"]["quic_answered"], 1, "{status}");
}

#[test]
fn a_published_port_at_which_nobody_listens_inside_is_said() {
    let Some(bed) = Bed::new() else { return };
    let container = Container::at(&bed, 2, 3000);
    let name = container.netns.name();
    if !publish(&bed, "tcp dport 8080 dnat to 10.73.2.2:80") {
        return;
    }
    let output = bed.weir("protect 8080");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let message = format!(
        "8080 is published from network namespace {name}, port 80, and nothing listens on port 80 there"
    );
    assert!(said.contains(&message), "{said}");
    assert!(said.contains("listen on 3000"), "{said}");
    assert_eq!(output.stdout, b"", "nothing is guarded");
}

#[test]
fn a_published_port_and_one_of_this_namespace_are_guarded_together() {
    let Some(bed) = Bed::new() else { return };
    let container = Container::new(&bed, 2);
    let _own = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    if !publish(&bed, "tcp dport { 8180, 8181 } dnat to 10.73.2.2:80") {
        return;
    }
    let mut weir = bed.protect(&format!("{PORT} 8180 8181 --admit queue"));
    assert!(
        weir.line.starts_with("weir: 8180 is published "),
        "{}",
        weir.line
    );
    let second = weir.next_line();
    assert!(second.starts_with("weir: 8181 is published "), "{second}");
    let on = weir.next_line().to_owned();
    assert!(
        on.contains(&format!("protecting ports {PORT}, 80 ")),
        "{on}"
    );
    let own = weir.next_line().to_owned();
    assert_eq!(own, format!("  *:{PORT}: listen queue 0 of {BACKLOG}\n"));
    let inside = weir.next_line().to_owned();
    let name = container.netns.name();
    assert_eq!(
        inside,
        format!("  *:80 {name}: listen queue 0 of {BACKLOG}\n")
    );
    for port in [PORT, 8180] {
        let clients = connect(bed.client(), bed.veth4().at(port), 6);
        assert_eq!(clients.counts(), (4, 2, 0), "{port}");
    }
}

#[test]
fn a_port_that_is_spread_over_servers_is_said_and_guarded_nowhere() {
    let Some(bed) = Bed::new() else { return };
    let containers = [2, 3].map(|number| Container::new(&bed, number));
    // kube-proxy does it at random: for a client it is one or the other.
    let rules = "ip saddr 10.0.0.0/9 tcp dport 8080 dnat to 10.73.2.2:80\n tcp dport 8080 dnat to 10.73.3.2:80";
    if !publish(&bed, rules) {
        return;
    }
    let output = bed.weir("protect 8080");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("port 8080 are forwarded"), "{said}");
    for container in &containers {
        let place = format!("to network namespace {}, port 80", container.netns.name());
        assert!(said.contains(&place), "{said}");
    }
    assert_eq!(output.stdout, b"", "nothing is guarded");
    let here = bed.weir("protect 8080 --where here");
    let said = String::from_utf8(here.stderr).unwrap();
    assert!(said.contains("nothing listens on *:8080"), "{said}");
}

#[test]
fn a_server_that_has_the_port_here_is_guarded_here() {
    let Some(bed) = Bed::new() else { return };
    let _container = Container::new(&bed, 2);
    let _own = listen(bed.server(), bed.veth4().at(PORT), BACKLOG);
    // Only clients of this network are led away.
    let rule = format!("ip saddr 10.73.0.0/16 tcp dport {PORT} dnat to 10.73.2.2:80");
    if !publish(&bed, &rule) {
        return;
    }
    let weir = bed.protect(&format!("{PORT} --admit queue"));
    assert!(weir.line.contains("on lo, "), "{}", weir.line);
    let clients = connect(bed.client(), bed.veth4().at(PORT), 6);
    assert_eq!(clients.counts(), (4, 2, 0));
}
