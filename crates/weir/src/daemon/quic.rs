//! Guarding QUIC servers (`[[quic]]`): the listeners in force, and where their programs are attached.

mod elsewhere;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_config::Table;
use weir_core::controller::{ListenerReading, Settings};
use weir_core::listener::{ListenAddress, Mode};
use weir_core::quic::{QuicCounters, QuicListener, QuicSocket};
use weir_core::refusals::Refusal;
use weir_kernel::{Around, Namespace, Quic};

use crate::daemon::backend::Backend;
use crate::daemon::controller::quic_reading;
use crate::failure::{Cause, Result};
use crate::host::links::Link;
use crate::show::{describe, quic};

pub use elsewhere::Sight;

/// Between two looks at programs that are on their way to an interface.
const LOOKS: Duration = Duration::from_millis(2);

/// A QUIC listener at one moment, as the log and the sampled refusals want it.
#[derive(Debug, Clone)]
pub struct QuicGlance {
    /// It, with its policy.
    pub listener: QuicListener,
    /// What was done since it is guarded.
    pub counters: QuicCounters,
    /// Attempts that were let in and are not answered, over all sockets.
    pub pending: u32,
    /// The longest wait for an answer; `None` while not known.
    pub wait: Option<Duration>,
    /// The largest share of a receive buffer that was taken, 0 to 1.
    pub fullest: f64,
    /// Whether the wait has stood over the target, at some socket.
    pub waits_too_long: bool,
    /// The sockets to which attempts have come of late.
    pub sockets: Vec<QuicSocket>,
}

impl QuicGlance {
    fn new(listener: &QuicListener, counters: QuicCounters, sockets: &[QuicSocket]) -> QuicGlance {
        let over =
            |socket: &QuicSocket| socket.standing && socket.wait >= Some(listener.target_wait);
        QuicGlance {
            listener: listener.clone(),
            counters,
            pending: sockets.iter().map(|socket| socket.pending).sum(),
            wait: sockets.iter().filter_map(|socket| socket.wait).max(),
            fullest: sockets.iter().map(QuicSocket::fullness).fold(0.0, f64::max),
            waits_too_long: sockets.iter().any(over),
            sockets: sockets.to_vec(),
        }
    }
}

/// The QUIC listeners in force. Without one nothing is loaded.
pub struct QuicGuard {
    list: Vec<QuicListener>,
    /// Where they are, and the numbers by which rules of classes know them.
    around: Around,
    /// The namespaces in which those with `where` are.
    sights: Vec<Sight>,
    /// What is not as it should be there.
    trouble: Vec<String>,
    /// Beside which they are.
    controller: Option<Settings>,
    kernel: Option<Quic>,
    /// Interfaces with the programs on them, by index: their names, or why they are not there.
    interfaces: BTreeMap<u32, std::result::Result<String, String>>,
}

impl QuicGuard {
    /// None yet.
    pub fn none() -> QuicGuard {
        QuicGuard {
            list: Vec::new(),
            around: Around::default(),
            sights: Vec::new(),
            trouble: Vec::new(),
            controller: None,
            kernel: None,
            interfaces: BTreeMap::new(),
        }
    }

