//! The thread that carries packets between the two devices of an emulated link.
//!
//! The transmitter of each direction lives in virtual time: when the thread wakes up late, it first does what was to be
//! done meanwhile, at the times at which it was due, and only then takes in what came. So a late wake-up delays single
//! packets, and costs the link no rate. The thread has a real-time priority where it may, and no timer slack.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::time::TimeSpec;
use weir_sim::LinkSpec;
use weir_sim::aqm::{Cause, Hooks, Packet};
use weir_sim::link::{Departure, Link};

use super::packet::Frame;
use super::report::{self, Report};
use crate::bed::Tap;
use crate::error::{Context, Error, Result};
use crate::sys;

/// Packets of one direction that are taken before the other has its turn.
const BATCH: usize = 32;
/// A packet is at most so long, bytes.
const LONGEST: usize = 1 << 16;
/// A wait at most; what has been counted is made known at least so often.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Longest time that the histograms tell apart, ns.
const LONGEST_NS: u64 = 600_000_000_000;

/// Randomness of a queue, and what it dropped.
#[derive(Debug)]
pub struct Drops {
    rng: fastrand::Rng,
    syns: u64,
}

impl Hooks<Frame> for Drops {
    fn random(&mut self) -> u32 {
        self.rng.u32(..)
    }

    fn dropped(&mut self, frame: Frame, _cause: Cause) {
        // Without FIN: SYN and SYN/ACK.
        self.syns += u64::from(frame.control().is_high(false));
    }
}

/// One direction of the link.
#[derive(Debug)]
pub struct Direction {
    spec: LinkSpec,
    link: Link<Frame, Drops>,
    /// When the transmitter is free, ns; `None`: it is.
    free_ns: Option<u64>,
    /// On the wire, with the time at which each arrives, ns. One delay, one order.
    wire: VecDeque<(u64, Frame)>,
    lost: u64,
    delivered: u64,
    refused: u64,
    /// Time in the queue, ns.
    waits: Histogram<u64>,
    /// How much after its time a packet was delivered, ns.
    late: Histogram<u64>,
}

impl Direction {
    /// An idle one; everything random comes from the seed.
    pub fn new(spec: LinkSpec, seed: u64) -> Direction {
        let histogram = || Histogram::new_with_max(LONGEST_NS, 3).expect("valid bounds");
        let hooks = Drops {
            rng: fastrand::Rng::with_seed(seed),
            syns: 0,
        };
        Direction {
            spec,
            link: Link::new(spec, hooks, !seed),
            free_ns: None,
            wire: VecDeque::new(),
            lost: 0,
            delivered: 0,
            refused: 0,
            waits: histogram(),
            late: histogram(),
        }
    }

    /// Does what the transmitter had to do until this time.
    fn advance(&mut self, now_ns: u64) {
        while let Some(free_ns) = self.free_ns.filter(|free_ns| *free_ns <= now_ns) {
            let next = self.link.free(free_ns);
            self.begin(next);
        }
    }

    /// Takes a packet in that came at this time, up to which [`Direction::advance`] has been called.
    fn offer(&mut self, frame: Frame) {
        let now_ns = frame.came_ns;
        let is_busy = self.free_ns.is_some();
        let next = self.link.offer(frame, now_ns);
        if !is_busy {
            self.begin(next);
        }
    }

    /// The transmitter begins with this packet, or is idle.
    fn begin(&mut self, next: Option<Departure<Frame>>) {
        self.free_ns = next.as_ref().map(|departure| departure.free_ns);
        let Some(departure) = next else {
            return;
        };
        let waited = departure.began_ns.saturating_sub(departure.packet.came_ns);
        self.waits.saturating_record(waited);
        match departure.arrives_ns {
            Some(at_ns) => self.wire.push_back((at_ns, departure.packet)),
            None => self.lost += 1,
        }
    }

