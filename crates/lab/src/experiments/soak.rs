//! A soak: a server at twice its saturation for a long time, while everything around it is disturbed: reloads to other
//! settings, restarts of the server, a link that goes down and comes back, and `kill -9` of weir.
//!
//! Beside the load some connections are established at the beginning and are asked for an echo all the time. None of
//! them may end. In the second half of the run weir is not killed any more, so that what it needs can be compared over
//! that half.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::point::{OpenLoop, ServerArgs};
use super::saturation;
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::client::tcp::Kind;
use crate::client::{Fate, Load, Pattern};
use crate::cpu;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, check_seconds};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::server::{BUSY, Server, sockets_in_state};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "soak",
    "Does weir stay as it is, and lose nothing, when a server is at twice its saturation for a long time and everything around it is disturbed?",
)
.source("beyond the papers")
.flags(
    "--server nginx --backlog 511 --minutes 30",
    "--minutes 0.3 --cycle 4 --rate 3000 --work-us 500",
)];

/// Arguments of `weir-lab soak`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Length in minutes, with the pauses between the cycles
    #[arg(long, default_value_t = 30.0)]
    pub minutes: f64,
    /// Length of a cycle in seconds: each has every disturbance once
    #[arg(long, default_value_t = 20.0)]
    pub cycle: f64,
    /// Connections that stay established throughout
    #[arg(long, default_value_t = 20)]
    pub established: usize,
    /// Connections/s that are offered (without it, twice the server's saturation, which is searched for)
    #[arg(long)]
    pub rate: Option<f64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Of the connections that stay.
const KEPT_PORT: u16 = 81;
/// A client of the load has given up after this long; also the end of each cycle.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// An echo may take so long: a link that was down makes TCP wait for a second or two.
const ECHO_PATIENCE: Duration = Duration::from_secs(15);
const BETWEEN_ECHOES: Duration = Duration::from_millis(20);
/// The link is down for this long.
const DOWN: Duration = Duration::from_millis(300);
/// What the server still has to do after the load has this long.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// The device of the connections that stay, in the server's namespace.
const LINK: &str = "veth0";
/// weir may need so much more at the end than when it had lived for [`FULL_AFTER`].
const GROWTH_KIB: f64 = 512.0;
/// By then its tables are full: they remember what was refused and what has happened, up to a number of entries each.
const FULL_AFTER: Duration = Duration::from_secs(5 * 60);
/// What they need together when they are full, of a program without optimisation: of a shorter run weir needs no more.
const TABLES_KIB: f64 = 10.0 * 1024.0;
/// The server serves at least this part, in the last quarter, of what it served in the quarter before.
const STILL_SERVED: f64 = 0.8;
/// Of fewer cycles in the second half that is not judged: what is served differs from one to the next.
const CYCLES_TO_JUDGE: usize = 8;

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--minutes", self.minutes)?;
        check_seconds("--cycle", self.cycle)?;
        if self.server.port == KEPT_PORT {
            let cause = "the connections that stay have that port";
            return Err(Error::usage(format!("bad --port {KEPT_PORT}"), cause));
        }
        Ok(Box::new(Soak {
            args: self,
            weir: program.weir.clone(),
            bed: None,
            rate_per_s: 0.0,
        }))
    }
}

struct Soak {
    args: Args,
    weir: Option<PathBuf>,
    bed: Option<OpenLoop>,
    /// Offered.
    rate_per_s: f64,
}

impl Args {
    fn load(&self, bed: &Bed, rate_per_s: f64) -> Load {
        Load {
            target: (bed.server_address(false), self.server.port).into(),
            rate_per_s,
            pattern: Pattern::Constant,
            warm_up: Duration::ZERO,
            window: Duration::from_secs_f64(self.cycle),
            timeout: CLIENT_PATIENCE,
            kind: Kind::Rfc793,
            server_closes_first: false,
            drain: true,
        }
    }

    /// Two configurations that a reload changes between: what decides, and what there is.
    fn config(&self, number: usize) -> String {
        let web = format!(
            "[[listener]]\nname = \"web\"\naddress = \"*:{}\"\n",
            self.server.port
        );
        let kept = format!("[[listener]]\nname = \"kept\"\naddress = \"*:{KEPT_PORT}\"\n");
        match number % 2 {
            0 => format!("[api]\n{web}{kept}"),
            _ => format!(
                "[api]\n{web}establish = \"no-syn-drop\"\n{kept}\
                 [[class]]\nname = \"half\"\nlistener = \"web\"\nfrom = \"10.128.0.0/10\"\nrate = 1000\nover_rate = \"rst\"\n\
                 [controller]\ntarget_wait = \"20ms\"\n"
            ),
        }
    }
}

