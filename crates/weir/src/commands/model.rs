//! `weir model`: equations 1 and 2 of BHD18, and its Figure 3 as table and picture.

use serde::Serialize;
use weir_trace::model::{Conditions, Point, SIZES};

use crate::cli::Model;
use crate::failure::Result;
use crate::show::output::{print, print_json};
use crate::show::response_time::{self, Curve};

/// Initial time-outs: since RFC 6298, and before.
const RTOS_S: [f64; 2] = [1.0, 3.0];

/// Steps of the picture.
const FINE: u32 = 60;

/// What `--json` prints for one time-out.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    conditions: Conditions,
    /// Equation 1, s.
    establishment_s: f64,
    points: Vec<Point>,
}

/// Runs the command.
pub fn run(args: &Model) -> Result<()> {
    let answers = RTOS_S.map(|rto_s| {
        let conditions = Conditions {
            rtt_s: args.rtt.as_secs_f64(),
            loss: args.loss,
            syn_loss: args.syn_loss,
            rto_s,
        };
        Answer {
            establishment_s: conditions.establishment_s(),
            points: SIZES
                .map(|segments| Point::of(&conditions, segments))
                .into(),
            conditions,
        }
    });
    match args.json {
        true => print_json(&answers),
        false => print(&text(&answers)),
    }
}

fn text(answers: &[Answer]) -> String {
    let conditions = answers[0].conditions;
    let establishment = answers.iter().map(|answer| {
        let (seconds, rto_s) = (answer.establishment_s, answer.conditions.rto_s);
        format!("{seconds:.2} s with an RTO of {rto_s} s")
    });
    let establishment = establishment.collect::<Vec<_>>().join(", ");
    let curves = answers.iter().map(|answer| Curve {
        rto_s: answer.conditions.rto_s,
        points: answer.points.clone(),
    });
    let curves: Vec<Curve> = curves.collect();
    format!(
        "round trip {:.0} ms, {} % of packets and {} % of SYNs lost\n\
         mean time to establish a connection: {establishment}\n\n\
         {}\n\
         Response time by segments:\n{}",
        conditions.rtt_s * 1000.0,
        percent(conditions.loss),
        percent(conditions.syn_loss),
        response_time::rows(&curves),
        response_time::picture(&fine(answers)),
    )
}

/// As many sizes as the picture has columns.
fn fine(answers: &[Answer]) -> Vec<Curve> {
    let (least, most) = (f64::from(SIZES[0]), f64::from(SIZES[SIZES.len() - 1]));
    let size =
        |i: u32| (least * (most / least).powf(f64::from(i) / f64::from(FINE))).round() as u32;
    let curve = |answer: &Answer| Curve {
        rto_s: answer.conditions.rto_s,
        points: (0..=FINE)
            .map(|i| Point::of(&answer.conditions, size(i)))
            .collect(),
    };
    answers.iter().map(curve).collect()
}

/// Without digits that floating point adds.
fn percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}
