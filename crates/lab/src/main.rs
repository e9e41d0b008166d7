//! `weir-lab`: experiments on a server in a flash crowd. See the library's documentation.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir_lab::error::Result;
use weir_lab::experiments::{
    bursts, crosscheck, demo, flash_crowd, proxy_bench, proxy_delay, proxy_idle, proxy_matrix,
    proxy_mixed, proxy_slow, vtfm01,
};
use weir_lab::interrupt;
use weir_lab::server::one_packet::{self, Mode};
use weir_lab::server::pool;

/// Measures what an overloaded server does to its clients, with weir and without, on the real
/// kernel in network namespaces of its own. Needs root.
#[derive(Debug, Parser)]
#[command(name = "weir-lab", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Policies against rates: throughput, response times, refusals, and SB06's Table II
    FlashCrowd(flash_crowd::Args),
    /// The flash crowd in short, and who is accepted first, with a few sentences (this is `make demo`)
    Demo(demo::Args),
    /// More connect() calls at once, from every CPU, than the listen queue has places
    Bursts(bursts::Args),
    /// The load generator against Debian's httperf, side by side
    Crosscheck(crosscheck::Args),
    /// weir's proxy against HAProxy and nginx: CPU per reply, latency, throughput
    ProxyBench(proxy_bench::Args),
    /// How long a proxy keeps a request and a reply before it hands on the first packet
    ProxyDelay(proxy_delay::Args),
    /// Cache hits and passed transfers in one proxy: what the one costs the other
    ProxyMixed(proxy_mixed::Args),
    /// What idle tunnels and kept connections cost weir's proxy, HAProxy and nginx
    ProxyIdle(proxy_idle::Args),
    /// What slow readers of large bodies cost weir's proxy, HAProxy and nginx
    ProxySlow(proxy_slow::Args),
    /// Hostile clients and origins around weir's proxy: every byte and every end is checked
    ProxyMatrix(proxy_matrix::Args),
    /// Service classes: the figures and tables of VTFM01, and what weir adds to them
    #[command(subcommand)]
    Vtfm01(vtfm01::Command),
    /// The built-in one-packet server, until Ctrl-C
    Serve(ServeArgs),
    /// The built-in pool of workers with a fixed service time, until Ctrl-C
    Pool(pool::Settings),
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// Port on which to listen, on all addresses
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Length of the listen queue
    #[arg(long, default_value_t = 128)]
    backlog: u32,
    /// CPU time to spend on each request, in µs; sets the saturation
    #[arg(long, default_value_t = 0)]
    work_us: u32,
    /// What to do with a connection
    #[arg(long, value_enum, default_value = "http")]
    mode: Mode,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let prepared = match cli.command {
        // Serves until it is killed, by any signal.
        Command::Pool(_) => Ok(()),
        _ => interrupt::install(),
    };
    match prepared.and_then(|()| run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-lab: {error}");
            if !error.hint.is_empty() {
                eprintln!("hint: {}", error.hint);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::FlashCrowd(args) => flash_crowd::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bursts(args) => bursts::run(&args),
        Command::Crosscheck(args) => crosscheck::run(&args),
        Command::ProxyBench(args) => proxy_bench::run(&args),
        Command::ProxyDelay(args) => proxy_delay::run(&args),
        Command::ProxyMixed(args) => proxy_mixed::run(&args),
        Command::ProxyIdle(args) => proxy_idle::run(&args),
        Command::ProxySlow(args) => proxy_slow::run(&args),
        Command::ProxyMatrix(args) => proxy_matrix::run(&args),
        Command::Vtfm01(command) => vtfm01::run(&command),
        Command::Pool(settings) => pool::serve(&settings),
        Command::Serve(args) => one_packet::serve(one_packet::Settings {
            port: args.port,
            backlog: args.backlog,
            work_us: args.work_us,
            mode: args.mode,
        }),
    }
}
