//! The command line: this one definition gives parsing, help, man pages and completions.
//!
//! Values and texts of the flags come from the keys of `weir_config`, where the config file has
//! them from too.

mod flags;
#[cfg(test)]
mod pages;
mod value;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use weir_config::{
    Fault, did_you_mean, parse_ip, parse_name, parse_port, parse_socket_address, parse_where,
};
use weir_core::aqm::Discipline;
use weir_core::aqm::discipline::UnknownDiscipline;
use weir_core::shape::DISCIPLINES;
use weir_core::units::{parse_bit_rate, parse_duration};
use weir_core::workload::Where;
use weir_core::{class, proxy};

pub use self::flags::Changes;
use self::flags::{KeyFlags, NamedFlags, PolicyFlags};
use self::value::parsed;
use crate::top::rows::Sort;

/// The shortest and the longest time between two reports of `weir top`.
const EVERY: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Where the control socket and the lock are, one pair per network namespace.
pub const RUNTIME_DIR: &str = "/run/weir";

/// Keeps Internet servers fast when more connections arrive than they can serve.
///
/// Everything works on the network namespace in which it is started.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// Directory of the control socket and the lock.
    #[arg(long, global = true, hide = true, default_value = RUNTIME_DIR)]
    pub runtime_dir: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 failed, 2 bad usage or config, 3 not supported here, \
    4 no weir runs here, 5 a listener is not in force, 6 no refusal of the client is kept (why).";

const EXEC_NOTES: &str = "The server takes this process's place: process id, signals and exit status are its \
    own. `weir exec` reports faults of the config file and starts the server in any case.";

const TRACE_NOTES: &str = "Reads pcap and pcapng, plain, gzip or zstd; headers are enough (`tcpdump -s 96`). \
    Needs no root and no running weir. A capture that is cut or damaged gives its figures up to there, and exit code 1.";

const OBSERVE_NOTES: &str = "Every listener only observes, of TCP and of QUIC: weir counts what it would refuse, and refuses \
    nothing. Classes stay as they are. `weir reload` ends it sooner. Exit code 4: no weir runs here.";
const WHY_NOTES: &str = "weir keeps the refusals of the last hour: all of them while there are fewer than 1000 a second, \
    else a sample. Exit codes: 0 the client was refused, 4 no weir runs here, 6 no refusal of the client is kept.";
const SUGGEST_NOTES: &str = "weir keeps distributions of queue lengths, waits and rates of each listener since it started, or since a reload \
    changed the listener. Exit codes: 0 it suggests something, 1 it has looked for too short a time, 4 no weir runs here.";
