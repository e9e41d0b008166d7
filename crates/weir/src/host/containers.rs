//! The names that engines have for containers, and kubelet for pods, from their files. What cannot be read has no name: its id
//! does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weir_core::workload::{Container, Runtime, Workload, workload_of};

use crate::host::namespaces::{self, Space};
use crate::host::processes::entries;

/// Docker's folder, and the file that may name another one.
const DOCKER: &str = "/var/lib/docker";
const DOCKER_CONFIG: &str = "/etc/docker/daemon.json";
/// Podman's list of root's containers.
const PODMAN: &str = "/var/lib/containers/storage/overlay-containers/containers.json";
/// Where kubelet keeps the logs of pods: its `podLogsDir`.
const POD_LOGS: &str = "/var/log/pods";
/// The longest file that is read. Docker's has a container's whole environment, Podman's all containers.
const MOST: u64 = 4 << 20;

/// What people call a process; `None`: it has ended. `netns`: the names that `ip netns` has, by inode number.
pub fn workload(pid: u32, netns: &BTreeMap<u64, String>) -> Option<Workload> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut workload = workload_of(&cgroups);
    if let Some(container) = &mut workload.container {
        add_said(container);
    }
    if let Some(pod) = &mut workload.pod {
        pod.name = pod_name(Path::new(POD_LOGS), &pod.uid);
    }
    // Inode numbers are used again, but not while the process is there.
    let inode = namespaces::inode_of_process(pid);
    workload.netns = inode.and_then(|inode| netns.get(&inode).cloned());
    Some(workload)
}

/// The [other](namespaces::others) network namespaces, with containers by the names that their engines have for them.
pub fn spaces() -> Vec<Space> {
    let mut spaces = namespaces::others();
    spaces.iter_mut().for_each(call_by_name);
    spaces
}

/// Calls the container of a namespace by its name, where weir can read that, in place of its id.
pub fn call_by_name(space: &mut Space) {
    let Some(process) = &mut space.process else {
        return;
    };
    if process.container.is_some()
        && let Some(workload) = workload(process.pid, &BTreeMap::new())
        && let Some(container) = workload.container
    {
        process.container = Some(container.shown().to_owned());
    }
}

/// Adds what the engine says of a container; nothing where weir does not know how it keeps that, or may not read it.
fn add_said(container: &mut Container) {
    let id = &container.id;
    match container.runtime {
        Runtime::Docker => {
            let config = docker_folders().find_map(|folder| docker_config(&folder, id));
            if let Some(config) = config {
                container.name = docker_name(&config);
                container.labels = docker_labels(&config);
            }
        }
        Runtime::Podman => container.name = podman_name(Path::new(PODMAN), id),
        _ => {}
    }
}

/// A second engine may keep its own in the usual place.
fn docker_folders() -> impl Iterator<Item = PathBuf> {
    let config = json(Path::new(DOCKER_CONFIG));
    let other = config
        .as_ref()
        .and_then(|config| config["data-root"].as_str());
    let other = other.map(PathBuf::from);
    other.into_iter().chain([PathBuf::from(DOCKER)])
}

fn docker_config(folder: &Path, id: &str) -> Option<Value> {
    json(&folder.join("containers").join(id).join("config.v2.json"))
}

/// `"Name":"/web"`
fn docker_name(config: &Value) -> Option<String> {
    name(config["Name"].as_str()?.strip_prefix('/')?)
}

/// `"Config":{"Labels":{"app":"web"}}`, those of its image among them.
fn docker_labels(config: &Value) -> BTreeMap<String, String> {
    let labels = config["Config"]["Labels"].as_object();
    let labels = labels.into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    labels.collect()
}

/// The first of its `names`.
fn podman_name(list: &Path, id: &str) -> Option<String> {
    let list = json(list)?;
    let found = list.as_array()?.iter().find(|one| one["id"] == id)?;
    name(found["names"][0].as_str()?)
}

