//! Suggested settings in the operator's own config file: what is suggested changes, all else stays as it was written.

use std::fmt;

use toml_edit::{Decor, DocumentMut, Item, Table as Toml, Value};
use weir_api::{QuicSuggestion, SuggestedKey, Suggestion, Suggestions};
use weir_config::{Config, Table};
use weir_core::listener::Listener;
use weir_core::quic::QuicListener;
use weir_core::workload::Where;

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

/// What is suggested for one table.
struct Part<'a> {
    name: &'a str,
    address: &'a str,
    missing: Option<&'a str>,
    keys: &'a [SuggestedKey],
    toml: &'a str,
}

impl<'a> From<&'a Suggestion> for Part<'a> {
    fn from(one: &'a Suggestion) -> Part<'a> {
        Part {
            name: &one.listener,
            address: &one.address,
            missing: one.missing.as_deref(),
            keys: &one.keys,
            toml: &one.toml,
        }
    }
}

impl<'a> From<&'a QuicSuggestion> for Part<'a> {
    fn from(one: &'a QuicSuggestion) -> Part<'a> {
        Part {
            name: &one.listener,
            address: &one.address,
            missing: one.missing.as_deref(),
            keys: &one.keys,
            toml: &one.toml,
        }
    }
}

/// A file while it is changed.
struct Change {
    file: DocumentMut,
    said: Vec<String>,
    /// What comes at its end.
    added: String,
}

/// Puts the suggestions into a file, `source`, which is `config`. Listeners are found by name, else by address; those
/// that the file does not have come at its end.
///
/// # Errors
/// Why the file cannot be changed so.
pub fn changed(source: &str, config: &Config, suggestions: &Suggestions) -> Result<Changed, Unfit> {
    let mut change = Change {
        file: source.parse()?,
        said: Vec::new(),
        added: String::new(),
    };
    let listeners: Vec<Part<'_>> = suggestions.listeners.iter().map(Part::from).collect();
    let quic: Vec<Part<'_>> = suggestions.quic.iter().map(Part::from).collect();
    change.tables::<Listener>(&config.listeners, &listeners, "listener")?;
    change.tables::<QuicListener>(&config.quic, &quic, "QUIC listener")?;
    for one in suggestions
        .quic
        .iter()
        .filter(|one| !one.tcp_toml.is_empty())
    {
        change.tcp_beside(config, one);
    }
    let Change { file, said, added } = change;
    let mut text = file.to_string();
    if !added.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text += &added;
    Ok(Changed { text, said })
}

