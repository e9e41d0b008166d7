//! `weir-lab link`: a command, or a load of the lab's own, behind an emulated link.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weir_core::units::{parse_bit_rate, parse_duration};
use weir_sim::aqm::{Discipline, Setup};
use weir_sim::outcome::Record;
use weir_sim::{Kind, LinkSpec, Loss, Plan};

use super::hosts::{self, Servers};
use super::report::Report;
use super::{Emulated, FIRST, Lanes, Spec, far, near};
use crate::error::{Context, Error, Result};
use crate::experiments::sim::{Traffic, sample};
use crate::interrupt;
use crate::run::experiment::check_seconds;
use crate::show;

/// A wait for the command looks so often whether a signal has come.
const LOOK: Duration = Duration::from_millis(20);
/// Connections of the load may end so long after the last one has begun.
const DRAIN: Duration = Duration::from_secs(60);
/// Rates that the link may have, bit/s.
const RATES: std::ops::RangeInclusive<u64> = 12_000..=1_000_000_000;
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Arguments of `weir-lab link`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rate of the downlink, to the command: 2.4mbit
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "2.4mbit")]
    pub down: u64,
    /// Rate of the uplink
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "0.4mbit")]
    pub up: u64,
    /// Delay of each direction
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "20ms")]
    pub delay: Duration,
    /// Delay of the uplink [default: as --delay]
    #[arg(long, value_name = "TIME", value_parser = delay)]
    pub up_delay: Option<Duration>,
    /// Packets that each direction loses behind its queue: 1%, or 1%/30% if it loses 30 % of those right behind a lost one
    #[arg(long, value_name = "SHARE", value_parser = loss, default_value = "0%")]
    pub loss: Loss,
    /// The same of the uplink [default: as --loss]
    #[arg(long, value_name = "SHARE", value_parser = loss)]
    pub up_loss: Option<Loss>,
    /// Queueing discipline of both directions
    #[arg(long, value_name = "NAME", default_value = "fifo")]
    pub discipline: Discipline,
    /// The same of the uplink [default: as --discipline]
    #[arg(long, value_name = "NAME")]
    pub up_discipline: Option<Discipline>,
    /// Room of FIFO, RED and the two-FIFO disciplines, full packets
    #[arg(long, value_name = "PACKETS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub buffer: u32,
    /// Delay that CoDel, FQ-CoDel and SPA keep
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "5ms")]
    pub target: Duration,
    /// ECN at all hosts and in all disciplines that can mark
    #[arg(long)]
    pub ecn: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Without a command: traffic of BHD18, Table III
    #[arg(long, value_enum, default_value = "real")]
    pub traffic: Traffic,
    /// Without a command: time in which connections begin, s
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// Without a command: one client uploads without end
    #[arg(long)]
    pub upload: bool,
    /// Print the statistics as JSON; the command's output goes to stderr
    #[arg(long)]
    pub json: bool,
    /// Runs in the near side; WEIR_NEAR and WEIR_FAR are the addresses of the two sides. http://$WEIR_FAR/bytes/N has N bytes
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    let rate = parse_bit_rate(text)?;
    match RATES.contains(&rate) {
        true => Ok(rate),
        false => Err("it must be 12kbit to 1gbit".to_owned()),
    }
}

pub(crate) fn delay(text: &str) -> std::result::Result<Duration, String> {
    let delay = parse_duration(text)?;
    match delay <= LONGEST_DELAY {
        true => Ok(delay),
        false => Err("it must be at most 10s".to_owned()),
    }
}

/// `1%`, or with the share behind a lost packet `1%/30%`.
pub(crate) fn loss(text: &str) -> std::result::Result<Loss, String> {
    let share = |text: &str| {
        let number = text.strip_suffix('%')?.trim().parse::<f64>().ok()?;
        (0.0..=100.0).contains(&number).then_some(number / 100.0)
    };
    let (first, next) = text.split_once('/').unwrap_or((text, text));
    match (share(first), share(next)) {
        (Some(first), Some(next)) => Ok(Loss { first, next }),
        _ => Err("write it as 1% or, with the share right behind a lost packet, 1%/30%".to_owned()),
    }
}

