//! One namespace: what is in force in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_config::{Fallback, fit};
use weir_core::listener::Listener;
use weir_core::workload::Workload;
use weir_kernel::{Namespace, NamespacePath};

use super::changes::{Change, Turn};
use super::world::{Inside, MOST_INTERFACES};
use crate::daemon::attachment::{Place, RefusedAt, places};
use crate::daemon::backend::Spaces;

/// Once nobody has listened for so long, no server is starting again: a namespace that cannot be entered is of nobody then.
pub const SILENT: Duration = Duration::from_secs(10);

/// A network namespace with listeners of ours.
pub struct Space {
    /// By which it was last entered.
    pub path: NamespacePath,
    pub replicas: Vec<Replica>,
    /// Names of the interfaces that the guard is on, by their numbers there.
    pub attached: BTreeMap<u32, String>,
    /// Those to which it is being attached.
    awaited: BTreeMap<u32, Awaited>,
    /// What is not as it should be there.
    pub trouble: Option<String>,
    /// As the kernel half has it.
    applied: Option<Applied>,
    /// What was said of its listeners last, by their labels.
    told: BTreeMap<String, Told>,
    /// Since when nobody is known to listen there.
    pub silent_since: Option<Instant>,
    /// Somebody listens there, and it could not be entered when it was due.
    pub is_missed: bool,
}

struct Awaited {
    name: String,
    /// Its connections come from within, and it takes its time.
    loopback: bool,
}

/// What was said of a listener.
struct Told {
    /// Why it is not in force, if it is not.
    because: Option<String>,
    /// Since when nobody is known to listen for it.
    silent_since: Option<Instant>,
    /// That this is so was said.
    is_off: bool,
}

/// A listener in it.
pub struct Replica {
    /// `web@web-1`: unique, and no listener's name.
    pub label: String,
    /// `web-1`
    pub name: String,
    pub workload: Workload,
    pub asked: Listener,
    /// What is carried out instead of what was asked for.
    pub fallback: Option<Fallback>,
    /// Why it is not in force.
    pub because: Option<String>,
}

#[derive(PartialEq)]
struct Applied {
    listeners: Vec<Listener>,
    cookies: bool,
    /// Names stand for these in a policy.
    interfaces: Vec<(String, u32)>,
}

impl Space {
    pub fn new(path: NamespacePath) -> Space {
        Space {
            path,
            replicas: Vec::new(),
            attached: BTreeMap::new(),
            awaited: BTreeMap::new(),
            trouble: None,
            applied: None,
            told: BTreeMap::new(),
            silent_since: None,
            is_missed: false,
        }
    }

    /// Has these listeners from now on; of them is said again only what has changed.
    pub fn set(&mut self, replicas: Vec<Replica>) {
        self.replicas = replicas;
        let replicas = &self.replicas;
        self.told
            .retain(|label, _| replicas.iter().any(|one| one.label == *label));
    }

    /// Says of listeners that nobody has listened for them for a while, though the namespace is still there; or that somebody does
    /// again. `listens`: at which ports somebody does.
    pub fn hear(&mut self, listens: impl Fn(u16) -> bool, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        for replica in &self.replicas {
            let Some(told) = self.told.get_mut(&replica.label) else {
                continue;
            };
            if listens(replica.asked.address.port) {
                told.silent_since = None;
                if std::mem::take(&mut told.is_off) {
                    changes.push(replica.is_now(told.because.as_deref(), None));
                }
                continue;
            }
            // Its server may be starting again.
            let since = *told.silent_since.get_or_insert(now);
            if !told.is_off && now >= since + SILENT {
                told.is_off = true;
                let what = "nobody listens there any more";
                changes.push(Change::new(&replica.label, Turn::Off, what));
            }
        }
        changes
    }

    /// What there is to say when none of its listeners is guarded there any more.
    pub fn end(&self) -> Vec<Change> {
        self.off(|_| true)
    }

    /// The same of those with such labels.
    pub fn off(&self, is_gone: impl Fn(&str) -> bool) -> Vec<Change> {
        let gone = self.told.iter();
        let gone = gone.filter(|(label, told)| is_gone(label) && !told.is_off);
        gone.map(|(label, _)| Change::new(label, Turn::Off, "off"))
            .collect()
    }

    /// It is not guarded at all, for this reason.
    pub fn turn_off(&mut self, because: String) {
        self.attached.clear();
        self.awaited.clear();
        self.trouble = Some(because);
    }

    /// The kernel half does not have what was handed to it.
    pub fn not_applied(&mut self, because: String) {
        self.applied = None;
        self.trouble = Some(because);
    }

    /// Notes what has come of attaching to one of its interfaces.
    pub fn attached_to(&mut self, index: u32, outcome: weir_kernel::Result<()>) {
        let awaited = self.awaited.remove(&index).map(|one| one.name);
        // It may be attached to anew, to be the first again.
        let Some(name) = awaited.or_else(|| self.attached.remove(&index)) else {
            return;
        };
        match outcome {
            Ok(()) => drop(self.attached.insert(index, name)),
            Err(error) => self.trouble = Some(not_guarded(&name, &error)),
        }
    }

    /// Something is not as it should be, which may pass.
    pub fn is_off(&self) -> bool {
        let has_none = self.attached.is_empty() && self.awaited.is_empty();
        self.trouble.is_some() || self.is_missed || has_none
    }

