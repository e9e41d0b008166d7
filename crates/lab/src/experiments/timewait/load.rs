//! What it costs a busy server to remember its connections, and what each way to be rid of that gives: an HTTP load as the
//! paper's WebSTONE runs have it, with a connection for each request or for ten.
//!
//! All ways are measured in each round, one right after the other. Server and clients have a CPU each. Memory: what
//! stands for TIME-WAIT at the server when the window ends, the kernel's sockets and weir's records.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testbed::bed::{Bed, Layout};
use weir_testbed::closing::{Close, Plan, Servers};
use weir_testbed::weir::Weir;

use super::{FIRST_SERVER_PORT, Negotiating, listener, servers, sum, time_waits};
use crate::error::{Context, Result};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

/// The experiments.
pub const ENTRIES: &[Entry] = &[
    Entry::new::<Args>(
        "timewait-load",
        "What does TIME-WAIT cost a busy server, and what does each way to be rid of it give?",
    )
    .source("FTY99, Tables 2 and 3, Figures 5 to 7")
    .flags("", QUICK),
    Entry::new::<Args>("timewait-load", "")
        .preset(
            "timewait-overhead",
            "What does negotiation cost in connections/s?",
        )
        .source("FTY99, Section 3")
        .flags(
            "--ways plain,guard,negotiate --files small --clients 8 --requests 1 --seconds 2 --rounds 16",
            QUICK,
        ),
    Entry::new::<Args>("timewait-load", "")
        .preset(
            "timewait-many",
            "What do throughput and memory of a server become as it has more connections to remember?",
        )
        .source("FTY99, Figure 4")
        .flags(
            "--ways plain,negotiate,client-rst --files small --clients 2 --requests 1 \
             --before 0,10000,20000,40000,80000 --seconds 2 --rounds 3",
            "--ways plain,negotiate --files small --clients 2 --requests 1 --before 0,200 --seconds 0.2 --rounds 1",
        ),
    Entry::new::<Args>("timewait-load", "")
        .preset(
            "timewait-clients",
            "What do throughput and memory of a server become with more clients, where connections are used again?",
        )
        .source("FTY99, Figures 5 to 7")
        .flags(
            "--ways plain,negotiate,client-rst,client-close --files webstone --clients 4,8,16,32,64 --requests 10 \
             --seconds 2 --rounds 3",
            "--ways plain,client-close --files webstone --clients 2,4 --requests 10 --seconds 0.2 --rounds 1",
        ),
];
const QUICK: &str = "--ways plain,negotiate,client-rst --files small --clients 4 --requests 1 --seconds 0.3 --rounds 1";

/// struct tcp_timewait_sock, as /proc/slabinfo has it where that cannot be read.
const TIME_WAIT_BYTES: f64 = 256.0;
const ROUNDS: usize = 3;
/// Ports of the server for connections before the window.
const PORTS_BEFORE: u16 = 4;
/// Clients at a time that make those.
const CLIENTS_BEFORE: usize = 32;

/// Which end is to remember, and how it comes to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The server closes first, and is in TIME-WAIT
    Plain,
    /// The same, with tcp_tw_reuse = 1 at both ends
    TwReuse,
    /// weir guards the server, and leaves TIME-WAIT alone
    Guard,
    /// weir at both ends: the client is to hold
    Negotiate,
    /// weir at the client: timewait = client-rst
    ClientRst,
    /// The client closes first, by a FIN
    ClientFirst,
    /// The client sends CLIENT_CLOSE, and closes
    ClientClose,
}

/// What the clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Files {
    /// 9 KB to 5 MB, 53 KB in the mean, as in Table 2
    Webstone,
    /// 500 bytes, as in Table 3
    Small,
}

impl Files {
    fn sizes(self) -> Vec<(u32, usize)> {
        match self {
            Files::Webstone => vec![
                (8500, 9 << 10),
                (1220, 90 << 10),
                (255, 900 << 10),
                (25, 5 << 20),
            ],
            Files::Small => vec![(1, 500)],
        }
    }
}

