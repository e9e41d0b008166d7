//! Where the unprotected server saturates: the peak of its throughput over a sweep of rates.

use std::time::Duration;

use super::point::OpenLoop;
use super::policy::{Policy, Protection};
use crate::client::Load;
use crate::error::Result;
use crate::run::results::Facts;
use crate::show::format::count;

/// Facts: the unprotected server's peak, and the rate at which it was found, both per second.
const PEAK: &str = "saturation_per_s";
const PEAK_AT: &str = "saturation_offered_per_s";

/// The peak among the facts; searched for if it is not there.
pub fn known_or_found(
    facts: &mut Facts,
    bed: &mut OpenLoop,
    base: &Load,
    first_rate_per_s: f64,
) -> Result<Peak> {
    let known = |name: &str| facts.get(name).and_then(serde_json::Value::as_f64);
    if let Some((replies_per_s, offered_per_s)) = known(PEAK).zip(known(PEAK_AT)) {
        return Ok(Peak {
            replies_per_s,
            offered_per_s,
        });
    }
    let peak = find(bed, base, first_rate_per_s)?;
    facts.insert(PEAK.into(), peak.replies_per_s.into());
    facts.insert(PEAK_AT.into(), peak.offered_per_s.into());
    eprintln!(
        "weir-lab: the unprotected server peaks at {} replies/s",
        count(peak.replies_per_s)
    );
    Ok(peak)
}

/// The search doubles the rate until the server serves less than this share of it.
const KEPT_UP: f64 = 0.9;
/// Then it looks around the best throughput found, at these multiples of it.
const SWEEP: [f64; 6] = [0.9, 0.95, 1.0, 1.05, 1.15, 1.3];
/// Search no further; the generator itself ends about here.
const MAX_RATE_PER_S: f64 = 160_000.0;

/// Where an unprotected server's throughput is highest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Its throughput there.
    pub replies_per_s: f64,
    /// The rate at which it was found.
    pub offered_per_s: f64,
}

impl Peak {
    fn or_better(self, offered_per_s: f64, replies_per_s: f64) -> Peak {
        if replies_per_s <= self.replies_per_s {
            return self;
        }
        Peak {
            replies_per_s,
            offered_per_s,
        }
    }
}

/// The peak of the bed's server without protection. `base` gives all but the rate;
/// `first_rate_per_s` should be below saturation.
pub fn find(bed: &mut OpenLoop, base: &Load, first_rate_per_s: f64) -> Result<Peak> {
    let mut throughput = |rate_per_s, window| {
        let (offered, served) = unprotected(bed, base, rate_per_s, window)?;
        eprintln!(
            "  saturation: offered {:>7}/s, served {:>7}/s",
            count(offered),
            count(served)
        );
        Ok(served)
    };
    let mut peak = Peak {
        replies_per_s: 0.0,
        offered_per_s: first_rate_per_s,
    };
    let mut rate_per_s = first_rate_per_s;
    while rate_per_s <= MAX_RATE_PER_S {
        let served = throughput(rate_per_s, Duration::from_millis(600))?;
        peak = peak.or_better(rate_per_s, served);
        if served < KEPT_UP * rate_per_s {
            break;
        }
        rate_per_s *= 2.0;
    }
    let rough = peak.replies_per_s;
    for multiple in SWEEP {
        let rate_per_s = rough * multiple;
        let served = throughput(rate_per_s, Duration::from_millis(1500))?;
        peak = peak.or_better(rate_per_s, served);
    }
    Ok(peak)
}

/// The throughput at the peak's rate once more, replies/s: machines get slower and faster by the
/// minute, so what is compared with the peak must be measured beside it, for as long. One point
/// only: the best of several would be the luckiest.
pub fn again(bed: &mut OpenLoop, base: &Load, peak: Peak) -> Result<f64> {
    Ok(unprotected(bed, base, peak.offered_per_s, base.window)?.1)
}

/// Connections/s and replies/s of the unprotected server at one rate, over the window, after a warm-up of a quarter of it.
fn unprotected(
    bed: &mut OpenLoop,
    base: &Load,
    rate_per_s: f64,
    window: Duration,
) -> Result<(f64, f64)> {
    let load = Load {
        rate_per_s,
        warm_up: window / 4,
        window,
        drain: false,
        ..base.clone()
    };
    let default = Policy {
        label: "default".into(),
        protection: Protection::None,
    };
    let run = bed.measure(&default, &load)?.run;
    let replies_per_s = run.tally.wire.replies as f64 / window.as_secs_f64();
    Ok((run.offered_per_s, replies_per_s))
}
