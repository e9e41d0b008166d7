//! Slow pools by default settings: a few workers that each take long. As few clients wait as keep the workers busy, nobody
//! gives up, and status says what it measures and keeps.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::fates::Fates;
use super::slow::serve;
use crate::common::{Bed, PORT, listen, within};

/// A client that waits for so many services gives up: 15 s where one takes 2 s.
const PATIENCE_SERVICES: f64 = 7.5;
/// Of what the pool can serve. The clients' and the workers' threads are late at times.
const GOODPUT: f64 = 0.93;

#[derive(Debug, Clone, Copy)]
struct Pool {
    workers: u32,
    service: Duration,
    /// Connections offered, as a multiple of what the pool can serve.
    offered: f64,
}

impl Pool {
    fn per_second(&self) -> f64 {
        f64::from(self.workers) / self.service.as_secs_f64()
    }
}

/// `Err`: what is not as claimed.
fn measure(bed: &Bed, pool: Pool, seed: u64) -> Result<(), String> {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
    let listener = listen(bed.server(), any, 511);
    let _weir = bed.run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n"
    ));
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let fates = Fates::new(pool.service.mul_f64(PATIENCE_SERVICES));
    // Ten services long the queue may stand until it is refused, and as long it drains.
    let (warm_up, length) = (28 * pool.service, 30 * pool.service);
    let path = bed.veth4();
    let (mut used, mut status) = (0.0, serde_json::Value::Null);
    std::thread::scope(|scope| {
        for _ in 0..pool.workers {
            scope.spawn(|| serve(&listener, pool.service, &stop, &served));
        }
        let clients = scope.spawn(|| {
            let rate = pool.offered * pool.per_second();
            within(path.client, || {
                fates.come(seed, rate, path.at(PORT), warm_up, length);
            });
        });
        std::thread::sleep(warm_up);
        let before = served.load(Ordering::Relaxed);
        std::thread::sleep(length);
        status = bed.status();
        used = (served.load(Ordering::Relaxed) - before) as f64
            / (pool.per_second() * length.as_secs_f64());
        clients.join().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let web = &status["listeners"][0];
    let figure = |name: &str| web[name].as_f64().unwrap_or(0.0);
    let between_us = 1e6 / pool.per_second();
    let service = figure("service_us") / between_us;
    let kept = figure("kept_queue_length");
    let median = fates.quantile(0.5);
    let longest = pool.service.as_secs_f64() + (kept + 1.0) * between_us / 1e6;
    let lost = fates.of(|f| &f.lost);
    let seen = format!(
        "{pool:?}: {used:.3} of the pool used, {lost} gave up, {} refused, p50 {median:?} of {longest:.2} s, \
         time between accepts {service:.2} of the true one, {kept} kept",
        fates.of(|f| &f.refused),
    );
    println!("{seen}");
    let holds = used >= GOODPUT
        && lost == 0.0
        && (0.75..=1.25).contains(&service)
        && (2.0..=24.0).contains(&kept)
        && median.as_secs_f64() <= longest.max(3.0 * pool.service.as_secs_f64());
    if holds {
        Ok(())
    } else {
        Err(format!("{seen}\n{web:#}"))
    }
}

#[test]
fn slow_pools_are_kept_busy_and_nobody_gives_up() {
    let pool = |workers, service_ms, offered| Pool {
        workers,
        service: Duration::from_millis(service_ms),
        offered,
    };
    let pools = [
        pool(4, 1000, 3.0),
        pool(4, 1000, 1.5),
        pool(1, 500, 3.0),
        pool(16, 1000, 3.0),
    ];
    // Each is idle most of the time.
    let failed: Vec<String> = std::thread::scope(|scope| {
        let one = |(i, pool): (usize, Pool)| {
            scope.spawn(move || Bed::new().map(|bed| measure(&bed, pool, 1 + i as u64)))
        };
        let all: Vec<_> = pools.into_iter().enumerate().map(one).collect();
        let ended = all.into_iter().map(|one| one.join().unwrap());
        ended.flatten().filter_map(Result::err).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
