//! Verdicts from numbers and limits.

use super::*;
use crate::papers::verdict::Range;
use crate::run::results::{Case, Results, parameters};

fn range(from: f64, to: f64) -> Range {
    Range {
        from: Some(from),
        to: Some(to),
    }
}

fn at_least(from: f64) -> Range {
    Range {
        from: Some(from),
        to: None,
    }
}

/// Holds from 1.2 on, weaker from 1 on.
fn figure() -> Figure {
    Figure {
        what: "gain".into(),
        paper: "1.25".into(),
        ours: "gain[way=new]|.2".into(),
        run: None,
        holds: at_least(1.2),
        weaker: Some(at_least(1.0)),
    }
}

fn paper(confidence: f64) -> Paper {
    Paper {
        key: "P".into(),
        title: String::new(),
        about: String::new(),
        confidence,
        confidence_from: String::new(),
    }
}

/// A round with this gain, flawed or not.
fn round(gain: f64, flaw: Option<&str>) -> Results {
    Results {
        cases: vec![Case {
            parameters: parameters([("way", "new".into())]),
            rounds: 1,
            flawed: flaw.iter().count(),
            flaw: flaw.map(str::to_owned),
            metrics: [("gain".to_owned(), Spread::one(gain))].into(),
            ..Case::default()
        }],
        ..Results::default()
    }
}

fn measured(rounds: Vec<Results>) -> Outcome {
    let results = rounds[0].clone();
    Outcome::Measured(Box::new(Measured { results, rounds }))
}

fn judged(gains: &[f64], confidence: f64) -> JudgedFigure {
    let rounds = gains.iter().map(|gain| round(*gain, None)).collect();
    judge_figure(&figure(), &paper(confidence), Some(&measured(rounds))).unwrap()
}

#[test]
fn limits_include_their_ends_and_an_open_end_has_none() {
    let limits = Limits {
        holds: range(0.9, 1.1),
        weaker: Some(Range {
            from: None,
            to: Some(1.5),
        }),
    };
    let verdicts = [0.9, 1.1, 1.11, 0.1, 1.5, 1.51].map(|value| limits.verdict(value));
    use Verdict::{DoesNotHold, Holds, HoldsWeaker};
    let expected = [
        Holds,
        Holds,
        HoldsWeaker,
        HoldsWeaker,
        HoldsWeaker,
        DoesNotHold,
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn a_part_holds_if_all_numbers_do_and_does_not_if_more_than_half_do_not() {
    use Verdict::{DoesNotHold, Holds, HoldsWeaker, NotJudged, NotMeasured};
    for (figures, part) in [
        (&[Holds, Holds, NotMeasured][..], Some(Holds)),
        (&[Holds, DoesNotHold][..], Some(HoldsWeaker)),
        (&[HoldsWeaker][..], Some(HoldsWeaker)),
        (&[Holds, DoesNotHold, DoesNotHold][..], Some(DoesNotHold)),
        (&[NotMeasured][..], None),
        (&[Holds, NotJudged][..], Some(Holds)),
        (&[Holds, NotJudged, NotJudged][..], None),
    ] {
        assert_eq!(Verdict::of_all(figures), part, "{figures:?}");
    }
}

#[test]
fn intervals_have_the_papers_confidence_and_need_rounds_enough() {
    let five = [1.21, 1.3, 1.25, 1.22, 1.4];
    let at_90 = judged(&five, 0.9);
    assert_eq!(
        (at_90.ours.as_str(), at_90.verdict),
        ("1.25", Verdict::Holds)
    );
    assert_eq!(
        at_90.certainty_in_words,
        "1.21 to 1.40: 90 % interval of 5 rounds"
    );
    let at_95 = judged(&five, 0.95);
    let words = "1.21 to 1.40 in 5 rounds, too few for an interval";
    assert_eq!(at_95.certainty_in_words, words);
    assert_eq!(
        judged(&[1.25], 0.9).certainty_in_words,
        "no interval: one round"
    );
}

#[test]
fn what_the_spread_also_allows_is_said() {
    let wide = judged(&[0.9, 1.3, 1.1], 0.95);
    assert_eq!(wide.verdict, Verdict::HoldsWeaker);
    assert_eq!(wide.also_possible, [Verdict::Holds, Verdict::DoesNotHold]);
    assert_eq!(judged(&[1.2, 1.3], 0.95).also_possible, []);
}

#[test]
fn rounds_that_do_not_count_decide_nothing() {
    let rounds = vec![round(0.5, Some("the machine was busy")), round(1.3, None)];
    let figure = figure();
    let one_counts = judge_figure(&figure, &paper(0.95), Some(&measured(rounds))).unwrap();
    assert_eq!(
        (one_counts.value, one_counts.verdict),
        (Some(1.3), Verdict::Holds)
    );
    let rounds = vec![round(0.5, Some("the machine was busy"))];
    let none_counts = judge_figure(&figure, &paper(0.95), Some(&measured(rounds))).unwrap();
    assert_eq!(none_counts.verdict, Verdict::NotJudged);
    assert!(
        none_counts
            .because
            .unwrap()
            .contains("the machine was busy")
    );
}

#[test]
fn a_quotient_of_a_summary_has_no_interval() {
    let quotient = Figure {
        ours: "gain[way=new]/gain[way=new]|.2".into(),
        ..figure()
    };
    let mut results = round(3.0, None);
    let two = Spread::of([2.0, 4.0]).unwrap();
    results.cases[0].metrics.insert("gain".into(), two);
    let summary = Outcome::Measured(Box::new(Measured {
        results,
        rounds: Vec::new(),
    }));
    let judged = judge_figure(&quotient, &paper(0.95), Some(&summary)).unwrap();
    assert_eq!(judged.certainty, Some(Certainty::RoundsNotKept));
    assert_eq!(judged.verdict, Verdict::HoldsWeaker);
}

#[test]
fn without_results_a_number_says_why() {
    for (outcome, verdict) in [
        (Outcome::Failed("no".into()), Verdict::Failed),
        (Outcome::NotPossible("no".into()), Verdict::NotPossible),
        (Outcome::NotMeasured("no".into()), Verdict::NotMeasured),
    ] {
        let judged = judge_figure(&figure(), &paper(0.95), Some(&outcome)).unwrap();
        assert_eq!(
            (judged.verdict, judged.because.as_deref()),
            (verdict, Some("no"))
        );
    }
}
