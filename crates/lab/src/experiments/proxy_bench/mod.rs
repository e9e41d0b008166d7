//! weir's proxy against HAProxy and nginx: CPU time on the proxy's core per reply, latency, throughput.
//!
//! The contenders run side by side ([`crate::proxy::rig`]), and a round goes through them case by case, there and
//! back. Virtual machines become slower and faster by a third within seconds. Therefore windows are short, rounds
//! many, and ratios are those of neighbours: the median over the rounds of the ratio within a round.

mod kind;
mod limits;

use std::time::Duration;

pub use kind::Kind;

use crate::error::{Error, Result};
use crate::proxy::bed::{LINK_MBIT, Link, Receive};
use crate::proxy::clients::{Ask, Load, PATIENCE, Span};
use crate::proxy::contender::{Contender, ProxyMode};
use crate::proxy::rig::{Plan, Rig};
use crate::proxy::size::Size;
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};
use crate::show::format::count;

const BENCH: Entry = Entry::new::<Args>(
    "proxy-bench",
    "What does a proxied reply cost weir, HAProxy and nginx?",
)
.source("RR02")
.flags(
    "--link card --cases get,tunnel,connect --sizes 1K,10K,33K,64K,128K,1M --rounds 16 --seconds 0.4 \
     --contenders weir,copy,haproxy,nginx",
    "--link tso,mtu --cases get --sizes 1K --contenders weir,copy --rounds 2 --seconds 0.1 --warm-up 0.05",
);

/// The experiment, and other questions to it.
pub const ENTRIES: &[Entry] = &[
    BENCH,
    BENCH
        .preset("proxy-engine", "Does engine `auto` cost no more than the cheaper engine, whatever the link?")
        .flags(
            "--link tso,gro,mtu --cases get,tunnel --sizes 1K,4K,10K,20K,33K,48K,64K,128K,1M,16M \
             --contenders weir,copy,splice,haproxy,nginx --rounds 9 --seconds 0.25 --warm-up 0.15",
            "--link tso,gro,mtu --cases get --sizes 33K --contenders weir,copy,splice --rounds 2 --seconds 0.1 \
             --warm-up 0.05",
        ),
    BENCH
        .preset("proxy-p99", "How long do the slowest of small replies take at a given rate?")
        .flags(
            "--link card --cases get --sizes 1K,10K --clients 20,40,80,140 --rate 6000 --seconds 0.1 --rounds 48 \
             --contenders weir,haproxy,nginx",
            BENCH.quick,
        ),
    BENCH
        .preset("proxy-sockmap", "What does engine sockmap gain for short messages in tunnels?")
        .flags(
            "--link card --cases tunnel --sizes 1K,10K --contenders weir,sockmap,copy --rounds 9 --seconds 0.5",
            "--link card --cases tunnel --sizes 1K --contenders weir,sockmap --rounds 2 --seconds 0.1 --warm-up 0.05",
        ),
    BENCH
        .preset("proxy-splice", "From which size on does splicing cost less than copying?")
        .flags(
            "--link card --cases tunnel,get --sizes 2K,5K,10K,16K,33K,64K --contenders splice,copy --rounds 9",
            BENCH.quick,
        ),
    BENCH
        .preset("proxy-tuning", "Do larger buffers make HAProxy or nginx faster?")
        .flags(
            "--link card --cases get --sizes 1K,10K,128K --rounds 5 \
             --contenders weir,haproxy,haproxy-32k,haproxy-64k,nginx,nginx-16k,nginx-direct",
            BENCH.quick,
        ),
    BENCH
        .preset("proxy-before", "What do long bodies cost, beside an earlier build (`weir-before` beside weir-lab)?")
        .flags(
            "--link card --cases get --sizes 1M,16M --contenders weir,before,haproxy,nginx --rounds 13 --seconds 1",
            BENCH.quick,
        ),
];

const ROUNDS: usize = 9;

