//! Figure 3 of BHD18: the response time of connections with and without a lost SYN, by their size.

use weir_trace::model::Point;

use crate::show::chart;
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

/// Figure 3: both axes logarithmic.
pub fn picture(curves: &[Curve]) -> String {
    let points = |value: fn(&Point) -> f64, points: &[Point]| {
        points
            .iter()
            .map(|point| (point.segments.into(), value(point)))
            .collect()
    };
    let without = curves.first().map(|curve| chart::Curve {
        mark: '·',
        name: "no SYN lost".to_owned(),
        points: points(|point| point.without_syn_loss_s, &curve.points),
    });
    let with = curves.iter().map(|curve| chart::Curve {
        mark: char::from_digit(curve.rto_s as u32, 10).unwrap_or('x'),
        name: format!("lost, RTO {} s", curve.rto_s),
        points: points(|point| point.with_syn_loss_s, &curve.points),
    });
    chart::chart(&without.into_iter().chain(with).collect::<Vec<_>>(), " s")
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.2} s")
}
