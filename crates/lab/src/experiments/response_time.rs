//! `weir-lab response-time`: BHD18's model of a connection that loses its SYN (Section IV, Figure 3).
//!
//! It is arithmetic, not a measurement: the paper's two equations (`weir_trace::model`), at the retransmission time-out of
//! today's kernels, 1 s, and at that of the paper's time, 3 s. It needs no root.

use weir_trace::model::{Conditions, Point, REAL, SIZES};

use crate::error::{Error, Result};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, parsed};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "response-time",
    "How much longer does a connection take that loses its SYN, by its size? (computed)",
)
.source("BHD18 Section IV, Figure 3")
.flags("", "--sizes 25,1000")];

/// The paper calls less than this share of the response time negligible.
const NEGLIGIBLE: f64 = 0.1;
/// Segments from which it is, by the time-out in s (Section IV).
const NEGLIGIBLE_FROM: [(f64, u32); 2] = [(1.0, 1000), (3.0, 2000)];

/// Arguments of `weir-lab response-time`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Retransmission time-outs of a SYN, in s
    #[arg(long, value_delimiter = ',', default_value = "1,3")]
    pub rto: Vec<f64>,
    /// Sizes of connections, in segments [default: 25 to 10 000, as the figure has them]
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<u32>,
    /// Round-trip time, in s
    #[arg(long, default_value_t = REAL.rtt_s)]
    pub rtt: f64,
    /// Probability that a data packet is lost
    #[arg(long, default_value_t = REAL.loss)]
    pub loss: f64,
    /// Probability that a SYN or its answer is lost
    #[arg(long, default_value_t = REAL.syn_loss)]
    pub syn_loss: f64,
}

impl Flags for Args {
    fn experiment(mut self, _program: &Program) -> Result<Box<dyn Experiment>> {
        let is_time = |s: f64| s > 0.0 && s.is_finite();
        let shares = [self.loss, self.syn_loss];
        if !is_time(self.rtt) || !self.rto.iter().copied().all(is_time) {
            return Err(Error::usage("bad --rtt or --rto", "they must be above 0"));
        }
        if self.loss == 0.0 || shares.iter().any(|share| !(0.0..1.0).contains(share)) {
            let cause = "they must be 0 to less than 1, and --loss above 0";
            return Err(Error::usage("bad --loss or --syn-loss", cause));
        }
        if self.sizes.is_empty() {
            self.sizes = SIZES.into();
        }
        Ok(Box::new(ResponseTime { args: self }))
    }
}

struct ResponseTime {
    args: Args,
}

impl Experiment for ResponseTime {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let of = |rto: &f64| {
            let case =
                |size: &u32| parameters([("rto", rto.to_string()), ("segments", size.to_string())]);
            self.args.sizes.iter().map(case).collect()
        };
        self.args.rto.iter().map(of).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let Args {
            rtt,
            loss,
            syn_loss,
            ..
        } = self.args;
        let load = format!(
            "computed, not measured: round trip {:.0} ms, {:.1} % of packets and {:.1} % of SYNs lost",
            rtt * 1e3,
            loss * 100.0,
            syn_loss * 100.0
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let conditions = Conditions {
            rtt_s: self.args.rtt,
            loss: self.args.loss,
            syn_loss: self.args.syn_loss,
            rto_s: parsed(case, "rto")?,
        };
        let point = Point::of(&conditions, parsed(case, "segments")?);
        Ok(Sample::of([
            ("without_loss_ms", point.without_syn_loss_s * 1e3),
            ("with_loss_ms", point.with_syn_loss_s * 1e3),
            ("mean_ms", point.mean_s * 1e3),
            ("increase", point.increase),
        ]))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let claim = "a lost SYN is negligible for connections of this size";
        let is_large = |case: &&Case| {
            let (rto, size): (f64, u32) = (
                parsed(&case.parameters, "rto").unwrap_or(0.0),
                parsed(&case.parameters, "segments").unwrap_or(0),
            );
            let mut from = NEGLIGIBLE_FROM.iter();
            from.any(|(of, from)| *of == rto && size >= *from)
        };
        let about = |case| Claim::about(claim, case, "increase", |share| share.median < NEGLIGIBLE);
        results.cases.iter().filter(is_large).map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("RTO, s", "{rto}"),
            ("segments", "{segments}"),
            ("no SYN lost, ms", "{without_loss_ms|n}"),
            ("a SYN lost, ms", "{with_loss_ms|n}"),
            ("mean, ms", "{mean_ms|n}"),
            ("a lost SYN adds", "{increase|%}"),
        ])
        .picture(Picture {
            name: "response-time".into(),
            title: "What a lost SYN adds to the response time (computed)".into(),
            panels: vec![Panel {
                title: "Added, of the time without a loss".into(),
                x_title: "Segments".into(),
                x: "segments".into(),
                y: vec![("increase".into(), String::new())],
                lines: vec!["rto".into()],
                ..Panel::default()
            }],
        })
    }
}
