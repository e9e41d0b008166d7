//! A request trace to replay: the preferred client of VTFM01, whose own trace (a department store's) is not
//! public.
//!
//! Page views come as a Poisson process. Each asks for the page and its embedded objects at the same time, as
//! an HTTP/1.0 browser does, on a connection each: 1 to [`MOST_OBJECTS`] requests, geometrically distributed
//! with mean [`MEAN_OBJECTS`] before the cut. All objects have the same size (VTFM01 Section 3.1).

use std::time::Duration;

/// Requests of a page view, on average.
pub const MEAN_OBJECTS: f64 = 4.0;
/// Requests of a page view, at most.
pub const MOST_OBJECTS: u32 = 32;

/// When requests are due, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    due: Vec<Duration>,
}

impl Trace {
    /// A trace with this mean rate of requests, from this seed, so long. What random page views exceed the
    /// rate by, or fall short of it, is taken out: the time between them is scaled so that a trace of 1000/s and
    /// 5 s has 5000 requests, and all seeds ask for the same.
    pub fn synthetic(requests_per_s: f64, length: Duration, seed: u64) -> Trace {
        let mut random = fastrand::Rng::with_seed(seed);
        let wanted = (requests_per_s * length.as_secs_f64()).round() as usize;
        let mut at = 0.0;
        let mut due: Vec<f64> = Vec::with_capacity(wanted);
        while due.len() < wanted {
            at -= (1.0 - random.f64()).ln();
            let objects = objects(&mut random) as usize;
            let room = wanted - due.len();
            due.extend(std::iter::repeat_n(at, objects.min(room)));
        }
        // One more distance, so that the last page is not always at the very end.
        let end = at - (1.0 - random.f64()).ln();
        let scale = length.as_secs_f64() / end;
        let scaled = due.iter().map(|at| Duration::from_secs_f64(at * scale));
        Trace {
            due: scaled.collect(),
        }
    }

    /// When each request is due, in order.
    pub fn due(&self) -> &[Duration] {
        &self.due
    }
}

fn objects(random: &mut fastrand::Rng) -> u32 {
    let mut objects = 1;
    while objects < MOST_OBJECTS && random.f64() > 1.0 / MEAN_OBJECTS {
        objects += 1;
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_asks_as_often_as_it_says_and_a_seed_repeats_it() {
        let length = Duration::from_secs(5);
        let trace = |seed| Trace::synthetic(250.0, length, seed);
        let due = trace(1).due;
        assert_eq!(due.len(), 1250);
        assert!(due.is_sorted() && *due.last().unwrap() < length);
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }

    #[test]
    fn requests_of_a_page_come_together() {
        let due = Trace::synthetic(1000.0, Duration::from_secs(20), 3).due;
        let mut pages = due.clone();
        pages.dedup();
        let mean = due.len() as f64 / pages.len() as f64;
        assert!((mean / MEAN_OBJECTS - 1.0).abs() < 0.1, "{mean}");
    }
}
