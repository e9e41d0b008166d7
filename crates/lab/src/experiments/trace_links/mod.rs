//! Section III of BHD18, on captures that the lab makes itself: how often are SYNs sent again, how often other packets,
//! and how long do connections wait for it?
//!
//! The paper's captures are of backbones. Here the kernel's TCP carries the paper's traffic over congested links that are
//! emulated ([`crate::link`]), and a capture has what comes to the queues of several of them: as on a backbone, whose
//! packets are lost on many links behind it. Every packet that is lost is lost by a full queue. Hosts that do not answer,
//! and radio links, which the paper's captures have too, are missing.
//!
//! All links carry at once, since a slow link leaves the machine nearly idle. The captures are then read by the code of
//! `weir trace` ([`analysis`]).

mod analysis;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_sim::aqm::Discipline;
use weir_sim::connection::Spec;
use weir_sim::{Kind, Plan};

use super::sim::{Hosts, Traffic};
use crate::error::{Context, Error, Result};
use crate::link::capture::{Capture, Captured};
use crate::link::hosts::{Servers, carry_out};
use crate::link::report::Report;
use crate::link::{self, Emulated};
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, word,
};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};
use analysis::{Counted, Direction, Pcap};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "trace-links",
    "How often are SYNs sent again, and how often other packets, in captures of congested links?",
)
.source("BHD18 Section III: Figures 1 and 2, Tables I and II")
.flags(
    "--seconds 240 --rounds 6",
    "--seconds 4 --traffic real --uploads all --links 1 --rounds 1",
)];

/// Connections may be sent again so long after the last one has begun, s. What is open then is cut off, as by the end of any
/// capture.
const DRAIN_S: f64 = 10.0;
/// A link that delivers one packet in a hundred later than this has not been the link that was asked for, ms: it is a tenth
/// of the round-trip time of the wires.
const LATE_MS: f64 = 10.0;
/// The paper's filter takes no fewer connections for a flood.
const FLOOD_LEAST: f64 = 1000.0;
/// Table II has so many connections of direction B less than Table I (docs/trace-details.md).
const FLOOD_SHARE: f64 = 0.38;
/// Each link's seed is so far from the one before.
const SEEDS_APART: u64 = 1_000_003;
/// The upper bits of a host's number are its address; each link's hosts have addresses of their own.
const LINKS_APART: u32 = link::FIRST;
/// The simulation's hosts, of which only the links are used here.
const HOSTS: Hosts = Hosts {
    initial_window: 10.0,
    reno: false,
    ecn: false,
    target_ms: 5,
};

/// Arguments of `weir-lab trace-links`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Traffic
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "real,short,10m"
    )]
    pub traffic: Vec<Traffic>,
    /// Links of which a client uploads without end
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,half,all"
    )]
    pub uploads: Vec<Uploads>,
    /// Queueing discipline of both directions of the links
    #[arg(long, value_name = "NAME", default_value = "fifo")]
    pub discipline: Discipline,
    /// Links of each traffic with an upload, and as many without
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub links: u32,
    /// Time in which connections begin, s; the capture is ten longer
    #[arg(long, default_value_t = 240.0)]
    pub seconds: f64,
    /// Share of the flood in all connections of a capture that it is put into; it has at least 1000
    #[arg(long, value_name = "SHARE", default_value_t = FLOOD_SHARE)]
    pub flood: f64,
    /// Keep the captures in this folder; `weir trace` reads them
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// Which links have packets in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Uploads {
    /// Those without an upload
    None,
    /// Both, as many with one as without
    Half,
    /// Those with an upload
    All,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        if !(0.0..=0.99).contains(&self.flood) {
            let what = format!("bad --flood {}", self.flood);
            return Err(Error::usage(what, "it must be 0 to 0.99"));
        }
        Ok(Box::new(TraceLinks {
            args: self,
            round: Beside::default(),
        }))
    }
}

const COUNTED: [Counted; 4] = [
    Counted::All,
    Counted::Established,
    Counted::Flood,
    Counted::Filtered,
];
const DIRECTIONS: [Direction; 3] = [Direction::ToServer, Direction::ToClient, Direction::Both];