    /// Hands over what has arrived.
    fn deliver(&mut self, device: &Tap, clock: &Clock) -> Result<()> {
        loop {
            let now_ns = clock.now_ns();
            self.advance(now_ns);
            let is_due = |(due_ns, _): &&(u64, Frame)| *due_ns <= now_ns;
            if self.wire.front().filter(is_due).is_none() {
                return Ok(());
            }
            let Some((due_ns, frame)) = self.wire.pop_front() else {
                return Ok(());
            };
            match device.send(frame.bytes()) {
                Ok(()) => {
                    self.delivered += 1;
                    self.late.saturating_record(now_ns - due_ns);
                }
                // The kernel takes no such packet, or has no memory for it.
                Err(Errno::EINVAL | Errno::ENOMEM | Errno::ENOBUFS | Errno::EAGAIN) => {
                    self.refused += 1;
                }
                Err(error) => return Err(broken("deliver a packet", error)),
            }
        }
    }

    /// Takes what has come to a device; whether there may be more.
    fn take(&mut self, device: &Tap, clock: &Clock, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..BATCH {
            let received = device.receive(buffer);
            let Some(packet) = received.map_err(|error| broken("take a packet", error))? else {
                return Ok(false);
            };
            let now_ns = clock.now_ns();
            self.advance(now_ns);
            self.offer(Frame::read(packet.to_vec(), now_ns));
        }
        Ok(true)
    }

    /// Before this time nothing is to be done, ns.
    fn due_ns(&self) -> Option<u64> {
        let arrives = self.wire.front().map(|(at_ns, _)| *at_ns);
        // What leaves next cannot arrive before.
        let leaves = self.free_ns.map(|free_ns| free_ns + self.spec.delay_ns);
        arrives.into_iter().chain(leaves).min()
    }

    fn report(&self) -> report::Direction {
        let stats = self.link.stats();
        report::Direction {
            discipline: self.spec.discipline.name().to_owned(),
            rate_bits_per_s: self.spec.setup.rate_bytes_per_s * 8,
            delay_ms: self.spec.delay_ns as f64 / 1e6,
            received_packets: stats.received.packets,
            received_bytes: stats.received.bytes,
            sent_packets: stats.sent.packets,
            sent_bytes: stats.sent.bytes,
            dropped_full: stats.dropped_full,
            dropped_early: stats.dropped_early,
            dropped_delay: stats.dropped_delay,
            dropped_syns: self.link.hooks().syns,
            marked: stats.marked,
            high: stats.high,
            demoted: stats.demoted,
            waiting_packets: self.link.backlog().packets,
            lost: self.lost,
            on_the_wire: self.wire.len() as u64,
            delivered: self.delivered,
            refused: self.refused,
            queue_delay: report::Times::of(&self.waits),
            late: report::Times::of(&self.late),
            stats: *stats,
        }
    }
}

fn broken(what: &str, error: Errno) -> Error {
    Error::failed(format!("the emulated link cannot {what}"), error)
}

/// Nanoseconds since the engine began.
struct Clock(Instant);

impl Clock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// All that the thread needs.
#[derive(Debug)]
pub struct Engine {
    /// Of the near and of the far side.
    pub devices: [Tap; 2],
    /// Down, to the near side, and up, to the far one.
    pub directions: [Direction; 2],
    /// Readable when it is to end.
    pub stop: Arc<EventFd>,
    /// What has been counted.
    pub counted: Arc<Mutex<Report>>,
}

impl Engine {
    /// Carries packets until it is to end.
    pub fn run(mut self) -> Result<()> {
        // It goes on without either; the statistics show how late it is.
        let _ = sys::run_before_others();
        let _ = prctl::set_timerslack(1);
        let clock = Clock(Instant::now());
        let mut buffer = vec![0; LONGEST];
        loop {
            let has_more = self.turn(&clock, &mut buffer)?;
            let due_ns = self.directions.iter().filter_map(Direction::due_ns).min();
            let wait = due_ns.map(|due_ns| due_ns.saturating_sub(clock.now_ns()));
            let wait = wait
                .map_or(LONGEST_WAIT, Duration::from_nanos)
                .min(LONGEST_WAIT);
            let wait = if has_more { Duration::ZERO } else { wait };
            if self.wait(wait)? {
                self.publish(&clock);
                return Ok(());
            }
        }
    }

