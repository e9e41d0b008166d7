//! Local addresses and ports for connections to one server.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_core::proxy::{HealthCheck, Proxy, ProxyMode};
use weir_proxy::{BackendState, Error, Server};

use crate::common::{Origin, PATIENCE, connect, settings, value, wait_until};
use crate::netns::in_own_netns;

const PORTS: usize = 20;

/// Few ports, so that they run out soon; proxy and server listen outside their range.
fn limit_ports() {
    let range = format!("40000 {}", 40000 + PORTS - 1);
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
}

fn proxy(mode: ProxyMode, backend: SocketAddr, source: &[&str]) -> Server {
    let mut settings = settings(mode, &[backend]);
    settings.listen = "127.0.0.1:3128".parse().unwrap();
    settings.source = source.iter().map(|ip| ip.parse().unwrap()).collect();
    settings.threads = 2;
    Server::start(settings).unwrap()
}

/// The n-th client has an address of its own, and a port outside the range: one in it, once bound to
/// any address, is passed over by connect().
fn client(proxy: &Server, n: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let own: SocketAddr = format!("127.1.{}.{}:50000", n / 250, n % 250 + 1)
        .parse()
        .unwrap();
    socket.bind(&own.into()).unwrap();
    socket.connect(&proxy.address().into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Opens a tunnel for each of these clients, all at once, and says from which addresses the server
/// was reached.
fn tunnels(
    proxy: &Server,
    server: &TcpListener,
    clients: Range<usize>,
) -> Vec<(TcpStream, IpAddr)> {
    let open = |n| {
        let client = client(proxy, n);
        let (_, from) = server.accept().unwrap();
        (client, from.ip())
    };
    clients.map(open).collect()
}

fn assert_refused(mut client: TcpStream) {
    let end = client.read(&mut [0]);
    assert!(!matches!(end, Ok(1..)), "{end:?}");
}

#[test]
fn without_source_addresses_ports_run_out() {
    in_own_netns(|| {
        limit_ports();
        let server = TcpListener::bind("127.0.0.1:9000").unwrap();
        let proxy = proxy(ProxyMode::Tcp, server.local_addr().unwrap(), &[]);
        let _open = tunnels(&proxy, &server, 0..PORTS);
        assert_refused(client(&proxy, PORTS));
    });
}

#[test]
fn each_source_address_has_all_ports() {
    in_own_netns(|| {
        limit_ports();
        let server = TcpListener::bind("127.0.0.1:9000").unwrap();
        let source = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
        let proxy = proxy(ProxyMode::Tcp, server.local_addr().unwrap(), &source);
        let all = PORTS * source.len();
        let open = tunnels(&proxy, &server, 0..all);
        for ip in source {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(open.iter().filter(|(_, from)| *from == ip).count(), PORTS);
        }
        assert_refused(client(&proxy, all));
    });
}

#[test]
fn servers_share_the_ports_of_a_source_address() {
    in_own_netns(|| {
        limit_ports();
        for (port, clients) in [(9000, 0..PORTS), (9001, PORTS..2 * PORTS)] {
            let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
            let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
            settings.listen.set_port(port + 100);
            settings.backends = vec![server.local_addr().unwrap().into()];
            settings.source = vec!["127.0.0.2".parse().unwrap()];
            let proxy = Server::start(settings).unwrap();
            // Those of the first server stay open.
            std::mem::forget(tunnels(&proxy, &server, clients));
            std::mem::forget(proxy);
        }
    });
}

#[test]
fn a_client_without_a_port_for_its_request_is_told_so_and_the_server_is_not_blamed() {
    in_own_netns(|| {
        limit_ports();
        let server = TcpListener::bind("127.0.0.1:9000").unwrap();
        let address = server.local_addr().unwrap();
        let taken: Vec<TcpStream> = (0..PORTS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let proxy = proxy(ProxyMode::Reverse, address, &["127.0.0.1"]);
        let mut asking = crate::common::Connection(std::io::BufReader::new(client(&proxy, 0)));
        let reply = asking.get("/");
        assert_eq!(reply.status(), 503);
        let why = reply.field("proxy-status").unwrap();
        assert!(why.contains("connection_limit_reached"), "{why}");
        assert!(why.contains("no local port"), "{why}");
        let counted = |name| value(&proxy.totals().backends[0].1, name);
        assert_eq!(
            (counted("connects_failed"), counted("no_local_port")),
            (1, 1)
        );
        drop(taken);
    });
}

#[test]
fn a_check_without_a_port_does_not_take_its_backend_out() {
    in_own_netns(|| {
        limit_ports();
        let server = TcpListener::bind("127.0.0.1:9000").unwrap();
        let address = server.local_addr().unwrap();
        let mut settings = settings(ProxyMode::Tcp, &[address]);
        settings.listen = "127.0.0.1:3128".parse().unwrap();
        settings.health.check = HealthCheck::Tcp;
        settings.health.interval = Duration::from_millis(10);
        let proxy = Server::start(settings).unwrap();
        let of = |name| value(&proxy.totals().backends[0].1, name);
        // The checks alone take all ports to the server, as they close first.
        wait_until("checks have no port", || of("checks_not_made") >= 10);
        assert_eq!((of("checks_failed"), of("downs")), (0, 0));
        assert_eq!(proxy.servers().backends[0].state, BackendState::Up);
    });
}

#[test]
fn a_source_address_of_another_machine_is_refused_at_start() {
    let origin = Origin::start();
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Reverse);
    settings.backends = vec![origin.address.into()];
    settings.source = vec!["192.0.2.1".parse().unwrap()];
    match Server::start(settings) {
        Err(Error::Setting { key, value, .. }) => {
            assert_eq!((key.as_str(), value.as_str()), ("source", "192.0.2.1"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn kept_connections_are_used_again_from_their_own_address() {
    let origin = Origin::start();
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Reverse);
    settings.backends = vec![origin.address.into()];
    settings.source = vec!["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()];
    settings.threads = 1;
    let proxy = Server::start(settings).unwrap();
    let mut client = connect(proxy.address());
    for _ in 0..4 {
        assert_eq!(client.get("/length/1").status(), 200);
    }
    assert_eq!(origin.connections(), 1);
}
