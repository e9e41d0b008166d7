//! Ring buffers (BPF_MAP_TYPE_RINGBUF) whose records are of one type.

use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use super::Plain;

/// A ring that is read again and again.
pub(crate) struct Ring(RingBuffer<'static>);

impl Ring {
    /// Opens the ring; [`Ring::consume`] calls `each` for every record.
    pub fn open<T: Plain>(
        map: &dyn MapCore,
        each: impl FnMut(T) + 'static,
    ) -> libbpf_rs::Result<Ring> {
        reader(map, each).map(Ring)
    }

    /// Reads all records that are there.
    pub fn consume(&self) {
        // Fails only where the callback does.
        let _ = self.0.consume();
    }
}

impl AsFd for Ring {
    /// Readable while there are records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.0.epoll_fd()) }
    }
}

/// Reads all records that are in the ring now.
pub(crate) fn drain<T: Plain>(map: &dyn MapCore, each: impl FnMut(T)) -> libbpf_rs::Result<()> {
    reader(map, each)?.consume()
}

fn reader<'a, T: Plain>(
    map: &dyn MapCore,
    mut each: impl FnMut(T) + 'a,
) -> libbpf_rs::Result<RingBuffer<'a>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(map, move |bytes| {
        // Records are whole: the programs reserve as many bytes as the type has.
        T::read(bytes).into_iter().for_each(&mut each);
        0
    })?;
    builder.build()
}
