//! The commented example file `packaging/weir.toml`, made from the keys.

use std::fmt::Write as _;

use crate::api_keys::ApiSettings;
use crate::metrics_keys::MetricsSettings;
use crate::table::Table;
use crate::value::Setting;
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::listener::{ListenAddress, Listener};
use weir_core::proxy::{Mode, Proxy};

const HEAD: &str = "\
# weir.toml - listeners under guard, and proxies. `weir check FILE` shows the values in effect,
# `weir run --config FILE` guards the listeners, `weir proxy --config FILE` runs the proxies, `weir
# reload` swaps both without a gap. Made by `weir check --example`. Every key may be left out whose
# text does not say that it is required.
";

/// Width of the comments.
const WIDTH: usize = 100;

/// The example file: a listener and a proxy with every key at its default. The lines of the other
/// tables are comments: a server that is to be guarded needs none of them.
pub fn example() -> String {
    let mut file = HEAD.to_owned();
    file.push_str(&example_table(&listener()));
    let commented = [
        ("A class of connections", example_table(&class())),
        ("A proxy", example_table(&proxy())),
        ("The controller", example_table(&Settings::default())),
        ("The API", example_table(&ApiSettings::blank())),
        ("The metrics", example_table(&MetricsSettings::blank())),
    ];
    for (what, table) in commented {
        let _ = writeln!(
            file,
            "\n# {what}: without the `#` at the beginning of each line.\n#"
        );
        for line in table.trim_start().lines() {
            let _ = match line {
                "" => writeln!(file, "#"),
                line => writeln!(file, "#{line}"),
            };
        }
    }
    file
}

fn class() -> Class {
    Class {
        listener: Some("web".into()),
        from: vec!["10.1.0.0/16".parse().expect("a prefix")],
        priority: 1,
        rate: Some(300.0),
        burst: Some(100),
        ..Class::new("gold")
    }
}

fn listener() -> Listener {
    Listener::new("web", ListenAddress { ip: None, port: 80 })
}

fn proxy() -> Proxy {
    let backend = std::net::SocketAddr::from(([10, 0, 0, 5], 8080));
    let listen = std::net::SocketAddr::from(([0, 0, 0, 0], 8080));
    let mut proxy = Proxy::new("edge", listen, Mode::Reverse);
    proxy.backends = vec![backend];
    proxy
}

/// A table with all of its keys, each below its text.
fn example_table<T: Table>(table: &T) -> String {
    let mut text = format!("\n{}\n", T::head());
    for key in T::keys() {
        for line in wrap(&format!("{}.", key.text), WIDTH - 3) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# values: {}", key.values);
        let _ = match key.name {
            "interfaces" => writeln!(text, "# interfaces = [\"eth0\"]\n"),
            name => match (key.show)(table) {
                Setting::None => writeln!(text, "# {name} =\n"),
                Setting::List(list) if list.is_empty() && T::NAME == Class::NAME => {
                    writeln!(text, "# {name} =\n")
                }
                setting => writeln!(text, "{name} = {setting}\n"),
            },
        };
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
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
    use crate::parse;

    #[test]
    fn the_example_is_the_default_policy_and_not_odd() {
        let config = parse("example", &example()).unwrap();
        assert_eq!(config.listeners, [listener()]);
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
        assert_eq!(config.classes, [class()]);
        assert_eq!(config.proxies, [proxy()]);
        assert_eq!(config.controller, Some(Settings::default()));
        assert_eq!(config.api, Some(ApiSettings::default()));
        assert_eq!(config.metrics, Some(MetricsSettings::default()));
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
