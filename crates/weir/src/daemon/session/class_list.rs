//! The classes in force and the rates that the controller has set.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_core::class::{Class, OTHER};
use weir_core::controller;
use weir_kernel::CONTROLLED_FOR;

/// A limit that stays the same is renewed so often: thousands of classes may be held at the least.
const RENEWED: Duration = Duration::from_secs(1);

/// Classes in force, without those of proxies, and the rates that the controller has set.
#[derive(Debug, Default)]
pub(super) struct Classes {
    pub list: Vec<Class>,
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

    pub fn controlled_rate(&self, name: &str) -> Option<f64> {
        let controlled = self.controlled.get(name)?;
        (Instant::now() < controlled.until).then_some(controlled.limit.rate)
    }
}
