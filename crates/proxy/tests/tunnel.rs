//! Mode tcp, with real sockets: what goes in comes out, ends and resets travel through.

mod common;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{ENGINES, PATIENCE, connect_tcp, end, pattern_of, refusing_address, settings, total};
use socket2::SockRef;
use weir_core::proxy::{Engine, Proxy, ProxyMode};
use weir_proxy::transfer::{RedirectLane, RedirectPair, Redirector, SocketPair, Way};
use weir_proxy::{Server, StartOptions, Totals};

/// A proxy in front of a server of the test.
struct Bench {
    proxy: Server,
    server: TcpListener,
}

impl Bench {
    fn new(engine: Engine) -> Bench {
        Bench::with(|proxy| proxy.engine = engine)
    }

    fn with(change: impl FnOnce(&mut Proxy)) -> Bench {
        Bench::within(StartOptions::default(), change)
    }

    fn within(options: StartOptions, change: impl FnOnce(&mut Proxy)) -> Bench {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = settings(ProxyMode::Tcp, &[server.local_addr().unwrap()]);
        change(&mut settings);
        let proxy = Server::start_with(settings, options).unwrap();
        Bench { proxy, server }
    }

    /// A client's connection and the server's connection that the proxy made for it.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let client = connect_tcp(self.proxy.address());
        let (server, _) = self.server.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    }

    fn end(self) -> Totals {
        end(self.proxy)
    }
}

fn send_then_end(mut stream: TcpStream, bytes: Vec<u8>) -> thread::JoinHandle<TcpStream> {
    thread::spawn(move || {
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream
    })
}

fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn both_ways_carry_every_byte_at_once() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        for (up, down) in [(0, 0), (1, 3_000_000), (70_000, 1), (5_000_000, 5_000_000)] {
            let (client, server) = bench.pair();
            let (forth, back) = (pattern_of(up, 1), pattern_of(down, 2));
            let sending = [
                send_then_end(client.try_clone().unwrap(), forth.clone()),
                send_then_end(server.try_clone().unwrap(), back.clone()),
            ];
            let reading = thread::spawn(move || read_to_end(&server));
            assert!(
                read_to_end(&client) == back,
                "{engine:?}, {down} bytes back"
            );
            assert!(
                reading.join().unwrap() == forth,
                "{engine:?}, {up} bytes forth"
            );
            for thread in sending {
                thread.join().unwrap();
            }
        }
        let totals = bench.end();
        assert_eq!(total(&totals, "bytes_up"), 5_070_001);
        assert_eq!(total(&totals, "bytes_down"), 8_000_001);
        assert_eq!(total(&totals, "transfers_broken"), 0);
    }
}

#[test]
fn messages_of_all_sizes_go_through_before_the_next_one() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (mut client, mut server) = bench.pair();
        for length in [1, 100, 4096, 65_536, 20_000, 300_000, 1, 1, 1, 150_000, 10] {
            let message = pattern_of(length, length as u64);
            let (bytes, mut sender) = (message.clone(), client.try_clone().unwrap());
            let sending = thread::spawn(move || sender.write_all(&bytes).unwrap());
            let mut request = vec![0; length];
            server.read_exact(&mut request).unwrap();
            sending.join().unwrap();
            server.write_all(&request[..length.min(1000)]).unwrap();
            let mut reply = vec![0; length.min(1000)];
            client.read_exact(&mut reply).unwrap();
            assert!(
                request == message && message.starts_with(&reply),
                "{engine:?} {length}"
            );
        }
    }
}

#[test]
fn a_half_that_ends_leaves_the_other_open() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (mut client, mut server) = bench.pair();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&server), b"question");
        server.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        server.write_all(b", and more").unwrap();
        drop(server);
        assert_eq!(read_to_end(&client), b", and more");
    }
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

fn is_reset(mut stream: &TcpStream) -> bool {
    let read = stream.read(&mut [0; 64]);
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn a_reset_is_a_reset_on_the_other_side() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (client, server) = bench.pair();
        reset(client);
        assert!(is_reset(&server), "{engine:?}: from the client");
        let (client, server) = bench.pair();
        reset(server);
        assert!(is_reset(&client), "{engine:?}: from the server");
    }
}

