//! The classes of a session: changed by the file, by `weir class`, by the API and by the controller,
//! one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_core::class::{Class, OTHER, OTHER_PRIORITY};
use weir_core::config::{Fault, Given, change, check_classes};
use weir_core::controller;
use weir_core::listener::Listener;
use weir_kernel::CONTROLLED_FOR;

use super::Session;
use crate::backend::Backend;
use crate::failure::{Code, Failure, Result};
use crate::report::{ClassReport, counters_that_fell};

/// Classes of one listener that `weir status` lists; `weir class list` has all.
const STATUS_CLASSES: usize = 1000;

/// Classes in force, without those of proxies, and the rates that the controller has set.
#[derive(Debug, Default)]
pub(super) struct Classes {
    list: Vec<Class>,
    controlled: BTreeMap<String, Controlled>,
}

#[derive(Debug, Clone, Copy)]
struct Controlled {
    rate: f64,
    until: Instant,
}

impl Classes {
    pub fn new(classes: Vec<Class>) -> Classes {
        Classes {
            list: classes.into_iter().filter(Class::is_guarded).collect(),
            controlled: BTreeMap::new(),
        }
    }

    /// Others in their place; what is controlled stays so.
    pub fn replaced(&self, classes: Vec<Class>) -> Classes {
        let mut next = Classes::new(classes);
        next.controlled = self.controlled.clone();
        next.controlled
            .retain(|name, _| name == OTHER || next.list.iter().any(|c| c.name == *name));
        next
    }

    pub fn list(&self) -> &[Class] {
        &self.list
    }

    /// The names of the classes that have a controlled rate.
    fn controlled(&self) -> Vec<String> {
        self.controlled.keys().cloned().collect()
    }

    fn controlled_rate(&self, name: &str) -> Option<f64> {
        let controlled = self.controlled.get(name)?;
        (Instant::now() < controlled.until).then_some(controlled.rate)
    }
}

impl<B: Backend> Session<B> {
    /// The classes in force, without those of proxies.
    pub fn classes(&self) -> &[Class] {
        self.classes.list()
    }

    /// Adds a class.
    ///
    /// # Errors
    /// One of this name is there, or it ties with another one, or names no listener; nothing changes.
    pub fn add_class(&mut self, name: &str, keys: &BTreeMap<String, Given>) -> Result<()> {
        if self.classes().iter().any(|class| class.name == name) {
            let hint = "`weir class set` changes it";
            return Err(Failure::usage(
                format!("there is a class {name:?} already"),
                hint,
            ));
        }
        let class = changed(&Class::new(""), name, keys, true)?;
        let mut classes = self.classes().to_vec();
        classes.push(class);
        self.replace_classes(classes)
    }

    /// Changes these keys of a class; the others keep their values.
    ///
    /// # Errors
    /// As [`Session::add_class`], or no class has this name.
    pub fn set_class(&mut self, name: &str, keys: &BTreeMap<String, Given>) -> Result<()> {
        let index = self.class_index(name)?;
        let mut classes = self.classes().to_vec();
        classes[index] = changed(&classes[index], name, keys, false)?;
        self.replace_classes(classes)
    }

    /// Removes a class.
    ///
    /// # Errors
    /// No class has this name.
    pub fn remove_class(&mut self, name: &str) -> Result<()> {
        let index = self.class_index(name)?;
        let mut classes = self.classes().to_vec();
        classes.remove(index);
        self.replace_classes(classes)
    }

    /// Puts other classes in force, atomically for every packet; those that stay keep bucket and
    /// counters.
    ///
    /// # Errors
    /// They tie, name no listener, or are too many; those in force then stay.
    pub fn replace_classes(&mut self, classes: Vec<Class>) -> Result<()> {
        let next = self.classes.replaced(classes);
        let listeners: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        check_classes(next.list(), &listeners)
            .map_err(|(class, fault)| class_failure(&class, fault))?;
        self.backend.set_classes(next.list())?;
        self.classes = next;
        self.prioritize()
    }

