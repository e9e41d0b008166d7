//! Clients that come by TCP: each ends as answered, refused or out of patience.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::quic::{FallbackResult, fallback};
use weir_testbed::wait::PATIENCE;

const CLIENTS: usize = 3;

fn listen(netns: &Netns) -> TcpListener {
    let listen = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    netns.run(listen).unwrap()
}

fn come(netns: &Netns, to: SocketAddr, patience: Duration) -> FallbackResult {
    let (door, clients) = fallback(to, patience).unwrap();
    for _ in 0..CLIENTS {
        door.send(Instant::now());
    }
    drop(door);
    clients.run(netns).unwrap()
}

/// Answers so many clients, one after the other.
fn serve(listener: &TcpListener, clients: usize) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth();
    let config = config.with_single_cert(vec![own.cert.der().clone()], key.into());
    let config = Arc::new(config.unwrap());
    for _ in 0..clients {
        let (stream, _) = listener.accept().unwrap();
        let tls = ServerConnection::new(config.clone()).unwrap();
        let mut tls = StreamOwned::new(tls, stream);
        assert!(tls.read(&mut [0; 1000]).unwrap() > 0);
        tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        tls.conn.send_close_notify();
        tls.flush().unwrap();
    }
}

#[test]
fn clients_are_answered_by_a_server_with_tls() {
    let Some(netns) = needs::namespace("fallback") else {
        return;
    };
    let listener = listen(&netns);
    let to = listener.local_addr().unwrap();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, CLIENTS));
        come(&netns, to, PATIENCE)
    });
    assert_eq!(result.answered.len(), CLIENTS, "{result:?}");
}

#[test]
fn clients_whom_nobody_hears_are_refused() {
    let Some(netns) = needs::namespace("fallback") else {
        return;
    };
    let to = listen(&netns).local_addr().unwrap();
    assert_eq!(come(&netns, to, PATIENCE).refused, CLIENTS);
}

#[test]
fn clients_whom_nobody_answers_give_up() {
    let Some(netns) = needs::namespace("fallback") else {
        return;
    };
    let listener = listen(&netns);
    let to = listener.local_addr().unwrap();
    let patience = Duration::from_millis(300);
    let begun = Instant::now();
    assert_eq!(come(&netns, to, patience).timed_out, CLIENTS);
    assert!(begun.elapsed() >= patience);
}
