//! How many clients a proxy has, over all its threads and its generations: `max_clients` is exact.
//!
//! A client costs two atomic operations in its life, a request none. A thread that finds no place stands in line, and
//! each place that becomes free calls the first. Who was called and has nobody to accept gives the place back,
//! which calls the next: no place stays free while somebody waits in any queue.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::runtime::{Handle, Sender};

/// All clients of a proxy.
#[derive(Default)]
pub struct Crowd {
    inside: AtomicUsize,
    /// How long the line is, for those who leave: they lock it only if somebody is there.
    waiting: AtomicUsize,
    line: Mutex<VecDeque<Waiter>>,
    entrances: AtomicU64,
}

/// A thread in the line, and how it is called.
struct Waiter {
    entrance: u64,
    bell: Sender<()>,
}

/// One thread's way in.
pub struct Entrance {
    crowd: Arc<Crowd>,
    number: u64,
    /// Clients at most: `max_clients`.
    most: usize,
    bell: Sender<()>,
}

impl Entrance {
    /// A thread that admits clients while there are fewer than `most`, and is called by `bell`.
    pub fn new(crowd: Arc<Crowd>, most: usize, bell: Sender<()>) -> Entrance {
        Entrance {
            number: crowd.entrances.fetch_add(1, Ordering::Relaxed),
            crowd,
            most,
            bell,
        }
    }

    /// Takes a place if there is one.
    pub fn try_enter(&self) -> bool {
        let one_more = |inside: usize| (inside < self.most).then_some(inside + 1);
        let inside = &self.crowd.inside;
        inside
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .is_ok()
    }

    /// Takes a place, be there one or not.
    pub fn enter(&self) {
        self.crowd.inside.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives a place back. True: this very thread is the next to look for one.
    pub fn leave(&self) -> bool {
        self.crowd.inside.fetch_sub(1, Ordering::SeqCst);
        // Who comes to the line looks for room after this has grown, so one of the two sees the other.
        self.crowd.waiting.load(Ordering::SeqCst) > 0 && self.call_next()
    }

    /// Calls the first of the line; true if it is this one, which needs no bell.
    fn call_next(&self) -> bool {
        let mut line = self.crowd.line();
        let Some(first) = line.pop_front() else {
            return false;
        };
        self.crowd.waiting.store(line.len(), Ordering::SeqCst);
        drop(line);
        let is_own = first.entrance == self.number;
        if !is_own {
            first.bell.send(());
        }
        is_own
    }

    /// Waits in the line until there seems to be a place. Another may be faster.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub async fn wait(&self, handle: &Handle) -> io::Result<()> {
        let mut spot = Spot {
            entrance: self,
            goes_in: false,
        };
        let room = || {
            self.line_up();
            (self.crowd.inside.load(Ordering::SeqCst) < self.most).then_some(())
        };
        handle.wait_for(room).await?;
        spot.goes_in = true;
        Ok(())
    }

    fn line_up(&self) {
        let mut line = self.crowd.line();
        if line.iter().all(|waiter| waiter.entrance != self.number) {
            line.push_back(Waiter {
                entrance: self.number,
                bell: self.bell.clone(),
            });
            self.crowd.waiting.store(line.len(), Ordering::SeqCst);
        }
    }

    /// Leaves the line; false if this thread was called out of it.
    fn step_out(&self) -> bool {
        let mut line = self.crowd.line();
        let before = line.len();
        line.retain(|waiter| waiter.entrance != self.number);
        self.crowd.waiting.store(line.len(), Ordering::SeqCst);
        line.len() < before
    }
}

impl Crowd {
    fn line(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        // No step of it panics halfway.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's spot in the line, for as long as it waits.
struct Spot<'a> {
    entrance: &'a Entrance,
    goes_in: bool,
}

impl Drop for Spot<'_> {
    fn drop(&mut self) {
        let was_called = !self.entrance.step_out();
        // Who was called and goes elsewhere, or falls, must not keep the call to itself.
        if was_called && !self.goes_in {
            self.entrance.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::runtime::{Mailbox, Runtime, first, mailbox};

    fn entrance(crowd: &Arc<Crowd>, most: usize, handle: &Handle) -> (Entrance, Mailbox<()>) {
        let (bell, rung) = mailbox(handle).unwrap();
        (Entrance::new(crowd.clone(), most, bell), rung)
    }

    #[test]
    fn threads_that_race_for_places_never_take_more_than_there_are() {
        let crowd = Arc::new(Crowd::default());
        let inside = AtomicUsize::new(0);
        let handle = Runtime::new().unwrap();
        let entrances: Vec<_> = (0..4)
            .map(|_| entrance(&crowd, 3, handle.handle()))
            .collect();
        let entrances: Vec<Entrance> = entrances.into_iter().map(|(own, _)| own).collect();
        std::thread::scope(|scope| {
            for own in &entrances {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if own.try_enter() {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            own.leave();
                        }
                    }
                });
            }
        });
        assert_eq!(crowd.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_is_called_and_goes_elsewhere_passes_the_call_on() {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let looked = runtime.run(async move {
            let crowd = Arc::new(Crowd::default());
            let (a, _a_rung) = entrance(&crowd, 1, &handle);
            let (b, b_rung) = entrance(&crowd, 1, &handle);
            assert!(a.try_enter() && !b.try_enter());
            let (c, _c_rung) = entrance(&crowd, 1, &handle);
            // c is first in the line, then b.
            c.line_up();
            b.line_up();
            let spot = Spot {
                entrance: &c,
                goes_in: false,
            };
            assert!(!a.leave());
            drop(spot);
            handle.set_deadline(std::time::Duration::from_secs(20));
            b_rung.receive().await.unwrap();
            let never = pin!(async { b_rung.receive().await.map(|()| false) });
            let room = pin!(async { b.wait(&handle).await.map(|()| true) });
            (
                first(never, room).await.unwrap(),
                b.try_enter(),
                crowd.waiting.load(Ordering::SeqCst),
            )
        });
        assert_eq!(looked.unwrap(), (true, true, 0));
    }
}