    /// Puts these in force, beside this controller. A listener that stays keeps its counters.
    ///
    /// # Errors
    /// The programs cannot be loaded, or the kernel does not take the listeners: what was in force is again.
    pub fn set(
        &mut self,
        list: Vec<QuicListener>,
        controller: Option<Settings>,
        links: &[Link],
        backend: &mut impl Backend,
    ) -> Result<()> {
        if list.is_empty() {
            if let Some(kernel) = &mut self.kernel {
                kernel.leave_elsewhere();
            }
            *self = QuicGuard::none();
            return Ok(());
        }
        let names: Vec<&str> = list.iter().map(|one| one.name.as_str()).collect();
        // Those with `where` are in force where they were, until they are looked for.
        let around = Around {
            owners: backend.quic_owners(&names),
            namespaces: self.around.namespaces.clone(),
        };
        let fitted = beside(&list, controller.as_ref());
        match &mut self.kernel {
            Some(kernel) => {
                if let Err(error) = kernel.apply(&fitted, &around) {
                    kernel.apply(&beside(&self.list, self.controller.as_ref()), &self.around)?;
                    return Err(error.into());
                }
            }
            None => {
                let mut kernel = backend.load_quic()?;
                kernel.apply(&fitted, &around)?;
                self.kernel = Some(kernel);
            }
        }
        (self.list, self.around, self.controller) = (list, around, controller);
        if !self.is_elsewhere() {
            self.follow_sights(Vec::new());
        }
        self.attach(links);
        Ok(())
    }

    /// Whether some are in other network namespaces.
    pub fn is_elsewhere(&self) -> bool {
        self.list.iter().any(QuicListener::is_elsewhere)
    }

