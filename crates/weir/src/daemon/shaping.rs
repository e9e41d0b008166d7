//! Shaped interfaces (`[[shape]]`): which are, whether they still are, and what is not as asked for.
//!
//! An interface is known by its index, because its name may change. Others can take a shaper off, or a part of it: the
//! interfaces are looked at now and then, and what is missing is put back.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_core::shape::{self, Shape};
use weir_core::units::format_bit_rate;
use weir_kernel::shape::qdisc;

use crate::failure::{Failure, Result};
use crate::host::links::{self, Link};
use crate::shape::install::Wish;
use crate::shape::lock::Changes;
use crate::shape::{Backend, Owner, ingress, interface, show};

/// How often the shapers are looked at. What others take off is put back no more often than that.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long after a change of the links, of which many may come at once.
const LOOK_AFTER_CHANGE: Duration = Duration::from_millis(500);

/// The shaped interfaces of the file. Their shapers go with this value, at an orderly end.
#[derive(Debug)]
pub struct Shaping {
    list: Vec<Shape>,
    /// Interfaces of the list that are there, by index.
    there: BTreeMap<u32, There>,
    changes: Changes,
    /// When they are looked at next.
    due: Instant,
}

#[derive(Debug, Clone)]
struct There {
    link: Link,
    shape: Shape,
    /// Why it is not shaped.
    failure: Option<Failure>,
    /// When it was put there, or that was tried.
    tried: Instant,
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

/// Which interfaces are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Those that have come, gone or been renamed.
    Links,
    /// Also those that were not touched for a while.
    Now,
    /// All of them.
    All,
}

impl Shaping {
    /// None yet.
    ///
    /// # Errors
    /// The network namespace cannot be named.
    pub fn new(runtime_dir: &Path) -> Result<Shaping> {
        Ok(Shaping {
            list: Vec::new(),
            there: BTreeMap::new(),
            changes: Changes::new(runtime_dir)?,
            due: Instant::now(),
        })
    }

    /// Puts these in force. Shaped interfaces whose settings stay are left alone if nothing of their shapers is missing;
    /// one that is not there yet is shaped when it comes.
    ///
    /// # Errors
    /// An interface cannot be shaped: then all are shaped as before.
    pub fn set(&mut self, list: Vec<Shape>, links: &[Link]) -> Result<()> {
        if self.list.is_empty() && list.is_empty() {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.list, list);
        self.follow(links, Look::All);
        let failed = self.there.values().find_map(|there| there.failure.clone());
        let Some(failure) = failed else {
            return Ok(());
        };
        self.list = before;
        self.follow(links, Look::Links);
        Err(failure)
    }

    /// Shapes interfaces that have come, and takes the shapers off those that have another name now.
    pub fn follow_links(&mut self, links: &[Link]) {
        self.follow_and_tell(links, Look::Links);
        self.due = self.due.min(Instant::now() + LOOK_AFTER_CHANGE);
    }

    /// When [`Shaping::work`] has something to do; `None`: nothing is shaped.
    pub fn due_at(&self) -> Option<Instant> {
        (!self.list.is_empty()).then_some(self.due)
    }

    /// Puts back, if it is time to look, what others have taken off.
    pub fn work(&mut self, now: Instant) {
        if self.list.is_empty() || now < self.due {
            return;
        }
        match links::list() {
            Ok(links) => self.follow_and_tell(&links, Look::Now),
            Err(failure) => tracing::warn!("{failure}"),
        }
        self.due = now + LOOK_EVERY;
    }

    fn follow_and_tell(&mut self, links: &[Link], look: Look) {
        let before: Vec<_> = self.known_warnings().collect();
        self.follow(links, look);
        for warning in self.known_warnings().filter(|text| !before.contains(text)) {
            tracing::warn!("{warning}");
        }
    }

