//! Which namespaces are to be put in order, and which of them first.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_core::turns::Turns;
use weir_kernel::Namespace;

/// Namespaces that are looked at each second, at most.
const LOOKED_AT: u32 = 8;
/// So much of each second the looks take, but for one.
const LOOKS_TAKE: Duration = Duration::from_millis(2);

/// Namespaces that are to be put in order: those in which somebody has begun to listen, as they came, and then those that
/// are to be looked at.
#[derive(Default)]
pub struct Due {
    /// Each once, with why.
    all: BTreeMap<Namespace, Why>,
    /// May have some that are not due any more, or for another reason. Where somebody listens it is urgent.
    turns: Turns<Namespace>,
}

/// Why a namespace is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Somebody has begun to listen there.
    Listens,
    /// Something may have changed there.
    Look,
}

impl Due {
    /// One more, unless it is due already and no later.
    pub fn add(&mut self, namespace: Namespace, why: Why) {
        match (self.all.get(&namespace), why) {
            (Some(before), _) if *before == why => return,
            (Some(Why::Listens), Why::Look) => return,
            _ => {}
        }
        self.all.insert(namespace, why);
        self.turns.push(namespace, why == Why::Listens);
    }

    /// Some to be looked at.
    pub fn look_at(&mut self, namespaces: impl IntoIterator<Item = Namespace>) {
        for namespace in namespaces {
            self.add(namespace, Why::Look);
        }
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<(Namespace, Why)> {
        loop {
            let (namespace, is_urgent) = self.turns.pop()?;
            let why = match is_urgent {
                true => Why::Listens,
                false => Why::Look,
            };
            if self.all.get(&namespace) == Some(&why) {
                self.all.remove(&namespace);
                return Some((namespace, why));
            }
        }
    }

    /// Whether the next one is one in which somebody has begun to listen, as far as it can be told.
    pub fn is_urgent_next(&self) -> bool {
        self.turns.is_urgent_next()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.all.keys()
    }
}

/// How many namespaces are looked at each second.
#[derive(Default)]
pub struct Pace {
    /// How long a look takes, as the last ones did.
    takes: Duration,
}

impl Pace {
    /// A look has taken so long.
    pub fn took(&mut self, time: Duration) {
        self.takes = (self.takes * 7 + time) / 8;
    }

    /// So many are looked at in this second.
    pub fn looks(&self) -> usize {
        let fit = LOOKS_TAKE.as_nanos() / self.takes.as_nanos().max(1);
        fit.clamp(1, LOOKED_AT.into()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cookie: u64) -> Namespace {
        Namespace::with_cookie(cookie)
    }

    #[test]
    fn those_that_are_to_be_looked_at_have_their_turn_however_many_begin_to_listen() {
        let mut due = Due::default();
        due.look_at([at(1)]);
        for cookie in 2..100 {
            due.add(at(cookie), Why::Listens);
        }
        let turn = std::iter::from_fn(|| due.pop()).position(|(_, why)| why == Why::Look);
        assert_eq!(turn, Some(weir_core::turns::IN_A_ROW as usize));
    }

    #[test]
    fn who_has_begun_to_listen_is_first_and_in_the_order_of_coming() {
        let mut due = Due::default();
        due.look_at([5, 1, 9].map(at));
        due.add(at(8), Why::Listens);
        due.add(at(1), Why::Listens);
        due.add(at(8), Why::Listens);
        due.add(at(8), Why::Look);
        due.look_at([at(5)]);
        let all: Vec<_> = std::iter::from_fn(|| due.pop()).collect();
        let (listens, look) = (Why::Listens, Why::Look);
        assert_eq!(
            all,
            [
                (at(8), listens),
                (at(1), listens),
                (at(5), look),
                (at(9), look)
            ]
        );
        assert!(due.is_empty());
    }

    /// However often those with lower cookies come again.
    #[test]
    fn none_waits_for_one_that_came_after_it() {
        let mut due = Due::default();
        due.add(at(900), Why::Listens);
        for _ in 0..100 {
            due.add(at(1), Why::Listens);
            due.add(at(2), Why::Listens);
            if due.pop() == Some((at(900), Why::Listens)) {
                return;
            }
        }
        panic!("it waits for ever");
    }

    #[test]
    fn looks_that_take_long_are_few_and_never_none() {
        let mut pace = Pace::default();
        assert_eq!(pace.looks(), 8);
        let mut after = |time| {
            (0..50).for_each(|_| pace.took(time));
            pace.looks()
        };
        assert_eq!(after(Duration::from_micros(300)), 6);
        assert_eq!(after(Duration::from_millis(50)), 1);
        assert_eq!(after(Duration::from_micros(100)), 8);
    }
}
