//! A process of weir, and what it last did with its config file.

use serde::{Deserialize, Serialize};

/// The process that guards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// The process's id, in its own pid namespace
    pub pid: u32,
    /// The version of the running process; `weir --version` is that of the program on disk
    pub version: String,
    /// How the process was started: protect or run
    pub command: String,
    /// The config file of the process; null: it has flags only
    pub config: Option<String>,
    /// When the process started, in ms since 1970 UTC
    ///
    /// Counters began at 0 then. Two reports with different times are of different processes, whatever their ids.
    #[serde(default)]
    pub started_unix_ms: u64,
    /// The inode number of the network namespace: `ls -Li /proc/PID/ns/net` shows it
    pub namespace: u64,
    /// Lines of weir's log that were lost because the reader of its standard error was too slow
    ///
    /// weir does not wait for its log. The log itself says where lines are missing. access_log_lost counts those of a proxy's access log.
    #[serde(default)]
    pub log_lost: u64,
    /// Seconds until the config file before the last reload is in force again; null: the last one is for good
    ///
    /// `weir reload --confirm TIME` begins that time, and another reload ends it.
    #[serde(default)]
    pub unconfirmed_s: Option<u64>,
    /// Seconds for which all listeners only observe, whatever their mode in the file; null: their mode is that of the file
    ///
    /// `weir observe` begins that time, and a reload ends it.
    #[serde(default)]
    pub observes_s: Option<u64>,
}

/// An attempt to put the config file in force while weir runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastReload {
    /// When weir read the file, in ms since 1970 UTC
    pub at_unix_ms: u64,
    /// Whether the file is in force since then
    ///
    /// If not, what was in force before has stayed or has come back, and `failure` says why.
    pub succeeded: bool,
    /// Why the file is not in force; absent if it is
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
