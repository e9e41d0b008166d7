//! What clients see that connect in the moment in which a proxy is stopped.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{Origin, PATIENCE, connect, settings, wait_until};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weir_core::proxy::ProxyMode;
use weir_proxy::Server;

const LONG: Duration = Duration::from_secs(20);

/// Whether a connection can be made now. One whose SYN is dropped cannot.
fn takes(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_millis(50)).is_ok()
}

/// A proxy needs no right of root's: takes them from this thread, and so from those that it starts.
fn without_capabilities() {
    let mut own = capabilities(None).unwrap();
    own.effective = CapabilitySet::empty();
    own.permitted = CapabilitySet::empty();
    set_capabilities(None, own).unwrap();
}

#[test]
fn a_client_that_has_connected_and_not_spoken_yet_is_served_after_a_stop() {
    without_capabilities();
    let origin = Origin::start();
    let mut proxy = Server::start(settings(ProxyMode::Reverse, &[origin.address])).unwrap();
    // Until they speak, their handshakes are not over for the kernel (TCP_DEFER_ACCEPT).
    let mut clients: Vec<_> = (0..50).map(|_| connect(proxy.address())).collect();
    proxy.drain(LONG);
    wait_until("no other client comes in", || !takes(proxy.address()));
    for client in &mut clients {
        assert_eq!(client.get("/length/5").status(), 200);
    }
    wait_until("it ends", || proxy.is_finished());
    assert!(!takes(proxy.address()));
}

#[test]
fn a_stop_waits_for_no_client_that_is_silent() {
    let origin = Origin::start();
    let mut proxy = Server::start(settings(ProxyMode::Reverse, &[origin.address])).unwrap();
    let _silent = connect(proxy.address());
    proxy.drain(Duration::ZERO);
    wait_until("it ends", || proxy.is_finished());
}

/// Connects again and again, until the proxy listens no more; an error is a connection that stood and
/// was not served.
fn connect_until_refused(address: SocketAddr) -> std::io::Result<usize> {
    let mut served = 0;
    loop {
        let mut client = match TcpStream::connect(address) {
            Ok(client) => client,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(served),
            Err(error) => return Err(error),
        };
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"GET /close/5 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        let mut reply = Vec::new();
        client.read_to_end(&mut reply)?;
        if !reply.starts_with(b"HTTP/1.1 200 OK\r\n") {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        served += 1;
    }
}

#[test]
fn a_stop_under_load_resets_no_connection_that_stands() {
    without_capabilities();
    let origin = Origin::start();
    for mode in [ProxyMode::Reverse, ProxyMode::Tcp] {
        for round in 0..3 {
            let mut settings = settings(mode, &[origin.address]);
            settings.threads = 2;
            let mut proxy = Server::start(settings).unwrap();
            let address = proxy.address();
            let clients: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(move || connect_until_refused(address)))
                .collect();
            wait_until("clients are served", || {
                common::total(&proxy.totals(), "clients_closed") > 100
            });
            proxy.drain(LONG);
            for client in clients {
                let served = client.join().unwrap();
                assert!(served.is_ok(), "{mode:?} {round}: {served:?}");
            }
            wait_until("it ends", || proxy.is_finished());
        }
    }
}
