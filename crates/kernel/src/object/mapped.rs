//! Arrays that BPF programs and this process share as memory (BPF_F_MMAPABLE).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::Plain;
use crate::error::{Result, of_errno};

/// The memory of an array map; unmapped on drop.
///
/// Programs write to it at any time: read and write its fields by volatile or atomic access through
/// [`Mapped::at`].
pub(crate) struct Mapped<T> {
    first: NonNull<T>,
    entries: u32,
}

// SAFETY: the memory is mapped for the life of the value and belongs to no thread; who accesses it through
// the pointers of `at` answers for that.
unsafe impl<T: Plain> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapped<T> {}

impl<T: Plain> Mapped<T> {
    /// Maps an array of so many entries. `what` completes "cannot …" in the error.
    pub fn of(map: BorrowedFd<'_>, entries: u32, what: &str) -> Result<Mapped<T>> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (null, bytes) = (std::ptr::null_mut(), size_of::<T>() * entries as usize);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(null, bytes, protection, flags, map.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(of_errno(what));
        }
        let first = NonNull::new(at.cast()).expect("mmap gives no null");
        Ok(Mapped { first, entries })
    }

    /// The entry with this index, inside the mapping and aligned.
    pub fn at(&self, index: u32) -> *mut T {
        assert!(index < self.entries);
        // SAFETY: inside the mapping.
        unsafe { self.first.as_ptr().add(index as usize) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        let bytes = size_of::<T>() * self.entries as usize;
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), bytes) };
    }
}
