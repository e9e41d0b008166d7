//! Asks a running weir over its API socket (docs/api.md): what waits at its listeners, which classes
//! there are, what the controller does; and changes classes.
//!
//! ```no_run
//! use weir_client::{ClassSettings, Client};
//!
//! # fn main() -> Result<(), weir_client::Error> {
//! let weir = Client::of_this_namespace()?;
//! let web = weir.listener("web")?;
//! if web.queue_length > web.queue_limit / 2 {
//!     // A server that knows what its clients cost may turn them away before they connect.
//!     weir.change_class("crawlers", &ClassSettings::new().rate(20.0).burst(5))?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Calls block; each is a connection of its own, so a [`Client`] may be shared by threads. Who may call
//! what is weir's to say: the socket's permissions, and for writes the user of this process.
#![forbid(unsafe_code)]

mod error;
mod http;

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{Error, Result};
pub use weir_api::{
    Backend, CacheMemory, Cause, Class, ClassSettings, ClassStatistics, Connections, Controller,
    Decision, Done, Episode, Event, Events, Interface, KeptRefusal, LastReload, Listener,
    ListenerStatistics, Problem, Process, Profile, Proxy, ProxyName, ProxyQueue, ProxyThread,
    QuicProfile, QuicSuggestion, Refusal, RefusedMinute, RefusedSource, Reload, ShareOver, Socket,
    SourceNetwork, Statistics, Status, SuggestedKey, Suggestion, Suggestions, TimeRange, Times,
    TopSource, TopSources, Why,
};

/// Where weir has its sockets unless it is told otherwise (`--runtime-dir`).
pub const RUNTIME_DIR: &str = "/run/weir";
/// An answer takes weir some milliseconds; a reload beside it some hundred.
const PATIENCE: Duration = Duration::from_secs(10);

/// The API of one weir.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    patience: Duration,
}