/// Samples by case.
type Round = BTreeMap<Parameters, Sample>;

struct TraceLinks {
    args: Args,
    /// By number.
    round: Beside<usize, Round>,
}

/// What one link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    traffic: Traffic,
    upload: bool,
}

impl Load {
    fn name(self) -> String {
        let upload = if self.upload { "-upload" } else { "" };
        format!("{}{upload}", word(&self.traffic))
    }
}

/// Whose packets a capture has.
#[derive(Debug, Clone, Copy)]
struct Mix {
    traffic: Traffic,
    uploads: Uploads,
}

impl Mix {
    fn has(self, load: Load) -> bool {
        self.traffic == load.traffic
            && match self.uploads {
                Uploads::None => !load.upload,
                Uploads::Half => true,
                Uploads::All => load.upload,
            }
    }

    fn case(self, counted: Counted, direction: Direction) -> Parameters {
        parameters([
            ("traffic", word(&self.traffic)),
            ("uploads", word(&self.uploads)),
            ("counted", word(&counted)),
            ("direction", word(&direction)),
        ])
    }

    fn cases(self) -> Vec<Parameters> {
        let of = |counted| DIRECTIONS.map(|direction| self.case(counted, direction));
        COUNTED.into_iter().flat_map(of).collect()
    }
}

/// What one link has carried.
struct Carried {
    load: Load,
    captures: [Pcap; 2],
    flaw: Option<String>,
}

impl Args {
    fn mixes(&self) -> impl Iterator<Item = Mix> {
        let of = |traffic: &Traffic| {
            let traffic = *traffic;
            let uploads = self.uploads.iter();
            uploads.map(move |uploads| Mix {
                traffic,
                uploads: *uploads,
            })
        };
        self.traffic.iter().flat_map(of)
    }

    /// What the links carry that any capture has packets of.
    fn loads(&self) -> Vec<Load> {
        let each = self.traffic.iter().flat_map(|traffic| {
            [false, true].map(|upload| Load {
                traffic: *traffic,
                upload,
            })
        });
        each.filter(|load| self.mixes().any(|mix| mix.has(*load)))
            .collect()
    }

    /// SYNs of the flood beside so many connections.
    fn flood_of(&self, connections: u64) -> u32 {
        let share = self.flood / (1.0 - self.flood);
        (connections as f64 * share).round().max(FLOOD_LEAST) as u32
    }

