//! One claim at every speed of a server, from 1 to 100 000 accepts/s, by default settings: a high class whose demand fits is
//! refused next to nothing, however much the others ask for, and they get the rest.

use proptest::prelude::*;

use super::sim::{World, rule, worlds};
use super::*;

/// Accepts/s of the servers.
const RATES: [f64; 8] = [1.0, 3.0, 10.0, 48.0, 100.0, 1e3, 1e4, 1e5];
/// What all clients ask for, in times of that.
const LOADS: [f64; 4] = [1.1, 2.0, 4.0, 10.0];
/// Accepts that a claim is measured over, and the time of those of a fast server, s.
const MEASURED: f64 = 1500.0;
const MEASURED_S: f64 = 1.0;

/// A server and its clients.
#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    /// Accepts/s.
    rate: f64,
    /// All clients' demand, in times of the rate.
    times: f64,
    /// That of the high class.
    gold: f64,
    /// Connections that the server works on at a time.
    workers: usize,
    /// Spread of its service times: 0 none, 1 exponential.
    spread: f64,
    admit_wait: bool,
}

/// How it went, once it had converged.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// Share of the high class that was refused.
    gold_refused: f64,
    /// Accepts, of what the server can.
    used: f64,
    /// The least such share of any eighth of the time.
    used_least: f64,
    /// By how much chance moves such a share of all the time, in one deviation.
    chance: f64,
    /// Whether the others' limit was lifted meanwhile.
    was_lifted: bool,
}

impl Case {
    fn world(&self) -> World {
        let Case {
            rate, times, gold, ..
        } = *self;
        let service = move |workers: usize| Box::new(move |_| workers as f64 / rate);
        let mut world = World::new(
            self.seed,
            Settings::default(),
            self.workers,
            service(self.workers),
        )
        .class(rule("gold", 1), move |_| gold * rate)
        .class(rule("other", 64), move |_| (times - gold) * rate);
        world.spread = self.spread;
        match self.admit_wait {
            true => world.with_admit_wait(),
            false => world,
        }
    }

    /// Until the controller has seen that the queue stands, and the server has worked off what came in until then. With
    /// `admit = wait` the rule of the listener refuses after 0.2 s what is over its bound, of all classes; with
    /// `admit = queue` nobody bounds what comes in before, and the high class is let in while it is worked off.
    fn converges_within(&self) -> f64 {
        let stands = 1.0 + 100.0 / self.rate;
        let beyond = self.times - 1.0;
        match self.admit_wait {
            true => stands + 0.25 * beyond,
            false => stands + stands * beyond / (1.0 - self.gold).max(0.25),
        }
    }

    fn run(&self) -> Outcome {
        let mut world = self.world();
        let from = self.converges_within();
        world.run(from);
        let length = (MEASURED / self.rate).max(MEASURED_S);
        let (refused, syns) = (world.classes[0].refused, world.classes[0].syns);
        world.run(from + length);
        let part = length / 8.0;
        let parts = (0..8).map(|i| from + f64::from(i) * part);
        let least = parts
            .map(|begin| world.throughput(begin, begin + part) / self.rate)
            .fold(f64::INFINITY, f64::min);
        let later = |one: &&Decision| one.at.as_secs_f64() > from;
        let lifted = |one: &Decision| one.class == "other" && one.to.is_none();
        Outcome {
            gold_refused: (world.classes[0].refused - refused) as f64
                / (world.classes[0].syns - syns).max(1) as f64,
            used: world.throughput(from, from + length) / self.rate,
            used_least: least,
            chance: self.spread / (self.rate * length).sqrt(),
            was_lifted: world.decisions.iter().filter(later).any(lifted),
        }
    }

