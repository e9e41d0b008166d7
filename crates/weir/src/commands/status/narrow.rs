//! `weir status --where`: what is guarded in some places, and the sums over these.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::{Listener, Status};
use weir_core::workload::{Container, Pod, Runtime, Where, Workload};

use crate::failure::{Failure, Result};
use crate::show::describe;

/// Leaves only listeners and workloads that are there. Classes are those of all places, and are left as they are.
///
/// # Errors
/// None is there; the status is then without listeners.
pub fn to(status: &mut Status, place: &Where) -> Result<()> {
    let names: BTreeSet<String> = status.listeners.iter().flat_map(names_of).collect();
    status
        .listeners
        .retain_mut(|listener| stays(listener, place));
    // They are about this network namespace.
    if *place != Where::Here {
        status.quic.clear();
        status.proxies.clear();
        status.destinations.clear();
        status.shapes.clear();
        status.controller = None;
    }
    if !status.listeners.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match names.is_empty() {
        true => "no listener has a workload: `where` of a [[listener]], or `weir protect --where`"
            .to_owned(),
        false => format!("there are {}", describe::examples(&names)),
    };
    Err(Failure::failed(
        format!("nothing is guarded in {}", place.describe()),
        hint,
    ))
}

fn names_of(listener: &Listener) -> Vec<String> {
    let workloads = listener.workloads.iter();
    let places = workloads.filter_map(|one| Some(described(one).place()?.to_string()));
    places.collect()
}

/// Whether something of a listener is there; it is then the sum of that.
fn stays(listener: &mut Listener, place: &Where) -> bool {
    let of_here = listener
        .settings
        .get("where")
        .is_none_or(|its| its == "here");
    if *place == Where::Here || of_here {
        return *place == Where::Here && of_here;
    }
    let before = listener.workloads.len();
    listener
        .workloads
        .retain(|one| place.matches(&described(one)));
    if listener.workloads.len() < before {
        sum_up(listener);
    }
    !listener.workloads.is_empty()
}

/// The figures of a listener from those of its workloads. What they do not have is not known of them.
fn sum_up(listener: &mut Listener) {
    let all = &listener.workloads;
    listener.counters.values_mut().for_each(|count| *count = 0);
    for (name, count) in all.iter().flat_map(|one| &one.counters) {
        *listener.counters.entry(name.clone()).or_default() += count;
    }
    listener.queue_length = all.iter().map(|one| one.queue_length).sum();
    listener.queue_limit = all.iter().map(|one| one.queue_limit).sum();
    listener.half_open = all.iter().map(|one| one.half_open).sum();
    listener.wait_us = all.iter().filter_map(|one| one.wait_us).max();
    listener.listening = all.iter().any(|one| one.listening);
    let off = all.iter().find(|one| !one.in_force);
    listener.in_force = off.is_none();
    let because = off.and_then(|one| {
        one.not_in_force_because
            .as_ref()
            .map(|why| format!("{}: {why}", one.name))
    });
    listener.not_in_force_because = because;
    let sum = |of: fn(&weir_api::Workload) -> Option<u64>| all.iter().map(of).sum();
    listener.offered = sum(|one| one.offered);
    listener.would_refuse = sum(|one| one.would_refuse);
    listener.service_us = None;
}

/// As the guard has it.
fn described(one: &weir_api::Workload) -> Workload {
    // It may go by its namespace, its unit or its pod.
    let others = [&one.netns, &one.unit, &one.pod];
    let is_own = !others.iter().any(|name| name.as_ref() == Some(&one.name));
    let runtime = one.runtime.as_deref().and_then(Runtime::named);
    let container = runtime.zip(one.container_id.clone());
    Workload {
        container: container.map(|(runtime, id)| Container {
            runtime,
            name: is_own.then(|| one.name.clone()),
            id,
            labels: BTreeMap::new(),
        }),
        unit: one.unit.clone(),
        netns: one.netns.clone(),
        pod: one.pod.clone().map(|name| Pod {
            uid: String::new(),
            name: Some(name),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str, runtime: Option<&str>, refused: u64) -> weir_api::Workload {
        weir_api::Workload {
            name: name.into(),
            runtime: runtime.map(str::to_owned),
            container_id: runtime.map(|_| "0a1b2c3d4e5f".repeat(5)),
            netns: runtime.is_none().then(|| name.to_owned()),
            in_force: refused != 9,
            not_in_force_because: (refused == 9).then(|| "why".to_owned()),
            listening: true,
            queue_length: 2,
            queue_limit: 4,
            wait_us: Some(refused * 1000),
            counters: [("syn_reset_full".to_owned(), refused)].into(),
            ..weir_api::Workload::default()
        }
    }

    fn status() -> Status {
        let all = vec![
            workload("web-1", Some("docker"), 1),
            workload("web-2", Some("docker"), 9),
            workload("blue", None, 5),
        ];
        let listener = |name: &str, place: &str, workloads| Listener {
            name: name.into(),
            settings: [("where".to_owned(), place.into())].into(),
            // With those that have ended.
            counters: [("syn_reset_full".to_owned(), 100)].into(),
            queue_length: 6,
            workloads,
            ..Listener::default()
        };
        Status {
            listeners: vec![
                listener("all", "machine", all),
                listener("own", "here", Vec::new()),
            ],
            ..Status::default()
        }
    }

    fn narrowed(place: &str) -> (Vec<(String, u32, u64, usize)>, String) {
        let mut status = status();
        let place = Where::parse(place).unwrap();
        let said = to(&mut status, &place)
            .err()
            .map(|failure| failure.to_string());
        let row = |l: &Listener| {
            (
                l.name.clone(),
                l.queue_length,
                l.counters["syn_reset_full"],
                l.workloads.len(),
            )
        };
        (
            status.listeners.iter().map(row).collect(),
            said.unwrap_or_default(),
        )
    }

    #[test]
    fn only_what_is_there_is_left_with_its_sums() {
        let row =
            |name: &str, queue, refused, workloads| (name.to_owned(), queue, refused, workloads);
        for (place, expected) in [
            ("container:web-*", row("all", 4, 10, 2)),
            ("container:0a1b2c3d4e5f", row("all", 4, 10, 2)),
            ("container:web-1", row("all", 2, 1, 1)),
            ("netns:blue", row("all", 2, 5, 1)),
            ("machine", row("all", 6, 100, 3)),
            ("here", row("own", 6, 100, 0)),
        ] {
            assert_eq!(narrowed(place), (vec![expected], String::new()), "{place}");
        }
        let (left, said) = narrowed("container:blue");
        assert!(left.is_empty());
        assert!(
            said.starts_with("nothing is guarded in container blue")
                && said.contains("container:web-1"),
            "{said}"
        );
    }

    #[test]
    fn one_that_is_not_in_force_elsewhere_says_nothing_of_the_others() {
        let mut one = status();
        to(&mut one, &Where::parse("container:web-1").unwrap()).unwrap();
        assert!(one.listeners[0].in_force);
        let mut both = status();
        to(&mut both, &Where::parse("container:web-*").unwrap()).unwrap();
        let because = both.listeners[0].not_in_force_because.as_deref();
        assert_eq!(
            (both.listeners[0].in_force, because),
            (false, Some("web-2: why"))
        );
        assert_eq!(both.listeners[0].wait_us, Some(9000));
    }
}
