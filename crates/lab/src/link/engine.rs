//! The thread that carries packets between the two devices of an emulated link.
//!
//! The transmitters of each direction ([`super::direction`]) live in virtual time: when the thread wakes up late, it first
//! does what was to be done meanwhile, at the times at which it was due, and only then takes in what came. So a late
//! wake-up delays single packets, and costs the link no rate. The thread has a real-time priority where it may, and no
//! timer slack.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::time::TimeSpec;

use super::clock::Clock;
use super::direction::Direction;
use super::report::Report;
use crate::bed::Tap;
use crate::error::{Context, Result};
use crate::sys;

/// A packet is at most so long, bytes.
const LONGEST: usize = 1 << 16;
/// A wait at most; what has been counted is made known at least so often.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

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
        let clock = Clock::start();
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
