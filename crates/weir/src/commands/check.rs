//! `weir check`: is the config file good, and which values are in effect?

use serde::Serialize;
use weir_config::{Config, Key, Setting, Table, example};

use crate::cli::Check;
use crate::failure::Result;
use crate::host::config::read;
use crate::show::output::{print, print_json, warn};
use crate::show::settings::settings;
use crate::show::table::{Align, table};

/// Runs the command.
pub fn run(args: &Check) -> Result<()> {
    let Some(file) = &args.file else {
        return print(&example());
    };
    let config = read(file)?;
    for warning in &config.warnings {
        warn(warning);
    }
    if args.json {
        return print_json(&Effective {
            listeners: config.listeners.iter().map(settings).collect(),
            proxies: config.proxies.iter().map(settings).collect(),
            classes: config.classes.iter().map(settings).collect(),
            controller: config.controller.as_ref().map(settings),
            api: config.api.as_ref().map(settings),
            metrics: config.metrics.as_ref().map(settings),
            warnings: config
                .warnings
                .iter()
                .map(|warning| warning.to_string())
                .collect(),
        });
    }
    print(&text(&config))
}

#[derive(Serialize)]
struct Effective {
    listeners: Vec<serde_json::Map<String, serde_json::Value>>,
    proxies: Vec<serde_json::Map<String, serde_json::Value>>,
    classes: Vec<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<serde_json::Map<String, serde_json::Value>>,
    warnings: Vec<String>,
}

/// What the file has of one kind stands side by side in one table; more would not fit a terminal.
const COLUMNS: usize = 4;

/// Tables with a row per key and a column per listener or proxy.
fn text(config: &Config) -> String {
    let listeners = config.listeners.chunks(COLUMNS).map(columns);
    let proxies = config.proxies.chunks(COLUMNS).map(columns);
    let classes = config.classes.chunks(COLUMNS).map(columns);
    listeners
        .chain(proxies)
        .chain(classes)
        .chain(config.controller.as_slice().chunks(1).map(columns))
        .chain(config.api.as_slice().chunks(1).map(columns))
        .chain(config.metrics.as_slice().chunks(1).map(columns))
        .collect::<Vec<_>>()
        .join("\n")
}

fn columns<T: Table>(tables: &[T]) -> String {
    let mut head = vec![(T::NAME, Align::Left)];
    head.extend(tables.iter().map(|table| (table.name(), Align::Left)));
    let row = |key: &Key<T>| {
        let values = tables.iter().map(|table| plain(key, key.show(table)));
        [key.name.to_owned()].into_iter().chain(values).collect()
    };
    let keys = T::keys().iter().filter(|key| key.name != "name");
    table(&head, &keys.map(row).collect::<Vec<_>>())
}

/// A setting without TOML's quotes.
fn plain<T>(key: &Key<T>, setting: Setting) -> String {
    match setting {
        Setting::Text(text) => text,
        Setting::List(names) if names.is_empty() => key.empty.to_owned(),
        Setting::List(names) => names.join(","),
        Setting::None => "-".to_owned(),
        other => other.to_string(),
    }
}
