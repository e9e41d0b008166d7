//! Backends that nobody checks: what their clients' connections show of them is said once, and not of each connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use weir_core::proxy::{HealthCheck, ProxyMode};
use weir_proxy::{HealthChange, OnHealth, Server, StartOptions};

use crate::common::{Origin, answer, connect, refusing_address, settings, wait_until};

/// What a proxy has said of its backends.
type Said = Arc<Mutex<Vec<HealthChange>>>;

/// A proxy with two threads, and what it says.
fn before(backend: SocketAddr, check: HealthCheck) -> (Server, Said) {
    let said = Said::default();
    let into = said.clone();
    let on_health = OnHealth::new(move |change| into.lock().unwrap().push(change.clone()));
    let mut settings = settings(ProxyMode::Reverse, &[backend]);
    settings.threads = 2;
    settings.health.check = check;
    let options = StartOptions {
        on_health: Some(on_health),
        ..StartOptions::default()
    };
    (Server::start_with(settings, options).unwrap(), said)
}

#[test]
fn a_backend_that_dies_unchecked_is_said_once_and_so_is_its_return() {
    let (held, address) = refusing_address();
    let (proxy, said) = before(address, HealthCheck::Off);
    for _ in 0..20 {
        assert_eq!(connect(proxy.address()).get("/").status(), 502);
    }
    let changes = said.lock().unwrap().clone();
    assert_eq!(changes.len(), 1, "{changes:?}");
    let HealthChange {
        proxy: name,
        backend,
        is_up,
        text,
    } = &changes[0];
    assert_eq!((name.as_str(), backend), ("test", &address.to_string()));
    assert!(
        !is_up && text.contains("takes no connection: Connection refused"),
        "{text}"
    );
    drop(held);
    let _origin = Origin::at(address, |connection, request| {
        answer(connection, &request);
        false
    });
    wait_until("its return is said", || {
        assert_eq!(connect(proxy.address()).get("/length/1").status(), 200);
        said.lock().unwrap().len() == 2
    });
    let back = said.lock().unwrap()[1].clone();
    let words = "takes connections again after";
    assert!(back.is_up && back.text.contains(words), "{}", back.text);
    assert!(
        back.text.ends_with("in which 20 connections failed"),
        "{}",
        back.text
    );
}

#[test]
fn what_checks_say_of_a_backend_is_not_said_again_by_its_connections() {
    let (_held, address) = refusing_address();
    let (proxy, said) = before(address, HealthCheck::Tcp);
    wait_until("the check is said", || !said.lock().unwrap().is_empty());
    for _ in 0..5 {
        assert_eq!(connect(proxy.address()).get("/").status(), 502);
    }
    let changes = said.lock().unwrap().clone();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(changes[0].text.contains("is down"), "{changes:?}");
}
