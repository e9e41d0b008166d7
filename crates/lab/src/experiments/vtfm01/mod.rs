//! VTFM01: service differentiation in an overloaded server, on real sockets.
//!
//! One module a figure, table or claim. They share the [`Stage`]: one bed, a fresh server and a fresh weir for
//! every point, and clients with real sockets ([`crate::closed_loop`]) whose class is their source address.

pub mod accuracy;
pub mod controller;
pub mod order;
pub mod overload;
pub mod police_high;
pub mod preferred;
pub mod priorities;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bed::{Bed, Layout, SERVER_VETH_V4};
use crate::closed_loop::{self, Demand, Group, Outcome};
use crate::error::{Error, Result};
use crate::plot::lines::{Line, Picture};
use crate::report::{self, Times};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, Program, Server, Spec};
use crate::weir::Weir;

/// Port of the server.
pub const PORT: u16 = 80;
/// As long as somaxconn of today's kernels is by default; the paper's clients fit in.
pub const BACKLOG: u32 = 4096;

/// The experiments of the paper, and what issue 3 asks beyond it.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Figures 1 and 3: a preferred client among greedy ones
    Preferred(preferred::Args),
    /// Figures 5 and 6: three classes in the listen queue, with 50 and 20 server processes
    Priorities(priorities::Args),
    /// Table 2: policing the high class brings the low ones back
    PoliceHigh(police_high::Args),
    /// In which order a stopped server accepts what has queued meanwhile
    Order(order::Args),
    /// The high class in an overloaded listen queue, against class listeners and the plain kernel
    Overload(overload::Args),
    /// The controller at multiples of saturation, at a step of the load, and in bursts that fit
    Controller(controller::Args),
    /// The admitted rate over the rate asked for, and bursts
    Accuracy(accuracy::Args),
}

/// Runs the experiment of the command line.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Preferred(args) => preferred::run(args),
        Command::Priorities(args) => priorities::run(args),
        Command::PoliceHigh(args) => police_high::run(args),
        Command::Order(args) => order::run(args),
        Command::Overload(args) => overload::run(args),
        Command::Controller(args) => controller::run(args),
        Command::Accuracy(args) => accuracy::run(args),
    }
}

/// What all of them let one choose.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Length of the measuring window of each point, in s
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Load before the window, not counted, in s
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// How often each point is measured; rounds are interleaved (A B C A B C)
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Seed of traces and orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json and the picture [default: out/vtfm01/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

impl Common {
    fn check(&self) -> Result<()> {
        let times = [
            ("--seconds", self.seconds, 0.01),
            ("--warm-up", self.warm_up, 0.0),
        ];
        for (flag, value, least) in times {
            if !(least..=3600.0).contains(&value) {
                let cause = format!("it must be {least} to 3600 s");
                return Err(Error::usage(format!("bad {flag} {value}"), cause));
            }
        }
        if self.rounds == 0 {
            return Err(Error::usage(
                "bad --rounds 0",
                "at least one round is needed",
            ));
        }
        Ok(())
    }

    /// One round with a short window, for tests.
    pub fn short(window: Duration, weir: Option<PathBuf>) -> Common {
        Common {
            seconds: window.as_secs_f64(),
            warm_up: 0.5,
            rounds: 1,
            seed: 1,
            weir,
            out: None,
            json: true,
        }
    }

    /// Where results go: `--out`, or a folder of this name.
    fn folder(&self, name: &str) -> PathBuf {
        let default = || PathBuf::from("out/vtfm01").join(name);
        self.out.clone().unwrap_or_else(default)
    }

    /// Writes results and picture there, and prints the results.
    fn tell(
        &self,
        name: &str,
        results: &impl Serialize,
        picture: &Picture,
        tables: impl FnOnce() -> String,
    ) -> Result<()> {
        let out = self.folder(name);
        let json = report::write_json(results, &out)?;
        picture.write(&out, name)?;
        report::show(&json, self.json, tables);
        Ok(())
    }

    fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Servers to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerKind {
    /// Workers that wait for --service-ms with each connection
    Pool,
    /// Apache with the prefork model and a file of 8 KB
    Apache,
    /// nginx with a file of 8 KB
    Nginx,
}

/// The server under test, without its number of workers.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ServerArgs {
    /// Server under test
    #[arg(long, value_enum, default_value = "pool")]
    pub server: ServerKind,
    /// How long a worker of the pool is busy with each connection, in ms
    #[arg(long, default_value_t = 10.0)]
    pub service_ms: f64,
}

impl ServerArgs {
    fn spec(&self, workers: usize) -> Spec {
        let program = match self.server {
            ServerKind::Apache => Program::Apache { workers },
            ServerKind::Nginx => Program::NginxWorkers(workers),
            ServerKind::Pool => Program::Pool {
                workers,
                service_us: (self.service_ms * 1e3) as u32,
                occupation: Occupation::Wait,
                body_bytes: FILE_BYTES,
                listeners: 1,
            },
        };
        Spec {
            program,
            port: PORT,
            backlog: BACKLOG,
        }
    }
}

/// The clients' address of a class; 1 is the highest.
pub fn address(class: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 66, 1, 10 + class)
}

