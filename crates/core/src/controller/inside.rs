//! The budget of a listener whose server queues inside: it has accepted more requests than it answers in time.
//!
//! [`crate::residence`] measures what is outstanding, and says how much there is room for. What is let in as there is room
//! is let in whatever its class; so classes are held to it before, and as much as there is room for is outstanding.

use super::queue::{Budget, LEAST_QUEUE, LEAST_SHARE, least_rate};
use super::statistics::ListenerStatistics;
use crate::residence::Gate;
use crate::units::about_rate;

/// What is outstanding beyond the limit is to be answered, or what is missing is to come, in this time, s. Passes over the
/// sockets are up to a second apart: in a shorter time, what comes between two of them would overshoot.
const CORRECTS_IN: f64 = 1.0;

/// What may come in, while the server's requests are limited. `demand`: connections/s that clients try.
pub fn budget(gate: &Gate, listener: &ListenerStatistics, demand: f64) -> Budget {
    let least = least_rate(gate.per_s);
    let rate = gate.per_s + gate.room / CORRECTS_IN;
    Budget {
        rate: rate.max(gate.per_s * LEAST_SHARE).max(least),
        least,
        room: gate.room.clamp(1.0, LEAST_QUEUE),
        reason: format!(
            "{:.0} connections have requests that the server has not answered, {:.0} may have; {} SYN/s come, {}/s are let in, {}/s answered",
            gate.burst - gate.room,
            gate.burst,
            about_rate(demand),
            about_rate(listener.admitted.mean()),
            about_rate(gate.per_s),
        ),
    }
}