const TOP_NOTES: &str = "Where standard output is no terminal, it prints once, as --once. NO_COLOR turns colours \
    off. Key `?` shows the keys. Exit code 4: no weir runs here.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Protect the servers on some ports or all, in the foreground, until Ctrl-C
    Protect(Protect),
    /// Protect the listeners of a config file
    Run(Run),
    /// Make `weir run` and `weir proxy` read their config files again and apply them without a gap
    Reload(Reload),
    /// Have the running `weir run` refuse nobody for a while, without a change of its config file
    #[command(after_help = OBSERVE_NOTES)]
    Observe(Observe),
    /// Forward HTTP or TCP between clients and servers, in the foreground, until Ctrl-C
    Proxy(Proxy),
    /// Start a server whose accept() returns the waiting connection of the highest class
    #[command(after_help = EXEC_NOTES)]
    Exec(Exec),
    /// Check a config file and print the values in effect
    Check(Check),
    /// Show the listeners under guard and the proxies: queues, policy, verdicts, counters
    #[command(
        after_help = "`weir explain NAME` says what a column or a verdict means. Exit code 4: no weir runs here."
    )]
    Status(Status),
    /// Show what happened: overload, the controller, reloads, backends, sampled refusals
    #[command(
        after_help = "docs/events.md has the kinds of events. Exit code 4: no weir runs here."
    )]
    Events(Events),
    /// Show why a client was refused, or who is refused most
    #[command(after_help = WHY_NOTES)]
    Why(Why),
    /// Suggest settings that fit what the listeners have gone through, as a config file with the reasons
    #[command(after_help = SUGGEST_NOTES)]
    Suggest(Suggest),
    /// Show live what status shows: waits against their targets, refusals per second, who is held and why
    #[command(after_help = TOP_NOTES)]
    Top(Top),
    /// Show or change the classes in force, without the config file
    #[command(subcommand)]
    Class(Class),
    /// Shape what an interface sends, so that short connections cross a slow link at once
    #[command(subcommand)]
    Shape(Shape),
    /// Remove all protection from this network namespace
    Detach(Detach),
    /// Show which mechanisms this machine supports, and why not the others
    Doctor(Doctor),
    /// Explain a counter, a config key or a column of status; without a name, list them all
    Explain(Explain),
    /// Show from captures how often TCP connections lose a SYN, and how long that holds them up
    #[command(after_help = TRACE_NOTES)]
    Trace(Trace),
    /// Show by how much a lost SYN lengthens a connection, by its size
    Model(Model),
    /// Write man pages, completions or the reference pages into a directory
    #[command(hide = true)]
    Generate(Generate),
}

/// `weir protect`.
#[derive(Debug, Args)]
pub struct Protect {
    /// TCP ports that servers listen on, or that containers publish (`docker run -p`); or `all`: every one that a server of this
    /// network namespace listens on, also those that come later. Where a UDP socket is bound to such a port too, new QUIC
    /// connections (HTTP/3) to it are held to what its server answers; other datagrams pass
    #[arg(value_name = "PORT", required = true, value_parser = parsed(parse_target))]
    pub targets: Vec<Target>,
    /// Address that the server listens on; * is every address, IPv4 and IPv6
    #[arg(long, value_name = "A", default_value = "*", value_parser = parsed(parse_address))]
    pub address: Address,
    /// The policy.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// Count what weir would do, and change nothing
    #[arg(long)]
    pub observe: bool,
    /// Protect also while nothing listens on a port
    #[arg(long)]
    pub anyway: bool,
    /// Leave UDP alone: guard no QUIC (HTTP/3)
    #[arg(long)]
    pub no_quic: bool,
    /// Print sampled refusals to stderr
    #[arg(long, short)]
    pub verbose: bool,
}

/// `weir run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The config file; `weir check --example` prints one to start from
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print sampled refusals to stderr
    #[arg(long, short)]
    pub verbose: bool,
}

/// `weir proxy`.
#[derive(Debug, Args)]
#[command(override_usage = "weir proxy --config <FILE>\n       \
                            weir proxy --listen <ADDR:PORT> --mode <WORD> [OPTIONS]")]
pub struct Proxy {
    /// Run the proxies of this config file; `weir check --example` prints one
    #[arg(long, value_name = "FILE", conflicts_with = "settings")]
    pub config: Option<PathBuf>,
    /// Take the listening sockets over from the processes that have them. Those processes serve their
    /// clients to the end and accept no new ones; no connection is refused meanwhile
    #[arg(long)]
    pub take_over: bool,
    /// Say in the log also what was refused or left out of single clients: odd field names, PROXY headers, clients that may not come
    #[arg(long, short)]
    pub verbose: bool,
    /// Answer GET /metrics here with OpenMetrics text
    #[arg(long, value_name = "ADDR:PORT", value_parser = parsed(parse_socket_address))]
    pub metrics: Option<SocketAddr>,
    /// The one proxy to run, if there is no file.
    #[command(flatten)]
    pub flags: KeyFlags<proxy::Proxy>,
}

