//! The report as one page: no scripts, nothing that is fetched, light or dark as the reader's system is.

use std::collections::BTreeMap;

use super::html::{Html, element, of_text, prose, text};
use super::judge::{JudgedFigure, JudgedPart};
use super::list::{Paper, Part};
use super::measured::{Measured, Outcome};
use super::report::Report;
use super::verdict::Verdict;
use crate::error::Result;
use crate::plot::picture;
use crate::run::results::{Case, Results};
use crate::run::scheduler::label;
use crate::show::template::fill;

const STYLE: &str = include_str!("page.css");
const TITLE: &str = "Do the papers' results hold on this kernel?";
/// Rows of a table that is shown at once.
const SHORT_TABLE: usize = 12;

/// The page.
pub fn of(report: &Report) -> Result<String> {
    let head = element("meta", &[("charset", "utf-8")], Html::default())
        .then(element(
            "meta",
            &[
                ("name", "viewport"),
                ("content", "width=device-width, initial-scale=1"),
            ],
            Html::default(),
        ))
        .then(of_text("title", TITLE))
        .then(of_text("style", STYLE));
    let mut main = summary(report);
    let mut shown = Shown::default();
    for paper in &report.list.papers {
        main = main.then(of_paper(report, paper, &mut shown)?);
    }
    main = main.then(runs(report));
    let body = element("header", &[], header(report)).then(element("main", &[], main));
    let page = element("head", &[], head).then(element("body", &[], body));
    let page = element("html", &[("lang", "en")], page);
    Ok(format!("<!DOCTYPE html>\n{}\n", page.into_string()))
}

/// The name of a verdict's class.
fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "verdict holds",
        Verdict::HoldsWeaker => "verdict holds-weaker",
        Verdict::DoesNotHold => "verdict does-not-hold",
        Verdict::Failed => "verdict failed",
        _ => "verdict faint",
    }
}

fn verdict(verdict: Verdict) -> Html {
    element("span", &[("class", class(verdict))], text(verdict.words()))
}

/// The verdict of a part, and behind the gap by how many of its numbers, if not by all.
fn verdict_of(part: &JudgedPart, gap: Html) -> Html {
    let by = part.judged_by();
    let by = by.map_or(Html::default(), |by| gap.then(faint(&by)));
    verdict(part.verdict).then(by)
}

fn link(anchor: &str, words: &str) -> Html {
    element("a", &[("href", &format!("#{anchor}"))], text(words))
}

fn faint(words: &str) -> Html {
    element("small", &[], text(words))
}

/// A table that scrolls within itself.
fn table(class: &str, caption: &str, heads: &[&str], rows: Vec<Vec<Html>>) -> Html {
    let head = |head: &&str| element("th", &[("scope", "col")], text(head));
    let heads = element("tr", &[], heads.iter().map(head).collect());
    let row = |cells: Vec<Html>| {
        let cells = cells.into_iter().enumerate();
        let cells = cells.map(|(column, cell)| match column {
            0 => element("th", &[("scope", "row")], cell),
            _ => element("td", &[], cell),
        });
        element("tr", &[], cells.collect()).then(text("\n"))
    };
    let rows = rows.into_iter().map(row).collect();
    let content = of_text("caption", caption)
        .then(element("thead", &[], heads))
        .then(element("tbody", &[], rows));
    // The focus lets the keyboard scroll it.
    let scroll = [
        ("class", "scroll"),
        ("tabindex", "0"),
        ("role", "region"),
        ("aria-label", caption),
    ];
    element(
        "div",
        &scroll,
        element("table", &[("class", class)], content),
    )
    .then(text("\n"))
}

