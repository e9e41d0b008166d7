//! Randomness from a seed, for what is simulated around a model.

/// SplitMix64: enough randomness for arrivals.
pub struct Random(u64);

impl Random {
    /// With a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 0.0 < .. <= 1.0
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    /// Exponentially distributed, with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().min(1.0).ln()
    }
}