impl Experiment for Soak {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        vec![vec![parameters([
            ("minutes", self.args.minutes.to_string()),
            ("cycle_s", self.args.cycle.to_string()),
        ])]]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let mut bed = self.args.server.open(self.weir.clone())?;
        facts.insert("server".into(), bed.server.describe().into());
        self.rate_per_s = match self.args.rate {
            Some(rate_per_s) => rate_per_s,
            None => {
                let base = Load {
                    window: Duration::from_secs(1),
                    drain: false,
                    ..self.args.load(&bed.bed, 0.0)
                };
                let peak = saturation::known_or_found(facts, &mut bed, &base, 1000.0)?;
                2.0 * peak.replies_per_s
            }
        };
        facts.insert("offered_per_s".into(), self.rate_per_s.into());
        self.bed = Some(bed);
        Ok(())
    }

    fn measure(&mut self, _case: &Parameters, _turn: Turn) -> Result<Sample> {
        let args = self.args.clone();
        let OpenLoop {
            bed,
            server: spec,
            generator,
            ..
        } = self.bed.as_mut().expect("opened first");
        let bed = &*bed;
        let echoes = Echoes::start(bed, args.established)?;
        let mut under_test = UnderTest {
            bed,
            args: &args,
            spec,
            program: self.weir.clone(),
            server: Some(Server::start(bed, spec)?),
            weir: None,
            reloads: 0,
        };
        under_test.start_weir()?;
        let load = args.load(bed, self.rate_per_s);
        let (mut seen, mut kib, mut descriptors) = (Seen::default(), Vec::new(), Vec::new());
        let (mut served, mut half, mut full) = (Vec::new(), None, None);
        let (begun, length) = (Instant::now(), Duration::from_secs_f64(args.minutes * 60.0));
        // One cycle at least with a kill, one before the comparison, and one after.
        while half.is_none_or(|(half, _)| served.len() < half + 2) || begun.elapsed() < length {
            let kills = served.is_empty() || begun.elapsed() < length / 2;
            if !kills {
                let (_, since) = *half.get_or_insert((served.len(), Instant::now()));
                if since.elapsed() >= FULL_AFTER {
                    full.get_or_insert(served.len());
                }
            }
            let fate = std::thread::scope(|scope| {
                let (load, generator) = (&load, &mut *generator);
                let clients = scope.spawn(move || {
                    cpu::pin_this_thread(bed.layout.client_cpu)?;
                    generator.run(bed, load, |_| {})
                });
                let disturbed = under_test.cycle(kills);
                let run = match clients.join() {
                    Ok(run) => run?,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                disturbed.map(|()| run.tally.fate)
            })?;
            let ended = Instant::now();
            let busy = || bed.server.run(|| sockets_in_state(BUSY, Some(spec.port)));
            generator.settle(bed, || Ok(busy()? == 0 || ended.elapsed() > SETTLE_LIMIT))?;
            seen.add(&fate, busy()? + under_test.waiting()?);
            let (now_kib, now_descriptors) = under_test.needs()?;
            kib.push(now_kib);
            descriptors.push(now_descriptors);
            served.push(fate.served as f64);
            eprintln!(
                "  cycle {}, minute {:.1} of {}: {} served, {} refused, {} reset, {} timed out, weir {now_kib} KiB, {} lost",
                served.len(),
                begun.elapsed().as_secs_f64() / 60.0,
                args.minutes,
                fate.served,
                fate.refused,
                fate.reset,
                fate.timed_out,
                echoes.lost(),
            );
            under_test.check_alive()?;
        }
        drop(under_test);
        let (asked, lost) = echoes.end();
        // The first cycle of the half fills what is filled once.
        let (half, _) = half.expect("the run ends after it");
        let growth_from = |from: usize, needs: &[f64]| needs.last().unwrap_or(&0.0) - needs[from];
        let growth = |needs: &[f64]| growth_from(half + 1, needs);
        let mut sample = Sample::of([
            ("cycles", served.len() as f64),
            ("started", seen.started as f64),
            ("served", seen.served as f64),
            ("refused", seen.refused as f64),
            ("reset", seen.reset as f64),
            ("timed_out", seen.timed_out as f64),
            ("stuck", seen.stuck as f64),
            ("echoes", asked as f64),
            ("established_lost", lost as f64),
            ("weir_kib", kib.last().copied().unwrap_or(f64::NAN)),
            ("weir_kib_growth", growth(&kib)),
            ("descriptors_growth", growth(&descriptors)),
        ]);
        if let Some(full) = full.filter(|full| *full < kib.len()) {
            let growth = growth_from(full, &kib);
            sample
                .metrics
                .insert("weir_kib_growth_when_full".into(), growth);
        }
        if served.len() - half >= CYCLES_TO_JUDGE {
            let still = still_served(&served[half..]);
            sample.metrics.insert("still_served".into(), still);
        }
        sample.series.insert("weir_kib".into(), kib);
        sample.series.insert("served".into(), served);
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let Some(case) = results.cases.first() else {
            return Vec::new();
        };
        let is_zero = ["established_lost", "stuck", "descriptors_growth"].map(|metric| {
            let claim = match metric {
                "established_lost" => "no established connection is lost",
                "stuck" => "no connection is left over after the load",
                _ => "weir needs no more descriptors at the end",
            };
            Claim::about(claim, case, metric, |n| n.range.1 <= 0.0)
        });
        let fills = Claim::about(
            "weir needs no more memory at the end than its tables take",
            case,
            "weir_kib_growth",
            |n| n.range.1 <= TABLES_KIB,
        );
        let flat = Claim::about(
            "weir needs no more memory at the end than when its tables were full",
            case,
            "weir_kib_growth_when_full",
            |n| n.range.1 <= GROWTH_KIB,
        );
        let flat = case
            .metrics
            .contains_key("weir_kib_growth_when_full")
            .then_some(flat);
        let serves = Claim::about(
            "the server serves at the end what it served before",
            case,
            "still_served",
            |n| n.range.0 >= STILL_SERVED,
        );
        let judged = case.metrics.contains_key("still_served");
        let serves = judged.then_some(serves);
        is_zero
            .into_iter()
            .chain([fills])
            .chain(flat)
            .chain(serves)
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("minutes", "{minutes}"),
            ("cycles", "{cycles|n}"),
            ("connections", "{started|n}"),
            ("served", "{served|n}"),
            ("refused", "{refused|n}"),
            ("reset", "{reset|n}"),
            ("timed out", "{timed_out|n}"),
            ("echoes", "{echoes|n}"),
            ("established lost", "{established_lost|n}"),
            ("stuck", "{stuck|n}"),
            ("weir KiB", "{weir_kib|n}"),
            ("growth KiB", "{weir_kib_growth|n}"),
        ])
    }
}

