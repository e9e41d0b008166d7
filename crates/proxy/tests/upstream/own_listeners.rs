//! A forward proxy takes no client to where its own process listens, and opens tunnels to the ports of `connect_ports`.

use std::net::SocketAddr;

use weir_core::prefix::parse_prefix;
use weir_core::proxy::{Ports, Proxy, ProxyMode};
use weir_proxy::{OwnListeners, Server, StartOptions};

use crate::common::{Connection, Message, Origin, answer, connect, end, settings, start, total};
use crate::netns::{in_own_netns, run, with_hosts};

fn tunnel(client: &mut Connection, host: impl std::fmt::Display) -> Message {
    client.send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.reply(true)
}

fn get(client: &mut Connection, host: impl std::fmt::Display) -> Message {
    client.ask(&format!(
        "GET http://{host}/length/5 HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ))
}

fn details(reply: &Message) -> &str {
    let status = reply.field("proxy-status").unwrap_or("none");
    status.split("; ").last().unwrap()
}

/// A proxy that is closed to no address by rules.
fn open(proxy: &mut Proxy) {
    proxy.allow_to = ["0.0.0.0/0", "::/0"]
        .map(|prefix| parse_prefix(prefix).unwrap())
        .into();
}

fn is_own(reply: &Message) -> bool {
    reply.status() == 403 && details(reply) == "details=\"the proxy itself listens there\""
}

#[test]
fn tunnels_do_not_nest() {
    let proxy = start(ProxyMode::Forward, &[], open);
    let mut client = connect(proxy.address());
    let depth = (0..20).take_while(|_| tunnel(&mut client, proxy.address()).status() == 200);
    assert_eq!(depth.count(), 0);
    assert_eq!(total(&proxy.totals(), "refused_own_listener"), 1);
    let mut client = connect(proxy.address());
    assert!(is_own(&get(&mut client, proxy.address())));
    assert_eq!(total(&proxy.totals(), "refused_own_listener"), 2);
}

#[test]
fn no_client_is_taken_to_a_listener_of_the_process_however_it_is_written() {
    with_hosts(
        "127.0.0.1 localhost\n10.9.9.9 inside\n10.8.8.8 outside\n",
        || {
            // A second machine's address would need a second machine: this one is reached over a route that is not local.
            run("ip address add 10.9.9.9/32 dev lo");
            run("ip route add local 10.7.0.0/16 dev lo");
            run("ip -6 address add fd00::9/128 dev lo");
            let own_listeners = OwnListeners::default();
            let start = |listen: &str, mode, backends: &[SocketAddr]| {
                let mut settings = settings(mode, backends);
                settings.listen = listen.parse().unwrap();
                open(&mut settings);
                let options = StartOptions {
                    own_listeners: own_listeners.clone(),
                    ..StartOptions::default()
                };
                Server::start_with(settings, options).unwrap()
            };
            let proxy = start("[::]:0", ProxyMode::Forward, &[]);
            // It started later than the first, as after a reload.
            let later = start("127.0.0.1:0", ProxyMode::Tcp, &[proxy.address()]);
            let port = proxy.address().port();
            for host in [
                "127.0.0.1",
                "127.9.9.9",
                "localhost",
                "0",
                "2130706433",
                "0.0.0.0",
                "inside",
                "10.9.9.9",
                "10.7.1.2",
                "[::]",
                "[::1]",
                "[fd00::9]",
                "[::ffff:127.0.0.1]",
                "[::ffff:10.9.9.9]",
            ] {
                let host = format!("{host}:{port}");
                let reply = tunnel(&mut connect(proxy.address()), &host);
                assert!(is_own(&reply), "{host}: {reply:?}");
                let reply = get(&mut connect(proxy.address()), &host);
                assert!(is_own(&reply), "{host}: {reply:?}");
            }
            assert!(is_own(&tunnel(
                &mut connect(proxy.address()),
                later.address()
            )));
            // The same port at an address of another machine, and another port of this one.
            let reply = tunnel(&mut connect(proxy.address()), format!("10.8.8.8:{port}"));
            assert_ne!(reply.status(), 403);
            let origin = Origin::at("[::]:0".parse().unwrap(), |connection, request| {
                answer(connection, &request)
            });
            let host = format!("127.0.0.1:{}", origin.address.port());
            assert_eq!(get(&mut connect(proxy.address()), host).status(), 200);
            let address = later.address();
            end(later);
            let reply = tunnel(&mut connect(proxy.address()), address);
            assert_eq!(reply.status(), 502, "nobody listens there any more");
        },
    );
}

#[test]
fn other_listeners_of_the_process_are_closed_as_long_as_they_listen() {
    in_own_netns(|| {
        let own_listeners = OwnListeners::default();
        let metrics = Origin::start();
        let options = StartOptions {
            own_listeners: own_listeners.clone(),
            ..StartOptions::default()
        };
        let proxy = Server::start_with(settings(ProxyMode::Forward, &[]), options).unwrap();
        let status = || get(&mut connect(proxy.address()), metrics.address).status();
        let listed = own_listeners.add(metrics.address);
        assert_eq!(status(), 403);
        drop(listed);
        assert_eq!(status(), 200);
    });
}

#[test]
fn tunnels_go_to_the_ports_of_connect_ports_only() {
    let origin = Origin::start();
    let port = origin.address.port();
    let proxy = |ports: &[&str]| {
        start(ProxyMode::Forward, &[], |proxy| {
            proxy.connect_ports = ports.iter().map(|ports| ports.parse().unwrap()).collect();
        })
    };
    let default = Proxy::new("", "127.0.0.1:0".parse().unwrap(), ProxyMode::Forward);
    assert_eq!(default.connect_ports, [Ports::one(443)]);
    let (low, high) = (port - 1, port + 1);
    for (ports, status) in [
        (&["443"][..], 403),
        (&[], 403),
        (&["443", &port.to_string()], 200),
        (&[&format!("{low}-{high}")], 200),
    ] {
        let proxy = proxy(ports);
        let mut client = connect(proxy.address());
        let reply = tunnel(&mut client, origin.address);
        assert_eq!(reply.status(), status, "{ports:?}");
        if status == 403 {
            assert_eq!(
                details(&reply),
                "details=\"CONNECT to this port is not allowed (connect_ports)\""
            );
            assert_eq!(total(&proxy.totals(), "refused_port"), 1);
        }
        // Requests with absolute URIs go to any port.
        let reply = get(&mut connect(proxy.address()), origin.address);
        assert_eq!(reply.status(), 200);
    }
}