    /// All links at once.
    fn carry_out(&self, turn: Turn) -> Result<Round> {
        let loads = self.loads().into_iter();
        let links = loads.flat_map(|load| (0..self.links).map(move |number| (load, number)));
        let carried: Result<Vec<Carried>> = std::thread::scope(|scope| {
            let threads: Vec<_> = links
                .map(|(load, number)| scope.spawn(move || self.over_link(load, number, turn.seed)))
                .collect();
            let carried = threads.into_iter().map(|thread| match thread.join() {
                Ok(carried) => carried,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            carried.collect()
        });
        let carried = carried?;
        if let Some(folder) = &self.keep {
            keep(folder, turn.round, &carried)?;
        }
        let mut round = Round::new();
        for mix in self.mixes() {
            let of_mix = carried.iter().filter(|link| mix.has(link.load));
            round.extend(self.samples(mix, &of_mix.collect::<Vec<_>>())?);
        }
        Ok(round)
    }

    fn over_link(&self, load: Load, number: u32, seed: u64) -> Result<Carried> {
        // Addresses of its own, as a capture has the packets of several.
        let number = 2 * number + u32::from(load.upload);
        let seed = seed.wrapping_add(u64::from(number) * SEEDS_APART);
        let kind = Kind::from(load.traffic);
        let plan = Plan {
            upload: load.upload,
            ..Plan::of(kind, self.seconds)
        };
        let (down, up) = kind.rates();
        let both = [down, up].map(|rate| (self.discipline, rate));
        let scenario = HOSTS.scenario(both[0], both[1], plan);
        let link = Emulated::start(link::Spec {
            down: scenario.down,
            up: scenario.up,
            lanes: link::Lanes::Shared,
            ecn: false,
            seed,
        })?;
        let capture = Capture::start(&link)?;
        let servers = Servers::start(&link)?;
        let connections = with_own_addresses(plan.connections(seed), number);
        let longest = Duration::from_secs_f64(self.seconds + DRAIN_S);
        carry_out(&link, &connections, longest)?;
        let report = link.stop()?;
        drop(servers);
        let captured = capture.stop()?;
        let flaw = flaw(&report, &captured);
        let [down, up] = captured.map(|captured| captured.pcap);
        let pcap = |way: &str, bytes: Vec<u8>| Pcap {
            name: format!("{}-{number}-{way}", load.name()),
            bytes: bytes.into(),
        };
        Ok(Carried {
            load,
            captures: [pcap("down", down), pcap("up", up)],
            flaw,
        })
    }

    /// The figures of a capture of several links, counted in each way.
    fn samples(&self, mix: Mix, links: &[&Carried]) -> Result<Round> {
        let captures = || links.iter().flat_map(|link| &link.captures);
        let plain = analysis::report(captures(), Counted::All)?;
        let (from_ns, to_ns) = (plain.first_ns.unwrap_or(0), plain.last_ns.unwrap_or(0));
        let flood = analysis::flood(self.flood_of(plain.counts.connections), from_ns, to_ns)?;
        let flaw = links.iter().find_map(|link| link.flaw.clone());
        let mut round = Round::new();
        for counted in COUNTED {
            let flood = Some(&flood).filter(|_| counted.has_flood());
            let report = analysis::report(captures().chain(flood), counted)?;
            round.extend(DIRECTIONS.map(|direction| {
                let mut sample = analysis::sample(&report, direction);
                sample.flaw = flaw.clone();
                (mix.case(counted, direction), sample)
            }));
        }
        Ok(round)
    }
}

/// Clients and servers of this link, which no other has: a capture has the packets of all.
fn with_own_addresses(mut connections: Vec<Spec>, number: u32) -> Vec<Spec> {
    for spec in &mut connections {
        for hash in [&mut spec.client_hash, &mut spec.server_hash] {
            *hash = hash.wrapping_add(number * LINKS_APART);
        }
    }
    connections
}

/// Why a link's capture does not count.
fn flaw(report: &Report, captured: &[Captured; 2]) -> Option<String> {
    let directions = [&report.down, &report.up];
    let late_ms = directions.map(|direction| direction.late.p99_ms);
    let late_ms = late_ms[0].max(late_ms[1]);
    if late_ms > LATE_MS {
        return Some(format!(
            "the link delivered one packet in a hundred over {late_ms:.1} ms late"
        ));
    }
    let lacking = directions.iter().zip(captured).find_map(|(link, seen)| {
        let lacking = link.received_packets.saturating_sub(seen.packets);
        (lacking > 0).then_some(lacking)
    });
    lacking.map(|lacking| format!("the capture lacks {lacking} packets that came to the link"))
}

fn keep(folder: &Path, round: usize, links: &[Carried]) -> Result<()> {
    let what = |path: &Path| format!("cannot write {}", path.display());
    std::fs::create_dir_all(folder).context(what(folder))?;
    for pcap in links.iter().flat_map(|link| &link.captures) {
        let path = folder.join(format!("{round}-{}.pcap", pcap.name));
        std::fs::write(&path, &pcap.bytes).context(what(&path))?;
    }
    Ok(())
}

impl Experiment for TraceLinks {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        self.args.mixes().map(Mix::cases).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let args = &self.args;
        facts.insert("hosts".into(), "the kernel's CUBIC".into());
        let capture = format!(
            "{} links of each kind, with a {} in each direction; packets as they come to the queues",
            args.links,
            args.discipline.name()
        );
        facts.insert("capture".into(), capture.into());
        let flood = format!(
            "SYNs to one host that does not answer, {:.0} % of all connections and at least {FLOOD_LEAST}",
            args.flood * 100.0
        );
        facts.insert("flood".into(), flood.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let args = &self.args;
        let round = self.round.get(turn.round, || args.carry_out(turn))?;
        let sample = round.get(case).cloned();
        sample.ok_or_else(|| Error::failed("no such case", format!("{case:?}")))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        results.cases.iter().flat_map(claims_of).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("traffic", "{traffic}"),
            ("uploads", "{uploads}"),
            ("counted", "{counted}"),
            ("direction", "{direction}"),
            ("SYNs and SYN/ACKs", "{syns|n}"),
            ("sent again", "{syn_rtx|%1}"),
            ("packets sent again", "{packet_rtx|%1}"),
            ("SYNs over packets", "{syn_over_packet|.1}"),
            ("SYNs, of all sent again", "{syn_share_of_rtx|%1}"),
            ("delay ms", "{rtx_delay_ms|n}"),
            ("a SYN lost", "{delay_with_syn_loss_ms|n}"),
            ("none lost", "{delay_without_syn_loss_ms|n}"),
            ("ratio", "{with_over_without|.1}"),
            (
                "delay in connections with a SYN lost",
                "{syn_loss_share_of_delay|%}",
            ),
        ])
    }

