//! The thread's buffers.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;

/// Length of a buffer: one receive takes what a GRO packet of 64 KiB holds.
pub const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers kept for the next user.
const KEPT: usize = 16;
/// From so many buffers in use on, a transfer asks for the receiver's space before it reads for it.
const MANY_LENT: usize = 64;

/// Buffers that are lent while they carry bytes.
#[derive(Default, Clone)]
pub struct Buffers(Rc<Pool>);

#[derive(Default)]
struct Pool {
    free: RefCell<Vec<Box<[u8]>>>,
    lent: Cell<usize>,
}

/// A buffer on loan.
pub struct Buffer {
    /// Taken only by drop.
    bytes: Option<Box<[u8]>>,
    pool: Rc<Pool>,
}

impl Buffers {
    /// Lends a buffer. Its bytes are those of earlier users.
    pub fn lend(&self) -> Buffer {
        let free = self.0.free.borrow_mut().pop();
        self.0.lent.set(self.0.lent.get() + 1);
        Buffer {
            bytes: Some(free.unwrap_or_else(|| vec![0; BUFFER_BYTES].into())),
            pool: self.0.clone(),
        }
    }

    /// Whether so many are lent that slow receivers must be behind it.
    pub fn many_lent(&self) -> bool {
        self.0.lent.get() >= MANY_LENT
    }
}

impl Buffer {
    /// These bytes in memory of their own, and no more: for what waits. The buffer goes back.
    pub fn shrink_to(self, range: Range<usize>) -> Buffer {
        Buffer {
            bytes: Some(self[range].into()),
            pool: self.pool.clone(),
        }
    }

    /// Whether it holds no more than what it was shrunk to.
    pub fn is_shrunk(&self) -> bool {
        self.len() < BUFFER_BYTES
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_shrunk() {
            return;
        }
        self.pool.lent.set(self.pool.lent.get() - 1);
        let mut free = self.pool.free.borrow_mut();
        if free.len() < KEPT
            && let Some(bytes) = self.bytes.take()
        {
            free.push(bytes);
        }
    }
}