/// A kernel that takes every tunnel, redirects nothing and has no memory.
#[derive(Debug)]
struct Forgetful;

impl Redirector for Forgetful {
    fn lane(&self) -> io::Result<Box<dyn RedirectLane>> {
        let ring = UnixStream::pair()?;
        Ok(Box::new(ForgetfulLane(ring)))
    }
}

struct ForgetfulLane((UnixStream, UnixStream));

impl RedirectLane for ForgetfulLane {
    fn passed_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    fn take_passed(&self) -> Vec<u32> {
        Vec::new()
    }

    fn join(&self, _: SocketPair<'_>) -> Option<Box<dyn RedirectPair>> {
        Some(Box::new(ForgetfulPair))
    }
}

struct ForgetfulPair;

impl RedirectPair for ForgetfulPair {
    fn number(&self) -> u32 {
        0
    }

    fn arm(&self, _: SocketPair<'_>, _: [u64; 2]) -> bool {
        false
    }

    fn disarm(&self, _: SocketPair<'_>) {}

    fn redirected(&self, _: Way) -> u64 {
        0
    }

    fn passed(&self, _: Way) -> u64 {
        0
    }

    fn is_sent(&self, _: Way, _: SocketPair<'_>) -> bool {
        true
    }

    fn has_lost(&self, way: Way) -> bool {
        way == 1
    }

    fn leave(self: Box<Self>, _: SocketPair<'_>) {}
}

#[test]
fn a_tunnel_of_which_the_kernel_lost_bytes_is_reset_on_both_sides() {
    let options = StartOptions {
        redirector: Some(Arc::new(Forgetful)),
        ..StartOptions::default()
    };
    let bench = Bench::within(options, |proxy| proxy.engine = Engine::Sockmap);
    let (mut client, mut server) = bench.pair();
    let mut message = [0; 5];
    let exchange = || {
        client.write_all(b"short")?;
        server.read_exact(&mut message)?;
        server.write_all(&message)?;
        client.read_exact(&mut message)
    };
    // So many short ones make a tunnel one of short messages.
    let broken = std::iter::repeat_with(exchange)
        .take(100)
        .find_map(Result::err);
    let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(ends.contains(&broken.unwrap().kind()));
    // A client that does not know yet learns it now.
    assert!([&client, &server].iter().any(|end| is_reset(end)));
    assert_eq!(total(&bench.end(), "transfers_broken"), 1);
}

#[test]
fn a_reset_after_a_half_close_is_noticed_at_once() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (client, server) = bench.pair();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&server), b"");
        reset(client);
        // A socket whose peer has ended reads an end also after the RST; its error is EPIPE.
        let deadline = Instant::now() + PATIENCE;
        let mut error = None;
        while error.is_none() && Instant::now() < deadline {
            error = server.take_error().unwrap();
        }
        let kind = error.map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::BrokenPipe), "{engine:?}");
    }
}

/// The columns of /proc/net/tcp, a line each: local and remote address, state, queues, timer.
fn sockets() -> Vec<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let columns = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect();
    table.lines().skip(1).map(columns).collect()
}

/// As /proc/net/tcp writes it.
fn name(address: SocketAddr) -> String {
    let SocketAddr::V4(v4) = address else {
        unreachable!("the test listens on 127.0.0.1");
    };
    let host = u32::from_ne_bytes(v4.ip().octets());
    format!("{host:08X}:{:04X}", v4.port())
}

/// Whether the receiver has closed its window: bytes wait, and all that is sent are probes (timer 04).
fn is_held_back(sender: &TcpStream) -> bool {
    let local = name(sender.local_addr().unwrap());
    let remote = name(sender.peer_addr().unwrap());
    sockets()
        .iter()
        .any(|columns| columns[1] == local && columns[2] == remote && columns[5].starts_with("04:"))
}

