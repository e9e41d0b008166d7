//! The ends of HTTP connections.

use super::read_buffer::ReadBuffer;
use crate::runtime::TcpStream;
use crate::upstream::Lease;

/// One end of an HTTP connection.
pub struct Peer {
    /// The connection.
    pub stream: TcpStream,
    /// What was received and not yet used.
    pub buffer: ReadBuffer,
}

impl Peer {
    /// A connection of which nothing was received yet.
    pub fn new(stream: TcpStream) -> Peer {
        Peer {
            stream,
            buffer: ReadBuffer::default(),
        }
    }

    /// The half that is read.
    pub fn read_half(&mut self) -> ReadHalf<'_> {
        ReadHalf {
            stream: &self.stream,
            buffer: &mut self.buffer,
        }
    }
}

/// The half of a connection that is read. The other half is its stream, for the task that writes.
pub struct ReadHalf<'a> {
    /// The connection.
    pub stream: &'a TcpStream,
    /// What was received and not yet used.
    pub buffer: &'a mut ReadBuffer,
}

/// A server's end of a connection, with the right to it.
pub struct LeasedPeer {
    // Closed before the lease ends: the connection's slot is free only then.
    /// The connection.
    pub peer: Peer,
    /// The right to it.
    pub lease: Lease,
}
