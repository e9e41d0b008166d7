//! What a gate lets in until the next pass over the sockets: the model of bpf/lib/gate.h.

use weir_core::residence::{GateState, RATE_SHIFT};

/// A gate as the guard keeps it. Its fields are those of [`GateState`], in the same units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct GuardGate {
    pub until_ns: u64,
    pub since_ns: u64,
    pub room: i64,
    pub rate: u64,
    pub burst: u64,
    pub taken: u64,
}

impl From<&GateState> for GuardGate {
    fn from(state: &GateState) -> GuardGate {
        let GateState {
            until_ns,
            since_ns,
            room,
            rate,
            burst,
            taken,
        } = *state;
        GuardGate {
            until_ns,
            since_ns,
            room,
            rate,
            burst,
            taken,
        }
    }
}

impl GuardGate {
    /// Whether a connection may come in now. Then it has its place.
    pub fn lets_in(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.until_ns {
            return true;
        }
        let elapsed = now_ns.saturating_sub(self.since_ns);
        let answered = (elapsed * self.rate) >> RATE_SHIFT;
        let allowed = self.room + answered as i64;
        // While nobody came, places were not saved up.
        if allowed - self.taken as i64 > self.burst as i64 {
            self.taken = (allowed - self.burst as i64) as u64;
        }
        let lets_in = (self.taken as i64) < allowed;
        self.taken += u64::from(lets_in);
        lets_in
    }
}