/// Classes that have an address.
const CLASSES: u8 = 3;

/// So many greedy clients of a class.
fn greedy(class: u8, clients: usize) -> Group {
    Group {
        source: address(class),
        target: target(PORT),
        demand: Demand::Greedy { clients },
    }
}

fn target(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(SERVER_VETH_V4, port)
}

/// A `[[class]]` of the configuration.
#[derive(Debug, Clone, Default)]
struct ClassConfig {
    class: u8,
    /// Connections/s and connections.
    rate: Option<(f64, u32)>,
}

/// A configuration with one listener and classes by source address, of which the number is the priority.
fn config(queue: &str, classes: &[ClassConfig]) -> String {
    let mut config =
        format!("[[listener]]\nname = \"web\"\naddress = \"0.0.0.0:{PORT}\"\n{queue}\n");
    for class in classes {
        let number = class.class;
        config += &format!(
            "[[class]]\nname = \"class{number}\"\nlistener = \"web\"\nfrom = \"{}\"\npriority = {number}\n",
            address(number)
        );
        if let Some((rate, burst)) = class.rate {
            config += &format!("rate = {rate}\nburst = {burst}\n");
        }
    }
    config
}

/// The classes 1 to so many, none of them policed.
fn unpoliced(classes: u8) -> Vec<ClassConfig> {
    let class = |class| ClassConfig { class, rate: None };
    (1..=classes).map(class).collect()
}

/// The order of the kernel, and its way with SYNs.
const FIFO: &str = "establish = \"default\"";
/// Ordered by weir, which then also counts the places; nobody is refused before they are all taken. `ageing`: a
/// time, or `off`.
fn priority(ageing: &str) -> String {
    format!(
        "establish = \"reserv\"\nadmit = \"queue\"\nqueue = \"priority\"\nageing = \"{ageing}\""
    )
}

/// Strictly by priority, as in the paper.
fn strict() -> String {
    priority("off")
}

/// What stays the same from point to point.
#[derive(Debug)]
pub struct Stage {
    bed: Bed,
    weir: Option<PathBuf>,
    warm_up: Duration,
    window: Duration,
}

impl Stage {
    fn build(common: &Common) -> Result<Stage> {
        common.check()?;
        let bed = Bed::build(Layout::of_this_machine())?;
        for class in 1..=CLASSES {
            let address = format!("{}/24", address(class));
            bed.clients.ip(&["addr", "add", &address, "dev", "veth0"])?;
        }
        // What the server receives is work of its own CPU, as if the clients were another machine.
        bed.server
            .steer_receive_work("veth0", bed.layout.server_cpu)?;
        Ok(Stage {
            bed,
            weir: common.weir.clone(),
            warm_up: common.warm_up(),
            window: common.window(),
        })
    }

