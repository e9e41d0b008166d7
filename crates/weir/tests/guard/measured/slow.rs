//! The controller beside real servers that accept a few connections a second, by default settings: the high class is let
//! in while its demand fits.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fates::Fates;
use crate::common::{Bed, PATIENCE, PORT, listen, within};

/// Of what the server accepts: what the high class asks for, and all together.
const GOLD: f64 = 0.3;
const ALL: f64 = 2.0;
/// Accepts until the controller has converged, beside a second: experiments/vtfm01/controller.md.
const CONVERGES_ACCEPTS: f64 = 100.0;
/// Of the high class, so much may be refused.
const REFUSED: f64 = 0.03;

/// A worker: it takes a connection, is busy with it, and answers.
pub fn serve(listener: &TcpListener, service: Duration, stop: &AtomicBool, served: &AtomicU64) {
    listener.set_nonblocking(true).unwrap();
    // By the clock, so that a busy machine does not make it slower.
    let mut free_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                free_at = free_at.max(Instant::now() - service) + service;
                std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
                // A client that has given up is none of its business.
                let _ = stream.write_all(b"x");
                served.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("accept: {error}"),
        }
    }
}

/// One server of `rate` accepts/s with its clients; `Err`: what is not as claimed.
fn measure(bed: &Bed, rate: f64, admit: &str, seed: u64) -> Result<String, String> {
    let config = format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\n{admit}\n\
         [[class]]\nname = \"gold\"\nfrom = \"fd66::/16\"\npriority = 1\n\
         [controller]\ntarget_wait = \"20ms\"\n"
    );
    let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), PORT);
    let listener = listen(bed.server(), any, 511);
    let _weir = bed.run(&config);
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let (gold, other) = (Fates::new(2 * PATIENCE), Fates::new(2 * PATIENCE));
    let warm_up = Duration::from_secs_f64(1.0 + CONVERGES_ACCEPTS / rate);
    let length = Duration::from_secs_f64((200.0 / (GOLD * rate)).max(4.0));
    let mut served_in_length = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            serve(
                &listener,
                Duration::from_secs_f64(1.0 / rate),
                &stop,
                &served,
            )
        });
        let clients = [
            (&gold, bed.veth6(), GOLD),
            (&other, bed.veth4(), ALL - GOLD),
        ]
        .map(|(fates, path, share)| {
            let address = path.at(PORT);
            let seed = seed ^ share.to_bits();
            scope.spawn(move || {
                within(path.client, || {
                    fates.come(seed, share * rate, address, warm_up, length);
                });
            })
        });
        std::thread::sleep(warm_up);
        let before = served.load(Ordering::Relaxed);
        std::thread::sleep(length);
        served_in_length = served.load(Ordering::Relaxed) - before;
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let refused = |fates: &Fates| fates.of(|f| &f.refused) / fates.of(|f| &f.came);
    let used = served_in_length as f64 / (rate * length.as_secs_f64());
    let lost = gold.of(|f| &f.lost) + other.of(|f| &f.lost);
    let seen = format!(
        "{rate}/s, {admit:?}: gold refused {:.3}, other {:.3}, {lost} lost, {used:.3} of the server used, seed {seed}",
        refused(&gold),
        refused(&other),
    );
    println!("{seen}");
    let holds = refused(&gold) <= REFUSED && used >= 0.9 && lost == 0.0 && refused(&other) > 0.3;
    if holds {
        Ok(seen)
    } else {
        Err(format!("{seen}\n{:#}", bed.status()))
    }
}

#[test]
fn a_high_class_is_let_in_at_20_48_and_200_accepts_a_second() {
    let cases: Vec<(f64, &str)> = [20.0, 48.0, 200.0]
        .into_iter()
        .flat_map(|rate| [(rate, ""), (rate, "admit = \"queue\"")])
        .collect();
    // Each is idle most of the time.
    let seen: Vec<Option<Result<String, String>>> = std::thread::scope(|scope| {
        let measured = |(i, (rate, admit)): (usize, (f64, &'static str))| {
            scope.spawn(move || Some(measure(&Bed::new()?, rate, admit, 1 + i as u64)))
        };
        let all: Vec<_> = cases.into_iter().enumerate().map(measured).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let failed: Vec<String> = seen.into_iter().flatten().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
