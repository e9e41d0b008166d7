//! Sums of the threads' counters.

use std::net::SocketAddr;

/// Sums of the counters, each with its name and text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// The clients' side.
    pub listener: Vec<Total>,
    /// Each backend with its address.
    pub backends: Vec<(SocketAddr, Vec<Total>)>,
    /// Clients that had to wait for a connection to a backend, by their class's priority, 1 to 64;
    /// only those priorities of which there were any.
    pub queue: Vec<(u8, Vec<Total>)>,
}

/// One sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// The counter's name.
    pub name: &'static str,
    /// What it counts.
    pub text: &'static str,
    /// Over all threads.
    pub value: u64,
}

impl Totals {
    /// Adds what another generation of the same proxy did; backends that it alone had come with it.
    pub fn add(&mut self, other: &Totals) {
        add(&mut self.listener, &other.listener);
        add_by_key(&mut self.backends, &other.backends);
        add_by_key(&mut self.queue, &other.queue);
        self.queue.sort_by_key(|(priority, _)| *priority);
    }
}

fn add_by_key<K: PartialEq + Copy>(to: &mut Vec<(K, Vec<Total>)>, more: &[(K, Vec<Total>)]) {
    for (key, totals) in more {
        match to.iter_mut().find(|(own, _)| own == key) {
            Some((_, own)) => add(own, totals),
            None => to.push((*key, totals.clone())),
        }
    }
}

/// By name: a generation whose backends are not checked lacks the counters of checks.
fn add(to: &mut Vec<Total>, more: &[Total]) {
    for more in more {
        match to.iter_mut().find(|total| total.name == more.name) {
            Some(total) => total.value += more.value,
            None => to.push(*more),
        }
    }
}

/// Sums counters of these names over the threads.
pub(super) fn sum(
    names: &[(&'static str, &'static str)],
    threads: impl Iterator<Item = Vec<u64>>,
) -> Vec<Total> {
    let mut totals: Vec<Total> = names
        .iter()
        .map(|(name, text)| Total {
            name,
            text,
            value: 0,
        })
        .collect();
    for values in threads {
        for (total, value) in totals.iter_mut().zip(values) {
            total.value += value;
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_generation_counts_is_not_lost() {
        let total = |name, value| Total {
            name,
            text: "",
            value,
        };
        let totals = |listener| Totals {
            listener,
            ..Totals::default()
        };
        let mut sums = totals(vec![total("requests", 1)]);
        sums.add(&totals(vec![total("requests", 2), total("checks", 3)]));
        sums.add(&totals(vec![total("requests", 4)]));
        assert_eq!(sums.listener, [total("requests", 7), total("checks", 3)]);
    }

    #[test]
    fn generations_of_a_proxy_are_summed_by_backend() {
        let total = |value| Total {
            name: "requests",
            text: "",
            value,
        };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut sums = Totals::default();
        for (port, value) in [(1, 2), (2, 3), (1, 4)] {
            sums.add(&Totals {
                listener: vec![total(value)],
                backends: vec![(at(port), vec![total(value)])],
                ..Totals::default()
            });
        }
        assert_eq!(sums.listener, [total(9)]);
        assert_eq!(
            sums.backends,
            [(at(1), vec![total(6)]), (at(2), vec![total(3)])]
        );
    }
}