/// `weir exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// The config file, whose classes `exact` uses; `parking` uses those of `weir run` [default:
    /// /etc/weir/weir.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What orders the server's waiting connections
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Order::Auto)]
    pub order: Order,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "SERVER")]
    pub server: Vec<OsString>,
}

/// An `--order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// `parking` where this kernel supports it, otherwise `exact`
    Auto,
    /// `weir run`, for a listener with queue = priority; the server gets plain TCP sockets, because the kernel
    /// does not hand MPTCP sockets over
    Parking,
    /// A process beside the server, which decides at each accept(): exact, for any server, and slower
    Exact,
}

/// `weir check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The config file
    #[arg(required_unless_present = "example")]
    pub file: Option<PathBuf>,
    /// Print what a reload would change in the processes that have the file in force
    #[arg(long, requires = "file")]
    pub diff: bool,
    /// Print the values in effect, or the changes, as JSON
    #[arg(long)]
    pub json: bool,
    /// Print a commented config file to start from
    #[arg(long, conflicts_with_all = ["file", "json"])]
    pub example: bool,
}

/// `weir reload`.
#[derive(Debug, Args)]
pub struct Reload {
    /// Processes, each by its id, its config file, or the name of a listener or proxy in it [default: all]
    #[arg(value_name = "PROCESS")]
    pub processes: Vec<String>,
    /// Go back to what was in force before, unless another `weir reload` confirms this one within TIME
    #[arg(long, value_name = "TIME", value_parser = parsed(parse_up_to_a_day))]
    pub confirm: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir observe`.
#[derive(Debug, Args)]
pub struct Observe {
    /// For so long; then the file decides again
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parsed(parse_up_to_a_day))]
    pub time: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show also the counters that are zero
    #[arg(long)]
    pub all: bool,
    /// Show what each verdict means
    #[arg(long)]
    pub explain: bool,
    /// Show it again every SECONDS, with the rate of each verdict, until Ctrl-C; with --json a line each time
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
    /// Show only what is guarded there, with the sums over that: container:web-*, unit:nginx, netns:NAME, pod:shop/web-*, machine;
    /// here is this network namespace
    #[arg(long = "where", value_name = "PLACE", value_parser = parsed(parse_named_place))]
    pub place: Option<Where>,
}

/// `weir events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Go on showing events as they happen, until Ctrl-C; wait for a weir that restarts. Begins with the last 10
    #[arg(long, short)]
    pub follow: bool,
    /// Show only the last N events of those that are kept [default: all; with --follow 10, or all of --since]
    #[arg(long, short = 'n', value_name = "N")]
    pub last: Option<usize>,
    /// Show only events since then: so long ago, such as 10m, or a time in UTC as events have it, such as 2026-11-24T15:30
    #[arg(long, value_name = "TIME", value_parser = parsed(parse_since))]
    pub since: Option<Since>,
    /// Print JSON, a line for each event
    #[arg(long)]
    pub json: bool,
    /// Show only events of this kind, such as overload or refusal; may be given several times
    #[arg(long, value_name = "KIND", value_parser = parsed(parse_kind))]
    pub kind: Vec<String>,
    /// Show only events of workloads of such a name: container:web-*, unit:nginx, netns:NAME, pod:shop/web-*, machine; here are
    /// those of no workload
    #[arg(long = "where", value_name = "PLACE", value_parser = parsed(parse_named_place))]
    pub place: Option<Where>,
}

