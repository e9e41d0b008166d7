//! The controller on a real server that is too slow for its clients: it holds the wait, lets go when they
//! go, and refuses nobody while there is room.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::common::{Bed, PATIENCE, PORT, Path, listen, until, within};

/// Threads that accept, and how long each is busy with a connection: 1000 connections a second at most.
const WORKERS: u32 = 4;
const SERVICE: Duration = Duration::from_millis(4);
const SATURATION: f64 = 1000.0;
/// Places enough for a wait of a second.
const BACKLOG: i32 = 1024;
const TARGET: Duration = Duration::from_millis(50);
/// How long overload is measured.
const MEASURED: Duration = Duration::from_secs(4);
/// Clients, each of which tries at its own times.
const CLIENTS: u32 = 160;

const CONFIG: &str = "\
[[listener]]\nname = \"web\"\naddress = \"*:8080\"\n\
[controller]\ntarget_wait = \"50ms\"\n";

/// A server under way: told to stop, and for how long its workers had nobody to serve.
#[derive(Default)]
struct Server {
    stop: AtomicBool,
    idle_us: AtomicU64,
}

/// What a worker does with each connection.
type Serve = fn();

fn wait() {
    std::thread::sleep(SERVICE);
}

/// Uses a CPU for [`SERVICE`]: time of this thread, since a busy machine's own goes by without work.
fn compute() {
    let thread_time = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
        Duration::from(time)
    };
    let begun = thread_time();
    while thread_time() - begun < SERVICE {
        std::hint::spin_loop();
    }
}

/// Accepts until it is told to stop, and serves.
fn work(listener: &TcpListener, server: &Server, serve: Serve) {
    while !server.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                serve();
                // A client that has given up is none of its business.
                let _ = stream.write_all(b"x");
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                let idle = begun.elapsed().as_micros() as u64;
                server.idle_us.fetch_add(idle, Ordering::Relaxed);
            }
            Err(error) => panic!("accept: {error}"),
        }
    }
}

/// How the clients fared.
#[derive(Debug, Default)]
struct Fates {
    /// Until their first byte came, each.
    served: Vec<Duration>,
    refused: usize,
    lost: usize,
}

/// One attempt; `None`: refused.
fn attempt(address: SocketAddr) -> Result<Option<Duration>, ErrorKind> {
    let begun = Instant::now();
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(mut stream) => {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let read = stream.read_exact(&mut [0]);
            read.map(|()| Some(begun.elapsed()))
                .map_err(|error| error.kind())
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error.kind()),
    }
}

/// One client's attempts, `rate` a second for so long. Who is served late skips what he has missed.
fn client(address: SocketAddr, rate: f64, offset: f64, length: Duration) -> Fates {
    let (begun, period) = (Instant::now(), Duration::from_secs_f64(1.0 / rate));
    let mut due = period.mul_f64(offset);
    let mut fates = Fates::default();
    while due < length {
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        match attempt(address) {
            Ok(Some(time)) => fates.served.push(time),
            Ok(None) => fates.refused += 1,
            Err(_) => fates.lost += 1,
        }
        while due < begun.elapsed() {
            due += period;
        }
    }
    fates
}

/// All clients together, `times` saturation.
fn load(path: Path<'_>, times: f64, length: Duration) -> Fates {
    let rate = times * SATURATION / f64::from(CLIENTS);
    within(path.client, || {
        std::thread::scope(|scope| {
            let one = |i| {
                move || {
                    client(
                        path.at(PORT),
                        rate,
                        f64::from(i) / f64::from(CLIENTS),
                        length,
                    )
                }
            };
            let clients: Vec<_> = (0..CLIENTS)
                .map(|i| {
                    let small = std::thread::Builder::new().stack_size(256 << 10);
                    small.spawn_scoped(scope, one(i)).unwrap()
                })
                .collect();
            let mut all = Fates::default();
            for client in clients {
                let fates = client.join().unwrap();
                all.served.extend(fates.served);
                all.refused += fates.refused;
                all.lost += fates.lost;
            }
            all
        })
    })
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() as f64 * share) as usize).min(times.len() - 1)]
}

