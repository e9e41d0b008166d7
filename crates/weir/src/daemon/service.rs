//! What a service is to its [frame](crate::daemon::frame): the guard, the proxies, and what comes.
//!
//! The frame owns what all services have alike: signals, the control socket, the API, the metrics, reloads and the
//! service manager. A service owns what it does, and is asked and told by the methods of this trait, one after the
//! other, in one thread.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use weir_api::{Status, Suggestions, TopSources, Why};
use weir_config::Config;

use crate::daemon::config_file::Reloads;
use crate::failure::{Cause, Failure, Result};
use crate::ipc::call::Change;
use crate::ipc::control::{Client, Request};
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Peer;

/// What is in force after a reload.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Listeners of the file.
    pub listeners: usize,
    /// Destinations.
    pub destinations: usize,
    /// Proxies.
    pub proxies: usize,
    /// The listeners among them that are not in force, with the reason.
    pub not_in_force: Vec<Cause>,
    /// What differs otherwise from what the file asks for, a sentence each.
    pub warnings: Vec<String>,
}

/// A change over HTTP that is refused: the HTTP status, and why.
pub type Refusal = (u16, Failure);

/// A service in its frame.
pub trait Service {
    /// Descriptors that wake the service when they are readable.
    fn sources(&self) -> Vec<BorrowedFd<'_>>;

    /// How long until the service has work without being woken; `None`: it has none.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Works. Called after each wait, and once before the first: `ready` has one entry for each of
    /// [`sources`](Self::sources), all false before the first wait.
    ///
    /// # Errors
    /// The service cannot go on; it is dropped next.
    fn work(&mut self, ready: &[bool], endpoints: &mut Endpoints) -> Result<()>;

    /// The report of `weir status`.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    fn report(&self, reloads: &Reloads) -> Result<Status>;

    /// All figures as OpenMetrics text.
    ///
    /// # Errors
    /// As of [`report`](Self::report).
    fn metrics(&self, reloads: &Reloads) -> Result<String>;

    /// Every class that can be changed while the service runs, `other` too; none if there are no such classes.
    ///
    /// # Errors
    /// As of [`report`](Self::report).
    fn classes(&self) -> Result<Vec<weir_api::Class>> {
        Ok(Vec::new())
    }

    /// The keys of those classes but `other`; `None` if there are no such classes.
    fn class_settings(&self) -> Option<Vec<Map<String, Value>>> {
        None
    }

    /// The sources that are refused most.
    ///
    /// # Errors
    /// This service guards nothing.
    fn top_sources(&self) -> Result<TopSources> {
        Err(guards_nothing())
    }

    /// Why an address was refused.
    ///
    /// # Errors
    /// As of [`top_sources`](Self::top_sources).
    fn why(&mut self, _address: IpAddr) -> Result<Why> {
        Err(guards_nothing())
    }

    /// Settings that fit what the listeners have gone through. `least`: the time to have looked at least.
    ///
    /// # Errors
    /// As of [`top_sources`](Self::top_sources).
    fn suggestions(&mut self, _least: Duration) -> Result<Suggestions> {
        Err(guards_nothing())
    }

    /// Changes a class for a client of the API; gives its name, unless it was removed, and what was done in a word
    /// (added, replaced, changed, removed).
    ///
    /// # Errors
    /// Nothing has changed then.
    fn change_class(
        &mut self,
        change: &Change,
        _peer: Peer,
    ) -> std::result::Result<Changed, Refusal> {
        let message = format!("{}: this process has no classes to change", change.class());
        let hint = "classes of proxies are those of the config file: change it, then `weir reload`";
        Err((409, Failure::usage(message, hint)))
    }

    /// Answers a request of the control socket that is neither a status nor a reload.
    fn request(&mut self, request: Request, client: Client);

    /// Called before each reload, whatever the file is like: opens log files again by their paths.
    fn reopen_logs(&mut self) {}

    /// Puts a config file in force. `file` names it in errors.
    ///
    /// # Errors
    /// What was in force stays.
    fn reload(&mut self, config: Config, file: &Path) -> Result<Reloaded>;

    /// The answer to a reload of a service without a config file.
    fn no_file(&self) -> Failure;

    /// What stays in force when a reload fails, for the log: `policy stays`.
    fn stays(&self) -> &'static str;

    /// A signal asks the service to end. A second one hurries.
    fn stop(&mut self);

    /// Whether the service is about to end.
    fn is_stopping(&self) -> bool;

    /// Whether the service has ended.
    fn has_ended(&self) -> bool;
}

/// What a request did to the class of this name.
#[derive(Debug)]
pub enum Changed {
    /// Added it.
    Added(String),
    /// Gave it other settings.
    Modified(String),
    /// Removed it.
    Removed(String),
}

/// Proxies do not keep whom they refuse.
fn guards_nothing() -> Failure {
    let hint = "the access log of a proxy says why it refused a client";
    Failure::usage("this process runs proxies and guards nothing", hint)
}
