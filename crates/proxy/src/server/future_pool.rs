//! A pool of futures that never end.
//!
//! A future of some kilobytes that is part of each task costs that memory for each idle task. So a task takes a future
//! from the pool when it has work for it, and the future returns to the pool when the work is done. Taking one again
//! costs no allocation.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Futures kept for the next work.
const KEPT: usize = 128;

/// The free futures.
pub struct FuturePool<In, Out>(Rc<RefCell<Vec<Pooled<In, Out>>>>);

struct Pooled<In, Out> {
    work: Pin<Box<dyn Future<Output = Infallible>>>,
    handoff: Rc<Handoff<In, Out>>,
}

/// What goes into a future and comes out.
pub struct Handoff<In, Out> {
    input: Cell<Option<In>>,
    output: Cell<Option<Out>>,
}

impl<In, Out> Default for FuturePool<In, Out> {
    fn default() -> Self {
        FuturePool(Rc::default())
    }
}

impl<In, Out> Handoff<In, Out> {
    /// Waits for the next input.
    pub async fn next(&self) -> In {
        poll_fn(|_| match self.input.take() {
            Some(input) => Poll::Ready(input),
            None => Poll::Pending,
        })
        .await
    }

    /// Gives the output of the last input. The future must await [`next`](Self::next) then.
    pub fn finish(&self, output: Out) {
        self.output.set(Some(output));
    }
}

impl<In, Out> FuturePool<In, Out> {
    /// Gives a future its input. `new` makes the future if none is free.
    pub fn begin<F>(
        &self,
        input: In,
        new: impl FnOnce(Rc<Handoff<In, Out>>) -> F,
    ) -> Running<In, Out>
    where
        F: Future<Output = Infallible> + 'static,
    {
        let pooled = self.0.borrow_mut().pop().unwrap_or_else(|| {
            let handoff = Rc::new(Handoff {
                input: Cell::new(None),
                output: Cell::new(None),
            });
            Pooled {
                work: Box::pin(new(handoff.clone())),
                handoff,
            }
        });
        pooled.handoff.input.set(Some(input));
        Running {
            pooled: Some(pooled),
            free: self.0.clone(),
        }
    }
}

/// A pooled future at work; it gives the output. Dropping it discards the pooled future.
pub struct Running<In, Out> {
    /// Taken at the end.
    pooled: Option<Pooled<In, Out>>,
    free: Rc<RefCell<Vec<Pooled<In, Out>>>>,
}

impl<In, Out> Future for Running<In, Out> {
    type Output = Out;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Out> {
        let Some(pooled) = &mut self.pooled else {
            return Poll::Pending;
        };
        let Poll::Pending = pooled.work.as_mut().poll(context);
        let Some(output) = pooled.handoff.output.take() else {
            return Poll::Pending;
        };
        if let Some(pooled) = self.pooled.take() {
            let mut free = self.free.borrow_mut();
            if free.len() < KEPT {
                free.push(pooled);
            }
        }
        Poll::Ready(output)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    /// Doubles its input, in two polls.
    async fn double(handoff: Rc<Handoff<u32, u32>>) -> Infallible {
        loop {
            let input = handoff.next().await;
            let mut polled = false;
            poll_fn(|_| match std::mem::replace(&mut polled, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            handoff.finish(2 * input);
        }
    }

    fn free(pool: &FuturePool<u32, u32>) -> usize {
        pool.0.borrow().len()
    }

    #[test]
    fn a_future_serves_again_and_one_that_is_dropped_at_work_does_not() {
        let pool = FuturePool::default();
        let context = &mut Context::from_waker(Waker::noop());
        for input in [1, 2] {
            let mut running = pin!(pool.begin(input, double));
            assert_eq!(free(&pool), 0, "the first one is used again");
            assert_eq!(running.as_mut().poll(context), Poll::Pending);
            assert_eq!(running.as_mut().poll(context), Poll::Ready(2 * input));
            assert_eq!(free(&pool), 1);
        }
        let mut dropped = Box::pin(pool.begin(3, double));
        assert_eq!(dropped.as_mut().poll(context), Poll::Pending);
        drop(dropped);
        assert_eq!(free(&pool), 0);
    }
}
