//! Sums of the threads' counters.

use std::net::SocketAddr;
use std::ops::AddAssign;

use crate::histogram::Times;

/// Sums of the counters and histograms, each with its name and text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// The clients' side.
    pub listener: Vec<Total>,
    /// How long it took there.
    pub listener_times: Vec<Total<Times>>,
    /// Each backend with its address.
    pub backends: Vec<(SocketAddr, Vec<Total>)>,
    /// Each name of backends.
    pub names: Vec<(String, Vec<Total>)>,
    /// How long each took.
    pub backend_times: Vec<(SocketAddr, Vec<Total<Times>>)>,
    /// How long all servers took, also those that the clients of mode forward name.
    pub server_times: Vec<Total<Times>>,
    /// Clients that had to wait for a connection to a backend, by their class's priority, 1 to 64;
    /// only those priorities of which there were any.
    pub queue: Vec<(u8, Vec<Total>)>,
}

/// One sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total<V = u64> {
    /// The counter's name.
    pub name: &'static str,
    /// What it counts.
    pub text: &'static str,
    /// Over all threads.
    pub value: V,
}

impl Totals {
    /// Adds what another generation of the same proxy did; backends that it alone had come with it.
    pub fn add(&mut self, other: &Totals) {
        add(&mut self.listener, &other.listener);
        add(&mut self.listener_times, &other.listener_times);
        add_by_key(&mut self.backends, &other.backends);
        add_by_key(&mut self.backend_times, &other.backend_times);
        add(&mut self.server_times, &other.server_times);
        add_by_key(&mut self.queue, &other.queue);
        add_by_key(&mut self.names, &other.names);
        self.queue.sort_by_key(|(priority, _)| *priority);
    }

    /// Forgets the backends that came first, beyond `most` of those that are not `live`: names have other addresses each day.
    pub fn forget_backends(&mut self, most: usize, live: impl Fn(&SocketAddr) -> bool) {
        let over = self.backends.iter().filter(|(at, _)| !live(at)).count();
        let mut over = over.saturating_sub(most);
        let times = &mut self.backend_times;
        self.backends.retain(|(address, _)| {
            let goes = over > 0 && !live(address);
            over -= usize::from(goes);
            if goes {
                times.retain(|(own, _)| own != address);
            }
            !goes
        });
    }
}

/// Adds under the same key, or as a further one.
pub(super) fn add_by_key<K, V>(to: &mut Vec<(K, Vec<Total<V>>)>, more: &[(K, Vec<Total<V>>)])
where
    K: PartialEq + Clone,
    V: Copy + for<'a> AddAssign<&'a V>,
{
    for (key, totals) in more {
        match to.iter_mut().find(|(own, _)| own == key) {
            Some((_, own)) => add(own, totals),
            None => to.push((key.clone(), totals.clone())),
        }
    }
}

/// By name: a generation whose backends are not checked lacks the counters of checks.
fn add<V: Copy + for<'a> AddAssign<&'a V>>(to: &mut Vec<Total<V>>, more: &[Total<V>]) {
    for more in more {
        match to.iter_mut().find(|total| total.name == more.name) {
            Some(total) => total.value += &more.value,
            None => to.push(*more),
        }
    }
}

/// Sums counters or histograms of these names over the threads.
pub(super) fn sum<V: Default + for<'a> AddAssign<&'a V>>(
    names: &[(&'static str, &'static str)],
    threads: impl Iterator<Item = Vec<V>>,
) -> Vec<Total<V>> {
    let mut totals: Vec<Total<V>> = names
        .iter()
        .map(|(name, text)| Total {
            name,
            text,
            value: V::default(),
        })
        .collect();
    for values in threads {
        for (total, value) in totals.iter_mut().zip(values) {
            total.value += &value;
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

    #[test]
    fn of_backends_that_have_gone_the_last_are_kept() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut sums = Totals {
            backends: (1..7).map(|port| (at(port), Vec::new())).collect(),
            backend_times: (1..7).map(|port| (at(port), Vec::new())).collect(),
            ..Totals::default()
        };
        sums.forget_backends(2, |address| *address == at(1));
        let ports =
            |list: Vec<SocketAddr>| -> Vec<u16> { list.iter().map(SocketAddr::port).collect() };
        let left = sums.backends.iter().map(|(at, _)| *at).collect();
        assert_eq!(ports(left), [1, 5, 6]);
        let left = sums.backend_times.iter().map(|(at, _)| *at).collect();
        assert_eq!(ports(left), [1, 5, 6]);
    }
}
