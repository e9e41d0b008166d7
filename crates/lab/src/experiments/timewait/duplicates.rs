//! Whether a program reads data of a closed connection that comes late, within the window of a later connection with the same
//! addresses and ports: without weir, and with the record of a destination or of a listener.

use weir_testbed::bed::{Bed, Layout};
use weir_testbed::duplicates::{Clock, Duplicates, Side};
use weir_testbed::raw::Raw;
use weir_testbed::weir::Weir;

use super::{FIRST_SERVER_PORT, listener};
use crate::error::Result;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

/// The experiment.
pub const ENTRIES: &[Entry] =
    &[
        Entry::new::<Args>("timewait-duplicates", "Do programs read old duplicates?")
            .source("FTY99, Sections 1 and 2; RFC 6191")
            .flags("", "--tries 100"),
    ];

/// Of the listener's record, which the end made of frames agrees to.
const HOLDS: &str = "timewait = \"negotiate\"\nholder = \"server\"\n";
const DESTINATION: &str =
    "[[destination]]\nname = \"backends\"\nto = \"10.128.0.0/9\"\ntimewait = \"client-rst\"\n";
/// Hosts of [`weir_testbed::raw::Peer::v4`].
const MOST: u32 = 1 << 23;

/// Whose record is to keep them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Record {
    /// Of a destination: the program connects
    Destination,
    /// Of a listener: the program listens
    Listener,
}

/// The timestamps of the end that sends old duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Stamps {
    /// The program's end has none
    Off,
    /// Later ones in the new connection, by 2 ms at least
    Later,
    /// Later by 1 ms, of which the kernel takes no notice
    Next,
    /// Earlier ones in the new connection
    Earlier,
}

/// What keeps them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Enforced {
    /// Nothing: no weir runs
    No,
    /// weir's records
    Yes,
}

/// Arguments of `weir-lab timewait-duplicates`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Whose record it is, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "destination,listener"
    )]
    pub records: Vec<Record>,
    /// The other end's timestamps, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "off,later,next,earlier"
    )]
    pub timestamps: Vec<Stamps>,
    /// With or without weir, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "no,yes")]
    pub enforced: Vec<Enforced>,
    /// Old duplicates of each case
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..i64::from(MOST)))]
    pub tries: u32,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        Ok(Box::new(Late {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Late {
    args: Args,
    program: Program,
}

impl Experiment for Late {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for record in &self.args.records {
            for stamps in &self.args.timestamps {
                let case = |enforced: &Enforced| {
                    parameters([
                        ("record", word(record)),
                        ("timestamps", word(stamps)),
                        ("enforced", word(enforced)),
                    ])
                };
                groups.push(self.args.enforced.iter().map(case).collect());
            }
        }
        groups
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "{} connections of each case, into each of which data of the one before it comes late",
            self.args.tries
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let record: Record = chosen(case, "record")?;
        let stamps: Stamps = chosen(case, "timestamps")?;
        let enforced = chosen::<Enforced>(case, "enforced")? == Enforced::Yes;
        let bed = Bed::build(Layout::of_this_machine())?;
        let (side, config) = match record {
            Record::Destination => (Side::Client, DESTINATION.to_owned()),
            Record::Listener => (Side::Server, listener(FIRST_SERVER_PORT, HOLDS)),
        };
        let weir = match enforced {
            true => Some(Weir::run(&bed.server, self.program.path(), &config)?),
            false => None,
        };
        let duplicates = Duplicates {
            netns: &bed.server,
            raw: Raw(&bed.wire),
            side,
            clock: match stamps {
                Stamps::Off => Clock::Off,
                Stamps::Later => Clock::Later,
                Stamps::Next => Clock::Next,
                Stamps::Earlier => Clock::Earlier,
            },
            port: FIRST_SERVER_PORT,
            enforced,
            first: 0,
            seed: turn.seed,
        };
        let outcome = duplicates.run(self.args.tries);
        if let Some(weir) = weir {
            weir.end()?;
        }
        Ok(Sample::of([
            ("tries", f64::from(self.args.tries)),
            ("read", outcome.stale as f64),
            ("kept_out", outcome.fresh as f64),
            ("refused", outcome.refused as f64),
        ]))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let mut claims = Vec::new();
        for case in &results.cases {
            if case.parameter("enforced") == "yes" {
                claims.push(Claim::about(
                    "no program reads an old duplicate",
                    case,
                    "read",
                    |read| read.mean == 0.0,
                ));
            } else if case.parameter("timestamps") != "later" {
                claims.push(Claim::about(
                    "programs read old duplicates without a record",
                    case,
                    "read",
                    |read| read.mean > 0.0,
                ));
            }
        }
        claims
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("record", "{record}"),
            ("timestamps", "{timestamps}"),
            ("weir", "{enforced}"),
            ("tries", "{tries|n}"),
            ("read by a program", "{read|n}"),
            ("kept out of a new connection", "{kept_out|n}"),
            ("new connection put off", "{refused|n}"),
        ])
    }
}
