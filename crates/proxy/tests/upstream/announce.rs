//! The client's address: what the proxy believes, and what it sends to servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use weir_core::prefix::parse_prefix;
use weir_core::proxy::{Forwarded, Proxy, ProxyMode, SendProxy};
use weir_proxy::proxy_protocol::{Endpoints, ProxyHeader, read};
use weir_proxy::{Error, Server};

use crate::common::{Connection, Origin, PATIENCE, connect, end, start, total};

const FRONT: &str = "PROXY TCP4 192.0.2.7 198.51.100.1 1234 80\r\n";

fn refused(proxy: Server) -> u64 {
    total(&end(proxy), "clients_refused")
}

/// Reads the header and as many bytes behind it as `rest` has.
fn header_then(mut stream: &TcpStream, rest: &[u8]) -> Option<Endpoints> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    loop {
        let header = match bytes.as_slice() {
            [] => None,
            bytes => read(bytes).unwrap(),
        };
        if let Some(ProxyHeader { len, endpoints }) = header
            && bytes.len() >= len + rest.len()
        {
            assert_eq!(&bytes[len..], rest);
            return endpoints;
        }
        let mut part = [0; 100];
        let length = stream.read(&mut part).unwrap();
        assert_ne!(length, 0, "the end after {bytes:?}");
        bytes.extend(&part[..length]);
    }
}

#[test]
fn a_tcp_server_is_told_the_client_before_its_first_byte() {
    for send_proxy in [SendProxy::V1, SendProxy::V2] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let backend = server.local_addr().unwrap();
        let proxy = start(ProxyMode::Tcp, &[backend], |proxy| {
            proxy.send_proxy = send_proxy
        });
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        let (served, _) = server.accept().unwrap();
        let told = header_then(&served, b"").unwrap();
        assert_eq!(told.source, client.local_addr().unwrap());
        assert_eq!(told.destination, proxy.address());
        client.write_all(b"hello").unwrap();
        let mut hello = [0; 5];
        (&served).read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
    }
}

#[test]
fn what_the_proxy_in_front_says_is_passed_on() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = start(ProxyMode::Tcp, &[server.local_addr().unwrap()], |proxy| {
        proxy.accept_proxy = true;
        proxy.trust = vec![parse_prefix("127.0.0.0/8").unwrap()];
        proxy.send_proxy = SendProxy::V2;
    });
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    client.set_nodelay(true).unwrap();
    let (begin, end) = FRONT.split_at(20);
    client.write_all(begin.as_bytes()).unwrap();
    client.write_all(format!("{end}hello").as_bytes()).unwrap();
    let (served, _) = server.accept().unwrap();
    let told = header_then(&served, b"hello").unwrap();
    assert_eq!(told.source, "192.0.2.7:1234".parse().unwrap());
    assert_eq!(told.destination, "198.51.100.1:80".parse().unwrap());
}

#[test]
fn a_client_without_its_header_is_reset() {
    for mode in [ProxyMode::Tcp, ProxyMode::Reverse] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let backend = server.local_addr().unwrap();
        let proxy = start(mode, &[backend], |proxy| proxy.accept_proxy = true);
        let mut client = connect(proxy.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        let error = client.0.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(refused(proxy), 1);
    }
}

#[test]
fn a_header_of_an_untrusted_peer_is_not_read() {
    let origin = Origin::start();
    let proxy = start(ProxyMode::Reverse, &[origin.address], |proxy| {
        proxy.accept_proxy = true;
        proxy.trust = vec![parse_prefix("192.0.2.0/24").unwrap()];
    });
    let mut client = connect(proxy.address());
    client.send(format!(
        "{FRONT}GET /length/1 HTTP/1.1\r\nHost: test\r\n\r\n"
    ));
    assert!(client.0.read(&mut [0]).is_err());
    assert_eq!(refused(proxy), 1);
    assert_eq!(origin.connections(), 0);
}

