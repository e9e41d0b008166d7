//! A PID with bounds: what it adds can never be more than they say, nor wind up behind them.

/// Gains and bounds. The measure is an error in intervals: how many intervals of the server's whole
/// work the queue is short of its set point (negative: beyond it).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// Share of the error that the next interval is to take away. The queue is an integrator with a delay
    /// of one interval: 1 is dead beat, 2 is the edge of stability.
    pub proportional: f64,
    /// Share that is added for good each interval.
    pub integral: f64,
    /// Share of the error's change.
    pub derivative: f64,
    /// Bounds of the output.
    pub output: (f64, f64),
    /// Bound of the integral, either way.
    pub windup: f64,
}

/// Its memory.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pid {
    integral: f64,
    before: Option<f64>,
}

impl Pid {
    /// The next output. `binding`: the output before had an effect; else its integral is not raised.
    pub fn next(&mut self, gains: &Gains, error: f64, binding: bool) -> f64 {
        let change = self.before.map_or(0.0, |before| error - before);
        self.before = Some(error);
        let (low, high) = gains.output;
        let without = gains.proportional * error + gains.derivative * change;
        // A saturated output says nothing about the offset that the integral is there for.
        let saturated = without <= low || without >= high;
        if !saturated && (binding || error < 0.0) {
            self.integral += gains.integral * error;
            self.integral = self.integral.clamp(-gains.windup, gains.windup);
        }
        (without + self.integral).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GAINS: Gains = Gains {
        proportional: 0.4,
        integral: 0.05,
        derivative: 0.1,
        output: (-0.9, 0.2),
        windup: 0.2,
    };

    proptest! {
        #[test]
        fn the_output_and_the_integral_stay_within_their_bounds(
            errors in prop::collection::vec(-1e6..1e6f64, 1..200), binding: bool,
        ) {
            let mut pid = Pid::default();
            for error in errors {
                let output = pid.next(&GAINS, error, binding);
                prop_assert!((-0.9..=0.2).contains(&output), "{output}");
                prop_assert!(pid.integral.abs() <= 0.2);
            }
        }
    }

    #[test]
    fn a_saturated_output_does_not_wind_up() {
        let mut pid = Pid::default();
        for _ in 0..100 {
            pid.next(&GAINS, -50.0, true);
        }
        assert_eq!(pid.integral, 0.0);
    }

    #[test]
    fn a_limit_that_does_not_bind_is_not_raised() {
        let mut pid = Pid::default();
        for _ in 0..100 {
            pid.next(&GAINS, 0.2, false);
        }
        assert_eq!(pid.integral, 0.0);
    }

    #[test]
    fn an_offset_is_learnt() {
        // The server takes 5 % less than is thought: a level that falls by the output less the offset.
        let (mut pid, mut level) = (Pid::default(), 0.0);
        for _ in 0..200 {
            level += pid.next(&GAINS, -level, true) + 0.05;
        }
        assert!(level.abs() < 0.01, "{level}");
    }
}