/// `weir why`.
#[derive(Debug, Args)]
pub struct Why {
    /// The client's address
    #[arg(required_unless_present = "top")]
    pub address: Option<IpAddr>,
    /// Show the sources that are refused most at present: addresses, and networks (/24 of IPv4, /56 of IPv6)
    #[arg(long, conflicts_with = "address")]
    pub top: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir suggest`.
#[derive(Debug, Args)]
pub struct Suggest {
    /// Suggest only after weir has looked for so long [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parsed(parse_up_to_a_day))]
    pub least: Option<Duration>,
    /// Print this config file with the suggestions in it; all else in it stays as it is
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub config: Option<PathBuf>,
    /// Print JSON: the suggestions, and the figures that they come from
    #[arg(long)]
    pub json: bool,
}

/// `weir top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Print plain text once, with the rates of one interval
    #[arg(long)]
    pub once: bool,
    /// Time between two reports, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parsed(parse_every))]
    pub every: Duration,
    /// Ask this socket of the API, which may be another host's; more than once: of the guard and of the proxies
    #[arg(long, value_name = "SOCKET")]
    pub api: Vec<PathBuf>,
    /// What rows are sorted by
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = Sort::Refused)]
    pub sort: Sort,
    /// Show only what has this in its name
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub filter: String,
}

/// `weir class`.
#[derive(Debug, Subcommand)]
pub enum Class {
    /// Add a class until the next reload; the others keep their buckets and counters
    Add(NamedFlags<class::Class>),
    /// Change keys of a class until the next reload; other keys keep their values, `none` removes a value
    Set(Changes<class::Class>),
    /// Remove a class until the next reload
    Remove {
        /// The class's name
        #[arg(value_parser = parsed(parse_name))]
        name: String,
    },
    /// List the classes in force: listeners, limits, counters
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `weir shape`.
#[derive(Debug, Subcommand)]
pub enum Shape {
    /// Shape what an interface sends, and receives if asked, until it is removed; what weir put there before is replaced
    Install(ShapeInstall),
    /// Show the shaped interfaces: rate, discipline, and what each queue has counted
    Show {
        /// The interface [default: all that weir shapes]
        #[arg(long, value_name = "D")]
        dev: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give an interface its default qdisc back
    Remove {
        /// The interface
        #[arg(long, value_name = "D")]
        dev: String,
    },
}

/// `weir shape install`.
#[derive(Debug, Args)]
pub struct ShapeInstall {
    /// The interface before the slow link
    #[arg(long, value_name = "D")]
    pub dev: String,
    /// What the link carries: 10mbit, 2.4mbit, 800kbit; a little less than it has, so that the queue is here
    #[arg(long, value_name = "R", value_parser = parsed(parse_rate))]
    pub rate: u64,
    /// Shape what the interface receives too, at this rate: at most nine tenths of what the link carries, so that the queue
    /// is here. Through an ifb device; better: shape at the other end
    #[arg(long, value_name = "R", value_parser = parsed(parse_rate))]
    pub ingress: Option<u64>,
    /// The queueing discipline: spa-fq, spa, spa-paper, syn-prio, syn-fin-prio, fq-codel, codel, pie, sfq, fifo, bfifo
    #[arg(long, value_name = "NAME", default_value = "spa-fq", value_parser = parsed(parse_discipline))]
    pub discipline: Discipline,
    /// What does the work
    #[arg(long, value_enum, value_name = "WAY", default_value_t = ShapeBackend::Auto)]
    pub backend: ShapeBackend,
}

/// A `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ShapeBackend {
    /// `tc`; where the kernel lacks one of its qdiscs, `bpf`
    Auto,
    /// Qdiscs of the kernel under an HTB, with a BPF classifier
    Tc,
    /// One qdisc in BPF; Linux 6.16 with CONFIG_NET_SCH_BPF
    Bpf,
}

/// `weir detach`.
#[derive(Debug, Args)]
pub struct Detach {
    /// Remove only what a killed weir has left behind; a running weir stays
    #[arg(long)]
    pub left_over: bool,
}

/// `weir doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// A counter (syn_admitted), a config key (target_wait) or a column of status (queue)
    pub name: Option<String>,
}

/// `weir trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// Captures, put together by their times; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Count only connections whose handshake was seen whole, and data after it
    #[arg(long)]
    pub established_only: bool,
    /// Count also hosts that show the signs of a SYN flood: 1000 times more connections without data than with
    #[arg(long)]
    pub no_flood_filter: bool,
    /// Connections to remember at once; a million take 200 MiB
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(8..=100_000_000))]
    pub max_connections: u32,
}

