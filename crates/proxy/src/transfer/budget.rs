//! How much a task moves at a time.

use crate::runtime::Handle;

/// What a task moves before the other tasks of the thread have their turn.
const TURN_BYTES: u64 = 1024 * 1024;

/// What a task has moved since the others had their turn. Where there is always more to read and room to send it, no wait
/// would give it to them.
#[derive(Debug, Default)]
pub struct YieldBudget(u64);

impl YieldBudget {
    /// Takes bytes into account; after `TURN_BYTES` the other tasks run.
    pub async fn spend(&mut self, bytes: usize, handle: &Handle) {
        self.0 += bytes as u64;
        if self.0 >= TURN_BYTES {
            self.0 = 0;
            handle.yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::runtime::Runtime;

    #[test]
    fn a_task_that_never_has_to_wait_gives_the_others_their_turn() {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let bytes_of_the_other = Rc::new(Cell::new(0));
        let moved = bytes_of_the_other.clone();
        let mover = handle.clone();
        handle.spawn(async move {
            let mut budget = YieldBudget::default();
            while moved.get() < 100 * TURN_BYTES {
                moved.set(moved.get() + 16 * 1024);
                budget.spend(16 * 1024, &mover).await;
            }
        });
        let seen = runtime.run(async move {
            handle.yield_now().await;
            bytes_of_the_other.get()
        });
        assert!((1..=2 * TURN_BYTES).contains(&seen.unwrap()));
    }
}