impl Client {
    /// The weir that has this socket (`[api] socket`).
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client {
            socket: socket.into(),
            patience: PATIENCE,
        }
    }

    /// The weir of this process's network namespace, if its socket is where it is by default.
    ///
    /// # Errors
    /// No /proc.
    pub fn of_this_namespace() -> Result<Client> {
        let path = "/proc/self/ns/net";
        let meta = std::fs::metadata(path).map_err(|source| Error::io(path, source))?;
        let name = default_socket_name(meta.ino());
        Ok(Client::new(Path::new(RUNTIME_DIR).join(name)))
    }

    /// Waits for each answer so long at most; 10 s unless set.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Client {
        self.patience = patience;
        self
    }

    /// The socket that it asks.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET /v1/status`: all that `weir status --json` says of listeners.
    ///
    /// # Errors
    /// As every call: no weir there, no right to ask it ([`Error::is_denied`]), or what it says is wrong.
    pub fn status(&self) -> Result<Status> {
        self.get("/v1/status")
    }

    /// `GET /v1/listeners`.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn listeners(&self) -> Result<Vec<Listener>> {
        self.get("/v1/listeners")
    }

    /// `GET /v1/listeners/{name}`.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] if there is none of this name.
    pub fn listener(&self, name: &str) -> Result<Listener> {
        self.get(&path_of("/v1/listeners/", name)?)
    }

    /// `GET /v1/classes`: `other` is among them.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn classes(&self) -> Result<Vec<Class>> {
        self.get("/v1/classes")
    }

    /// `GET /v1/classes/{name}`.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] if there is none of this name.
    pub fn class(&self, name: &str) -> Result<Class> {
        self.get(&path_of("/v1/classes/", name)?)
    }

    /// `POST /v1/classes`: a new class.
    ///
    /// # Errors
    /// As [`Client::status`]; there is one of this name, or it ties with another.
    pub fn add_class(&self, name: &str, settings: &ClassSettings) -> Result<Class> {
        path_of("/", name)?;
        self.send("POST", "/v1/classes", &settings.clone().named(name))
    }

    /// `PUT /v1/classes/{name}`: the class, new or in place of the one of this name, with these settings
    /// and the defaults for the rest.
    ///
    /// # Errors
    /// As [`Client::status`]; it ties with another.
    pub fn put_class(&self, name: &str, settings: &ClassSettings) -> Result<Class> {
        self.send("PUT", &path_of("/v1/classes/", name)?, settings)
    }

    /// `PATCH /v1/classes/{name}`: these settings anew, the rest as it is.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] if there is none of this name.
    pub fn change_class(&self, name: &str, settings: &ClassSettings) -> Result<Class> {
        self.send("PATCH", &path_of("/v1/classes/", name)?, settings)
    }

    /// `DELETE /v1/classes/{name}`.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] if there is none of this name.
    pub fn remove_class(&self, name: &str) -> Result<Done> {
        self.call("DELETE", &path_of("/v1/classes/", name)?, None)
    }

    /// `GET /v1/controller`: objective, statistics, who is held and why.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] if there is no `[controller]`.
    pub fn controller(&self) -> Result<Controller> {
        self.get("/v1/controller")
    }

    /// `GET /v1/events`: the events with a number over `after`, the oldest first; 0 asks for all that are kept. To follow them,
    /// ask again with [`Events::last`], and from the beginning if [`Events::since_unix_ms`] has changed.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn events(&self, after: u64) -> Result<Events> {
        self.get(&format!("/v1/events?after={after}"))
    }

    /// `GET /v1/sources`: the sources that are refused most at present.
    ///
    /// # Errors
    /// As [`Client::status`]; [`Error::is_unknown`] of a process that guards nothing.
    pub fn top_sources(&self) -> Result<TopSources> {
        self.get("/v1/sources")
    }

    /// `GET /v1/why/{address}`: why this address was refused.
    ///
    /// # Errors
    /// As [`Client::top_sources`].
    pub fn why(&self, address: IpAddr) -> Result<Why> {
        self.get(&format!("/v1/why/{address}"))
    }

    /// `GET /v1/suggestions`: settings that fit what each listener has gone through. `least`: the time to have looked at least;
    /// `None`: ten minutes.
    ///
    /// # Errors
    /// As [`Client::top_sources`].
    pub fn suggestions(&self, least: Option<Duration>) -> Result<Suggestions> {
        match least {
            Some(least) => self.get(&format!("/v1/suggestions?least={}", least.as_secs())),
            None => self.get("/v1/suggestions"),
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call("GET", path, None)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(Error::Malformed)?;
        self.call(method, path, Some(&body))
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<T> {
        let answer = http::exchange(&self.socket, self.patience, method, path, body)
            .map_err(|source| Error::io(self.socket.display(), source))?;
        if answer.status / 100 == 2 {
            return serde_json::from_slice(&answer.body).map_err(Error::Malformed);
        }
        let problem = serde_json::from_slice(&answer.body).unwrap_or_else(|_| Problem {
            causes: vec![Cause {
                message: format!("it answered {}", answer.status),
                hint: String::new(),
            }],
        });
        Err(Error::Refused {
            status: answer.status,
            problem,
        })
    }
}

/// The file name of the API socket of a network namespace, by its inode number.
pub fn default_socket_name(namespace: u64) -> String {
    format!("api-{namespace}.sock")
}

/// As [`default_socket_name`], for the process that runs the proxies.
pub fn default_proxy_socket_name(namespace: u64) -> String {
    format!("api-proxy-{namespace}.sock")
}

/// Names are those of the config; any other character has a meaning in a path.
fn path_of(prefix: &str, name: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(good) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(format!("{prefix}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leaves_its_place_in_the_request() {
        assert_eq!(
            path_of("/v1/classes/", "gold.1").unwrap(),
            "/v1/classes/gold.1"
        );
        for name in ["", "a/b", "a b", "a\r\nX: y", "a?b", "ü"] {
            assert!(
                matches!(path_of("/", name), Err(Error::Name(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn the_default_socket_is_that_of_the_namespace() {
        let client = Client::of_this_namespace().unwrap();
        let name = client.socket().file_name().unwrap().to_str().unwrap();
        assert!(
            client.socket().starts_with(RUNTIME_DIR) && name.starts_with("api-"),
            "{name}"
        );
    }
}
