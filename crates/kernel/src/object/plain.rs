//! Values of the types that bpf/abi/ declares, as the bytes in which maps, rings and iterators carry them.

/// A type that kernel and user space exchange byte by byte.
///
/// # Safety
/// Every bit pattern is a value of it, and it has no padding: bpf/abi/ asserts that of its structures.
pub(crate) unsafe trait Plain: Copy {
    /// All zero.
    fn zero() -> Self {
        // SAFETY: every bit pattern is a value.
        unsafe { std::mem::zeroed() }
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, and the bytes live as long as the borrow.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Its bytes, to be written to.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and every bit pattern is a value.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>())
        }
    }

    /// The value that these bytes begin with; `None`: they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: as many bytes as the value has, which may lie unaligned.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// The values that these bytes are, without an incomplete last one.
    fn read_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.chunks_exact(size_of::<Self>()).filter_map(Self::read)
    }
}

/// Says of types that are made from bpf/abi/ that they are [`Plain`].
macro_rules! plain {
    ($($type:ty),+ $(,)?) => {
        $(
            // SAFETY: a structure of integers of bpf/abi/, without padding.
            unsafe impl $crate::object::Plain for $type {}
        )+
    };
}
pub(crate) use plain;

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
