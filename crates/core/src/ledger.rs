//! A model of the claims ledger (bpf/lib/ledger.bpf.h) at the grain of its memory accesses, so that
//! tests can interleave the CPUs in every order.
//!
//! A SYN that the guard lets in is a claim until the kernel counts it. The order of accesses is what
//! makes over-admission impossible: a CPU adds its claim, then reads the claims of all, then the
//! kernel's counters.

/// What one CPU does next about the SYN in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    ReadClaims,
    ReadKernel {
        claims: u32,
    },
    Commit,
    Cancel,
    /// Looks whether the claims of CPU `of` are delivered; `made` and `resolved` were read.
    Settle {
        of: usize,
        made: u32,
        resolved: u32,
    },
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    made: u32,
    resolved: u32,
    /// SYNs let in that are still in the receive batch.
    batch: u32,
    delivered: u32,
}

/// A listening socket under several CPUs.
#[derive(Debug, Clone)]
pub struct Ledger {
    places: u32,
    batch_max: u32,
    claims: u32,
    kernel: u32,
    cpus: Vec<Cpu>,
    steps: Vec<Step>,
}

impl Ledger {
    /// A socket with `places` places, `cpus` CPUs and receive batches of at most `batch_max`.
    pub fn new(places: u32, cpus: usize, batch_max: u32) -> Ledger {
        let steps = vec![Step::Idle; cpus];
        Ledger {
            places,
            batch_max,
            claims: 0,
            kernel: 0,
            cpus: vec![Cpu::default(); cpus],
            steps,
        }
    }

    /// Connections that the kernel counts or will: never more than the places.
    pub fn promised(&self) -> u32 {
        self.kernel + self.cpus.iter().map(|c| c.batch).sum::<u32>()
    }

    /// Connections that the kernel counts.
    pub fn counted(&self) -> u32 {
        self.kernel
    }

    /// CPU `i` makes one memory access. An idle one takes up a SYN, or with `settle_of` looks into the
    /// claims of that CPU.
    pub fn step(&mut self, i: usize, settle_of: Option<usize>) {
        self.steps[i] = match self.steps[i] {
            Step::Idle => self.begin(settle_of),
            Step::ReadClaims => Step::ReadKernel {
                claims: self.claims - 1,
            },
            Step::ReadKernel { claims } if claims + self.kernel < self.places => Step::Commit,
            Step::ReadKernel { .. } => Step::Cancel,
            Step::Cancel => {
                self.claims -= 1;
                Step::Idle
            }
            Step::Commit => {
                self.commit(i);
                Step::Idle
            }
            Step::Settle { of, made, resolved } => {
                self.settle(of, made, resolved);
                Step::Idle
            }
        };
    }

    fn begin(&mut self, settle_of: Option<usize>) -> Step {
        match settle_of {
            Some(of) => {
                let c = &self.cpus[of];
                Step::Settle {
                    of,
                    made: c.made,
                    resolved: c.resolved,
                }
            }
            None => {
                self.claims += 1;
                Step::ReadClaims
            }
        }
    }

    fn commit(&mut self, i: usize) {
        // The batch is full: the receive path delivers it before it takes another packet.
        if self.cpus[i].batch >= self.batch_max {
            self.deliver(i);
        }
        let c = &mut self.cpus[i];
        c.made += 1;
        c.batch += 1;
        let (made, resolved) = (c.made, c.resolved);
        if made - resolved >= 2 * self.batch_max {
            self.take_out(i, resolved, made - self.batch_max);
        }
    }

    /// A lookup finds the last claim only when it is delivered, and then all before it are.
    fn settle(&mut self, of: usize, made: u32, resolved: u32) {
        let c = &self.cpus[of];
        if made != resolved && c.delivered == c.made {
            self.take_out(of, resolved, made);
        }
    }

    fn take_out(&mut self, of: usize, resolved: u32, delivered: u32) {
        if self.cpus[of].resolved == resolved {
            self.cpus[of].resolved = delivered;
            self.claims -= delivered - resolved;
        }
    }

    /// The stack takes CPU `i`'s batch and counts it.
    pub fn deliver(&mut self, i: usize) {
        let c = &mut self.cpus[i];
        self.kernel += c.batch;
        c.delivered += c.batch;
        c.batch = 0;
    }

    /// The server accepts one connection.
    pub fn accept(&mut self) {
        self.kernel = self.kernel.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_interleaving_promises_a_place_twice(
            places in 1u32..12,
            cpus in 1usize..5,
            batch_max in 1u32..9,
            moves in prop::collection::vec((0usize..5, 0u8..12, 0usize..5), 50..600),
        ) {
            let mut ledger = Ledger::new(places, cpus, batch_max);
            for (cpu, what, other) in moves {
                let (cpu, other) = (cpu % cpus, other % cpus);
                match what {
                    0 => ledger.deliver(cpu),
                    1 => ledger.accept(),
                    2 | 3 => ledger.step(cpu, Some(other)),
                    _ => ledger.step(cpu, None),
                }
                prop_assert!(ledger.promised() <= places, "{ledger:?}");
            }
        }

        #[test]
        fn every_place_is_given_away_in_the_end(places in 1u32..40, cpus in 1usize..4) {
            let mut ledger = Ledger::new(places, cpus, 8);
            for round in 0..places as usize * 4 {
                let cpu = round % cpus;
                (0..4).for_each(|_| ledger.step(cpu, None));
                ledger.deliver(cpu);
                (0..2).for_each(|_| ledger.step(cpu, Some(cpu)));
            }
            prop_assert_eq!(ledger.counted(), places);
        }
    }
}
