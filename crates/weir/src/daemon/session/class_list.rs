//! The classes in force and the rates that the controller has set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_core::class::{Class, OTHER};
use weir_core::controller;
use weir_kernel::CONTROLLED_FOR;

/// A limit that stays the same is renewed so often: thousands of classes may be held at the least.
const RENEWED: Duration = Duration::from_secs(1);

/// Classes in force, without those of proxies, and the rates that the controller has set.
#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    pub list: Vec<Class>,
    /// As the file has them that is in force.
    of_file: Vec<Class>,
    pub controlled: BTreeMap<String, Controlled>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Controlled {
    pub limit: controller::Limit,
    pub until: Instant,
}

impl Controlled {
    /// Whether the kernel half must be told: of another limit, or of the same one once more.
    pub fn needs_writing(&self, limit: controller::Limit, now: Instant) -> bool {
        limit != self.limit || self.until.saturating_duration_since(now) < CONTROLLED_FOR - RENEWED
    }
}

impl Classes {
    pub fn new(classes: Vec<Class>) -> Classes {
        let list: Vec<Class> = classes.into_iter().filter(Class::is_guarded).collect();
        Classes {
            of_file: list.clone(),
            list,
            controlled: BTreeMap::new(),
        }
    }

    /// Those of another file in their place; what is controlled stays so.
    pub fn of_file(&self, classes: Vec<Class>) -> Classes {
        let mut next = self.replaced(classes);
        next.of_file.clone_from(&next.list);
        next
    }

    /// Others in their place; what is controlled stays so.
    pub fn replaced(&self, classes: Vec<Class>) -> Classes {
        let mut next = Classes::new(classes);
        next.of_file.clone_from(&self.of_file);
        next.controlled = self.controlled.clone();
        next.controlled
            .retain(|name, _| name == OTHER || next.list.iter().any(|c| c.name == *name));
        next
    }

    pub fn of_file_now(&self) -> &[Class] {
        &self.of_file
    }

    pub fn note_of_file(&mut self, classes: Vec<Class>) {
        self.of_file = classes;
    }

    pub fn list(&self) -> &[Class] {
        &self.list
    }

    /// What was changed since the file was read, and is no more so with the classes of another one: a sentence each.
    pub fn undone_by(&self, next: &[Class]) -> Vec<String> {
        fn by_name(classes: &[Class]) -> BTreeMap<&str, &Class> {
            let guarded = classes.iter().filter(|class| class.is_guarded());
            guarded.map(|class| (class.name.as_str(), class)).collect()
        }
        let [list, of_file, next] = [&self.list, &self.of_file, next].map(by_name);
        let names: BTreeSet<&str> = list.keys().chain(of_file.keys()).copied().collect();
        let undone = names.into_iter().filter_map(|name| {
            let [now, before, next] = [&list, &of_file, &next].map(|classes| classes.get(name));
            let (is, was) = match (now, next) {
                _ if now == before || now == next => return None,
                (Some(_), Some(_)) => ("has the keys of the file again", "changed"),
                (Some(_), None) if before.is_none() => ("has gone: it is not in the file", "added"),
                (Some(_), None) => ("has gone: it is not in the file", "changed"),
                (None, _) => ("is in force again: it is in the file", "removed"),
            };
            Some(format!("class {name:?} {is}, and was {was} while weir ran"))
        });
        undone.collect()
    }

    pub fn controlled_rate(&self, name: &str) -> Option<f64> {
        let controlled = self.controlled.get(name)?;
        (Instant::now() < controlled.until).then_some(controlled.limit.rate)
    }
}
