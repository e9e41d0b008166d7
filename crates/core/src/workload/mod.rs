//! Workloads of a machine: what people call the programs that listen in its network namespaces, and which listener of the
//! config is about which of them.

mod cgroup;
mod choice;

use std::collections::BTreeMap;
use std::fmt;

pub use cgroup::{SHOWN_ID, workload_of};
pub use choice::{in_force, may_serve};

/// Where a listener is guarded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Where {
    /// In weir's own network namespace.
    #[default]
    Here,
    /// In every network namespace of the machine, weir's own too.
    Machine,
    /// In the namespaces that `ip netns` has by such a name.
    Netns(Pattern),
    /// For servers in containers of such a name, or whose id begins so.
    Container(Pattern),
    /// For servers in containers that have a label, by its whole key, with such a value.
    Label(String, Pattern),
    /// For servers of such systemd units.
    Unit(Pattern),
    /// For servers in pods of Kubernetes: such a namespace of the cluster, and such a name.
    Pod(Pattern, Pattern),
}

/// A name in which `*` stands for any characters, none too, and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

/// The program that has a socket, as people know it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// The innermost container that it is in.
    pub container: Option<Container>,
    /// The systemd unit of the machine that it belongs to: `nginx.service`.
    pub unit: Option<String>,
    /// The name that `ip netns` has for its network namespace.
    pub netns: Option<String>,
    /// The pod of Kubernetes that it belongs to.
    pub pod: Option<Pod>,
}

/// A pod of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// As the cluster has it: a UUID, or 32 hex digits of a static pod.
    pub uid: String,
    /// Its namespace and its name, `shop/web-7d4b9`, if weir can read them.
    pub name: Option<String>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Who has made it.
    pub runtime: Runtime,
    /// Its id: 64 hex digits, or a name where the runtime has no other id.
    pub id: String,
    /// The name that its engine has for it, if weir can read it.
    pub name: Option<String>,
    /// The labels that it was given, if weir can read them.
    pub labels: BTreeMap<String, String>,
}

/// What makes containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, and what uses it: Kubernetes, nerdctl.
    Containerd,
    /// CRI-O.
    CriO,
    /// LXC.
    Lxc,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Runtime; 5] = [
        Runtime::Docker,
        Runtime::Podman,
        Runtime::Containerd,
        Runtime::CriO,
        Runtime::Lxc,
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Runtime> {
        Runtime::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Docker => "docker",
            Runtime::Podman => "podman",
            Runtime::Containerd => "containerd",
            Runtime::CriO => "cri-o",
            Runtime::Lxc => "lxc",
        }
    }
}

impl Container {
    /// What people call it: its name, or as much of its id as tools show.
    pub fn shown(&self) -> &str {
        let id = || self.id.get(..SHOWN_ID).unwrap_or(&self.id);
        self.name.as_deref().unwrap_or_else(id)
    }
}

impl Pattern {
    /// The longest that is taken, bytes: as long as the name of a file may be.
    pub const MOST: usize = 255;

    /// A pattern of this text; `None`: it is empty, too long, or has a character that no such name has.
    pub fn new(text: &str) -> Option<Pattern> {
        Pattern::of_label(text).filter(|_| !text.contains('/'))
    }

    /// A pattern of the value of a label, which may have `/`.
    fn of_label(text: &str) -> Option<Pattern> {
        let odd = |c: char| c.is_whitespace() || c.is_control();
        let good = (1..=Pattern::MOST).contains(&text.len()) && !text.contains(odd);
        good.then(|| Pattern(text.to_owned()))
    }

