//! Backends by name: their addresses change, vanish, are of both families, or come late.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use weir_core::proxy::{BackendAddress, BackendSetting, HealthCheck, HostName, Proxy, ProxyMode};
use weir_proxy::{BackendReport, BackendState, LookUp, NameReport, Server, StartOptions};

use crate::common::{Origin, PATIENCE, connect, end, settings, total, value, wait_until};

const NAME: &str = "app.internal";

/// A name server in the place of the real one: what each look-up says.
#[derive(Clone)]
struct Zone(Arc<ZoneState>);

struct ZoneState {
    addresses: Mutex<Result<Vec<IpAddr>, String>>,
    asked: AtomicUsize,
    /// Look-ups hang as long as it is locked.
    silent: Mutex<()>,
}

impl Zone {
    fn new(addresses: &[&str]) -> Zone {
        let zone = Zone(Arc::new(ZoneState {
            addresses: Mutex::new(Err("no such name".to_owned())),
            asked: AtomicUsize::new(0),
            silent: Mutex::default(),
        }));
        zone.set(addresses);
        zone
    }

    fn set(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        *self.0.addresses.lock().unwrap() = Ok(addresses);
    }

    fn fail(&self) {
        *self.0.addresses.lock().unwrap() = Err("no such name".to_owned());
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn look_up(&self) -> LookUp {
        let zone = self.0.clone();
        LookUp::by(move |name| {
            assert_eq!(name, NAME);
            zone.asked.fetch_add(1, Ordering::SeqCst);
            drop(zone.silent.lock());
            let addresses = zone.addresses.lock().unwrap().clone();
            addresses.map_err(io::Error::other)
        })
    }
}

fn named(port: u16, weight: u16) -> BackendSetting {
    let name = HostName {
        host: NAME.to_owned(),
        port,
    };
    BackendSetting {
        address: BackendAddress::Name(name),
        weight,
    }
}

fn start(
    zone: &Zone,
    mode: ProxyMode,
    backends: Vec<BackendSetting>,
    change: impl FnOnce(&mut Proxy),
) -> Server {
    let mut settings = settings(mode, &[]);
    settings.backends = backends;
    settings.resolve_interval = Duration::from_millis(20);
    change(&mut settings);
    let options = StartOptions {
        look_up: zone.look_up(),
        ..StartOptions::default()
    };
    Server::start_with(settings, options).unwrap()
}

/// Servers on one port at these addresses, whose replies are their addresses.
fn origins(ips: &[&str]) -> (Vec<Origin>, u16) {
    let mut port = 0;
    let at = |ip: &&str| {
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{ip}",
            ip.len()
        );
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        let origin = Origin::at(address, move |connection, _| {
            connection.try_send(&reply).is_ok()
        });
        port = origin.address.port();
        origin
    };
    let origins = ips.iter().map(at).collect();
    (origins, port)
}

/// Who answers so many requests of one client.
fn answers(proxy: &Server, count: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    let mut client = connect(proxy.address());
    for _ in 0..count {
        let reply = client.get("/");
        assert_eq!(reply.status(), 200);
        let name = String::from_utf8(reply.body).unwrap();
        *answers.entry(name).or_default() += 1;
    }
    answers
}

fn name(proxy: &Server) -> NameReport {
    proxy.servers().names.remove(0)
}

fn listed(proxy: &Server) -> Vec<String> {
    let all = proxy.servers().backends.into_iter();
    let listed = all.filter(|backend| backend.weight > 0);
    listed
        .map(|backend| backend.address.ip().to_string())
        .collect()
}

fn backend(proxy: &Server, ip: &str) -> Option<BackendReport> {
    let mut all = proxy.servers().backends.into_iter();
    all.find(|backend| backend.address.ip().to_string() == ip)
}

