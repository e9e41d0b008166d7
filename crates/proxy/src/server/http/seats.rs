//! Room for exchanges, lent while they last.
//!
//! What an exchange keeps while it waits (the future of [`take_turn`]) takes some kilobytes. Were it
//! part of a client's task, idle clients would hold that much each. So it lies in a seat, which the
//! client leaves when its request is answered, for the next one. A seat's future never ends: taking
//! it again costs no allocation.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Turn, take_turn};
use crate::server::visitor::Visitor;
use crate::server::worker::Worker;

/// Seats kept for the next client.
const KEPT: usize = 128;

/// The thread's free seats.
#[derive(Default)]
pub struct Seats(Rc<RefCell<Vec<Seat>>>);

struct Seat {
    work: Pin<Box<dyn Future<Output = Infallible>>>,
    desk: Rc<Desk>,
}

/// What goes into a seat and comes out.
#[derive(Default)]
struct Desk {
    client: Cell<Option<(Rc<Worker>, Visitor, bool)>>,
    served: Cell<Option<(Visitor, Turn)>>,
}

impl Seats {
    /// Seats a client for one turn; it comes back with what that came to. `first`: it has not asked
    /// anything yet.
    pub(super) fn seat(&self, worker: &Rc<Worker>, client: Visitor, first: bool) -> Seated {
        let seat = self.0.borrow_mut().pop().unwrap_or_else(Seat::new);
        seat.desk.client.set(Some((worker.clone(), client, first)));
        Seated {
            seat: Some(seat),
            free: self.0.clone(),
        }
    }
}

impl Seat {
    fn new() -> Seat {
        let desk = Rc::new(Desk::default());
        Seat {
            work: Box::pin(work(desk.clone())),
            desk,
        }
    }
}

async fn work(desk: Rc<Desk>) -> Infallible {
    loop {
        let (worker, mut client, first) = poll_fn(|_| match desk.client.take() {
            Some(client) => Poll::Ready(client),
            None => Poll::Pending,
        })
        .await;
        let turn = take_turn(&worker, &mut client, first).await;
        desk.served.set(Some((client, turn)));
    }
}

/// A client in its seat. Dropped, the client's connection is closed, and the seat is gone.
pub(super) struct Seated {
    /// Taken at the end.
    seat: Option<Seat>,
    free: Rc<RefCell<Vec<Seat>>>,
}

impl Future for Seated {
    type Output = (Visitor, Turn);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(seat) = &mut self.seat else {
            return Poll::Pending;
        };
        let Poll::Pending = seat.work.as_mut().poll(context);
        let Some(served) = seat.desk.served.take() else {
            return Poll::Pending;
        };
        if let Some(seat) = self.seat.take() {
            let mut free = self.free.borrow_mut();
            if free.len() < KEPT {
                free.push(seat);
            }
        }
        Poll::Ready(served)
    }
}