/// Arguments of `weir-lab proxy-bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What connects the proxy to its clients and to the origin, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tso,gro,mtu")]
    pub link: Vec<Link>,
    /// Kinds of transfer
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "get,tunnel,connect"
    )]
    pub cases: Vec<Kind>,
    /// Body sizes of get and tunnel
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1K,4K,10K,20K,33K,48K,64K,128K,1M,16M"
    )]
    pub sizes: Vec<Size>,
    /// Body sizes of connect, tunnel-connect and tunnel-ssl
    #[arg(long, value_delimiter = ',', default_value = "1K,10K")]
    pub connect_sizes: Vec<Size>,
    /// Clients at a time
    #[arg(long, value_delimiter = ',', default_value = "40")]
    pub clients: Vec<usize>,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,copy,splice,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// Requests/s, the same for all; left out: each client asks again as soon as it has its reply
    #[arg(long)]
    pub rate: Option<f64>,
    /// Length of the measuring window of each case, in s
    #[arg(long, default_value_t = 0.25)]
    pub seconds: f64,
    /// Load before the window, not counted, in s; a queue of large bodies takes a tenth of a second to build up
    #[arg(long, default_value_t = 0.2)]
    pub warm_up: f64,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        if !self.rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()) {
            return Err(Error::usage("bad --rate", "it must be above 0"));
        }
        if !(0.0..=60.0).contains(&self.warm_up) {
            let what = format!("bad --warm-up {}", self.warm_up);
            return Err(Error::usage(what, "it must be 0 to 60 s"));
        }
        let has_tunnels = self
            .cases
            .iter()
            .any(|kind| kind.mode() == ProxyMode::Tunnel);
        if has_tunnels && self.contenders.contains(&Contender::Squid) {
            let cause = "squid has no tunnels: leave it out, or ask for get and connect alone";
            return Err(Error::usage("bad --contenders squid", cause));
        }
        if self.clients.contains(&0) {
            return Err(Error::usage("bad --clients 0", "at least one is needed"));
        }
        Ok(Box::new(Bench {
            args: self,
            program: program.clone(),
            rig: None,
        }))
    }
}

struct Bench {
    args: Args,
    program: Program,
    /// One at a time: two would count each other's interrupts.
    rig: Option<(Link, Rig)>,
}

impl Bench {
    /// The rig with this link, built when it is not the last one.
    fn rig(&mut self, link: Link) -> Result<&mut Rig> {
        if self.rig.as_ref().is_none_or(|(built, _)| *built != link) {
            self.rig = None;
            self.rig = Some((link, self.build(link)?));
        }
        let (_, rig) = self.rig.as_mut().expect("built just now");
        Ok(rig)
    }

    fn build(&self, link: Link) -> Result<Rig> {
        let args = &self.args;
        let modes = [ProxyMode::Http, ProxyMode::Tunnel].into_iter();
        let needed = |mode: &ProxyMode| args.cases.iter().any(|kind| kind.mode() == *mode);
        let modes: Vec<ProxyMode> = modes.filter(needed).collect();
        Rig::build(&Plan {
            contenders: &args.contenders,
            modes: &modes,
            link,
            receive: Receive::Moderated,
            link_mbit: LINK_MBIT,
            wire: link.has_wire(),
            weir: self.program.path(),
            cache: None,
        })
    }
}

