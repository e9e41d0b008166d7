//! The whole report: the guard and all proxies of a network namespace.

use serde::{Deserialize, Serialize};

use crate::listener::is_zero;
use crate::{
    Class, Controller, Destination, LastReload, Listener, Process, Proxy, Quic, Shape, TimeWait,
};

/// The guard and the proxies of one network namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// Whether a weir guards this network namespace
    ///
    /// If not, nothing is attached, and `process` is absent.
    pub running: bool,
    /// The guard's process: pid, version, command, config
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The last time that weir read its config file again; absent if it has not, since it started
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<LastReload>,
    /// Where weir is attached
    pub interfaces: Vec<Interface>,
    /// What differs from what was asked for: interfaces, the XDP front, addresses
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The listeners under guard
    pub listeners: Vec<Listener>,
    /// The QUIC listeners under guard; absent if there are none
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quic: Vec<Quic>,
    /// The classes of all listeners, `other` last; absent if there is one listener, which has all classes itself
    ///
    /// Their counters and limits are those of all listeners together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Class>,
    /// How many classes of all listeners there are besides those that status lists; absent if status lists all
    #[serde(default, skip_serializing_if = "is_zero")]
    pub classes_left_out: usize,
    /// The controller; absent without `[controller]`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The destinations of the config file, and the TIME-WAIT of their connections
    #[serde(default)]
    pub destinations: Vec<Destination>,
    /// TIME-WAIT of connections that no destination or listener has and that negotiate because their application asked (per_socket), in figures; absent where no application may ask
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timewait_asked: Option<TimeWait>,
    /// The shaped interfaces of the config file, and what their queues have counted
    #[serde(default)]
    pub shapes: Vec<Shape>,
    /// The proxies, of all processes of this network namespace
    #[serde(default)]
    pub proxies: Vec<Proxy>,
}

/// An interface with the guard on it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Interface {
    /// The interface's name
    pub name: String,
    /// The interface's index in its network namespace
    pub index: u32,
    /// Whether the interface has the XDP front: refusals in the driver, before receive steering
    pub xdp: bool,
}