fn header(report: &Report) -> Html {
    let made = match report.kind {
        "stored" => {
            "The results that are stored with weir's sources, measured at different times: each part says when and where. \
             Single rounds are not stored, so quotients have no intervals."
        }
        "full" => "The full run, at the papers' points where experiments have them.",
        _ => {
            "The quick run: few rounds of short windows. It shows directions; numbers for a paper need --full."
        }
    };
    let counts = report.counts().into_iter().map(|(of, count)| {
        let content = verdict(of).then(text(&format!(": {count}")));
        element("li", &[("title", of.meaning())], content)
    });
    of_text("h1", TITLE)
        .then(of_text(
            "p",
            "Every table and figure of five papers on servers under load: what the paper reports, what this machine gave with \
             weir, and whether it holds. Code decides, by the limits that stand beside each number.",
        ))
        .then(of_text("p", made))
        .then(place(report))
        .then(element("ul", &[("class", "counts")], counts.collect()))
        .then(element("details", &[], of_text("summary", "What the verdicts mean").then(meanings())))
}

/// Where and with what it was measured; stored results are of several machines.
fn place(report: &Report) -> Html {
    let mut outcomes = report.outcomes.values();
    let results = outcomes.find_map(|outcome| match outcome {
        Outcome::Measured(measured) => Some(&measured.results),
        _ => None,
    });
    let Some(results) = results.filter(|_| report.kind != "stored") else {
        return Html::default();
    };
    let commit = results.commit.as_deref().unwrap_or("unknown");
    let version = env!("CARGO_PKG_VERSION");
    let began = results.started.as_deref().unwrap_or("at an unknown time");
    let words = format!(
        "{}; weir {version}, commit {commit}; one of the runs began {began}.",
        results.machine
    );
    element("p", &[("class", "faint")], text(&words))
}

fn meanings() -> Html {
    let meaning = |of: Verdict| element("dt", &[], verdict(of)).then(of_text("dd", of.meaning()));
    element("dl", &[], Verdict::ALL.into_iter().map(meaning).collect())
}

fn summary(report: &Report) -> Html {
    let row = |part: &JudgedPart| {
        let first = part.telling().or(part.figures.first());
        let numbers = |of: &dyn Fn(&JudgedFigure) -> Html| first.map_or(Html::default(), of);
        let more = match part.figures.len() {
            0 | 1 => Html::default(),
            count => faint(&format!(" and {} more", count - 1)),
        };
        vec![
            link(&part.key, &format!("{} {}", part.paper, part.part)),
            verdict_of(part, element("br", &[], Html::default())),
            match first {
                Some(figure) => prose(&figure.what).then(more),
                None => element("small", &[], prose(part.why.as_deref().unwrap_or_default())),
            },
            numbers(&|figure| text(&figure.paper)),
            numbers(&ours),
        ]
    };
    let rows = report.parts.iter().map(row).collect();
    let heads = ["Part", "Verdict", "What", "The paper", "Here"];
    let caption = "Each part with one of its numbers";
    let content = of_text("h2", "Summary").then(table("numbers parts", caption, &heads, rows));
    element("section", &[("id", "summary")], content)
}

fn ours(figure: &JudgedFigure) -> Html {
    let certainty = match figure.certainty_in_words.as_str() {
        "" => Html::default(),
        words => element("br", &[], Html::default()).then(faint(words)),
    };
    text(&figure.ours).then(certainty)
}

/// Pictures that the page has already: where, by run and place among the run's pictures.
#[derive(Default)]
struct Shown(BTreeMap<String, String>);

fn of_paper(report: &Report, paper: &Paper, shown: &mut Shown) -> Result<Html> {
    let confidence = format!(
        "Intervals have {:.0} %: {}.",
        paper.confidence * 100.0,
        paper.confidence_from
    );
    let mut content = of_text("h2", &format!("{}: {}", paper.key, paper.title))
        .then(of_text("p", &paper.about))
        .then(element("p", &[("class", "faint")], text(&confidence)));
    let parts = report.list.parts.iter().zip(&report.parts);
    for (part, judged) in parts.filter(|(part, _)| part.paper == paper.key) {
        content = content.then(of_part(report, part, judged, shown)?);
    }
    Ok(element("section", &[("id", &paper.key)], content))
}

