//! Which end is in TIME-WAIT (`timewait` of a `[[destination]]` or a `[[listener]]`): the programs in force, where they
//! are attached, and what has become of the connections.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use weir_core::listener::Listener;
use weir_core::timewait::{Destination, TimeWaitMode};
use weir_core::word::Word;
use weir_kernel::{TimeWait, TimeWaitFigures};

use crate::failure::Result;
use crate::host::environment::sysctl;
use crate::host::links::Link;
use crate::show::settings::settings;

/// How often records that have ended are taken away, and the others counted.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A sweep over a large table takes milliseconds: then it comes less often, so that it takes at most this part of a CPU.
const SWEEP_SHARE: u32 = 200;

/// The longest from one sweep to the next.
const SWEEP_AT_LEAST_EVERY: Duration = Duration::from_secs(2);

/// How often connections are looked for that this end is to forget and has not: they are gone within a second.
const END_EVERY: Duration = Duration::from_millis(500);

/// The destinations in force, and the listeners that negotiate. Without one nothing is loaded.
pub struct TimeWaits {
    list: Vec<Destination>,
    /// All listeners, if one negotiates: which one a connection is of depends on those beside it.
    listeners: Vec<Listener>,
    cgroups: Option<OwnedFd>,
    kernel: Option<TimeWait>,
    /// Interfaces with the programs on them, by index: their names, or why they are not there.
    interfaces: BTreeMap<u32, std::result::Result<String, String>>,
    due: Instant,
    end_due: Instant,
    /// Why connections could not be ended.
    cannot_end: Option<String>,
    /// `net.ipv4.tcp_rfc1337` is set.
    rfc1337: bool,
}

/// What is said where it is.
const RFC1337: &str = "net.ipv4.tcp_rfc1337 = 1: TIME-WAIT that the other end holds ends here within a second, not at once";

impl TimeWaits {
    /// None yet. `cgroups`: their root, for negotiation.
    pub fn none(cgroups: Option<OwnedFd>) -> TimeWaits {
        TimeWaits {
            cgroups,
            list: Vec::new(),
            listeners: Vec::new(),
            kernel: None,
            interfaces: BTreeMap::new(),
            due: Instant::now(),
            end_due: Instant::now(),
            cannot_end: None,
            rfc1337: false,
        }
    }

    /// Puts these in force, with the namespace's listeners. Records of destinations that stay keep their time.
    ///
    /// # Errors
    /// The programs cannot be loaded, or the kernel does not take the destinations: what was in force stays.
    pub fn set(
        &mut self,
        list: Vec<Destination>,
        listeners: Vec<Listener>,
        links: &[Link],
    ) -> Result<()> {
        let concerned = |one: &Listener| one.negotiates() || one.lets_sockets_choose();
        let listeners = match listeners.iter().any(concerned) {
            true => listeners,
            false => Vec::new(),
        };
        let idle = |one: &Destination| one.timewait == TimeWaitMode::Off && !one.per_socket;
        if listeners.is_empty() && list.iter().all(idle) {
            self.kernel = None;
            self.cannot_end = None;
            self.interfaces.clear();
            (self.list, self.listeners) = (list, listeners);
            return Ok(());
        }
        let cgroups = self.cgroups.as_ref().map(AsFd::as_fd);
        match &mut self.kernel {
            Some(kernel) => kernel.apply(&list, &listeners, cgroups)?,
            None => {
                let mut kernel = TimeWait::load()?;
                kernel.apply(&list, &listeners, cgroups)?;
                self.kernel = Some(kernel);
            }
        }
        (self.list, self.listeners) = (list, listeners);
        self.rfc1337 = sysctl("net/ipv4/tcp_rfc1337") == Some(1);
        self.follow_links(links);
        Ok(())
    }

    /// The destinations in force.
    pub fn list(&self) -> &[Destination] {
        &self.list
    }

    /// The listeners in force with them; none if none negotiates.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
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

    /// When there is work; `None`: there is none.
    pub fn due_at(&self) -> Option<Instant> {
        self.kernel.as_ref().map(|_| self.due.min(self.end_due))
    }

    /// Takes away the records that have ended, and ends connections that this end is to forget, if it is time to.
    pub fn work(&mut self, now: Instant) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        if self.due <= now {
            let begun = Instant::now();
            let swept = kernel.sweep();
            let pause = SWEEP_SHARE * begun.elapsed();
            self.due = now + pause.clamp(SWEEP_EVERY, SWEEP_AT_LEAST_EVERY);
            if let Err(error) = swept {
                tracing::warn!("{error}");
            }
            self.rfc1337 = sysctl("net/ipv4/tcp_rfc1337") == Some(1);
        }
        if self.end_due <= now {
            self.end_due = now + END_EVERY;
            let failed = kernel.sweep_endings().err().map(|error| error.to_string());
            if let Some(error) = failed.as_ref().filter(|_| self.cannot_end != failed) {
                tracing::warn!("{error}");
            }
            self.cannot_end = failed;
        }
    }

    fn negotiates(&self) -> bool {
        let by_destination =
            |one: &Destination| one.timewait == TimeWaitMode::Negotiate || one.per_socket;
        !self.listeners.is_empty() || self.list.iter().any(by_destination)
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let interfaces = self.interfaces.values();
        let interfaces = interfaces.filter_map(|at| at.as_ref().err().map(String::as_str));
        interfaces
            .chain(
                self.kernel
                    .iter()
                    .flat_map(TimeWait::warnings)
                    .map(String::as_str),
            )
            .chain(self.cannot_end.as_deref())
            .chain(
                self.negotiates()
                    .then_some(RFC1337)
                    .filter(|_| self.rfc1337),
            )
    }

    /// Every destination with its figures.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn report(&self) -> Result<Vec<weir_api::Destination>> {
        self.list.iter().map(|one| self.report_of(one)).collect()
    }

    /// Adds its figures to a listener's report.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn add_to(&self, listener: &mut weir_api::Listener) -> Result<()> {
        let known = self.listeners.iter().any(|one| one.name == listener.name);
        if let Some(kernel) = self.kernel.as_ref().filter(|_| known) {
            listener.timewait = figures_of(kernel.listener_figures(&listener.name)?);
        }
        Ok(())
    }

    /// The figures of connections that no rule has and that negotiate because their application asked; `None` where none
    /// may ask.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn asked(&self) -> Result<Option<weir_api::TimeWait>> {
        let may_ask = self.list.iter().any(|one| one.per_socket)
            || self.listeners.iter().any(Listener::lets_sockets_choose);
        let kernel = self.kernel.as_ref().filter(|_| may_ask);
        kernel
            .map(|kernel| Ok(figures_of(kernel.asked_figures()?)))
            .transpose()
    }

    fn report_of(&self, one: &Destination) -> Result<weir_api::Destination> {
        let figures = match &self.kernel {
            Some(kernel) => kernel.figures(&one.name)?,
            None => TimeWaitFigures::default(),
        };
        let mut settings = settings(one);
        settings.retain(|key, _| !["name", "timewait"].contains(&key.as_str()));
        Ok(weir_api::Destination {
            name: one.name.clone(),
            mode: one.timewait.word().to_owned(),
            timewait: figures_of(figures),
            settings: settings.into_iter().collect(),
        })
    }
}

fn figures_of(figures: TimeWaitFigures) -> weir_api::TimeWait {
    weir_api::TimeWait {
        held: figures.held,
        avoided: figures.avoided,
        held_by_peer: figures.held_by_peer,
        swapped: figures.swapped,
        reused: figures.reused,
        refused: figures.refused,
        fallback: figures.fallback,
        bytes: figures.bytes(),
    }
}
