//! The sources with the most refusals: the Space-Saving sketch with ageing.
//!
//! It counts the sources of a stream in a fixed number of counters (Metwally, Agrawal, El Abbadi, "Efficient Computation of
//! Frequent and Top-k Elements in Data Streams", ICDT 2005, section 3). A source without a counter takes the smallest one
//! over, with its count as the error. So each count is at least the truth, count − error at most the truth, and with k
//! counters and a total of n a source with more than n/k has a counter.
//!
//! [`TopSources::age`] makes all counts smaller by one factor, which keeps these bounds for the counts with their age.
//!
//! Clients choose their addresses, so the counters are in search trees: a hash table would need a secret.

use std::collections::{BTreeMap, BTreeSet};

/// The sketch. `K` is the source, `V` what was last seen of it.
#[derive(Debug, Clone)]
pub struct TopSources<K, V> {
    capacity: usize,
    counters: BTreeMap<K, Counter<V>>,
    /// By count, the smallest first.
    order: BTreeSet<(Ordered, K)>,
    total: f64,
}

#[derive(Debug, Clone)]
struct Counter<V> {
    count: f64,
    error: f64,
    last: V,
}

/// A source with its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopSource<K, V> {
    /// The source.
    pub source: K,
    /// Its weight at most.
    pub at_most: f64,
    /// Its weight at least.
    pub at_least: f64,
    /// What was last seen of it.
    pub last: V,
}

/// A count that is no less than 0: then the order of the bits is that of the numbers (IEEE 754).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ordered(u64);

fn ordered(count: f64) -> Ordered {
    Ordered(count.to_bits())
}

impl<K: Ord + Copy, V> TopSources<K, V> {
    /// An empty sketch with so many counters, 1 or more.
    pub fn new(capacity: usize) -> TopSources<K, V> {
        TopSources {
            capacity: capacity.max(1),
            counters: BTreeMap::new(),
            order: BTreeSet::new(),
            total: 0.0,
        }
    }

    /// Counts a source, `weight` times (more than 0, finite).
    pub fn add(&mut self, source: K, weight: f64, last: V) {
        if !(weight > 0.0 && weight.is_finite()) {
            return;
        }
        self.total += weight;
        if let Some(counter) = self.counters.get_mut(&source) {
            self.order.remove(&(ordered(counter.count), source));
            counter.count += weight;
            counter.last = last;
            self.order.insert((ordered(counter.count), source));
            return;
        }
        let error = match self.counters.len() < self.capacity {
            true => 0.0,
            false => self.evict(),
        };
        let count = error + weight;
        self.order.insert((ordered(count), source));
        self.counters.insert(source, Counter { count, error, last });
    }

    /// Takes the smallest counter away and gives its count.
    fn evict(&mut self) -> f64 {
        let smallest = self.order.pop_first();
        let (_, source) = smallest.expect("a full sketch has counters");
        let gone = self.counters.remove(&source);
        gone.map_or(0.0, |counter| counter.count)
    }

    /// Multiplies all counts by `factor`, 0 to 1.
    pub fn age(&mut self, factor: f64) {
        let factor = factor.clamp(0.0, 1.0);
        self.total *= factor;
        for counter in self.counters.values_mut() {
            counter.count *= factor;
            counter.error *= factor;
        }
        let counters = self.counters.iter();
        self.order = counters
            .map(|(source, counter)| (ordered(counter.count), *source))
            .collect();
    }

    /// The weight of all sources.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Counters that there are at most: a source with more than 1/capacity of [`total`](Self::total) has one.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The sources that have a counter, the largest count first.
    pub fn list(&self) -> impl Iterator<Item = TopSource<K, &V>> {
        self.order.iter().rev().map(|(_, source)| {
            let counter = &self.counters[source];
            TopSource {
                source: *source,
                at_most: counter.count,
                at_least: counter.count - counter.error,
                last: &counter.last,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Add(u8, u32),
        /// Halves all.
        Age,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Some sources come often.
        let source = prop_oneof![3 => 0_u8..4, 2 => any::<u8>()];
        let add = (source, 1_u32..100).prop_map(|(source, weight)| Step::Add(source, weight));
        let step = prop_oneof![20 => add, 1 => Just(Step::Age)];
        prop::collection::vec(step, 1..600)
    }

    proptest! {
        /// Halves of small integers are exact, so the bounds are too.
        #[test]
        fn a_source_with_more_than_its_share_is_never_missing_and_its_bounds_hold(
            steps in steps(), capacity in 1_usize..40,
        ) {
            let mut sketch = TopSources::new(capacity);
            let mut truth = BTreeMap::<u8, f64>::new();
            for (i, step) in steps.iter().enumerate() {
                match step {
                    Step::Add(source, weight) => {
                        sketch.add(*source, f64::from(*weight), i);
                        *truth.entry(*source).or_default() += f64::from(*weight);
                    }
                    Step::Age => {
                        sketch.age(0.5);
                        truth.values_mut().for_each(|weight| *weight /= 2.0);
                    }
                }
                let total: f64 = truth.values().sum();
                prop_assert!((sketch.total() - total).abs() < 1e-6);
                let listed: Vec<_> = sketch.list().collect();
                prop_assert!(listed.len() <= capacity);
                prop_assert!(listed.windows(2).all(|pair| pair[0].at_most >= pair[1].at_most));
                for one in &listed {
                    let truth = truth[&one.source];
                    prop_assert!(one.at_least <= truth + 1e-9 && truth <= one.at_most + 1e-9);
                }
                for (source, weight) in &truth {
                    let is_listed = listed.iter().any(|one| one.source == *source);
                    prop_assert!(is_listed || *weight <= total / capacity as f64 + 1e-9);
                }
            }
        }
    }

    #[test]
    fn many_sources_of_one_each_do_not_hide_one_of_a_hundredth() {
        let mut sketch = TopSources::new(256);
        for n in 0..100_000_u32 {
            let source = if n % 100 == 0 { u32::MAX } else { n };
            sketch.add(source, 1.0, ());
        }
        let first = sketch.list().next().unwrap();
        assert_eq!(first.source, u32::MAX);
        assert!(
            first.at_most >= 1000.0 && first.at_most < 1000.0 + 100_000.0 / 256.0,
            "{first:?}"
        );
    }
}
