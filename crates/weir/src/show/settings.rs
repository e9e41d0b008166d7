//! The config keys in effect, as JSON.

use serde_json::{Map, Value};
use weir_config::{Given, Key, Setting, Table, change};
use weir_core::class::Class;

/// Every key of a table with the value in effect.
pub fn settings<T: Table>(table: &T) -> Map<String, Value> {
    let value = |setting: Setting| {
        serde_json::to_value(setting).expect("strings, numbers and lists are JSON")
    };
    T::keys()
        .iter()
        .map(|key| (key.name.to_owned(), value(key.show(table))))
        .collect()
}

/// The class that has these [`settings`]; `None`: another version has written them, with keys that this one does not know.
pub fn class_of(keys: Map<String, Value>) -> Option<Class> {
    let given = keys.into_iter().filter(|(_, value)| !value.is_null());
    let given = given.map(|(key, value)| Some((key, serde_json::from_value(value).ok()?)));
    let given: Vec<(String, Given)> = given.collect::<Option<_>>()?;
    let keys = given.iter().map(|(key, given)| (key.as_str(), given));
    change(&Class::new(""), keys).ok()
}

/// Whether the value of the key is the name of its table, [`Table::name`].
pub fn is_name<T>(key: &Key<T>) -> bool {
    ["name", "dev"].contains(&key.name)
}

/// A setting without TOML's quotes.
pub fn plain<T>(key: &Key<T>, setting: Setting) -> String {
    match setting {
        Setting::Text(text) => text,
        Setting::List(names) if names.is_empty() => key.empty.to_owned(),
        Setting::List(names) => names.join(","),
        Setting::None => "-".to_owned(),
        other => other.to_string(),
    }
}
