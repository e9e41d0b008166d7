//! The classes of a session: changed by the file, by `weir class`, by the API and by the controller,
//! one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use weir_config::{Fault, check_classes};
use weir_core::class::{BucketLimit, Class, OTHER, OTHER_PRIORITY};
use weir_core::controller;
use weir_kernel::CONTROLLED_FOR;

use super::Session;
use super::class_list::Controlled;
use crate::daemon::backend::Backend;
use crate::daemon::report::class_counters_that_fell;
use crate::failure::{Code, Failure, Result};

/// Classes of one listener that `weir status` lists; `weir class list` has all.
const STATUS_CLASSES: usize = 1000;

impl<B: Backend> Session<B> {
    /// The classes in force, without those of proxies.
    pub fn classes(&self) -> &[Class] {
        self.classes.list()
    }

    /// Their names and `other`, by their slots in the kernel half; none where there is no class.
    pub fn class_names(&self) -> BTreeMap<u32, Arc<str>> {
        self.backend.class_names()
    }

    /// The classes as the file has them that is in force.
    pub fn classes_of_file(&self) -> &[Class] {
        self.classes.of_file_now()
    }

    /// The file that is in force has these, whatever is in force of them.
    pub fn note_classes_of_file(&mut self, classes: Vec<Class>) {
        self.classes.note_of_file(classes);
    }

    /// What `weir class` and the API have changed, and a file with these classes would undo: a sentence each.
    pub fn undone_by(&self, next: &[Class]) -> Vec<String> {
        self.classes.undone_by(next)
    }

    /// Puts other classes in force, atomically for every packet; those that stay keep bucket and
    /// counters.
    ///
    /// # Errors
    /// They tie, name no listener, or are too many; those in force then stay.
    pub fn replace_classes(&mut self, classes: Vec<Class>) -> Result<()> {
        classes.iter().try_for_each(check_guarded)?;
        let next = self.classes.replaced(classes);
        let listeners = self.all_listeners();
        let is_there = |wanted: &String| listeners.iter().any(|(name, _)| wanted == name);
        let is_known = |class: &Class| class.listener.as_ref().is_none_or(is_there);
        let code = match next.list().iter().all(is_known) {
            true => Code::Conflict,
            false => Code::Usage,
        };
        check_classes(next.list(), &listeners)
            .map_err(|(class, fault)| class_failure(code, &class, fault))?;
        self.backend.set_classes(next.list())?;
        self.classes = next;
        self.prioritize()
    }

    /// The names and ports of those of every network namespace, each once, and of QUIC listeners.
    fn all_listeners(&self) -> Vec<(&str, u16)> {
        let tcp = self.asked().chain(&self.elsewhere);
        let tcp = tcp.map(|one| (one.name.as_str(), one.address.port));
        let quic = self.quic.iter().map(|(name, port)| (name.as_str(), *port));
        let mut all: Vec<(&str, u16)> = Vec::new();
        for one in tcp.chain(quic) {
            if all.iter().all(|(name, _)| *name != one.0) {
                all.push(one);
            }
        }
        all
    }

    fn has_several(&self) -> bool {
        self.policies.len() > 1 || !self.elsewhere.is_empty() || !self.quic.is_empty()
    }

    /// Sets the controller's limits of these classes (or of `other`), and lifts all others. A limit holds
    /// beside the class's own, the lower rate, and ends by itself after [`CONTROLLED_FOR`]. A class that has gone
    /// meanwhile is left out.
    ///
    /// # Errors
    /// The kernel half refuses.
    pub fn control(
        &mut self,
        limits: &BTreeMap<String, controller::Limit>,
        now: Instant,
    ) -> Result<()> {
        let until = now + CONTROLLED_FOR;
        let names: BTreeSet<&str> = self.classes().iter().map(|c| c.name.as_str()).collect();
        let is_there = |name: &str| name == OTHER || names.contains(name);
        let controlled = |limit| Controlled { limit, until };
        let next: BTreeMap<String, Controlled> = limits
            .iter()
            .filter(|(name, _)| is_there(name))
            .map(|(name, limit)| (name.clone(), controlled(*limit)))
            .collect();
        let lifted = self.classes.controlled.keys();
        let lifted = lifted.filter(|name| !next.contains_key(*name));
        let mut changes: BTreeMap<String, Option<BucketLimit>> =
            lifted.map(|name| (name.clone(), None)).collect();
        for (name, one) in &next {
            let before = self.classes.controlled.get(name);
            if before.is_none_or(|before| before.needs_writing(one.limit, now)) {
                changes.insert(name.clone(), Some(one.limit.of_bucket()));
            }
        }
        self.backend.set_controlled_rates(&changes)?;
        let controlled = &mut self.classes.controlled;
        controlled.retain(|name, _| next.contains_key(name));
        let written = next
            .into_iter()
            .filter(|(name, _)| changes.contains_key(name));
        controlled.extend(written);
        Ok(())
    }

