//! Shaped interfaces (`[[shape]]`): which are, since when they are there, and what is not as asked for.

use std::collections::BTreeMap;

use weir_core::shape::{self, Shape};
use weir_kernel::shape::qdisc;

use crate::failure::{Failure, Result};
use crate::host::links::Link;
use crate::shape::install::Wish;
use crate::shape::{Backend, Owner, ingress, interface, show};

/// The shaped interfaces of the file. Their shapers go with this value, at an orderly end.
#[derive(Debug, Default)]
pub struct Shaping {
    list: Vec<Shape>,
    /// Interfaces that are there, by name.
    there: BTreeMap<String, There>,
}

#[derive(Debug, Clone)]
struct There {
    link: Link,
    shape: Shape,
    /// Why it is not shaped.
    failure: Option<Failure>,
}

/// What is to be done about an interface.
pub fn wish(shape: &Shape) -> Wish {
    Wish {
        discipline: shape.discipline,
        rate: shape.rate_bits_per_s / 8,
        backend: match shape.backend {
            shape::Backend::Auto => None,
            shape::Backend::Tc => Some(Backend::Tc),
            shape::Backend::Bpf => Some(Backend::Bpf),
        },
        owner: Owner::Run,
    }
}

/// The rate of what it receives, bytes/s.
fn received(shape: &Shape) -> Option<u64> {
    shape.ingress_bits_per_s.map(|rate| rate / 8)
}

impl Shaping {
    /// Puts these in force. Shaped interfaces whose settings stay are left alone; one that is not there yet is shaped
    /// when it comes.
    ///
    /// # Errors
    /// An interface cannot be shaped: then all are shaped as before.
    pub fn set(&mut self, list: Vec<Shape>, links: &[Link]) -> Result<()> {
        let before = std::mem::replace(&mut self.list, list);
        // What failed before may work now, without another's qdisc or with a module.
        self.there.retain(|_, there| there.failure.is_none());
        self.follow(links);
        let failed = self.there.values().find_map(|there| there.failure.clone());
        let Some(failure) = failed else {
            return Ok(());
        };
        self.list = before;
        self.follow(links);
        Err(failure)
    }

    /// Shapes interfaces that have come.
    pub fn follow_links(&mut self, links: &[Link]) {
        let before: Vec<_> = self.warnings().collect();
        self.follow(links);
        for warning in self.warnings().filter(|text| !before.contains(text)) {
            tracing::warn!("{warning}");
        }
    }

    fn follow(&mut self, links: &[Link]) {
        let wanted = |name: &str| self.list.iter().find(|shape| shape.dev == name);
        let link = |name: &str| links.iter().find(|link| link.name == name);
        let stays = |there: &There| {
            let (name, index) = (&there.link.name, there.link.index);
            let is_there = link(name).is_some_and(|link| link.index == index);
            (is_there, wanted(name) == Some(&there.shape))
        };
        let mut is_gone = false;
        let before = std::mem::take(&mut self.there);
        let mut kept = BTreeMap::new();
        for (name, there) in before {
            match stays(&there) {
                (true, true) => drop(kept.insert(name, there)),
                // Its shaper is replaced below.
                (true, false) if wanted(&name).is_some() => {}
                (true, false) => there.remove(),
                (false, _) => is_gone = true,
            }
        }
        if is_gone {
            log(qdisc::unregister_unused().map_err(Failure::from));
            log(ingress::remove_unused());
        }
        for shape in &self.list {
            let Some(link) = link(&shape.dev).filter(|_| !kept.contains_key(&shape.dev)) else {
                continue;
            };
            kept.insert(shape.dev.clone(), There::shaped(link, shape));
        }
        self.there = kept;
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let missing = self
            .list
            .iter()
            .filter(|shape| !self.there.contains_key(&shape.dev));
        let missing = missing.map(|shape| {
            let dev = &shape.dev;
            format!("shape {dev}: there is no such interface; it is shaped when it comes")
        });
        let failed = self.there.values().filter_map(|there| {
            let failure = there.failure.as_ref()?;
            Some(format!("shape {}: {failure}", there.link.name))
        });
        missing.chain(failed)
    }

    /// Those in force, also those whose interface is not there.
    pub fn list(&self) -> &[Shape] {
        &self.list
    }

    /// How many there are, also those whose interface is not there.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The shaped interfaces with what their queues have counted.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn report(&self) -> Result<Vec<weir_api::Shape>> {
        if self.there.is_empty() {
            return Ok(Vec::new());
        }
        let mut shapes = show::shapes()?;
        shapes.retain(|shape| self.there.contains_key(&shape.dev));
        Ok(shapes)
    }
}

impl Drop for Shaping {
    fn drop(&mut self) {
        self.there.values().for_each(There::remove);
    }
}

impl There {
    fn shaped(link: &Link, shape: &Shape) -> There {
        There {
            link: link.clone(),
            shape: shape.clone(),
            failure: interface::install(link, wish(shape), received(shape)).err(),
        }
    }

    fn remove(&self) {
        if self.failure.is_none() {
            log(interface::remove(&self.link).map(drop));
        }
    }
}

fn log(done: Result<()>) {
    if let Err(failure) = done {
        tracing::warn!("{failure}");
    }
}
