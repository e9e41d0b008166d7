//! PIE (RFC 8033), with delays from the packets' own times (RFC 8033, Section 5.2; the default of the kernel's
//! `net/sched/sch_pie.c`).
//!
//! Each 15 ms a controller moves a probability by how far the queueing delay is from its target and by how much it
//! has changed; packets that come are dropped with it. Bursts of 150 ms pass after a quiet time.

use weir_core::aqm::PieParams;
use weir_models::aqm::packet::{Packet, mark};
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};

/// A probability of 1 (`MAX_PROB` of `include/net/pie.h`).
pub const ONE: u64 = u64::MAX >> 8;
/// Rounds of the controller that one call makes up for at most: after so many without delay the probability is 0.
const MOST_ROUNDS: u64 = 4096;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// The state (`struct pie_vars`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieVars {
    /// The probability, of [`ONE`].
    pub probability: u64,
    /// The probabilities of the packets since the last drop, of [`ONE`].
    pub accumulated: u64,
    /// Delay of the packet that left last, ns; 0 with an empty queue.
    pub delay_ns: u64,
    /// That of the round before, ns.
    pub delay_before_ns: u64,
    /// What is left of a burst that passes, ns.
    pub burst_ns: u64,
    /// The controller's next round, ns; 0: none yet.
    pub update_at_ns: u64,
}

impl PieVars {
    fn new(params: &PieParams) -> PieVars {
        PieVars {
            probability: 0,
            accumulated: 0,
            delay_ns: 0,
            delay_before_ns: 0,
            burst_ns: params.burst_ns,
            update_at_ns: 0,
        }
    }

    /// Rounds that are due.
    fn catch_up(&mut self, params: &PieParams, now_ns: u64, backlog_bytes: u32) {
        if self.update_at_ns == 0 {
            self.update_at_ns = now_ns + params.update_ns;
            return;
        }
        if now_ns < self.update_at_ns {
            return;
        }
        let due = (now_ns - self.update_at_ns) / params.update_ns + 1;
        for _ in 0..due.min(MOST_ROUNDS) {
            self.update(params, backlog_bytes);
        }
        self.update_at_ns += due * params.update_ns;
    }

    /// One round (RFC 8033, Section 5.2, calculate_drop_prob(); `pie_calculate_probability()`).
    fn update(&mut self, params: &PieParams, backlog_bytes: u32) {
        let (delay, before) = (self.delay_ns, self.delay_before_ns);
        self.burst_ns = self.burst_ns.saturating_sub(params.update_ns);
        let grown = self.step(params);
        // A delay of 0 with a backlog was not measured yet. As in the kernel, this holds up the quick fall and not the step.
        if delay == 0 && before == 0 && backlog_bytes == 0 && !grown {
            self.probability -= self.probability / 64;
        }
        self.delay_before_ns = delay;
        let half = params.target_ns / 2;
        if delay < half && before < half && self.probability == 0 {
            self.burst_ns = params.burst_ns;
            self.accumulated = 0;
        }
    }

    /// Moves the probability; whether it went as far up as it goes.
    fn step(&mut self, params: &PieParams) -> bool {
        let per_ns = |weight_16: u64, ns: i64| {
            i128::from(ONE) * i128::from(weight_16) * i128::from(ns)
                / (16 * i128::from(NS_PER_SECOND))
        };
        let difference = |one: u64, other: u64| one as i64 - other as i64;
        let mut delta = per_ns(params.alpha_16, difference(self.delay_ns, params.target_ns))
            + per_ns(
                params.beta_16,
                difference(self.delay_ns, self.delay_before_ns),
            );
        delta /= 1 << scaling_log(self.probability);
        let two_percent = i128::from(ONE / 50);
        if delta > two_percent && self.probability >= ONE / 10 {
            delta = two_percent;
        }
        if params.is_kernels && self.delay_ns > 250_000_000 {
            delta += two_percent;
        }
        let moved = i128::from(self.probability) + delta;
        let most = i128::from(if params.is_kernels { u64::MAX } else { ONE });
        self.probability = if moved > most {
            ONE
        } else {
            moved.max(0) as u64
        };
        moved >= most
    }

