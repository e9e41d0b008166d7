//! `weir-lab load`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use weir_core::prefix::parse_prefix;
use weir_core::units::{format_duration, parse_duration};

use super::clients::{self, LONGEST_STAY, Plan, Progress};
use super::picture::picture;
use super::report::Report;
use super::target::{Url, is_of_this_machine};
use crate::error::{Context, Error, Result};
use crate::{descriptors, show};

/// Highest rate at this machine, clients/s: about what one thread with kernel sockets can do.
const MOST_HERE_PER_S: f64 = 50_000.0;
/// Highest rate at another machine: it overloads what this is for, and is no flood.
const MOST_ELSEWHERE_PER_S: f64 = 2_000.0;
const MOST_STEPS: usize = 20;
/// Longest step, s.
const LONGEST_STEP_S: f64 = 600.0;
const PATIENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// Loopback clients come from all of it, each from an address of its own.
const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
/// Descriptors beside those of clients.
const OTHER_DESCRIPTORS: f64 = 64.0;
/// A source that comes more seldom than this may be a health check to weir (bpf/lib/steady.h), clients/s.
const STEADY_PER_S: f64 = 16.0;

/// Arguments of `weir-lab load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to ask for: `http://HOST[:PORT][/PATH]`. TLS is not spoken
    #[arg(value_name = "URL", value_parser = clap::value_parser!(Url))]
    pub url: Url,
    /// New clients/s; several, with commas between them, are steps one after the other
    #[arg(long, value_name = "RATE", value_delimiter = ',', default_value = "10")]
    pub rate: Vec<f64>,
    /// Length of each step, in s (1 to 600)
    #[arg(long, default_value_t = 30.0)]
    pub seconds: f64,
    /// A client gives up when it has no whole reply after this
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "15s")]
    pub patience: Duration,
    /// Served clients leave their connection open until the server closes it, as browsers do
    #[arg(long)]
    pub keep_alive: bool,
    /// Addresses of this machine from which the clients come: ADDRESS/BITS, IPv4 [default: 127.0.0.0/8 to a loopback address, else the kernel's choice]
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub from: Option<Ipv4Net>,
    /// Seed of the arrivals
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The server is not of this machine, and you may overload it
    #[arg(long)]
    pub yes_it_is_mine: bool,
    /// Folder for the picture (load.svg, load.png) and for load.json
    #[arg(long, value_name = "DIR", default_value = "out/load")]
    pub out: PathBuf,
    /// Print the figures as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

fn prefix(text: &str) -> std::result::Result<Ipv4Net, String> {
    match parse_prefix(text) {
        Ok(IpNet::V4(prefix)) => Ok(prefix),
        Ok(IpNet::V6(_)) => Err("only IPv4 addresses are drawn from".to_owned()),
        Err(error) => Err(format!("{error}: {}", error.hint())),
    }
}

/// Runs the load, and prints and draws what became of the clients.
///
/// # Errors
/// The target may not be loaded like this, it has no address, or this machine cannot have so many connections.
pub fn run(args: &Args) -> Result<()> {
    check_bounds(args)?;
    let target = args.url.resolve()?;
    check_owner(args, target)?;
    raise_descriptors(args)?;
    let plan = plan(args, target);
    eprintln!("weir-lab: load on {target}; Ctrl-C ends it");
    let outcome = clients::run(&plan, &mut |progress| eprintln!("  {}", line(progress)))?;
    let patience_s = args.patience.as_secs_f64();
    let report = Report::of(target.to_string(), patience_s, &outcome);
    let json = serde_json::to_string_pretty(&report).context("cannot write the figures")? + "\n";
    keep(
        args,
        &json,
        &picture(&args.url.authority, patience_s, &outcome),
    )?;
    match args.json {
        true => show::print(&json),
        false => show::print(&(report.text(&outcome) + &advice(args, &plan))),
    }
    match outcome.interrupted {
        true => Err(Error::interrupted()),
        false => Ok(()),
    }
}

fn check_bounds(args: &Args) -> Result<()> {
    let wrong = |flag: &str, value: String, cause: &str| {
        Err(Error::usage(format!("bad {flag} {value}"), cause))
    };
    if args.rate.len() > MOST_STEPS {
        return wrong(
            "--rate",
            format!("with {} steps", args.rate.len()),
            "at most 20 steps",
        );
    }
    if let Some(rate) = args
        .rate
        .iter()
        .find(|rate| !(0.1..=MOST_HERE_PER_S).contains(*rate))
    {
        return wrong(
            "--rate",
            rate.to_string(),
            "it must be 0.1 to 50000 clients/s",
        );
    }
    if !(1.0..=LONGEST_STEP_S).contains(&args.seconds) {
        return wrong(
            "--seconds",
            args.seconds.to_string(),
            "it must be 1 to 600 s",
        );
    }
    if !PATIENCE.contains(&args.patience) {
        let patience = format_duration(args.patience);
        return wrong("--patience", patience, "it must be 100ms to 60s");
    }
    Ok(())
}

