//! Tables of classes.

use serde_json::Value;
use weir_api::Class;
use weir_core::quic::QUIC_VERDICTS;
use weir_core::verdict::{ADMITS, Kind, VERDICTS};

use crate::show::table::{Align, table};

/// Classes that the table of a listener shows: those with verdicts first, for a file may have thousands.
const SHOWN: usize = 40;
/// Prefixes of a class that a line shows.
const SHOWN_PREFIXES: usize = 4;
/// Digits of a rate that the controller has set: it is an estimate.
const DIGITS: i32 = 4;

/// All of them, with their settings.
pub fn class_list(classes: &[Class]) -> String {
    let with_settings = |class: &Class| {
        let mut row = row(class);
        row.push(settings(class));
        row
    };
    let rows: Vec<Vec<String>> = classes.iter().map(with_settings).collect();
    let mut head = head();
    head.push(("settings", Align::Left));
    table(&head, &rows)
}

/// Those of a listener, or the first of them. `left_out`: so many it has besides.
pub fn some_classes(classes: &[Class], left_out: usize) -> String {
    let mut order: Vec<&Class> = classes.iter().collect();
    if order.len() > SHOWN {
        order.sort_by_key(|class| (class.counters.is_empty(), class.priority));
    }
    let rows: Vec<Vec<String>> = order.iter().take(SHOWN).map(|c| row(c)).collect();
    let left_out = left_out + classes.len() - rows.len();
    let mut text = table(&head(), &rows);
    if left_out > 0 {
        text += &format!("and {left_out} more; `weir class list` has all\n");
    }
    text
}

fn head() -> Vec<(&'static str, Align)> {
    use Align::{Left, Right};
    vec![
        ("class", Left),
        ("priority", Right),
        ("rate", Right),
        ("burst", Right),
        ("controlled", Right),
        ("waiting", Right),
        ("admitted", Right),
        ("over rate", Right),
        ("over controlled", Right),
        ("refused", Right),
    ]
}

fn row(class: &Class) -> Vec<String> {
    let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| n.to_string());
    let tcp = VERDICTS.iter().map(|row| (row.name, row.kind));
    let quic = QUIC_VERDICTS.iter().map(|row| (row.name, row.kind));
    let refuses = tcp.chain(quic).filter(|(_, kind)| *kind == Kind::Refuse);
    let refuses: Vec<&str> = refuses.map(|(name, _)| name).collect();
    let refused = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let wanted = refuses.iter().filter(|name| wanted(name));
        wanted.filter_map(|name| class.counters.get(*name)).sum()
    };
    let over_rate = |name: &str| name.ends_with("_rate");
    let held = |name: &str| name.ends_with("_held");
    let count = |name: &str| class.counters.get(name).copied().unwrap_or(0);
    let quic = QUIC_VERDICTS.iter().filter(|row| row.kind == Kind::Pass);
    let admits = ADMITS.iter().map(|verdict| verdict.info().name);
    let admits = admits.chain(quic.map(|row| row.name));
    let admitted: u64 = admits.map(count).sum();
    vec![
        class.name.clone(),
        class.priority.to_string(),
        number(class.rate),
        class.burst.map_or("-".to_owned(), |n| n.to_string()),
        number(class.controlled_rate.map(rounded)),
        class.waiting.map_or("-".to_owned(), |n| n.to_string()),
        admitted.to_string(),
        refused(&over_rate).to_string(),
        refused(&held).to_string(),
        refused(&|name| !over_rate(name) && !held(name)).to_string(),
    ]
}

/// To [`DIGITS`] digits, and never to less than whole ones.
fn rounded(rate: f64) -> f64 {
    let before_point = rate.abs().max(0.1).log10().floor() as i32 + 1;
    let unit = 10_f64.powi((DIGITS - before_point).max(0));
    (rate * unit).round() / unit
}

/// `listener=web from=10.1.0.0/16 to_port=443`: what is set, as flags and the log have it.
fn settings(class: &Class) -> String {
    let shown = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::String(word) => word.clone(),
            Value::Number(number) => number.to_string(),
            Value::Array(prefixes) if !prefixes.is_empty() => list(prefixes),
            _ => return None,
        };
        // What a SYN over its rate gets says nothing where there is none.
        (key != "over_rate" || class.rate.is_some()).then(|| format!("{key}={value}"))
    };
    let all: Vec<String> = class.settings.iter().filter_map(shown).collect();
    all.join(" ")
}

fn list(prefixes: &[Value]) -> String {
    let names = prefixes.iter().filter_map(Value::as_str);
    let mut text = names.take(SHOWN_PREFIXES).collect::<Vec<_>>().join(",");
    if prefixes.len() > SHOWN_PREFIXES {
        text += &format!(",+{}", prefixes.len() - SHOWN_PREFIXES);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str) -> Class {
        Class {
            name: name.into(),
            priority: 1,
            ..Class::default()
        }
    }

    #[test]
    fn a_listener_s_table_counts_those_that_are_left_out_and_the_list_leaves_none() {
        let classes: Vec<Class> = (0..1001).map(|n| class(&format!("c{n}"))).collect();
        let some = some_classes(&classes, 9000);
        assert_eq!(some.lines().count(), 1 + SHOWN + 1);
        assert!(some.contains("and 9961 more; `weir class list`"), "{some}");
        let all = class_list(&classes);
        assert_eq!(all.lines().count(), 1 + classes.len());
    }

    #[test]
    fn the_list_has_the_rule_of_each_class() {
        let mut gold = class("gold");
        gold.rate = Some(300.0);
        let prefixes = [
            "10.1.0.0/16",
            "10.2.0.1",
            "10.3.0.1",
            "10.4.0.1",
            "10.5.0.1",
        ];
        for (key, value) in [
            ("listener", json!("web")),
            ("from", json!(prefixes)),
            ("to", json!([])),
            ("to_port", json!(443)),
            ("over_rate", json!("rst")),
            ("max_wait", json!(null)),
        ] {
            gold.settings.insert(key.into(), value);
        }
        let mut low = class("low");
        low.settings.insert("over_rate".into(), json!("drop"));
        let text = class_list(&[gold, low]);
        let rule =
            "from=10.1.0.0/16,10.2.0.1,10.3.0.1,10.4.0.1,+1 listener=web over_rate=rst to_port=443";
        assert!(text.contains(rule), "{text}");
        assert!(!text.contains("drop"), "low has no rate: {text}");
    }

    #[test]
    fn who_the_controller_holds_is_not_over_a_rate() {
        let mut low = class("low");
        for (name, count) in [
            ("syn_admitted", 5),
            ("syn_dropped_rate", 1),
            ("syn_reset_held", 7),
            ("syn_reset_full", 2),
        ] {
            low.counters.insert(name.into(), count);
        }
        assert_eq!(row(&low)[6..], ["5", "1", "7", "2"]);
    }

    #[test]
    fn a_controlled_rate_has_four_digits() {
        for (rate, expected) in [
            (167.284_123_6, "167.3"),
            (0.123_456, "0.1235"),
            (0.000_4, "0.0004"),
            (98_765.4, "98765"),
            (20.0, "20"),
        ] {
            let held = Class {
                controlled_rate: Some(rate),
                ..class("low")
            };
            assert_eq!(row(&held)[4], expected, "{rate}");
        }
    }
}
