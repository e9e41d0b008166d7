//! A client's task: it waits for the next request, or sits in a [seat](super::seats) where one is
//! answered.
//!
//! There are as many as idle clients, so it is a future written by hand that holds the client once. An
//! `async fn` has a place for it where it waits and another where it is handed on, though only
//! one of them is ever in use.

use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::seats::Seated;
use super::{Turn, request};
use crate::runtime::TcpStream;
use crate::server::visitor::Visitor;
use crate::server::worker::Guest;

/// Serves one client until it is done. Dropped, the connection is closed.
pub struct Client {
    state: State,
    /// It has not asked anything yet.
    first: bool,
    /// The time that it has to ask in is running.
    waits: bool,
    /// The last to go: a drain waits for it.
    guest: Guest,
}

enum State {
    /// It has come, or was answered.
    Between(Visitor),
    /// It asks, and is answered.
    Seated(Seated),
    /// It is handed from one to the other.
    Moving,
}

impl Client {
    /// A client that has connected, and is served by `guest`'s worker.
    pub fn new(guest: Guest, stream: TcpStream, peer: SocketAddr) -> Client {
        Client {
            state: State::Between(Visitor::new(stream, peer)),
            first: true,
            waits: false,
            guest,
        }
    }

    fn take_seat(&mut self) {
        if let State::Between(client) = mem::replace(&mut self.state, State::Moving) {
            let worker = self.guest.worker();
            self.state = State::Seated(worker.seats.seat(worker, client, self.first));
        }
    }
}

impl Future for Client {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        loop {
            match &mut task.state {
                State::Between(client) => {
                    let worker = task.guest.worker();
                    // What came behind the last request is the next one: it is not waited for.
                    if client.inbox.is_empty() {
                        if !mem::replace(&mut task.waits, true) {
                            request::await_next(worker, task.first);
                        }
                        if !ready!(request::poll_due(worker, &client.stream, task.first)) {
                            return Poll::Ready(());
                        }
                        task.waits = false;
                    }
                    task.take_seat();
                }
                State::Seated(seated) => {
                    let (client, turn) = ready!(Pin::new(seated).poll(context));
                    match turn {
                        Turn::NothingCame => {}
                        Turn::Answered => task.first = false,
                        Turn::Ended => return Poll::Ready(()),
                    }
                    task.state = State::Between(client);
                }
                State::Moving => return Poll::Ready(()),
            }
        }
    }
}