/// Arguments of `weir-lab timewait-load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which end is to remember, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,tw-reuse,guard,negotiate,client-rst,client-first,client-close"
    )]
    pub ways: Vec<Way>,
    /// What the clients ask for, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "webstone,small"
    )]
    pub files: Vec<Files>,
    /// Requests of a connection, separated by commas: 1, or 10 in two bursts of 5
    #[arg(long, value_delimiter = ',', default_value = "1,10", value_parser = ["1", "10"])]
    pub requests: Vec<String>,
    /// Clients at a time, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "32")]
    pub clients: Vec<u16>,
    /// Connections that the server has to remember when the window begins, on ports of their own, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u64).range(..=200_000))]
    pub before: Vec<u64>,
    /// Length of the window, in s
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        Ok(Box::new(Load {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Load {
    args: Args,
    program: Program,
}

impl Experiment for Load {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for files in &self.args.files {
            for requests in &self.args.requests {
                for clients in &self.args.clients {
                    for before in &self.args.before {
                        let case = |way: &Way| {
                            let mut case = parameters([
                                ("files", word(files)),
                                ("requests", requests.clone()),
                                ("clients", clients.to_string()),
                                ("way", word(way)),
                            ]);
                            if self.args.before != [0] {
                                case.insert("before".into(), before.to_string());
                            }
                            case
                        };
                        groups.push(self.args.ways.iter().map(case).collect());
                    }
                }
            }
        }
        groups
    }

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "clients that connect again at once, for {} s",
            self.args.seconds
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let way: Way = chosen(case, "way")?;
        let files: Files = chosen(case, "files")?;
        let requests: u32 = parsed(case, "requests")?;
        let clients: usize = parsed(case, "clients")?;
        let before: u64 = match case.contains_key("before") {
            true => parsed(case, "before")?,
            false => 0,
        };
        let bed = Bed::build(Layout::of_this_machine())?;
        for netns in [&bed.clients, &bed.server] {
            netns.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            if way == Way::TwReuse {
                netns.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
            }
        }
        if before > 0 {
            // A server with little memory would forget them, and be a different one.
            bed.server
                .set_sysctl("net.ipv4.tcp_max_tw_buckets", "1000000")?;
        }
        let ports = if before > 0 { 1 + PORTS_BEFORE } else { 1 };
        let weirs = Weirs::start(&bed, &self.program, way, ports)?;
        if before > 0 {
            fill(&bed, &servers(false, ports)[1..], before)?;
        }
        let time_wait_before = time_waits(&bed.server)?;
        let addresses = servers(false, 1);
        let running = Servers::open(&bed.server, &addresses)?;
        let plan = Plan {
            servers: addresses,
            clients,
            connections: u64::MAX,
            time: Duration::from_secs_f64(self.args.seconds),
            closes: vec![match way {
                Way::ClientFirst => Close::Client,
                Way::ClientClose => Close::ClientClose,
                _ => Close::Server,
            }],
            bursts: if requests == 10 { (2, 5) } else { (1, 1) },
            sizes: files.sizes(),
            first_port: None,
            seed: turn.seed,
        };
        let layout = bed.layout;
        let at_server = (&bed.server, Some(layout.server_cpu), clients);
        let tally = running.run(&plan, at_server, (&bed.clients, Some(layout.client_cpu)))?;
        let (at_clients, at_server) = (time_waits(&bed.clients)?, time_waits(&bed.server)?);
        let (held_clients, held_server) = weirs.bytes()?;
        let (seconds, made) = (tally.lasted.as_secs_f64(), tally.made.max(1) as f64);
        let size = time_wait_bytes()?;
        let mut sample = Sample::of([
            ("connections_per_s", tally.made as f64 / seconds),
            ("mbit_per_s", tally.bytes as f64 * 8e-6 / seconds),
            ("cpu_us", tally.cpu.as_secs_f64() * 1e6 / made),
            ("failed", tally.failures() as f64),
            ("time_wait_before", time_wait_before as f64),
            ("time_wait_server", at_server as f64),
            ("time_wait_client", at_clients as f64),
            (
                "server_kbytes",
                (at_server as f64 * size + held_server) / 1e3,
            ),
            (
                "client_kbytes",
                (at_clients as f64 * size + held_clients) / 1e3,
            ),
        ]);
        let causes = tally.failed.iter();
        sample
            .notes
            .extend(causes.map(|(cause, count)| format!("{count} × {cause}")));
        weirs.end()?;
        Ok(sample)
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let plain: Vec<(Parameters, Sample)> = round
            .iter()
            .filter(|(case, _)| case["way"] == "plain")
            .cloned()
            .collect();
        for (case, sample) in round.iter_mut().filter(|(case, _)| case["way"] != "plain") {
            let mut beside = case.clone();
            beside.insert("way".into(), "plain".into());
            let Some((_, plain)) = plain.iter().find(|(case, _)| *case == beside) else {
                continue;
            };
            for metric in ["connections_per_s", "cpu_us"] {
                let name = format!("{metric}_of_plain");
                let ratio = sample.get(metric) / plain.get(metric);
                sample.metrics.insert(name, ratio);
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let mut claims = Vec::new();
        for case in &results.cases {
            if case.parameter("way") == "negotiate" {
                claims.push(Claim::about(
                    "negotiation costs at most 5 % of the connections/s",
                    case,
                    "connections_per_s_of_plain",
                    |ratio| ratio.median >= 0.95,
                ));
            }
            if matches!(case.parameter("way"), "negotiate" | "client-rst") {
                claims.push(Claim::about(
                    "TIME-WAIT takes less than 16 KB at the server",
                    case,
                    "server_kbytes",
                    |kbytes| kbytes.median < 16.0,
                ));
            }
        }
        claims
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("files", "{files}"),
            ("requests", "{requests}"),
            ("clients", "{clients}"),
            ("before", "{before}"),
            ("way", "{way}"),
            ("connections/s", "{connections_per_s|n}"),
            ("of plain", "{connections_per_s_of_plain:box|.3}"),
            ("µs of CPU", "{cpu_us|.1}"),
            ("of plain", "{cpu_us_of_plain:box|.3}"),
            ("Mbit/s", "{mbit_per_s|n}"),
            ("failed", "{failed|n}"),
            ("TIME-WAIT server", "{time_wait_server|n}"),
            ("KB", "{server_kbytes|.1}"),
            ("client", "{time_wait_client|n}"),
            ("KB", "{client_kbytes|.1}"),
        ])
    }
}

/// What runs of weir, at which ends.
enum Weirs<'a> {
    None,
    Client(Weir<'a>),
    Server(Weir<'a>),
    Both(Negotiating<'a>),
}

impl<'a> Weirs<'a> {
    fn start(bed: &'a Bed, program: &Program, way: Way, ports: u16) -> Result<Weirs<'a>> {
        let rule = "[[destination]]\nname = \"backends\"\ntimewait = \"client-rst\"\n";
        Ok(match way {
            Way::Negotiate => Weirs::Both(Negotiating::start(bed, program, ports, "client")?),
            Way::Guard => {
                let rule = listener(FIRST_SERVER_PORT, "");
                Weirs::Server(Weir::run(&bed.server, program.path(), &rule)?)
            }
            Way::ClientRst => Weirs::Client(Weir::run(&bed.clients, program.path(), rule)?),
            _ => Weirs::None,
        })
    }

    /// Of the records at the clients and at the server.
    fn bytes(&self) -> Result<(f64, f64)> {
        match self {
            Weirs::None | Weirs::Server(_) => Ok((0.0, 0.0)),
            Weirs::Client(weir) => Ok((sum(&weir.status()?["destinations"], "bytes"), 0.0)),
            Weirs::Both(weirs) => weirs.figures("bytes"),
        }
    }

    fn end(self) -> Result<()> {
        match self {
            Weirs::None => Ok(()),
            Weirs::Client(weir) | Weirs::Server(weir) => weir.end(),
            Weirs::Both(weirs) => weirs.end(),
        }
    }
}

/// Has the server close so many connections first.
fn fill(bed: &Bed, servers: &[SocketAddr], connections: u64) -> Result<()> {
    let plan = Plan {
        servers: servers.to_vec(),
        clients: CLIENTS_BEFORE,
        connections,
        time: Duration::from_secs(60),
        closes: vec![Close::Server],
        bursts: (1, 1),
        sizes: Files::Small.sizes(),
        first_port: None,
        seed: 0,
    };
    let running = Servers::open(&bed.server, servers)?;
    let at_server = (&bed.server, None, CLIENTS_BEFORE);
    running.run(&plan, at_server, (&bed.clients, None))?;
    Ok(())
}

/// Kernel memory of one socket in TIME-WAIT: the fourth column of /proc/slabinfo.
fn time_wait_bytes() -> Result<f64> {
    let path = "/proc/slabinfo";
    let text = std::fs::read_to_string(path).context(format!("cannot read {path}"))?;
    let row = text.lines().find(|row| row.starts_with("tw_sock_TCP "));
    let size = row.and_then(|row| row.split_whitespace().nth(3)?.parse().ok());
    Ok(size.unwrap_or(TIME_WAIT_BYTES))
}
