//! A pool of futures that serve one request each.
//!
//! The future of [`serve_next`] takes some kilobytes. If it were part of a client's task, each idle client
//! would hold that much. So a client takes a future from the pool when its request begins, and returns it when
//! the request is answered. The pooled futures never end: taking one again costs no allocation.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Served, serve_next};
use crate::server::client::Client;
use crate::server::worker::Worker;

/// Futures kept for the next client.
const KEPT: usize = 128;

/// The thread's free futures.
#[derive(Default)]
pub struct ExchangePool(Rc<RefCell<Vec<PooledExchange>>>);

struct PooledExchange {
    work: Pin<Box<dyn Future<Output = Infallible>>>,
    handoff: Rc<Handoff>,
}

/// What goes into the future and comes out.
#[derive(Default)]
struct Handoff {
    client: Cell<Option<(Rc<Worker>, Client, bool)>>,
    served: Cell<Option<(Client, Served)>>,
}

impl ExchangePool {
    /// Serves one request of a client. The future returns the client and the result. `first`: the client has not
    /// asked anything yet.
    pub(super) fn begin(
        &self,
        worker: &Rc<Worker>,
        client: Client,
        first: bool,
    ) -> RunningExchange {
        let exchange = self
            .0
            .borrow_mut()
            .pop()
            .unwrap_or_else(PooledExchange::new);
        exchange
            .handoff
            .client
            .set(Some((worker.clone(), client, first)));
        RunningExchange {
            exchange: Some(exchange),
            free: self.0.clone(),
        }
    }
}

impl PooledExchange {
    fn new() -> PooledExchange {
        let handoff = Rc::new(Handoff::default());
        PooledExchange {
            work: Box::pin(work(handoff.clone())),
            handoff,
        }
    }
}

async fn work(handoff: Rc<Handoff>) -> Infallible {
    loop {
        let (worker, mut client, first) = poll_fn(|_| match handoff.client.take() {
            Some(client) => Poll::Ready(client),
            None => Poll::Pending,
        })
        .await;
        let served = serve_next(&worker, &mut client, first).await;
        handoff.served.set(Some((client, served)));
    }
}

/// A client whose request is being served. Dropping it closes the client's connection and discards the pooled future.
pub(super) struct RunningExchange {
    /// Taken at the end.
    exchange: Option<PooledExchange>,
    free: Rc<RefCell<Vec<PooledExchange>>>,
}

impl Future for RunningExchange {
    type Output = (Client, Served);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Pending;
        };
        let Poll::Pending = exchange.work.as_mut().poll(context);
        let Some(served) = exchange.handoff.served.take() else {
            return Poll::Pending;
        };
        if let Some(exchange) = self.exchange.take() {
            let mut free = self.free.borrow_mut();
            if free.len() < KEPT {
                free.push(exchange);
            }
        }
        Poll::Ready(served)
    }
}
