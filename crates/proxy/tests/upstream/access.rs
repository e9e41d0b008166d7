//! Which clients may use a proxy, which servers a forward proxy connects to, and the several addresses of one name.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_core::prefix::{Prefix, parse_prefix};
use weir_core::proxy::{Proxy, ProxyMode};
use weir_proxy::Server;

use crate::common::{Connection, Message, Origin, answer, connect, settings, start, total};
use crate::netns::{run, with_hosts};

fn prefixes(texts: &[&str]) -> Vec<Prefix> {
    texts
        .iter()
        .map(|text| parse_prefix(text).unwrap())
        .collect()
}

/// A forward proxy whose clients send a PROXY header.
fn forward(change: impl FnOnce(&mut Proxy)) -> Server {
    start(ProxyMode::Forward, &[], |proxy| {
        proxy.accept_proxy = true;
        change(proxy);
    })
}

/// A client that comes from this address.
fn client_from(proxy: &Server, ip: &str) -> Connection {
    let mut client = connect(proxy.address());
    let (family, to) = match ip.parse().unwrap() {
        IpAddr::V4(_) => ("TCP4", "192.0.2.1"),
        IpAddr::V6(_) => ("TCP6", "2001:db8::1"),
    };
    client.send(format!("PROXY {family} {ip} {to} 1234 80\r\n"));
    client
}

