//! Pictures as results describe them.

use std::path::Path;

use super::lines;
use crate::error::{Context, Result};
use crate::run::results::{Case, Panel, Picture, Results, has};
use crate::run::statistics::Spread;
use crate::show::template::fill;

/// Draws all pictures of the results into a folder, which is created.
pub fn write(results: &Results, folder: &Path) -> Result<()> {
    let what = || format!("cannot create folder {}", folder.display());
    std::fs::create_dir_all(folder).context(what())?;
    for picture in &results.show.pictures {
        let drawing = drawing(picture, results)?;
        // A run of single cases has no lines.
        if !drawing.panels.is_empty() {
            drawing.write(folder, &picture.name)?;
        }
    }
    Ok(())
}

/// Pictures of the results as SVG, each with its title; those without a line are left out.
pub fn svgs(results: &Results, pictures: &[Picture]) -> Result<Vec<(String, String)>> {
    let mut drawn = Vec::new();
    for picture in pictures {
        let drawing = drawing(picture, results)?;
        if !drawing.panels.is_empty() {
            drawn.push((picture.title.clone(), drawing.draw()?));
        }
    }
    Ok(drawn)
}

/// The picture with its points.
fn drawing(picture: &Picture, results: &Results) -> Result<lines::Picture> {
    let mut names: Vec<String> = Vec::new();
    let mut panels = Vec::new();
    for panel in &picture.panels {
        let of_panel = results
            .cases
            .iter()
            .filter(|case| has(&case.parameters, &panel.only));
        for cases in by(&panel.per, of_panel) {
            panels.extend(drawn(panel, results, &cases, &mut names)?);
        }
    }
    let facts =
        ["server", "load"].map(|name| results.facts.get(name).and_then(|fact| fact.as_str()));
    let note: Vec<String> = std::iter::once(results.machine.to_string())
        .chain(facts.into_iter().flatten().map(str::to_owned))
        .collect();
    Ok(lines::Picture {
        title: picture.title.clone(),
        note: note.join("; "),
        panels,
        names,
    })
}

/// Cases parted by the values of some parameters, in the order of the first ones.
fn by<'a>(parameters: &[String], cases: impl Iterator<Item = &'a Case>) -> Vec<Vec<&'a Case>> {
    let key = |case: &Case| values(parameters, case);
    let mut parts: Vec<Vec<&Case>> = Vec::new();
    for case in cases {
        match parts.iter_mut().find(|part| key(part[0]) == key(case)) {
            Some(part) => part.push(case),
            None => parts.push(vec![case]),
        }
    }
    parts
}

fn values(parameters: &[String], case: &Case) -> Vec<String> {
    parameters
        .iter()
        .map(|name| case.parameter(name).to_owned())
        .collect()
}

fn drawn(
    panel: &Panel,
    results: &Results,
    cases: &[&Case],
    names: &mut Vec<String>,
) -> Result<Option<lines::Panel>> {
    let words = words(panel, cases);
    let mut drawn = Vec::new();
    for of_line in by(&panel.lines, cases.iter().copied()) {
        for (metric, name) in &panel.y {
            let mut line = match panel.is_course {
                true => course(panel, metric, of_line[0]),
                false => line(panel, metric, &of_line, &words),
            };
            if line.points.is_empty() {
                continue;
            }
            let mut name_of: Vec<String> = values(&panel.lines, of_line[0]);
            name_of.extend((!name.is_empty()).then(|| name.clone()));
            let name = name_of.join(", ");
            line.name = names
                .iter()
                .position(|one| *one == name)
                .unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
            drawn.push(line);
        }
    }
    if drawn.is_empty() {
        return Ok(None);
    }
    Ok(Some(lines::Panel {
        title: fill(&panel.title, results, cases[0])?,
        x_title: panel.x_title.clone(),
        lines: drawn,
        marks: panel.marks.clone(),
        logarithmic: panel.logarithmic,
        words,
    }))
}

/// The values of the parameter along the horizontal axis, if they are not all numbers.
fn words(panel: &Panel, cases: &[&Case]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for case in cases {
        let word = case.parameter(&panel.x);
        if !word.is_empty() && words.iter().all(|one| one != word) {
            words.push(word.to_owned());
        }
    }
    match words.iter().all(|word| number(word).is_some()) {
        true => Vec::new(),
        false => words,
    }
}

/// Also with the `x` of multiples.
fn number(word: &str) -> Option<f64> {
    word.trim_end_matches('x').parse().ok()
}

fn line(panel: &Panel, metric: &str, cases: &[&Case], words: &[String]) -> lines::Line {
    let point = |case: &&Case| -> Option<(f64, Spread)> {
        let word = case.parameter(&panel.x);
        let x = match words.iter().position(|one| one == word) {
            Some(index) => index as f64,
            None => number(word).or_else(|| case.metrics.get(&panel.x).map(|x| x.median))?,
        };
        Some((x, *case.metrics.get(metric)?))
    };
    let mut points: Vec<(f64, Spread)> = cases.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let with_spread = points.iter().filter(|(_, y)| y.n > 1);
    lines::Line {
        points: points.iter().map(|(x, y)| (*x, y.median)).collect(),
        spread: with_spread
            .map(|(x, y)| (*x, y.range.0, y.range.1))
            .collect(),
        markers: true,
        ..lines::Line::default()
    }
}

fn course(panel: &Panel, name: &str, case: &Case) -> lines::Line {
    let course = |name: &str| case.series.get(name).cloned().unwrap_or_default();
    let xs = course(&panel.x);
    lines::Line {
        points: xs.into_iter().zip(course(name)).collect(),
        dots: panel.dots,
        ..lines::Line::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::parameters;

    fn case(policy: &str, rate: &str, value: f64) -> Case {
        Case {
            parameters: parameters([("policy", policy.into()), ("rate", rate.into())]),
            metrics: [("replies".to_owned(), Spread::one(value))].into(),
            ..Case::default()
        }
    }

    fn drawn(rates: [&str; 2]) -> lines::Picture {
        let [one, other] = rates;
        let results = Results {
            cases: vec![
                case("a", other, 4.0),
                case("b", one, 2.0),
                case("a", one, 1.0),
            ],
            ..Results::default()
        };
        let panel = Panel {
            x: "rate".into(),
            y: vec![("replies".into(), String::new())],
            lines: vec!["policy".into()],
            ..Panel::default()
        };
        let picture = Picture {
            panels: vec![panel],
            ..Picture::default()
        };
        drawing(&picture, &results).unwrap()
    }

    #[test]
    fn cases_become_lines_in_the_order_of_their_values() {
        let picture = drawn(["1x", "2x"]);
        assert_eq!(picture.names, ["a", "b"]);
        let lines = &picture.panels[0].lines;
        assert_eq!(lines[0].points, [(1.0, 1.0), (2.0, 4.0)]);
        assert_eq!(lines[1].points, [(1.0, 2.0)]);
    }

    #[test]
    fn values_that_are_no_numbers_are_words_along_the_axis() {
        let panel = &drawn(["1K", "10K"]).panels[0];
        assert_eq!(panel.words, ["10K", "1K"]);
        assert_eq!(panel.lines[0].points, [(0.0, 4.0), (1.0, 1.0)]);
    }
}
