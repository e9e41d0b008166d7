//! The wait in the listen queue, and whether it stands: the Rust side of the estimator in
//! bpf/lib/admit.h.
//!
//! CoDel's idea (RFC 8289) on the listen queue: a burst may fill the queue, only a queue that stands
//! is refused. The wait is the queue's length times the measured time between accepts of a busy
//! server.

use crate::admit::QueueView;
use crate::listener::Listener;

/// Least time that one sample of the service time spans, ns.
pub const SAMPLE_MIN_NS: u64 = 10_000_000;
/// Most time that one sample spans, ns; also the silence after which nothing is known.
pub const SAMPLE_MAX_NS: u64 = 100_000_000;
/// Accepts that end a sample early.
pub const SAMPLE_ACCEPTS: i32 = 16;
/// A service time above this is a stopped server.
pub const SERVICE_MAX_NS: u64 = 10_000_000_000;

/// When `admit = wait` refuses: the part of a listener's policy that judges its wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitRule {
    /// The wait over which it refuses, ns; 1 ms..=10 s.
    pub target_ns: u64,
    /// How long the wait must stand over the target before it refuses, ns; 1 ms..=10 s.
    pub interval_ns: u64,
    /// Waiting connections from which on it refuses; with fewer the wait is under the target, however slow
    /// the server. 0: the wait alone decides.
    pub least_length: u16,
}

impl From<&Listener> for WaitRule {
    fn from(listener: &Listener) -> WaitRule {
        WaitRule {
            target_ns: listener.target_wait.as_nanos() as u64,
            interval_ns: listener.interval.as_nanos() as u64,
            least_length: listener.least_length,
        }
    }
}

/// The estimator of one listening socket (struct wait_state).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// Last look, 0: never.
    pub looked_ns: u64,
    /// The running sample began.
    pub sample_ns: u64,
    /// Time between accepts of a busy server; 0: not known yet.
    pub service_ns: u64,
    /// Since when the wait is over the target; 0: it is not.
    pub above_ns: u64,
    /// When it was last seen over the target.
    pub last_above_ns: u64,
    /// Connections let in, ever, when the sample began; wraps.
    pub sample_admitted: u32,
    /// Length and half-open together then.
    pub sample_used: u32,
    /// Longest queue since `above_ns`.
    pub high_mark: u32,
    /// Refuse while over the target.
    pub standing: bool,
    /// No look of the running sample saw an empty queue.
    pub busy: bool,
}

impl Wait {
    /// The wait that a queue of this length means, ns.
    pub fn now(&self, length: u32) -> u64 {
        u64::from(length).wrapping_mul(self.service_ns)
    }

    fn is_over(&self, length: u32, rule: &WaitRule) -> bool {
        length >= u32::from(rule.least_length) && self.now(length) >= rule.target_ns
    }

    /// Whether a new connection is refused for the wait before it. A refusal says that the wait is
    /// over the target: held there, the queue may be below it at every look.
    pub fn refuses(&mut self, now: u64, length: u32, rule: &WaitRule) -> bool {
        let over = self.standing && self.is_over(length, rule);
        if over {
            self.last_above_ns = now;
        }
        over
    }

    /// One look at the queue. `admitted`: connections let in, ever; wraps.
    pub fn look(&mut self, now: u64, q: &QueueView, admitted: u32, rule: &WaitRule) {
        let used = q.length.wrapping_add(q.half_open);
        if self.looked_ns == 0 || now.wrapping_sub(self.looked_ns) >= SAMPLE_MAX_NS {
            self.restart_sample(now, admitted, used, q.length);
        } else {
            self.measure(now, admitted, used, q.length);
        }
        self.looked_ns = now;
        self.judge(now, q.length, rule);
    }

    fn restart_sample(&mut self, now: u64, admitted: u32, used: u32, length: u32) {
        self.sample_ns = now;
        self.sample_admitted = admitted;
        self.sample_used = used;
        self.busy = length > 0;
    }

    /// Connections that came in and are no longer in the queue have left it.
    fn measure(&mut self, now: u64, admitted: u32, used: u32, length: u32) {
        let elapsed = now.wrapping_sub(self.sample_ns);
        let came = admitted.wrapping_sub(self.sample_admitted);
        let left = (came.wrapping_sub(used.wrapping_sub(self.sample_used)) as i32).max(0);
        self.busy &= length > 0;
        let enough = elapsed >= SAMPLE_MIN_NS && left >= SAMPLE_ACCEPTS;
        if elapsed < SAMPLE_MAX_NS && !enough {
            return;
        }
        let sample = (elapsed / left.max(1) as u64).min(SERVICE_MAX_NS);
        // An idle server's accepts follow the arrivals: they only say that it is no slower. Without
        // that, what was learnt while it stood still would stay.
        self.service_ns = match (self.busy, self.service_ns) {
            (false, known) => known.min(sample),
            (true, 0) => sample,
            (true, known) => (3 * known + sample) / 4,
        };
        self.restart_sample(now, admitted, used, length);
    }