fn of_part(report: &Report, part: &Part, judged: &JudgedPart, shown: &mut Shown) -> Result<Html> {
    let heading = text(&format!("{} {}: ", part.paper, part.part));
    let heading = heading.then(verdict_of(judged, text(" ")));
    let mut content = element("h3", &[], heading).then(element(
        "p",
        &[],
        of_text("strong", "The paper: ").then(prose(&part.says)),
    ));
    if let Some(why) = &judged.why {
        let lead = match judged.figures.iter().any(|figure| figure.value.is_some()) {
            true => "What is known of differences: ",
            false => "Why: ",
        };
        content = content.then(element("p", &[], of_text("strong", lead).then(prose(why))));
    }
    if let Some(see) = &part.see {
        let words = text("More: ").then(of_text("code", see));
        content = content.then(element("p", &[("class", "faint")], words));
    }
    if !judged.figures.is_empty() {
        content = content.then(numbers(judged));
    }
    for (index, name) in part.runs.iter().enumerate() {
        if let Some(Outcome::Measured(measured)) = report.outcomes.get(name) {
            let one = Block {
                part,
                name,
                measured,
                is_first: index == 0,
            };
            content = content.then(one.html(shown)?);
        }
    }
    Ok(element("section", &[("id", &part.key)], content))
}

/// The numbers of a part beside the paper's.
fn numbers(judged: &JudgedPart) -> Html {
    let row = |figure: &JudgedFigure| {
        let because = figure.because.iter().map(|because| because.as_str());
        let others = figure.also_possible.iter();
        let others: Vec<&str> = others.map(|verdict| verdict.words()).collect();
        let others = match others.is_empty() {
            true => None,
            false => Some(format!("within the spread also: {}", others.join(", "))),
        };
        let notes = because.chain(others.as_deref());
        let notes = notes.map(|note| element("br", &[], Html::default()).then(faint(note)));
        vec![
            prose(&figure.what),
            text(&figure.paper),
            ours(figure),
            verdict(figure.verdict).then(notes.collect()),
            faint(&figure.limits),
        ]
    };
    let heads = ["What", "The paper", "Here", "Verdict", "Limits"];
    let caption = format!("{} {}: the numbers", judged.paper, judged.part);
    table(
        "numbers",
        &caption,
        &heads,
        judged.figures.iter().map(row).collect(),
    )
}

/// What a run gave for a part.
struct Block<'a> {
    part: &'a Part,
    name: &'a str,
    measured: &'a Measured,
    is_first: bool,
}

impl Block<'_> {
    fn html(&self, shown: &mut Shown) -> Result<Html> {
        let results = &self.measured.results;
        let made = of_text("code", &results.command)
            .then(text(&format!(", {}. ", results.machine)))
            .then(link(&format!("run-{}", self.name), "More of this run"));
        let made = element("p", &[], of_text("strong", "Measured: ").then(made));
        Ok(made.then(self.cases()?).then(self.pictures(shown)?))
    }

    /// Cases that belong to the part.
    fn is_in(&self, case: &Case) -> bool {
        let mut only = self.part.only.iter();
        only.all(|(name, values)| {
            let has = case.parameters.contains_key(name);
            !has || values.split('|').any(|value| case.parameter(name) == value)
        })
    }

    fn cases(&self) -> Result<Html> {
        let results = &self.measured.results;
        let columns = match (self.is_first, self.part.columns.is_empty()) {
            (true, false) => &self.part.columns,
            _ => &results.show.columns,
        };
        let cases: Vec<&Case> = results
            .cases
            .iter()
            .filter(|case| self.is_in(case))
            .collect();
        let mut cells: Vec<Vec<String>> = Vec::new();
        for case in &cases {
            let row = columns
                .iter()
                .map(|(_, template)| fill(template, results, case));
            cells.push(row.collect::<Result<_>>()?);
        }
        let used = |column: &usize| cells.iter().any(|row| row[*column] != "-");
        let used: Vec<usize> = (0..columns.len()).filter(used).collect();
        if cases.is_empty() || used.is_empty() {
            return Ok(Html::default());
        }
        let heads: Vec<&str> = used
            .iter()
            .map(|&column| columns[column].0.as_str())
            .collect();
        let row = |row: &Vec<String>| used.iter().map(|&column| text(&row[column])).collect();
        let rows: Vec<Vec<Html>> = cells.iter().map(row).collect();
        let count = rows.len();
        let caption = format!("{} {}, run {}", self.part.paper, self.part.part, self.name);
        let table = table("cases", &caption, &heads, rows).then(flaws(&cases));
        let summary = of_text("summary", &format!("What was measured: {count} cases"));
        let open: &[(&str, &str)] = match count <= SHORT_TABLE {
            true => &[("open", "open")],
            false => &[],
        };
        Ok(element("details", open, summary.then(table)))
    }

    fn pictures(&self, shown: &mut Shown) -> Result<Html> {
        let (results, part) = (&self.measured.results, self.part);
        let (pictures, of) = match (self.is_first, part.pictures.is_empty()) {
            (true, false) => (&part.pictures, part.key.clone()),
            _ => (&results.show.pictures, self.name.to_owned()),
        };
        if let Some(place) = shown.0.get(&of) {
            let words = text("The picture of this run is at ")
                .then(link(place, place))
                .then(text("."));
            return Ok(element("p", &[], words));
        }
        let drawn = picture::svgs(results, pictures)?;
        if !drawn.is_empty() {
            shown.0.insert(of, part.key.clone());
        }
        let figure = |(title, svg): &(String, String)| {
            let scroll = [
                ("class", "scroll"),
                ("tabindex", "0"),
                ("role", "region"),
                ("aria-label", title.as_str()),
            ];
            let inside = element("div", &scroll, Html::picture(svg, title));
            element("figure", &[], inside)
        };
        Ok(drawn.iter().map(figure).collect())
    }
}

