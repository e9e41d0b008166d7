//! A model of the claims ledger (bpf/lib/ledger.h) and of the kernel behind it, at the grain of their memory accesses,
//! so that tests can interleave the CPUs in every order.
//!
//! A SYN that the guard lets in is a claim until the kernel counts it. A CPU looks at the claims of all and at the kernel's
//! counters: half-open connections first, waiting ones after. Then it adds its claim, and if there is no place for it beside
//! what it has seen and all that were let in since, it reads the claims and counters again. The kernel puts a request where
//! lookups find it before it counts it, and takes a connection out of the one counter before it puts it into the other.

use std::collections::VecDeque;

/// What one CPU does next about the SYN in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    /// Before it claims. `let_in`: connections let in, ever, when the claims were read.
    SeeHalfOpen {
        claims: u32,
        let_in: u32,
    },
    SeeWaiting {
        counted: u32,
        let_in: u32,
    },
    Claim {
        seen: u32,
        let_in: u32,
    },
    ReadHalfOpen {
        claims: u32,
    },
    ReadWaiting {
        counted: u32,
    },
    Decide {
        counted: u32,
    },
    Commit,
    Cancel,
    /// Looks whether the claims of CPU `of` are delivered; `made` and `mark` were read.
    Settle {
        of: usize,
        made: u32,
        mark: Mark,
        now: u32,
    },
    /// Takes those that are out of the claims; `resolved` was read.
    TakeOut {
        of: usize,
        resolved: u32,
        delivered: u32,
    },
}

/// So many claims were made when the CPU had taken up so many packets, at this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    made: u32,
    taken: u32,
    at: u32,
}

/// A packet that the guard let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packet {
    Syn,
    /// Ends a handshake.
    FinalAck,
}

/// What the stack has in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stack {
    #[default]
    Nothing,
    /// `inet_csk_reqsk_queue_hash_add()`: found by lookups, not counted.
    Inserted,
    /// `inet_csk_complete_hashdance()`: no longer half-open, not yet waiting.
    Established,
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    made: u32,
    resolved: u32,
    /// Packets that it has taken up, ever.
    taken: u32,
    /// Of those, when the last claim was made; and the clock then.
    packet: u32,
    at: u32,
    mark: Mark,
    /// Packets in the receive batch, and the clock when it began.
    held: u32,
    since: u32,
    /// Of those, the ones that the guard let pass.
    batch: VecDeque<Packet>,
    /// The stack takes the batch.
    delivers: bool,
    stack: Stack,
    inserted: u32,
}

/// A listening socket under several CPUs.
#[derive(Debug, Clone)]
pub struct Ledger {
    places: u32,
    batch_max: u32,
    /// Places held back for what other CPUs have in their hands, at most.
    held_back: u32,
    /// Ticks after which a claim is over.
    expires: u32,
    /// No lookup finds a connection: it is over as soon as the kernel has counted it.
    short: bool,
    now: u32,
    claims: u32,
    /// Claims that were made and not cancelled, ever. One word with those that stand.
    let_in: u32,
    half_open: u32,
    waiting: u32,
    cpus: Vec<Cpu>,
    steps: Vec<Step>,
}

impl Ledger {
    /// A socket with `places` places, `cpus` CPUs and receive batches of at most `batch_max`. Claims are over after two
    /// ticks, as at 100 Hz, and a place is held back for each other CPU.
    pub fn new(places: u32, cpus: usize, batch_max: u32) -> Ledger {
        Ledger {
            places,
            batch_max,
            held_back: u32::MAX,
            expires: 2,
            short: false,
            now: 0,
            claims: 0,
            let_in: 0,
            half_open: 0,
            waiting: 0,
            cpus: vec![Cpu::default(); cpus],
            steps: vec![Step::Idle; cpus],
        }
    }

    /// The same where clients are gone before a lookup finds their connections.
    pub fn with_short_connections(mut self) -> Ledger {
        self.short = true;
        self
    }

    /// The same with so many places held back at most.
    pub fn holding_back(mut self, most: u32) -> Ledger {
        self.held_back = most;
        self
    }

    /// The same where claims are over after so many ticks.
    pub fn with_claims_over_after(mut self, ticks: u32) -> Ledger {
        self.expires = ticks;
        self
    }

    /// Claims that may stand between a SYN and a place.
    pub fn outstanding(&self) -> u32 {
        self.claims
    }

