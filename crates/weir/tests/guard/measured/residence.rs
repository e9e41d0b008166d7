//! Servers that queue inside: they accept at once, and eight requests at a time wait for something of 50 ms.

mod classes;
mod halves;
mod late;
mod upstream;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use weir_core::residence::GATE_HOLDS;
use weir_testbed::wait::Stops;

use super::fates::Fates;
use crate::common::{Bed, PATIENCE, PORT, listen, until, within};

const WORKERS: usize = 8;
const SERVICE: Duration = Duration::from_millis(50);
/// Answers in a second, at most.
const CAPACITY: f64 = 160.0;
const REQUEST: [u8; 16] = [b'q'; 16];
/// The first byte of requests that the server does not answer: uploads that go on, and long polls.
const UPLOAD: u8 = b'u';
const POLL: u8 = b'p';

/// A server with its queue inside.
struct Pool {
    listener: TcpListener,
    queue: Mutex<VecDeque<TcpStream>>,
    came: Condvar,
    /// Answered, for the next request.
    back: Mutex<Vec<TcpStream>>,
    /// Uploads and long polls.
    held: Mutex<Vec<TcpStream>>,
    stop: AtomicBool,
    outstanding: AtomicU64,
    answered: AtomicU64,
    /// It says something as soon as a request has come, as TLS 1.3 sends its tickets.
    chatty: bool,
    /// It closes the connections of clients that have gone, and leaves out their requests.
    skips: bool,
    answer: &'static [u8],
}

impl Pool {
    fn new(bed: &Bed, chatty: bool) -> Pool {
        Pool::at(bed, IpAddr::V4(Ipv4Addr::UNSPECIFIED), chatty)
    }

    fn at(bed: &Bed, ip: IpAddr, chatty: bool) -> Pool {
        let listener = listen(bed.server(), SocketAddr::new(ip, PORT), 1024);
        listener.set_nonblocking(true).unwrap();
        Pool {
            listener,
            queue: Mutex::default(),
            came: Condvar::new(),
            back: Mutex::default(),
            held: Mutex::default(),
            stop: AtomicBool::new(false),
            outstanding: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            chatty,
            skips: false,
            answer: b"x",
        }
    }

