//! What observing says that enforcing would refuse, and what enforcing then refuses, at servers that differ in how they accept.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_testbed::wait::Stops;

use super::fates::Fates;
use super::slow::serve;
use crate::common::{Bed, PORT, listen, within};

/// So far may the forecast be off: ten points; one where it says next to nothing, as it does of a server that is not overloaded.
const POINTS: f64 = 0.10;
const FEW_POINTS: f64 = 0.01;
/// A client repeats its SYN after 1, 3 and 7 s, and gives up then.
const PATIENCE: Duration = Duration::from_secs(8);

/// How a server accepts.
#[derive(Debug, Clone, Copy)]
enum Server {
    /// So many workers, each of which is busy for so many ms with a connection.
    Pool(u32, u64),
    /// An event loop that takes up to 16 at once, of so many ms each.
    Loop(u64),
    /// A worker of so many ms that stops for half a second in every three, as a store does that writes to its disk.
    Stops(u64),
    /// A worker that takes the first time for half of the run, then the second one.
    Slower(u64, u64),
}

impl Server {
    fn run(self, listener: &TcpListener, half: Duration, stop: &AtomicBool) {
        let served = AtomicU64::new(0);
        let ms = Duration::from_millis;
        match self {
            Server::Pool(workers, time) => std::thread::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(|| serve(listener, ms(time), stop, &served));
                }
            }),
            Server::Stops(time) => stops(listener, ms(time), stop),
            Server::Loop(time) => event_loop(listener, ms(time), stop),
            Server::Slower(first, second) => {
                let slower = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| serve(listener, ms(first), &slower, &served));
                    std::thread::sleep(half);
                    slower.store(true, Ordering::Relaxed);
                    serve(listener, ms(second), stop, &served);
                });
            }
        }
    }
}

fn event_loop(listener: &TcpListener, time: Duration, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let mut taken = Vec::new();
        while taken.len() < 16 {
            match listener.accept() {
                Ok((stream, _)) => taken.push(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("accept: {error}"),
            }
        }
        std::thread::sleep((time * taken.len() as u32).max(Duration::from_millis(1)));
        for mut stream in taken {
            // A client that has given up is none of its business.
            let _ = stream.write_all(b"x");
        }
    }
}

fn stops(listener: &TcpListener, time: Duration, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let (pause, served) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| serve(listener, time, &pause, &served));
            std::thread::sleep(Duration::from_millis(2500));
            pause.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// How its clients fared: shares of them.
struct Fared {
    /// Those that were refused.
    refused: f64,
    /// Those that verdicts say.
    verdicts: f64,
    /// Those that weir says it would have refused.
    would: Option<f64>,
}

/// Observes a server, or enforces.
fn fare(bed: &Bed, server: Server, per_second: f64, length: Duration, mode: &str) -> Fared {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
    let listener = listen(bed.server(), any, 64);
    let _weir = bed.run(&format!(
        "[[listener]]\nname = \"web\"\naddress = \"*:{PORT}\"\nmode = \"{mode}\"\n"
    ));
    let stop = AtomicBool::new(false);
    let fates = Fates::new(PATIENCE);
    let path = bed.veth4();
    let mut status = serde_json::Value::Null;
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&listener, length / 2, &stop));
        let _stops = Stops(&stop);
        let clients = scope.spawn(|| {
            within(path.client, || {
                fates.come(7, per_second, path.at(PORT), Duration::ZERO, length);
            });
        });
        std::thread::sleep(length);
        status = bed.status();
        clients.join().unwrap();
    });
    let web = &status["listeners"][0];
    let refused = fates.of(|f| &f.refused) / fates.of(|f| &f.came);
    let counters = web["counters"].as_object().unwrap();
    let count = |is: fn(&str) -> bool| -> u64 {
        let those = counters.iter().filter(|(name, _)| is(name));
        those.filter_map(|(_, count)| count.as_u64()).sum()
    };
    let turned_away =
        count(|name| name.starts_with("syn_reset") || name.starts_with("syn_dropped"));
    let judged = turned_away + count(|name| name == "syn_admitted");
    let verdicts = turned_away as f64 / judged.max(1) as f64;
    // Only while it observes.
    let would = web["would_refuse"].as_f64();
    let would = would.map(|would| would / web["offered"].as_f64().unwrap());
    Fared {
        refused,
        verdicts,
        would,
    }
}

/// `Err`: the forecast is wrong.
fn measure(server: Server, per_second: f64, seconds: u64) -> Option<Result<(), String>> {
    let length = Duration::from_secs(seconds);
    let observed = fare(&Bed::new()?, server, per_second, length, "observe");
    let Fared { refused, .. } = fare(&Bed::new()?, server, per_second, length, "enforce");
    let would = observed.would.expect("what it would refuse");
    let seen = format!(
        "{server:?}, {per_second}/s: verdicts say {:.3}, would refuse {would:.3}, then refused {refused:.3}",
        observed.verdicts
    );
    println!("{seen}");
    let points = if observed.verdicts < 0.01 {
        FEW_POINTS
    } else {
        POINTS
    };
    Some(match (would - refused).abs() <= points {
        true => Ok(()),
        false => Err(seen),
    })
}

#[test]
fn what_observing_says_is_what_enforcing_then_refuses() {
    let servers = [
        (Server::Pool(1, 5), 400.0, 20),
        (Server::Pool(1, 5), 120.0, 20),
        (Server::Pool(4, 1000), 8.0, 40),
        (Server::Pool(16, 500), 48.0, 30),
        (Server::Slower(10, 40), 60.0, 30),
        (Server::Loop(5), 400.0, 20),
        (Server::Stops(1), 100.0, 24),
    ];
    // Each is idle most of the time.
    let failed: Vec<String> = std::thread::scope(|scope| {
        let one = |(server, per_second, seconds)| {
            scope.spawn(move || measure(server, per_second, seconds))
        };
        let all: Vec<_> = servers.into_iter().map(one).collect();
        let ended = all.into_iter().map(|one| one.join().unwrap());
        ended.flatten().filter_map(Result::err).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
