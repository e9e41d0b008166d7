//! The judge, and the experiment with it.

use weir_sim::aqm::pie::Pie;
use weir_sim::aqm::{AnyQueue, Discipline, PieParams, Setup};
use weir_sim::{Outcome, Plan};

use super::hosts::{self, Hosts};
use super::qdiscs::{limit, note_kernel};
use super::replay;
use crate::error::Result;
use crate::experiments::judges::arrivals::{Arrival, FULL_BYTES};
use crate::experiments::judges::model::{self, Departures, Numbered};
use crate::experiments::judges::trial::{Common, DRAIN_S, Job, Judge, Trial};
use crate::run::experiment::{Entry, Experiment, Flags, Program, check_seconds};
use crate::run::results::Facts;

/// The experiment.
pub const ENTRY: Entry = Entry::new::<Args>(
    "judge-linux",
    "Do the kernel's own qdiscs do what the disciplines of the simulator do?",
)
.source("beyond the papers")
.flags(
    "--seconds 120 --rounds 3",
    "--what queue --seconds 10 --rounds 1 --disciplines fifo",
);

/// What both have.
const DISCIPLINES: [Discipline; 8] = [
    Discipline::Fifo,
    Discipline::Bfifo,
    Discipline::Red,
    Discipline::Codel,
    Discipline::FqCodel,
    Discipline::Pie,
    Discipline::Sfq,
    Discipline::Cake,
];
/// Header of Ethernet, bytes.
const ETHERNET_BYTES: u64 = 14;
/// Time between rounds of PIE on a kernel with 250 ticks a second, as Debian's: 15 ms are 4 ticks, and a timer that is set
/// for 4 ticks goes off with the fifth, since it must not be early.
const PIE_ROUND_NS: u64 = 20_000_000;

/// Arguments of `weir-lab judge-linux`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
    /// Disciplines [default: all that both have]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub disciplines: Vec<Discipline>,
}

impl Flags for Args {
    fn experiment(mut self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.common.seconds)?;
        if self.disciplines.is_empty() {
            self.disciplines = DISCIPLINES.to_vec();
        }
        Ok(Box::new(Trial {
            common: self.common,
            disciplines: self.disciplines,
            judge: Linux,
        }))
    }
}

/// The rate at which Ethernet's frames pass as many full packets as IP does at this one, bit/s: the kernel counts frames, and the
/// simulator's packets have no header of Ethernet.
fn of_frames(bits_per_s: u64) -> u64 {
    let frame = u64::from(FULL_BYTES);
    bits_per_s * frame / (frame - ETHERNET_BYTES)
}

#[derive(Debug)]
struct Linux;

impl Judge for Linux {
    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        note_kernel(facts)
    }

    /// The kernel's PIE has its rounds in a timer that counts in ticks.
    fn model(&self, job: Job) -> AnyQueue<Numbered> {
        if job.discipline != Discipline::Pie {
            return model::queue(job.discipline, job.rates.0);
        }
        AnyQueue::Pie(Pie::new(PieParams {
            update_ns: PIE_ROUND_NS,
            ..Setup::new(job.rates.0 / 8).pie()
        }))
    }

    /// HTB does, and CAKE.
    fn passes_at_once(&self) -> bool {
        true
    }

    fn departures(&mut self, job: Job, arrivals: &[Arrival]) -> Result<Departures> {
        replay::departures(arrivals, |router, device| {
            limit(router, device, job.rates.0, job.discipline)
        })
    }

    fn connections(&mut self, job: Job, plan: &Plan) -> Result<Outcome> {
        let hosts = Hosts::new()?;
        let (down, up) = (of_frames(job.rates.0), of_frames(job.rates.1));
        limit(&hosts.router, hosts::DOWN, down, job.discipline)?;
        limit(&hosts.router, hosts::UP, up, Discipline::Fifo)?;
        hosts.run(&plan.connections(job.seed), plan.seconds + DRAIN_S)
    }
}
