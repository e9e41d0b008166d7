//! Cells of tables, as text with references to what was measured.
//!
//! `{NAME}` is a parameter or the median of a metric. After it, in this order and all optional:
//! `[param=value,…]` another case, with these parameters instead of this one's; `:STATISTIC` one of `median`, `mean`,
//! `least`, `most`, `n`, or two numbers at once: `range`, `quartiles`, `ci95`, or the median with the range behind it:
//! `cell`, or with the quartiles: `box`; and `|FORMAT` one of `n` (groups of three digits), `ms` (three digits), `%`,
//! `%1` (with one digit behind the point), `.N` (digits behind the point), `+N` (the same with a sign), `gN`
//! (significant digits), `*F` and `/F` (scales, and goes on to the next format).
//! `A/B` is the mean of one metric over that of another, each of its own case; `facts.NAME` is a fact; `claims.TEXT` is
//! what follows TEXT in each claim about the case that begins with it, marked if it did not hold. What was not measured
//! is `-`.

use super::format::{count, ms, significant};
use crate::error::{Error, Result};
use crate::run::results::{Case, Results, Verdict};
use crate::run::statistics::Spread;

/// Fills a template in.
pub fn fill(template: &str, results: &Results, case: &Case) -> Result<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let bad = || Error::usage(format!("bad template `{template}`"), "a `{` has no `}`");
        let (reference, behind) = after.split_once('}').ok_or_else(bad)?;
        text += before;
        text += &value(reference, results, case)
            .map_err(|cause| Error::usage(format!("bad reference `{{{reference}}}`"), cause))?;
        rest = behind;
    }
    Ok(text + rest)
}

/// What a reference to one metric, or to two with `/` between them, comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantity {
    /// The metric over the rounds. Of a quotient its one value: what each round had of it is not in results.
    pub spread: Spread,
    /// Of a quotient of two metrics' medians: rounds of the one that has fewer.
    pub quotient_of: Option<usize>,
    /// Why a case of it does not count.
    pub flaw: Option<String>,
}

/// The quantity of a reference such as `NAME[param=value,…]`, without braces and formats; `None` if a case or a metric of
/// it was not measured. A quotient is that of medians, as those are what tables show.
pub fn quantity(reference: &str, results: &Results) -> Result<Option<Quantity>> {
    let bad = |cause: String| Error::usage(format!("bad reference `{reference}`"), cause);
    let none = Case::default();
    let mut flaw = None;
    let mut spreads = Vec::new();
    for text in reference.split('/') {
        let operand = Operand::parse(text);
        let Some(case) = operand.case(results, &none).map_err(bad)? else {
            return Ok(None);
        };
        let Some(spread) = case.metrics.get(operand.name) else {
            return Ok(None);
        };
        let no_round_counts = case.flawed > 0 && case.flawed == case.rounds;
        flaw = flaw.or(case.flaw.clone().filter(|_| no_round_counts));
        spreads.push(*spread);
    }
    let (spread, quotient_of) = match spreads[..] {
        [spread] => (Some(spread), None),
        [one, other] => (
            Spread::of([one.median / other.median]),
            Some(one.n.min(other.n)),
        ),
        _ => return Err(bad("it has more than one `/`".into())),
    };
    Ok(spread.map(|spread| Quantity {
        spread,
        quotient_of,
        flaw,
    }))
}

/// The cases that a reference names, and the names of its metrics: for checks of what is written in files.
pub fn parts(reference: &str) -> impl Iterator<Item = (&str, &str)> {
    reference.split('/').map(|text| {
        let operand = Operand::parse(text);
        (operand.name, operand.filter)
    })
}

/// A number as formats have it that `|` parts.
pub fn formatted(value: f64, formats: &str) -> Result<String> {
    let formats: Vec<&str> = formats.split('|').collect();
    number(value, &formats)
        .map_err(|cause| Error::usage(format!("bad format `{}`", formats.join("|")), cause))
}

/// What a reference refers to: `NAME[param=value,…]:STATISTIC`.
struct Operand<'a> {
    name: &'a str,
    filter: &'a str,
    statistic: &'a str,
}