    /// Whether the whole name is so.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut read) = (0, 0);
        // Where to go on if what follows the last `*` does not fit.
        let mut again: Option<(usize, usize)> = None;
        while read < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    again = Some((at + 1, read));
                    at += 1;
                }
                Some(c) if *c == b'?' || *c == name[read] => (at, read) = (at + 1, read + 1),
                _ => match again {
                    Some((star, from)) => {
                        again = Some((star, from + 1));
                        (at, read) = (star, from + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|c| *c == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Where {
    /// From `here`, `machine`, `netns:NAME`, `container:NAME`, `label:KEY=VALUE`, `unit:NAME` or `pod:NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Option<Where> {
        let (kind, name) = match text {
            "here" => return Some(Where::Here),
            "machine" => return Some(Where::Machine),
            other => other.split_once(':')?,
        };
        if kind == "pod" {
            let (namespace, name) = name.split_once('/')?;
            return Some(Where::Pod(Pattern::new(namespace)?, Pattern::new(name)?));
        }
        if kind == "label" {
            let (key, value) = name.split_once('=')?;
            let Pattern(key) = Pattern::of_label(key)?;
            return Some(Where::Label(key, Pattern::of_label(value)?));
        }
        let pattern = Pattern::new(name)?;
        match kind {
            "netns" => Some(Where::Netns(pattern)),
            "container" => Some(Where::Container(pattern)),
            "unit" => Some(Where::Unit(pattern)),
            _ => None,
        }
    }

    /// Whether it is about this program. Not about where it is: what is [`Where::Here`] is about no workload.
    pub fn matches(&self, workload: &Workload) -> bool {
        let named = |pattern: &Pattern, name: &Option<String>| {
            name.as_deref().is_some_and(|name| pattern.matches(name))
        };
        match self {
            Where::Here => false,
            Where::Machine => true,
            Where::Netns(pattern) => named(pattern, &workload.netns),
            Where::Container(pattern) => workload.container.as_ref().is_some_and(|container| {
                named(pattern, &container.name)
                    || pattern.matches(&container.id)
                    || container.id.get(..SHOWN_ID) == Some(&pattern.0)
            }),
            Where::Label(key, pattern) => {
                let container = workload.container.as_ref();
                let value = container.and_then(|container| container.labels.get(key));
                value.is_some_and(|value| pattern.matches(value))
            }
            Where::Pod(..) => {
                let pod = workload.pod.as_ref();
                let name = pod.and_then(|pod| pod.name.as_deref());
                name.is_some_and(|name| self.names(name))
            }
            // As systemctl takes it.
            Where::Unit(_) => workload
                .unit
                .as_deref()
                .is_some_and(|unit| self.names(unit)),
        }
    }

    /// Whether a workload of this name may be meant, of which no more is known: events have names only. A label says nothing of
    /// names.
    pub fn names(&self, name: &str) -> bool {
        match self {
            Where::Here | Where::Label(..) => false,
            Where::Machine => true,
            Where::Netns(pattern) | Where::Container(pattern) => pattern.matches(name),
            Where::Unit(pattern) => {
                let short = name.strip_suffix(".service");
                pattern.matches(name) || short.is_some_and(|short| pattern.matches(short))
            }
            Where::Pod(namespace, pod) => name
                .split_once('/')
                .is_some_and(|(its, name)| namespace.matches(its) && pod.matches(name)),
        }
    }

    /// What it looks for, in words: `container web-*`.
    pub fn describe(&self) -> String {
        match self {
            Where::Here => "this network namespace".to_owned(),
            Where::Machine => "any network namespace".to_owned(),
            Where::Netns(name) => format!("network namespace {name}"),
            Where::Container(name) => format!("container {name}"),
            Where::Label(key, value) => format!("containers labelled {key}={value}"),
            Where::Unit(name) => format!("unit {name}"),
            Where::Pod(namespace, name) => format!("pod {namespace}/{name}"),
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Where::Here => f.write_str("here"),
            Where::Machine => f.write_str("machine"),
            Where::Netns(name) => write!(f, "netns:{name}"),
            Where::Container(name) => write!(f, "container:{name}"),
            Where::Label(key, value) => write!(f, "label:{key}={value}"),
            Where::Unit(name) => write!(f, "unit:{name}"),
            Where::Pod(namespace, name) => write!(f, "pod:{namespace}/{name}"),
        }
    }
}

impl Workload {
    /// The narrowest place that is about it and stays so: its pod, whose containers come and go, else its container, its namespace
    /// or its unit; `None`: it has none of them, or one whose name stands for others too.
    pub fn place(&self) -> Option<Where> {
        let container = self.container.as_ref().map(|c| ("container", c.shown()));
        let netns = self.netns.as_deref().map(|name| ("netns", name));
        let unit = self.unit.as_deref().map(|name| ("unit", name));
        let pod = self.pod_name().map(|name| ("pod", name));
        let (kind, name) = pod.or(container).or(netns).or(unit)?;
        let is_plain = !name.contains(['*', '?']);
        Where::parse(&format!("{kind}:{name}")).filter(|_| is_plain)
    }

    fn pod_name(&self) -> Option<&str> {
        self.pod.as_ref()?.name.as_deref()
    }

    /// The name of the kind that a listener goes by, else the first that is known of pod, container, namespace and unit; `None`:
    /// it has none.
    pub fn name(&self, by: &Where) -> Option<&str> {
        let container = self.container.as_ref().map(Container::shown);
        let (netns, unit) = (self.netns.as_deref(), self.unit.as_deref());
        match by {
            Where::Netns(_) if netns.is_some() => netns,
            Where::Unit(_) if unit.is_some() => unit,
            Where::Container(_) | Where::Label(..) => container.or(netns).or(unit),
            _ => self.pod_name().or(container).or(netns).or(unit),
        }
    }
}

#[cfg(test)]
mod tests;
