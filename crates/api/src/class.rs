//! A class of connections, and the settings that a client of the API writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A class: its settings, its limits and its counters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Class {
    /// The class's name; `other` is the class of connections that no rule fits
    pub name: String,
    /// The class's priority: 1 is the highest, 63 the lowest that can be set, 64 is that of `other`
    pub priority: u8,
    /// The operator's limit in connections/s; null: none
    #[serde(default)]
    pub rate: Option<f64>,
    /// Connections that may come at once under the operator's limit; null without a rate
    #[serde(default)]
    pub burst: Option<u32>,
    /// The controller's limit in connections/s; null: none. The lower of rate and controlled_rate holds
    #[serde(default)]
    pub controlled_rate: Option<f64>,
    /// Connections of the class that wait before a server's own queue; null: no listener has queue = priority
    #[serde(default)]
    pub waiting: Option<u32>,
    /// Verdicts that the class has had, by name; those at zero are absent
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// The other config keys in effect (`listener`, `from`, `to`, …)
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// Settings of a class, by the names of the config keys.
///
/// ```
/// use weir_api::ClassSettings;
/// let gold = ClassSettings::new().listener("web").from("10.1.0.0/16").priority(1);
/// assert_eq!(
///     serde_json::to_string(&gold)?,
///     r#"{"from":["10.1.0.0/16"],"listener":"web","priority":1}"#
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct ClassSettings(BTreeMap<String, Value>);

impl FromIterator<(String, Value)> for ClassSettings {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(keys: I) -> ClassSettings {
        ClassSettings(keys.into_iter().collect())
    }
}

impl ClassSettings {
    /// No settings. A new class has the default of each key that is absent; a changed class keeps its value.
    pub fn new() -> ClassSettings {
        ClassSettings::default()
    }

    /// Sets any config key of `[[class]]`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> ClassSettings {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Removes a setting: no limit, any address, all listeners.
    #[must_use]
    pub fn without(self, key: &str) -> ClassSettings {
        self.with(key, Value::Null)
    }

    /// The listener whose connections the class takes.
    #[must_use]
    pub fn listener(self, name: &str) -> ClassSettings {
        self.with("listener", name)
    }

    /// Adds a prefix of client addresses.
    #[must_use]
    pub fn from(mut self, prefix: &str) -> ClassSettings {
        match self.0.get_mut("from") {
            Some(Value::Array(prefixes)) => prefixes.push(prefix.into()),
            _ => return self.with("from", vec![prefix]),
        }
        self
    }

    /// The priority: 1 is the highest, 63 the lowest.
    #[must_use]
    pub fn priority(self, priority: u8) -> ClassSettings {
        self.with("priority", priority)
    }

    /// The limit in connections/s.
    #[must_use]
    pub fn rate(self, rate: f64) -> ClassSettings {
        self.with("rate", rate)
    }

    /// Connections that may come at once under the limit.
    #[must_use]
    pub fn burst(self, burst: u32) -> ClassSettings {
        self.with("burst", burst)
    }

    /// Connections/s that the controller leaves the class while lower classes can give way.
    #[must_use]
    pub fn min_rate(self, rate: f64) -> ClassSettings {
        self.with("min_rate", rate)
    }

    /// The class's name.
    #[must_use]
    pub fn named(self, name: &str) -> ClassSettings {
        self.with("name", name)
    }

    /// The keys and values.
    pub fn keys(&self) -> &BTreeMap<String, Value> {
        &self.0
    }
}