    /// One that answers in HTTP.
    fn of_http(bed: &Bed) -> Pool {
        Pool {
            answer: b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            ..Pool::new(bed, false)
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Accepts, and reads requests: the next one of each connection too.
    fn read(&self) {
        let mut idle: Vec<TcpStream> = Vec::new();
        let mut looked = Instant::now();
        while !self.stopped() {
            if self.skips && looked.elapsed() >= SERVICE {
                looked = Instant::now();
                self.queue
                    .lock()
                    .unwrap()
                    .retain(|stream| !has_gone(stream));
            }
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(true).unwrap();
                idle.push(stream);
            }
            idle.extend(self.back.lock().unwrap().drain(..));
            idle.retain_mut(|stream| !self.take(stream));
            self.held.lock().unwrap().retain_mut(|stream| {
                // A client that has left is noticed.
                !matches!(stream.read(&mut [0; 4096]), Ok(0))
            });
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the connection is idle no longer.
    fn take(&self, stream: &mut TcpStream) -> bool {
        let mut request = [0; 4096];
        match stream.read(&mut request) {
            Ok(n) if n > 0 && [UPLOAD, POLL].contains(&request[0]) => {
                self.held.lock().unwrap().push(stream.try_clone().unwrap());
                true
            }
            Ok(n) if n > 0 => {
                if self.chatty {
                    let _ = stream.write_all(b"t");
                }
                self.outstanding.fetch_add(1, Ordering::Relaxed);
                self.queue
                    .lock()
                    .unwrap()
                    .push_back(stream.try_clone().unwrap());
                self.came.notify_one();
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            _ => true,
        }
    }

    fn work(&self) {
        // By the clock, so that a busy machine does not make it slower.
        let mut free_at = Instant::now();
        while let Some(mut stream) = self.next() {
            free_at = free_at.max(Instant::now() - SERVICE / 10) + SERVICE;
            thread::sleep(free_at.saturating_duration_since(Instant::now()));
            let _ = stream.write_all(self.answer);
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            self.answered.fetch_add(1, Ordering::Relaxed);
            self.back.lock().unwrap().push(stream);
        }
    }

    fn next(&self) -> Option<TcpStream> {
        let mut queue = self.queue.lock().unwrap();
        loop {
            if self.stopped() {
                return None;
            }
            if let Some(stream) = queue.pop_front() {
                return Some(stream);
            }
            let wait = Duration::from_millis(50);
            queue = self.came.wait_timeout(queue, wait).unwrap().0;
        }
    }

    /// Serves while `during` runs.
    fn serve<T>(&self, during: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            scope.spawn(|| self.read());
            for _ in 0..WORKERS {
                scope.spawn(|| self.work());
            }
            let _stop = Stops(&self.stop);
            during()
        })
    }

    /// What is outstanding on average, and answered in a second, from now on for so long.
    fn truth(&self, length: Duration) -> (f64, f64) {
        let (begun, before) = (Instant::now(), self.answered.load(Ordering::Relaxed));
        let (mut sum, mut looks) = (0, 0);
        while begun.elapsed() < length {
            sum += self.outstanding.load(Ordering::Relaxed);
            looks += 1;
            thread::sleep(Duration::from_millis(5));
        }
        let answered = self.answered.load(Ordering::Relaxed) - before;
        (
            sum as f64 / f64::from(looks),
            answered as f64 / begun.elapsed().as_secs_f64(),
        )
    }
}

fn has_gone(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_ok_and(|n| n == 0)
}

/// Sends a request and waits for so many bytes.
fn ask(stream: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    stream.write_all(&REQUEST)?;
    stream.read_exact(&mut vec![0; bytes])
}

/// Clients that come by chance, `rate` a second, with a connection and a request each, for so long.
fn come(rate: f64, address: SocketAddr, bytes: usize, length: Duration) -> Fates {
    come_after(Duration::ZERO, rate, address, bytes, length)
}

/// The same; those that come before `warm_up` do not count.
fn come_after(
    warm_up: Duration,
    rate: f64,
    address: SocketAddr,
    bytes: usize,
    length: Duration,
) -> Fates {
    let fates = Fates::asking(PATIENCE, &REQUEST, bytes);
    fates.come(33, rate, address, warm_up, length);
    fates
}

fn residence(bed: &Bed) -> Value {
    bed.status()["listeners"][0]["residence"].clone()
}

fn figure(seen: &Value, name: &str) -> f64 {
    seen[name].as_f64().unwrap_or(f64::NAN)
}

/// What weir sees is within a quarter of the truth.
fn is_near(bed: &Bed, (outstanding, per_second): (f64, f64)) -> Value {
    let seen = residence(bed);
    let truth = format!("in truth {outstanding:.1} outstanding, {per_second:.1}/s: {seen:#}");
    println!("{truth}");
    let near = |seen: f64, truth: f64| (seen - truth).abs() <= 0.25 * truth;
    assert!(near(figure(&seen, "outstanding"), outstanding), "{truth}");
    let w = figure(&seen, "residence_us") / 1e6;
    assert!(near(w, outstanding / per_second), "{truth}");
    assert!(
        near(figure(&seen, "answers_per_second"), per_second),
        "{truth}"
    );
    seen
}

const CONFIG: &str = "[[listener]]\nname = \"web\"\naddress = \"*:8080\"\nmode = \"observe\"\nresidence = \"observe\"\n";

#[test]
fn what_is_outstanding_and_how_long_it_stays_is_seen_within_a_quarter() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(CONFIG);
    let path = bed.veth4();
    let pool = Pool::new(&bed, false);
    pool.serve(|| {
        for (load, looked_s, inside) in [(0.8, 8, false), (1.5, 3, true)] {
            let length = Duration::from_secs(7 + looked_s);
            let looked = Duration::from_secs(looked_s);
            thread::scope(|scope| {
                scope.spawn(|| {
                    within(path.client, || {
                        come(load * CAPACITY, path.at(PORT), 1, length)
                    });
                });
                thread::sleep(length - looked);
                let truth = pool.truth(looked);
                let seen = is_near(&bed, truth);
                assert_eq!(seen["queue_inside"], inside, "{load}: {seen:#}");
                assert_eq!(seen["blind"], false, "{load}: {seen:#}");
                if inside {
                    let text = bed.weir("status").stdout;
                    let text = String::from_utf8_lossy(&text);
                    assert!(text.contains("the queue is inside the server"), "{text}");
                }
            });
        }
    });
}

/// The next request comes within the tick in which the answer went.
#[test]
fn requests_on_connections_that_stay_are_seen_too() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(CONFIG);
    let path = bed.veth4();
    let pool = Pool::new(&bed, false);
    let connections = 24;
    pool.serve(|| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| {
                    let connected = || TcpStream::connect(path.at(PORT)).unwrap();
                    let mut stream = within(path.client, connected);
                    while !stop.load(Ordering::Relaxed) {
                        ask(&mut stream, 1).unwrap();
                    }
                });
            }
            let _stop = Stops(&stop);
            thread::sleep(Duration::from_secs(3));
            let truth = pool.truth(Duration::from_secs(4));
            is_near(&bed, truth);
        });
        // Connections that stand and ask for nothing.
        let idle: Vec<TcpStream> = (0..50)
            .map(|_| within(path.client, || TcpStream::connect(path.at(PORT)).unwrap()))
            .collect();
        until("what was outstanding is answered", || {
            (figure(&residence(&bed), "outstanding") == 0.0).then_some(())
        });
        drop(idle);
    });
}

