//! The limit `max_clients`, exact over all threads and generations of a proxy: a semaphore. Where the process has too few
//! descriptors for so many, fewer are let in.
//!
//! A client costs two atomic operations in its life, a request none. A thread that gets no permit enters the queue.
//! Each released permit wakes the first thread of the queue. A woken thread whose accept queue is empty wakes the next:
//! no permit stays free while a client waits in any accept queue.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::runtime::{Handle, Sender};

/// The semaphore, shared by all threads.
pub struct ClientLimit {
    clients: AtomicUsize,
    /// As many as there are descriptors for.
    most: AtomicUsize,
    /// The length of the queue. A thread that releases a permit locks the queue only if this is not 0.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Waiter>>,
    threads: AtomicU64,
}

impl Default for ClientLimit {
    fn default() -> ClientLimit {
        ClientLimit {
            clients: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            threads: AtomicU64::new(0),
        }
    }
}

/// A thread in the queue.
struct Waiter {
    thread: u64,
    waker: Sender<()>,
}

/// One thread's access to the semaphore.
pub struct ThreadClientLimit {
    shared: Arc<ClientLimit>,
    number: u64,
    /// Clients at most: `max_clients`.
    most: usize,
    waker: Sender<()>,
}

impl ThreadClientLimit {
    /// The access of a thread that accepts while there are fewer than `most` clients. `waker` wakes it.
    pub fn new(
        client_limit: Arc<ClientLimit>,
        most: usize,
        waker: Sender<()>,
    ) -> ThreadClientLimit {
        ThreadClientLimit {
            number: client_limit.threads.fetch_add(1, Ordering::Relaxed),
            shared: client_limit,
            most,
            waker,
        }
    }

    fn most(&self) -> usize {
        self.most.min(self.shared.most())
    }

    /// Takes a permit if one is free.
    pub fn try_acquire(&self) -> bool {
        let most = self.most();
        let one_more = |clients: usize| (clients < most).then_some(clients + 1);
        let clients = &self.shared.clients;
        clients
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .is_ok()
    }

    /// Takes a permit even if none is free.
    pub fn acquire_over_limit(&self) {
        self.shared.clients.fetch_add(1, Ordering::SeqCst);
    }

    /// Releases a permit. True: this thread is the next to try for one.
    pub fn release(&self) -> bool {
        self.shared.clients.fetch_sub(1, Ordering::SeqCst);
        // A thread enters the queue before it looks for a permit, so one of the two sees the other.
        self.shared.waiting.load(Ordering::SeqCst) > 0 && self.wake_next()
    }

    /// Wakes the first thread of the queue. True: it is this thread, which needs no waker.
    fn wake_next(&self) -> bool {
        let Some(first) = self.shared.pop() else {
            return false;
        };
        let is_own = first.thread == self.number;
        if !is_own {
            first.waker.send(());
        }
        is_own
    }

    /// Waits in the queue until a permit seems to be free. Another thread may take it first.
    ///
    /// # Errors
    /// `TimedOut` after the task's deadline.
    pub async fn wait(&self, handle: &Handle) -> io::Result<()> {
        let mut entry = QueueEntry {
            thread: self,
            acquires: false,
        };
        let free = || {
            self.enqueue();
            (self.shared.clients.load(Ordering::SeqCst) < self.most()).then_some(())
        };
        handle.wait_for(free).await?;
        entry.acquires = true;
        Ok(())
    }

    fn enqueue(&self) {
        let mut queue = self.shared.queue();
        if queue.iter().all(|waiter| waiter.thread != self.number) {
            queue.push_back(Waiter {
                thread: self.number,
                waker: self.waker.clone(),
            });
            self.shared.waiting.store(queue.len(), Ordering::SeqCst);
        }
    }

    /// Leaves the queue. False: the thread was woken, which took it out.
    fn dequeue(&self) -> bool {
        let mut queue = self.shared.queue();
        let before = queue.len();
        queue.retain(|waiter| waiter.thread != self.number);
        self.shared.waiting.store(queue.len(), Ordering::SeqCst);
        queue.len() < before
    }
}

impl ClientLimit {
    /// As many clients as there are descriptors for.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// Lets in no more than there are descriptors for; those that are in stay.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::SeqCst);
        // It may be more than before: then the woken thread wakes the next.
        if let Some(first) = self.pop() {
            first.waker.send(());
        }
    }

    /// Takes the first thread out of the queue.
    fn pop(&self) -> Option<Waiter> {
        let mut queue = self.queue();
        let first = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::SeqCst);
        first
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        // No step of it panics halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's entry in the queue, for as long as it waits.
struct QueueEntry<'a> {
    thread: &'a ThreadClientLimit,
    acquires: bool,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let was_woken = !self.thread.dequeue();
        // A woken thread that does not acquire, or panics, passes the wake-up on.
        if was_woken && !self.acquires {
            self.thread.wake_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::runtime::{Mailbox, Runtime, first, mailbox};

    fn thread(
        client_limit: &Arc<ClientLimit>,
        most: usize,
        handle: &Handle,
    ) -> (ThreadClientLimit, Mailbox<()>) {
        let (waker, woken) = mailbox(handle).unwrap();
        (
            ThreadClientLimit::new(client_limit.clone(), most, waker),
            woken,
        )
    }

    #[test]
    fn threads_that_race_for_permits_never_take_more_than_there_are() {
        let client_limit = Arc::new(ClientLimit::default());
        let clients = AtomicUsize::new(0);
        let handle = Runtime::new().unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| thread(&client_limit, 3, handle.handle()))
            .collect();
        let threads: Vec<ThreadClientLimit> = threads.into_iter().map(|(own, _)| own).collect();
        std::thread::scope(|scope| {
            for own in &threads {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if own.try_acquire() {
                            assert!(clients.fetch_add(1, Ordering::SeqCst) < 3);
                            clients.fetch_sub(1, Ordering::SeqCst);
                            own.release();
                        }
                    }
                });
            }
        });
        assert_eq!(client_limit.clients.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_woken_thread_that_does_not_acquire_wakes_the_next() {
        let runtime = Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        let looked = runtime.run(async move {
            let client_limit = Arc::new(ClientLimit::default());
            let (a, _a_woken) = thread(&client_limit, 1, &handle);
            let (b, b_woken) = thread(&client_limit, 1, &handle);
            assert!(a.try_acquire() && !b.try_acquire());
            let (c, _c_woken) = thread(&client_limit, 1, &handle);
            // c is first in the queue, then b.
            c.enqueue();
            b.enqueue();
            let entry = QueueEntry {
                thread: &c,
                acquires: false,
            };
            assert!(!a.release());
            drop(entry);
            handle.set_deadline(std::time::Duration::from_secs(20));
            b_woken.receive().await.unwrap();
            let never = pin!(async { b_woken.receive().await.map(|()| false) });
            let free = pin!(async { b.wait(&handle).await.map(|()| true) });
            (
                first(never, free).await.unwrap(),
                b.try_acquire(),
                client_limit.waiting.load(Ordering::SeqCst),
            )
        });
        assert_eq!(looked.unwrap(), (true, true, 0));
    }
}
