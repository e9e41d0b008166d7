//! Counters of the kernel around a run: /proc/net/{snmp,netstat} of a namespace and the machine's
//! /proc/net/softnet_stat.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{Context, Result};
use crate::netns::Netns;

/// Every counter of snmp and netstat as `Group.Name` (`TcpExt.ListenOverflows`), and
/// `Softnet.Dropped` (packets that found a CPU's receive backlog full; of the whole machine).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters(pub BTreeMap<String, i64>);

impl Counters {
    /// Reads them inside a namespace.
    pub fn read(netns: &Netns) -> Result<Counters> {
        netns.run(|| {
            let mut counters = BTreeMap::new();
            for file in ["snmp", "netstat"] {
                parse_pairs(&read_proc(file)?, &mut counters);
            }
            counters.insert(
                "Softnet.Dropped".into(),
                softnet_drops(&read_proc("softnet_stat")?),
            );
            Ok(Counters(counters))
        })
    }

    /// One counter; 0 for a name that this kernel does not have.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// What was counted since `earlier`; counters that did not move are left out.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let moved = self
            .0
            .iter()
            .map(|(name, now)| (name.clone(), now - earlier.get(name)));
        Counters(moved.filter(|(_, delta)| *delta != 0).collect())
    }
}

fn read_proc(file: &str) -> Result<String> {
    let path = format!("/proc/thread-self/net/{file}");
    std::fs::read_to_string(&path).context(format!("cannot read {path}"))
}

/// A line of names, then a line of values, both opened by the group's name.
fn parse_pairs(text: &str, into: &mut BTreeMap<String, i64>) {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (Some((group, names)), Some((_, values))) =
            (pair[0].split_once(':'), pair[1].split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            into.insert(format!("{group}.{name}"), value.parse().unwrap_or(0));
        }
    }
}

/// The second column of each CPU's row, in hexadecimal.
fn softnet_drops(text: &str) -> i64 {
    let column = text.lines().filter_map(|row| row.split_whitespace().nth(1));
    column
        .filter_map(|value| i64::from_str_radix(value, 16).ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_joined_by_column() {
        let mut counters = BTreeMap::new();
        parse_pairs("Tcp: A B\nTcp: 1 -1\nTcpExt: C\nTcpExt: 7\n", &mut counters);
        let expected = [("Tcp.A", 1), ("Tcp.B", -1), ("TcpExt.C", 7)];
        assert_eq!(
            counters,
            expected
                .map(|(name, value)| (name.to_string(), value))
                .into()
        );
    }

    #[test]
    fn softnet_drops_are_hexadecimal_and_summed_over_cpus() {
        assert_eq!(softnet_drops("00ff 0000000a 0\n0001 00000010 0\n"), 26);
    }

    #[test]
    fn only_counters_that_moved_are_in_a_difference() {
        let at = |a, b| Counters([("a".to_string(), a), ("b".to_string(), b)].into());
        let delta = at(5, 2).since(&at(3, 2));
        assert_eq!(
            delta.0.into_iter().collect::<Vec<_>>(),
            [("a".to_string(), 2)]
        );
    }
}