fn get(client: &mut Connection, host: impl std::fmt::Display) -> Message {
    client.ask(&format!(
        "GET http://{host}/length/5 HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ))
}

fn error(reply: &Message) -> &str {
    let status = reply.field("proxy-status").unwrap_or("none");
    let error = status.split("error=").nth(1).unwrap_or(status);
    error.split(';').next().unwrap()
}

#[test]
fn a_forward_proxy_is_not_for_clients_of_the_internet_unless_it_is_opened_to_them() {
    let origin = Origin::start();
    let proxy = forward(|_| {});
    for ip in ["93.184.216.34", "2606:2800::1"] {
        let mut client = client_from(&proxy, ip);
        let reply = get(&mut client, origin.address);
        assert_eq!(
            (reply.status(), error(&reply)),
            (403, "http_request_denied")
        );
        assert!(client.at_end());
        let mut client = client_from(&proxy, ip);
        let host = origin.address;
        let reply = client.ask(&format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(reply.status(), 403);
    }
    assert_eq!(origin.connections(), 0);
    assert_eq!(total(&proxy.totals(), "clients_refused"), 4);
    let proxy = forward(|settings| {
        settings.allow_from = prefixes(&["93.184.0.0/16"]);
        settings.deny_from = prefixes(&["93.184.1.0/24"]);
        settings.allow_to = prefixes(&["127.0.0.1"]);
    });
    for (ip, status) in [
        ("93.184.216.34", 200),
        ("93.184.1.1", 403),
        ("10.0.0.1", 403),
    ] {
        let reply = get(&mut client_from(&proxy, ip), origin.address);
        assert_eq!(reply.status(), status, "{ip}");
    }
}

#[test]
fn no_client_is_connected_to_this_machine_however_it_is_written() {
    let origin = Origin::start();
    let port = origin.address.port();
    let proxy = forward(|_| {});
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.0.2",
        "0x7f.1",
        "2130706433",
        "0",
        "0.0.0.0",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "169.254.169.254",
    ] {
        let host = format!("{host}:{port}");
        let reply = get(&mut client_from(&proxy, "10.0.0.1"), &host);
        assert_eq!(reply.status(), 403, "{host}");
        assert_eq!(error(&reply), "destination_ip_prohibited", "{host}");
        let connect = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let reply = client_from(&proxy, "10.0.0.1").ask(&connect);
        assert_eq!(reply.status(), 403, "{host}");
    }
    assert_eq!(origin.connections(), 0);
    let reply = get(&mut client_from(&proxy, "127.0.0.1"), origin.address);
    assert_eq!(reply.status(), 200);
    // The connection that is kept now is no way in for others.
    let reply = get(&mut client_from(&proxy, "10.0.0.1"), origin.address);
    assert_eq!(reply.status(), 403);
}

#[test]
fn a_destination_may_be_opened_and_closed() {
    let origin = Origin::start();
    let proxy = forward(|settings| {
        settings.allow_to = prefixes(&["127.0.0.0/8"]);
        settings.deny_to = prefixes(&["127.0.0.2", "10.0.0.0/8"]);
    });
    let ask = |host: &str| get(&mut client_from(&proxy, "10.0.0.1"), host).status();
    assert_eq!(ask(&origin.address.to_string()), 200);
    assert_eq!(ask(&format!("127.0.0.2:{}", origin.address.port())), 403);
    assert_eq!(ask("10.0.0.9:80"), 403);
}

#[test]
fn clients_that_may_not_come_are_told_so_or_reset() {
    let origin = Origin::start();
    let deny = |mode| {
        let mut settings = settings(mode, &[origin.address]);
        settings.deny_from = prefixes(&["127.0.0.0/8"]);
        Server::start(settings).unwrap()
    };
    let reverse = deny(ProxyMode::Reverse);
    let mut client = connect(reverse.address());
    assert_eq!(client.get("/length/5").status(), 403);
    assert!(client.at_end());
    let tcp = deny(ProxyMode::Tcp);
    let mut client = TcpStream::connect(tcp.address()).unwrap();
    let refused = client
        .write_all(b"x")
        .and_then(|()| client.read_exact(&mut [0]))
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn what_is_kept_of_a_server_is_only_for_clients_that_may_go_there() {
    let origin = Origin::serving(|connection, _| {
        connection
            .send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok");
        true
    });
    let proxy = forward(|settings| settings.cache = 16 << 20);
    let kept = |reply: &Message| reply.field("cache-status").unwrap().contains("; hit");
    let mut near = client_from(&proxy, "127.0.0.1");
    assert!(!kept(&get(&mut near, origin.address)));
    assert!(kept(&get(&mut near, origin.address)));
    let reply = get(&mut client_from(&proxy, "10.0.0.1"), origin.address);
    assert_eq!(reply.status(), 403);
    let cached_only = format!(
        "GET http://{0}/length/5 HTTP/1.1\r\nHost: {0}\r\nCache-Control: only-if-cached\r\n\r\n",
        origin.address
    );
    let reply = client_from(&proxy, "10.0.0.1").ask(&cached_only);
    assert_eq!(reply.status(), 504);
}

#[test]
fn what_one_client_changes_is_forgotten_for_all() {
    let origin = Origin::serving(|connection, _| {
        connection
            .send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok");
        true
    });
    let proxy = forward(|settings| {
        settings.cache = 16 << 20;
        settings.allow_to = prefixes(&["127.0.0.0/8"]);
    });
    let kept = |reply: &Message| reply.field("cache-status").unwrap().contains("; hit");
    let mut near = client_from(&proxy, "127.0.0.1");
    get(&mut near, origin.address);
    assert!(kept(&get(&mut near, origin.address)));
    let post = format!(
        "POST http://{0}/length/5 HTTP/1.1\r\nHost: {0}\r\nContent-Length: 0\r\n\r\n",
        origin.address
    );
    assert_eq!(client_from(&proxy, "10.0.0.1").ask(&post).status(), 200);
    assert!(!kept(&get(&mut near, origin.address)));
}

const TWINS: &str =
    "127.0.0.1 localhost\n127.0.0.2 twin\n127.0.0.3 twin\n127.0.0.2 mixed\n10.9.9.9 mixed\n";

#[test]
fn the_next_address_of_a_name_is_tried_when_one_refuses() {
    with_hosts(TWINS, || {
        let origin = Origin::at("127.0.0.3:0".parse().unwrap(), |connection, request| {
            answer(connection, &request)
        });
        let host = format!("twin:{}", origin.address.port());
        let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
        for _ in 0..3 {
            assert_eq!(get(&mut connect(proxy.address()), &host).status(), 200);
            assert_eq!(origin.connections(), 1, "it is kept");
        }
        let mut client = connect(proxy.address());
        client.send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.reply(true).status(), 200);
        assert_eq!(client.get("/length/5").status(), 200);
    });
}

/// A listener that takes no connection any more, and what keeps it so.
fn silent(address: SocketAddr) -> (TcpListener, TcpStream) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    // One connection fills the queue of length 0; the next one's SYN is dropped.
    let first = TcpStream::connect(address).unwrap();
    (listener, first)
}

#[test]
fn an_address_that_does_not_answer_holds_a_client_up_for_a_quarter_of_a_second_only() {
    with_hosts(TWINS, || {
        let origin = Origin::at("127.0.0.3:0".parse().unwrap(), |connection, request| {
            answer(connection, &request)
        });
        let port = origin.address.port();
        let _silent = silent(SocketAddr::from(([127, 0, 0, 2], port)));
        let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
        let begin = Instant::now();
        let mut client = connect(proxy.address());
        assert_eq!(get(&mut client, format!("twin:{port}")).status(), 200);
        let first = begin.elapsed();
        assert!(first >= Duration::from_millis(250), "{first:?}");
        assert!(first < Duration::from_secs(3), "{first:?}");
        let gauges = proxy.servers().origins;
        assert_eq!(gauges.in_use + gauges.idle, 1, "the slow one is given up");
    });
}

#[test]
fn when_no_address_answers_the_client_is_told_in_time() {
    with_hosts(TWINS, || {
        let port = Origin::start().address.port();
        let _silent = [2, 3].map(|last| silent(SocketAddr::from(([127, 0, 0, last], port))));
        let mut settings = settings(ProxyMode::Forward, &[]);
        settings.connect_timeout = Duration::from_millis(500);
        let proxy = Server::start(settings).unwrap();
        let reply = get(&mut connect(proxy.address()), format!("twin:{port}"));
        assert_eq!((reply.status(), error(&reply)), (504, "connection_timeout"));
    });
}

#[test]
fn of_several_addresses_only_those_are_tried_that_the_client_may_go_to() {
    with_hosts(TWINS, || {
        run("ip address add 10.9.9.9/32 dev lo");
        let serve = |connection: &mut Connection, request: Message| answer(connection, &request);
        let open = Origin::at("10.9.9.9:0".parse().unwrap(), serve);
        let port = open.address.port();
        let closed = Origin::at(SocketAddr::from(([127, 0, 0, 2], port)), serve);
        let proxy = forward(|_| {});
        let host = format!("mixed:{port}");
        for _ in 0..3 {
            let reply = get(&mut client_from(&proxy, "10.0.0.1"), &host);
            assert_eq!(reply.status(), 200);
        }
        assert_eq!((open.connections(), closed.connections()), (1, 0));
        let twin = get(&mut client_from(&proxy, "10.0.0.1"), format!("twin:{port}"));
        assert_eq!(twin.status(), 403);
    });
}