#[test]
fn every_address_of_a_name_of_both_families_is_a_backend_with_its_weight() {
    let (_origins, port) = origins(&["127.0.0.1", "127.0.0.2", "::1"]);
    let (_other, other_port) = origins(&["127.0.0.3"]);
    let zone = Zone::new(&["::1", "127.0.0.2", "127.0.0.1", "127.0.0.1"]);
    for max_connections in [0, 2] {
        let other = SocketAddr::from(([127, 0, 0, 3], other_port));
        let backends = vec![named(port, 2), other.into()];
        let proxy = start(&zone, ProxyMode::Reverse, backends, |settings| {
            settings.max_connections = max_connections;
        });
        let expected = [
            ("127.0.0.1", 20),
            ("127.0.0.2", 20),
            ("127.0.0.3", 10),
            ("::1", 20),
        ];
        let expected = expected.map(|(ip, count)| (ip.to_owned(), count));
        assert_eq!(answers(&proxy, 70), BTreeMap::from(expected));
        assert_eq!(
            listed(&proxy),
            ["127.0.0.1", "127.0.0.2", "::1", "127.0.0.3"]
        );
        assert_eq!(backend(&proxy, "::1").unwrap().name.as_deref(), Some(NAME));
        assert_eq!(backend(&proxy, "127.0.0.3").unwrap().name, None);
        assert!(name(&proxy).is_resolved);
    }
}

#[test]
fn addresses_that_change_under_load_cost_no_request_and_those_that_stay_keep_what_they_have() {
    let ips = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
    let (origins, port) = origins(&ips);
    for (max_connections, threads) in [(0, 2), (4, 2), (1, 1)] {
        let before: Vec<usize> = origins.iter().map(Origin::connections).collect();
        let zone = Zone::new(&ips[..2]);
        let proxy = start(
            &zone,
            ProxyMode::Reverse,
            vec![named(port, 1)],
            |settings| {
                settings.max_connections = max_connections;
                settings.threads = threads;
            },
        );
        let address = proxy.address();
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let stop = stop.clone();
                thread::spawn(move || {
                    let mut served = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let mut client = connect(address);
                        for _ in 0..50 {
                            assert_eq!(client.get("/").status(), 200);
                            served += 1;
                        }
                    }
                    served
                })
            })
            .collect();
        let sets = [
            &["127.0.0.3", "127.0.0.1"][..],
            &["127.0.0.1"],
            &["127.0.0.2", "127.0.0.1"],
            &["127.0.0.1", "127.0.0.2", "127.0.0.3"],
        ];
        for round in 0..20 {
            let set = sets[round % sets.len()];
            zone.set(set);
            wait_until("it has these addresses", || {
                let mut listed = listed(&proxy);
                listed.sort();
                let mut set = set.to_vec();
                set.sort_unstable();
                listed == set
            });
        }
        stop.store(true, Ordering::Relaxed);
        let served: usize = clients.into_iter().map(|it| it.join().unwrap()).sum();
        // 127.0.0.1 was there all the time: its connections were kept, but for the one that a client closed.
        if max_connections == 0 {
            let opened = origins[0].connections() - before[0];
            assert!(opened <= 16, "{opened} connections for {served} requests");
        }
        let totals = end(proxy);
        assert_eq!(total(&totals, "replies_2xx"), served as u64);
        assert_eq!(total(&totals, "replies_5xx"), 0);
        let by_address: u64 = totals
            .backends
            .iter()
            .map(|(_, totals)| value(totals, "connects") + value(totals, "reused"))
            .sum();
        assert_eq!(by_address, served as u64, "no figure is lost");
        assert_eq!(totals.backends.len(), 3);
    }
}

#[test]
fn connections_to_an_address_that_has_gone_live_on_and_the_idle_ones_are_closed() {
    let (_origins, port) = origins(&["127.0.0.1", "127.0.0.2"]);
    let zone = Zone::new(&["127.0.0.1"]);
    let proxy = start(&zone, ProxyMode::Tcp, vec![named(port, 1)], |_| {});
    let mut tunnel = connect(proxy.address());
    assert_eq!(tunnel.get("/").body, b"127.0.0.1");
    zone.set(&["127.0.0.2"]);
    wait_until("the address has changed", || {
        listed(&proxy) == ["127.0.0.2"]
    });
    assert_eq!(connect(proxy.address()).get("/").body, b"127.0.0.2");
    assert_eq!(tunnel.get("/").body, b"127.0.0.1");
    let gone = backend(&proxy, "127.0.0.1").unwrap();
    assert_eq!((gone.weight, gone.connections.in_use), (0, 1));
    drop(tunnel);
    wait_until("no connection is left", || {
        backend(&proxy, "127.0.0.1").is_none()
    });
    assert_eq!(total(&end(proxy), "transfers_broken"), 0);

    let proxy = start(&zone, ProxyMode::Reverse, vec![named(port, 1)], |_| {});
    answers(&proxy, 1);
    let idle = |ip: &str| backend(&proxy, ip).map_or(0, |it| it.connections.idle);
    wait_until("one is idle", || idle("127.0.0.2") == 1);
    zone.set(&["127.0.0.1"]);
    wait_until("it is closed", || idle("127.0.0.2") == 0);
}

