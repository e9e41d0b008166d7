//! What goes over the socket. weir makes its answers and its OpenAPI document from these same types.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything about the weir of one network namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// Always true here.
    pub running: bool,
    /// The process that answers.
    pub process: Option<Process>,
    /// Where it is attached.
    pub interfaces: Vec<Interface>,
    /// Where it stands otherwise than asked.
    pub warnings: Vec<String>,
    /// The listeners under guard.
    pub listeners: Vec<Listener>,
    /// The controller; absent without `[controller]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
}

/// The process that guards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// Process id, as that process sees it.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// `protect` or `run`.
    pub command: String,
    /// The config file of `weir run`.
    pub config: Option<String>,
    /// Inode number of the network namespace.
    pub namespace: u64,
}

/// An interface with the guard on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// With the XDP front.
    pub xdp: bool,
}

/// A listener: its queue, its counters, and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// Its address and port.
    pub address: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// The policy in force, in words.
    pub policy: String,
    /// Whether it is guarded at the moment.
    pub in_force: bool,
    /// Whether a socket listens there at the moment.
    pub listening: bool,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Places in the listen queues.
    pub queue_limit: u32,
    /// Of those that wait, the ones before the server's own queue (queue = priority).
    #[serde(default)]
    pub parked: u32,
    /// Of those that were parked, how many went to the server so far.
    #[serde(default)]
    pub released: u64,
    /// How many went to the server, released or straight, before one that had come earlier.
    #[serde(default)]
    pub overtook: u64,
    /// Handshakes under way.
    pub half_open: u32,
    /// Estimated wait in the queue, µs; null while not known.
    pub wait_us: Option<u64>,
    /// Every verdict counter by its name (`weir explain NAME`).
    pub counters: BTreeMap<String, u64>,
    /// The listening sockets.
    pub sockets: Vec<Socket>,
    /// The config keys in effect, and what later versions add.
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Socket {
    /// Its local address and port.
    pub address: String,
    /// Connections that wait for accept().
    pub queue_length: u32,
    /// Its backlog in force.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Estimated wait, µs; null while not known.
    pub wait_us: Option<u64>,
}

/// A class: its settings, what holds it, and its counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Class {
    /// Its name; `other` is that of connections that no class fits.
    pub name: String,
    /// 1 is the highest; that of `other` is 64.
    pub priority: u8,
    /// The operator's limit, connections/s; null: none.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The controller's limit, connections/s; null: none. The lower of both holds.
    #[serde(default)]
    pub controlled_rate: Option<f64>,
    /// Its connections that wait before a server's own queue; null: no listener has queue = priority.
    #[serde(default)]
    pub waiting: Option<u32>,
    /// Every verdict counter by its name.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// The other config keys in effect (`listener`, `from`, `burst`, …).
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// Settings of a class, by the names of the config keys.
///
/// ```
/// use weir_client::ClassSettings;
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

impl ClassSettings {
    /// None yet: each one left out is at its default, or stays as it is.
    pub fn new() -> ClassSettings {
        ClassSettings::default()
    }

    /// Any config key of `[[class]]`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> ClassSettings {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Takes a setting away again: no limit, any, all.
    #[must_use]
    pub fn without(self, key: &str) -> ClassSettings {
        self.with(key, Value::Null)
    }

    /// The listener whose connections it is of.
    #[must_use]
    pub fn listener(self, name: &str) -> ClassSettings {
        self.with("listener", name)
    }

    /// One more prefix where its clients are.
    #[must_use]
    pub fn from(mut self, prefix: &str) -> ClassSettings {
        match self.0.get_mut("from") {
            Some(Value::Array(prefixes)) => prefixes.push(prefix.into()),
            _ => return self.with("from", vec![prefix]),
        }
        self
    }

    /// 1 is the highest, 63 the lowest.
    #[must_use]
    pub fn priority(self, priority: u8) -> ClassSettings {
        self.with("priority", priority)
    }

    /// Connections/s that may come.
    #[must_use]
    pub fn rate(self, rate: f64) -> ClassSettings {
        self.with("rate", rate)
    }

    /// Connections that may come at once.
    #[must_use]
    pub fn burst(self, burst: u32) -> ClassSettings {
        self.with("burst", burst)
    }

    /// Connections/s that the controller leaves it while lower classes can give way.
    #[must_use]
    pub fn min_rate(self, rate: f64) -> ClassSettings {
        self.with("min_rate", rate)
    }

    /// The keys and values.
    pub fn keys(&self) -> &BTreeMap<String, Value> {
        &self.0
    }

    pub(crate) fn named(self, name: &str) -> ClassSettings {
        self.with("name", name)
    }
}

/// What the controller is for, what it sees, and what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Controller {
    /// `enforce` or `observe`: whether what it decides is set or only told.
    pub mode: String,
    /// The wait to keep; null: none.
    pub target_wait: Option<String>,
    /// The share of the CPU to stay under; null: none.
    pub max_cpu: Option<f64>,
    /// Time between two readings.
    pub interval: String,
    /// Readings that the averages are over.
    pub samples: u32,
    /// What it sees.
    pub statistics: Statistics,
    /// Its changes, the newest last; bounded.
    pub decisions: Vec<Decision>,
}

/// What the controller sees, averaged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// CPU use of the machine, 0.0 to 1.0; null while not known.
    pub cpu: Option<f64>,
    /// CPU use of the server's cgroup, of its quota or else of the machine; null while not known.
    pub cgroup_cpu: Option<f64>,
    /// By listener.
    pub listeners: Vec<ListenerStatistics>,
    /// By class.
    pub classes: Vec<ClassStatistics>,
}

/// A listener as the controller sees it; rates are connections/s.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListenerStatistics {
    /// Its name.
    pub name: String,
    /// Connections that wait for accept(), averaged.
    pub queue_length: f64,
    /// The wait, length / accept rate, µs; null while not known.
    pub wait_us: Option<u64>,
    /// SYNs that come.
    pub syns: f64,
    /// Connections let in.
    pub admitted: f64,
    /// Connections refused, whoever refused them.
    pub refused: f64,
    /// Connections accepted by the server.
    pub accepted: f64,
    /// What the server accepts while it is busy; null while not known.
    pub capacity: Option<f64>,
}

/// A class as the controller sees it; rates are connections/s.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClassStatistics {
    /// Its name.
    pub name: String,
    /// SYNs that come.
    pub syns: f64,
    /// Connections let in.
    pub admitted: f64,
    /// Connections refused, whoever refused them.
    pub refused: f64,
    /// What it is held at, averaged; null: nothing. With mode = observe: what it would be held at.
    pub controlled_rate: Option<f64>,
    /// Why it is held.
    pub reason: Option<String>,
}

/// A change that the controller made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// When, ms since 1970 (UTC).
    pub at_unix_ms: u64,
    /// Whose controlled rate.
    pub class: String,
    /// Before, connections/s; null: none.
    pub from: Option<f64>,
    /// Now; null: lifted.
    pub to: Option<f64>,
    /// Told only, not set.
    pub observed: bool,
    /// Why.
    pub reason: String,
}

/// A write that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer {
    /// What was done.
    pub done: String,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Each cause; never empty.
    pub causes: Vec<Cause>,
}

/// What failed on which object and why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cause {
    /// One sentence.
    pub message: String,
    /// The next action; empty if there is none.
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Cause { message, hint }) in self.causes.iter().enumerate() {
            write!(f, "{}{message}", if i > 0 { "; " } else { "" })?;
            if !hint.is_empty() {
                write!(f, " (hint: {hint})")?;
            }
        }
        Ok(())
    }
}