    /// Does what is to be done now; whether there may be more.
    fn turn(&mut self, clock: &Clock, buffer: &mut [u8]) -> Result<bool> {
        let [near, far] = &self.devices;
        let [down, up] = &mut self.directions;
        let mut has_more = false;
        for (direction, from, to) in [(down, far, near), (up, near, far)] {
            direction.deliver(to, clock)?;
            has_more |= direction.take(from, clock, buffer)?;
        }
        Ok(has_more)
    }

    /// Waits for a packet at most so long; whether it is to end.
    fn wait(&self, longest: Duration) -> Result<bool> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let [near, far] = &self.devices;
        let mut fds = [
            readable(self.stop.as_fd()),
            readable(near.as_fd()),
            readable(far.as_fd()),
        ];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(longest)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for packets"),
        }
        Ok(fds[0].any().unwrap_or(false))
    }

    fn publish(&mut self, clock: &Clock) {
        let now_ns = clock.now_ns();
        for direction in &mut self.directions {
            direction.advance(now_ns);
        }
        let [down, up] = [0, 1].map(|index: usize| self.directions[index].report());
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted = Report {
            seconds: now_ns as f64 / 1e9,
            down,
            up,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::Loss;
    use weir_sim::aqm::{Discipline, Setup};

    fn direction(loss: Loss) -> Direction {
        let spec = LinkSpec {
            discipline: Discipline::Fifo,
            setup: Setup::of_ip(150_000),
            delay_ns: 1_000_000,
            loss,
            passes_at_once: false,
        };
        Direction::new(spec, 1)
    }

    /// A packet of so many bytes.
    fn frame(came_ns: u64, len: usize) -> Frame {
        Frame::read(vec![0; len], came_ns)
    }

    /// 1500 bytes take 10 ms.
    const FULL: usize = 1500;
    const TIME_NS: u64 = 10_000_000;

    #[test]
    fn a_transmitter_that_is_looked_after_late_has_sent_all_that_was_due() {
        let mut direction = direction(Loss::default());
        for _ in 0..50 {
            direction.offer(frame(0, FULL));
        }
        // Not once for a third of a second.
        direction.advance(33 * TIME_NS);
        let arrivals: Vec<u64> = direction.wire.iter().map(|(at_ns, _)| *at_ns).collect();
        let expected: Vec<u64> = (1..=34).map(|n| n * TIME_NS + 1_000_000).collect();
        assert_eq!(arrivals, expected);
        assert_eq!(direction.link.backlog().packets, 16);
        assert_eq!(direction.waits.max() / TIME_NS, 33);
    }

    #[test]
    fn the_next_thing_to_do_is_the_arrival_on_the_wire_or_of_what_leaves_next() {
        let mut direction = direction(Loss::default());
        assert_eq!(direction.due_ns(), None);
        direction.offer(frame(5, FULL));
        assert_eq!(direction.due_ns(), Some(5 + TIME_NS + 1_000_000));
        direction.wire.clear();
        assert_eq!(direction.due_ns(), Some(5 + TIME_NS + 1_000_000));
        direction.advance(5 + TIME_NS);
        assert_eq!(direction.due_ns(), None);
    }

    #[test]
    fn what_the_wire_loses_takes_its_time_and_does_not_arrive() {
        let mut direction = direction(Loss {
            first: 1.0,
            next: 1.0,
        });
        for _ in 0..3 {
            direction.offer(frame(0, FULL));
        }
        direction.advance(3 * TIME_NS);
        assert_eq!((direction.lost, direction.wire.len()), (3, 0));
        assert_eq!(direction.link.stats().sent.packets, 3);
    }
}
