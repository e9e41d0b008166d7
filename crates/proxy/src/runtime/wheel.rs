//! A hierarchical timing wheel: arming, moving and disarming a timer are O(1), whatever their
//! number (Varghese and Lauck, SOSP 1987). Times are milliseconds of the loop's clock.

/// Slots of a level; each level's slots are this many times wider than the one's below.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// Seven levels reach 2^42 ms: the loop's clock, which starts at 0, gets there in 139 years.
const LEVELS: usize = 7;
const REACH: u64 = 1 << (SLOT_BITS * LEVELS as u32);
/// No entry, no slot.
const NONE: u32 = u32::MAX;

/// Timers by a small id, at most one each.
pub struct Wheel {
    now: u64,
    /// First entry of each slot's list.
    heads: [[u32; SLOTS]; LEVELS],
    /// Bit s of level l: that slot's list is not empty.
    occupied: [u64; LEVELS],
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    due: u64,
    previous: u32,
    next: u32,
    /// `level * SLOTS + slot`, or `NONE` while it is not armed.
    bucket: u32,
}

const IDLE: Entry = Entry {
    due: 0,
    previous: NONE,
    next: NONE,
    bucket: NONE,
};

impl Wheel {
    /// A wheel without timers that starts at `now`.
    pub fn new(now: u64) -> Wheel {
        Wheel {
            now,
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            entries: Vec::new(),
        }
    }

    /// When the timer of `id` fires, if it is armed.
    pub fn due(&self, id: u32) -> Option<u64> {
        let entry = self.entries.get(id as usize)?;
        (entry.bucket != NONE).then_some(entry.due)
    }

