//! The congestion window: Reno (RFC 5681) and CUBIC (RFC 9438) with HyStart by delay.

/// Which algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// RFC 5681.
    Reno,
    /// RFC 9438.
    #[default]
    Cubic,
}

/// CUBIC's C (RFC 9438, Section 4.1) and its factor at a loss.
const C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;
const RENO_BETA: f64 = 0.5;
/// HyStart as Linux has it: not below this window, after so many samples of a round.
const HYSTART_LEAST: f64 = 16.0;
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_DELAY_NS: (u64, u64) = (4_000_000, 16_000_000);

/// The window of one sender, in segments.
#[derive(Debug, Clone)]
pub struct Congestion {
    algorithm: Algorithm,
    /// Segments that may be on their way.
    pub window: f64,
    /// Under it the window doubles each round trip.
    pub threshold: f64,
    /// CUBIC: window before the last loss, the time at which it is reached again, and when growth began, ns.
    before_loss: f64,
    back_s: f64,
    since_ns: Option<u64>,
    /// CUBIC: what Reno would have.
    reno: f64,
    /// HyStart: the least round-trip time, ns.
    least_ns: u64,
    round: Round,
}

/// HyStart's round trip.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// It ends when this number is acknowledged.
    end: u32,
    samples: u32,
    least_ns: u64,
}

impl Congestion {
    /// With an initial window, segments.
    pub fn new(algorithm: Algorithm, initial: f64) -> Congestion {
        Congestion {
            algorithm,
            window: initial,
            threshold: f64::INFINITY,
            before_loss: 0.0,
            back_s: 0.0,
            since_ns: None,
            reno: 0.0,
            least_ns: u64::MAX,
            round: Round::default(),
        }
    }

    /// HyStart: the round-trip time of the latest segment that was acknowledged. `acked` and `sent`: numbers acknowledged and
    /// sent so far.
    pub fn sample(&mut self, rtt_ns: u64, acked: u32, sent: u32) {
        self.least_ns = self.least_ns.min(rtt_ns);
        let is_slow = self.window < self.threshold;
        if self.algorithm == Algorithm::Reno || !is_slow || self.window < HYSTART_LEAST {
            return;
        }
        if acked > self.round.end {
            self.round = Round {
                end: sent,
                samples: 0,
                least_ns: u64::MAX,
            };
        }
        self.round.least_ns = self.round.least_ns.min(rtt_ns);
        if self.round.samples < HYSTART_SAMPLES {
            self.round.samples += 1;
            return;
        }
        let (least, most) = HYSTART_DELAY_NS;
        if self.round.least_ns > self.least_ns + (self.least_ns / 8).clamp(least, most) {
            self.threshold = self.window;
        }
    }

    /// Segments were acknowledged while the window was in use.
    pub fn acked(&mut self, segments: u32, now_ns: u64, smoothed_ns: u64) {
        let mut segments = f64::from(segments);
        if self.window < self.threshold {
            let slow = segments.min(self.threshold - self.window);
            self.window += slow;
            segments -= slow;
        }
        if segments <= 0.0 {
            return;
        }
        match self.algorithm {
            Algorithm::Reno => self.window += segments / self.window,
            Algorithm::Cubic => self.grow_cubic(segments, now_ns, smoothed_ns),
        }
    }

    /// RFC 9438, Sections 4.2 to 4.5.
    fn grow_cubic(&mut self, segments: f64, now_ns: u64, smoothed_ns: u64) {
        let since = *self.since_ns.get_or_insert_with(|| {
            self.reno = self.window;
            if self.window < self.before_loss {
                self.back_s = ((self.before_loss - self.window) / C).cbrt();
            } else {
                (self.back_s, self.before_loss) = (0.0, self.window);
            }
            now_ns
        });
        let time_s = (now_ns - since + smoothed_ns) as f64 / 1e9;
        let target = self.before_loss + C * (time_s - self.back_s).powi(3);
        let target = target.clamp(self.window, 1.5 * self.window);
        self.window += segments * (target - self.window) / self.window;
        let alpha = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
        self.reno += alpha * segments / self.window;
        self.window = self.window.max(self.reno);
    }

    /// A loss or a mark: the threshold falls, and the window with it.
    pub fn reduce(&mut self) {
        let beta = match self.algorithm {
            Algorithm::Reno => RENO_BETA,
            Algorithm::Cubic => CUBIC_BETA,
        };
        // Fast convergence, RFC 9438, Section 4.7.
        self.before_loss = match self.window < self.before_loss {
            true => self.window * (1.0 + CUBIC_BETA) / 2.0,
            false => self.window,
        };
        self.since_ns = None;
        self.threshold = (self.window * beta).max(2.0);
        self.window = self.threshold;
    }

    /// A timeout: one segment more than what is on its way. The threshold falls, unless it has for the same losses.
    pub fn collapse(&mut self, is_first: bool, in_flight: u32) {
        if is_first {
            self.reduce();
        }
        self.window = f64::from(in_flight) + 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubic_comes_back_to_its_window_when_its_law_says() {
        let mut window = Congestion::new(Algorithm::Cubic, 100.0);
        window.reduce();
        assert_eq!(window.window, 70.0);
        // RFC 9438, equation 2: K = cbrt(100 * 0.3 / 0.4) = 4.2 s.
        let rtt = 100_000_000;
        let mut now = 0;
        while window.window < 99.5 {
            window.acked(window.window as u32, now, rtt);
            now += rtt;
        }
        let seconds = now as f64 / 1e9;
        assert!((3.0..4.4).contains(&seconds), "{seconds}");
    }

    #[test]
    fn reno_grows_by_one_each_round_trip_and_slow_start_doubles() {
        let mut window = Congestion::new(Algorithm::Reno, 10.0);
        window.acked(10, 0, 1);
        assert_eq!(window.window, 20.0);
        window.reduce();
        window.acked(10, 0, 1);
        assert_eq!(window.window, 11.0);
    }

    #[test]
    fn hystart_ends_slow_start_when_the_delay_grows() {
        let mut window = Congestion::new(Algorithm::Cubic, 20.0);
        for acked in 1..=20 {
            window.sample(100_000_000, acked, 20);
        }
        assert_eq!(window.threshold, f64::INFINITY);
        for acked in 21..=29 {
            window.sample(112_500_000, acked, 40);
        }
        assert_eq!(window.threshold, f64::INFINITY);
        for acked in 41..=49 {
            window.sample(112_500_001, acked, 60);
        }
        assert_eq!(window.threshold, 20.0);
    }
}