    /// The names of the classes whose rate the controller has set.
    pub fn controlled(&self) -> Vec<String> {
        self.classes.controlled()
    }

    /// Sets or lifts the controller's limit of a class (or of `other`). It holds beside the class's own,
    /// the lower rate, and ends by itself after [`CONTROLLED_FOR`].
    ///
    /// # Errors
    /// No class has this name.
    pub fn set_controlled_rate(
        &mut self,
        name: &str,
        limit: Option<controller::Limit>,
    ) -> Result<()> {
        let of_bucket = limit.map(|limit| limit.of_bucket());
        self.backend.set_controlled_rate(name, of_bucket.as_ref())?;
        let until = Instant::now() + CONTROLLED_FOR;
        match limit {
            Some(limit) => {
                let rate = limit.rate;
                let controlled = Controlled { rate, until };
                self.classes.controlled.insert(name.to_owned(), controlled);
            }
            None => {
                self.classes.controlled.remove(name);
            }
        }
        Ok(())
    }

    /// Every class with its limits and counters, `other` last.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn class_reports(&self) -> Result<Vec<ClassReport>> {
        self.reports(self.classes().iter())
    }

    /// The classes of one listener, `other` last. Counters are of all of a class's listeners.
    pub(super) fn classes_of(&self, listener: &str) -> Result<Vec<ClassReport>> {
        let its = self
            .classes()
            .iter()
            .filter(|class| class.is_of_listener(listener));
        let mut reports = self.reports(its.take(STATUS_CLASSES))?;
        if reports.len() == 1 && reports[0].controlled_rate.is_none() {
            reports.clear();
        }
        Ok(reports)
    }

    fn reports<'a>(&self, classes: impl Iterator<Item = &'a Class>) -> Result<Vec<ClassReport>> {
        let of = |name: &str, priority| -> Result<ClassReport> {
            Ok(ClassReport {
                name: name.to_owned(),
                priority,
                controlled_rate: self.classes.controlled_rate(name),
                counters: counters_that_fell(&self.backend.class_counters(name)?),
                ..ClassReport::default()
            })
        };
        let mut reports = Vec::new();
        for class in classes {
            reports.push(ClassReport {
                rate: class.rate,
                burst: class.burst_in_force(),
                settings: crate::commands::check::settings(class),
                ..of(&class.name, class.priority)?
            });
        }
        reports.push(of(OTHER, OTHER_PRIORITY)?);
        for report in &mut reports {
            for key in ["name", "priority", "rate", "burst"] {
                report.settings.remove(key);
            }
        }
        Ok(reports)
    }

    fn class_index(&self, name: &str) -> Result<usize> {
        let index = self.classes().iter().position(|class| class.name == name);
        index.ok_or_else(|| {
            let names: Vec<&str> = self.classes().iter().map(|c| c.name.as_str()).collect();
            let hint = match weir_core::config::did_you_mean(name, &names) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => "`weir class list` names them".to_owned(),
            };
            Failure::usage(format!("no class is named {name:?}"), hint)
        })
    }
}

/// The class with these keys changed. A class that is only changed keeps its name.
fn changed(
    class: &Class,
    name: &str,
    keys: &BTreeMap<String, Given>,
    is_new: bool,
) -> Result<Class> {
    let name = Given::Text(name.to_owned());
    let name = is_new.then_some(("name", &name));
    let keys = keys.iter().map(|(key, given)| (key.as_str(), given));
    let changed = change(class, name.into_iter().chain(keys));
    changed.map_err(|fault| class_failure(&class.name, fault))
}

fn class_failure(name: &str, fault: Fault) -> Failure {
    match name {
        "" => Failure::fault(Code::Usage, "class", fault),
        name => Failure::fault(Code::Usage, format_args!("class {name:?}"), fault),
    }
}