    /// Has them in force where their servers are now. Whether that is otherwise than before in weir's own namespace.
    pub fn follow_sights(&mut self, sights: Vec<Sight>) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        kernel.follow_attached();
        let mut trouble = elsewhere::attach(kernel, &sights);
        let wanted = elsewhere::namespaces(&sights);
        if self.around.namespaces != wanted {
            let before = std::mem::replace(&mut self.around.namespaces, wanted);
            if let Err(error) = self.reapply() {
                // It is tried again at the next look.
                self.around.namespaces = before;
                trouble.push(error);
            }
        }
        for one in trouble.iter().filter(|one| !self.trouble.contains(one)) {
            tracing::error!("{one}");
        }
        self.trouble = trouble;
        let is_otherwise = elsewhere::own(&self.sights) != elsewhere::own(&sights);
        self.sights = sights;
        is_otherwise
    }

    /// Waits until no program is on its way to an interface of another namespace, but not longer than until then. What has
    /// failed is tried again at the next look.
    pub fn settle(&mut self, until: Instant) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let others = self.sights.iter().filter(|sight| sight.path.is_some());
        let places: Vec<(Namespace, u32)> = others
            .flat_map(|sight| {
                let interfaces = sight.interfaces.keys();
                interfaces.map(|index| (sight.namespace, *index))
            })
            .collect();
        let awaited = |kernel: &Quic| {
            let mut places = places.iter();
            places.any(|(namespace, index)| kernel.is_awaited_in(*namespace, *index))
        };
        while awaited(kernel) && Instant::now() < until {
            std::thread::sleep(LOOKS);
            kernel.follow_attached();
        }
    }

    /// Names of the workloads in which a listener is in force.
    fn workloads(&self, listener: &QuicListener) -> Vec<String> {
        let its = self.around.namespaces.get(&listener.name);
        let is_known = |sight: &&Sight| its.is_some_and(|its| its.contains(&sight.namespace));
        let names = self.sights.iter().filter(is_known);
        let names = names.filter(|sight| self.is_attached(sight));
        let names = names.filter_map(|sight| sight.listeners.get(&listener.name).cloned());
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    /// To all interfaces that TCP is guarded on; in weir's own namespace to some.
    fn is_attached(&self, sight: &Sight) -> bool {
        let Some(kernel) = &self.kernel else {
            return false;
        };
        let is_on = |index: &u32| kernel.attached_in(sight.namespace, *index) == Ok(true);
        match sight.path {
            Some(_) => sight.interfaces.keys().all(is_on),
            None => self.interfaces.values().any(std::result::Result::is_ok),
        }
    }

    /// The controller beside them.
    pub fn controller(&self) -> Option<Settings> {
        self.controller
    }

    /// The listeners in force.
    pub fn list(&self) -> &[QuicListener] {
        &self.list
    }

    /// Attaches to interfaces that have come, and knows by their new numbers those that have come again.
    pub fn follow_links(&mut self, links: &[Link]) {
        if self.list.iter().any(|one| !one.interfaces.is_empty())
            && let Err(trouble) = self.reapply()
        {
            tracing::error!("{trouble}");
        }
        self.attach(links);
    }

    /// Puts them in force anew, since what goes with them has changed.
    ///
    /// # Errors
    /// The kernel does not take them, in a sentence.
    fn reapply(&mut self) -> std::result::Result<(), String> {
        let fitted = beside(&self.list, self.controller.as_ref());
        let applied = match &mut self.kernel {
            Some(kernel) => kernel.apply(&fitted, &self.around),
            None => Ok(()),
        };
        applied.map_err(|error| format!("QUIC listeners do not follow what has changed: {error}"))
    }

    /// One that is a port of another carries none of the host's connections.
    fn attach(&mut self, links: &[Link]) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let is_here = |one: &&QuicListener| {
            let mut sights = self.sights.iter().filter(|sight| sight.path.is_none());
            !one.is_elsewhere() || sights.any(|sight| sight.listeners.contains_key(&one.name))
        };
        let here: Vec<&QuicListener> = self.list.iter().filter(is_here).collect();
        let wants = |link: &Link| here.iter().any(|one| is_for(one, &link.name));
        let wanted = links.iter().filter(|link| !link.port && wants(link));
        let wanted: BTreeMap<u32, &Link> = wanted.map(|link| (link.index, link)).collect();
        self.interfaces.retain(|index, _| {
            let stays = wanted.contains_key(index);
            if !stays {
                kernel.detach(*index);
            }
            stays
        });
        for (index, link) in wanted {
            let attached = kernel.attach(index).map(|()| link.name.clone());
            let failed = |error| format!("QUIC through {}: {error}", link.name);
            self.interfaces.insert(index, attached.map_err(failed));
        }
    }

    /// The names of the interfaces with the programs on them.
    pub fn interfaces(&self) -> Vec<&str> {
        let names = self.interfaces.values().flatten();
        names.map(String::as_str).collect()
    }

    /// What is not as asked for, a sentence each.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let interfaces = self.interfaces.values();
        let own = interfaces.filter_map(|at| at.as_ref().err());
        own.chain(&self.trouble).map(String::as_str)
    }

    /// Whether the programs are not on an interface on which they are to be.
    pub fn lacks_interfaces(&self) -> bool {
        self.interfaces.values().any(std::result::Result::is_err)
    }

    /// How many are in force, in words; `None`: there is none.
    pub fn told(&self) -> Option<String> {
        let all = self.list.len();
        let observed = self.list.iter().filter(|one| one.mode == Mode::Observe);
        let observed = match observed.count() {
            0 => String::new(),
            count => format!(", {count} in observe mode"),
        };
        (all > 0).then(|| {
            let listeners = describe::part(all - self.off().count(), all, "QUIC listener");
            format!("{listeners} in force{observed}")
        })
    }

    /// Those of weir's own namespace that are on no interface.
    fn off(&self) -> impl Iterator<Item = &QuicListener> {
        let own = self.list.iter().filter(|one| !one.is_elsewhere());
        own.filter(|one| self.attached(one).next().is_none())
    }

    /// Why listeners of weir's own namespace are not in force.
    pub fn not_in_force(&self) -> Vec<Cause> {
        let cause = |listener: &QuicListener| {
            let why = self.warning(listener, false).unwrap_or_default();
            Cause {
                message: format!("QUIC listener {:?} is not in force: {why}", listener.name),
                hint: "weir guards an interface when it comes; `ip link` has those that are there"
                    .to_owned(),
            }
        };
        self.off().map(cause).collect()
    }

    /// What the controller reads of them.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn load(&self) -> Result<Vec<ListenerReading>> {
        self.each(|listener, counters, sockets| quic_reading(&listener.name, sockets, &counters))
    }

    /// What this makes of every listener and its counters and sockets, which are read at once.
    fn each<T>(
        &self,
        of: impl Fn(&QuicListener, QuicCounters, &[QuicSocket]) -> T,
    ) -> Result<Vec<T>> {
        let Some(kernel) = &self.kernel else {
            return Ok(Vec::new());
        };
        let sockets = kernel.sockets()?;
        let one = |listener: &QuicListener| {
            let its = sockets.get(&listener.name).map_or(&[][..], Vec::as_slice);
            Ok(of(listener, kernel.counters(&listener.name)?, its))
        };
        self.list.iter().map(one).collect()
    }

    /// Every listener as it is now.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn report(&self) -> Result<Vec<weir_api::Quic>> {
        self.each(|listener, counters, sockets| {
            let workloads = self.workloads(listener);
            let in_force = match listener.is_elsewhere() {
                true => !workloads.is_empty(),
                false => self.attached(listener).next().is_some(),
            };
            let warning = self.warning(listener, in_force);
            weir_api::Quic {
                workloads,
                ..quic::report(listener, &counters, sockets, in_force, warning)
            }
        })
    }

    /// Every listener in short.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn glances(&self) -> Result<Vec<QuicGlance>> {
        self.each(QuicGlance::new)
    }

    /// Sampled refusals since the last call. `classes`: the names of classes by their slots.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn refusals(
        &self,
        classes: impl FnOnce() -> BTreeMap<u32, Arc<str>>,
    ) -> Result<Vec<Refusal>> {
        match &self.kernel {
            Some(kernel) => Ok(kernel.refusals(classes)?),
            None => Ok(Vec::new()),
        }
    }

    /// The names of the interfaces on which this one is guarded.
    fn attached(&self, listener: &QuicListener) -> impl Iterator<Item = &str> {
        let names = self.interfaces.values().flatten().map(String::as_str);
        names.filter(|name| is_for(listener, name))
    }

    fn warning(&self, listener: &QuicListener, in_force: bool) -> Option<String> {
        if listener.is_elsewhere() && !in_force {
            let (port, place) = (listener.address.port, listener.location.describe());
            let is_known = self.around.namespaces.contains_key(&listener.name);
            let why = match is_known {
                true => "weir is about to attach to its interfaces".to_owned(),
                false => format!("TCP port {port} is guarded nowhere in {place} yet"),
            };
            return Some(self.trouble.first().cloned().unwrap_or(why));
        }
        if listener.is_elsewhere() {
            return self.trouble.first().cloned();
        }
        let on: Vec<&str> = self.attached(listener).collect();
        let absent = listener.interfaces.iter().map(String::as_str);
        let absent: Vec<&str> = absent.filter(|name| !on.contains(name)).collect();
        match (absent.is_empty(), on.is_empty()) {
            (false, _) => Some(format!("not on {}", absent.join(", "))),
            (true, true) => Some("on no interface".to_owned()),
            (true, false) => self.warnings().next().map(str::to_owned),
        }
    }
}

/// The listeners as they are beside a controller, which goes by classes and is to refuse first.
fn beside(list: &[QuicListener], controller: Option<&Settings>) -> Vec<QuicListener> {
    let beside = |one: &QuicListener| match controller {
        Some(controller) => controller.beside_quic(one),
        None => one.clone(),
    };
    list.iter().map(beside).collect()
}

/// A QUIC listener of this policy at an address; without a name, it is called by its port.
pub fn at(template: &QuicListener, address: ListenAddress) -> QuicListener {
    let mut one = QuicListener {
        address,
        ..template.clone()
    };
    if one.name.is_empty() {
        one.take_default_name();
    }
    one
}

/// Whether a listener is to be guarded on the interface of this name.
fn is_for(listener: &QuicListener, interface: &str) -> bool {
    listener.interfaces.is_empty() || listener.interfaces.iter().any(|name| name == interface)
}