impl<'a> Operand<'a> {
    fn parse(text: &'a str) -> Operand<'a> {
        let (name, filter, statistic) = match text.split_once('[') {
            Some((name, rest)) => {
                let (filter, behind) = rest.split_once(']').unwrap_or((rest, ""));
                (name, filter, behind.trim_start_matches(':'))
            }
            None => {
                let (name, statistic) = text.split_once(':').unwrap_or((text, ""));
                (name, "", statistic)
            }
        };
        Operand {
            name,
            filter,
            statistic,
        }
    }

    /// Its case; `None` if that was not measured.
    fn case<'r>(
        &self,
        results: &'r Results,
        case: &'r Case,
    ) -> std::result::Result<Option<&'r Case>, String> {
        match self.filter {
            "" => Ok(Some(case)),
            filter => other(filter, results, case),
        }
    }
}

fn value(reference: &str, results: &Results, case: &Case) -> std::result::Result<String, String> {
    let mut parts = reference.split('|');
    let head = parts.next().unwrap_or_default();
    let formats: Vec<&str> = parts.collect();
    if let Some(text) = head.strip_prefix("claims.") {
        return Ok(claims(text, results, case));
    }
    if let Some((one, other)) = head.split_once('/') {
        let mean = |text| -> std::result::Result<_, String> {
            let operand = Operand::parse(text);
            let case = operand.case(results, case)?;
            Ok(case.and_then(|case| Some(case.metrics.get(operand.name)?.mean)))
        };
        let quotient = mean(one)?.zip(mean(other)?).map(|(one, other)| one / other);
        return quotient.map_or(Ok("-".into()), |quotient| number(quotient, &formats));
    }
    let operand = Operand::parse(head);
    let Some(case) = operand.case(results, case)? else {
        return Ok("-".into());
    };
    if let Some(parameter) = case.parameters.get(operand.name) {
        return Ok(parameter.clone());
    }
    let spread = match operand.name.strip_prefix("facts.") {
        Some(fact) => match results.facts.get(fact) {
            Some(serde_json::Value::String(text)) => return Ok(text.clone()),
            fact => fact.and_then(serde_json::Value::as_f64).map(Spread::one),
        },
        None => case.metrics.get(operand.name).copied(),
    };
    spread.map_or(Ok("-".into()), |spread| {
        statistic(spread, operand.statistic, &formats)
    })
}

/// What follows a text in the claims about a case.
fn claims(text: &str, results: &Results, case: &Case) -> String {
    let about = results.claims.iter();
    let about = about.filter(|claim| claim.parameters == case.parameters);
    let rest = about.filter_map(|claim| {
        let mark = match claim.verdict {
            Verdict::Held => "",
            Verdict::NotHeld => " **no**",
            Verdict::NotJudged => " (not judged)",
        };
        Some(format!("{}{mark}", claim.claim.strip_prefix(text)?.trim()))
    });
    rest.collect::<Vec<_>>().join("; ")
}

fn statistic(spread: Spread, name: &str, formats: &[&str]) -> std::result::Result<String, String> {
    let number = |value: f64| number(value, formats);
    let both = |(low, high): (f64, f64)| {
        let (low, high) = (number(low)?, number(high)?);
        let between = if low.starts_with(['+', '-']) {
            " to "
        } else {
            "–"
        };
        Ok(format!("{low}{between}{high}"))
    };
    let with = |(low, high): (f64, f64)| {
        let (median, both) = (number(spread.median)?, both((low, high))?);
        Ok(
            match (number(low)? == number(high)?, median.strip_suffix(" %")) {
                (true, _) => median,
                (false, None) => format!("{median} ({both})"),
                (false, Some(median)) => format!("{median} ({}) %", both.replace(" %", "")),
            },
        )
    };
    match name {
        "" | "median" => number(spread.median),
        "mean" => number(spread.mean),
        "least" => number(spread.range.0),
        "most" => number(spread.range.1),
        "n" => number(spread.n as f64),
        "range" => both(spread.range),
        "quartiles" => both(spread.quartiles),
        "ci95" => spread.ci95.map_or(Ok("-".into()), both),
        "cell" => with(spread.range),
        "box" => with(spread.quartiles),
        other => Err(format!("`{other}` is not a statistic")),
    }
}

/// The case with other parameters; `None` if it was not measured.
fn other<'a>(
    filter: &str,
    results: &'a Results,
    case: &Case,
) -> std::result::Result<Option<&'a Case>, String> {
    let mut wanted = case.parameters.clone();
    for pair in filter.split(',') {
        let (name, value) = pair.split_once('=').ok_or(format!("`{pair}` has no `=`"))?;
        wanted.insert(name.to_owned(), value.to_owned());
    }
    Ok(results.cases.iter().find(|case| case.is(&wanted)))
}