/// `weir model`.
#[derive(Debug, Args)]
pub struct Model {
    /// Round-trip time
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parsed(parse_rtt))]
    pub rtt: Duration,
    /// Probability that a data packet is lost, as `packet_rtx_probability` of `weir trace`
    #[arg(long, value_name = "P", default_value_t = weir_trace::model::REAL.loss, value_parser = parsed(parse_loss))]
    pub loss: f64,
    /// Probability that a SYN or its answer is lost, as `syn_rtx_probability` of `weir trace`
    #[arg(long, value_name = "P", default_value_t = weir_trace::model::REAL.syn_loss, value_parser = parsed(parse_loss))]
    pub syn_loss: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weir generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// What to write
    #[command(subcommand)]
    pub what: GenerateWhat,
}

/// What `weir generate` writes.
#[derive(Debug, Subcommand)]
pub enum GenerateWhat {
    /// Man pages, section 8
    Man {
        /// Directory, created if it is missing
        dir: PathBuf,
    },
    /// Completions for bash, zsh and fish
    Completions {
        /// Directory, created if it is missing
        dir: PathBuf,
    },
    /// The reference pages of the config file and of the metrics, `reference.md` and `metrics.md`
    Reference {
        /// Directory, created if it is missing
        dir: PathBuf,
    },
}

/// What `weir protect` protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The servers on a port.
    Port(u16),
    /// The servers on every port.
    All,
}

fn parse_target(text: &str) -> Result<Target, Fault> {
    match text {
        "all" => Ok(Target::All),
        text => parse_port(text).map(Target::Port),
    }
}

/// What is shown has names, and no labels.
fn parse_named_place(text: &str) -> Result<Where, Fault> {
    let place = parse_where(text)?;
    match place {
        Where::Label(..) => Err(Fault {
            cause: "what weir shows of containers has no labels".to_owned(),
            hint: "name them, as in container:web-*".to_owned(),
        }),
        place => Ok(place),
    }
}

fn parse_kind(text: &str) -> Result<String, Fault> {
    match weir_api::EVENT_KINDS.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(Fault {
            cause: format!("there is no kind of event {text:?}"),
            hint: match did_you_mean(text, &weir_api::EVENT_KINDS) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are {}", weir_api::EVENT_KINDS.join(", ")),
            },
        }),
    }
}

/// A `--since`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// The begin of a time in UTC, as [`weir_core::rfc3339`] writes it: of such texts the earlier time is the smaller text.
    Time(String),
}

/// A time to the millisecond, whose begin may be left out from behind the day on.
const A_TIME: &str = "0000-00-00T00:00:00.000Z";

fn parse_since(text: &str) -> Result<Since, Fault> {
    let time = text.replacen(' ', "T", 1);
    let fits = |(given, form): (char, char)| match form {
        '0' => given.is_ascii_digit(),
        form => given == form,
    };
    let is_time = ("0000-00-00".len()..=A_TIME.len()).contains(&time.len())
        && time.chars().zip(A_TIME.chars()).all(fits);
    if is_time {
        return Ok(Since::Time(time));
    }
    parse_duration(text).map(Since::Ago).map_err(|cause| Fault {
        cause,
        hint: "so long ago, such as 10m, or a time in UTC, such as 2026-11-24T15:30".to_owned(),
    })
}

fn parse_rtt(text: &str) -> Result<Duration, Fault> {
    let fault = |cause: String| Fault {
        cause,
        hint: "a time, such as 200ms".to_owned(),
    };
    let rtt = parse_duration(text).map_err(fault)?;
    match rtt.is_zero() {
        true => Err(fault("a round trip takes longer than 0".to_owned())),
        false => Ok(rtt),
    }
}