    /// Every class with its limits and counters, `other` last.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn class_reports(&self) -> Result<Vec<weir_api::Class>> {
        self.reports(self.classes().iter())
    }

    /// The classes of one listener, and how many more there are. Counters are of classes, not of listeners: where there are
    /// several listeners those of a class of all are in [`Session::classes_of_all`].
    pub(super) fn classes_of(&self, listener: &str) -> Result<(Vec<weir_api::Class>, usize)> {
        match self.has_several() {
            true => self.classes_that_name(listener),
            false => self.some_classes(|class| class.is_of_listener(listener), true),
        }
    }

    /// The classes that name this listener, wherever it is, and how many more there are.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn classes_that_name(&self, listener: &str) -> Result<(Vec<weir_api::Class>, usize)> {
        self.some_classes(|class| class.listener.as_deref() == Some(listener), false)
    }

    /// The classes of all listeners, `other` last, and how many more there are; none where one listener has them.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn classes_of_all(&self) -> Result<(Vec<weir_api::Class>, usize)> {
        match self.has_several() {
            true => self.some_classes(|class| class.listener.is_none(), true),
            false => Ok((Vec::new(), 0)),
        }
    }

    /// The first of these classes, then `other` if it is of them, and how many more there are. `other` alone, without a
    /// limit, says nothing.
    fn some_classes(
        &self,
        is_one: impl Fn(&Class) -> bool,
        with_other: bool,
    ) -> Result<(Vec<weir_api::Class>, usize)> {
        let wanted = self.classes().iter().filter(|class| is_one(class));
        let left_out = wanted.clone().count().saturating_sub(STATUS_CLASSES);
        let mut reports = self.reports(wanted.take(STATUS_CLASSES))?;
        let is_other_alone = reports.len() == 1 && reports[0].controlled_rate.is_none();
        if !with_other || is_other_alone && self.classes().is_empty() {
            reports.pop();
        }
        Ok((reports, left_out))
    }

    fn reports<'a>(
        &self,
        classes: impl Iterator<Item = &'a Class>,
    ) -> Result<Vec<weir_api::Class>> {
        let counters = self.class_counters()?;
        let of = |name: &str, priority| weir_api::Class {
            name: name.to_owned(),
            priority,
            controlled_rate: self.classes.controlled_rate(name),
            waiting: self.queues.waiting_of(name),
            counters: counters
                .get(name)
                .map(class_counters_that_fell)
                .unwrap_or_default(),
            ..weir_api::Class::default()
        };
        let mut reports = Vec::new();
        for class in classes {
            reports.push(weir_api::Class {
                rate: class.rate,
                burst: class.burst_in_force(),
                settings: crate::show::settings::settings(class).into_iter().collect(),
                ..of(&class.name, class.priority)
            });
        }
        reports.push(of(OTHER, OTHER_PRIORITY));
        for report in &mut reports {
            for key in ["name", "priority", "rate", "burst"] {
                report.settings.remove(key);
            }
        }
        Ok(reports)
    }
}

/// Refuses a class of a proxy's clients: those are in the file, which the proxy reads.
///
/// # Errors
/// It is one.
fn check_guarded(class: &Class) -> Result<()> {
    if class.is_guarded() {
        return Ok(());
    }
    let message = "proxy: classes of a proxy's clients are changed in its config file only";
    let fault = Fault::new(message, "write it there, then `weir reload`");
    Err(class_failure(Code::Usage, &class.name, fault))
}

fn class_failure(code: Code, name: &str, fault: Fault) -> Failure {
    Failure::fault(code, format_args!("class {name:?}"), fault)
}
