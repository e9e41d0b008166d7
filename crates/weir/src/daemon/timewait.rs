//! TIME-WAIT of the connections that this machine opens (`[[destination]]`): the programs in force, where they are
//! attached, and what has become of the connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_core::timewait::{Destination, TimeWaitMode};
use weir_core::word::Word;
use weir_kernel::TimeWait;

use crate::failure::Result;
use crate::host::links::Link;
use crate::show::settings::settings;

/// How often records that have ended are taken away.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The destinations in force. Without one nothing is loaded.
pub struct Destinations {
    list: Vec<Destination>,
    kernel: Option<TimeWait>,
    /// Interfaces with the programs on them, by index: their names, or why they are not there.
    interfaces: BTreeMap<u32, std::result::Result<String, String>>,
    due: Instant,
}

impl Destinations {
    /// None yet.
    pub fn none() -> Destinations {
        Destinations {
            list: Vec::new(),
            kernel: None,
            interfaces: BTreeMap::new(),
            due: Instant::now(),
        }
    }

    /// Puts these in force. Records of destinations that stay keep their time.
    ///
    /// # Errors
    /// The programs cannot be loaded, or the kernel does not take the destinations: what was in force stays.
    pub fn set(&mut self, list: Vec<Destination>, links: &[Link]) -> Result<()> {
        if list.iter().all(|one| one.timewait == TimeWaitMode::Off) {
            self.kernel = None;
            self.interfaces.clear();
            self.list = list;
            return Ok(());
        }
        match &mut self.kernel {
            Some(kernel) => kernel.apply(&list)?,
            None => {
                let mut kernel = TimeWait::load()?;
                kernel.apply(&list)?;
                self.kernel = Some(kernel);
            }
        }
        self.list = list;
        self.follow_links(links);
        Ok(())
    }

    /// Attaches to interfaces that have come. One that is a port of another carries none of the host's connections.
    pub fn follow_links(&mut self, links: &[Link]) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let wanted: BTreeMap<u32, &Link> = links
            .iter()
            .filter(|link| !link.port)
            .map(|link| (link.index, link))
            .collect();
        self.interfaces.retain(|index, _| {
            let stays = wanted.contains_key(index);
            if !stays {
                kernel.detach(*index);
            }
            stays
        });
        for (index, link) in wanted {
            let attached = kernel.attach(index);
            let attached = attached.map(|()| link.name.clone());
            let failed = |error| format!("destinations through {}: {error}", link.name);
            self.interfaces.insert(index, attached.map_err(failed));
        }
    }

    /// Time until there is work; `None`: there is none.
    pub fn due_in(&self) -> Option<Duration> {
        let due = self.due.saturating_duration_since(Instant::now());
        self.kernel.as_ref().map(|_| due)
    }

    /// Takes away the records that have ended, if it is time to.
    pub fn work(&mut self) {
        let now = Instant::now();
        let Some(kernel) = self.kernel.as_mut().filter(|_| self.due <= now) else {
            return;
        };
        self.due = now + SWEEP_EVERY;
        if let Err(error) = kernel.sweep() {
            tracing::warn!("{error}");
        }
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.interfaces.values().filter_map(|at| at.as_ref().err())
    }

    /// Every destination with its figures.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn report(&self) -> Result<Vec<weir_api::Destination>> {
        self.list.iter().map(|one| self.report_of(one)).collect()
    }

    fn report_of(&self, one: &Destination) -> Result<weir_api::Destination> {
        let figures = match &self.kernel {
            Some(kernel) => kernel.figures(&one.name)?,
            None => weir_kernel::TimeWaitFigures::default(),
        };
        let mut settings = settings(one);
        settings.retain(|key, _| !["name", "timewait"].contains(&key.as_str()));
        Ok(weir_api::Destination {
            name: one.name.clone(),
            mode: one.timewait.word().to_owned(),
            timewait: weir_api::TimeWait {
                held: figures.held,
                swapped: figures.swapped,
                reused: figures.reused,
                refused: figures.refused,
                fallback: figures.fallback,
                bytes: figures.bytes(),
            },
            settings: settings.into_iter().collect(),
        })
    }
}
