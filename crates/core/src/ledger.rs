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
    /// Looks whether the claims of CPU `of` are delivered; `made` and `mark` were read.
    Settle {
        of: usize,
        made: u32,
        mark: Mark,
    },
    /// Takes those that are out of the claims; `resolved` was read.
    TakeOut {
        of: usize,
        resolved: u32,
        delivered: u32,
    },
}

/// So many claims were made when the CPU had taken up so many packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    made: u32,
    taken: u32,
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    made: u32,
    resolved: u32,
    /// Packets that it has taken up, ever.
    taken: u32,
    mark: Mark,
    /// Packets in the receive batch.
    held: u32,
    /// Of those, SYNs that were let in.
    batch: u32,
    delivered: u32,
}

/// A listening socket under several CPUs.
#[derive(Debug, Clone)]
pub struct Ledger {
    places: u32,
    batch_max: u32,
    /// No lookup finds a connection: it is over as soon as the kernel has counted it.
    short: bool,
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
            short: false,
            claims: 0,
            kernel: 0,
            cpus: vec![Cpu::default(); cpus],
            steps,
        }
    }

    /// The same where clients are gone before a lookup finds their connections.
    pub fn with_short_connections(mut self) -> Ledger {
        self.short = true;
        self
    }

    /// Claims that may stand between a SYN and a place.
    pub fn outstanding(&self) -> u32 {
        self.claims
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
            Step::Idle => self.begin(i, settle_of),
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
            Step::Settle { of, made, mark } => {
                let resolved = self.cpus[of].resolved;
                match self.delivered(of, made, mark) {
                    Some(delivered) => Step::TakeOut {
                        of,
                        resolved,
                        delivered,
                    },
                    None => Step::Idle,
                }
            }
            Step::TakeOut {
                of,
                resolved,
                delivered,
            } => {
                self.take_out(of, resolved, delivered);
                Step::Idle
            }
        };
    }

    fn begin(&mut self, i: usize, settle_of: Option<usize>) -> Step {
        match settle_of {
            Some(of) => {
                let c = &self.cpus[of];
                Step::Settle {
                    of,
                    made: c.made,
                    mark: c.mark,
                }
            }
            None => {
                self.take_up(i);
                self.claims += 1;
                Step::ReadClaims
            }
        }
    }

    /// An idle CPU takes up a packet that is no SYN.
    pub fn other_packet(&mut self, i: usize) {
        if self.steps[i] == Step::Idle {
            self.take_up(i);
        }
    }

    fn take_up(&mut self, i: usize) {
        // The batch is full: the receive path delivers it before it takes another packet.
        if self.cpus[i].held >= self.batch_max {
            self.deliver(i);
        }
        self.cpus[i].held += 1;
        self.cpus[i].taken += 1;
    }

    fn commit(&mut self, i: usize) {
        let c = &mut self.cpus[i];
        c.made += 1;
        c.batch += 1;
        let (made, resolved, mark) = (c.made, c.resolved, c.mark);
        if c.taken - mark.taken >= self.batch_max {
            c.mark = Mark {
                made,
                taken: c.taken,
            };
            self.take_out(i, resolved, mark.made);
        }
    }

    /// How many claims are known to be delivered. A lookup finds the last one only when it is, and then all before it are.
    /// Those up to the mark are when enough packets came after.
    fn delivered(&self, of: usize, made: u32, mark: Mark) -> Option<u32> {
        let c = &self.cpus[of];
        if c.delivered == c.made && !self.short {
            return Some(made);
        }
        (c.taken - mark.taken >= self.batch_max).then_some(mark.made)
    }

    fn take_out(&mut self, of: usize, resolved: u32, delivered: u32) {
        // Read after `delivered`, `resolved` may be past it.
        if self.cpus[of].resolved == resolved && delivered > resolved {
            self.cpus[of].resolved = delivered;
            self.claims -= delivered - resolved;
        }
    }

    /// The stack takes CPU `i`'s batch and counts it, unless the CPU has a SYN in its hands.
    pub fn deliver(&mut self, i: usize) {
        let holds_a_syn = matches!(
            self.steps[i],
            Step::ReadClaims | Step::ReadKernel { .. } | Step::Commit | Step::Cancel
        );
        if holds_a_syn {
            return;
        }
        let c = &mut self.cpus[i];
        c.held = 0;
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
            short in any::<bool>(),
            moves in prop::collection::vec((0usize..5, 0u8..14, 0usize..5), 50..600),
        ) {
            let mut ledger = Ledger { short, ..Ledger::new(places, cpus, batch_max) };
            for (cpu, what, other) in moves {
                let (cpu, other) = (cpu % cpus, other % cpus);
                match what {
                    0 => ledger.deliver(cpu),
                    1 => ledger.accept(),
                    2 | 3 => ledger.step(cpu, Some(other)),
                    4 | 5 => ledger.other_packet(cpu),
                    _ => ledger.step(cpu, None),
                }
                prop_assert!(ledger.promised() <= places, "{ledger:?}");
            }
        }

        #[test]
        fn short_connections_hold_few_places(cpus in 1usize..5, packets in 1u32..8) {
            let mut ledger = Ledger::new(1000, cpus, 8).with_short_connections();
            let most = cpus as u32 * 2 * 8u32.div_ceil(1 + packets);
            for round in 0..cpus * 200 {
                let cpu = round % cpus;
                (0..4).for_each(|_| ledger.step(cpu, None));
                ledger.deliver(cpu);
                ledger.accept();
                for _ in 0..packets {
                    ledger.other_packet(cpu);
                    ledger.deliver(cpu);
                }
                prop_assert!(ledger.outstanding() <= most, "{} of {most}", ledger.outstanding());
            }
        }

        #[test]
        fn every_place_is_given_away_in_the_end(places in 1u32..40, cpus in 1usize..4) {
            let mut ledger = Ledger::new(places, cpus, 8);
            for round in 0..places as usize * 4 {
                let cpu = round % cpus;
                (0..4).for_each(|_| ledger.step(cpu, None));
                ledger.deliver(cpu);
                (0..3).for_each(|_| ledger.step(cpu, Some(cpu)));
            }
            prop_assert_eq!(ledger.counted(), places);
        }
    }
}
