//! Servers in virtual time, each once in observe mode, with clients that try again, and once enforced.

use super::*;
use weir_models::random::Random;
use weir_models::wait::pool::{Pool, Setup};

const SECOND_NS: f64 = 1e9;

fn rule() -> Rule {
    Rule {
        target: Some(Duration::from_millis(20)),
        interval: Duration::from_millis(200),
        least: 0,
    }
}

fn look(pool: &Pool) -> Look {
    let (length, service) = (pool.queue.len() as u32, pool.wait.service());
    Look {
        at: Duration::from_nanos(pool.now as u64),
        offered: pool.syns as i64,
        full: 0,
        accepted: Some(i64::from(pool.admitted) - i64::from(length)),
        queue_length: length,
        queue_limit: pool.setup.backlog,
        accepts: (service > 0).then(|| SECOND_NS / service as f64),
        kept: pool.wait.least.max(LEAST_MIN),
        wait: Some(Duration::from_nanos(pool.wait.now(pool.now as u64, length))),
        observed: true,
    }
}

/// How long the worlds run: long enough for a share.
fn length_ns(setup: &Setup) -> f64 {
    let between = setup.service_ns / setup.workers as f64;
    (600.0 * between)
        .max(30.0 * setup.service_ns)
        .max(10.0 * SECOND_NS)
}

/// Speeds of the second half, as multiples of that of the first one.
fn halves(pool: &mut Pool, faster: f64, mut run: impl FnMut(&mut Pool, f64)) {
    let half = length_ns(&pool.setup) / 2.0;
    run(pool, half);
    pool.setup.service_ns /= faster;
    pool.setup.offered /= faster;
    run(pool, half);
}

fn forecast(setup: Setup, faster: f64) -> f64 {
    let mut pool = Pool::new(Setup {
        enforce: false,
        ..setup
    })
    .with_retries();
    let mut forecast = Forecast::default();
    // As weir does: the queue is not full yet.
    forecast.take(&rule(), &look(&pool));
    halves(&mut pool, faster, |pool, for_ns| {
        for _ in 0..(for_ns / SECOND_NS * 4.0) as u64 {
            pool.run(SECOND_NS / 4.0);
            forecast.take(&rule(), &look(pool));
        }
    });
    forecast.share()
}

fn enforced(setup: Setup, faster: f64) -> f64 {
    let mut pool = Pool::new(Setup {
        enforce: true,
        ..setup
    });
    halves(&mut pool, faster, |pool, for_ns| pool.run(for_ns));
    pool.refused as f64 / pool.syns as f64
}

/// A world of its own for each seed.
fn world(seed: u64) -> (Setup, f64) {
    let mut random = Random::new(seed);
    let mut one_of = |choices: &[f64]| {
        let at = (random.unit() * choices.len() as f64) as usize;
        choices[at.min(choices.len() - 1)]
    };
    let most = one_of(&[1.0, 1.0, 4.0, 16.0, 64.0]);
    let offered = one_of(&[0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 10.0]);
    let (spread, backlog) = (one_of(&[0.0, 0.02, 0.3]), one_of(&[64.0, 511.0, 4096.0]));
    let faster = one_of(&[1.0, 1.0, 0.5, 2.0]);
    let per_second = 10f64.powf(-0.3 + 4.0 * random.unit());
    // No service takes longer than ten seconds.
    let workers = most.min((10.0 * per_second).floor());
    let setup = Setup {
        workers: workers as usize,
        service_ns: workers / per_second * SECOND_NS,
        spread,
        offered,
        backlog: backlog as u32,
        tick_ns: 4_000_000,
        seed,
        enforce: false,
    };
    (setup, faster)
}

#[test]
fn what_observing_forecasts_is_within_ten_points_of_what_enforcing_does() {
    let (mut wrong, mut worlds) = (Vec::new(), 0);
    for seed in 1..=300 {
        let (setup, faster) = world(seed);
        let (forecast, enforced) = (forecast(setup, faster), enforced(setup, faster));
        worlds += 1;
        if (forecast - enforced).abs() > 0.1 {
            wrong.push(format!(
                "{forecast:.2} for {enforced:.2}, then {faster} times as fast: {setup:?}"
            ));
        }
    }
    println!(
        "{} of {worlds} are wrong\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(wrong.is_empty());
}

/// A worker of 1.1 ms at a tenth of what it can serve.
#[test]
fn nobody_is_forecast_to_be_refused_at_a_mostly_idle_server_that_stops_for_moments() {
    for seed in 1..=20 {
        let setup = Setup {
            workers: 1,
            service_ns: 1.1e6,
            spread: 0.02,
            offered: 0.11,
            backlog: 128,
            tick_ns: 4_000_000,
            seed,
            enforce: false,
        };
        let mut pool = Pool::new(setup);
        let mut forecast = Forecast::default();
        forecast.take(&rule(), &look(&pool));
        for quarter in 0..96 {
            // At any moment between two looks.
            let begins =
                (quarter % 12 == 5).then(|| SECOND_NS / 4.0 * ((seed * 7) % 20) as f64 / 20.0);
            if let Some(at) = begins {
                pool.run(at);
                pool.stand_still(SECOND_NS / 2.0);
            }
            pool.run(SECOND_NS / 4.0 - begins.unwrap_or(0.0));
            forecast.take(&rule(), &look(&pool));
        }
        assert_eq!(forecast.refused(), 0, "seed {seed}");
    }
}