#[test]
fn a_server_that_speaks_before_it_answers_is_said_to_be_blind() {
    let Some(bed) = Bed::new() else { return };
    let _weir = bed.run(CONFIG);
    let path = bed.veth4();
    let pool = Pool::new(&bed, true);
    pool.serve(|| {
        within(path.client, || {
            come(0.9 * CAPACITY, path.at(PORT), 2, Duration::from_secs(4));
        });
        let seen = residence(&bed);
        assert_eq!(seen["blind"], true, "{seen:#}");
        assert_eq!(seen["queue_inside"], false, "{seen:#}");
    });
}

fn limited(mode: &str) -> String {
    format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nmode = \"{mode}\"\nresidence = \"250ms\"\n"
    )
}

fn refused(bed: &Bed) -> u64 {
    let counters = &bed.status()["listeners"][0]["counters"];
    counters["syn_reset_residence"].as_u64().unwrap_or(0)
}

#[test]
fn a_server_that_queues_inside_is_kept_busy_and_nobody_gives_up() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    for load in [0.8, 1.5, 3.0] {
        let _weir = bed.run(&limited("enforce"));
        let pool = Pool::new(&bed, false);
        pool.serve(|| {
            let (warm_up, length) = (Duration::from_secs(8), Duration::from_secs(10));
            let (fates, per_s) = thread::scope(|scope| {
                let clients = scope.spawn(|| {
                    within(path.client, || {
                        come_after(warm_up, load * CAPACITY, path.at(PORT), 1, length)
                    })
                });
                thread::sleep(warm_up);
                let (_, per_s) = pool.truth(length);
                (clients.join().unwrap(), per_s)
            });
            let [served, refused, lost] = fates.counts();
            let (p50, p99) = (fates.quantile(0.5), fates.quantile(0.99));
            let seen = format!(
                "{load}: {per_s:.1}/s, {served} served, {refused} refused, {lost} lost, p50 {p50:?}, p99 {p99:?}\n{:#}",
                residence(&bed),
            );
            println!("{seen}");
            assert_eq!(lost, 0, "{seen}");
            if load < 1.0 {
                assert_eq!(self::refused(&bed), 0, "{seen}");
                return;
            }
            assert!(per_s >= 0.95 * CAPACITY, "{seen}");
            assert!(p99 <= Duration::from_millis(600), "{seen}");
            assert!(p50 <= Duration::from_millis(400), "{seen}");
            let share = refused as f64 / (served + refused) as f64;
            assert!((share - (1.0 - 1.0 / load)).abs() <= 0.1, "{seen}");
        });
    }
}