    fn follow(&mut self, links: &[Link], look: Look) {
        let mut before = std::mem::take(&mut self.there);
        let wanted = |link: &Link| self.list.iter().find(|shape| shape.dev == link.name);
        // First, so that two interfaces can swap their names.
        for link in links.iter().filter(|link| wanted(link).is_none()) {
            if before.remove(&link.index).is_some() {
                log(self.locked(|| interface::remove_of_run(link)));
            }
        }
        let mut there = BTreeMap::new();
        for link in links {
            let Some(shape) = wanted(link) else {
                continue;
            };
            let had = before.remove(&link.index);
            there.insert(link.index, self.keep(had, link, shape, links, look));
        }
        if !before.is_empty() {
            log(qdisc::unregister_unused().map_err(Failure::from));
        }
        if ingress::has_unused(links) {
            log(self.locked(ingress::remove_unused));
        }
        self.there = there;
    }

    /// Has the interface shaped as it is to be, given what it had.
    fn keep(
        &self,
        had: Option<There>,
        link: &Link,
        shape: &Shape,
        links: &[Link],
        look: Look,
    ) -> There {
        let same = had.filter(|there| there.shape == *shape && there.link.name == link.name);
        let Some(same) = same else {
            let there = self.shaped(link, shape);
            if there.failure.is_none() {
                let rate = format_bit_rate(shape.rate_bits_per_s);
                tracing::info!("shape {}: {} at {rate}", link.name, shape.discipline);
            }
            return there;
        };
        let is_looked_at = match look {
            Look::Links => false,
            Look::Now => same.tried.elapsed() >= LOOK_EVERY,
            Look::All => true,
        };
        let what = match is_looked_at {
            true => lost(link, shape, links),
            false => None,
        };
        // What failed before may work now, without another's qdisc or with a module.
        let failed = same.failure.is_some() && is_looked_at;
        if what.is_none() && !failed {
            return There {
                link: link.clone(),
                ..same
            };
        }
        let there = self.shaped(link, shape);
        match (&there.failure, what) {
            (None, Some(what)) if !failed => {
                tracing::warn!("shape {}: {what}; put back", link.name);
            }
            (None, _) => tracing::info!("shape {}: shaped now", link.name),
            (Some(_), _) => {}
        }
        there
    }

    fn shaped(&self, link: &Link, shape: &Shape) -> There {
        There {
            link: link.clone(),
            shape: shape.clone(),
            failure: self
                .locked(|| interface::install(link, wish(shape), received(shape)))
                .err(),
            tried: Instant::now(),
        }
    }

    /// Does something that changes what is shaped.
    fn locked<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let lock = self.changes.begin();
        if let Err(failure) = &lock {
            tracing::warn!("{failure}");
        }
        work()
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.known_warnings().collect();
        // There may be something that nobody has looked at yet.
        let links = links::list().unwrap_or_default();
        let shaped = self.there.values().filter(|there| there.failure.is_none());
        for There { link, shape, .. } in shaped {
            // As it is by now: it may have gone down, or away.
            let Some(link) = links.iter().find(|other| other.index == link.index) else {
                continue;
            };
            if let Some(what) = lost(link, shape, &links) {
                let dev = &shape.dev;
                warnings.push(format!(
                    "shape {dev}: {what}; weir puts it back in a few seconds"
                ));
            }
        }
        warnings
    }

    /// Of what was found when the interfaces were looked at.
    fn known_warnings(&self) -> impl Iterator<Item = String> {
        let is_there = |dev: &str| self.there.values().any(|there| there.shape.dev == dev);
        let missing = self.list.iter().filter(move |shape| !is_there(&shape.dev));
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

    /// How many are in force, and how many there are with those whose interface is not there.
    pub fn count(&self) -> (usize, usize) {
        let shaped = self.there.values().filter(|there| there.failure.is_none());
        (shaped.count(), self.list.len())
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
        shapes.retain(|shape| {
            self.there
                .values()
                .any(|there| there.link.name == shape.dev)
        });
        Ok(shapes)
    }
}

impl Drop for Shaping {
    fn drop(&mut self) {
        for there in self.there.values() {
            log(self.locked(|| interface::remove_of_run(&there.link)));
        }
    }
}

/// What is missing of a shaper, if something is. One that cannot be looked at is taken for whole.
fn lost(link: &Link, shape: &Shape, links: &[Link]) -> Option<String> {
    interface::lost(link, wish(shape), received(shape), links).unwrap_or_else(|failure| {
        tracing::debug!("{failure}");
        None
    })
}

fn log(done: Result<()>) {
    if let Err(failure) = done {
        tracing::warn!("{failure}");
    }
}
