//! An exchange, and how far it has come.

use std::cell::Cell;
use std::rc::Rc;

use super::request::Request;
use crate::runtime::Handle;
use crate::server::worker::Worker;
use crate::transfer::Moved;
use crate::upstream::Backend;

/// An exchange: one request and its reply, on one connection to a server.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// The thread that it runs on.
    pub worker: &'a Worker,
    /// The request.
    pub request: &'a Request,
    /// How far it has come.
    pub progress: &'a Progress,
}

/// How far an exchange has come.
pub struct Progress {
    /// The server.
    pub backend: Rc<Backend>,
    /// When it began; `None` once the server has begun to answer.
    began_us: Cell<Option<u64>>,
    /// Bytes of the request's body.
    pub up: Moved,
    /// Bytes of the reply's body.
    pub down: Moved,
    /// Whether the server has the whole request.
    pub uploaded: Cell<bool>,
    /// What the client has of its reply.
    pub answered: Cell<Answered>,
    /// The status that the client got.
    pub status: Cell<Option<u16>>,
}

impl Progress {
    /// An exchange with this server begins now.
    pub fn begins(handle: &Handle, backend: &Rc<Backend>) -> Progress {
        Progress {
            backend: backend.clone(),
            began_us: Cell::new(Some(handle.now_us())),
            up: Moved::default(),
            down: Moved::default(),
            uploaded: Cell::default(),
            answered: Cell::default(),
            status: Cell::default(),
        }
    }

    /// The server has sent something.
    pub fn note_received(&self, handle: &Handle) {
        if let Some(began_us) = self.began_us.take() {
            let time_us = handle.now_us() - began_us;
            self.backend.counters.first_byte.observe(time_us);
        }
    }
}

/// What a client has of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Answered {
    /// Nothing.
    #[default]
    No,
    /// The head at least, which says where the body ends: the client sees if it breaks off.
    Framed,
    /// The head at least; the body ends with the connection.
    UntilClose,
}