/// `shop/web-7d4b9` of the folder `shop_web-7d4b9_UID`, which kubelet makes for the logs of a pod before its containers start.
/// No name in a cluster has a `_`.
fn pod_name(logs: &Path, uid: &str) -> Option<String> {
    let folders = entries(logs);
    let mut names = folders.filter_map(|path| {
        let folder = path.file_name()?.to_str()?.to_owned();
        let (named, its) = folder.rsplit_once('_')?;
        let (namespace, pod) = named.split_once('_')?;
        let is_it = its == uid && !pod.contains('_');
        is_it.then_some(format!("{}/{}", name(namespace)?, name(pod)?))
    });
    names.next()
}

/// What an engine takes as a name: what else is in the file is none.
fn name(text: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_name = (1..=255).contains(&text.len()) && text.chars().all(good);
    is_name.then(|| text.to_owned())
}

fn json(path: &Path) -> Option<Value> {
    let is_short = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MOST);
    let mut text = String::new();
    let mut file = is_short
        .then(|| File::open(path).ok())
        .flatten()?
        .take(MOST);
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_name_is_read_from_the_container_s_config() {
        let folder = tempfile::tempdir().unwrap();
        let its = folder.path().join("containers/ab12");
        fs::create_dir_all(&its).unwrap();
        let said = |text: &str| {
            fs::write(its.join("config.v2.json"), text).unwrap();
            docker_name(&docker_config(folder.path(), "ab12")?)
        };
        assert_eq!(
            said(r#"{"ID":"ab12","Name":"/web-1"}"#).as_deref(),
            Some("web-1")
        );
        for odd in [
            "",
            "{",
            "[]",
            r#"{"Name":7}"#,
            r#"{"Name":"/a b"}"#,
            r#"{"Name":"/"}"#,
        ] {
            assert_eq!(said(odd), None, "{odd}");
        }
        let long = format!(r#"{{"Name":"/web","x":"{}"}}"#, "x".repeat(MOST as usize));
        assert_eq!(said(&long), None, "too long");
        assert_eq!(docker_config(folder.path(), "cd34"), None);
    }

    #[test]
    fn docker_s_labels_are_read_and_what_is_none_is_left_out() {
        let labels = |text: &str| docker_labels(&serde_json::from_str(text).unwrap());
        let said = labels(r#"{"Config":{"Labels":{"app":"web","a.b/c":"x y","odd":7}}}"#);
        let wanted = [("app", "web"), ("a.b/c", "x y")];
        let wanted = wanted.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(said, BTreeMap::from(wanted));
        for none in [r#"{"Config":{"Labels":null}}"#, r#"{"Config":{}}"#, "[]"] {
            assert_eq!(labels(none), BTreeMap::new(), "{none}");
        }
    }

    #[test]
    fn a_pod_s_name_is_read_from_the_folder_of_its_logs() {
        let logs = tempfile::tempdir().unwrap();
        let uid = "0f6b1c2d-1111-2222-3333-444455556666";
        let said = || pod_name(logs.path(), uid);
        assert_eq!(said(), None);
        for folder in [
            "shop_web-7d4b9_ffffffff-1111-2222-3333-444455556666".to_owned(),
            format!("shop_{uid}"),
            format!("a_b_c_{uid}"),
            format!("shop_we b_{uid}"),
        ] {
            fs::create_dir(logs.path().join(folder)).unwrap();
        }
        assert_eq!(said(), None);
        fs::create_dir(logs.path().join(format!("shop_web-7d4b9.x_{uid}"))).unwrap();
        assert_eq!(said().as_deref(), Some("shop/web-7d4b9.x"));
        assert_eq!(pod_name(Path::new("/nonexistent"), uid), None);
    }

    #[test]
    fn podman_s_name_is_read_from_its_list() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("containers.json");
        fs::write(
            &list,
            r#"[{"id":"a","names":["db"]},{"id":"b","names":["web","w"]},{"id":"c"}]"#,
        )
        .unwrap();
        assert_eq!(podman_name(&list, "b").as_deref(), Some("web"));
        assert_eq!(podman_name(&list, "c"), None);
        assert_eq!(podman_name(&list, "d"), None);
    }
}
