//! Clients that wait for a slot of a backend: by class, first come first served within a class. Each step is
//! O(1).

use slab::Slab;

/// Classes, 0 the highest.
pub const CLASSES: usize = 64;

/// The queue.
#[derive(Debug)]
pub struct WaitQueue<W> {
    nodes: Slab<Node<W>>,
    /// First and last of each class.
    ends: [Option<(usize, usize)>; CLASSES],
    /// Bit c: a client of class c waits.
    occupied: u64,
    /// How many of each class.
    lengths: [u32; CLASSES],
    limit: usize,
    next_id: u64,
}

#[derive(Debug)]
struct Node<W> {
    waiter: W,
    class: usize,
    /// The slab's key may be another's later, this is not.
    id: u64,
    before: Option<usize>,
    after: Option<usize>,
}

/// A position in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    key: usize,
    id: u64,
}

/// The result of a push.
#[derive(Debug, PartialEq, Eq)]
pub enum Queued<W> {
    /// It waits.
    In(Ticket),
    /// It waits, and this one, the last of the lowest class, no longer does.
    InsteadOf(Ticket, W),
    /// The queue is full, and no client of a lower class waits: the new one is refused.
    Full(W),
}

impl<W> WaitQueue<W> {
    /// An empty queue for at most `limit`.
    pub fn new(limit: usize) -> WaitQueue<W> {
        WaitQueue {
            nodes: Slab::new(),
            ends: [None; CLASSES],
            occupied: 0,
            lengths: [0; CLASSES],
            limit,
            next_id: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// How many of a class wait.
    pub fn len_of(&self, class: usize) -> u32 {
        self.lengths[class]
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Appends a waiter behind those of its class. A full queue drops the last waiter of the lowest class, if that is
    /// lower.
    pub fn push(&mut self, class: usize, waiter: W) -> Queued<W> {
        let class = class.min(CLASSES - 1);
        if self.len() < self.limit {
            return Queued::In(self.append(class, waiter));
        }
        let lowest = self.occupied.checked_ilog2().map(|class| class as usize);
        match lowest {
            Some(lowest) if class < lowest => {
                let (_, last) = self.ends[lowest].expect("its bit says that a client waits");
                let loser = self.take(last);
                Queued::InsteadOf(self.append(class, waiter), loser)
            }
            _ => Queued::Full(waiter),
        }
    }

    /// Takes the first of the highest class.
    pub fn pop(&mut self) -> Option<W> {
        let (first, _) = *self
            .ends
            .get(self.occupied.trailing_zeros() as usize)?
            .as_ref()?;
        Some(self.take(first))
    }

    /// Takes one out of the middle; `None` if it waits no longer.
    pub fn remove(&mut self, ticket: Ticket) -> Option<W> {
        let node = self.nodes.get(ticket.key)?;
        (node.id == ticket.id).then(|| self.take(ticket.key))
    }

    fn append(&mut self, class: usize, waiter: W) -> Ticket {
        let id = self.next_id;
        self.next_id += 1;
        let before = self.ends[class].map(|(_, last)| last);
        let key = self.nodes.insert(Node {
            waiter,
            class,
            id,
            before,
            after: None,
        });
        let first = match (self.ends[class], before) {
            (Some((first, _)), Some(last)) => {
                self.nodes[last].after = Some(key);
                first
            }
            _ => key,
        };
        self.ends[class] = Some((first, key));
        self.occupied |= 1 << class;
        self.lengths[class] += 1;
        Ticket { key, id }
    }

    fn take(&mut self, key: usize) -> W {
        let node = self.nodes.remove(key);
        if let Some(before) = node.before {
            self.nodes[before].after = node.after;
        }
        if let Some(after) = node.after {
            self.nodes[after].before = node.before;
        }
        let (first, last) = self.ends[node.class].expect("it has waited");
        let first = if first == key {
            node.after
        } else {
            Some(first)
        };
        let last = if last == key { node.before } else { Some(last) };
        self.ends[node.class] = first.zip(last);
        if self.ends[node.class].is_none() {
            self.occupied &= !(1 << node.class);
        }
        self.lengths[node.class] -= 1;
        node.waiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_highest_class_is_first_and_within_it_who_came_first() {
        let mut queue = WaitQueue::new(10);
        for (class, name) in [(5, "a"), (63, "b"), (5, "c"), (0, "d"), (63, "e")] {
            assert!(matches!(queue.push(class, name), Queued::In(_)));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["d", "a", "c", "b", "e"]);
    }

    #[test]
    fn in_a_full_queue_the_youngest_of_the_lowest_class_loses() {
        let mut queue = WaitQueue::new(3);
        for (class, name) in [(1, "a"), (2, "b"), (2, "c")] {
            queue.push(class, name);
        }
        assert_eq!(queue.push(2, "d"), Queued::Full("d"));
        assert!(matches!(queue.push(1, "e"), Queued::InsteadOf(_, "c")));
        assert!(matches!(queue.push(0, "f"), Queued::InsteadOf(_, "b")));
        assert_eq!(queue.push(1, "g"), Queued::Full("g"));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["f", "a", "e"]);
    }

    #[test]
    fn a_ticket_is_good_once_and_never_for_another() {
        let mut queue = WaitQueue::new(2);
        let Queued::In(ticket) = queue.push(1, "a") else {
            panic!("the queue is not full")
        };
        assert_eq!(queue.pop(), Some("a"));
        queue.push(1, "b");
        assert_eq!(queue.remove(ticket), None);
        assert_eq!(queue.len(), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        Pop,
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0usize..4).prop_map(Step::Push),
            1 => Just(Step::Pop),
            1 => (0usize..20).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn the_queue_does_what_a_sorted_list_would(steps in prop::collection::vec(step(), 1..200)) {
            let mut queue = WaitQueue::new(8);
            let mut model: Vec<(usize, usize)> = Vec::new();
            let mut tickets = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(class) => {
                        let lowest = model.iter().max().copied();
                        match queue.push(class, number) {
                            Queued::In(ticket) => {
                                prop_assert!(model.len() < 8);
                                tickets.push((ticket, number));
                                model.push((class, number));
                            }
                            Queued::InsteadOf(ticket, loser) => {
                                prop_assert_eq!(Some(loser), lowest.map(|(_, number)| number));
                                prop_assert!(lowest.is_some_and(|(lowest, _)| lowest > class));
                                model.retain(|(_, number)| *number != loser);
                                tickets.push((ticket, number));
                                model.push((class, number));
                            }
                            Queued::Full(loser) => {
                                prop_assert_eq!(loser, number);
                                prop_assert!(lowest.is_some_and(|(lowest, _)| lowest <= class));
                            }
                        }
                    }
                    Step::Pop => {
                        let first = model.iter().min().copied();
                        prop_assert_eq!(queue.pop(), first.map(|(_, number)| number));
                        model.retain(|waiting| Some(*waiting) != first);
                    }
                    Step::Remove(index) => {
                        let Some((ticket, number)) = tickets.get(index).copied() else { continue };
                        let waits = model.iter().any(|(_, waiting)| *waiting == number);
                        prop_assert_eq!(queue.remove(ticket), waits.then_some(number));
                        model.retain(|(_, waiting)| *waiting != number);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                for class in 0..4 {
                    let of_class = model.iter().filter(|(own, _)| *own == class);
                    prop_assert_eq!(queue.len_of(class) as usize, of_class.count());
                }
            }
        }
    }
}