    /// Arms the timer of `id`, or moves it. A time that has passed fires at the next `advance`.
    pub fn arm(&mut self, id: u32, due: u64) {
        let index = id as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, IDLE);
        }
        self.unlink(id);
        self.entries[index].due = due;
        self.link(id);
    }

    /// Disarms the timer of `id`, if it is armed.
    pub fn disarm(&mut self, id: u32) {
        if (id as usize) < self.entries.len() {
            self.unlink(id);
        }
    }

    /// The first time at which [`advance`](Self::advance) has work; no timer fires before it.
    pub fn next(&self) -> Option<u64> {
        self.first_slot().map(|(start, _, _)| start)
    }

    /// Moves the clock to `now` and appends the ids whose timers fire to `fired`.
    pub fn advance(&mut self, now: u64, fired: &mut Vec<u32>) {
        while let Some((start, level, slot)) = self.first_slot()
            && start <= now
        {
            self.now = self.now.max(start);
            let mut id = std::mem::replace(&mut self.heads[level][slot], NONE);
            self.occupied[level] &= !(1 << slot);
            while id != NONE {
                let entry = &mut self.entries[id as usize];
                let next = entry.next;
                entry.bucket = NONE;
                if entry.due <= self.now {
                    fired.push(id);
                } else {
                    self.link(id);
                }
                id = next;
            }
        }
        self.now = self.now.max(now);
    }

    /// Start, level and index of the slot that comes first. The lowest level that has any entry
    /// holds it, for an entry lies on the level of the highest digit in which it differs from now.
    fn first_slot(&self) -> Option<(u64, usize, usize)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = SLOT_BITS * level as u32;
        let lap = self.now & !((1 << (shift + SLOT_BITS)) - 1);
        Some((lap + (u64::from(slot) << shift), level, slot as usize))
    }

    fn link(&mut self, id: u32) {
        let due = self.entries[id as usize].due.max(self.now);
        let reached = due.min(REACH - 1);
        let differing = 63 - ((self.now ^ reached) | 1).leading_zeros();
        let level = (differing / SLOT_BITS) as usize;
        let slot = (reached >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let head = std::mem::replace(&mut self.heads[level][slot], id);
        self.occupied[level] |= 1 << slot;
        if head != NONE {
            self.entries[head as usize].previous = id;
        }
        let entry = &mut self.entries[id as usize];
        entry.previous = NONE;
        entry.next = head;
        entry.bucket = (level * SLOTS + slot) as u32;
    }

    fn unlink(&mut self, id: u32) {
        let entry = self.entries[id as usize];
        if entry.bucket == NONE {
            return;
        }
        let (level, slot) = (entry.bucket as usize / SLOTS, entry.bucket as usize % SLOTS);
        match entry.previous {
            NONE => self.heads[level][slot] = entry.next,
            previous => self.entries[previous as usize].next = entry.next,
        }
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = entry.previous;
        }
        if self.heads[level][slot] == NONE {
            self.occupied[level] &= !(1 << slot);
        }
        self.entries[id as usize].bucket = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn advance(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        let mut fired = Vec::new();
        wheel.advance(now, &mut fired);
        fired.sort_unstable();
        fired
    }

    #[test]
    fn a_timer_fires_at_its_time_and_not_before() {
        for due in [0, 1, 63, 64, 65, 4095, 4096, 70_000, 86_400_000] {
            let mut wheel = Wheel::new(5);
            wheel.arm(3, 5 + due);
            if due > 0 {
                assert_eq!(advance(&mut wheel, 4 + due), [0u32; 0]);
            }
            assert_eq!(advance(&mut wheel, 5 + due), [3]);
            assert_eq!(wheel.next(), None);
        }
    }

    #[test]
    fn a_moved_timer_fires_once() {
        let mut wheel = Wheel::new(0);
        wheel.arm(0, 10);
        wheel.arm(0, 1000);
        assert_eq!(advance(&mut wheel, 999), [0u32; 0]);
        assert_eq!(advance(&mut wheel, 1000), [0]);
    }

    #[test]
    fn a_disarmed_timer_does_not_fire_and_its_neighbours_do() {
        let mut wheel = Wheel::new(0);
        for id in 0..3 {
            wheel.arm(id, 100);
        }
        wheel.disarm(1);
        wheel.disarm(7);
        assert_eq!(wheel.due(1), None);
        assert_eq!(advance(&mut wheel, 100), [0, 2]);
    }

    #[test]
    fn a_timer_for_the_end_of_time_never_fires() {
        let mut wheel = Wheel::new(1);
        wheel.arm(0, u64::MAX);
        assert_eq!(advance(&mut wheel, REACH - 2), [0u32; 0]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arm(u32, u64),
        Disarm(u32),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let time = prop_oneof![0u64..100, 0u64..10_000, 0u64..100_000_000];
        prop_oneof![
            4 => (0u32..20, time.clone()).prop_map(|(id, ms)| Step::Arm(id, ms)),
            1 => (0u32..20).prop_map(Step::Disarm),
            2 => time.prop_map(Step::Advance),
        ]
    }

    proptest! {
        #[test]
        fn the_wheel_fires_what_a_sorted_map_would(start in 0u64..1 << 40, steps in prop::collection::vec(step(), 1..200)) {
            let mut wheel = Wheel::new(start);
            let mut model = BTreeMap::new();
            let mut now = start;
            for step in steps {
                match step {
                    Step::Arm(id, after) => {
                        wheel.arm(id, now + after);
                        model.insert(id, now + after);
                    }
                    Step::Disarm(id) => {
                        wheel.disarm(id);
                        model.remove(&id);
                    }
                    Step::Advance(by) => {
                        now += by;
                        let due: Vec<u32> = model.iter().filter(|(_, due)| **due <= now).map(|(id, _)| *id).collect();
                        model.retain(|_, due| *due > now);
                        prop_assert_eq!(advance(&mut wheel, now), due);
                    }
                }
                let first = model.values().min().copied();
                prop_assert_eq!(wheel.next().is_some(), first.is_some());
                prop_assert!(wheel.next() <= first.map(|due| due.max(now)));
            }
        }
    }
}
