//! A connection and the bytes of it that have been received ahead of their use.

use std::io;
use std::ops::Range;

use crate::runtime::TcpStream;
use crate::transfer::{Buffer, Buffers};

/// One end of an HTTP connection.
pub struct Peer {
    /// The connection.
    pub stream: TcpStream,
    /// What was received and not yet used.
    pub inbox: Inbox,
}

impl Peer {
    /// A connection of which nothing was received yet.
    pub fn new(stream: TcpStream) -> Peer {
        Peer {
            stream,
            inbox: Inbox::default(),
        }
    }
}

/// Bytes in a buffer of the thread, which goes back as soon as they are used up.
#[derive(Default)]
pub struct Inbox {
    buffer: Option<Buffer>,
    filled: Range<usize>,
}

impl Inbox {
    /// What was received and not yet used.
    pub fn bytes(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[self.filled.clone()],
            None => &[],
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// The first bytes are used.
    pub fn consume(&mut self, bytes: usize) {
        self.filled.start += bytes;
        debug_assert!(self.filled.start <= self.filled.end);
        if self.filled.is_empty() {
            self.buffer = None;
            self.filled = 0..0;
        }
    }

    /// Takes all bytes out.
    pub fn take_all(&mut self) -> Vec<u8> {
        self.take(self.filled.len())
    }

    /// Takes the first bytes out into memory of their own: what waits for a slow receiver must not
    /// hold a buffer of the thread.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let taken = self.bytes()[..bytes].to_vec();
        self.consume(bytes);
        taken
    }

    /// Receives more behind what is there; says how much, 0 at the peer's end. While nothing is
    /// there and nothing comes, no buffer is held.
    pub async fn receive(&mut self, buffers: &Buffers, stream: &TcpStream) -> io::Result<usize> {
        loop {
            stream.readable().await?;
            if let Some(received) = self.try_fill(buffers, stream)? {
                return Ok(received);
            }
        }
    }

    fn try_fill(&mut self, buffers: &Buffers, stream: &TcpStream) -> io::Result<Option<usize>> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => buffers.lend(),
        };
        if self.filled.end == buffer.len() && self.filled.start > 0 {
            buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        let received = stream.try_receive(&mut buffer[self.filled.end..]);
        self.filled.end += received.as_ref().ok().copied().flatten().unwrap_or(0);
        if !self.filled.is_empty() {
            self.buffer = Some(buffer);
        }
        received
    }
}
