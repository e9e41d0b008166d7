//! A toy experiment: this file, and one line in the registry.

use weir_lab::error::Result;
use weir_lab::run::experiment::{Entry, Experiment, Flags, Program, Turn, parsed};
use weir_lab::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

pub const ENTRIES: &[Entry] =
    &[
        Entry::new::<Args>("toy", "Is a die fair, however many sides it has?")
            .source("every textbook")
            .flags("--sides 6,20 --rounds 50", "--sides 6"),
    ];

/// Arguments of `weir-lab toy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Sides of the dice
    #[arg(long, value_delimiter = ',', default_value = "2,6")]
    pub sides: Vec<u64>,
    /// Fails at the measurement with this number
    #[arg(long)]
    pub fail_at: Option<usize>,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        Ok(Box::new(Toy {
            args: self,
            measured: 0,
        }))
    }
}

struct Toy {
    args: Args,
    measured: usize,
}

impl Experiment for Toy {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let dice = self.args.sides.iter();
        dice.map(|sides| {
            ["left", "right"]
                .map(|hand| parameters([("sides", sides.to_string()), ("hand", hand.into())]))
                .into()
        })
        .collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        // A fact of an earlier run counts.
        facts.entry("opened".into()).or_insert(1.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        self.measured += 1;
        if self.args.fail_at == Some(self.measured) {
            return Err(weir_lab::error::Error::interrupted());
        }
        let sides = parsed::<u64>(case, "sides")?;
        let mut rng = fastrand::Rng::with_seed(turn.seed ^ sides);
        Ok(Sample::of([(
            "share",
            rng.u64(1..=sides) as f64 / sides as f64,
        )]))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let about = |case: &Case| {
            Claim::about("the mean is the middle", case, "share", |share| {
                (0.4..0.65).contains(&share.mean)
            })
        };
        results.cases.iter().map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("sides", "{sides}"),
            ("hand", "{hand}"),
            ("share", "{share:cell|%}"),
        ])
        .picture(Picture {
            name: "toy".into(),
            title: "Dice".into(),
            panels: vec![Panel {
                title: "Share".into(),
                x: "sides".into(),
                y: vec![("share".into(), String::new())],
                lines: vec!["hand".into()],
                ..Panel::default()
            }],
        })
    }
}