    /// Whether a packet that comes is to be dropped (RFC 8033, Section 5.1, drop_early()).
    fn drops(
        &mut self,
        params: &PieParams,
        backlog_bytes: u32,
        random: impl FnOnce() -> u64,
    ) -> bool {
        let is_low = self.delay_ns < params.target_ns / 2 && self.probability < ONE / 5;
        if self.burst_ns > 0 || is_low || backlog_bytes < 2 * params.mtu_bytes {
            return false;
        }
        if self.probability == 0 {
            self.accumulated = 0;
        } else {
            self.accumulated = self.accumulated.saturating_add(self.probability);
        }
        if self.accumulated < ONE / 100 * 85 {
            return false;
        }
        if self.accumulated >= ONE / 2 * 17 || random() >> 8 < self.probability {
            self.accumulated = 0;
            return true;
        }
        false
    }
}

/// By which power of two the steps are divided at a probability (RFC 8033, Section 5.2).
fn scaling_log(probability: u64) -> u32 {
    let below = |one_in: u64| probability < ONE / one_in;
    match () {
        () if below(1_000_000) => 11,
        () if below(100_000) => 9,
        () if below(10_000) => 7,
        () if below(1000) => 5,
        () if below(100) => 3,
        () if below(10) => 1,
        () => 0,
    }
}

/// The discipline.
#[derive(Debug)]
pub struct Pie<P> {
    params: PieParams,
    vars: PieVars,
    list: List,
    stats: Stats,
    pool: Pool<P>,
}