    /// Measures one point: what each group of clients got. `config`: of weir, none without.
    fn point(&self, spec: &Spec, config: Option<&str>, groups: &[Group]) -> Result<Vec<Share>> {
        let mut server = Server::start(&self.bed, spec)?;
        let weir = config.map(|config| self.weir(config)).transpose()?;
        let outcomes = self.run_clients(groups)?;
        server.check_alive()?;
        weir.map_or(Ok(()), Weir::end)?;
        Ok(outcomes.iter().map(|outcome| self.share(outcome)).collect())
    }

    fn weir(&self, config: &str) -> Result<Weir<'_>> {
        Weir::run(&self.bed.server, self.weir.as_deref(), config)
    }

    fn run_clients(&self, groups: &[Group]) -> Result<Vec<Outcome>> {
        let cpu = Some(self.bed.layout.client_cpu);
        self.bed.clients.run_on(cpu, || {
            closed_loop::run(groups, FILE_BYTES, self.warm_up, self.window)
        })
    }

    /// Replies/s of the server without protection, when more clients ask than it has workers.
    fn capacity(&self, spec: &Spec) -> Result<f64> {
        const CLIENTS: usize = 100;
        let shares = self.point(spec, None, &[greedy(3, CLIENTS)])?;
        Ok(shares[0].replies_per_s)
    }

    fn share(&self, outcome: &Outcome) -> Share {
        let seconds = self.window.as_secs_f64();
        Share {
            replies_per_s: outcome.replies as f64 / seconds,
            kbytes_per_s: outcome.bytes as f64 / 1e3 / seconds,
            failures: outcome.failures,
            response: Times::of(&outcome.response_us),
            longest_wait_ms: outcome.longest_wait.as_secs_f64() * 1e3,
        }
    }
}

/// What a group of clients got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Share {
    /// Complete replies/s.
    pub replies_per_s: f64,
    /// Received, in units of 1000 bytes/s.
    pub kbytes_per_s: f64,
    /// Requests that ended without a reply.
    pub failures: u64,
    /// connect() (or due time) to the end of the reply.
    pub response: Times,
    /// The longest that a request had waited when the window ended or its reply came.
    pub longest_wait_ms: f64,
}

/// A value over several rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The one in the middle (of an even number the higher one).
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of some values; zeros of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Spread::default();
        };
        Spread {
            median: values[values.len() / 2],
            least,
            most,
        }
    }

    /// `12.3 (11.0–13.1)`, or the one value if all are the same.
    fn cell(&self, digits: usize) -> String {
        let number = |value: f64| format!("{value:.digits$}");
        let (median, least, most) = (number(self.median), number(self.least), number(self.most));
        if least == most {
            return median;
        }
        format!("{median} ({least}–{most})")
    }

    fn percent_cell(&self) -> String {
        let percent = Spread {
            median: self.median * 100.0,
            least: self.least * 100.0,
            most: self.most * 100.0,
        };
        percent.cell(0) + " %"
    }
}

/// A line with a marker and its spread at each point.
fn line(name: usize, points: impl Iterator<Item = (f64, Spread)>) -> Line {
    let points: Vec<(f64, Spread)> = points.collect();
    Line {
        name,
        points: points.iter().map(|(x, y)| (*x, y.median)).collect(),
        spread: points.iter().map(|(x, y)| (*x, y.least, y.most)).collect(),
        markers: true,
        dots: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_shown_only_where_there_is_one() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread.cell(0), "2 (1–3)");
        assert_eq!(Spread::of([0.5]).percent_cell(), "50 %");
    }

    #[test]
    fn a_class_s_number_is_its_priority_and_its_address() {
        let classes = [ClassConfig {
            class: 2,
            rate: Some((300.0, 5)),
        }];
        let config = config(&strict(), &classes);
        for line in [
            "priority = 2",
            "from = \"10.66.1.12\"",
            "rate = 300",
            "burst = 5",
        ] {
            assert!(
                config.lines().any(|found| found == line),
                "{line}: {config}"
            );
        }
    }
}
