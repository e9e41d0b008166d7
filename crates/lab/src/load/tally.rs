//! What became of the clients, by step and by second.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::client::new_histogram;

/// Points of the picture, at most: a sample of all served clients.
const POINTS: usize = 4000;

/// How one client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A whole reply with a status below 400.
    Served,
    /// A whole reply with this status, 400 or above.
    Error(u16),
    /// RST to the SYN.
    Refused,
    /// RST after the SYN was answered.
    Reset,
    /// The connection ended before the reply did, or the reply is not HTTP.
    CutShort,
    /// No whole reply within the client's patience.
    TimedOut,
    /// The network said that there is no way.
    Unreachable,
    /// This machine had no port or no descriptor left for it: the server never saw it.
    NotBegun,
}

/// Clients that were due in one step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Asked for, clients/s.
    pub rate_per_s: f64,
    /// Length of the step.
    pub length: Duration,
    /// All whose fate is known.
    pub begun: u64,
    /// Of them [`Fate::Served`].
    pub served: u64,
    /// Whole replies that came within the step's time, whoever was due when.
    pub served_in_time: u64,
    /// [`Fate::Refused`].
    pub refused: u64,
    /// [`Fate::Reset`].
    pub reset: u64,
    /// [`Fate::CutShort`].
    pub cut_short: u64,
    /// [`Fate::TimedOut`].
    pub timed_out: u64,
    /// [`Fate::Unreachable`].
    pub unreachable: u64,
    /// [`Fate::NotBegun`]; not among `begun`.
    pub not_begun: u64,
    /// [`Fate::Error`] by status.
    pub errors: BTreeMap<u16, u64>,
    /// Due to the end of the reply, of the served, µs.
    pub response_us: Histogram<u64>,
    /// Due to the RST, of the refused, µs.
    pub refusal_us: Histogram<u64>,
}

/// What happened in one second of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Second {
    /// Clients due.
    pub due: u64,
    /// Whole replies with a status below 400.
    pub served: u64,
    /// RSTs to a SYN.
    pub refused: u64,
    /// RSTs after it.
    pub reset: u64,
    /// Clients that gave up.
    pub timed_out: u64,
    /// All other ends.
    pub other: u64,
}

/// All of a run.
#[derive(Debug, Clone)]
pub struct Tally {
    /// In their order.
    pub steps: Vec<Step>,
    /// From the first on.
    pub seconds: Vec<Second>,
    /// Of served clients: when due, and how long until the end of the reply, s.
    pub points: Vec<(f64, f64)>,
    /// Served clients so far: [`POINTS`] of them are kept, each with the same chance (reservoir sampling).
    offered_points: u64,
    random: fastrand::Rng,
}

impl Tally {
    /// Of steps with these rates and this length.
    pub fn new(rates_per_s: &[f64], length: Duration) -> Tally {
        let step = |rate: &f64| Step::new(*rate, length);
        Tally {
            steps: rates_per_s.iter().map(step).collect(),
            seconds: Vec::new(),
            points: Vec::new(),
            offered_points: 0,
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// A client is due.
    pub fn due(&mut self, at: Duration) {
        self.second(at).due += 1;
    }

    /// A client of this step, due then, has ended now.
    pub fn end(&mut self, step: usize, due: Duration, now: Duration, fate: Fate) {
        let second = self.second(now);
        *match fate {
            Fate::Served => &mut second.served,
            Fate::Refused => &mut second.refused,
            Fate::Reset => &mut second.reset,
            Fate::TimedOut => &mut second.timed_out,
            _ => &mut second.other,
        } += 1;
        let took = now.saturating_sub(due);
        self.steps[step].end(took, fate);
        if fate != Fate::Served {
            return;
        }
        self.keep_point(due, took);
        let length = self.steps[step].length;
        let at = (now.as_nanos() / length.as_nanos().max(1)) as usize;
        if let Some(step) = self.steps.get_mut(at) {
            step.served_in_time += 1;
        }
    }

    fn second(&mut self, at: Duration) -> &mut Second {
        let index = at.as_secs() as usize;
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Second::default());
        }
        &mut self.seconds[index]
    }

