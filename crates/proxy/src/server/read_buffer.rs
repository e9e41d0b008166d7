//! The bytes of a connection that have been received ahead of their use.

use std::io;
use std::ops::Range;

use crate::runtime::TcpStream;
use crate::transfer::{BUFFER_BYTES, Buffer, Buffers};

/// Space kept free in front of received bytes: a rewritten head may be longer than the one that came, and one send takes
/// it together with the body that came behind it.
const HEADROOM_BYTES: usize = 512;

/// Received bytes, in a buffer that the thread lends. The buffer goes back as soon as they are used up.
#[derive(Default)]
pub struct ReadBuffer {
    buffer: Option<Buffer>,
    filled: Filled,
}

/// Where in the buffer they are. Half as large as a range: there is one for each idle client.
#[derive(Default, Clone, Copy)]
struct Filled {
    start: u32,
    end: u32,
}

const _: () = assert!(BUFFER_BYTES <= u32::MAX as usize);

impl Filled {
    fn of(range: Range<usize>) -> Filled {
        Filled {
            start: range.start as u32,
            end: range.end as u32,
        }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl ReadBuffer {
    /// What was received and not yet used.
    pub fn bytes(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[self.filled.range()],
            None => &[],
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.filled.start == self.filled.end
    }

    /// Drops the first bytes, which are used.
    pub fn consume(&mut self, bytes: usize) {
        let filled = self.filled.range();
        debug_assert!(bytes <= filled.len());
        self.filled = Filled::of(filled.start + bytes..filled.end);
        if self.is_empty() {
            self.buffer = None;
        }
    }

    /// Takes all bytes out.
    pub fn take_all(&mut self) -> Vec<u8> {
        self.take(self.bytes().len())
    }

    /// Takes the first bytes out into memory of their own: what waits for a slow receiver must not
    /// hold a buffer of the thread.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let taken = self.bytes()[..bytes].to_vec();
        self.consume(bytes);
        taken
    }

    /// Keeps what is there in memory that is just large enough: a client that sends part of a request and no more must not
    /// hold a buffer of the thread.
    pub fn shrink(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let filled = self.filled.range();
            self.filled = Filled::of(0..filled.len());
            self.buffer = Some(buffer.shrink_to(filled));
        }
    }

    /// Puts bytes in front of the others, into the space in front of them; false if that is too small.
    pub fn prepend(&mut self, bytes: &[u8]) -> bool {
        let filled = self.filled.range();
        let Some(start) = filled.start.checked_sub(bytes.len()) else {
            return false;
        };
        let Some(buffer) = &mut self.buffer else {
            return false;
        };
        buffer[start..filled.start].copy_from_slice(bytes);
        self.filled = Filled::of(start..filled.end);
        true
    }

    /// Receives more behind what is there: see [`receive_at_most`](Self::receive_at_most).
    pub async fn receive(&mut self, buffers: &Buffers, stream: &TcpStream) -> io::Result<usize> {
        self.receive_at_most(buffers, stream, usize::MAX).await
    }

    /// Receives at most `most` behind what is there; says how much, 0 at the peer's end. While nothing
    /// is there and nothing comes, no buffer is held.
    pub async fn receive_at_most(
        &mut self,
        buffers: &Buffers,
        stream: &TcpStream,
        most: usize,
    ) -> io::Result<usize> {
        loop {
            stream.readable().await?;
            if let Some(received) = self.try_receive_at_most(buffers, stream, most)? {
                return Ok(received);
            }
        }
    }

    /// As [`receive_at_most`](Self::receive_at_most), but waits for nothing: `None` if there is nothing.
    pub fn try_receive_at_most(
        &mut self,
        buffers: &Buffers,
        stream: &TcpStream,
        most: usize,
    ) -> io::Result<Option<usize>> {
        let (mut buffer, mut filled) = match self.buffer.take() {
            Some(small) if small.is_shrunk() => grown(&small[self.filled.range()], buffers),
            Some(buffer) => (buffer, self.filled.range()),
            None => (buffers.lend(), HEADROOM_BYTES..HEADROOM_BYTES),
        };
        if filled.end == buffer.len() && filled.start > 0 {
            buffer.copy_within(filled.clone(), 0);
            filled = 0..filled.len();
        }
        let end = buffer.len().min(filled.end.saturating_add(most));
        let received = stream.try_receive(&mut buffer[filled.end..end]);
        filled.end += received.as_ref().ok().copied().flatten().unwrap_or(0);
        if !filled.is_empty() {
            self.buffer = Some(buffer);
        }
        self.filled = Filled::of(filled);
        received
    }
}

/// A buffer of the thread with these bytes.
fn grown(bytes: &[u8], buffers: &Buffers) -> (Buffer, Range<usize>) {
    let mut buffer = buffers.lend();
    let start = HEADROOM_BYTES.min(buffer.len() - bytes.len());
    let filled = start..start + bytes.len();
    buffer[filled.clone()].copy_from_slice(bytes);
    (buffer, filled)
}