/// 1 s to 1 day.
fn parse_up_to_a_day(text: &str) -> Result<Duration, Fault> {
    let fault = |cause: String| Fault {
        cause,
        hint: "a time from 1s to 24h, such as 5m".to_owned(),
    };
    let time = parse_duration(text).map_err(fault)?;
    match (1..=86_400).contains(&time.as_secs()) {
        true => Ok(time),
        false => Err(fault(format!("{text:?} is out of range"))),
    }
}

fn parse_every(text: &str) -> Result<Duration, Fault> {
    let fault = |cause: String| Fault {
        cause,
        hint: "a time from 100ms to 1h, such as 1s".to_owned(),
    };
    let every = parse_duration(text).map_err(fault)?;
    match EVERY.contains(&every) {
        true => Ok(every),
        false => Err(fault(format!("`{text}` is too short or too long"))),
    }
}

/// 0, or less than 1: if all is lost, no connection opens.
fn parse_loss(text: &str) -> Result<f64, Fault> {
    let loss = text.parse().ok().filter(|loss| (0.0..1.0).contains(loss));
    loss.ok_or_else(|| Fault {
        cause: format!("`{text}` is no probability between 0 and 1"),
        hint: "1 % is 0.01".to_owned(),
    })
}

/// An `--address`: `None` is every address. clap would take an `Option` as "may be left out".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub Option<IpAddr>);

fn parse_rate(text: &str) -> Result<u64, Fault> {
    parse_bit_rate(text).map_err(|cause| Fault {
        cause,
        hint: "a number and bit, kbit, mbit or gbit: 10mbit".into(),
    })
}

fn parse_discipline(text: &str) -> Result<Discipline, Fault> {
    // Others are known too, of which `install` says that no kernel runs them.
    let names = || DISCIPLINES.map(Discipline::name).join(", ");
    text.parse().map_err(|error: UnknownDiscipline| Fault {
        cause: error.to_string(),
        hint: format!("there are {}", names()),
    })
}

fn parse_address(text: &str) -> Result<Address, Fault> {
    parse_ip(text).map(Address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use weir_config::Table;
    use weir_core::listener::Listener;

    #[test]
    fn the_model_takes_no_loss_as_weir_trace_measures_it() {
        assert_eq!(parse_loss("0"), Ok(0.0));
        assert_eq!(parse_loss("0.01"), Ok(0.01));
        for wrong in ["1", "-0.1", "2", "NaN", "x"] {
            assert!(parse_loss(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn since_is_a_time_or_how_long_ago_it_was() {
        let ago = |seconds| Since::Ago(Duration::from_secs(seconds));
        assert_eq!(parse_since("10m"), Ok(ago(600)));
        assert_eq!(parse_since("1h"), Ok(ago(3600)));
        let time = "2026-11-24T15:30:55.012Z";
        for end in 10..=time.len() {
            let begin = &time[..end];
            assert_eq!(parse_since(begin), Ok(Since::Time(begin.to_owned())));
        }
        let with_blank = Since::Time("2026-11-24T15:30".to_owned());
        assert_eq!(parse_since("2026-11-24 15:30"), Ok(with_blank));
        for wrong in [
            "2026",
            "2026-11",
            "24.11.2026",
            "2026-11-24T15:30+01:00",
            "yesterday",
            "10",
        ] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_config_key_has_a_flag_of_its_name() {
        let command = Cli::command();
        let protect = command.find_subcommand("protect").unwrap();
        let flags: Vec<&str> = protect
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .collect();
        // `weir protect` has no classes, so nothing to put in order by.
        let of_classes = |name| ["queue", "ageing"].contains(&name);
        for key in Listener::keys().iter().filter(|key| !of_classes(key.name)) {
            let flag = match key.name {
                "mode" => "observe".to_owned(),
                _ => flags::long(key),
            };
            assert!(flags.contains(&flag.as_str()), "--{flag}");
        }
    }
}
