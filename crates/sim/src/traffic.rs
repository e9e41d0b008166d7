//! Traffic of BHD18, Table III: Poisson arrivals and Zipf sizes.

use crate::connection::{Job, Spec};

/// The paper's traffic types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// "Real": mean 21 segments, median 2, a connection each 0.12 s.
    Real,
    /// "Short": mean 3, at most 100, a connection each 17 ms.
    Short,
    /// "10M": mean 26, a connection each 32 ms, for the link of 10 Mb/s.
    TenM,
}

/// Of a kind: mean time between connections (s), exponent and most segments. The paper gives the mean size and not the
/// most; this is the largest size that has that mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// 1/λ, s.
    pub between_s: f64,
    /// μ.
    pub exponent: f64,
    /// Segments.
    pub most: u32,
}

impl Kind {
    /// Its parameters.
    pub fn law(self) -> Law {
        let (between_s, exponent, most) = match self {
            Kind::Real => (0.12, 1.7, 6300),
            Kind::Short => (0.017, 2.0, 100),
            Kind::TenM => (0.032, 1.7, 12_300),
        };
        Law {
            between_s,
            exponent,
            most,
        }
    }

    /// Downlink and uplink of the paper for it, bit/s.
    pub fn rates(self) -> (u64, u64) {
        match self {
            Kind::Real | Kind::Short => (2_400_000, 400_000),
            Kind::TenM => (10_000_000, 2_000_000),
        }
    }
}

/// Sizes by Zipf's law.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// Probability of a size of at most n, at n - 1.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Sizes 1..=`most`, of probability proportional to n^-`exponent`.
    pub fn new(exponent: f64, most: u32) -> Zipf {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=most)
            .map(|n| {
                sum += f64::from(n).powf(-exponent);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|share| *share /= sum);
        Zipf { cumulative }
    }

    /// The size at a share of 0..1.
    pub fn at(&self, share: f64) -> u32 {
        let below = self.cumulative.partition_point(|limit| *limit < share);
        below.min(self.cumulative.len() - 1) as u32 + 1
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        let mut before = 0.0;
        let of = |(n, limit): (usize, &f64)| {
            let share = limit - std::mem::replace(&mut before, *limit);
            (n + 1) as f64 * share
        };
        self.cumulative.iter().enumerate().map(of).sum()
    }
}

/// What connects when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Arrivals and sizes.
    pub law: Law,
    /// Arrivals end then, s.
    pub seconds: f64,
    /// A client sends without end from the beginning on.
    pub upload: bool,
    /// So many long downloads from the beginning on.
    pub downloads: u32,
    /// Bursts besides.
    pub burst: Option<Burst>,
}

/// A burst of connections, again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Time from one to the next, s.
    pub each_s: f64,
    /// Time in which its connections come, s.
    pub over_s: f64,
    /// Its connections.
    pub connections: u32,
    /// Segments of each reply.
    pub segments: u32,
}

/// Segments of a download that does not end within a run.
pub const LONG: u32 = 1 << 24;
/// Clients behind the link, and servers.
const CLIENTS: u32 = 16;
const SERVERS: u32 = 200;

impl Plan {
    /// Of a kind, without upload.
    pub fn of(kind: Kind, seconds: f64) -> Plan {
        Plan {
            law: kind.law(),
            seconds,
            upload: false,
            downloads: 0,
            burst: None,
        }
    }

    /// Its connections in the order of their start. One seed, one list.
    pub fn connections(&self, seed: u64) -> Vec<Spec> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let zipf = Zipf::new(self.law.exponent, self.law.most);
        let mut all = Vec::new();
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let mut add = |start_ns, job, of_burst, rng: &mut fastrand::Rng| {
            // Spread, since nothing else mixes them.
            let address =
                |rng: &mut fastrand::Rng, count| rng.u32(..count).wrapping_mul(0x9e37_79b1);
            all.push(Spec {
                start_ns,
                job,
                flow_hash: rng.u32(..),
                client_hash: address(rng, CLIENTS),
                server_hash: address(rng, SERVERS),
                of_burst,
            });
        };
        if self.upload {
            add(0, Job::Upload, false, &mut rng);
        }
        for n in 0..self.downloads {
            add(ns(0.1 * f64::from(n)), Job::Download(LONG), false, &mut rng);
        }
        let mut at_s = 0.0;
        loop {
            at_s -= (1.0 - rng.f64()).ln() * self.law.between_s;
            if at_s >= self.seconds {
                break;
            }
            let size = zipf.at(rng.f64());
            add(ns(at_s), Job::Download(size), false, &mut rng);
        }
        if let Some(burst) = self.burst {
            for number in 1..(self.seconds / burst.each_s) as u32 {
                for _ in 0..burst.connections {
                    let at_s = f64::from(number) * burst.each_s + burst.over_s * rng.f64();
                    add(ns(at_s), Job::Download(burst.segments), true, &mut rng);
                }
            }
        }
        all.sort_by_key(|spec| spec.start_ns);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means, medians and the sizes that the paper gives for 80 % of the connections.
    #[test]
    fn sizes_are_those_of_table_iii() {
        for (kind, mean, median, at_80) in [
            (Kind::Real, 21.0, 2, 6),
            (Kind::Short, 3.0, 1, 4),
            (Kind::TenM, 26.0, 2, 7),
        ] {
            let law = kind.law();
            let zipf = Zipf::new(law.exponent, law.most);
            assert!(
                (zipf.mean() - mean).abs() < 0.2,
                "{kind:?}: {}",
                zipf.mean()
            );
            assert_eq!(zipf.at(0.5), median, "{kind:?}");
            assert!(zipf.at(0.8) <= at_80, "{kind:?}: {}", zipf.at(0.8));
        }
    }

    #[test]
    fn a_seed_gives_one_list_of_arrivals_at_the_rate() {
        let plan = Plan::of(Kind::Short, 600.0);
        let connections = plan.connections(3);
        assert_eq!(connections, plan.connections(3));
        assert_ne!(connections, plan.connections(4));
        let expected = 600.0 / 0.017;
        assert!((connections.len() as f64 - expected).abs() < 3.0 * expected.sqrt());
    }
}
