//! Whether the end that was agreed on remembers each connection, and it alone: many thousand connections which the other
//! end closes first, over both families, without timestamps, with SYN cookies, and where packets are lost.
//!
//! No two connections of a case have the same addresses and ports, so each has a record of its own for 60 s.

use std::time::{Duration, Instant};

use weir_testbed::bed::{Bed, Layout};
use weir_testbed::closing::{Close, Plan, Servers, Tally};

use super::{Negotiating, servers, time_waits};
use crate::error::{Error, Result};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "timewait-holders",
    "Does the holder remember each connection, and no other end any?",
)
.source("FTY99, Section 3")
.flags("", "--families 4 --connections 200")];

/// Ports of the server.
const PORTS: u16 = 4;
/// The first port of a client.
const FIRST_PORT: u16 = 10_000;
/// The lengths of replies.
const REPLY: usize = 500;
/// How long the sweeper may take, and the ends to close.
const PATIENCE: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(50);
/// Records are still there after this time.
const RECORDS_LAST: Duration = Duration::from_secs(58);

/// Which end holds; the other one closes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Holder {
    /// The client; the server closes first
    Client,
    /// The server; the client closes first
    Server,
}

/// What is not as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Condition {
    /// Nothing
    Usual,
    /// tcp_timestamps = 0 at both ends
    NoTimestamps,
    /// tcp_syncookies = 2 at the server
    Cookies,
    /// A router between the ends loses packets of each kind
    Loss,
}

/// Arguments of `weir-lab timewait-holders`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which end holds, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "client,server"
    )]
    pub holders: Vec<Holder>,
    /// IP versions, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "4,6", value_parser = clap::value_parser!(u8).range(4..=6))]
    pub families: Vec<u8>,
    /// What is not as usual, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "usual,no-timestamps,cookies,loss"
    )]
    pub conditions: Vec<Condition>,
    /// Connections of each case
    #[arg(long, default_value_t = 100_000)]
    pub connections: u64,
    /// Clients at a time; with loss eight times as many, as most of them wait
    #[arg(long, default_value_t = 128)]
    pub clients: usize,
    /// Packets of a thousand that the router loses in each direction
    #[arg(long, default_value_t = 50)]
    pub loss: u32,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        let most = u64::from(PORTS) * u64::from(u16::MAX - FIRST_PORT);
        if self.connections == 0 || self.connections > most {
            let cause = format!("from 1 to {most}: each has a port of its own");
            return Err(Error::usage(
                format!("bad --connections {}", self.connections),
                cause,
            ));
        }
        Ok(Box::new(Holders {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Holders {
    args: Args,
    program: Program,
}

impl Experiment for Holders {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for condition in &self.args.conditions {
            for holder in &self.args.holders {
                let case = |family: &u8| {
                    parameters([
                        ("condition", word(condition)),
                        ("holder", word(holder)),
                        ("family", family.to_string()),
                    ])
                };
                groups.extend(self.args.families.iter().map(|family| vec![case(family)]));
            }
        }
        groups
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "{} connections of each case, {} at a time ({} with a loss of {} ‰ in each direction), one request of {REPLY} bytes each",
            self.args.connections,
            self.args.clients,
            8 * self.args.clients,
            self.args.loss
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let condition: Condition = chosen(case, "condition")?;
        let holder: Holder = chosen(case, "holder")?;
        let v6 = case.get("family").is_some_and(|family| family == "6");
        let bed = Bed::build(Layout::of_this_machine())?;
        let loses = condition == Condition::Loss;
        let _router = match loses {
            true => Some(bed.lose_between(self.args.loss)?),
            false => None,
        };
        prepare(&bed, condition)?;
        let addresses = servers(v6, PORTS);
        let weirs = Negotiating::start(&bed, &self.program, PORTS, &word(&holder))?;
        let running = Servers::open(&bed.server, &addresses)?;
        let clients = self.args.clients * if loses { 8 } else { 1 };
        let plan = Plan {
            servers: addresses,
            clients,
            connections: self.args.connections,
            time: Duration::from_secs(1200),
            closes: match holder {
                Holder::Client => vec![Close::Server],
                Holder::Server => vec![Close::Client, Close::ClientShutdown],
            },
            bursts: (1, 1),
            sizes: vec![(1, REPLY)],
            first_port: Some(FIRST_PORT),
            seed: turn.seed,
        };
        let threads = clients / usize::from(PORTS) + 1;
        let begun = Instant::now();
        let tally = running.run(&plan, (&bed.server, None, threads), (&bed.clients, None))?;
        let sample = settle(&bed, &weirs, holder, &tally, begun)?;
        weirs.end()?;
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let all = self.args.connections as f64;
        let mut claims = Vec::new();
        for case in &results.cases {
            claims.push(Claim::about(
                "every connection gets its reply",
                case,
                "failed",
                |failed| failed.mean == 0.0,
            ));
            claims.push(Claim::about(
                "no socket is in TIME-WAIT at the end that forgets",
                case,
                "time_wait_forgets",
                |count| count.mean == 0.0,
            ));
            claims.push(Claim::about(
                "the holder remembers each connection",
                case,
                "remembered",
                |count| count.mean == all,
            ));
        }
        claims
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("", "{condition}"),
            ("holder", "{holder}"),
            ("IP", "{family}"),
            ("connections", "{connections|n}"),
            ("failed", "{failed|n}"),
            ("TIME-WAIT at the other end", "{time_wait_forgets|n}"),
            ("at most", "{time_wait_most|n}"),
            ("gone after, s", "{settled_s|.2}"),
            ("records", "{held|n}"),
            ("TIME-WAIT at the holder", "{time_wait_holds|n}"),
            ("agreed", "{held_by_peer|n}"),
            ("fallback", "{fallback|n}"),
            ("connections/s", "{connections_per_s|n}"),
        ])
    }
}

