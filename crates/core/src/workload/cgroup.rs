//! What a cgroup's path says of the program in it.

use std::collections::BTreeMap;

use super::{Container, Pod, Runtime, Workload};

/// As many digits of an id do tools show, and take.
pub const SHOWN_ID: usize = 12;
/// Digits of the id of a container.
const ID: usize = 64;

/// Digits of the least UID of a pod: the hash of a static one.
const UID: usize = 32;

/// Names that come before an id, with the runtime whose they are.
const PREFIXES: [(&str, Runtime); 7] = [
    ("docker-", Runtime::Docker),
    ("libpod-payload-", Runtime::Podman),
    ("libpod-", Runtime::Podman),
    ("cri-containerd-", Runtime::Containerd),
    ("nerdctl-", Runtime::Containerd),
    ("crio-", Runtime::CriO),
    ("lxc.payload.", Runtime::Lxc),
];

/// From /proc/PID/cgroup, which has a line for each hierarchy: the one that says most counts. Names of containers, of pods and of
/// the namespace are not in it.
pub fn workload_of(cgroups: &str) -> Workload {
    let paths = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    let all: Vec<Workload> = paths.map(of_path).collect();
    let rank = |one: &&Workload| (one.container.is_some(), one.unit.is_some());
    // The last of equals: that is the unified hierarchy.
    all.iter().max_by_key(rank).cloned().unwrap_or_default()
}

/// A container's own systemd has units too, which are none of the machine's.
fn of_path(path: &str) -> Workload {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_container = |at: &usize| container(&parts, *at).is_some();
    let outermost = (0..parts.len()).find(is_container);
    let innermost = (0..parts.len()).rev().find_map(|at| container(&parts, at));
    let of_machine = &parts[..outermost.unwrap_or(parts.len())];
    let unit = of_machine
        .iter()
        .rev()
        .find(|part| part.ends_with(".service"));
    Workload {
        container: innermost,
        unit: unit.map(|unit| (*unit).to_owned()),
        netns: None,
        pod: parts.iter().find_map(|part| pod(part)),
    }
}

/// The pod that a part of a path names: `podUID`, or with systemd's driver `kubepods-burstable-podUID.slice`, where `_` stands
/// for `-`.
fn pod(part: &str) -> Option<Pod> {
    let slice = part
        .strip_suffix(".slice")
        .filter(|part| part.starts_with("kubepods"))
        .and_then(|part| part.rsplit('-').next());
    let uid = slice.unwrap_or(part).strip_prefix("pod")?.replace('_', "-");
    let is_uid = uid.len() >= UID && uid.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-');
    is_uid.then_some(Pod { uid, name: None })
}

/// The container that this part of a path names.
fn container(parts: &[&str], at: usize) -> Option<Container> {
    let part = parts[at].strip_suffix(".scope").unwrap_or(parts[at]);
    let named = |runtime, id: &str| {
        Some(Container {
            runtime,
            id: id.to_owned(),
            name: None,
            labels: BTreeMap::new(),
        })
    };
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = part.strip_prefix(prefix)
            && (is_id(id) || runtime == Runtime::Lxc && !id.is_empty())
        {
            return named(runtime, id);
        }
    }
    let before = |name: &str| parts[..at].contains(&name);
    match is_id(part) {
        true if at > 0 && parts[at - 1] == "docker" => named(Runtime::Docker, part),
        // /kubepods/burstable/podUID/ID
        true if before("kubepods") => named(Runtime::Containerd, part),
        _ => None,
    }
}

fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|c| c.is_ascii_hexdigit())
}
