//! What the rounds of one case say together.

use serde::{Deserialize, Serialize};

/// Confidence of [`Spread::ci95`].
const CONFIDENCE: f64 = 0.95;
/// Digits that a results file keeps of a number.
const DIGITS: i32 = 6;

/// The values of some rounds. All in the unit of the metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Spread {
    /// Values.
    pub n: usize,
    /// The middle of the sorted values; of an even number, half way between the two in the middle.
    pub median: f64,
    /// Mean. For what the kernel counts in steps so coarse that the median falls on one of them.
    pub mean: f64,
    /// First and third quartile, interpolated linearly between values.
    pub quartiles: (f64, f64),
    /// Least and most.
    pub range: (f64, f64),
    /// Confidence interval of the median, 95 %, from order statistics (Conover, Practical Nonparametric Statistics,
    /// 3.2): no distribution is assumed. `None` below 6 values, which have no such interval.
    pub ci95: Option<(f64, f64)>,
}

impl Spread {
    /// Of finite values; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        Some(Spread {
            n: values.len(),
            median: quantile(&values, 0.5),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            quartiles: (quantile(&values, 0.25), quantile(&values, 0.75)),
            range: (least, most),
            ci95: of_ranks(&values, CONFIDENCE),
        })
    }

    /// Of one value.
    pub fn one(value: f64) -> Spread {
        Spread::of([value]).unwrap_or_default()
    }
}

/// Confidence interval of the median of finite values, as [`Spread::ci95`] is one, with a confidence of 0 to 1. `None` of
/// too few: below 6 for 95 %, below 5 for 90 %.
pub fn interval(values: impl IntoIterator<Item = f64>, confidence: f64) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    of_ranks(&values, confidence)
}

/// The same of sorted values.
fn of_ranks(sorted: &[f64], confidence: f64) -> Option<(f64, f64)> {
    interval_ranks(sorted.len(), confidence).map(|(low, high)| (sorted[low], sorted[high]))
}

/// Of sorted values, at a share of 0 to 1.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    below + (above - below) * rank.fract()
}

/// Ranks, from 0, of the two values between which the median lies with this confidence. The number of values below the
/// median is binomial with p = 1/2.
fn interval_ranks(n: usize, confidence: f64) -> Option<(usize, usize)> {
    let tail = (1.0 - confidence) / 2.0;
    // P(none of n is below the median).
    let mut probability = 0.5f64.powi(n as i32);
    let (mut below, mut low) = (probability, None);
    for rank in 0..n / 2 {
        if below > tail {
            break;
        }
        low = Some(rank);
        probability *= (n - rank) as f64 / (rank + 1) as f64;
        below += probability;
    }
    low.map(|low| (low, n - 1 - low))
}

/// What the numbers of a spread in a results file are; the last two are left out if it has no interval.
pub const STATISTICS: [&str; 9] = [
    "n",
    "median",
    "mean",
    "first quartile",
    "third quartile",
    "least",
    "most",
    "ci95 from",
    "ci95 to",
];

/// As it stands in a results file: a bare number if there is one value, else numbers in the order of [`STATISTICS`].
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    One(f64),
    Many(Vec<f64>),
}

impl From<Spread> for Stored {
    fn from(spread: Spread) -> Stored {
        if spread.n <= 1 {
            return Stored::One(rounded(spread.median));
        }
        let ((q1, q3), (least, most)) = (spread.quartiles, spread.range);
        let ci95 = spread.ci95.into_iter().flat_map(|(from, to)| [from, to]);
        let numbers = [
            spread.n as f64,
            spread.median,
            spread.mean,
            q1,
            q3,
            least,
            most,
        ];
        Stored::Many(numbers.into_iter().chain(ci95).map(rounded).collect())
    }
}

impl TryFrom<Stored> for Spread {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Spread, String> {
        let numbers = match stored {
            Stored::One(value) => return Ok(Spread::one(value)),
            Stored::Many(numbers) => numbers,
        };
        let wrong = || format!("a spread has 7 or 9 numbers, not {}", numbers.len());
        let (first, ci95) = numbers.split_first_chunk().ok_or_else(wrong)?;
        let &[n, median, mean, q1, q3, least, most] = first;
        Ok(Spread {
            n: n as usize,
            median,
            mean,
            quartiles: (q1, q3),
            range: (least, most),
            ci95: match ci95 {
                [] => None,
                &[from, to] => Some((from, to)),
                _ => return Err(wrong()),
            },
        })
    }
}

/// To [`DIGITS`] significant digits; whole numbers keep all of theirs.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() || value == value.trunc() {
        return value;
    }
    let places = DIGITS - 1 - value.abs().log10().floor() as i32;
    format!("{value:.*}", places.max(0) as usize)
        .parse()
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_values_and_the_range_does_not() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.quartiles), (2.5, (1.75, 3.25)));
        assert_eq!((spread.mean, spread.range), (2.5, (1.0, 4.0)));
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    /// Ranks from Conover's table of binomial quantiles, p = 1/2.
    #[test]
    fn the_interval_is_of_order_statistics_and_needs_six_values() {
        let at_95 = |n| interval_ranks(n, CONFIDENCE);
        assert_eq!(at_95(5), None);
        assert_eq!(at_95(6), Some((0, 5)));
        assert_eq!(at_95(9), Some((1, 7)));
        assert_eq!(at_95(16), Some((3, 12)));
    }

    #[test]
    fn an_interval_of_90_percent_needs_five_values() {
        assert_eq!(interval([4.0, 1.0, 3.0, 2.0], 0.9), None);
        let five = interval([4.0, 1.0, f64::NAN, 5.0, 3.0, 2.0], 0.9);
        assert_eq!(five, Some((1.0, 5.0)));
    }

    #[test]
    fn a_spread_is_read_as_it_was_written() {
        for values in [
            vec![1234.5678],
            vec![1.0, 2.0, 4.0],
            vec![0.123_456; 9],
            vec![1e6; 5],
        ] {
            let text = serde_json::to_string(&Spread::of(values).unwrap()).unwrap();
            let read: Spread = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        assert_eq!(
            serde_json::to_string(&Spread::one(1234.5678)).unwrap(),
            "1234.57"
        );
    }
}