/// Clients whose requests take no place among those that wait, for so long: they come one after the other.
fn beside(address: SocketAddr, uploads: usize, polls: usize, length: Duration) {
    let begin = |first: u8| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[first; 16]).unwrap();
        stream
    };
    let (mut uploading, mut polling) = (Vec::new(), Vec::new());
    let (begun, mut turn) = (Instant::now(), 0);
    while begun.elapsed() < length {
        turn += 1;
        match turn % 4 {
            0 if uploading.len() < uploads => uploading.push(begin(UPLOAD)),
            2 if polling.len() < polls => polling.push(begin(POLL)),
            _ => {}
        }
        for stream in &mut uploading {
            stream.write_all(&[UPLOAD; 500]).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn uploads_long_polls_and_idle_connections_refuse_nobody() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _weir = bed.run(&limited("enforce"));
    let pool = Pool::new(&bed, false);
    let length = Duration::from_secs(12);
    pool.serve(|| {
        let idle: Vec<TcpStream> = (0..60)
            .map(|_| within(path.client, || TcpStream::connect(path.at(PORT)).unwrap()))
            .collect();
        let fates = thread::scope(|scope| {
            scope.spawn(|| within(path.client, || beside(path.at(PORT), 60, 60, length)));
            within(path.client, || {
                come(0.8 * CAPACITY, path.at(PORT), 1, length)
            })
        });
        drop(idle);
        let seen = format!("{:?} {:#}", fates.counts(), residence(&bed));
        assert_eq!(refused(&bed), 0, "{seen}");
        assert_eq!(fates.counts()[1..], [0, 0], "{seen}");
    });
}

#[test]
fn bursts_on_an_idle_server_come_in_and_what_would_be_refused_is_counted() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    {
        let _weir = bed.run(&limited("enforce"));
        let pool = Pool::new(&bed, false);
        pool.serve(|| {
            for _ in 0..4 {
                let fates = Fates::asking(PATIENCE, &REQUEST, 1);
                within(path.client, || {
                    thread::scope(|scope| {
                        for _ in 0..100 {
                            scope.spawn(|| fates.client(path.at(PORT), true));
                        }
                    });
                });
                assert_eq!(fates.counts(), [100, 0, 0]);
            }
        });
    }
    let _weir = bed.run(&limited("observe"));
    let pool = Pool::new(&bed, false);
    pool.serve(|| {
        let length = Duration::from_secs(8);
        let fates = within(path.client, || {
            come(2.0 * CAPACITY, path.at(PORT), 1, length)
        });
        assert_eq!(fates.counts()[1], 0, "none is refused");
        assert!(refused(&bed) > 100, "{:#}", bed.status());
    });
}

/// What is refused is by figures of the daemon's: they do not outlive it by much.
#[test]
fn a_daemon_that_stands_still_refuses_nobody_for_long() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let weir = bed.run(&limited("enforce"));
    let pool = Pool::new(&bed, false);
    pool.serve(|| {
        let length = Duration::from_secs(6);
        within(path.client, || {
            come(3.0 * CAPACITY, path.at(PORT), 1, length)
        });
        assert!(refused(&bed) > 100);
        weir.signal(Signal::SIGSTOP);
        thread::sleep(GATE_HOLDS);
        let fates = within(path.client, || {
            come(3.0 * CAPACITY, path.at(PORT), 1, Duration::from_secs(1))
        });
        weir.signal(Signal::SIGCONT);
        assert_eq!(fates.counts()[1], 0, "none is refused");
    });
}

#[test]
fn where_requests_cannot_be_seen_nobody_is_refused() {
    let Some(bed) = Bed::new() else { return };
    let path = bed.veth4();
    let _weir = bed.run(&limited("enforce"));
    let pool = Pool::new(&bed, true);
    pool.serve(|| {
        let length = Duration::from_secs(6);
        let fates = within(path.client, || {
            come(1.5 * CAPACITY, path.at(PORT), 2, length)
        });
        assert_eq!(fates.counts()[1], 0, "none is refused");
        let text = bed.weir("status").stdout;
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("so weir refuses nobody for them"), "{text}");
    });
}