impl Experiment for Bench {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let mut groups = Vec::new();
        let of_links = args
            .link
            .iter()
            .flat_map(|link| args.cases.iter().map(move |kind| (link, kind)));
        for (link, kind) in of_links {
            let sizes = match kind {
                Kind::Get | Kind::Tunnel => &args.sizes,
                Kind::Connect | Kind::TunnelConnect | Kind::TunnelSsl => &args.connect_sizes,
            };
            for size in sizes {
                for clients in &args.clients {
                    let case = |contender: &Contender| {
                        parameters([
                            ("link", word(link)),
                            ("kind", word(kind)),
                            ("size", size.to_string()),
                            ("clients", clients.to_string()),
                            ("contender", word(contender)),
                        ])
                    };
                    groups.push(args.contenders.iter().map(case).collect());
                }
            }
        }
        groups
    }

    fn bed(&self, case: &Parameters) -> String {
        case["link"].clone()
    }

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let args = &self.args;
        let pace = args.rate.map_or("closed loop".into(), |rate| {
            format!("{} requests/s", count(rate))
        });
        facts.insert(
            "load".into(),
            format!("{pace}, {} s a window", args.seconds).into(),
        );
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let (contender, kind): (Contender, Kind) =
            (chosen(case, "contender")?, chosen(case, "kind")?);
        let load = Load {
            target: contender.address(kind.mode()),
            ask: Ask {
                handshake: kind == Kind::TunnelSsl,
                ..Ask::plain(parsed::<Size>(case, "size")?.0, kind.style())
            },
            connections: parsed(case, "clients")?,
            rate_per_s: self.args.rate,
            patience: PATIENCE,
        };
        let span = Span {
            warm_up: Duration::from_secs_f64(self.args.warm_up),
            window: Duration::from_secs_f64(self.args.seconds),
        };
        let rig = self.rig(chosen(case, "link")?)?;
        let seen = rig.run(contender, &[load], span)?;
        let unloaded = rig.unloaded;
        let served = &seen.served[0];
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let quantile = |q| served.latency_ns.value_at_quantile(q) as f64 / 1e3;
        // Without any reply the figures are infinite, and do not count.
        let replies = served.replies;
        let mut sample = Sample::of([
            ("replies_per_s", replies / seen.span.as_secs_f64()),
            ("cpu_us", us(seen.busy) / replies),
            // Of it the part in the proxy's own code. The kernel counts it in steps of 10 ms: take the mean.
            ("user_us", us(seen.user) / replies),
            ("system_us", us(seen.busy + seen.others) / replies),
            // Of it the contender's processes, with the softirqs in their place: what others do on the core is not in it.
            ("process_us", us(seen.processes) / replies),
            // Subtracted from the core's time.
            ("busy_without_load", unloaded),
            ("packets_in", seen.received.packets as f64 / replies),
            ("packets_out", seen.received.sent as f64 / replies),
            // RR02 Figure 8.
            ("data_per_ack", seen.sent.per_ack()),
            ("busy", seen.busy.as_secs_f64() / seen.span.as_secs_f64()),
            ("p50_us", quantile(0.5)),
            ("p99_us", quantile(0.99)),
            (
                "segments_per_packet",
                seen.received.segments as f64 / seen.received.packets.max(1) as f64,
            ),
            ("dropped", seen.received.dropped as f64),
        ]);
        sample.flaw = seen.flaw;
        Ok(sample)
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        limits::compare(round);
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        limits::check(results)
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("link", "{link}"),
            ("kind", "{kind}"),
            ("size", "{size}"),
            ("clients", "{clients}"),
            ("contender", "{contender}"),
            ("CPU µs/reply", "{cpu_us|g3}"),
            ("quartiles", "{cpu_us:quartiles|g3}"),
            ("processes", "{process_us|g3}"),
            ("own code", "{user_us:mean|g3}"),
            ("packets in, out", "{packets_in|.1}, {packets_out|.1}"),
            ("origin's packets/ACK", "{data_per_ack|.1}"),
            ("/ weir", "{cpu_of_weir|.2}"),
            ("/ copy", "{cpu_of_copy|.2}"),
            ("core busy", "{busy|%}"),
            ("system µs", "{system_us|g3}"),
            ("replies/s", "{replies_per_s|n}"),
            ("p50 µs", "{p50_us|n}"),
            ("p99 µs", "{p99_us|n}"),
        ])
        .picture(Picture {
            name: "proxy-bench".into(),
            title: "CPU time on the proxy's core per reply, copying engine = 1".into(),
            panels: vec![Panel {
                title: "{link}: {kind}, {clients} clients".into(),
                x_title: "Bytes of a reply".into(),
                x: "size".into(),
                y: vec![("cpu_of_copy".into(), String::new())],
                lines: vec!["contender".into()],
                per: vec!["link".into(), "kind".into(), "clients".into()],
                ..Panel::default()
            }],
        })
    }
}
