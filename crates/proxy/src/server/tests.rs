//! Claims about the life of the threads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_core::proxy::{Proxy, ProxyMode};

use super::command::Command;
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut stream);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    address
}

fn settings(threads: u32) -> Proxy {
    let mut settings = Proxy::new("test", "127.0.0.1:0".parse().unwrap(), ProxyMode::Tcp);
    settings.threads = threads;
    settings.backends = vec![echo().into()];
    settings
}

fn started(threads: u32) -> (Server, Waker) {
    let waker = Waker::new().unwrap();
    let options = StartOptions {
        sockets: None,
        waker: Some(waker.clone()),
        ..StartOptions::default()
    };
    let server = Server::start_with(settings(threads), options).unwrap();
    (server, waker)
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_served(stream: &mut TcpStream) -> bool {
    let mut answer = [0];
    let served = stream
        .write_all(b"x")
        .and_then(|()| stream.read_exact(&mut answer));
    served.is_ok()
}

fn wait_for(waker: &Waker) {
    let fd = waker.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as _,
        tv_nsec: 0,
    };
    assert_eq!(
        poll(&mut fds, Some(&patience)),
        Ok(1),
        "no thread has ended"
    );
    waker.clear();
}

/// Lets a thread panic and restarts it.
fn panic_in(server: &mut Server, waker: &Waker, index: usize) -> Result<(), Error> {
    server.threads[index].commands.send(Command::Panic);
    wait_for(waker);
    server.restart_failed()
}

#[test]
fn a_thread_that_panics_is_started_again_and_the_others_do_not_notice() {
    let (mut server, waker) = started(2);
    let mut clients: Vec<TcpStream> = (0..32).map(|_| connect(&server)).collect();
    assert!(clients.iter_mut().all(is_served));
    panic_in(&mut server, &waker, 0).unwrap();
    let survivors = clients
        .iter_mut()
        .filter_map(|client| is_served(client).then_some(()));
    assert!(
        (1..32).contains(&survivors.count()),
        "one of two threads panicked"
    );
    assert!((0..32).all(|_| is_served(&mut connect(&server))));
    let restarts: Vec<u64> = server.threads().map(|thread| thread.restarts).collect();
    assert_eq!(restarts, [1, 0]);
}

#[test]
fn a_client_that_waits_for_a_thread_that_panics_is_served_by_the_next() {
    let (mut server, waker) = started(1);
    server.threads[0].commands.send(Command::Panic);
    wait_for(&waker);
    let mut waiting: Vec<TcpStream> = (0..8).map(|_| connect(&server)).collect();
    server.restart_failed().unwrap();
    assert!(waiting.iter_mut().all(is_served));
}

#[test]
fn a_thread_that_does_nothing_but_panic_ends_the_proxy() {
    let (mut server, waker) = started(1);
    let end = (0..100).find_map(|_| panic_in(&mut server, &waker, 0).err());
    let said = end.expect("it is given up").to_string();
    assert_eq!(said, "thread 0 failed: panicked: as commanded");
    assert_eq!(server.threads().next().unwrap().state, ThreadState::Ended);
}

#[test]
fn a_successor_on_the_same_sockets_loses_nobody() {
    let (mut old, _waker) = started(2);
    let mut connected: Vec<TcpStream> = (0..8).map(|_| connect(&old)).collect();
    assert!(connected.iter_mut().all(is_served));
    let options = StartOptions {
        sockets: Some(old.sockets().unwrap().try_clone().unwrap()),
        waker: None,
        ..StartOptions::default()
    };
    let mut next = settings(3);
    next.idle_timeout = Duration::from_secs(7);
    let mut new = Server::start_with(next, options).unwrap();
    assert_eq!(new.address(), old.address());
    old.retire();
    let mut later: Vec<TcpStream> = (0..32).map(|_| connect(&new)).collect();
    assert!(later.iter_mut().all(is_served));
    assert!(connected.iter_mut().all(is_served), "tunnels go on");
    drop(connected);
    // The old server may have accepted some of the later clients.
    drop(later);
    assert!(old.join().is_ok());
    new.drain(PATIENCE);
    assert!(new.join().is_ok());
}

#[test]
fn a_drain_serves_clients_that_wait_in_the_queue() {
    let mut settings = settings(1);
    settings.max_clients = 1;
    let mut server = Server::start(settings).unwrap();
    let mut first = connect(&server);
    assert!(is_served(&mut first));
    // The one thread has all the clients that it may have.
    let mut waiting: Vec<TcpStream> = (0..8).map(|_| connect(&server)).collect();
    server.drain(PATIENCE);
    assert!(waiting.iter_mut().all(is_served));
    drop((first, waiting));
    assert!(server.join().is_ok());
}

#[test]
fn engine_sockmap_is_refused_where_nothing_redirects() {
    let mut sockmap = settings(1);
    sockmap.engine = weir_core::proxy::Engine::Sockmap;
    let error = Server::start(sockmap).unwrap_err();
    assert!(error.to_string().contains("engine"), "{error}");
}