#[test]
fn a_name_that_vanishes_keeps_its_addresses_and_says_so() {
    let (_origins, port) = origins(&["127.0.0.1", "127.0.0.2"]);
    let zone = Zone::new(&["127.0.0.1"]);
    let proxy = start(&zone, ProxyMode::Reverse, vec![named(port, 1)], |_| {});
    zone.fail();
    wait_until("it is said", || !name(&proxy).is_resolved);
    let vanished = name(&proxy);
    assert_eq!(vanished.error, "no such name");
    assert!(vanished.fails_for.is_some());
    assert_eq!(vanished.addresses.len(), 1);
    assert_eq!(answers(&proxy, 3).len(), 1);
    // Name servers that block a name say 0.0.0.0: that is this machine, and not the server.
    zone.set(&["0.0.0.0", "::"]);
    wait_until("another reason", || {
        name(&proxy).error == "it has no address of a server"
    });
    assert_eq!(answers(&proxy, 3).len(), 1);
    zone.set(&["127.0.0.2", "0.0.0.0"]);
    wait_until("it resolves again", || name(&proxy).is_resolved);
    assert_eq!(
        answers(&proxy, 2),
        BTreeMap::from([("127.0.0.2".to_owned(), 2)])
    );
    let totals = end(proxy);
    let (of, counts) = &totals.names[0];
    assert_eq!(of, NAME);
    assert!(value(counts, "lookups_failed") >= 2);
    assert_eq!(value(counts, "changes"), 2);
}

#[test]
fn without_an_address_requests_are_refused_with_a_reason_until_there_is_one() {
    let (_origins, port) = origins(&["127.0.0.1"]);
    let zone = Zone::new(&[]);
    zone.fail();
    for max_connections in [0, 1] {
        let proxy = start(
            &zone,
            ProxyMode::Reverse,
            vec![named(port, 1)],
            |settings| {
                settings.max_connections = max_connections;
            },
        );
        let mut client = connect(proxy.address());
        let reply = client.get("/");
        assert_eq!(reply.status(), 503);
        let why = reply.field("proxy-status").unwrap();
        assert!(why.contains("destination_unavailable"), "{why}");
        assert!(why.contains("name has not been resolved"), "{why}");
        zone.set(&["127.0.0.1"]);
        wait_until("it resolves", || name(&proxy).is_resolved);
        assert_eq!(client.get("/").status(), 200);
        zone.fail();
    }
}

#[test]
fn a_resolver_that_hangs_holds_up_no_start_no_request_and_no_stop() {
    let (_origins, port) = origins(&["127.0.0.1"]);
    let (_other, other_port) = origins(&["127.0.0.3"]);
    let zone = Zone::new(&["127.0.0.1"]);
    let other = SocketAddr::from(([127, 0, 0, 3], other_port));
    // From the start on: another backend serves.
    let held = zone.0.silent.lock().unwrap();
    let begin = Instant::now();
    let backends = vec![named(port, 1), other.into()];
    let proxy = start(&zone, ProxyMode::Reverse, backends, |_| {});
    assert!(begin.elapsed() < PATIENCE / 2);
    assert_eq!(name(&proxy).error, "no answer yet");
    assert_eq!(answers(&proxy, 4).len(), 1);
    drop(held);
    wait_until("the answer is there", || name(&proxy).is_resolved);
    assert_eq!(answers(&proxy, 4).len(), 2);
    // Later: the addresses stay.
    let held = zone.0.silent.lock().unwrap();
    let asked = zone.asked();
    wait_until("one hangs", || zone.asked() > asked);
    assert_eq!(answers(&proxy, 4).len(), 2);
    wait_until("it is said", || !name(&proxy).is_resolved);
    assert!(name(&proxy).error.starts_with("no answer for"));
    let begin = Instant::now();
    end(proxy);
    assert!(begin.elapsed() < PATIENCE / 2);
    drop(held);
}

