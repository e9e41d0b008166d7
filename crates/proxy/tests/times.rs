//! How long requests, connects and first bytes took.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_core::proxy::{Engine, ProxyMode};
use weir_proxy::Server;
use weir_proxy::histogram::Times;

use common::{Origin, connect, reverse, settings, value, wait_until};

fn requests(proxy: &Server) -> Times {
    value(&proxy.totals().listener_times, "request_duration")
}

fn of_backend(proxy: &Server, name: &str) -> Times {
    value(&proxy.totals().backend_times[0].1, name)
}

#[test]
fn the_first_byte_counts_when_it_comes_and_the_request_when_its_reply_has_gone() {
    static MAY_END: AtomicBool = AtomicBool::new(false);
    const THINKS: Duration = Duration::from_millis(30);
    let origin = Origin::serving(|connection, _| {
        std::thread::sleep(THINKS);
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na");
        wait_until("the test has looked", || MAY_END.load(Ordering::Acquire));
        connection.send("b");
        true
    });
    let proxy = reverse(&origin, Engine::Auto);
    let began = Instant::now();
    let mut client = connect(proxy.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the first byte is counted", || {
        of_backend(&proxy, "first_byte").count() == 1
    });
    assert_eq!(requests(&proxy).count(), 0);
    assert_eq!(of_backend(&proxy, "connect").count(), 1);
    MAY_END.store(true, Ordering::Release);
    wait_until("the request is counted", || requests(&proxy).count() == 1);
    let most_us = began.elapsed().as_micros() as u64;
    let least_us = THINKS.as_micros() as u64;
    let first_byte_us = of_backend(&proxy, "first_byte").sum_us;
    let request_us = requests(&proxy).sum_us;
    assert!(least_us <= first_byte_us, "{first_byte_us}");
    assert!(first_byte_us <= request_us && request_us <= most_us);
}

#[test]
fn a_connection_that_is_used_again_is_not_counted_as_opened() {
    let origin = Origin::start();
    let proxy = reverse(&origin, Engine::Auto);
    let mut client = connect(proxy.address());
    (0..3).for_each(|_| drop(client.get("/10")));
    wait_until("all are counted", || requests(&proxy).count() == 3);
    assert_eq!(of_backend(&proxy, "connect").count(), 1);
    assert_eq!(of_backend(&proxy, "first_byte").count(), 3);
    assert_eq!(value(&proxy.totals().server_times, "first_byte").count(), 3);
}

#[test]
fn servers_that_clients_name_are_counted_together_and_tunnels_are_no_requests() {
    let origin = Origin::start();
    let proxy = Server::start(settings(ProxyMode::Forward, &[])).unwrap();
    let mut client = connect(proxy.address());
    let reply = client.ask(&format!(
        "GET http://{}/10 HTTP/1.1\r\nHost: a\r\n\r\n",
        origin.address
    ));
    assert_eq!(reply.status(), 200);
    let mut tunnel = connect(proxy.address());
    tunnel.send(format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
        origin.address
    ));
    assert_eq!(tunnel.head().unwrap().status(), 200);
    drop(tunnel);
    wait_until("both have ended", || {
        common::total(&proxy.totals(), "clients_closed") == 1 && requests(&proxy).count() > 0
    });
    assert_eq!(requests(&proxy).count(), 1);
    let totals = proxy.totals();
    assert_eq!(value(&totals.server_times, "connect").count(), 2);
    assert_eq!(value(&totals.server_times, "first_byte").count(), 1);
    assert!(totals.backend_times.is_empty());
}
