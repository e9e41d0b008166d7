//! A kept body: bytes that are shared and never change, and grow at the end while they are received.
//!
//! Readers follow one that grows at their own pace, on any thread; the writer waits for none of them,
//! since memory for the whole body was reserved when it began. Once it is whole, reading takes no lock.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Bytes, BytesMut};

use super::memory::MemoryReservation;
use super::waiter::{ThreadWaker, Waiter};

/// What is received into: large enough for one receive after a pause, and small against a body for
/// which it matters.
const SEGMENT_BYTES: u64 = 256 * 1024;
/// Shorter pieces are put together: a server that dribbles would make the list longer than the body.
const SHORT_PIECE: usize = 4096;

/// Bytes in a row, in pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    list: Vec<Piece>,
    length: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    bytes: Bytes,
}

impl Pieces {
    /// How many bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends a copy.
    pub fn copy(&mut self, bytes: &[u8]) {
        let short = |piece: &mut Piece| piece.bytes.len() < SHORT_PIECE;
        match self.list.pop_if(|last| short(last)) {
            Some(Piece { start, bytes: last }) => {
                let bytes = Bytes::from([&last[..], bytes].concat());
                self.length = start;
                self.push(bytes);
            }
            None => self.push(Bytes::copy_from_slice(bytes)),
        }
    }

    fn push(&mut self, bytes: Bytes) {
        let start = self.length;
        self.length += bytes.len() as u64;
        self.list.push(Piece { start, bytes });
    }

    /// Appends to `out` what there is from `from` on, at most so many bytes.
    fn gather(&self, from: u64, mut most: u64, out: &mut Vec<Bytes>) {
        let first = self.list.partition_point(|piece| piece.start <= from);
        let mut skip = from;
        for piece in &self.list[first.saturating_sub(1)..] {
            let start = (skip - piece.start).min(piece.bytes.len() as u64);
            let end = (start + most).min(piece.bytes.len() as u64);
            if start < end {
                out.push(piece.bytes.slice(start as usize..end as usize));
            }
            most -= end - start;
            if most == 0 {
                return;
            }
            skip = piece.start + piece.bytes.len() as u64;
        }
    }

    /// The same bytes in memory of their own length.
    fn compacted(&self) -> Pieces {
        let mut pieces = Pieces::default();
        let mut at = 0;
        while at < self.length {
            let mut part = Vec::new();
            self.gather(at, SEGMENT_BYTES, &mut part);
            let bytes = part.concat();
            at += bytes.len() as u64;
            pieces.push(Bytes::from(bytes));
        }
        pieces
    }
}

/// A body, whole or growing.
#[derive(Debug)]
pub struct Body {
    length: u64,
    whole: OnceLock<Pieces>,
    growth: Mutex<Growth>,
    reservation: MemoryReservation,
}

#[derive(Debug, Default)]
struct Growth {
    pieces: Pieces,
    broken: bool,
    readers: usize,
    waiting: Vec<Waiter>,
    /// The task that fills it, woken when the last reader leaves.
    filler: Option<Waiter>,
}

/// What there is for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Bytes.
    Some,
    /// None yet: the reader is woken when there are.
    NotYet,
    /// No more will come.
    Broken,
}

impl Body {
    /// A body that is there already.
    pub fn whole(pieces: Pieces, reservation: MemoryReservation) -> Body {
        Body {
            length: pieces.length(),
            whole: OnceLock::from(pieces),
            growth: Mutex::default(),
            reservation,
        }
    }

    /// A body of this length of which nothing is there yet.
    fn growing(length: u64, reservation: MemoryReservation) -> Body {
        Body {
            length,
            whole: OnceLock::new(),
            growth: Mutex::default(),
            reservation,
        }
    }

    /// Bytes that it will have.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.whole.get().is_some()
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to `out` what there is from `from` on, at most so many bytes. If there is nothing yet,
    /// `reader` is woken when there is.
    pub fn read(
        &self,
        from: u64,
        most: u64,
        out: &mut Vec<Bytes>,
        reader: impl FnOnce() -> Waiter,
    ) -> Found {
        if let Some(pieces) = self.whole.get() {
            pieces.gather(from, most, out);
            return Found::Some;
        }
        let mut growth = self.growth();
        // It may have become whole in between.
        let pieces = self.whole.get().unwrap_or(&growth.pieces);
        if from < pieces.length() {
            pieces.gather(from, most, out);
            return Found::Some;
        }
        if growth.broken {
            return Found::Broken;
        }
        reader().join(&mut growth.waiting);
        Found::NotYet
    }
}