    /// What is claimed of each; `Err`: what is not so.
    fn check(&self) -> Result<Outcome, String> {
        let outcome = self.run();
        let Outcome {
            gold_refused,
            used,
            used_least,
            chance,
            was_lifted,
        } = outcome;
        let claims = [
            (
                "the high class is refused 3 % at most",
                gold_refused <= 0.03,
            ),
            ("95 % of the server is used", used >= 0.95 - 3.0 * chance),
            (
                "no part of the time is lost",
                used_least >= 0.85 - 4.0 * chance * 8f64.sqrt(),
            ),
            (
                "the limit stays while the load does",
                self.times < 3.0 || !was_lifted,
            ),
        ];
        let broken = claims.iter().find(|(_, holds)| !holds);
        broken.map_or(Ok(outcome), |(claim, _)| {
            Err(format!("{claim}: {self:?}: {outcome:?}"))
        })
    }
}

/// Every rate with every load, and chance for the rest.
fn each(seed: u64, mut claim: impl FnMut(Case)) {
    let mut n = seed % (1 << 40);
    for rate in RATES {
        for times in LOADS {
            n += 1;
            claim(Case {
                seed: n,
                rate,
                times,
                gold: [0.1, 0.3, 0.5, 0.7][n as usize % 4],
                workers: [1, 4, 16][n as usize % 3],
                spread: [1.0, 0.3, 0.0, 1.0, 0.6][n as usize % 5],
                admit_wait: n.is_multiple_of(2),
            });
        }
    }
}

/// The mean of the server's use over all of these loads.
fn mean_use(outcomes: &[(f64, Outcome)], times: f64) -> f64 {
    let of_load = outcomes.iter().filter(|(of, _)| *of == times);
    let used: Vec<f64> = of_load.map(|(_, outcome)| outcome.used).collect();
    used.iter().sum::<f64>() / used.len() as f64
}

proptest! {
    #![proptest_config(worlds(1))]

    #[test]
    fn a_high_class_whose_demand_fits_is_let_in_from_1_to_100_000_accepts_a_second(seed: u64) {
        let (mut outcomes, mut broken) = (Vec::new(), Vec::new());
        each(seed, |case| match case.check() {
            Ok(outcome) => outcomes.push((case.times, outcome)),
            Err(claim) => broken.push(claim),
        });
        prop_assert!(broken.is_empty(), "{broken:#?}");
        for times in LOADS {
            let used = mean_use(&outcomes, times);
            prop_assert!(used >= 0.95, "{used} at {times}");
        }
    }
}

proptest! {
    #![proptest_config(worlds(48))]

    // More workers than the set point, of one constant service time, empty the queue together: then all are let in.
    #[test]
    fn a_middle_class_gives_way_beyond_what_fits_and_the_high_one_does_not(
        seed: u64, exponent in 0.0..3.3f64, gold in 0.1..0.4f64, silver in 1.0..4.0f64, workers in 1..9usize,
        spread in 0.0..1.0f64, admit_wait: bool,
    ) {
        let rate = 10f64.powf(exponent);
        let case = Case { seed, rate, times: 5.0, gold, workers, spread, admit_wait };
        let mut world = case.world();
        world.classes[1].rule.priority = 2;
        let mut world = world.class(rule("all", 64), move |_| silver * rate);
        let from = 2.0 * case.converges_within() + 0.5 * silver;
        world.run(from);
        let before: Vec<_> = world.classes.iter().map(|one| (one.syns, one.refused, one.served)).collect();
        world.run(from + (MEASURED / rate).max(MEASURED_S));
        let refused = (world.classes[0].refused - before[0].1) as f64 / (world.classes[0].syns - before[0].0) as f64;
        prop_assert!(refused <= 0.03, "{refused} of gold");
        let served = |class: usize| (world.classes[class].served - before[class].2) as f64;
        prop_assert!(served(2) <= 0.2 * served(1), "{} of the lowest, {} of the middle", served(2), served(1));
    }

    #[test]
    fn a_high_class_whose_demand_fits_is_let_in_at_any_speed_and_load(
        seed: u64, exponent in 0.0..3.3f64, times in 1.1..10.0f64, gold in 0.02..0.75f64, workers in 1..32usize,
        spread in 0.0..1.0f64, admit_wait: bool,
    ) {
        let rate = 10f64.powf(exponent);
        let case = Case { seed, rate, times, gold, workers, spread, admit_wait };
        prop_assert_eq!(case.check().err(), None);
    }
}
