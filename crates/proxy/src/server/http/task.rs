//! A client's task: it waits for the next request, or for the [exchange](super::exchange_pool) that answers
//! one.
//!
//! Each idle client has one, so it is a future written by hand that holds the client once. An `async fn`
//! would reserve memory for it twice: where it waits, and where it is handed on.

use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::after::Served;
use super::exchange_pool::{self, RunningExchange};
use super::read_request;
use crate::runtime::TcpStream;
use crate::server::client::Client;
use crate::server::worker::ClientGuard;

/// Serves one client until it is done. Dropped, the connection is closed.
pub struct ClientTask {
    state: State,
    /// It has not asked anything yet.
    first: bool,
    /// The time that it has to ask in is running.
    waits: bool,
    /// The last to go: a drain waits for it.
    guard: ClientGuard,
}

enum State {
    /// It has come, or was answered.
    Between(Client),
    /// It asks, and is answered.
    Exchanging(RunningExchange),
    /// It is handed from one to the other.
    Moving,
}

impl ClientTask {
    /// A client that has connected, and is served by `guard`'s worker.
    pub fn new(guard: ClientGuard, stream: TcpStream, peer: SocketAddr) -> ClientTask {
        ClientTask {
            state: State::Between(Client::new(stream, peer)),
            first: true,
            waits: false,
            guard,
        }
    }

    fn begin_exchange(&mut self) {
        if let State::Between(client) = mem::replace(&mut self.state, State::Moving) {
            let worker = self.guard.worker();
            self.state = State::Exchanging(exchange_pool::begin(worker, client, self.first));
        }
    }
}

impl Future for ClientTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        loop {
            match &mut task.state {
                State::Between(client) => {
                    let worker = task.guard.worker();
                    // What came behind the last request is the next one: it is not waited for.
                    if client.buffer.is_empty() {
                        if !mem::replace(&mut task.waits, true) {
                            read_request::await_next(worker, client, task.first);
                        }
                        if !ready!(read_request::poll_due(worker, client, task.first)) {
                            client.end_link();
                            return Poll::Ready(());
                        }
                        task.waits = false;
                    }
                    task.begin_exchange();
                }
                State::Exchanging(exchange) => {
                    let (client, served) = ready!(Pin::new(exchange).poll(context));
                    match served {
                        Served::NothingCame => {}
                        Served::Answered => task.first = false,
                        Served::Ended => return Poll::Ready(()),
                    }
                    task.state = State::Between(client);
                }
                State::Moving => return Poll::Ready(()),
            }
        }
    }
}
