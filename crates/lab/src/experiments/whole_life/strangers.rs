//! Clients that never want a reply: those that half-close, before a request or behind it, and those that abort while they
//! wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use socket2::SockRef;

use super::site::{ABORTS_AFTER, SITE, STRANGERS, STRANGERS_PER_S};
use crate::client::{Pattern, Schedule, new_histogram};
use crate::error::Result;
use crate::interrupt;
use crate::load::clients;

/// Distance of two looks at all of them.
const TURN: Duration = Duration::from_millis(2);

/// What a stranger does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Sends a FIN and nothing else, and waits for the server's end.
    Silent,
    /// Sends a request and a FIN right behind it, and waits for the server's end.
    Asks,
    /// Sends a request, and a RST some time later.
    Aborts,
}

const KINDS: [Kind; 3] = [Kind::Silent, Kind::Asks, Kind::Aborts];

/// What became of them.
#[derive(Debug)]
pub struct Strangers {
    /// All that began.
    pub begun: u64,
    /// RST to their SYN.
    pub refused: u64,
    /// Those that asked and half-closed.
    pub asked: u64,
    /// Of them, those that the server answered.
    pub answered: u64,
    /// From the FIN of those that half-closed to the server's end of their connection, µs: FIN or RST.
    pub ended_us: Histogram<u64>,
    /// Half-closed connections that the server had not ended when their client gave up.
    pub left: u64,
}

impl Strangers {
    fn new() -> Strangers {
        Strangers {
            begun: 0,
            refused: 0,
            asked: 0,
            answered: 0,
            ended_us: new_histogram(),
            left: 0,
        }
    }
}

#[derive(Debug)]
struct Stranger {
    kind: Kind,
    stream: TcpStream,
    begun: Instant,
    /// When its FIN went, or, of one that aborts, its request.
    sent: Option<Instant>,
    answered: bool,
}

/// They come for so long, by chance, and all are gone after their patience.
pub fn run(length: Duration, patience: Duration, seed: u64) -> Result<Strangers> {
    let mut random = fastrand::Rng::with_seed(seed);
    let rate_per_s = STRANGERS_PER_S * KINDS.len() as f64;
    let mut schedule = Schedule::new(Pattern::Poisson { seed }, rate_per_s);
    let mut counted = Strangers::new();
    let mut here: Vec<Stranger> = Vec::new();
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        let now = begun.elapsed();
        while now < length && Duration::from_nanos(schedule.due_ns()) <= now {
            schedule.advance();
            let kind = KINDS[(counted.begun % KINDS.len() as u64) as usize];
            counted.begun += 1;
            counted.asked += u64::from(kind == Kind::Asks);
            let stream = clients::connect(SocketAddr::from(SITE), Some(STRANGERS), &mut random);
            here.extend(stream.ok().map(|stream| Stranger {
                kind,
                stream,
                begun: Instant::now(),
                sent: None,
                answered: false,
            }));
        }
        here.retain_mut(|stranger| stranger.goes_on(patience, &mut counted));
        if now >= length && here.is_empty() {
            return Ok(counted);
        }
        std::thread::sleep(TURN);
    }
}

impl Stranger {
    /// Does what it can now; whether it stays.
    fn goes_on(&mut self, patience: Duration, counted: &mut Strangers) -> bool {
        let Some(sent) = self.sent else {
            return self.begins(patience, counted);
        };
        if self.kind == Kind::Aborts {
            let is_due = sent.elapsed() >= ABORTS_AFTER;
            if is_due {
                // Without linger, close() sends a RST.
                let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            }
            return !is_due;
        }
        let ended = self.has_ended();
        if ended {
            let us = sent.elapsed().as_micros() as u64;
            counted.ended_us.saturating_record(us.max(1));
        }
        let gives_up = !ended && self.begun.elapsed() >= patience;
        counted.left += u64::from(gives_up);
        let stays = !ended && !gives_up;
        counted.answered += u64::from(!stays && self.answered && self.kind == Kind::Asks);
        stays
    }

    /// Sends what it has to send, once the connection stands.
    fn begins(&mut self, patience: Duration, counted: &mut Strangers) -> bool {
        if let Ok(Some(error)) = self.stream.take_error() {
            counted.refused += u64::from(error.kind() == ErrorKind::ConnectionRefused);
            return false;
        }
        if self.stream.peer_addr().is_err() {
            return self.begun.elapsed() < patience;
        }
        let request = clients::request("site", "/", false);
        let done = match self.kind {
            Kind::Silent => self.stream.shutdown(Shutdown::Write),
            // It fits into the socket's buffer.
            Kind::Asks => {
                let written = self.stream.write_all(&request);
                written.and_then(|()| self.stream.shutdown(Shutdown::Write))
            }
            Kind::Aborts => self.stream.write_all(&request),
        };
        self.sent = Some(Instant::now());
        // Reset meanwhile.
        done.is_ok()
    }

    /// Reads what there is; whether that is the end.
    fn has_ended(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return true,
                Ok(_) => self.answered = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}