fn is_listened_on(address: SocketAddr) -> bool {
    const LISTEN: &str = "0A";
    let local = name(address);
    sockets()
        .iter()
        .any(|columns| columns[1] == local && columns[3] == LISTEN)
}

#[test]
fn a_reader_that_pauses_gets_every_byte_and_holds_the_sender_back() {
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (client, mut server) = bench.pair();
        let bytes = pattern_of(64 << 20, 9);
        server.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while !is_held_back(&server) {
            match server.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            assert!(
                sent < bytes.len(),
                "{engine:?}: all was taken, and the server reads nothing"
            );
        }
        server.set_nonblocking(false).unwrap();
        let rest = send_then_end(server, bytes[sent..].to_vec());
        assert!(read_to_end(&client) == bytes, "{engine:?}");
        rest.join().unwrap();
    }
}

#[test]
fn a_silent_tunnel_is_closed_after_the_idle_time() {
    let bench = Bench::with(|proxy| proxy.idle_timeout = Duration::from_millis(50));
    let (client, server) = bench.pair();
    assert_eq!(read_to_end(&client), b"");
    assert_eq!(read_to_end(&server), b"");
    assert_eq!(total(&bench.end(), "timed_out"), 1);
}

#[test]
fn a_client_without_a_server_is_reset() {
    let (_held, refusing) = refusing_address();
    let bench = Bench::with(|proxy| proxy.backends = vec![refusing.into()]);
    assert!(is_reset(&connect_tcp(bench.proxy.address())));
}

#[test]
fn the_next_server_takes_over_when_one_does_not_listen() {
    let (_held, refusing) = refusing_address();
    let bench = Bench::with(|proxy| proxy.backends.insert(0, refusing.into()));
    for _ in 0..4 {
        let (mut client, server) = bench.pair();
        client.write_all(b"hello").unwrap();
        drop(client);
        assert_eq!(read_to_end(&server), b"hello");
    }
}

#[test]
fn a_drain_lets_tunnels_finish_and_takes_no_new_ones() {
    let mut bench = Bench::new(Engine::Auto);
    let (mut client, server) = bench.pair();
    let address = bench.proxy.address();
    bench.proxy.drain(PATIENCE);
    while is_listened_on(address) {
        thread::yield_now();
    }
    assert!(TcpStream::connect(address).is_err());
    client.write_all(b"still here").unwrap();
    drop(client);
    assert_eq!(read_to_end(&server), b"still here");
    drop(server);
    assert_eq!(total(&bench.proxy.join().unwrap(), "transfers_broken"), 0);
}

#[test]
fn a_drain_without_time_cuts_tunnels() {
    let mut bench = Bench::new(Engine::Auto);
    let (client, _server) = bench.pair();
    bench.proxy.drain(Duration::ZERO);
    bench.proxy.join().unwrap();
    assert_eq!(read_to_end(&client), b"");
}

#[test]
fn a_small_message_goes_on_at_once_after_bulk_too() {
    const MESSAGES: u32 = 50;
    for engine in ENGINES {
        let bench = Bench::new(engine);
        let (mut client, mut server) = bench.pair();
        let bulk = pattern_of(4_000_000, 3);
        let sending = {
            let (mut server, bulk) = (server.try_clone().unwrap(), bulk.clone());
            thread::spawn(move || server.write_all(&bulk).unwrap())
        };
        let mut received = vec![0; bulk.len()];
        client.read_exact(&mut received).unwrap();
        sending.join().unwrap();
        assert!(received == bulk);
        let begun = Instant::now();
        let mut message = [0; 10];
        for _ in 0..MESSAGES {
            server.write_all(&[1; 10]).unwrap();
            client.read_exact(&mut message).unwrap();
            client.write_all(&[2; 10]).unwrap();
            server.read_exact(&mut message).unwrap();
        }
        // What is held back for more, or for a low water mark, waits 20 ms at least.
        let limit = MESSAGES * Duration::from_millis(10);
        assert!(begun.elapsed() < limit, "{engine:?}: {:?}", begun.elapsed());
        drop((client, server));
        bench.end();
    }
}
