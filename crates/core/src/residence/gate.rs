//! What the guard lets in until the next pass.

use std::time::Duration;

/// What the guard is to let in until the next pass: in requests as [`super::Limiter`] makes it, in connections after
/// [`Gate::for_connections`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// So many may come now; below 0, so many are to be answered first.
    pub room: f64,
    /// So many more each second; above 0.
    pub per_s: f64,
    /// At most so many at once.
    pub burst: f64,
    /// However many are outstanding, so many may come now: how these are answered shows whether others would wait.
    pub probes: f64,
    /// And so many more each second.
    pub probes_per_s: f64,
}

impl Gate {
    /// The same in connections, each of which brings so many requests (above 0).
    pub fn for_connections(&self, requests_each: f64) -> Gate {
        Gate {
            room: self.room / requests_each,
            per_s: self.per_s / requests_each,
            burst: (self.burst / requests_each).max(1.0),
            probes: self.probes / requests_each,
            probes_per_s: self.probes_per_s / requests_each,
        }
    }
}

/// Where the controller holds classes to what there is room for, so many times that may be outstanding before all are refused
/// alike: high classes come in beyond it.
const BESIDE_CONTROLLER: f64 = 2.0;

impl Gate {
    /// The same beside a controller that knows it.
    pub fn beside_controller(&self) -> Gate {
        let more = (BESIDE_CONTROLLER - 1.0) * self.burst;
        Gate {
            room: self.room + more,
            burst: self.burst + more,
            ..*self
        }
    }
}

/// Answers are counted in so many parts of a nanosecond.
pub const RATE_SHIFT: u32 = 40;
/// So long a gate holds without another pass: the daemon may have gone.
pub const GATE_HOLDS: Duration = Duration::from_secs(3);

/// About as long as a gate holds until the next pass.
const UNTIL_NEXT: f64 = 0.25;

impl Gate {
    /// The same; or what comes however many are outstanding, where until the next pass that is more.
    fn or_probes(self) -> Gate {
        let probes = Gate {
            room: self.probes,
            per_s: self.probes_per_s,
            burst: self.probes.max(1.0),
            ..self
        };
        let lets_in = |gate: &Gate| gate.room + gate.per_s * UNTIL_NEXT;
        match lets_in(&self) < lets_in(&probes) {
            true => probes,
            false => self,
        }
    }
}

/// A gate as the guard gets it (struct residence_gate). What it lets in: the model in `weir-models`, and bpf/lib/gate.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateState {
    /// In force until then, ns; 0: it is not.
    pub until_ns: u64,
    /// The pass that it is of, ns.
    pub since_ns: u64,
    /// So many may come; below 0, so many are to be answered first.
    pub room: i64,
    /// And one more for each answer: answers in 2^40 ns.
    pub rate: u64,
    /// At most so many at once.
    pub burst: u64,
    /// Connections let in since the pass.
    pub taken: u64,
}

impl GateState {
    /// Of a pass at this time.
    pub fn new(gate: &Gate, now_ns: u64) -> GateState {
        let gate = gate.or_probes();
        // Its product with GATE_HOLDS fits 63 bits.
        let rate = gate.per_s / 1e9 * (1u64 << RATE_SHIFT) as f64;
        GateState {
            until_ns: now_ns + GATE_HOLDS.as_nanos() as u64,
            since_ns: now_ns,
            room: gate.room.floor() as i64,
            rate: (rate as u64).min(u64::from(u32::MAX >> 1)),
            burst: gate.burst as u64,
            taken: 0,
        }
    }
}