impl<P> Pie<P> {
    /// An empty one.
    pub fn new(params: PieParams) -> Pie<P> {
        Pie {
            vars: PieVars::new(&params),
            params,
            list: List::default(),
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

impl<P: Packet> Aqm<P> for Pie<P> {
    fn enqueue<H: Hooks<P>>(&mut self, mut packet: P, now_ns: u64, hooks: &mut H) {
        self.stats.received.add(packet.len_bytes());
        let backlog = self.list.bytes();
        self.vars.catch_up(&self.params, now_ns, backlog);
        if self.list.packets() >= self.params.limit_packets {
            return discard(&mut self.stats, hooks, packet, Cause::Full);
        }
        let random = || u64::from(hooks.random()) << 32 | u64::from(hooks.random());
        if self.vars.drops(&self.params, backlog, random) {
            let may_mark = self.params.ecn && self.vars.probability <= ONE / 10;
            if !(may_mark && mark(&mut packet)) {
                return discard(&mut self.stats, hooks, packet, Cause::Early);
            }
            self.stats.marked += 1;
        }
        self.list.push(&mut self.pool, packet, now_ns);
    }

    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, _hooks: &mut H) -> Option<P> {
        self.vars.catch_up(&self.params, now_ns, self.list.bytes());
        let (packet, enqueued_ns) = self.list.pop(&mut self.pool)?;
        self.vars.delay_ns = match self.list.is_empty() {
            true => 0,
            false => now_ns.saturating_sub(enqueued_ns),
        };
        sent(&mut self.stats, Some(packet))
    }

    fn backlog(&self) -> Count {
        self.pool.count()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn state_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::aqm::testing::{Segment, World};

    const MS: u64 = 1_000_000;
    const PARAMS: PieParams = PieParams {
        target_ns: 15 * MS,
        update_ns: 15 * MS,
        burst_ns: 150 * MS,
        alpha_16: 2,
        beta_16: 20,
        mtu_bytes: 1514,
        limit_packets: 1000,
        ecn: false,
        is_kernels: true,
    };

    fn share(of_one: u64) -> f64 {
        of_one as f64 / ONE as f64
    }

    /// RFC 8033, Section 5.2: alpha (delay - target) + beta (delay - before), divided as the table there says.
    #[test]
    fn a_round_moves_the_probability_by_both_terms_and_the_table() {
        for (probability, delay_ms, before_ms, wanted) in [
            (0.0, 35, 35, 0.125 * 0.020 / 2048.0),
            (0.000_005, 35, 35, 0.125 * 0.020 / 512.0),
            (0.000_05, 35, 35, 0.125 * 0.020 / 128.0),
            (0.000_5, 35, 25, (0.125 * 0.020 + 1.25 * 0.010) / 32.0),
            (0.005, 25, 35, (0.125 * 0.010 - 1.25 * 0.010) / 8.0),
            (0.05, 35, 35, 0.125 * 0.020 / 2.0),
            (0.5, 35, 35, 0.125 * 0.020),
            (0.5, 10, 10, -0.125 * 0.005),
            // Not more than 2 % up at once from 10 % on; 2 % more over 250 ms.
            (0.5, 100, 20, 0.02),
            (0.5, 300, 300, 0.02 + 0.02),
            (0.005, 300, 300, 0.125 * 0.285 / 8.0 + 0.02),
        ] {
            let mut vars = PieVars {
                probability: (probability * ONE as f64) as u64,
                delay_ns: delay_ms * MS,
                delay_before_ns: before_ms * MS,
                ..PieVars::new(&PARAMS)
            };
            vars.update(&PARAMS, 30_000);
            let moved = share(vars.probability) - probability;
            assert!(
                (moved - wanted).abs() < 1e-9 + wanted.abs() * 1e-3,
                "{probability} {delay_ms}: {moved} {wanted}"
            );
        }
    }

    #[test]
    fn without_delay_the_probability_falls_to_nothing_and_a_burst_is_allowed_again() {
        let mut vars = PieVars {
            probability: ONE / 2,
            burst_ns: 0,
            ..PieVars::new(&PARAMS)
        };
        vars.update(&PARAMS, 0);
        let wanted = (0.5 - 0.125 * 0.015) * (1.0 - 1.0 / 64.0);
        assert!((share(vars.probability) - wanted).abs() < 1e-9);
        vars.catch_up(&PARAMS, 1, 0);
        vars.catch_up(&PARAMS, 100_000_000 * MS, 0);
        assert_eq!((vars.probability, vars.burst_ns), (0, 150 * MS));
    }

    #[test]
    fn after_seconds_of_overload_the_kernel_s_probability_is_above_1_and_that_of_the_rfc_is_not() {
        let after = |is_kernels| {
            let params = PieParams {
                is_kernels,
                ..PARAMS
            };
            let mut vars = PieVars {
                delay_ns: 400 * MS,
                ..PieVars::new(&params)
            };
            vars.catch_up(&params, 1, 100_000);
            vars.catch_up(&params, 3_000 * MS, 100_000);
            share(vars.probability)
        };
        assert!(after(true) > 1.5, "{}", after(true));
        assert_eq!(after(false), 1.0);
    }

    #[test]
    fn drops_are_spread_no_two_before_the_probabilities_add_up_to_085() {
        let mut vars = PieVars {
            probability: ONE / 20,
            delay_ns: 20 * MS,
            burst_ns: 0,
            ..PieVars::new(&PARAMS)
        };
        let mut world = World::new(5);
        let (mut last, mut gaps) = (0, Vec::new());
        for n in 1..200_000u64 {
            let random = || u64::from(world.random()) << 32;
            if vars.drops(&PARAMS, 30_000, random) {
                gaps.push(n - last);
                last = n;
            }
        }
        assert!(gaps.iter().all(|gap| (17..=171).contains(gap)));
    }

    #[test]
    fn a_first_burst_and_two_waiting_packets_lose_nothing() {
        let (mut pie, mut world) = (Pie::new(PARAMS), World::new(1));
        for n in 0..200u64 {
            pie.enqueue(Segment::data(1, n as u32), n * MS / 2, &mut world);
        }
        assert_eq!(world.dropped, []);
        let mut vars = PieVars {
            probability: ONE,
            burst_ns: 0,
            ..PieVars::new(&PARAMS)
        };
        assert!(!vars.drops(&PARAMS, 2 * 1500, || 0));
        assert!(vars.drops(&PARAMS, 3 * 1514, || 0));
    }

    /// A queue that gets 1.2 times what it sends, whoever sends it.
    #[test]
    fn the_delay_of_a_steady_overload_comes_to_the_target() {
        let (mut pie, mut world) = (Pie::new(PARAMS), World::new(1));
        let (mut delays, mut n) = (Vec::new(), 0u32);
        for ms in 0..120_000u64 {
            if ms % 5 != 4 || ms % 25 == 4 {
                n += 1;
            }
            pie.enqueue(Segment::data(1, n), ms * MS, &mut world);
            if ms % 6 != 5 {
                pie.dequeue(ms * MS, &mut world);
            }
            if ms > 60_000 {
                delays.push(pie.vars.delay_ns);
            }
        }
        let mean = delays.iter().sum::<u64>() / delays.len() as u64;
        assert!((10 * MS..22 * MS).contains(&mean), "{mean} ns");
    }
}