    fn keep_point(&mut self, due: Duration, took: Duration) {
        self.offered_points += 1;
        let point = (due.as_secs_f64(), took.as_secs_f64());
        if self.points.len() < POINTS {
            self.points.push(point);
            return;
        }
        let place = self.random.u64(..self.offered_points) as usize;
        if let Some(kept) = self.points.get_mut(place) {
            *kept = point;
        }
    }
}

impl Step {
    fn new(rate_per_s: f64, length: Duration) -> Step {
        Step {
            rate_per_s,
            length,
            begun: 0,
            served: 0,
            served_in_time: 0,
            refused: 0,
            reset: 0,
            cut_short: 0,
            timed_out: 0,
            unreachable: 0,
            not_begun: 0,
            errors: BTreeMap::new(),
            response_us: new_histogram(),
            refusal_us: new_histogram(),
        }
    }

    fn end(&mut self, took: Duration, fate: Fate) {
        let us = (took.as_micros() as u64).max(1);
        self.begun += u64::from(fate != Fate::NotBegun);
        *match fate {
            Fate::Served => &mut self.served,
            Fate::Error(status) => self.errors.entry(status).or_default(),
            Fate::Refused => &mut self.refused,
            Fate::Reset => &mut self.reset,
            Fate::CutShort => &mut self.cut_short,
            Fate::TimedOut => &mut self.timed_out,
            Fate::Unreachable => &mut self.unreachable,
            Fate::NotBegun => &mut self.not_begun,
        } += 1;
        match fate {
            Fate::Served => self.response_us.saturating_record(us),
            Fate::Refused => self.refusal_us.saturating_record(us),
            _ => {}
        }
    }

    /// Replies with a status of 400 or above.
    pub fn error_replies(&self) -> u64 {
        self.errors.values().sum()
    }

    /// A count as a share of those begun; 0 of none.
    pub fn share(&self, count: u64) -> f64 {
        count as f64 / self.begun.max(1) as f64
    }

    /// The time within which this share of the served had their reply, ms; `None` if nobody was served.
    pub fn response_ms(&self, share: f64) -> Option<f64> {
        let us = self.response_us.value_at_quantile(share);
        (!self.response_us.is_empty()).then_some(us as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_fate_belongs_to_the_step_that_was_due_and_a_reply_to_the_step_in_which_it_came() {
        let mut tally = Tally::new(&[1.0, 2.0], s(10));
        tally.due(s(9));
        tally.end(0, s(9), s(12), Fate::Served);
        tally.end(0, s(9), s(24), Fate::TimedOut);
        tally.end(1, s(19), s(21), Fate::Served);
        let [first, second] = &tally.steps[..] else {
            panic!()
        };
        assert_eq!((first.begun, first.served, first.served_in_time), (2, 1, 0));
        assert_eq!((second.served, second.served_in_time), (1, 1));
        assert_eq!(first.timed_out, 1);
        assert_eq!((tally.seconds[9].due, tally.seconds[12].served), (1, 1));
        assert!((first.response_ms(0.5).unwrap() - 3000.0).abs() < 5.0);
    }

    #[test]
    fn what_never_left_this_machine_is_no_client_of_the_server() {
        let mut tally = Tally::new(&[1.0], s(1));
        tally.end(0, s(0), s(0), Fate::NotBegun);
        tally.end(0, s(0), s(0), Fate::Error(503));
        let step = &tally.steps[0];
        assert_eq!(
            (step.begun, step.not_begun, step.error_replies()),
            (1, 1, 1)
        );
        assert_eq!(step.response_ms(0.5), None);
    }

    #[test]
    fn the_picture_keeps_a_sample_of_all_seconds() {
        let mut tally = Tally::new(&[1.0], s(100));
        for ms in 0..100_000 {
            let due = Duration::from_millis(ms);
            tally.end(0, due, due + s(1), Fate::Served);
        }
        assert_eq!(tally.points.len(), POINTS);
        let late = tally.points.iter().filter(|(due, _)| *due >= 50.0).count();
        assert!((1800..2200).contains(&late), "{late}");
    }
}
