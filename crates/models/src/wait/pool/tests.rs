//! The estimate is right at every speed, and refuses whom it should.

use super::*;

impl Pool {
    fn part_of_truth(&self) -> f64 {
        self.wait.service() as f64 / self.between_ns()
    }
}

/// A world of its own for each seed: 0.1 to 100 000 accepts/s.
fn world(seed: u64) -> Setup {
    let mut random = Random::new(seed);
    let mut one_of = |choices: &[f64]| {
        let at = (random.unit() * choices.len() as f64) as usize;
        choices[at.min(choices.len() - 1)]
    };
    let (offered, spread) = (one_of(&[1.5, 3.0, 10.0]), one_of(&[0.0, 0.02, 0.3]));
    let (tick_ns, enforce) = (one_of(&[1e6, 4e6, 1e7]) as u64, one_of(&[0.0, 1.0]) > 0.0);
    let workers = match one_of(&[0.0, 1.0]) > 0.0 {
        true => 1,
        false => 1 + (random.unit() * 63.9) as usize,
    };
    let per_second = 10f64.powf(-1.0 + 6.0 * random.unit());
    Setup {
        workers,
        service_ns: workers as f64 / per_second * SECOND_NS as f64,
        spread,
        offered,
        backlog: 511,
        tick_ns,
        seed,
        enforce,
    }
}

/// Ten services; of fast servers some samples.
fn ten_services(pool: &Pool) -> f64 {
    (10.0 * pool.setup.service_ns).max(5.0 * SAMPLE_MIN_NS as f64)
}

#[derive(Default)]
struct Tally {
    right: u32,
    wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, pool: &Pool) {
        let part = pool.part_of_truth();
        match (0.75..=1.25).contains(&part) {
            true => self.right += 1,
            false => self
                .wrong
                .push(format!("{part:.2} of it in {:?}", pool.setup)),
        }
    }

    fn hold(&self, when: &str, least: f64) {
        let right = f64::from(self.right) / f64::from(self.right + self.wrong.len() as u32);
        println!("{when}: right within a quarter in {right:.3} of the worlds");
        assert!(
            right >= least,
            "{when}: {right:.3}\n{}",
            self.wrong.join("\n")
        );
    }
}

/// What is random in services and arrivals makes a few of ten services a poor sample.
#[test]
fn the_wait_is_right_within_a_quarter_at_every_speed() {
    let [mut begun, mut changed, mut later] = [(); 3].map(|()| Tally::default());
    for seed in 1..=1500u64 {
        let mut pool = Pool::new(world(seed));
        pool.run(2.0 * ten_services(&pool));
        begun.add(&pool);
        let old = pool.setup.service_ns;
        pool.setup.service_ns *= [10.0, 0.1, 2.0, 0.5][seed as usize % 4];
        // The services under way end at the old speed.
        pool.run(old + ten_services(&pool));
        changed.add(&pool);
        pool.run(ten_services(&pool));
        later.add(&pool);
    }
    begun.hold("after twenty services", 0.98);
    changed.hold("ten services after a change of speed", 0.95);
    later.hold("twenty services after it", 0.98);
}

/// How a pool fares: shares are of its capacity and of the SYNs, waits in s.
#[derive(Debug)]
struct Course {
    goodput: f64,
    refused: f64,
    median: f64,
    longest: f64,
}

fn course(workers: usize, service_s: f64, offered: f64) -> Course {
    let setup = Setup {
        workers,
        service_ns: service_s * 1e9,
        spread: 0.3,
        offered,
        backlog: 511,
        tick_ns: 4_000_000,
        seed: 7,
        enforce: true,
    };
    let mut pool = Pool::new(setup);
    let run = 60.0 * setup.service_ns.max(400.0 * pool.between_ns());
    pool.run(run / 3.0);
    let (served, refused, syns) = (pool.served, pool.refused, pool.syns);
    pool.waits.clear();
    pool.run(run);
    pool.waits.sort_by(f64::total_cmp);
    Course {
        goodput: (pool.served - served) as f64 * pool.between_ns() / run,
        refused: (pool.refused - refused) as f64 / (pool.syns - syns) as f64,
        median: pool.waits[pool.waits.len() / 2] / 1e9,
        longest: pool.waits.last().unwrap() / 1e9,
    }
}

/// Workers and the time of one service, s.
const POOLS: [(usize, f64); 8] = [
    (4, 2.0),
    (1, 1.0),
    (10, 1.0),
    (64, 2.0),
    (8, 0.2),
    (1, 0.1),
    (1, 0.01),
    (1, 0.0001),
];

#[test]
fn an_overloaded_pool_is_kept_busy_by_as_few_as_can_wait() {
    for (workers, service) in POOLS {
        for offered in [1.5, 3.0, 10.0] {
            let course = course(workers, service, offered);
            println!("{workers} x {service} s, {offered} times: {course:?}");
            assert!(
                course.goodput >= 0.97,
                "{workers} x {service} s: {course:?}"
            );
            let few = (5.0 * service / workers as f64).max(0.03);
            assert!(course.median <= few, "{workers} x {service} s: {course:?}");
            assert!(
                course.longest <= 15.0 - service,
                "{workers} x {service} s: {course:?}"
            );
        }
    }
}

#[test]
fn a_pool_below_its_capacity_refuses_next_to_nobody() {
    for (workers, service) in POOLS {
        for (offered, most) in [(0.5, 0.002), (0.8, 0.03)] {
            let course = course(workers, service, offered);
            println!("{workers} x {service} s, {offered} times: {course:?}");
            assert!(
                course.refused <= most,
                "{workers} x {service} s: {course:?}"
            );
        }
    }
}

/// Status says from the estimate what a server can keep: of an idle one it must say nothing.
#[test]
fn the_clients_of_an_idle_server_do_not_make_it_a_slow_one() {
    for (workers, service_s, offered) in [(1, 0.001, 0.005), (1, 0.001, 0.1), (4, 2.0, 0.02)] {
        let setup = Setup {
            workers,
            service_ns: service_s * 1e9,
            spread: 0.3,
            offered,
            backlog: 511,
            tick_ns: 4_000_000,
            seed: 3,
            enforce: true,
        };
        let mut pool = Pool::new(setup);
        for _ in 0..200 {
            pool.run(10.0 * pool.between_ns() / offered);
            let part = pool.part_of_truth();
            assert!(part <= 1.5, "{setup:?}: {part} of it");
        }
    }
}
