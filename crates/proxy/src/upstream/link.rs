//! A connection to a server while somebody uses it.

use std::io;
use std::rc::Rc;

use super::Backend;
use super::limit::Permit;
use crate::runtime::{Handle, TcpStream};

/// A connection to a server.
pub struct Link {
    // Closed before the lease ends: its slot is free only then.
    /// The connection.
    pub stream: TcpStream,
    /// The right to it.
    pub lease: Lease,
    /// It has carried a request before: its server may be about to close it.
    pub reused: bool,
}

/// The use of one connection to a server, counted while it lasts.
pub struct Lease {
    backend: Rc<Backend>,
    /// Where connections are limited.
    permit: Option<Permit>,
}

impl Lease {
    /// Counts one more use of the server.
    pub fn new(backend: Rc<Backend>, permit: Option<Permit>) -> Lease {
        backend.begin_use();
        Lease { backend, permit }
    }

    /// The server.
    pub fn backend(&self) -> &Rc<Backend> {
        &self.backend
    }

    /// Makes a new connection of it; an earlier one must have been closed.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn connect(self, handle: &Handle) -> io::Result<Link> {
        let stream = self.backend.dial(handle).await?;
        Ok(Link {
            stream,
            lease: self,
            reused: false,
        })
    }

    /// Ends the use and keeps the connection for whoever is next.
    pub fn keep(mut self, stream: TcpStream) {
        let permit = self.permit.take();
        self.backend.keep(stream, permit);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backend.end_use();
    }
}
