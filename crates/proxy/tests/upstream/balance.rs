//! Weights of backends, and how many idle connections to them are kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, mpsc};

use weir_core::proxy::{BackendAddress, BackendSetting, Balance, HealthCheck, Proxy, ProxyMode};
use weir_proxy::{BackendState, Server};

use crate::common::{Connection, Origin, connect, settings, wait_until};

/// Servers whose replies are their names.
fn named(names: &[&'static str]) -> Vec<Origin> {
    let reply = |name: &&'static str| {
        Origin::replying(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"
        ))
        .0
    };
    names.iter().map(reply).collect()
}

fn reverse(origins: &[Origin], weights: &[u16], change: impl FnOnce(&mut Proxy)) -> Server {
    let backend = |(origin, weight): (&Origin, &u16)| BackendSetting {
        address: BackendAddress::Ip(origin.address),
        weight: *weight,
    };
    let mut settings = settings(ProxyMode::Reverse, &[]);
    settings.backends = origins.iter().zip(weights).map(backend).collect();
    change(&mut settings);
    Server::start(settings).unwrap()
}

/// Who answers so many requests of one client.
fn answers(address: SocketAddr, count: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    let mut client = connect(address);
    for _ in 0..count {
        let reply = client.get("/");
        let name = String::from_utf8(reply.body).unwrap();
        *answers.entry(name).or_default() += 1;
    }
    answers
}

fn counts(list: &[(&str, usize)]) -> BTreeMap<String, usize> {
    list.iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

#[test]
fn each_backend_has_its_part_by_weight() {
    let origins = named(&["a", "b", "c"]);
    for balance in [Balance::Turn, Balance::Least] {
        for max_connections in [0, 2] {
            let proxy = reverse(&origins, &[3, 1, 2], |settings| {
                settings.balance = balance;
                settings.max_connections = max_connections;
            });
            let expected = counts(&[("a", 30), ("b", 10), ("c", 20)]);
            assert_eq!(answers(proxy.address(), 60), expected, "{balance:?}");
            let weights: Vec<u16> = proxy
                .servers()
                .backends
                .iter()
                .map(|it| it.weight)
                .collect();
            assert_eq!(weights, [3, 1, 2]);
        }
    }
}

#[test]
fn the_others_share_by_weight_what_a_backend_that_is_down_would_have() {
    let origins = named(&["b", "c"]);
    let sick = Origin::serving(|connection, _| {
        let _ = connection.try_send("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
        false
    });
    let origins: Vec<Origin> = [sick].into_iter().chain(origins).collect();
    let proxy = reverse(&origins, &[100, 3, 1], |settings| {
        settings.health.check = HealthCheck::Http;
    });
    let state = |index: usize| proxy.servers().backends[index].state;
    wait_until("all are checked", || {
        state(0) == BackendState::Down
            && state(1) == BackendState::Up
            && state(2) == BackendState::Up
    });
    assert_eq!(
        answers(proxy.address(), 40),
        counts(&[("b", 30), ("c", 10)])
    );
}

#[test]
fn connections_that_are_in_use_count_by_weight() {
    let origins = named(&["a", "b"]);
    let proxy = reverse(&origins, &[3, 1], |settings| {
        settings.balance = Balance::Least;
        settings.mode = ProxyMode::Tcp;
    });
    let _clients: Vec<Connection> = (0..8).map(|_| connect(proxy.address())).collect();
    let in_use = || {
        let backends = proxy.servers().backends;
        [0, 1].map(|index: usize| backends[index].connections.in_use)
    };
    wait_until("six and two", || in_use() == [6, 2]);
}

#[test]
fn no_more_idle_connections_are_kept_than_max_idle() {
    for max_connections in [0, 100] {
        for (threads, max_idle) in [(1, 3), (2, 3), (1, 0)] {
            let origins = named(&["a"]);
            let proxy = reverse(&origins, &[1], |settings| {
                settings.threads = threads;
                settings.max_idle = max_idle;
                settings.max_connections = max_connections;
            });
            let idle = || proxy.servers().backends[0].connections.idle;
            let in_use = || proxy.servers().backends[0].connections.in_use;
            // Of one client each, so that some come to either thread.
            let mut clients: Vec<Connection> = (0..24).map(|_| connect(proxy.address())).collect();
            for _ in 0..3 {
                for client in &mut clients {
                    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
                }
                for client in &mut clients {
                    assert_eq!(client.reply(false).status(), 200);
                }
                wait_until("none is used", || in_use() == 0);
                assert!(idle() <= u64::from(max_idle), "{} of {max_idle}", idle());
            }
            if max_idle == 0 {
                let before = origins[0].connections();
                assert_eq!(clients[0].get("/").status(), 200);
                assert_eq!(origins[0].connections(), before + 1);
            }
        }
    }
}

#[test]
fn the_connection_that_was_idle_the_longest_goes_first() {
    let (release, held) = mpsc::channel();
    let held = Mutex::new(held);
    // Each reply names its connection.
    let origin = Origin::serving(move |connection, request| {
        if request.first_line.contains("/hold") {
            held.lock().unwrap().recv().unwrap();
        }
        let port = connection.0.get_ref().peer_addr().unwrap().port();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{port:05}"
        ));
        true
    });
    for max_connections in [0, 100] {
        let proxy = reverse(std::slice::from_ref(&origin), &[1], |settings| {
            settings.max_idle = 1;
            settings.max_connections = max_connections;
        });
        let (mut one, mut other) = (connect(proxy.address()), connect(proxy.address()));
        let first = one.get("/").body;
        let in_use = || proxy.servers().backends[0].connections.in_use;
        wait_until("the first is idle", || in_use() == 0);
        other.send("GET /hold HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_until("the first is in use", || in_use() == 1);
        let second = one.get("/").body;
        assert_ne!(first, second);
        release.send(()).unwrap();
        assert_eq!(other.reply(false).body, first);
        wait_until("both are idle", || in_use() == 0);
        assert_eq!(one.get("/").body, first);
    }
}