    fn rounds(&self) -> usize {
        6
    }
}

fn claims_of(case: &Case) -> Vec<Claim> {
    match (case.parameter("counted"), case.parameter("direction")) {
        ("filtered", "to-server") => vec![Claim::about(
            "the filter finds the flooded host, and no other",
            case,
            "flood_hosts",
            |hosts| hosts.range == (1.0, 1.0),
        )],
        ("all", "both") => vec![Claim::about(
            "SYNs and SYN/ACKs are sent again more often than packets on the whole",
            case,
            "syn_over_packet",
            |times| times.median > 1.0,
        )],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    #[test]
    fn a_link_is_in_every_capture_that_wants_it_and_carries_once() {
        let of = |flags: &str| {
            let loads = args(flags).loads();
            let names: Vec<String> = loads.into_iter().map(Load::name).collect();
            names.join(" ")
        };
        assert_eq!(of("--traffic real --uploads none"), "real");
        assert_eq!(of("--traffic real --uploads half"), "real real-upload");
        assert_eq!(
            of("--traffic real,10m --uploads none,half,all"),
            "real real-upload 10m 10m-upload"
        );
    }

    #[test]
    fn each_link_of_a_capture_has_hosts_of_its_own() {
        let plan = Plan::of(Kind::Short, 60.0);
        let mut seen = BTreeSet::new();
        let mut hosts = 0;
        for number in 0..8 {
            let connections = with_own_addresses(plan.connections(1), number);
            let of_link: BTreeSet<_> = connections
                .iter()
                .map(|spec| link::near(spec.client_hash))
                .collect();
            hosts += of_link.len();
            seen.extend(of_link);
        }
        assert_eq!(seen.len(), hosts);
    }

    #[test]
    fn the_flood_is_as_large_as_the_filter_needs_and_has_its_share_in_all_connections() {
        assert_eq!(args("--flood 0.25").flood_of(9000), 3000);
        assert_eq!(args("--flood 0.25").flood_of(100), 1000);
        assert_eq!(args("--flood 0").flood_of(9000), 1000);
        let program = Program::default();
        assert!(args("--flood 1").experiment(&program).is_err());
    }

    #[test]
    fn a_capture_that_lacks_a_packet_of_the_link_does_not_count() {
        let mut report = Report::default();
        report.up.received_packets = 7;
        let captured = |up| {
            [0, up].map(|packets| Captured {
                packets,
                pcap: Vec::new(),
            })
        };
        assert_eq!(flaw(&report, &captured(7)), None);
        assert!(flaw(&report, &captured(6)).unwrap().contains("lacks 1 "));
        report.down.late.p99_ms = LATE_MS + 1.0;
        assert!(flaw(&report, &captured(7)).unwrap().contains("late"));
    }
}