/// What class `other` is held at.
fn held_at(status: &Value) -> Option<f64> {
    let classes = status["controller"]["statistics"]["classes"]
        .as_array()
        .unwrap();
    let other = classes.iter().find(|class| class["name"] == "other")?;
    other["controlled_rate"].as_f64()
}

/// A server with its workers, for as long as the work lasts.
fn with_server<T>(bed: &Bed, serve: Serve, work_beside: impl FnOnce(&Server) -> T) -> T {
    let listener = listen(bed.server(), (bed.veth4().address, PORT).into(), BACKLOG);
    listener.set_nonblocking(true).unwrap();
    let server = Server::default();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&listener, &server, serve));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work_beside(&server)));
        server.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn overload_is_held_at_the_target_and_the_limit_goes_with_it() {
    let Some(bed) = Bed::new() else { return };
    // By default the kernel's own rule on the wait would hold the bound alone.
    let config = CONFIG.replace("name = \"web\"", "name = \"web\"\nadmit = \"queue\"");
    let _weir = bed.run(&config);
    with_server(&bed, wait, |server| {
        let calm = load(bed.veth4(), 0.5, Duration::from_secs(3));
        assert_eq!(
            (calm.refused, calm.lost),
            (0, 0),
            "there is room at half of saturation"
        );
        assert_eq!(held_at(&bed.status()), None);

        // Converges; then it is measured.
        load(bed.veth4(), 4.0, Duration::from_secs(2));
        let idle_before = server.idle_us.load(Ordering::Relaxed);
        let mut over = load(bed.veth4(), 4.0, MEASURED);
        let status = bed.status();
        assert!(over.refused > over.served.len(), "{} refused", over.refused);
        // On a busy machine the workers oversleep, so it is their idleness that tells a throttled server.
        let idle_us = server.idle_us.load(Ordering::Relaxed) - idle_before;
        let idle = idle_us as f64 / (MEASURED * WORKERS).as_micros() as f64;
        assert!(
            idle < 0.15,
            "idle for {idle} of the time while {} were refused",
            over.refused
        );
        // The test machine is shared, so it is the median that is held to the bound for the 99th percentile;
        // experiments/vtfm01 has the measurement of that.
        let median = quantile(&mut over.served, 0.5);
        assert!(median <= 2 * TARGET + SERVICE, "{median:?}");
        let refused = bed.counter(0, "syn_reset_held");
        assert!(refused > 0, "{status:#}");
        assert_eq!(bed.counter(0, "syn_reset_wait"), 0, "{status:#}");
        let decisions = status["controller"]["decisions"].as_array().unwrap();
        let first = decisions[0]["reason"].as_str().unwrap();
        assert!(
            first.starts_with("listener \"web\": ") && first.contains("target 50ms"),
            "{first}"
        );

        until("the limit is lifted", || {
            held_at(&bed.status()).is_none().then_some(())
        });
        let before = bed.counter(0, "syn_reset_held") + bed.counter(0, "syn_dropped_held");
        let after = load(bed.veth4(), 0.5, Duration::from_secs(2));
        assert_eq!(
            (after.refused, after.lost),
            (0, 0),
            "nothing stays of the overload"
        );
        let now = bed.counter(0, "syn_reset_held") + bed.counter(0, "syn_dropped_held");
        assert_eq!(now, before);
    });
}

#[test]
fn observe_tells_what_it_would_hold_and_lets_everybody_in() {
    let Some(bed) = Bed::new() else { return };
    let config = CONFIG.replace("name = \"web\"", "name = \"web\"\nadmit = \"queue\"");
    let _weir = bed.run(&format!("{config}mode = \"observe\"\n"));
    with_server(&bed, wait, |_| {
        load(bed.veth4(), 3.0, Duration::from_secs(4));
        let status = bed.status();
        let decisions = status["controller"]["decisions"].as_array().unwrap();
        assert!(
            !decisions.is_empty() && decisions.iter().all(|one| one["observed"] == true),
            "{decisions:?}"
        );
        assert_eq!(
            bed.counter(0, "syn_reset_held") + bed.counter(0, "syn_dropped_held"),
            0
        );
    });
}

/// CPU time, in s since boot.
#[derive(Clone, Copy)]
struct CpuTime {
    /// What all CPUs have.
    all: f64,
    /// Used by any program.
    used: f64,
    /// Used by this one with its children that have ended.
    own: f64,
}

