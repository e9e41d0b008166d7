//! Suggested settings in the operator's own config file: what is suggested changes, all else stays as it was written.

use std::fmt;

use toml_edit::{Decor, DocumentMut, Item, Table, Value};
use weir_api::{Suggestion, Suggestions};
use weir_config::{Config, Table as _};
use weir_core::listener::Listener;

/// Begins the lines that weir writes, so that the next run finds them and replaces them.
pub const MARK: &str = "#>";

/// A config file with what is suggested in it.
#[derive(Debug, PartialEq)]
pub struct Changed {
    /// The file.
    pub text: String,
    /// A sentence for each listener: what has changed, or why nothing has.
    pub said: Vec<String>,
}

/// Why a file cannot be changed so.
#[derive(Debug, PartialEq)]
pub enum Unfit {
    /// Its listeners are not tables of their own.
    Inline,
    /// It, or a suggestion, is no TOML.
    Broken(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Inline => {
                f.write_str("its listeners stand in one value, which has no place for reasons")
            }
            Unfit::Broken(why) => f.write_str(why),
        }
    }
}

impl From<toml_edit::TomlError> for Unfit {
    fn from(error: toml_edit::TomlError) -> Unfit {
        Unfit::Broken(error.message().trim().replace('\n', "; "))
    }
}

/// Puts the suggestions into a file, `source`, which is `config`. Listeners are found by name, else by address; those
/// that the file does not have come at its end.
///
/// # Errors
/// Why the file cannot be changed so.
pub fn changed(source: &str, config: &Config, suggestions: &Suggestions) -> Result<Changed, Unfit> {
    let mut file: DocumentMut = source.parse()?;
    let mut said = Vec::new();
    let mut added = String::new();
    for one in &suggestions.listeners {
        let name = &one.listener;
        if let Some(missing) = &one.missing {
            said.push(format!("{name}: nothing is changed: {missing}"));
            continue;
        }
        let Some(index) = place(&config.listeners, one) else {
            said.push(format!(
                "{name}: added at the end: the file has no such listener"
            ));
            added += &format!("\n{}", one.toml);
            continue;
        };
        let tables = file
            .get_mut(Listener::NAME)
            .and_then(Item::as_array_of_tables_mut);
        let table = tables
            .and_then(|tables| tables.get_mut(index))
            .ok_or(Unfit::Inline)?;
        let changes = change(table, &config.listeners[index], one)?;
        said.push(match changes.is_empty() {
            true => format!("{name}: every setting is as suggested"),
            false => format!("{name}: {}", changes.join(", ")),
        });
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let is_its = |one: &Suggestion| place(&config.listeners, one) == Some(index);
        if !suggestions.listeners.iter().any(is_its) {
            let name = &listener.name;
            said.push(format!(
                "{name}: nothing is changed: weir does not guard it now"
            ));
        }
    }
    let mut text = file.to_string();
    if !added.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text += &added;
    Ok(Changed { text, said })
}

/// The listener of the file that a suggestion is about.
fn place(listeners: &[Listener], one: &Suggestion) -> Option<usize> {
    let named = |listener: &Listener| listener.name == one.listener;
    let meant = |listener: &Listener| listener.address.to_string() == one.address;
    let by = |is: &dyn Fn(&Listener) -> bool| listeners.iter().position(is);
    by(&named).or_else(|| by(&meant))
}

/// Changes one table, and says what.
fn change(table: &mut Table, listener: &Listener, one: &Suggestion) -> Result<Vec<String>, Unfit> {
    let suggested: DocumentMut = one.toml.parse()?;
    let tables = suggested
        .get(Listener::NAME)
        .and_then(Item::as_array_of_tables);
    let source = tables.and_then(|tables| tables.get(0));
    let source = source.ok_or_else(|| Unfit::Broken("no listener is suggested".to_owned()))?;
    let mut changes = Vec::new();
    for key in &one.keys {
        let mut keys = Listener::keys().iter();
        let Some(own) = keys.find(|own| own.name == key.key) else {
            // Of a newer weir.
            continue;
        };
        let now = own.show(listener).to_string();
        let (Some((written, _)), Some(value)) = (
            source.get_key_value(&key.key),
            source.get(&key.key).and_then(Item::as_value),
        ) else {
            continue;
        };
        if now == key.value {
            continue;
        }
        set(table, &key.key, value.clone());
        let reason = lines(prefix(written.leaf_decor()));
        if let Some(mut key) = table.key_mut(&key.key) {
            say(key.leaf_decor_mut(), &reason);
        }
        changes.push(format!("{} {now} becomes {}", key.key, key.value));
    }
    let mut notes = lines(prefix(source.decor()));
    let more = lines(suggested.trailing().as_str().unwrap_or_default());
    if !more.is_empty() {
        notes.push(MARK.to_owned());
        notes.extend(more);
    }
    // Before the first of the listeners the document's own comment comes.
    say(table.decor_mut(), &notes);
    Ok(changes)
}

/// Sets a key, whose value keeps the comment behind it.
fn set(table: &mut Table, key: &str, mut value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(there) => {
            *value.decor_mut() = there.decor().clone();
            *there = value;
        }
        None => {
            *value.decor_mut() = Decor::new(" ", "");
            table.insert(key, Item::Value(value));
        }
    }
}

fn prefix(decor: &Decor) -> &str {
    decor
        .prefix()
        .and_then(|raw| raw.as_str())
        .unwrap_or_default()
}

