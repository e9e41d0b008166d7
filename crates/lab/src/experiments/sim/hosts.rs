//! What the simulations have in common: hosts and the two links.

use weir_sim::aqm::{Discipline, Setup};
use weir_sim::connection::TcpSpec;
use weir_sim::tcp::Algorithm;
use weir_sim::{LinkSpec, Loss, Plan, Scenario};

use crate::error::{Error, Result};

/// Delays of the two wires, ms (BHD18, Table III).
const DOWN_MS: u64 = 42;
const UP_MS: u64 = 52;
/// Connections may end so long after the last one has begun, s.
pub const DRAIN_S: f64 = 60.0;

/// Flags of the hosts and the disciplines.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Hosts {
    /// Initial window, segments
    #[arg(long, default_value_t = 10.0)]
    pub initial_window: f64,
    /// Reno instead of CUBIC
    #[arg(long)]
    pub reno: bool,
    /// ECN at all hosts and in all disciplines that can mark
    #[arg(long)]
    pub ecn: bool,
    /// Delay that CoDel, FQ-CoDel and SPA keep, ms
    #[arg(long, default_value_t = 5)]
    pub target_ms: u64,
}

impl Hosts {
    /// Checks them.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String, rule| Err(Error::usage(what, rule));
        match () {
            () if !(1.0..=1000.0).contains(&self.initial_window) => bad(
                format!("bad --initial-window {}", self.initial_window),
                "it must be 1 to 1000 segments",
            ),
            () if !(1..=1000).contains(&self.target_ms) => bad(
                format!("bad --target-ms {}", self.target_ms),
                "it must be 1 to 1000 ms",
            ),
            () => Ok(()),
        }
    }

    fn tcp(&self) -> TcpSpec {
        TcpSpec {
            algorithm: match self.reno {
                true => Algorithm::Reno,
                false => Algorithm::Cubic,
            },
            initial_window: self.initial_window,
            ecn: self.ecn,
        }
    }

    fn link(&self, discipline: Discipline, bits_per_s: u64, delay_ms: u64) -> LinkSpec {
        LinkSpec {
            discipline,
            setup: Setup {
                target_ns: self.target_ms * 1_000_000,
                ecn: self.ecn,
                ..Setup::of_ip(bits_per_s / 8)
            },
            delay_ns: delay_ms * 1_000_000,
            loss: Loss::default(),
            passes_at_once: false,
        }
    }

    /// A downlink and an uplink of these rates, bit/s.
    pub fn scenario(&self, down: (Discipline, u64), up: (Discipline, u64), plan: Plan) -> Scenario {
        Scenario {
            down: self.link(down.0, down.1, DOWN_MS),
            up: self.link(up.0, up.1, UP_MS),
            tcp: self.tcp(),
            plan,
            flood: None,
            drain_s: DRAIN_S,
            marks_s: Vec::new(),
        }
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        format!(
            "{}, initial window {}{}, target {} ms",
            if self.reno { "Reno" } else { "CUBIC" },
            self.initial_window,
            if self.ecn { ", ECN" } else { "" },
            self.target_ms
        )
    }
}
