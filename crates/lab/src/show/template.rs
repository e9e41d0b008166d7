//! Cells of tables, as text with references to what was measured.
//!
//! `{NAME}` is a parameter or the median of a metric. After it, in this order and all optional:
//! `[param=value,…]` another case, with these parameters instead of this one's; `:STATISTIC` one of `median`, `mean`,
//! `least`, `most`, `n`, or two numbers at once: `range`, `quartiles`, `ci95`, or the median with the range behind it:
//! `cell`; and `|FORMAT` one of `n` (groups of three digits), `ms` (three digits), `%`, `%1` (with one digit behind the
//! point), `.N` (digits behind the point), `+N` (the same with a sign), `gN` (significant digits), `*F` and `/F`
//! (scales, and goes on to the next format).
//! `A/B` is the mean of one metric over that of another; `facts.NAME` is a fact. What was not measured is `-`.

use super::format::{count, ms, significant};
use crate::error::{Error, Result};
use crate::run::results::{Case, Results};
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

/// Parts of a reference.
struct Reference<'a> {
    name: &'a str,
    filter: &'a str,
    statistic: &'a str,
    formats: Vec<&'a str>,
}

fn parse(text: &str) -> Reference<'_> {
    let mut formats = text.split('|');
    let head = formats.next().unwrap_or_default();
    let (head, filter) = match head.split_once('[') {
        Some((name, rest)) => {
            let (filter, behind) = rest.split_once(']').unwrap_or((rest, ""));
            (name, Some((filter, behind)))
        }
        None => (head, None),
    };
    let (name, statistic) = match filter {
        Some((_, behind)) => (head, behind.trim_start_matches(':')),
        None => head.split_once(':').unwrap_or((head, "")),
    };
    Reference {
        name,
        filter: filter.map_or("", |(filter, _)| filter),
        statistic,
        formats: formats.collect(),
    }
}

fn value(reference: &str, results: &Results, case: &Case) -> std::result::Result<String, String> {
    let parts = parse(reference);
    let case = match parts.filter {
        "" => Some(case),
        filter => other(filter, results, case)?,
    };
    let Some(case) = case else {
        return Ok("-".into());
    };
    if let Some(parameter) = case.parameters.get(parts.name) {
        return Ok(parameter.clone());
    }
    let spread = match parts.name.split_once('/') {
        Some((one, other)) => case
            .metrics
            .get(one)
            .zip(case.metrics.get(other))
            .map(|(one, other)| Spread::one(one.mean / other.mean)),
        None => match parts.name.strip_prefix("facts.") {
            Some(fact) => match results.facts.get(fact) {
                Some(serde_json::Value::String(text)) => return Ok(text.clone()),
                fact => fact.and_then(serde_json::Value::as_f64).map(Spread::one),
            },
            None => case.metrics.get(parts.name).copied(),
        },
    };
    let Some(spread) = spread else {
        return Ok("-".into());
    };
    let number = |value: f64| number(value, &parts.formats);
    let both = |(low, high): (f64, f64)| Ok(format!("{}–{}", number(low)?, number(high)?));
    match parts.statistic {
        "" | "median" => number(spread.median),
        "mean" => number(spread.mean),
        "least" => number(spread.range.0),
        "most" => number(spread.range.1),
        "n" => number(spread.n as f64),
        "range" => both(spread.range),
        "quartiles" => both(spread.quartiles),
        "ci95" => spread.ci95.map_or(Ok("-".into()), both),
        "cell" => {
            let (median, range) = (number(spread.median)?, both(spread.range)?);
            let (least, most) = range.split_once('–').unwrap_or_default();
            Ok(match (least == most, median.strip_suffix(" %")) {
                (true, _) => median,
                (false, None) => format!("{median} ({range})"),
                (false, Some(median)) => format!("{median} ({}) %", range.replace(" %", "")),
            })
        }
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
    Ok(results.cases.iter().find(|case| case.parameters == wanted))
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
    use crate::run::results::parameters;

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
        Results {
            cases: vec![case("default", [0.5, 0.4, 0.7]), case("reserv", [1.0; 3])],
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