impl Args {
    /// The link that they describe.
    pub fn spec(&self) -> Spec {
        let direction = |discipline, bits_per_s, delay: Duration, loss| LinkSpec {
            discipline,
            setup: Setup {
                buffer_packets: self.buffer,
                target_ns: self.target.as_nanos() as u64,
                ecn: self.ecn,
                ..Setup::of_ip(bits_per_s / 8)
            },
            delay_ns: delay.as_nanos() as u64,
            loss,
            passes_at_once: false,
        };
        Spec {
            down: direction(self.discipline, self.down, self.delay, self.loss),
            up: direction(
                self.up_discipline.unwrap_or(self.discipline),
                self.up,
                self.up_delay.unwrap_or(self.delay),
                self.up_loss.unwrap_or(self.loss),
            ),
            lanes: Lanes::Shared,
            ecn: self.ecn,
            seed: self.seed,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The link cannot be made, a signal has come, or the command fails.
pub fn run(args: &Args) -> Result<()> {
    check_seconds("--seconds", args.seconds)?;
    let link = Emulated::start(args.spec())?;
    let servers = Servers::start(&link)?;
    let load = match args.command.split_first() {
        Some((program, arguments)) => {
            in_near(&link, program, arguments, args.json)?;
            None
        }
        None => Some(load(args, &link)?),
    };
    let report = link.stop()?;
    drop(servers);
    if args.json {
        return print_json(&report, load.as_deref());
    }
    let load = load.map_or(String::new(), |records| load_text(&records));
    show::print(&format!("{load}{}", report.text()));
    Ok(())
}

fn load(args: &Args, link: &Emulated) -> Result<Vec<Record>> {
    let plan = Plan {
        upload: args.upload,
        ..Plan::of(Kind::from(args.traffic), args.seconds)
    };
    let longest = Duration::from_secs_f64(args.seconds) + DRAIN;
    hosts::carry_out(link, &plan.connections(args.seed), longest)
}

/// Connect and response times of the connections that ended, ms: how many, mean and p95 of each.
fn times(records: &[Record]) -> [(&'static str, usize, Option<f64>, Option<f64>); 2] {
    let of = |time: fn(&Record) -> Option<u64>| -> Vec<u64> {
        let downloads = records.iter().filter(|record| record.segments > 0);
        downloads.filter_map(time).collect()
    };
    let all = [
        ("connect", of(|record| record.connect_ns)),
        ("response", of(|record| record.response_ns)),
    ];
    all.map(|(name, times)| {
        let mean = sample::mean_ms(&times);
        (name, times.len(), mean, sample::p95_ms(times))
    })
}

fn load_text(records: &[Record]) -> String {
    let ms = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.0} ms"));
    let line = |(name, count, mean, p95): (&str, usize, Option<f64>, Option<f64>)| {
        format!(
            "{name}: {count} connections, mean {}, p95 {}\n",
            ms(mean),
            ms(p95)
        )
    };
    times(records).map(line).concat()
}

fn print_json(report: &Report, load: Option<&[Record]>) -> Result<()> {
    let mut json = serde_json::to_value(report).context("cannot write the statistics")?;
    for (name, count, mean, p95) in load.map(times).into_iter().flatten() {
        json[name] = serde_json::json!({ "connections": count, "mean_ms": mean, "p95_ms": p95 });
    }
    let text = serde_json::to_string_pretty(&json).context("cannot write the statistics")?;
    show::print(&(text + "\n"));
    Ok(())
}

/// A child that is killed if nobody waits for it.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_near(link: &Emulated, program: &str, arguments: &[String], json: bool) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    command.env("WEIR_NEAR", near(FIRST).to_string());
    command.env("WEIR_FAR", far(FIRST).to_string());
    if json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    let started = link.near.run(|| {
        let child = command.spawn();
        child.map(Started).map_err(|cause| {
            Error::usage(format!("cannot run `{program}`"), cause)
                .hint("give a program and its arguments behind --")
        })
    });
    let mut child = started?;
    loop {
        let status = child.0.try_wait().context("cannot wait for the command")?;
        match status {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Error::failed(format!("`{program}` failed"), status)),
            None if interrupt::interrupted() => {
                // It may have children of its own; it ends them if it ends in order.
                let _ = kill(Pid::from_raw(child.0.id() as i32), Signal::SIGTERM);
                let _ = child.0.wait();
                return Err(Error::interrupted());
            }
            None => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_one_share_or_two() {
        let both = |first, next| Ok(Loss { first, next });
        assert_eq!(loss("0%"), both(0.0, 0.0));
        assert_eq!(loss("1%"), both(0.01, 0.01));
        assert_eq!(loss("2%/40%"), both(0.02, 0.4));
        for wrong in ["1", "", "1%/", "101%", "-1%", "x%"] {
            assert!(loss(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_uplink_is_as_the_downlink_unless_it_is_said() {
        #[derive(Debug, clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let spec = |flags: &str| {
            let words = std::iter::once("x").chain(flags.split_whitespace());
            <Cli as clap::Parser>::try_parse_from(words)
                .unwrap()
                .args
                .spec()
        };
        let plain = spec("--discipline spa-fq --delay 42ms --loss 1% --up 1mbit");
        assert_eq!(plain.up.discipline, Discipline::SpaFq);
        assert_eq!(
            (plain.up.delay_ns, plain.up.loss),
            (42_000_000, plain.down.loss)
        );
        assert_eq!(plain.up.setup.rate_bytes_per_s, 125_000);
        let other = spec("--discipline spa-fq --up-discipline fifo --up-delay 52ms --up-loss 0%");
        assert_eq!(other.up.discipline, Discipline::Fifo);
        assert_eq!(
            (other.up.delay_ns, other.up.loss),
            (52_000_000, Loss::default())
        );
        assert_eq!(other.down.delay_ns, 20_000_000);
    }
}