impl Change {
    /// Changes the tables of one kind. `noun`: what such a table describes.
    fn tables<T: Table>(
        &mut self,
        tables: &[T],
        parts: &[Part<'_>],
        noun: &str,
    ) -> Result<(), Unfit> {
        for one in parts {
            let name = one.name;
            if let Some(missing) = one.missing {
                self.said
                    .push(format!("{name}: nothing is changed: {missing}"));
                continue;
            }
            let Some(index) = place(tables, one) else {
                self.said.push(format!(
                    "{name}: added at the end: the file has no such {noun}"
                ));
                self.added += &format!("\n{}", one.toml);
                continue;
            };
            let all = self
                .file
                .get_mut(T::NAME)
                .and_then(Item::as_array_of_tables_mut);
            let table = all
                .and_then(|all| all.get_mut(index))
                .ok_or(Unfit::Inline)?;
            let changes = change(table, &tables[index], one)?;
            self.said.push(match changes.is_empty() {
                true => format!("{name}: every setting is as suggested"),
                false => format!("{name}: {}", changes.join(", ")),
            });
        }
        for (index, table) in tables.iter().enumerate() {
            if !parts.iter().any(|one| place(tables, one) == Some(index)) {
                let name = table.name();
                self.said.push(format!(
                    "{name}: nothing is changed: weir does not guard it now"
                ));
            }
        }
        Ok(())
    }

    /// A listener for the TCP port of a QUIC listener, unless the file has one.
    fn tcp_beside(&mut self, config: &Config, one: &QuicSuggestion) {
        let port = one.address.rsplit(':').next().unwrap_or_default();
        let is_it = |listener: &Listener| {
            listener.location == Where::Here && listener.address.port.to_string() == port
        };
        if config.listeners.iter().any(is_it) {
            return;
        }
        self.said.push(format!(
            "{}: a [[listener]] for TCP port {port} is added at the end: nothing guards it",
            one.listener
        ));
        self.added += &format!("\n{}", one.tcp_toml);
    }
}

/// The table of the file that a suggestion is about.
fn place<T: Table>(tables: &[T], one: &Part<'_>) -> Option<usize> {
    let named = |table: &T| table.name() == one.name;
    let meant = |table: &T| table.address() == one.address;
    let by = |is: &dyn Fn(&T) -> bool| tables.iter().position(is);
    by(&named).or_else(|| by(&meant))
}

/// Changes one table, and says what.
fn change<T: Table>(table: &mut Toml, now: &T, one: &Part<'_>) -> Result<Vec<String>, Unfit> {
    let suggested: DocumentMut = one.toml.parse()?;
    let tables = suggested.get(T::NAME).and_then(Item::as_array_of_tables);
    let source = tables.and_then(|tables| tables.get(0));
    let source = source.ok_or_else(|| Unfit::Broken("no listener is suggested".to_owned()))?;
    let mut changes = Vec::new();
    for key in one.keys {
        let mut keys = T::keys().iter();
        let Some(own) = keys.find(|own| own.name == key.key) else {
            // Of a newer weir.
            continue;
        };
        let now = own.show(now).to_string();
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
fn set(table: &mut Toml, key: &str, mut value: Value) {
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
            quic: Vec::new(),
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
    fn a_quic_listener_changes_as_a_listener_does_and_its_tcp_port_is_guarded_at_the_end() {
        let key = |key: &str, now: &str, value: &str| SuggestedKey {
            key: key.to_owned(),
            now: now.to_owned(),
            value: value.to_owned(),
            reason: String::new(),
        };
        let h3 = QuicSuggestion {
            listener: "quic-443".to_owned(),
            address: "*:443".to_owned(),
            keys: vec![
                key("room", "0.5", "0.75"),
                key("mode", "\"observe\"", "\"enforce\""),
            ],
            toml: "# quic-443: seen.\n[[quic]]\nname = \"quic-443\"\naddress = \"*:443\"\n\n# Why more.\nroom = 0.75\n\n\
                   # Why.\nmode = \"enforce\"\n\n# The buffer is enough.\n"
                .to_owned(),
            tcp_toml: "# Nothing guards it.\n[[listener]]\naddress = \"*:443\"\n".to_owned(),
            ..QuicSuggestion::default()
        };
        let suggestions = Suggestions {
            listeners: Vec::new(),
            quic: vec![h3],
        };
        let file = "[[quic]]\naddress = \"*:443\" # HTTP/3\nmode = \"observe\" # for now\n";
        let first = change_file(file, &suggestions);
        assert_eq!(
            first.text,
            "#> quic-443: seen.\n#>\n#> The buffer is enough.\n[[quic]]\naddress = \"*:443\" # HTTP/3\n#> Why.\n\
             mode = \"enforce\" # for now\n#> Why more.\nroom = 0.75\n\n# Nothing guards it.\n[[listener]]\naddress = \"*:443\"\n"
        );
        assert_eq!(
            first.said,
            [
                "quic-443: room 0.5 becomes 0.75, mode \"observe\" becomes \"enforce\"",
                "quic-443: a [[listener]] for TCP port 443 is added at the end: nothing guards it",
            ]
        );
        let again = change_file(&first.text, &suggestions);
        assert_eq!(again.text, first.text);
        assert_eq!(
            again.said,
            [
                "port-443: nothing is changed: weir does not guard it now",
                "quic-443: every setting is as suggested",
            ]
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
