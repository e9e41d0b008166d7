//! The commented example file `packaging/weir.toml`, made from the keys.

use std::fmt::Write as _;

use crate::schema::{KeyDoc, TableDoc, tables};

const HEAD: &str = "\
# weir.toml - the listeners that weir guards, and its proxies. `weir check FILE` shows the values in
# effect. `weir run --config FILE` guards the listeners, `weir proxy --config FILE` runs the
# proxies. `weir reload` puts a changed file in force without a gap. `weir check --example` prints
# this file. Every key may be left out, except those whose text says \"Required\".
#
# With `mode = \"observe\"`, as here, weir refuses nobody, and counts whom it would refuse. Write
# `mode = \"enforce\"` to have it refuse.
";

/// Width of the comments.
const WIDTH: usize = 100;

/// The example file: a listener that is observed, with every other key at its default, and a table of every other kind as
/// comments, since a guarded server needs none of them.
pub fn example() -> String {
    let mut file = HEAD.to_owned();
    for (index, table) in tables().enumerate() {
        if index == 0 {
            file.push_str(&example_table(table));
            continue;
        }
        let title = table.title;
        let _ = writeln!(
            file,
            "\n# {title}: remove the `#` at the beginning of each line.\n#"
        );
        for line in example_table(table).trim_start().lines() {
            let _ = match line {
                "" => writeln!(file, "#"),
                line => writeln!(file, "#{line}"),
            };
        }
    }
    file
}

/// A table with all of its keys, each below its text.
fn example_table(table: &TableDoc) -> String {
    let mut text = format!("\n{}\n", table.head);
    for key in &table.keys {
        for line in wrap(&comment(key), WIDTH - 3) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# values: {}", key.values);
        let _ = writeln!(text, "{}\n", key.example);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// What a key sets, and what holds without it where the line below does not say it.
fn comment(key: &KeyDoc) -> String {
    match key.absent {
        _ if key.is_required => format!("{}. Required.", key.text),
        Some(absent) => format!("{}. Default: {absent}.", key.text),
        None if key.words.is_empty() || key.example_is_default() => format!("{}.", key.text),
        None => format!("{}. Default: {}.", key.text, key.default),
    }
}

/// Lines of at most `width` bytes, broken at spaces; a longer word has a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("lines is never empty");
        if !last.is_empty() && last.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            let space = if last.is_empty() { "" } else { " " };
            *last = format!("{last}{space}{word}");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;
    use crate::table::Table;
    use crate::tables::api::ApiSettings;
    use crate::tables::dashboard::DashboardSettings;
    use crate::tables::events::EventsSettings;
    use crate::tables::metrics::MetricsSettings;
    use weir_core::class::Class;
    use weir_core::controller::Settings;
    use weir_core::listener::{Listener, Mode};
    use weir_core::proxy::Proxy;
    use weir_core::quic::QuicListener;
    use weir_core::shape::Shape;
    use weir_core::timewait::Destination;

    #[test]
    fn the_example_refuses_nobody_and_is_not_odd() {
        let config = parse("example", &example()).unwrap();
        assert_eq!(config.listeners, [Listener::example()]);
        assert_eq!(config.listeners[0].mode, Mode::Observe);
        assert!(config.proxies.is_empty() && config.warnings.is_empty());
    }

    #[test]
    fn the_comments_have_the_defaults_once_they_are_no_comments() {
        let file = example();
        let mut parts = file.split("each line.\n");
        let mut uncommented = parts.next().unwrap().to_owned();
        for part in parts {
            let lines = part.lines().take_while(|line| line.starts_with('#'));
            uncommented.extend(lines.map(|line| format!("{}\n", &line[1..])));
        }
        let config = parse("example", &uncommented).unwrap();
        assert_eq!(config.classes, [Class::example()]);
        assert_eq!(config.quic, [QuicListener::example()]);
        assert_eq!(config.proxies, [Proxy::example()]);
        assert_eq!(config.destinations, [Destination::example()]);
        assert_eq!(config.shapes, [Shape::example()]);
        assert_eq!(config.controller, Some(Settings::default()));
        assert_eq!(config.api, Some(ApiSettings::default()));
        assert_eq!(config.metrics, Some(MetricsSettings::default()));
        assert_eq!(config.dashboard, Some(DashboardSettings::default()));
        assert_eq!(config.events, Some(EventsSettings::default()));
    }

    #[test]
    fn the_packaged_example_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/weir.toml");
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(path, example()).unwrap();
        }
        let packaged = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            packaged,
            example(),
            "run with WEIR_BLESS=1, or `weir check --example`"
        );
    }

    #[test]
    fn comments_stay_within_their_width() {
        assert!(example().lines().all(|line| line.len() <= WIDTH));
    }
}
