//! What a proxy leaves to its successor on the same sockets, and what clients see of the change.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Message, Origin, connect, settings, wait_until};
use weir_core::prefix::parse_prefix;
use weir_core::proxy::{HealthCheck, Proxy, ProxyMode};
use weir_proxy::{BackendState, Server, StartOptions};

/// A successor with other settings, and the one before it, which accepts no more.
fn reload(mut old: Server, change: impl FnOnce(&mut Proxy)) -> (Server, Server) {
    let mut settings = old.settings().clone();
    change(&mut settings);
    let options = StartOptions {
        sockets: Some(old.sockets().unwrap().try_clone().unwrap()),
        predecessor: Some(old.reload_state()),
        ..StartOptions::default()
    };
    let new = Server::start_with(settings, options).unwrap();
    old.retire();
    (new, old)
}

fn keepable() -> (Origin, Arc<AtomicUsize>) {
    Origin::replying("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok")
}

fn is_kept(reply: &Message) -> bool {
    reply.field("cache-status").unwrap().contains("; hit")
}

#[test]
fn a_changed_proxy_keeps_what_it_has_cached() {
    let (origin, asked) = keepable();
    let (more, _) = keepable();
    let mut first = settings(ProxyMode::Reverse, &[origin.address]);
    first.cache = 16 << 20;
    let proxy = Server::start(first).unwrap();
    assert!(!is_kept(&connect(proxy.address()).get("/")));
    let (proxy, _old) = reload(proxy, |settings| {
        settings.head_timeout = Duration::from_secs(3);
        settings.backends.push(more.address.into());
    });
    assert!(is_kept(&connect(proxy.address()).get("/")));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_cache_is_not_for_other_servers_sizes_or_rules() {
    let (origin, _) = keepable();
    let (other, _) = keepable();
    let (forward, _) = keepable();
    let changes: [&dyn Fn(&mut Proxy); 3] = [
        &|settings| settings.backends = vec![other.address.into()],
        &|settings| settings.cache = 17 << 20,
        &|settings| settings.cache_object = 1 << 20,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut first = settings(ProxyMode::Reverse, &[origin.address]);
        first.cache = 16 << 20;
        let proxy = Server::start(first).unwrap();
        connect(proxy.address()).get("/");
        let (proxy, _old) = reload(proxy, change);
        assert!(!is_kept(&connect(proxy.address()).get("/")), "{index}");
    }
    let mut first = settings(ProxyMode::Forward, &[]);
    first.cache = 16 << 20;
    let proxy = Server::start(first).unwrap();
    let host = forward.address;
    let get = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
    connect(proxy.address()).ask(&get);
    assert!(is_kept(&connect(proxy.address()).ask(&get)));
    let (proxy, _old) = reload(proxy, |settings| {
        settings.deny_to = vec![parse_prefix("127.0.0.0/8").unwrap()];
    });
    assert_eq!(connect(proxy.address()).ask(&get).status(), 403);
}

#[test]
fn a_client_between_two_requests_is_served_once_more_and_asked_to_connect_anew() {
    let origin = Origin::start();
    let proxy = Server::start(settings(ProxyMode::Reverse, &[origin.address])).unwrap();
    let mut clients: Vec<_> = (0..20).map(|_| connect(proxy.address())).collect();
    for client in &mut clients {
        assert_eq!(client.get("/length/5").status(), 200);
    }
    let (_proxy, mut old) = reload(proxy, |settings| settings.max_clients = 7);
    for client in &mut clients[..19] {
        let reply = client.get("/length/5");
        assert_eq!(
            (reply.status(), reply.field("connection")),
            (200, Some("close"))
        );
        assert!(client.at_end());
    }
    assert!(!old.is_finished(), "one client is left");
    // A stop does not wait for one that asks nothing.
    old.drain(Duration::from_secs(20));
    wait_until("it has ended", || old.is_finished());
    assert!(clients[19].at_end());
}

#[test]
fn a_client_that_asks_nothing_more_has_its_keep_alive_and_no_longer() {
    let origin = Origin::start();
    let mut first = settings(ProxyMode::Reverse, &[origin.address]);
    first.keep_alive = Duration::from_millis(100);
    let proxy = Server::start(first).unwrap();
    let mut client = connect(proxy.address());
    assert_eq!(client.get("/length/5").status(), 200);
    let (_proxy, old) = reload(proxy, |settings| settings.max_clients = 7);
    wait_until("it has ended", || old.is_finished());
    assert!(client.at_end());
}

#[test]
fn a_successor_knows_which_backends_are_down_before_it_has_checked() {
    let sick = Origin::serving(|connection, _| {
        let _ = connection.try_send("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
        false
    });
    let well = Origin::start();
    let mut first = settings(ProxyMode::Reverse, &[sick.address, well.address]);
    first.health.check = HealthCheck::Http;
    first.health.path = "/length/5".to_owned();
    first.health.interval = Duration::from_secs(3600);
    let proxy = Server::start(first).unwrap();
    let state = |proxy: &Server, index: usize| proxy.servers().backends[index].state;
    wait_until("it is down", || state(&proxy, 0) == BackendState::Down);
    wait_until("it is up", || state(&proxy, 1) == BackendState::Up);
    let (proxy, _old) = reload(proxy, |settings| settings.max_clients = 7);
    assert_eq!(state(&proxy, 0), BackendState::Down);
    for _ in 0..5 {
        assert_eq!(connect(proxy.address()).get("/length/5").status(), 200);
    }
}

#[test]
fn clients_that_ask_again_and_again_see_no_reset_through_many_reloads() {
    let origin = Origin::start();
    let mut first = settings(ProxyMode::Reverse, &[origin.address]);
    first.threads = 2;
    let mut proxy = Server::start(first).unwrap();
    let address = proxy.address();
    let (stop, served) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let ask = move |stop: Arc<AtomicUsize>, served: Arc<AtomicUsize>| {
        while stop.load(Ordering::Relaxed) == 0 {
            let mut client = connect(address);
            loop {
                // Panics at a reset or an early end.
                let reply = client.get("/length/100");
                served.fetch_add(1, Ordering::Relaxed);
                if reply.field("connection") == Some("close") {
                    break;
                }
                if stop.load(Ordering::Relaxed) > 0 {
                    return;
                }
            }
        }
    };
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, served) = (stop.clone(), served.clone());
            std::thread::spawn(move || ask(stop, served))
        })
        .collect();
    let mut retired = Vec::new();
    for round in 0..30 {
        let before = served.load(Ordering::Relaxed);
        wait_until("clients are served", || {
            served.load(Ordering::Relaxed) > before + 20
        });
        let (new, old) = reload(proxy, |settings| settings.max_clients = 100 + round);
        proxy = new;
        retired.push(old);
    }
    stop.store(1, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    wait_until("the old ones have ended", || {
        retired.iter().all(Server::is_finished)
    });
}
