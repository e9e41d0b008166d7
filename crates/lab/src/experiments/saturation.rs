//! Where the unprotected server saturates: the peak of its throughput over a sweep of rates.

use std::time::Duration;

use super::point::Stage;
use super::policy::{Policy, Protection};
use crate::client::Load;
use crate::error::Result;

/// The search doubles the rate until the server serves less than this share of it.
const KEPT_UP: f64 = 0.9;
/// Then it looks around the best throughput found, at these multiples of it.
const SWEEP: [f64; 6] = [0.9, 0.95, 1.0, 1.05, 1.15, 1.3];
/// And again at these, beside each round.
const BESIDE: [f64; 2] = [1.0, 1.15];
/// Search no further; the generator itself ends about here.
const MAX_RATE_PER_S: f64 = 160_000.0;

/// The peak throughput of the stage's server without protection, replies/s. `base` gives all but
/// the rate; `first_rate_per_s` should be below saturation; `report` is told each point (offered/s,
/// replies/s).
pub fn find(
    stage: &mut Stage,
    base: &Load,
    first_rate_per_s: f64,
    mut report: impl FnMut(f64, f64),
) -> Result<f64> {
    let mut throughput =
        |rate_per_s, window| unprotected(stage, base, rate_per_s, window, &mut report);
    let mut peak: f64 = 0.0;
    let mut rate_per_s = first_rate_per_s;
    while rate_per_s <= MAX_RATE_PER_S {
        let served = throughput(rate_per_s, Duration::from_millis(600))?;
        peak = peak.max(served);
        if served < KEPT_UP * rate_per_s {
            break;
        }
        rate_per_s *= 2.0;
    }
    let rough = peak;
    for multiple in SWEEP {
        peak = peak.max(throughput(rough * multiple, Duration::from_millis(1500))?);
    }
    Ok(peak)
}

/// The same once more, close to a peak known from [`find`]: machines get slower and faster by the
/// minute, so what is compared with the peak must be measured beside it.
pub fn again(
    stage: &mut Stage,
    base: &Load,
    peak_per_s: f64,
    mut report: impl FnMut(f64, f64),
) -> Result<f64> {
    let mut peak: f64 = 0.0;
    for multiple in BESIDE {
        let window = Duration::from_millis(2000);
        let served = unprotected(stage, base, peak_per_s * multiple, window, &mut report)?;
        peak = peak.max(served);
    }
    Ok(peak)
}

/// Replies/s of the unprotected server at one rate, over the window, after a warm-up of a quarter of it.
fn unprotected(
    stage: &mut Stage,
    base: &Load,
    rate_per_s: f64,
    window: Duration,
    report: &mut impl FnMut(f64, f64),
) -> Result<f64> {
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
    let run = stage.measure(&default, &load)?.run;
    let replies_per_s = run.tally.wire.replies as f64 / window.as_secs_f64();
    report(run.offered_per_s, replies_per_s);
    Ok(replies_per_s)
}