impl CpuTime {
    fn now() -> CpuTime {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let row = stat.lines().next().unwrap().split_whitespace().skip(1);
        let ticks: Vec<f64> = row.take(8).map(|n| n.parse().unwrap()).collect();
        let all: f64 = ticks.iter().sum();
        let own = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap();
        CpuTime {
            all: all / 100.0,
            used: (all - ticks[3] - ticks[4]) / 100.0,
            own: Duration::from(own).as_secs_f64(),
        }
    }

    /// The shares of all CPUs that were used since then, and that this program used.
    fn shares_since(self, before: CpuTime) -> (f64, f64) {
        let all = self.all - before.all;
        (
            (self.used - before.used) / all,
            (self.own - before.own) / all,
        )
    }
}

/// The most that others used of the CPUs in a second while `run` ran.
fn most_of_others(run: impl FnOnce()) -> f64 {
    let (end, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let mut most: f64 = 0.0;
            let mut before = CpuTime::now();
            while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(Duration::from_secs(1)) {
                let now = CpuTime::now();
                let (cpu, own) = now.shares_since(before);
                (most, before) = (most.max(cpu - own), now);
            }
            most
        });
        run();
        drop(end);
        watch.join().unwrap()
    })
}

#[test]
fn the_cpu_is_held_at_its_objective_and_the_server_is_not_starved_by_its_neighbours() {
    const OBJECTIVE: f64 = 0.6;
    let Some(bed) = Bed::new() else { return };
    let config = CONFIG.replace("target_wait = \"50ms\"", "max_cpu = 0.6");
    let _weir = bed.run(&config);
    with_server(&bed, compute, |_| {
        let mut over = Fates::default();
        let (mut cpu, mut own) = (0.0, 0.0);
        let others = most_of_others(|| {
            // Four workers use all of two CPUs; then the controller has time to bring it down.
            load(bed.veth4(), 3.0, Duration::from_secs(4));
            let before = CpuTime::now();
            over = load(bed.veth4(), 3.0, MEASURED);
            (cpu, own) = CpuTime::now().shares_since(before);
        });
        let capacity = MEASURED.as_secs_f64() * available_parallelism().unwrap().get() as f64;
        let served = over.served.len() as f64 * SERVICE.as_secs_f64() / capacity;
        println!(
            "CPU {cpu:.2}, of this test {own:.2}, of that {served:.2} serves; others at most {others:.2}; {} refused",
            over.refused
        );
        assert!(over.refused > 0, "{over:?}");
        // Others' work is beyond the controller: it takes from the server's, and not below a quarter of what comes. What
        // others took at any time counts, for what has a lower priority gives way to a server that is held no more.
        if others < 0.15 {
            assert!((OBJECTIVE - 0.2..OBJECTIVE + 0.1).contains(&cpu), "{cpu}");
            assert!(served > 0.5 * OBJECTIVE, "{served}");
        }
        assert!(served > 0.05, "{served}");
        let status = bed.status();
        let decisions = status["controller"]["decisions"].as_array().unwrap();
        let first = decisions[0]["reason"].as_str().unwrap();
        assert!(
            first.starts_with("CPU ") && first.contains("at most 60 %"),
            "{first}"
        );
    });
}

#[test]
fn a_controlled_rate_ends_with_the_controller() {
    let Some(bed) = Bed::new() else { return };
    let weir = bed.run(CONFIG);
    with_server(&bed, wait, |_| {
        load(bed.veth4(), 4.0, Duration::from_secs(2));
        assert!(held_at(&bed.status()).is_some());
        bed.write_config(CONFIG.split("[controller]").next().unwrap());
        assert!(bed.weir("reload").status.success());
        let status = bed.status();
        assert_eq!(status["controller"], Value::Null);
        assert_eq!(
            status["listeners"][0]["classes"],
            serde_json::json!([]),
            "{status:#}"
        );
        let before = bed.counter(0, "syn_reset_held");
        let calm = load(bed.veth4(), 0.5, Duration::from_secs(1));
        assert_eq!(
            (calm.refused, bed.counter(0, "syn_reset_held")),
            (0, before)
        );
    });
    drop(weir);
}
