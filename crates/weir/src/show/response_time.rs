//! Figure 3 of BHD18: the response time of connections with and without a lost SYN, by their size.

use weir_trace::model::Point;

use crate::show::bars::{Bar, bars};
use crate::show::table::{Align, table};

/// Points of one retransmission time-out.
pub struct Curve {
    /// The time-out, s.
    pub rto_s: f64,
    /// By size, all curves the same sizes.
    pub points: Vec<Point>,
}

/// The table of all curves.
pub fn rows(curves: &[Curve]) -> String {
    let head = ["segments".to_owned(), "no SYN lost".to_owned()]
        .into_iter()
        .chain(curves.iter().flat_map(|curve| {
            let rto = curve.rto_s;
            [
                format!("lost, RTO {rto} s"),
                "more".to_owned(),
                format!("mean, RTO {rto} s"),
            ]
        }));
    let head: Vec<String> = head.collect();
    let head: Vec<(&str, Align)> = head
        .iter()
        .map(|name| (name.as_str(), Align::Right))
        .collect();
    let sizes = curves.first().map_or(0, |curve| curve.points.len());
    let row = |at: usize| {
        let first = &curves[0].points[at];
        let mut cells = vec![
            first.segments.to_string(),
            seconds(first.without_syn_loss_s),
        ];
        for curve in curves {
            let point = &curve.points[at];
            cells.push(seconds(point.with_syn_loss_s));
            cells.push(format!("{:.0} %", point.increase * 100.0));
            cells.push(seconds(point.mean_s));
        }
        cells
    };
    table(&head, &(0..sizes).map(row).collect::<Vec<_>>())
}

/// What a lost SYN adds, as bars.
pub fn picture(curves: &[Curve]) -> String {
    let bar = |curve: &Curve, at: usize| {
        let point = &curve.points[at];
        Bar {
            label: format!("{:>6} segments, RTO {} s", point.segments, curve.rto_s),
            value: point.increase,
            text: format!("{:.0} %", point.increase * 100.0),
        }
    };
    let sizes = curves.first().map_or(0, |curve| curve.points.len());
    let all = (0..sizes).flat_map(|at| curves.iter().map(move |curve| bar(curve, at)));
    bars(&all.collect::<Vec<_>>())
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.2} s")
}
