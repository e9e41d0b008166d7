//! What a service is to its [frame](crate::daemon::frame): the guard, the proxies, and what comes.
//!
//! The frame owns what all services have alike: signals, the control socket, the API, the metrics, reloads and the
//! service manager. A service owns what it does, and is asked and told by the methods of this trait, one after the
//! other, in one thread.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value};
use weir_api::{Answer, Question, Reloaded};
use weir_config::Config;

use crate::daemon::config_file::Reloads;
use crate::failure::{Failure, Result};
use crate::ipc::control::Client;
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Asker;

/// What is put in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// What a file says.
    File,
    /// What is in force, once more: the classes are as they are now.
    Again {
        /// Every listener only observes.
        observes: bool,
    },
}

/// A service in its frame.
pub trait Service {
    /// Descriptors that wake the service when they are readable.
    fn sources(&self) -> Vec<BorrowedFd<'_>>;

    /// When the service has work without being woken; `None`: it has none.
    fn due_at(&self) -> Option<Instant> {
        None
    }

    /// Works. Called after each wait, and once before the first: `ready` has one entry for each of
    /// [`sources`](Self::sources), all false before the first wait.
    ///
    /// # Errors
    /// The service cannot go on; it is dropped next.
    fn work(&mut self, now: Instant, ready: &[bool], endpoints: &mut Endpoints) -> Result<()>;

    /// Answers a question that the frame leaves to the service, which who asks may ask.
    ///
    /// # Errors
    /// It is nothing for this service, the kernel half cannot be read, or what was asked for cannot be done: then
    /// nothing has changed.
    fn answer(
        &mut self,
        question: &Question,
        asker: Asker,
        now: Instant,
        reloads: &Reloads,
    ) -> Result<Answer>;

    /// Gives a client of the control socket its answer. A service does more where the answer has to wait, or words are not
    /// all of it.
    fn deliver(&mut self, _question: &Question, answer: Result<Answer>, client: Client) {
        client.answer(&answer);
    }

    /// The keys of the classes that can be changed while the service runs, without `other`; `None` if there are no such
    /// classes.
    fn class_settings(&self) -> Option<Vec<Map<String, Value>>> {
        None
    }

    /// Called before each reload, whatever the file is like: opens log files again by their paths.
    fn reopen_logs(&mut self) {}

    /// Puts a config in force. `file` names its file in errors.
    ///
    /// # Errors
    /// What was in force stays.
    fn reload(&mut self, config: Config, file: &Path, now: Instant, put: Put) -> Result<Reloaded>;

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