/// Comments as lines with the mark; blank lines between paragraphs stay such.
fn lines(comments: &str) -> Vec<String> {
    let marked = |line: &str| match line.strip_prefix('#') {
        Some(text) => format!("{MARK}{text}"),
        None => MARK.to_owned(),
    };
    let comments = comments.trim_matches(['\n', ' ']);
    let all = comments.lines().map(|line| marked(line.trim()));
    all.filter(|_| !comments.is_empty()).collect()
}

/// Puts lines right before what this belongs to, in place of those of an earlier run.
fn say(decor: &mut Decor, said: &[String]) {
    let before = prefix(decor).to_owned();
    let (above, indent) = match before.rfind('\n') {
        Some(end) => before.split_at(end + 1),
        None => ("", before.as_str()),
    };
    let own = above
        .split_inclusive('\n')
        .filter(|line| !line.trim_start().starts_with(MARK));
    let mut text: String = own.collect();
    for line in said {
        text += &format!("{indent}{line}\n");
    }
    text += indent;
    decor.set_prefix(text);
}

#[cfg(test)]
mod tests {
    use weir_api::SuggestedKey;
    use weir_config::parse;

    use super::*;

    fn suggestion(target: &str, mode: &str) -> Suggestion {
        let key = |key: &str, now: &str, value: &str| SuggestedKey {
            key: key.to_owned(),
            now: format!("{now:?}"),
            value: format!("{value:?}"),
            reason: String::new(),
        };
        Suggestion {
            listener: "web".to_owned(),
            address: "*:80".to_owned(),
            keys: vec![
                key("target_wait", "20ms", target),
                key("mode", "observe", mode),
            ],
            toml: format!(
                "# web: in 2 h 9 connections came.\n[[listener]]\nname = \"web\"\naddress = \"*:80\"\n\n\
                 # Why {target}.\ntarget_wait = \"{target}\"\n\n# Why {mode}.\nmode = \"{mode}\"\n\n\
                 # The backlog is enough.\n"
            ),
            ..Suggestion::default()
        }
    }

    fn suggestions(target: &str, mode: &str) -> Suggestions {
        Suggestions {
            listeners: vec![suggestion(target, mode)],
        }
    }

    fn change_file(source: &str, suggestions: &Suggestions) -> Changed {
        let changed = changed(source, &parse("f", source).unwrap(), suggestions).unwrap();
        parse("f", &changed.text).unwrap();
        changed
    }

    const FILE: &str = r#"# The front.
# Ask Ann before you change it.

[metrics]
listen = "127.0.0.1:9465"   # for Prometheus

# One server.
[[listener]]
  address = "*:80"
  # The shop's promise.
  target_wait = '20ms' # see page 4
  reason = true

[[class]]
name = "partners"
from = [ "10.0.0.0/8",
         "10.1.0.0/16" ]   # and the old office
"#;

    #[test]
    fn what_is_suggested_changes_with_its_reason_and_all_else_stays_as_it_was() {
        let changed = change_file(FILE, &suggestions("50ms", "enforce"));
        let expected = FILE
            .replace(
                "# One server.\n",
                "# One server.\n#> web: in 2 h 9 connections came.\n#>\n#> The backlog is enough.\n",
            )
            .replace("'20ms'", "\"50ms\"")
            .replace(
                "  target_wait",
                "  #> Why 50ms.\n  target_wait",
            );
        assert_eq!(changed.text, expected);
        assert_eq!(changed.said, ["web: target_wait \"20ms\" becomes \"50ms\""]);
    }

    #[test]
    fn a_later_run_replaces_what_an_earlier_one_has_said() {
        let first = change_file(FILE, &suggestions("50ms", "enforce"));
        let again = change_file(&first.text, &suggestions("50ms", "enforce"));
        // The reason stays beside the value that it is for.
        assert_eq!(again.text, first.text);
        assert_eq!(again.said, ["web: every setting is as suggested"]);
        let other = change_file(&first.text, &suggestions("100ms", "enforce"));
        assert_eq!(other.text, first.text.replace("50ms", "100ms"));
    }

    #[test]
    fn a_listener_that_the_file_lacks_is_added_and_one_without_figures_stays() {
        let file = "[[listener]]\nname = \"db\"\naddress = \"*:5432\"";
        let changed = change_file(file, &suggestions("50ms", "enforce"));
        assert_eq!(
            changed.text,
            format!("{file}\n\n{}", suggestion("50ms", "enforce").toml)
        );
        assert_eq!(
            changed.said,
            [
                "web: added at the end: the file has no such listener",
                "db: nothing is changed: weir does not guard it now",
            ]
        );
        let mut missing = suggestions("50ms", "enforce");
        missing.listeners[0].missing = Some("no connection came".to_owned());
        let unchanged = change_file(FILE, &missing);
        assert_eq!(unchanged.text, FILE);
        assert_eq!(
            unchanged.said,
            ["web: nothing is changed: no connection came"]
        );
    }

    #[test]
    fn listeners_in_one_value_have_no_place_for_reasons() {
        let source = "listener = [{ name = \"web\", address = \"*:80\" }]\n";
        let config = parse("f", source).unwrap();
        let refused = changed(source, &config, &suggestions("50ms", "enforce"));
        assert_eq!(refused, Err(Unfit::Inline));
    }
}