/// Load on somebody else's server is an attack: the user must say that it is none, and is kept to a rate that
/// overloads slow servers and floods nobody.
fn check_owner(args: &Args, target: SocketAddr) -> Result<()> {
    if is_of_this_machine(target) {
        return Ok(());
    }
    let what = || format!("refused to load {target}");
    if !args.yes_it_is_mine {
        return Err(Error::usage(what(), "it is not an address of this machine").hint(
            "the load is meant to overload what it finds. If the server is yours, or its owner has agreed, \
             add --yes-it-is-mine",
        ));
    }
    match args.rate.iter().all(|rate| *rate <= MOST_ELSEWHERE_PER_S) {
        true => Ok(()),
        false => Err(Error::usage(
            what(),
            "at another machine --rate is at most 2000 clients/s",
        )
        .hint("run weir-lab on the server's machine, or in a container beside it, for more")),
    }
}

/// As many descriptors as clients may wait at once.
fn raise_descriptors(args: &Args) -> Result<()> {
    let most_per_s = args
        .rate
        .iter()
        .fold(0.0, |most: f64, rate| most.max(*rate));
    let stay = if args.keep_alive {
        LONGEST_STAY
    } else {
        Duration::ZERO
    };
    let open = most_per_s * (args.patience + stay).as_secs_f64() * 1.2 + OTHER_DESCRIPTORS;
    let wanted = open as u64;
    let allowed = descriptors::allow(wanted)?;
    if allowed < wanted {
        eprintln!(
            "weir-lab: up to {wanted} clients may wait at once, and this machine allows {allowed} descriptors (ulimit -n)"
        );
    }
    Ok(())
}

fn plan(args: &Args, target: SocketAddr) -> Plan {
    let is_loopback = target.is_ipv4() && target.ip().is_loopback();
    Plan {
        target,
        request: clients::request(&args.url.authority, &args.url.path, args.keep_alive),
        rates_per_s: args.rate.clone(),
        step: Duration::from_secs_f64(args.seconds),
        together: false,
        patience: args.patience,
        stay: args.keep_alive.then_some(LONGEST_STAY),
        sources: args.from.or(is_loopback.then_some(LOOPBACK)),
        seed: args.seed,
    }
}

/// One line of progress.
fn line(progress: Progress<'_>) -> String {
    let sum =
        |of: fn(&super::tally::Step) -> u64| -> u64 { progress.tally.steps.iter().map(of).sum() };
    let last = progress.tally.seconds.iter().rev().nth(1);
    let last = last.copied().unwrap_or_default();
    format!(
        "{:.0} s: {} came and {} were served in the last second; {} wait; in all {} served, {} refused, {} reset, {} timed out",
        progress.elapsed.as_secs_f64(),
        last.due,
        last.served,
        progress.waiting,
        sum(|step| step.served),
        sum(|step| step.refused),
        sum(|step| step.reset),
        sum(|step| step.timed_out)
    )
}

fn keep(args: &Args, json: &str, picture: &crate::plot::lines::Picture) -> Result<()> {
    let out = &args.out;
    std::fs::create_dir_all(out).context(format!("cannot create folder {}", out.display()))?;
    let path = out.join("load.json");
    std::fs::write(&path, json).context(format!("cannot write {}", path.display()))?;
    picture.write(out, "load")
}

/// What a reader should know who guards the server with weir.
fn advice(args: &Args, plan: &Plan) -> String {
    let is_one_address = plan.sources.is_none_or(|prefix| prefix.prefix_len() > 24);
    let is_seldom = args.rate.iter().any(|rate| *rate < STEADY_PER_S);
    match is_one_address && is_seldom {
        true => "All clients came from one address, seldom: a weir at the server may take them for a health check \
                 and let more of them in (health_checks). See --from.\n"
            .to_owned(),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(flags: &str) -> Args {
        let words = std::iter::once("x").chain(flags.split_whitespace());
        <Cli as clap::Parser>::try_parse_from(words).unwrap().args
    }

    fn refusal(flags: &str, target: &str) -> String {
        let args = args(flags);
        let checked =
            check_bounds(&args).and_then(|()| check_owner(&args, target.parse().unwrap()));
        checked.map_or_else(|error| error.to_string(), |()| "allowed".to_owned())
    }

    #[test]
    fn servers_of_others_are_loaded_only_with_their_owners_word_and_not_flooded() {
        // TEST-NET-3, of nobody.
        let other = "203.0.113.7:80";
        assert!(refusal("x.test", other).contains("not an address of this machine"));
        assert_eq!(refusal("x.test --yes-it-is-mine", other), "allowed");
        assert!(refusal("x.test --yes-it-is-mine --rate 10,2001", other).contains("2000"));
        assert_eq!(refusal("x.test --rate 2001", "127.0.0.1:80"), "allowed");
    }

    #[test]
    fn rate_time_and_patience_have_limits() {
        let here = "127.0.0.1:80";
        for flags in [
            "--rate 0",
            "--rate 50001",
            "--rate nan",
            "--seconds 0.5",
            "--seconds 601",
        ] {
            assert!(
                refusal(&format!("x {flags}"), here).contains("must be"),
                "{flags}"
            );
        }
        assert!(refusal("x --patience 61s", here).contains("100ms to 60s"));
        let steps = vec!["1"; 21].join(",");
        assert!(refusal(&format!("x --rate {steps}"), here).contains("20 steps"));
    }

    #[test]
    fn sources_are_a_network() {
        let of = |text: &str| prefix(text).map(|prefix| prefix.to_string());
        assert_eq!(of("10.0.0.0/8"), Ok("10.0.0.0/8".to_owned()));
        assert_eq!(of("10.1.2.3"), Ok("10.1.2.3/32".to_owned()));
        for wrong in ["10.1.2.3/8", "10.1.2.3/33", "::1", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