    fn judge(&mut self, now: u64, length: u32, rule: &WaitRule) {
        if self.above_ns != 0 && now.wrapping_sub(self.last_above_ns) >= rule.interval_ns {
            self.standing = false;
            self.above_ns = 0;
        }
        if !self.is_over(length, rule) {
            if !self.standing {
                self.above_ns = 0;
            }
            return;
        }
        self.last_above_ns = now;
        if self.above_ns == 0 {
            self.above_ns = now;
            self.high_mark = length;
        } else if length > self.high_mark {
            self.high_mark = length;
        } else if !self.standing && length < self.high_mark - self.high_mark / 8 {
            self.above_ns = now;
            self.high_mark = length;
        }
        if now.wrapping_sub(self.above_ns) >= rule.interval_ns {
            self.standing = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const TARGET: u64 = 20 * MS;
    const RULE: WaitRule = WaitRule {
        target_ns: TARGET,
        interval_ns: 100 * MS,
        least_length: 0,
    };

    /// A server of one accept every `service` ns behind a fluid queue, looked at every 1 ms.
    struct Sim {
        wait: Wait,
        rule: WaitRule,
        now: u64,
        admitted: u32,
        length: f64,
        service_ns: f64,
        limit: f64,
        refused: u64,
    }

    impl Sim {
        fn new(service_ns: u64, limit: u32) -> Sim {
            let (service_ns, limit) = (service_ns as f64, f64::from(limit));
            let wait = Wait::default();
            Sim {
                wait,
                rule: RULE,
                now: 1,
                admitted: 0,
                length: 0.0,
                service_ns,
                limit,
                refused: 0,
            }
        }

        /// Runs for `ms` at `load` times the server's rate; returns the refusals of that time.
        fn run(&mut self, ms: u64, load: f64) -> u64 {
            let before = self.refused;
            let mut due = 0.0;
            for _ in 0..ms {
                let per_ms = MS as f64 / self.service_ns;
                due += per_ms * load;
                while due >= 1.0 {
                    due -= 1.0;
                    self.arrive();
                }
                self.length = (self.length - per_ms).max(0.0);
                self.now += MS;
                let q = QueueView {
                    length: self.length as u32,
                    limit: 8192,
                    ..Default::default()
                };
                self.wait.look(self.now, &q, self.admitted, &self.rule);
            }
            self.refused - before
        }

        fn arrive(&mut self) {
            let length = self.length as u32;
            if self.wait.refuses(self.now, length, &self.rule) || self.length >= self.limit {
                self.refused += 1;
            } else {
                self.length += 1.0;
                self.admitted += 1;
            }
        }
    }

    #[test]
    fn bursts_that_the_server_absorbs_are_not_refused() {
        let mut sim = Sim::new(33_000, 8192);
        // 4 times saturation for 50 ms of each 500 ms; the mean is 0.8 of saturation.
        for _ in 0..100 {
            assert_eq!(sim.run(50, 4.0), 0, "in a burst");
            assert_eq!(sim.run(450, 0.444), 0, "after a burst");
        }
    }

    #[test]
    fn a_standing_queue_is_held_at_the_target() {
        let mut sim = Sim::new(33_000, 8192);
        sim.run(1000, 2.0);
        assert!(sim.wait.standing);
        let refused = sim.run(1000, 2.0);
        assert!(
            (28_000..33_000).contains(&refused),
            "half of 60 600: {refused}"
        );
        let wait = sim.wait.now(sim.length as u32);
        assert!(
            (TARGET * 8 / 10..=TARGET * 12 / 10).contains(&wait),
            "{wait} ns"
        );
    }

    #[test]
    fn the_restriction_expires_when_the_load_goes() {
        let mut sim = Sim::new(33_000, 8192);
        sim.run(1000, 4.0);
        assert!(sim.wait.standing);
        sim.run(300, 0.5);
        assert!(!sim.wait.standing);
        assert_eq!(sim.run(1000, 0.9), 0);
    }

    #[test]
    fn what_was_learnt_while_the_server_stood_still_does_not_stay() {
        let mut sim = Sim::new(33_000, 511);
        sim.run(500, 0.3);
        sim.service_ns *= 1000.0;
        sim.run(1000, 300.0);
        assert!(sim.wait.standing);
        sim.service_ns /= 1000.0;
        sim.run(500, 0.3);
        assert_eq!(sim.run(5000, 0.3), 0);
    }

    #[test]
    fn a_stopped_server_comes_to_stand() {
        let mut wait = Wait::default();
        let q = QueueView {
            length: 50,
            limit: 128,
            ..Default::default()
        };
        for ms in 1..=250 {
            wait.look(ms * MS, &q, 50, &RULE);
        }
        assert!(wait.refuses(250 * MS, 50, &RULE));
    }

    #[test]
    fn a_queue_shorter_than_the_least_length_is_never_over_the_target() {
        // One in 20 ms: two that wait are over the target.
        let slow = |least_length| {
            let mut sim = Sim::new(20_000_000, 511);
            sim.rule.least_length = least_length;
            sim.run(10_000, 4.0);
            sim
        };
        assert!(slow(0).length < 3.0);
        let held = slow(32);
        assert!((31.0..=33.0).contains(&held.length), "{}", held.length);
        assert!(held.refused > 0);
    }

    #[test]
    fn the_accepts_of_an_idle_server_are_not_its_speed() {
        let mut sim = Sim::new(33_000, 8192);
        sim.run(2000, 0.1);
        assert_eq!(sim.wait.service_ns, 0);
    }
}