    /// The guard is about to be on interfaces that clients come by.
    pub fn is_under_way(&self) -> bool {
        self.awaited.values().any(|one| !one.loopback)
    }

    /// Why one of its listeners is not in force; `None`: it is.
    pub fn because_of(&self, replica: &Replica) -> Option<String> {
        let all = match (&self.trouble, self.attached.is_empty()) {
            (Some(trouble), _) => Some(trouble.clone()),
            (None, _) if self.is_under_way() => {
                Some("weir is about to attach to its interfaces".to_owned())
            }
            (None, true) => Some("weir could attach to none of its interfaces".to_owned()),
            (None, false) => None,
        };
        replica.because.clone().or(all)
    }
}

impl Replica {
    /// What there is to say of it; `before`: what was said last, if it was known.
    fn is_now(&self, because: Option<&str>, before: Option<&Told>) -> Change {
        let address = self.asked.address;
        let was_off = before.is_some_and(|told| told.because.is_some());
        let (turn, what) = match because {
            Some(because) => (Turn::NotInForce, format!("is not in force: {because}")),
            None if was_off => (Turn::InForce, format!("guards {address} there")),
            None => (Turn::On, format!("guards {address} there")),
        };
        Change::new(&self.label, turn, &what)
    }
}

fn not_guarded(name: &str, error: &weir_kernel::Error) -> String {
    format!("interface {name} is not guarded: {error}")
}

/// Hands the policies to the kernel half, as they fit the namespace. Whether there is anything that is to be put in force.
pub fn apply(
    space: &mut Space,
    kernel: &mut impl Spaces,
    at: Namespace,
    inside: &Inside,
) -> weir_kernel::Result<bool> {
    let mut listeners = Vec::new();
    for replica in &mut space.replicas {
        match fit(&replica.asked, &inside.environment) {
            Ok(fitted) => {
                replica.fallback = fitted.fallback;
                listeners.push(fitted.listener);
            }
            Err(fault) => replica.because = Some(format!("{} ({})", fault.cause, fault.hint)),
        }
    }
    let named = |name: &String| listeners.iter().any(|l| l.interfaces.contains(name));
    let links = inside.links.iter().filter(|link| named(&link.name));
    let applied = Applied {
        cookies: inside.environment.sends_cookies(),
        interfaces: links.map(|link| (link.name.clone(), link.index)).collect(),
        listeners,
    };
    if space.applied.as_ref() == Some(&applied) {
        return Ok(false);
    }
    space.applied = None;
    kernel.prepare_in(&space.path, at, &applied.listeners, applied.cookies)?;
    space.applied = Some(applied);
    Ok(true)
}

/// Begins to attach to the interfaces there that are to be guarded and are not yet; detaches from others.
pub fn attach(space: &mut Space, kernel: &mut impl Spaces, at: Namespace, inside: &Inside) {
    let applied = space.applied.as_ref();
    let listeners = applied.map_or(&[][..], |applied| &applied.listeners[..]);
    let there = kernel.devices_in(at);
    let mut wanted = places(listeners, &inside.links, |_| false);
    if wanted.len() > MOST_INTERFACES {
        space.trouble = Some(format!(
            "it has {} interfaces for it, and weir guards {MOST_INTERFACES} of another network namespace at most",
            wanted.len()
        ));
        // Clients come by what is guarded already, whatever its number.
        let mut all = Vec::from_iter(wanted);
        all.sort_by_key(|(index, _)| !there.contains(index));
        wanted = all.into_iter().take(MOST_INTERFACES).collect();
    }
    let others = space.awaited.keys().filter(|index| !there.contains(index));
    for index in there.iter().chain(others) {
        if !wanted.contains_key(index) {
            kernel.detach_in(at, *index);
        }
    }
    space.attached.clear();
    space.awaited.clear();
    // From other hosts nobody comes by the loopback device.
    let loopback = |index: u32| inside.links.iter().any(|l| l.index == index && l.loopback);
    let is_only = wanted.keys().all(|index| loopback(*index));
    for (index, place) in wanted {
        let Place {
            name, refused_at, ..
        } = place;
        debug_assert_eq!(
            refused_at,
            RefusedAt::Tc,
            "the front is weir's own namespace's"
        );
        if there.contains(&index) {
            space.attached.insert(index, name);
            continue;
        }
        let loopback = loopback(index) && !is_only;
        match kernel.attach_in(&space.path, at, index, !loopback) {
            Ok(()) => drop(space.awaited.insert(index, Awaited { name, loopback })),
            Err(error) => space.trouble = Some(not_guarded(&name, &error)),
        }
    }
}

/// What is otherwise than before, which is to be said.
pub fn news(space: &mut Space) -> Vec<Change> {
    let mut changes = Vec::new();
    for replica in &space.replicas {
        let because = space.because_of(replica);
        let before = space.told.get(&replica.label);
        if before.is_some_and(|told| told.because == because) {
            continue;
        }
        let is_off = before.is_some_and(|told| told.is_off);
        if !is_off {
            changes.push(replica.is_now(because.as_deref(), before));
        }
        if let Some(Fallback { policy, because }) = &replica.fallback {
            let label = &replica.label;
            tracing::warn!("{label} falls back to {policy}: {because}");
        }
        let told = Told {
            because,
            silent_since: before.and_then(|told| told.silent_since),
            is_off,
        };
        space.told.insert(replica.label.clone(), told);
    }
    changes
}
