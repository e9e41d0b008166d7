//! Config files.

use std::fmt::Write;

use weir_config::{Config, Setting, Table, parse};
use weir_core::class::Rules;

/// The bytes are a file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match parse("weir.toml", text) {
        Ok(config) => {
            config
                .classes
                .iter()
                .for_each(|class| assert!(class.limit().is_none_or(|limit| limit.interval > 0)));
            Rules::compile(&config.classes, |_| Some(1));
            is_read_as_it_is_shown(&config);
        }
        Err(problems) => {
            assert!(!problems.0.is_empty(), "a refusal has a reason");
            let lines = text.lines().count().max(1) + 1;
            for problem in &problems.0 {
                assert!((1..=lines).contains(&problem.location.line), "{problem}");
                assert!(!problem.cause.is_empty());
            }
        }
    }
}

/// `weir check` shows the values in effect: a file of them has the same effect.
fn is_read_as_it_is_shown(config: &Config) {
    let text = shown(config);
    let again = parse("shown", &text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert_eq!(text, shown(&again));
}

/// Every table of the file.
fn shown(config: &Config) -> String {
    let mut text = String::new();
    show(&config.listeners, &mut text);
    show(&config.quic, &mut text);
    show(&config.proxies, &mut text);
    show(&config.classes, &mut text);
    show(&config.destinations, &mut text);
    show(&config.shapes, &mut text);
    show(config.controller.as_slice(), &mut text);
    show(config.api.as_slice(), &mut text);
    show(config.metrics.as_slice(), &mut text);
    show(config.events.as_slice(), &mut text);
    text
}

fn show<T: Table>(tables: &[T], text: &mut String) {
    for table in tables {
        writeln!(text, "{}", T::head()).expect("a string takes it");
        for key in T::keys() {
            match key.show(table) {
                // The file leaves these out.
                Setting::None => {}
                Setting::List(list) if list.is_empty() => {}
                setting => {
                    writeln!(text, "{} = {setting}", key.name).expect("a string takes it");
                }
            }
        }
    }
}
