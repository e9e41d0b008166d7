//! The commented example file `packaging/weir.toml`, made from [`LISTENER_KEYS`].

use std::fmt::Write as _;

use super::keys::LISTENER_KEYS;
use crate::listener::{ListenAddress, Listener};

const HEAD: &str = "\
# weir.toml - listeners under guard. `weir check FILE` shows the values in effect,
# `weir run --config FILE` puts them in force, `weir reload` swaps them without a gap.
# Made by `weir check --example`. Every key but address may be left out.
";

/// Width of the comments.
const WIDTH: usize = 100;

/// The example file: one listener with every key at its default.
pub fn example() -> String {
    let listener = Listener::new("web", ListenAddress { ip: None, port: 80 });
    let mut file = format!("{HEAD}\n[[listener]]\n");
    for key in &LISTENER_KEYS {
        for line in wrap(&format!("{}.", key.text), WIDTH - 2) {
            let _ = writeln!(file, "# {line}");
        }
        let _ = writeln!(file, "# values: {}", key.values);
        let _ = match key.name {
            "interfaces" => writeln!(file, "# interfaces = [\"eth0\"]\n"),
            name => writeln!(file, "{name} = {}\n", (key.show)(&listener)),
        };
    }
    file.truncate(file.trim_end().len());
    file.push('\n');
    file
}

fn wrap(text: &str, width: usize) -> Vec<String> {
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
    use crate::config::parse;

    #[test]
    fn the_example_is_the_default_policy_and_not_odd() {
        let config = parse("example", &example()).unwrap();
        let web = Listener::new("web", ListenAddress { ip: None, port: 80 });
        assert_eq!(config.listeners, [web]);
        assert!(config.warnings.is_empty());
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