fn prepare(bed: &Bed, condition: Condition) -> Result<()> {
    for netns in [&bed.server, &bed.clients] {
        // What a burst leaves waiting is not what is asked here.
        netns.set_sysctl("net.ipv4.tcp_max_syn_backlog", "65536")?;
        netns.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        if condition == Condition::NoTimestamps {
            netns.set_sysctl("net.ipv4.tcp_timestamps", "0")?;
        }
    }
    match condition {
        Condition::Cookies => bed.server.set_sysctl("net.ipv4.tcp_syncookies", "2"),
        _ => Ok(()),
    }
}

/// Waits until the end that forgets has forgotten, and says what each end remembers then.
fn settle(
    bed: &Bed,
    weirs: &Negotiating<'_>,
    holder: Holder,
    tally: &Tally,
    begun: Instant,
) -> Result<Sample> {
    let (forgets, holds) = match holder {
        Holder::Client => (&bed.server, &bed.clients),
        Holder::Server => (&bed.clients, &bed.server),
    };
    let ended = Instant::now();
    let most = time_waits(forgets)?;
    let mut left = most;
    let of = |(clients, server): (f64, f64)| match holder {
        Holder::Client => (clients, server),
        Holder::Server => (server, clients),
    };
    // Those that still close are neither here nor there.
    let mut remembered = 0.0;
    let mut held = 0.0;
    while ended.elapsed() < PATIENCE {
        left = time_waits(forgets)?;
        held = of(weirs.figures("held")?).0;
        remembered = held + time_waits(holds)? as f64;
        if left == 0 && (remembered >= tally.made as f64 || begun.elapsed() > RECORDS_LAST) {
            break;
        }
        std::thread::sleep(POLL);
    }
    let settled = ended.elapsed();
    let (_, agreed) = of(weirs.figures("held_by_peer")?);
    let (fallback_holds, fallback_forgets) = of(weirs.figures("fallback")?);
    let (_, avoided) = of(weirs.figures("avoided")?);
    let in_time = begun.elapsed() < RECORDS_LAST;
    let mut sample = Sample::of([
        ("connections", tally.made as f64),
        ("failed", tally.failures() as f64),
        ("time_wait_forgets", left as f64),
        ("time_wait_most", most as f64),
        ("time_wait_holds", time_waits(holds)? as f64),
        ("settled_s", settled.as_secs_f64()),
        ("held", held),
        ("held_by_peer", agreed),
        ("avoided", avoided),
        ("fallback", fallback_holds + fallback_forgets),
        (
            "connections_per_s",
            tally.made as f64 / tally.lasted.as_secs_f64(),
        ),
        // The first records have ended where it took longer: then the other end's account counts, to which each is
        // known by the holder's FIN.
        ("remembered", if in_time { remembered } else { agreed }),
    ]);
    sample.notes.extend(
        tally
            .failed
            .iter()
            .map(|(cause, count)| format!("{count} × {cause}")),
    );
    Ok(sample)
}