#[test]
fn a_server_that_takes_no_connection_has_its_name_looked_up_at_once_but_not_again_and_again() {
    let (_origins, port) = origins(&["127.0.0.1"]);
    // 127.0.0.2 refuses.
    let zone = Zone::new(&["127.0.0.2"]);
    let proxy = start(
        &zone,
        ProxyMode::Reverse,
        vec![named(port, 1)],
        |settings| {
            settings.resolve_interval = Duration::from_secs(3600);
        },
    );
    assert_eq!(zone.asked(), 1);
    zone.set(&["127.0.0.1"]);
    let begin = Instant::now();
    let mut client = connect(proxy.address());
    let mut refused = 0;
    while client.get("/").status() != 200 {
        refused += 1;
        thread::sleep(Duration::from_millis(10));
        assert!(begin.elapsed() < PATIENCE, "{refused} times");
    }
    assert!(refused > 0);
    assert_eq!(zone.asked(), 2, "after {refused} failures");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_new_address_is_checked_and_one_that_stays_keeps_its_health() {
    let (_origins, port) = origins(&["127.0.0.1", "127.0.0.3"]);
    // 127.0.0.2 refuses.
    let zone = Zone::new(&["127.0.0.1", "127.0.0.2"]);
    let proxy = start(
        &zone,
        ProxyMode::Reverse,
        vec![named(port, 1)],
        |settings| {
            settings.health.check = HealthCheck::Tcp;
            settings.health.interval = Duration::from_millis(50);
        },
    );
    let state = |ip: &str| backend(&proxy, ip).map(|backend| backend.state);
    wait_until("both are checked", || {
        state("127.0.0.1") == Some(BackendState::Up)
            && state("127.0.0.2") == Some(BackendState::Down)
    });
    zone.set(&["127.0.0.3", "127.0.0.2"]);
    wait_until("the third is checked", || {
        assert_ne!(state("127.0.0.2"), Some(BackendState::Unchecked));
        state("127.0.0.3") == Some(BackendState::Up) && state("127.0.0.1").is_none()
    });
    assert_eq!(
        answers(&proxy, 3),
        BTreeMap::from([("127.0.0.3".to_owned(), 3)])
    );
    // It is the only one now, and so it is used.
    zone.set(&["127.0.0.2"]);
    wait_until("one is left", || listed(&proxy) == ["127.0.0.2"]);
    assert_eq!(connect(proxy.address()).get("/").status(), 502);
}

#[test]
fn a_successor_has_the_addresses_before_its_first_look_up() {
    let (_origins, port) = origins(&["127.0.0.1"]);
    let zone = Zone::new(&["127.0.0.1"]);
    let mut old = start(&zone, ProxyMode::Reverse, vec![named(port, 1)], |_| {});
    let _held = zone.0.silent.lock().unwrap();
    let mut settings = old.settings().clone();
    settings.head_timeout = Duration::from_secs(3);
    let options = StartOptions {
        sockets: Some(old.sockets().unwrap().try_clone().unwrap()),
        predecessor: Some(old.reload_state()),
        look_up: zone.look_up(),
        ..StartOptions::default()
    };
    let begin = Instant::now();
    let new = Server::start_with(settings, options).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
    old.retire();
    assert_eq!(answers(&new, 2).len(), 1);
}

#[test]
fn clients_that_wait_for_a_connection_get_one_of_a_new_address() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let slow = Origin::at("127.0.0.1:0".parse().unwrap(), move |connection, _| {
        let _ = held.lock().unwrap().recv();
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        connection.try_send(reply).is_ok()
    });
    let port = slow.address.port();
    let quick = SocketAddr::from(([127, 0, 0, 2], port));
    let _quick = Origin::at(quick, |connection, _| {
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nquick";
        connection.try_send(reply).is_ok()
    });
    let zone = Zone::new(&["127.0.0.1"]);
    let proxy = start(
        &zone,
        ProxyMode::Reverse,
        vec![named(port, 1)],
        |settings| {
            settings.max_connections = 1;
            settings.queue_timeout = PATIENCE;
        },
    );
    let mut first = connect(proxy.address());
    first.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("it is in use", || {
        backend(&proxy, "127.0.0.1").unwrap().connections.in_use == 1
    });
    let mut second = connect(proxy.address());
    second.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("one waits", || proxy.waiting() == 1);
    // The first address goes, and takes its slot with it.
    zone.set(&["127.0.0.2"]);
    assert_eq!(second.reply(false).body, b"quick");
    release.send(()).unwrap();
    assert_eq!(first.reply(false).status(), 200);
}