    /// Connections that the kernel counts or will: never more than the places.
    pub fn promised(&self) -> u32 {
        let of = |c: &Cpu| {
            let syns = c.batch.iter().filter(|p| **p == Packet::Syn).count() as u32;
            syns + u32::from(c.stack != Stack::Nothing)
        };
        self.half_open + self.waiting + self.cpus.iter().map(of).sum::<u32>()
    }

    /// Connections that the kernel counts.
    pub fn counted(&self) -> u32 {
        self.half_open + self.waiting
    }

    /// Time goes on by a tick, if no CPU has stood still with a batch for longer than so many.
    pub fn tick(&mut self, stands: u32) {
        let may = |c: &Cpu| c.held == 0 || self.now + 1 - c.since <= stands;
        if self.cpus.iter().all(may) {
            self.now += 1;
        }
    }

    /// CPU `i` makes one memory access. One that holds no SYN takes one up, or with `settle_of` looks into the claims of
    /// that CPU.
    pub fn step(&mut self, i: usize, settle_of: Option<usize>) {
        if self.cpus[i].delivers {
            return self.stack_step(i);
        }
        self.steps[i] = match self.steps[i] {
            Step::Idle => self.begin(i, settle_of),
            Step::SeeHalfOpen { claims, let_in } => Step::SeeWaiting {
                counted: claims + self.half_open,
                let_in,
            },
            Step::SeeWaiting { counted, let_in } => Step::Claim {
                seen: counted + self.waiting + self.uncounted(i),
                let_in,
            },
            Step::Claim { seen, let_in } => self.claim(seen, let_in),
            Step::ReadHalfOpen { claims } => Step::ReadWaiting {
                counted: claims + self.half_open,
            },
            Step::ReadWaiting { counted } => Step::Decide {
                counted: counted + self.waiting,
            },
            Step::Decide { counted } if counted + self.uncounted(i) < self.places => Step::Commit,
            Step::Decide { .. } => Step::Cancel,
            Step::Cancel => {
                self.claims -= 1;
                self.let_in -= 1;
                Step::Idle
            }
            Step::Commit => {
                self.commit(i);
                Step::Idle
            }
            Step::Settle {
                of,
                made,
                mark,
                now,
            } => {
                let resolved = self.cpus[of].resolved;
                match self.delivered(of, made, mark, now) {
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

    /// Other CPUs that have let a SYN in: each may have one connection in its hands.
    fn uncounted(&self, i: usize) -> u32 {
        let others = self.cpus.iter().enumerate();
        let others = others
            .filter(|(other, c)| *other != i && c.made > 0)
            .count();
        (others as u32).min(self.held_back)
    }

    fn begin(&mut self, i: usize, settle_of: Option<usize>) -> Step {
        match settle_of {
            Some(of) => {
                let c = &self.cpus[of];
                Step::Settle {
                    of,
                    made: c.made,
                    mark: c.mark,
                    now: self.now,
                }
            }
            None if self.take_up(i) => Step::SeeHalfOpen {
                claims: self.claims,
                let_in: self.let_in,
            },
            None => Step::Idle,
        }
    }

    /// So many connections were seen when so many had been let in.
    fn claim(&mut self, seen: u32, let_in: u32) -> Step {
        let others = self.claims;
        // Those that were cancelled since are among the ones that were seen.
        let by_now = (seen + self.let_in) - let_in;
        self.claims += 1;
        self.let_in += 1;
        if by_now < self.places {
            Step::Commit
        } else {
            Step::ReadHalfOpen { claims: others }
        }
    }

    /// A CPU that holds no SYN takes up a packet that is none; `ends`: it ends a handshake. Receive steering sends that to
    /// the CPU that had the SYN.
    pub fn other_packet(&mut self, i: usize, ends: bool) {
        let idle = self.steps[i] == Step::Idle && !self.cpus[i].delivers;
        if idle && self.take_up(i) && ends && self.cpus[i].made > 0 {
            self.cpus[i].batch.push_back(Packet::FinalAck);
        }
    }

    /// False: the batch is full, and the receive path delivers it before it takes another packet.
    fn take_up(&mut self, i: usize) -> bool {
        if self.cpus[i].held >= self.batch_max {
            self.deliver(i);
            return false;
        }
        let now = self.now;
        let c = &mut self.cpus[i];
        if c.held == 0 {
            c.since = now;
        }
        c.held += 1;
        c.taken += 1;
        true
    }

    fn commit(&mut self, i: usize) {
        let now = self.now;
        let c = &mut self.cpus[i];
        c.made += 1;
        (c.packet, c.at) = (c.taken, now);
        c.batch.push_back(Packet::Syn);
        let (made, taken, resolved, mark) = (c.made, c.taken, c.resolved, c.mark);
        if self.is_passed(taken, mark, now) {
            self.cpus[i].mark = Mark {
                made,
                taken,
                at: now,
            };
            self.take_out(i, resolved, mark.made);
        }
    }

    /// Whether what was claimed before the mark is delivered: its CPU has taken up enough packets since, `taken` by now, or
    /// the mark is old.
    fn is_passed(&self, taken: u32, mark: Mark, now: u32) -> bool {
        taken - mark.taken >= self.batch_max || now.saturating_sub(mark.at) >= self.expires
    }

    /// How many claims are known to be delivered. A lookup finds the last one only when it is, but for being counted, and
    /// then all before it are. Those up to the mark are when enough packets came after, or enough time has passed.
    fn delivered(&self, of: usize, made: u32, mark: Mark, now: u32) -> Option<u32> {
        let c = &self.cpus[of];
        let is_over = now.saturating_sub(c.at) >= self.expires;
        let found = c.inserted == c.made && !self.short;
        if found || is_over || c.taken - c.packet >= self.batch_max {
            return Some(made);
        }
        self.is_passed(c.taken, mark, now).then_some(mark.made)
    }

    fn take_out(&mut self, of: usize, resolved: u32, delivered: u32) {
        // Read after `delivered`, `resolved` may be past it.
        if self.cpus[of].resolved == resolved && delivered > resolved {
            self.cpus[of].resolved = delivered;
            self.claims -= delivered - resolved;
        }
    }

    /// The stack begins to take CPU `i`'s batch, unless the CPU has a packet in its hands.
    pub fn deliver(&mut self, i: usize) {
        self.cpus[i].delivers |= self.steps[i] == Step::Idle;
    }

    /// The same, to its end.
    pub fn deliver_all(&mut self, i: usize) {
        self.deliver(i);
        while self.cpus[i].delivers {
            self.stack_step(i);
        }
    }

    /// The stack makes one access to a counter or table.
    fn stack_step(&mut self, i: usize) {
        let c = &mut self.cpus[i];
        match c.stack {
            Stack::Inserted => self.half_open += 1,
            Stack::Established => self.waiting += 1,
            Stack::Nothing => {
                match c.batch.pop_front() {
                    Some(Packet::Syn) => {
                        c.inserted += 1;
                        c.stack = Stack::Inserted;
                    }
                    Some(Packet::FinalAck) if self.half_open > 0 => {
                        self.half_open -= 1;
                        c.stack = Stack::Established;
                    }
                    Some(Packet::FinalAck) => {}
                    None => (c.held, c.delivers) = (0, false),
                }
                return;
            }
        }
        c.stack = Stack::Nothing;
    }

    /// The server accepts one connection.
    pub fn accept(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A CPU, what happens there, and another CPU.
    type Move = (usize, u8, usize);

    fn moves(cpus: usize, most: usize) -> impl Strategy<Value = Vec<Move>> {
        prop::collection::vec((0..cpus, 0u8..18, 0..cpus), most / 10..most)
    }

    /// `stands`: ticks for which a CPU may stand still with a batch. Returns the most that was ever promised.
    fn play(ledger: &mut Ledger, moves: &[Move], stands: u32) -> u32 {
        let mut most = 0;
        for &(cpu, what, other) in moves {
            match what {
                0 | 1 => ledger.deliver(cpu),
                2 => ledger.accept(),
                3 | 4 => ledger.step(cpu, Some(other)),
                5 => ledger.other_packet(cpu, false),
                6 | 7 => ledger.other_packet(cpu, true),
                8 => ledger.tick(stands),
                _ => ledger.step(cpu, None),
            }
            most = most.max(ledger.promised());
        }
        most
    }

    /// All that CPU `i` does about one SYN, or one look into the claims of a CPU.
    fn whole_step(ledger: &mut Ledger, i: usize, settle_of: Option<usize>) {
        ledger.step(i, settle_of);
        while ledger.steps[i] != Step::Idle {
            ledger.step(i, None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_interleaving_promises_a_place_twice(
            places in 1u32..12,
            cpus in 1usize..5,
            batch_max in 1u32..9,
            short in any::<bool>(),
            // 100 Hz: the tick that comes in the middle of a batch; 1000 Hz; a stop of 50 ms at each.
            (expires, stands) in prop::sample::select(vec![(2, 1), (9, 8), (11, 5), (101, 50)]),
            moves in moves(5, 800),
        ) {
            let mut ledger = Ledger { short, ..Ledger::new(places, cpus, batch_max) }
                .with_claims_over_after(expires);
            let moves: Vec<_> = moves.iter().map(|(a, what, b)| (a % cpus, *what, b % cpus)).collect();
            let most = play(&mut ledger, &moves, stands);
            prop_assert!(most <= places, "{most} of {places}: {ledger:?}");
        }

        #[test]
        fn by_so_many_places_fewer_held_back_are_too_many_promised_at_most(
            places in 1u32..12, cpus in 1usize..9, held_back in 0u32..4, moves in moves(9, 800),
        ) {
            let mut ledger = Ledger::new(places, cpus, 4).holding_back(held_back);
            let moves: Vec<_> = moves.iter().map(|(a, what, b)| (a % cpus, *what, b % cpus)).collect();
            let too_many = (cpus as u32 - 1).saturating_sub(held_back);
            prop_assert!(play(&mut ledger, &moves, 1) <= places + too_many);
        }

        #[test]
        fn short_connections_hold_few_places(cpus in 1usize..5, packets in 1u32..8) {
            let mut ledger = Ledger::new(1000, cpus, 8).with_short_connections();
            let most = cpus as u32 * 2 * 8u32.div_ceil(1 + packets);
            for round in 0..cpus * 200 {
                let cpu = round % cpus;
                whole_step(&mut ledger, cpu, None);
                ledger.other_packet(cpu, true);
                ledger.deliver_all(cpu);
                ledger.accept();
                for _ in 1..packets {
                    ledger.other_packet(cpu, false);
                    ledger.deliver_all(cpu);
                }
                prop_assert!(ledger.outstanding() <= most, "{} of {most}", ledger.outstanding());
            }
        }

        /// The stack drops each SYN, for which no lookup finds anything then, and so few come that a batch takes long.
        #[test]
        fn syns_that_the_stack_drops_hold_places_for_twice_the_age_of_claims(expires in 1u32..8, per_tick in 1usize..4) {
            let mut ledger = Ledger::new(1000, 1, 64)
                .with_short_connections()
                .with_claims_over_after(expires);
            for _ in 0..100 {
                for _ in 0..per_tick {
                    whole_step(&mut ledger, 0, None);
                    ledger.deliver_all(0);
                }
                whole_step(&mut ledger, 0, Some(0));
                ledger.tick(0);
                prop_assert!(ledger.outstanding() <= 2 * expires * per_tick as u32, "{}", ledger.outstanding());
            }
        }

        #[test]
        fn every_place_is_given_away_in_the_end(places in 1u32..40, cpus in 1usize..4) {
            let mut ledger = Ledger::new(places, cpus, 8).holding_back(places / 8);
            for round in 0..places as usize * 4 {
                let cpu = round % cpus;
                whole_step(&mut ledger, cpu, None);
                ledger.deliver_all(cpu);
                whole_step(&mut ledger, cpu, Some(cpu));
            }
            // But for those that are held back for what other CPUs may have in their hands.
            prop_assert_eq!(ledger.counted(), places - (places / 8).min(cpus as u32 - 1));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Each of the others is stopped with a connection in its hands that no counter has, and all claims are settled.
        #[test]
        fn no_interleaving_promises_a_place_twice_on_64_cpus(
            places in 64u32..400,
            batch_max in prop::sample::select(vec![8u32, 64]),
            established in prop::collection::vec(any::<bool>(), 64),
        ) {
            let mut ledger = Ledger::new(places, 64, batch_max);
            for (cpu, established) in established.into_iter().enumerate().skip(1) {
                whole_step(&mut ledger, cpu, None);
                if established {
                    ledger.deliver_all(cpu);
                    ledger.other_packet(cpu, true);
                }
                ledger.deliver(cpu);
                ledger.step(cpu, None);
                (0..3).for_each(|_| ledger.step(0, Some(cpu)));
            }
            prop_assert_eq!((ledger.outstanding(), ledger.promised()), (0, 63));
            for _ in 0..places {
                whole_step(&mut ledger, 0, None);
                ledger.deliver_all(0);
                whole_step(&mut ledger, 0, Some(0));
            }
            prop_assert_eq!(ledger.promised(), places);
        }
    }
}
