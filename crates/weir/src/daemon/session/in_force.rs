//! What a session has in force, kept while another policy takes its place, and put back when that fails.

use weir_config::Environment;
use weir_core::listener::Listener;

use super::Session;
use super::class_list::Classes;
use crate::daemon::backend::Backend;
use crate::failure::Result;

/// Listeners and classes of a session, with what they are fitted to.
pub struct InForce {
    environment: Environment,
    listeners: Vec<Listener>,
    classes: Classes,
}

impl<B: Backend> Session<B> {
    /// What is in force now, for [`Session::put_back`].
    pub fn in_force(&self) -> InForce {
        InForce {
            environment: self.environment.clone(),
            listeners: self.asked().cloned().collect(),
            classes: self.classes.clone(),
        }
    }

    /// Puts other listeners in force, with the classes that are.
    ///
    /// # Errors
    /// As of [`Session::swap`].
    pub fn set_listeners(
        &mut self,
        environment: Environment,
        listeners: Vec<Listener>,
    ) -> Result<()> {
        let before = self.in_force();
        let classes = self.classes.list().to_vec();
        self.put_in_force(environment, listeners, &classes)?;
        self.follow_links();
        let done = self.prioritize();
        if done.is_err() {
            self.put_back_or_say(before);
        }
        done
    }

    /// Puts back what was in force, atomically for every packet. Counters of listeners and classes that were not in force
    /// meanwhile begin from zero.
    ///
    /// # Errors
    /// The kernel half refuses, or the queues cannot be prioritized again.
    pub fn put_back(&mut self, before: InForce) -> Result<()> {
        let mut classes = before.classes;
        // Limits of the controller went with the classes that were not in force meanwhile.
        classes.controlled.clone_from(&self.classes.controlled);
        self.put_in_force(before.environment, before.listeners, classes.list())?;
        self.classes = classes;
        self.follow_links();
        self.prioritize()
    }

    /// The same where there is an error already, which says why it has to be.
    pub(super) fn put_back_or_say(&mut self, before: InForce) {
        if let Err(failure) = self.put_back(before) {
            tracing::error!("what was in force is not put back whole: {failure}");
        }
    }
}
