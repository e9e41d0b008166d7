//! Whose turn it is: the urgent come first, and the others are not kept for ever.

use std::collections::VecDeque;

/// So many urgent ones in a row, if others wait.
pub const IN_A_ROW: u32 = 16;

/// What waits, in the order of its coming; urgent ones by themselves.
#[derive(Debug, Clone)]
pub struct Turns<T> {
    urgent: VecDeque<T>,
    others: VecDeque<T>,
    in_a_row: u32,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            urgent: VecDeque::new(),
            others: VecDeque::new(),
            in_a_row: 0,
        }
    }
}

impl<T> Turns<T> {
    /// One more, behind those of its kind.
    pub fn push(&mut self, one: T, is_urgent: bool) {
        match is_urgent {
            true => self.urgent.push_back(one),
            false => self.others.push_back(one),
        }
    }

    /// The next one, and whether it is urgent: such a one, but after [`IN_A_ROW`] of them one of the others.
    pub fn pop(&mut self) -> Option<(T, bool)> {
        if self.is_urgent_next() {
            self.in_a_row += 1;
            return self.urgent.pop_front().map(|one| (one, true));
        }
        self.in_a_row = 0;
        self.others.pop_front().map(|one| (one, false))
    }

    /// Whether the next one is urgent.
    pub fn is_urgent_next(&self) -> bool {
        let is_others = self.in_a_row >= IN_A_ROW && !self.others.is_empty();
        !is_others && !self.urgent.is_empty()
    }

    /// Those that are not urgent, in their order.
    pub fn others(&self) -> impl Iterator<Item = &T> {
        self.others.iter()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_ones_are_first_and_the_others_have_their_turn() {
        let mut turns = Turns::default();
        turns.push(1000, false);
        (0..20).for_each(|number| turns.push(number, true));
        assert!(!turns.is_empty());
        let next = || {
            let said = turns.is_urgent_next();
            let (one, is_urgent) = turns.pop()?;
            assert_eq!(said, is_urgent);
            Some(one)
        };
        let all: Vec<u32> = std::iter::from_fn(next).collect();
        let turn = IN_A_ROW as usize;
        assert_eq!(all[turn], 1000);
        assert_eq!(all[..turn], (0..IN_A_ROW).collect::<Vec<_>>());
        assert_eq!(all[turn + 1..], (IN_A_ROW..20).collect::<Vec<_>>());
        assert!(turns.is_empty());
    }
}
