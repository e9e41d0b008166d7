//! The response time of a TCP connection that may lose its SYN: BHD18, Section IV.

use serde::Serialize;

/// Conditions on the way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Conditions {
    /// Round-trip time, s; more than 0.
    pub rtt_s: f64,
    /// Probability that a data packet is lost (p_l), 0 to less than 1.
    pub loss: f64,
    /// Probability that a SYN, or its answer, is lost (p_Sl), 0 to less than 1.
    pub syn_loss: f64,
    /// Retransmission time-out before the first round-trip time is known (RTO_0), s; 1 since RFC 6298, 3 before.
    pub rto_s: f64,
}

impl Conditions {
    /// Equation 1: the time in which a connection is established (t_syn), s, on average over all connections. Each time-out
    /// is as long as the first one: the model leaves exponential back-off out.
    pub fn establishment_s(&self) -> f64 {
        self.rtt_s + (1.0 / (1.0 - self.syn_loss) - 1.0) * self.rto_s
    }

    /// The same for a connection that loses its SYN at least once, s: the sum of equation 1 under that condition.
    pub fn establishment_with_loss_s(&self) -> f64 {
        self.rtt_s + self.rto_s / (1.0 - self.syn_loss)
    }

    /// The largest congestion window (W_max), segments, by Mathis' estimate: three quarters of it per round trip are the
    /// throughput.
    pub fn window_max(&self) -> f64 {
        4.0 / 3.0 * (3.0 / (2.0 * self.loss)).sqrt()
    }

    /// Equation 2 without t_syn: slow start, congestion avoidance, recovery and FIN of `segments` segments, s.
    ///
    /// The paper's slow start ends at W_max. A connection that is over before ends its slow start with its last segment:
    /// without this, equation 2 has a negative time in congestion avoidance.
    pub fn transfer_s(&self, segments: f64) -> f64 {
        let reached = self.window_max().min(segments).max(1.0);
        let slow_start = (reached.log2() + 1.0) * self.rtt_s;
        let throughput = (3.0 / (2.0 * self.loss)).sqrt() / self.rtt_s;
        let congestion_avoidance = (segments - reached).max(0.0) / throughput;
        let recovery = segments * self.rtt_s * self.loss;
        let fin = self.rtt_s;
        slow_start + congestion_avoidance + recovery + fin
    }
}

/// A point of Figure 3: response times of a connection by its size, s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Size, segments of the MSS.
    pub segments: u32,
    /// No SYN is lost.
    pub without_syn_loss_s: f64,
    /// At least one is.
    pub with_syn_loss_s: f64,
    /// On average over all connections: equation 2 with equation 1.
    pub mean_s: f64,
    /// What a lost SYN adds, of the time without it.
    pub increase: f64,
}

impl Point {
    /// The response time of a connection of this size.
    pub fn of(conditions: &Conditions, segments: u32) -> Point {
        let transfer = conditions.transfer_s(segments.into());
        let without = conditions.rtt_s + transfer;
        let with = conditions.establishment_with_loss_s() + transfer;
        Point {
            segments,
            without_syn_loss_s: without,
            with_syn_loss_s: with,
            mean_s: conditions.establishment_s() + transfer,
            increase: with / without - 1.0,
        }
    }
}

/// Sizes of Figure 3: 25 to 10 000 segments.
pub const SIZES: [u32; 9] = [25, 50, 100, 250, 500, 1000, 2000, 5000, 10_000];

/// Conditions of trace "Real" (Figure 3). The paper prints no numbers for them. Losses are what Section III gives for
/// its traces (1 to 3.5 % of packets, 10 to 20 % of SYNs); with a round trip of 200 ms all that Section IV says of the
/// figure holds.
pub const REAL: Conditions = Conditions {
    rtt_s: 0.2,
    loss: 0.01,
    syn_loss: 0.15,
    rto_s: 1.0,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-9, "{one} {other}");
    }

    #[test]
    fn equation_1_is_its_series() {
        let no_loss = Conditions { loss: 0.0, ..REAL }.transfer_s(1000.0);
        assert!(no_loss.is_finite() && no_loss < REAL.transfer_s(1000.0));
        for syn_loss in [0.0, 0.02, 0.15, 0.4] {
            let conditions = Conditions { syn_loss, ..REAL };
            let series: f64 = (1..200).map(|k| syn_loss.powi(k) * conditions.rto_s).sum();
            is_near(conditions.establishment_s(), conditions.rtt_s + series);
            // The mean over connections with and without a loss is the mean over all.
            let mean = syn_loss * conditions.establishment_with_loss_s()
                + (1.0 - syn_loss) * conditions.rtt_s;
            is_near(conditions.establishment_s(), mean);
        }
    }

    #[test]
    fn equation_2_by_hand() {
        // p_l = 6 %: sqrt(3 / 0.12) = 5, W_max = 6.67, n_ss = 3.737, X = 50/s at 100 ms.
        let conditions = Conditions {
            rtt_s: 0.1,
            loss: 0.06,
            syn_loss: 0.12,
            rto_s: 3.0,
        };
        let window = 20.0 / 3.0;
        let slow_start = (f64::log2(window) + 1.0) * 0.1;
        let expected = 0.1 + 3.0 * (0.12 / 0.88) + slow_start + (100.0 - window) / 50.0 + 0.6 + 0.1;
        is_near(Point::of(&conditions, 100).mean_s, expected);
    }

    #[test]
    fn the_response_time_grows_with_the_size() {
        let times = (1..=10_000).map(|segments| Point::of(&REAL, segments).mean_s);
        assert!(times.is_sorted());
    }

    /// What Section IV says of Figure 3: up to 200 % more, and less than 10 % from 1000 segments on with an RTO of 1 s,
    /// from 2000 on with 3 s.
    #[test]
    fn figure_3_is_as_the_paper_describes_it() {
        let with_rto = |rto_s| Conditions { rto_s, ..REAL };
        let increase = |rto_s, segments| Point::of(&with_rto(rto_s), segments).increase;
        let largest = increase(3.0, SIZES[0]);
        assert!((1.8..2.3).contains(&largest), "{largest}");
        for (rto_s, negligible_from) in [(1.0, 1000), (3.0, 2000)] {
            for segments in SIZES.into_iter().filter(|&size| size >= negligible_from) {
                assert!(increase(rto_s, segments) < 0.1, "{rto_s} s, {segments}");
            }
            assert!(increase(rto_s, negligible_from / 4) > 0.1, "{rto_s} s");
        }
    }
}