/// An HTTP server that wants a PROXY header on each connection, and tells it.
fn server_behind_proxy() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let tell = tell.clone();
            thread::spawn(move || {
                let mut connection = Connection(BufReader::new(stream.unwrap()));
                let mut line = String::new();
                connection.0.read_line(&mut line).unwrap();
                tell.send(line).unwrap();
                while connection.request().is_some() {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    (address, told)
}

#[test]
fn a_kept_connection_that_began_with_a_clients_address_serves_that_client_only() {
    let (backend, told) = server_behind_proxy();
    let proxy = start(ProxyMode::Reverse, &[backend], |proxy| {
        proxy.send_proxy = SendProxy::V1
    });
    let mut clients = [connect(proxy.address()), connect(proxy.address())];
    for _ in 0..3 {
        for client in &mut clients {
            assert_eq!(client.get("/").status(), 200);
        }
    }
    let mut lines: Vec<String> = told.try_iter().collect();
    lines.sort();
    let line = |client: &Connection| {
        let (own, to) = (client.0.get_ref().local_addr().unwrap(), proxy.address());
        format!(
            "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
            own.port(),
            to.port()
        )
    };
    let mut expected: Vec<String> = clients.iter().map(line).collect();
    expected.sort();
    assert_eq!(lines, expected);
}

#[test]
fn a_forward_proxy_names_no_client() {
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Forward);
    settings.send_proxy = SendProxy::V1;
    match Server::start(settings) {
        Err(Error::Conflict { key, .. }) => assert_eq!(key, "send_proxy"),
        other => panic!("{other:?}"),
    }
}

/// What a server is told in `fields` when a client says it in `says`.
fn told(forwarded: Forwarded, trust: &str, front: &str, says: &str) -> Vec<(String, String)> {
    let origin = Origin::serving(|connection, request| {
        let told = request.fields.iter().filter(|(name, _)| {
            let name = name.to_ascii_lowercase();
            name == "x-forwarded-for" || name == "forwarded"
        });
        let body: String = told
            .map(|(name, value)| format!("{name}: {value}\n"))
            .collect();
        let length = body.len();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        true
    });
    let proxy = start(ProxyMode::Reverse, &[origin.address], |proxy| {
        proxy.forwarded = forwarded;
        proxy.accept_proxy = !front.is_empty();
        proxy.trust = vec![
            parse_prefix(trust).unwrap(),
            parse_prefix("127.0.0.2").unwrap(),
        ];
        if proxy.accept_proxy {
            proxy.trust.push(parse_prefix("127.0.0.1").unwrap());
        }
    });
    let mut client = connect(proxy.address());
    client.send(front);
    let reply = client.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\n{says}\r\n"));
    let lines = String::from_utf8(reply.body).unwrap();
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    };
    lines.lines().map(field).collect()
}

#[test]
fn servers_are_told_the_client_in_the_field_that_is_set() {
    let (stranger, trusted) = ("192.0.2.0/24", "127.0.0.0/8");
    let v6 = "PROXY TCP6 2001:db8::7 2001:db8::1 1234 80\r\n";
    let (x, f) = ("X-Forwarded-For", "Forwarded");
    let says = "X-Forwarded-For: 203.0.113.9\r\nForwarded: for=203.0.113.9\r\n";
    for (forwarded, trust, front, says, expected) in [
        (
            Forwarded::Off,
            stranger,
            "",
            says,
            vec![(x, "203.0.113.9"), (f, "for=203.0.113.9")],
        ),
        (
            Forwarded::XForwardedFor,
            stranger,
            "",
            says,
            vec![(x, "127.0.0.1")],
        ),
        (
            Forwarded::Forwarded,
            stranger,
            "",
            says,
            vec![(f, "for=127.0.0.1")],
        ),
        (
            Forwarded::XForwardedFor,
            stranger,
            "",
            "",
            vec![(x, "127.0.0.1")],
        ),
        (
            Forwarded::XForwardedFor,
            trusted,
            "",
            "X-Forwarded-For: 203.0.113.9\r\n",
            vec![(x, "203.0.113.9, 127.0.0.1")],
        ),
        // The proxy in front is trusted with its header; whom it speaks for is not.
        (
            Forwarded::XForwardedFor,
            stranger,
            v6,
            says,
            vec![(x, "2001:db8::7")],
        ),
        (
            Forwarded::Forwarded,
            stranger,
            v6,
            says,
            vec![(f, "for=\"[2001:db8::7]\"")],
        ),
    ] {
        let told = told(forwarded, trust, front, says);
        let told: Vec<(&str, &str)> = told.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(told, expected, "{forwarded:?} {trust} {front:?} {says:?}");
    }
}
