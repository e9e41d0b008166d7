//! One end of an HTTP connection.

use super::read_buffer::ReadBuffer;
use crate::runtime::TcpStream;

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
}