fn number(mut value: f64, formats: &[&str]) -> std::result::Result<String, String> {
    let of = |text: &str| {
        text.parse::<f64>()
            .map_err(|_| format!("`{text}` is not a number"))
    };
    let digits = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| format!("`{text}` is not a number of digits"))
    };
    for format in formats {
        let (kind, rest) = format.split_at(format.chars().next().map_or(0, char::len_utf8));
        return Ok(match kind {
            "*" => {
                value *= of(rest)?;
                continue;
            }
            "/" => {
                value /= of(rest)?;
                continue;
            }
            "n" => count(value),
            "m" => ms(value),
            "%" => format!(
                "{:.*} %",
                digits(if rest.is_empty() { "0" } else { rest })?,
                value * 100.0
            ),
            "." => format!("{value:.*}", digits(rest)?),
            "+" => format!("{value:+.*}", digits(rest)?),
            "g" => significant(value, digits(rest)? as i32),
            _ => return Err(format!("`{format}` is not a format")),
        });
    }
    Ok(significant(value, 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::{Claim, parameters};

    fn results() -> Results {
        let case = |policy: &str, values: [f64; 3]| Case {
            parameters: parameters([("policy", policy.into()), ("rate", "2x".into())]),
            rounds: 3,
            metrics: [
                ("of_peak".to_owned(), Spread::of(values).unwrap()),
                ("replies_per_s".to_owned(), Spread::one(12_345.6)),
            ]
            .into(),
            ..Case::default()
        };
        let cases = vec![case("default", [0.5, 0.4, 0.7]), case("reserv", [1.0; 3])];
        let limit = "of peak is at least 0.6";
        Results {
            claims: vec![Claim::about(limit, &cases[0], "of_peak", |share| {
                share.median >= 0.6
            })],
            cases,
            facts: [("peak_per_s".to_owned(), 8479.3.into())].into(),
            ..Results::default()
        }
    }

    #[test]
    fn references_are_filled_in_with_what_was_measured() {
        let results = results();
        for (template, text) in [
            ("{policy}: {replies_per_s|n}", "default: 12 346"),
            ("{of_peak:cell|%}", "50 (40–70) %"),
            ("{of_peak:cell|.1}", "0.5 (0.4–0.7)"),
            ("{of_peak[policy=reserv]:cell|%}", "100 %"),
            ("{of_peak[policy=abort]|%}, {none}", "-, -"),
            ("{of_peak:range|%}", "40 %–70 %"),
            ("{replies_per_s|/1000|.1} K", "12.3 K"),
            ("{replies_per_s/of_peak|n}", "23 148"),
            ("{of_peak[policy=reserv]/of_peak|.2}", "1.88"),
            ("{of_peak[policy=abort]/of_peak|.2}", "-"),
            ("{of_peak:box|.2}", "0.50 (0.45–0.60)"),
            ("limit {claims.of peak is at least }", "limit 0.6 **no**"),
            (
                "{of_peak:n|n} rounds, peak {facts.peak_per_s|n}",
                "3 rounds, peak 8 479",
            ),
        ] {
            assert_eq!(
                fill(template, &results, &results.cases[0]).unwrap(),
                text,
                "{template}"
            );
        }
    }

    #[test]
    fn a_reference_without_formats_is_a_number() {
        let results = results();
        let of = |reference| quantity(reference, &results).unwrap();
        let share = of("of_peak[policy=default]").unwrap();
        assert_eq!((share.spread.median, share.spread.n), (0.5, 3));
        let quotient = of("of_peak[policy=reserv]/of_peak[policy=default]").unwrap();
        assert_eq!(quotient.quotient_of, Some(3));
        assert!((quotient.spread.median - 2.0).abs() < 1e-9);
        assert_eq!(of("of_peak[policy=abort]"), None);
        assert_eq!(of("none[policy=reserv]/of_peak[policy=reserv]"), None);
        assert!(quantity("of_peak[default]", &results).is_err());
    }

    #[test]
    fn what_a_template_cannot_mean_is_an_error() {
        let results = results();
        for template in [
            "{policy",
            "{of_peak:often}",
            "{of_peak|q}",
            "{of_peak[reserv]}",
        ] {
            assert!(
                fill(template, &results, &results.cases[0]).is_err(),
                "{template}"
            );
        }
    }
}