/// Of the second half's cycles: what the later ones served of what the earlier ones did.
fn still_served(cycles: &[f64]) -> f64 {
    let (before, after) = cycles.split_at(cycles.len() / 2);
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    mean(after) / mean(before)
}

/// Sums over all cycles.
#[derive(Default)]
struct Seen {
    started: u64,
    served: u64,
    refused: u64,
    reset: u64,
    timed_out: u64,
    /// Connections that the server's kernel still had, and that waited for it, after the clients had gone.
    stuck: usize,
}

impl Seen {
    fn add(&mut self, fate: &Fate, stuck: usize) {
        self.started += fate.started;
        self.served += fate.served;
        self.refused += fate.refused;
        self.reset += fate.reset;
        self.timed_out += fate.timed_out;
        self.stuck += stuck;
    }
}

/// The server and weir, with what happens to them.
struct UnderTest<'a> {
    bed: &'a Bed,
    args: &'a Args,
    spec: &'a crate::server::Spec,
    program: Option<PathBuf>,
    server: Option<Server>,
    weir: Option<Weir<'a>>,
    reloads: usize,
}

impl UnderTest<'_> {
    fn start_weir(&mut self) -> Result<()> {
        let config = self.args.config(self.reloads);
        let weir = Weir::run(&self.bed.server, self.program.as_deref(), &config)?;
        self.weir = Some(weir);
        Ok(())
    }

    fn weir(&self) -> &Weir<'_> {
        self.weir.as_ref().expect("it runs between two kills")
    }

    fn reload(&mut self) -> Result<()> {
        self.reloads += 1;
        self.weir().reload(&self.args.config(self.reloads))
    }

    fn flap(&self) -> Result<()> {
        self.bed.server.ip(&["link", "set", LINK, "down"])?;
        std::thread::sleep(DOWN);
        self.bed.server.ip(&["link", "set", LINK, "up"])
    }

    /// Every disturbance, spread over one cycle.
    fn cycle(&mut self, kills: bool) -> Result<()> {
        let (begun, cycle_s) = (Instant::now(), self.args.cycle);
        let at = |part: f64| -> Result<()> {
            let due = begun + Duration::from_secs_f64(cycle_s * part);
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                interrupt::check()?;
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            Ok(())
        };
        at(0.1)?;
        self.reload()?;
        at(0.25)?;
        self.flap()?;
        at(0.4)?;
        // SIGKILL: its connections end, and its listening socket for a moment.
        self.server = None;
        self.server = Some(Server::start(self.bed, self.spec)?);
        at(0.55)?;
        self.reload()?;
        at(0.7)?;
        if kills {
            // SIGKILL.
            self.weir = None;
            self.start_weir()?;
        }
        at(0.85)?;
        self.flap()
    }

    /// Connections in the listen queues, by weir.
    fn waiting(&self) -> Result<usize> {
        let status = self.weir().status()?;
        let listeners = status["listeners"].as_array().cloned().unwrap_or_default();
        let of = |one: &serde_json::Value| {
            one["queue_length"].as_u64().unwrap_or(0) + one["half_open"].as_u64().unwrap_or(0)
        };
        Ok(listeners.iter().map(of).sum::<u64>() as usize)
    }

    /// Memory in KiB (VmRSS) and descriptors of weir.
    fn needs(&self) -> Result<(f64, f64)> {
        let pid = self.weir().pid();
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).context(format!("cannot read {path}"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let folder = format!("/proc/{pid}/fd");
        let open = std::fs::read_dir(&folder).context(format!("cannot read {folder}"))?;
        Ok((kib.unwrap_or(f64::NAN), open.count() as f64))
    }

    fn check_alive(&mut self) -> Result<()> {
        if let Some(weir) = &mut self.weir {
            weir.check_alive()?;
        }
        self.server.as_mut().map_or(Ok(()), Server::check_alive)
    }
}