/// A reader of a body. While there is one, the body is filled.
pub struct Reader<'a> {
    body: &'a Body,
    waker: &'a ThreadWaker,
}

impl<'a> Reader<'a> {
    /// A reader of a body that grows; `None` of one that is whole, which no task fills.
    pub fn new(body: &'a Body, waker: &'a ThreadWaker) -> Option<Reader<'a>> {
        if body.is_whole() {
            return None;
        }
        body.growth().readers += 1;
        Some(Reader { body, waker })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut growth = self.body.growth();
        growth.readers -= 1;
        if growth.readers == 0
            && let Some(filler) = growth.filler.take()
        {
            drop(growth);
            self.waker.wake(filler);
        }
    }
}

/// Fills a body. Dropped before the end, it leaves the body broken.
pub struct Filler {
    body: std::sync::Arc<Body>,
    /// What is received into, cut off as it fills.
    segment: BytesMut,
    received: u64,
    waker: std::rc::Rc<ThreadWaker>,
}

impl Filler {
    /// What a body of this length takes while it is filled.
    pub fn memory_needed(length: u64) -> u64 {
        length + length.min(SEGMENT_BYTES)
    }

    /// A body of this length, and its filler; `reservation` has the bytes that [`memory_needed`](Self::memory_needed) returns.
    pub fn new(
        length: u64,
        reservation: MemoryReservation,
        waker: &std::rc::Rc<ThreadWaker>,
    ) -> Filler {
        Filler {
            body: std::sync::Arc::new(Body::growing(length, reservation)),
            segment: BytesMut::new(),
            received: 0,
            waker: waker.clone(),
        }
    }

    /// The body.
    pub fn body(&self) -> &std::sync::Arc<Body> {
        &self.body
    }

    /// Bytes that are there.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes still to come.
    pub fn left(&self) -> u64 {
        self.body.length - self.received
    }

    /// Where to receive, not longer than what is to come.
    pub fn space(&mut self) -> &mut [u8] {
        if self.segment.is_empty() {
            self.segment = BytesMut::zeroed(self.left().min(SEGMENT_BYTES) as usize);
        }
        let most = self.left().min(self.segment.len() as u64);
        &mut self.segment[..most as usize]
    }

    /// So many bytes were received into [`space`](Self::space).
    pub fn filled(&mut self, bytes: usize) {
        match bytes < SHORT_PIECE {
            true => {
                let short = self.segment[..bytes].to_vec();
                self.append(|pieces| pieces.copy(&short));
            }
            false => {
                let piece = self.segment.split_to(bytes).freeze();
                self.append(|pieces| pieces.push(piece));
            }
        }
    }

    /// Appends a copy of bytes that came elsewhere.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.append(|pieces| pieces.copy(bytes));
    }

    fn append(&mut self, add: impl FnOnce(&mut Pieces)) {
        let mut growth = self.body.growth();
        add(&mut growth.pieces);
        self.received = growth.pieces.length();
        let waiting = std::mem::take(&mut growth.waiting);
        drop(growth);
        waiting
            .into_iter()
            .for_each(|reader| self.waker.wake(reader));
    }

    /// Whether it has no reader. If it has one, the running task is woken when the last reader leaves.
    pub fn is_abandoned(&self) -> bool {
        let mut growth = self.body.growth();
        growth.filler = (growth.readers > 0).then(|| self.waker.waiter());
        growth.readers == 0
    }

    /// All of it is there.
    pub fn finish(self) {
        debug_assert_eq!(self.left(), 0);
        let unused = self.segment.len() as u64;
        let mut growth = self.body.growth();
        let pieces = std::mem::take(&mut growth.pieces);
        // Pieces of a segment keep all of its memory.
        let pieces = match unused > self.body.length / 8 {
            true => pieces.compacted(),
            false => pieces,
        };
        self.body
            .reservation
            .shrink(self.body.length.min(SEGMENT_BYTES));
        let _ = self.body.whole.set(pieces);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        if self.body.is_whole() {
            return;
        }
        let mut growth = self.body.growth();
        growth.broken = true;
        let waiting = std::mem::take(&mut growth.waiting);
        drop(growth);
        waiting
            .into_iter()
            .for_each(|reader| self.waker.wake(reader));
    }
}
