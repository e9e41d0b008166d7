//! What idle connections cost a proxy: memory, descriptors, CPU time.
//!
//! One contender after the other, each on a bed of its own: all clients connect, have one exchange, and stay.
//! Then nothing is asked for a while. In the end each has another exchange, so that every connection that was
//! counted is known to have lived. A process may hold 20 000 descriptors on the test machines, so there are
//! several of each contender, of one thread each, which share the port.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::proxy::contender::{Contender, ProxyMode};
use crate::proxy::many::Demand;
use crate::proxy::single::{self, SingleProxy};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, parsed, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

const IDLE: Entry = Entry::new::<Args>(
    "proxy-idle",
    "What do idle tunnels and kept connections cost weir's proxy, HAProxy and nginx?",
)
.source("the plan: scale")
.flags(
    "--tunnels 10000 --kept 9000 --seconds 2 --settle 2",
    "--tunnels 200 --kept 200 --seconds 0.5 --settle 0 --contenders weir",
);

/// The experiment, and its run with more tunnels.
pub const ENTRIES: &[Entry] = &[
    IDLE,
    IDLE.preset(
        "proxy-idle-50k",
        "What do 50 000 idle tunnels cost weir's proxy?",
    )
    .flags(
        "--tunnels 50000 --kept 0 --seconds 4 --settle 6 --contenders weir",
        IDLE.quick,
    ),
];

/// Arguments of `weir-lab proxy-idle`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Tunnels of mode tcp; 0 leaves them out
    #[arg(long, default_value_t = 50_000)]
    pub tunnels: usize,
    /// Connections that are kept between two requests, in mode reverse; 0 leaves them out
    #[arg(long, default_value_t = 10_000)]
    pub kept: usize,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// Bytes of a reply
    #[arg(long, default_value_t = 1024)]
    pub bytes: usize,
    /// How long nothing is asked, in s
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// How long they rest before that, in s: timers of their first exchange fire once more
    #[arg(long, default_value_t = 6.0)]
    pub settle: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        let rest = self.settle + self.seconds;
        if !(self.seconds > 0.0 && self.settle >= 0.0 && rest <= 50.0) {
            let what = format!("bad --seconds {} or --settle {}", self.seconds, self.settle);
            let cause = "it must be above 0 and at most 50, for proxies close idle connections";
            return Err(Error::usage(what, cause));
        }
        if self.tunnels + self.kept == 0 {
            return Err(Error::usage(
                "bad --tunnels 0 and --kept 0",
                "some connections are needed",
            ));
        }
        Ok(Box::new(Idle {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Idle {
    args: Args,
    program: Program,
}

impl Experiment for Idle {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let counts = [
            (ProxyMode::Tunnel, self.args.tunnels),
            (ProxyMode::Http, self.args.kept),
        ];
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let group = |(mode, count): (ProxyMode, usize)| {
            let case = |contender: &Contender| {
                parameters([
                    ("mode", mode.name().into()),
                    ("contender", word(contender)),
                    ("connections", count.to_string()),
                ])
            };
            self.args.contenders.iter().map(case).collect()
        };
        counts.map(group).collect()
    }

    fn open(&mut self, _facts: &mut Facts) -> Result<()> {
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let args = &self.args;
        let count: usize = parsed(case, "connections")?;
        single::check_memory()?;
        let mut proxy = SingleProxy::build(
            chosen(case, "contender")?,
            chosen(case, "mode")?,
            count,
            self.program.path(),
        )?;
        let before = proxy.snapshot()?;
        let begun = Instant::now();
        let clients = proxy.connect(count, args.bytes, Demand::AtOnce)?;
        let connected_s = begun.elapsed().as_secs_f64();
        let idle = proxy.snapshot()?;
        std::thread::sleep(Duration::from_secs_f64(args.settle));
        let (begun, used) = (Instant::now(), proxy.running.usage()?);
        std::thread::sleep(Duration::from_secs_f64(args.seconds));
        let used = proxy.running.usage()?.since(&used);
        let seconds = begun.elapsed().as_secs_f64();
        clients.ask()?;
        single::check_memory()?;
        let (all, added) = (
            idle.holdings.rss_kib as f64 * 1024.0,
            (idle.holdings.rss_kib as f64 - before.holdings.rss_kib as f64) * 1024.0,
        );
        let descriptors = idle.holdings.descriptors as f64 - before.holdings.descriptors as f64;
        let each = |of: f64| of / count as f64;
        Ok(Sample::of([
            ("processes", proxy.processes as f64),
            ("rss_bytes_each", each(added)),
            ("rss_bytes_share", each(all)),
            ("descriptors_each", each(descriptors)),
            ("cpu_share", used.cpu.as_secs_f64() / seconds),
            ("switches_per_s", used.switches as f64 / seconds),
            ("connected_s", connected_s),
        ]))
    }

    /// weir's memory a connection over that of the better of the others.
    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let others: Vec<_> = round
            .iter()
            .filter(|(case, _)| ["haproxy", "nginx"].contains(&case["contender"].as_str()))
            .map(|(case, sample)| (case["mode"].clone(), sample.get("rss_bytes_each")))
            .collect();
        for (case, sample) in round
            .iter_mut()
            .filter(|(case, _)| case["contender"] == "weir")
        {
            let of_mode = others.iter().filter(|(mode, _)| *mode == case["mode"]);
            if let Some(least) = of_mode.map(|(_, bytes)| *bytes).min_by(f64::total_cmp) {
                sample.add([("rss_of_better", sample.get("rss_bytes_each") / least)]);
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let weirs = results
            .cases
            .iter()
            .filter(|case| case.parameter("contender") == "weir");
        let claim =
            "an idle connection costs no more memory than with the better of HAProxy and nginx";
        weirs
            .map(|case| Claim::about(claim, case, "rss_of_better", |ratio| ratio.median <= 1.0))
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("mode", "{mode}"),
            ("contender", "{contender}"),
            ("count", "{connections}"),
            ("processes", "{processes|n}"),
            ("RSS B each", "{rss_bytes_each|.0}"),
            ("of the better", "{rss_of_better|.2}"),
            ("RSS B, all", "{rss_bytes_share|.0}"),
            ("fds each", "{descriptors_each|.3}"),
            ("CPU %", "{cpu_share|*100|.4}"),
            ("switches/s", "{switches_per_s|.1}"),
            ("connected in s", "{connected_s|.1}"),
        ])
    }
}