/// Connections that stay, each asked for an echo again and again.
struct Echoes {
    ends: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    client: JoinHandle<()>,
    /// Nothing else comes there; it is what weir guards.
    _listener: TcpListener,
}

impl Echoes {
    fn start(bed: &Bed, count: usize) -> Result<Echoes> {
        let address = SocketAddrV4::new(SERVER_VETH_V4, KEPT_PORT);
        let listener = bed
            .server
            .run(|| TcpListener::bind(address).context(format!("cannot listen on {address}")))?;
        let connect = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ECHO_PATIENCE))?;
            Ok(stream)
        };
        let clients: Vec<TcpStream> = bed.clients.run(|| {
            let all: std::io::Result<_> = (0..count).map(|_| connect()).collect();
            all.context("cannot establish the connections that stay")
        })?;
        for _ in 0..count {
            let (stream, _) = listener.accept().context("cannot accept what stays")?;
            // It ends with its client.
            std::thread::spawn(move || echo(stream));
        }
        let (ends, asked, lost) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let shared = (Arc::clone(&ends), Arc::clone(&asked), Arc::clone(&lost));
        let client = std::thread::spawn(move || {
            let (ends, asked, lost) = shared;
            let mut clients = clients;
            while !ends.load(Ordering::Relaxed) {
                let before = clients.len();
                clients.retain_mut(|stream| ask(stream).is_ok());
                asked.fetch_add(before as u64, Ordering::Relaxed);
                lost.fetch_add((before - clients.len()) as u64, Ordering::Relaxed);
                std::thread::sleep(BETWEEN_ECHOES);
            }
        });
        Ok(Echoes {
            ends,
            asked,
            lost,
            client,
            _listener: listener,
        })
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How often they were asked, and how many were lost.
    fn end(self) -> (u64, u64) {
        self.ends.store(true, Ordering::Relaxed);
        // It has nothing that panics.
        let _ = self.client.join();
        (
            self.asked.load(Ordering::Relaxed),
            self.lost.load(Ordering::Relaxed),
        )
    }
}

fn echo(mut stream: TcpStream) {
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        if stream.write_all(&byte).is_err() {
            return;
        }
    }
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}
