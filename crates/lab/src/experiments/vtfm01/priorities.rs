//! VTFM01 Figures 5 and 6: three classes with equally many greedy clients each, served strictly by priority.
//!
//! The paper's result has two sides: the high class is as fast as if it were alone, and once the clients
//! outnumber the server's processes the low ones starve. `ageing` is the remedy that weir adds to the paper's
//! own (policing the high class, [`super::police_high`]).

use super::closed::{
    ClosedLoop, ServerArgs, WindowArgs, by_class, config, greedy, priority, strict, unpoliced,
};
use crate::error::Result;
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

const PRIORITIES: Entry = Entry::new::<Args>(
    "vtfm01-priorities",
    "What do three classes in the listen queue get in the kernel's order, strictly by priority, and with ageing?",
)
.source("VTFM01 Figures 5 and 6")
.flags(
    "--clients 10,30,60 --workers 50,20 --seconds 1.5",
    "--clients 20 --workers 10 --seconds 0.5 --warm-up 0.3",
);

/// The experiment, and its runs with other servers.
pub const ENTRIES: &[Entry] = &[
    PRIORITIES,
    PRIORITIES
        .preset(
            "vtfm01-priorities-apache",
            "The same with Apache's prefork model.",
        )
        .flags(
            "--server apache --clients 50 --workers 50,20 --rounds 5",
            PRIORITIES.quick,
        ),
    PRIORITIES
        .preset("vtfm01-priorities-nginx", "The same with nginx.")
        .flags(
            "--server nginx --clients 50 --workers 50,20 --rounds 3",
            PRIORITIES.quick,
        ),
];

/// Arguments of `weir-lab vtfm01 priorities`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Numbers of greedy clients of each class
    #[arg(long, value_delimiter = ',', default_value = "10,20,30,40,50,60")]
    pub clients: Vec<usize>,
    /// Numbers of server processes (Figure 5, Figure 6)
    #[arg(long, value_delimiter = ',', default_value = "50,20")]
    pub workers: Vec<usize>,
    /// Orders to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,strict,ageing"
    )]
    pub orders: Vec<Order>,
    /// After which a waiting connection rises a class
    #[arg(long, default_value = "250ms")]
    pub ageing: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub window: WindowArgs,
}

/// Who is accepted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Who came first: the kernel as it is
    Fifo,
    /// The highest class
    Strict,
    /// The highest class, and who waits rises
    Ageing,
}

impl Order {
    fn config(self, ageing: &str) -> Option<String> {
        match self {
            Order::Fifo => None,
            Order::Strict => Some(config(&strict(), &unpoliced(3))),
            Order::Ageing => Some(config(&priority(ageing), &unpoliced(3))),
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Priorities {
            args: self,
            program: program.clone(),
            bed: None,
            alone: Beside::default(),
        }))
    }
}

struct Priorities {
    args: Args,
    program: Program,
    bed: Option<ClosedLoop>,
    /// Replies/s of the high class alone on the unprotected server, by round, workers and clients.
    alone: Beside<(usize, usize, usize), f64>,
}

impl Experiment for Priorities {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for workers in &self.args.workers {
            for clients in &self.args.clients {
                let case = |order: &Order| {
                    parameters([
                        ("workers", workers.to_string()),
                        ("clients", clients.to_string()),
                        ("order", word(order)),
                    ])
                };
                groups.push(self.args.orders.iter().map(case).collect());
            }
        }
        groups
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let servers = self
            .args
            .workers
            .iter()
            .map(|&workers| self.args.server.spec(workers).describe());
        facts.insert(
            "server".into(),
            servers.collect::<Vec<_>>().join("; ").into(),
        );
        facts.insert("ageing".into(), self.args.ageing.clone().into());
        self.bed = Some(ClosedLoop::build(&self.args.window, &self.program)?);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let (workers, clients) = (parsed(case, "workers")?, parsed(case, "clients")?);
        let bed = self.bed.as_ref().expect("opened first");
        let spec = self.args.server.spec(workers);
        let alone = self.alone.get((turn.round, workers, clients), || {
            Ok(bed.replies_per_s(&bed.clients(&spec, None, &[greedy(1, clients)])?[0]))
        })?;
        let groups = [1, 2, 3].map(|class| greedy(class, clients));
        let config = chosen::<Order>(case, "order")?.config(&self.args.ageing);
        let outcomes = bed.clients(&spec, config.as_deref(), &groups)?;
        let mut sample = Sample::of([
            ("alone_replies_per_s", alone),
            (
                "of_alone",
                bed.replies_per_s(&outcomes[0]) / alone.max(1e-9),
            ),
        ]);
        bed.add_classes(&mut sample, &outcomes);
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let ordered = results
            .cases
            .iter()
            .filter(|case| case.parameter("order") != "fifo");
        // weir's own limit: in VTFM01 Figures 5 and 6 the high class loses nothing. With `ageing` others get some of it.
        let claim = "ordered by priority, the high class has 80 % of what it has alone";
        ordered
            .map(|case: &Case| Claim::about(claim, case, "of_alone", |share| share.median > 0.8))
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("order", "{order}"),
            ("workers", "{workers}"),
            ("clients", "3 × {clients}"),
            ("high replies/s", "{high_replies_per_s:cell|n}"),
            ("middle", "{middle_replies_per_s:cell|n}"),
            ("low", "{low_replies_per_s:cell|n}"),
            ("high of alone", "{of_alone:cell|%}"),
            ("longest wait ms: high", "{high_longest_wait_ms:cell|n}"),
            ("middle", "{middle_longest_wait_ms:cell|n}"),
            ("low", "{low_longest_wait_ms:cell|n}"),
        ])
        .picture(Picture {
            name: "priorities".into(),
            title: "VTFM01 Figures 5 and 6: three classes in the listen queue".into(),
            panels: vec![Panel {
                title: "{order}, {workers} workers: replies/s".into(),
                x_title: "Greedy clients of each class".into(),
                x: "clients".into(),
                y: by_class("replies_per_s"),
                per: vec!["workers".into(), "order".into()],
                ..Panel::default()
            }],
        })
    }
}