/// Rounds that do not count.
fn flaws(cases: &[&Case]) -> Html {
    let flawed = cases
        .iter()
        .filter_map(|case| Some((case, case.flaw.as_ref()?)));
    let items: Vec<Html> = flawed
        .map(|(case, flaw)| {
            let (flawed, rounds) = (case.flawed, case.rounds);
            let of = label(&case.parameters);
            of_text(
                "li",
                &format!("{flawed} of {rounds} rounds of {of} do not count: {flaw}"),
            )
        })
        .collect();
    match items.is_empty() {
        true => Html::default(),
        false => element("ul", &[("class", "faint")], items.into_iter().collect()),
    }
}

/// How each run was made.
fn runs(report: &Report) -> Html {
    let mut content = of_text("h2", "Runs");
    for (name, outcome) in &report.outcomes {
        let inside = match outcome {
            Outcome::Measured(measured) => facts(&measured.results),
            Outcome::Failed(why) => of_text("p", &format!("Failed: {why}")),
            Outcome::NotPossible(why) => of_text("p", &format!("Not possible here: {why}")),
            Outcome::NotMeasured(why) => of_text("p", &format!("Not measured: {why}")),
        };
        let run = of_text("h3", name).then(inside);
        content = content.then(element("section", &[("id", &format!("run-{name}"))], run));
    }
    element("section", &[("id", "runs")], content)
}

fn facts(results: &Results) -> Html {
    let rounds = results.cases.iter().map(|case| case.rounds).max();
    let mut pairs: Vec<(String, String)> = vec![
        ("Question".into(), results.question.clone()),
        ("Command".into(), results.command.clone()),
        ("Machine".into(), results.machine.to_string()),
        (
            "Cases, rounds".into(),
            format!("{}, {}", results.cases.len(), rounds.unwrap_or(0)),
        ),
    ];
    let known = [
        ("Seed", results.seed.map(|seed| seed.to_string())),
        ("Commit of the program", results.commit.clone()),
        ("Began", results.started.clone()),
        ("Note", results.note.clone()),
    ];
    let known = known.into_iter();
    pairs.extend(known.filter_map(|(name, value)| Some((name.to_owned(), value?))));
    pairs.extend(results.facts.iter().map(|(name, fact)| {
        let words = fact
            .as_str()
            .map_or_else(|| fact.to_string(), str::to_owned);
        (name.replace('_', " "), words)
    }));
    let pair = |(name, value): &(String, String)| of_text("dt", name).then(of_text("dd", value));
    element("dl", &[], pairs.iter().map(pair).collect())
}
