//! How clients fare that come by chance, each with a connection of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Fates {
    /// How long a client waits for its connection, and for each answer.
    patience: Duration,
    /// What it asks, and how many bytes it waits for.
    request: &'static [u8],
    answer: usize,
    pub came: AtomicU64,
    pub refused: AtomicU64,
    pub lost: AtomicU64,
    /// Time from connect() to the answer of those that were served.
    pub times: Mutex<Vec<Duration>>,
}

impl Fates {
    /// Of clients that say nothing and wait for a byte.
    pub fn new(patience: Duration) -> Fates {
        Fates::asking(patience, b"", 1)
    }

    pub fn asking(patience: Duration, request: &'static [u8], answer: usize) -> Fates {
        Fates {
            patience,
            request,
            answer,
            came: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            times: Mutex::new(Vec::new()),
        }
    }

    /// One client; `counts`: it came when all had converged.
    pub fn client(&self, address: SocketAddr, counts: bool) {
        let begun = Instant::now();
        let fate = TcpStream::connect_timeout(&address, self.patience).and_then(|mut stream| {
            stream.set_read_timeout(Some(self.patience))?;
            stream.write_all(self.request)?;
            stream.read_exact(&mut vec![0; self.answer])
        });
        if !counts {
            return;
        }
        self.came.fetch_add(1, Ordering::Relaxed);
        match fate.map_err(|error| error.kind()) {
            Ok(()) => self.times.lock().unwrap().push(begun.elapsed()),
            Err(ErrorKind::ConnectionRefused) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Clients that come by chance, `rate` a second, from now until `warm_up` and `length` have gone by. The first do not
    /// count.
    pub fn come(
        &self,
        seed: u64,
        rate: f64,
        address: SocketAddr,
        warm_up: Duration,
        length: Duration,
    ) {
        let mut random = seed;
        let begun = Instant::now();
        let mut due = Duration::ZERO;
        thread::scope(|scope| {
            loop {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let unit = ((random >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
                due += Duration::from_secs_f64(-unit.ln() / rate);
                if due > warm_up + length {
                    break;
                }
                thread::sleep(due.saturating_sub(begun.elapsed()));
                let counts = due > warm_up;
                let small = thread::Builder::new().stack_size(256 << 10);
                small
                    .spawn_scoped(scope, move || self.client(address, counts))
                    .unwrap();
            }
        });
    }

    pub fn of(&self, count: fn(&Fates) -> &AtomicU64) -> f64 {
        count(self).load(Ordering::Relaxed) as f64
    }

    /// Served, refused, and neither.
    pub fn counts(&self) -> [u64; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let served = self.times.lock().unwrap().len() as u64;
        [served, of(&self.refused), of(&self.lost)]
    }

    /// The time that this share of the served did not exceed; zero if none was.
    pub fn quantile(&self, share: f64) -> Duration {
        let mut times = self.times.lock().unwrap().clone();
        times.sort();
        let at = (times.len() as f64 * share) as usize;
        times.get(at).copied().unwrap_or_default()
    }
}
