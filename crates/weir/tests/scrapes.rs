//! Scrapers that are slow, or do not read, delay no other: at the real guard and at real proxies.

#[allow(dead_code, reason = "the other tests use the rest of it")]
mod common;

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_testbed::needs::own_namespace;
use weir_testbed::wait;

use common::{Folder, PATIENCE, Running, SCRAPE, scrape};

/// Of each kind.
const SLOW: usize = 50;
/// A scrape takes some milliseconds; a server that waits for one slow client takes seconds.
const PROMPT: Duration = Duration::from_secs(2);

/// A weir with this config file.
fn start(folder: &Folder, command: &str, config: &str) -> Running {
    folder.write_config(config);
    Running::start(folder, command)
}

/// A loopback address that nobody listens on.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn wait_for_endpoint(address: SocketAddr) {
    wait::try_until(PATIENCE, || scrape(address).ok()).expect("the endpoint answers");
}

/// Clients that hold their connections for as long as they can, and connect again when they lose them: half of them
/// send a byte of an endless head now and then, the others ask and do not read.
struct SlowScrapers {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl SlowScrapers {
    fn start(address: SocketAddr) -> SlowScrapers {
        let connect = move |asks: bool| {
            let mut stream = TcpStream::connect(address).unwrap();
            let first = if asks {
                SCRAPE
            } else {
                b"GET /metrics HTTP/1.1\r\nx:"
            };
            // One that was closed at once is connected again in the next round.
            let _ = stream.write_all(first);
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut clients: Vec<(bool, TcpStream)> = (0..2 * SLOW)
            .map(|number| (number % 2 == 0, connect(number % 2 == 0)))
            .collect();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let pause = Duration::from_millis(50);
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                for (asks, stream) in &mut clients {
                    let is_lost = match *asks {
                        true => is_closed(stream),
                        false => stream.write(b"x").is_err(),
                    };
                    if is_lost {
                        *stream = connect(*asks);
                    }
                }
            }
        });
        SlowScrapers { stop, thread }
    }

    fn end(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

/// Whether the other side has closed or reset; what it has sent stays unread.
fn is_closed(stream: &TcpStream) -> bool {
    match stream.take_error() {
        Ok(None) => {}
        _ => return true,
    }
    match stream.peek(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// An honest scraper beside the slow ones.
fn honest_scrapes_are_prompt(address: SocketAddr, folder: &Folder, sample: &str) {
    wait_for_endpoint(address);
    let slow = SlowScrapers::start(address);
    for _ in 0..10 {
        let began = Instant::now();
        let answer = scrape(address).unwrap();
        let took = began.elapsed();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(sample) && answer.ends_with("# EOF\n"));
        assert!(took < PROMPT, "a scrape took {took:?}");
        // The thread that answers scrapes answers commands too.
        let began = Instant::now();
        folder.status();
        assert!(began.elapsed() < PROMPT);
    }
    slow.end();
}

#[test]
fn a_hundred_slow_scrapers_of_the_guard_do_not_delay_an_honest_one() {
    if !own_namespace() {
        return;
    }
    let folder = Folder::new("scrapes-guard");
    let address = free_address();
    let mut config = format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:8081\"\n[metrics]\nlisten = \"{address}\"\n"
    );
    // More than the socket buffers hold, so that a client that does not read is not done.
    for number in 0..400 {
        let (high, low) = (number / 200, number % 200);
        let _ = write!(
            config,
            "[[class]]\nname = \"c{number}\"\nlistener = \"web\"\nfrom = \"10.{high}.{low}.0/24\"\n"
        );
    }
    let _guard = start(&folder, "run --config weir.toml", &config);
    folder.until(|status| status["running"] == true);
    let sample = "\nweir_syn_admitted_total{listener=\"web\"} ";
    honest_scrapes_are_prompt(address, &folder, sample);
}

#[test]
fn a_hundred_slow_scrapers_of_proxies_do_not_delay_an_honest_one() {
    let folder = Folder::new("scrapes-proxy");
    let address = free_address();
    let mut config = format!("[metrics]\nlisten = \"{address}\"\n");
    for number in 0..8 {
        let _ = write!(
            config,
            "[[proxy]]\nname = \"p{number}\"\nlisten = \"127.0.0.1:0\"\nmode = \"forward\"\nthreads = 1\n"
        );
    }
    let _proxies = start(&folder, "proxy --config weir.toml", &config);
    let sample = "\nweir_proxy_requests_total{proxy=\"p7\"} ";
    honest_scrapes_are_prompt(address, &folder, sample);
}

#[test]
fn a_head_without_end_and_one_that_is_too_long_are_refused() {
    let folder = Folder::new("scrapes-heads");
    let address = free_address();
    let config = format!(
        "[metrics]\nlisten = \"{address}\"\n[[proxy]]\nlisten = \"127.0.0.1:0\"\nmode = \"forward\"\nthreads = 1\n"
    );
    let _proxies = start(&folder, "proxy --config weir.toml", &config);
    wait_for_endpoint(address);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let line = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n", "x".repeat(64 * 1024));
    let _ = stream.write_all(line.as_bytes());
    let mut answer = [0; 12];
    // Bytes that the server does not read may reset what it has answered.
    match stream.read_exact(&mut answer) {
        Ok(()) => assert_eq!(&answer, b"HTTP/1.1 431"),
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
            ),
            "{error}"
        ),
    }
    let mut silent = TcpStream::connect(address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = silent.write_all(b"GET /metrics HTTP/1.1\r\n");
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).unwrap();
    assert!(
        !rest.starts_with(b"HTTP/1.1 200"),
        "a request is not over before its head"
    );
}
