//! The cache's memory. A reservation is released when its last user drops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be held, in all.
#[derive(Debug)]
pub struct MemoryLimit {
    held: AtomicU64,
    limit: u64,
    objects: AtomicU64,
}

/// The bytes of one reply's head, counted as an object while they are held.
#[derive(Debug)]
pub struct ObjectReservation(MemoryReservation);

/// Bytes that are held, until it is dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    bytes: AtomicU64,
    memory: Arc<MemoryLimit>,
}

impl MemoryLimit {
    /// A limit of so many bytes.
    pub fn new(limit: u64) -> Arc<MemoryLimit> {
        Arc::new(MemoryLimit {
            held: AtomicU64::new(0),
            limit,
            objects: AtomicU64::new(0),
        })
    }

    /// Takes so many bytes; `None` if they are not free.
    pub fn reserve(self: &Arc<MemoryLimit>, bytes: u64) -> Option<MemoryReservation> {
        self.add(bytes).then(|| MemoryReservation {
            bytes: AtomicU64::new(bytes),
            memory: self.clone(),
        })
    }

    /// As [`reserve`](Self::reserve), for one object more.
    pub fn reserve_object(self: &Arc<MemoryLimit>, bytes: u64) -> Option<ObjectReservation> {
        let reservation = self.reserve(bytes)?;
        self.objects.fetch_add(1, Ordering::Relaxed);
        Some(ObjectReservation(reservation))
    }

    /// Objects that are held now.
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes that may be held.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) -> bool {
        let more = |held: u64| held.checked_add(bytes).filter(|&held| held <= self.limit);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.held.fetch_update(set, fetch, more).is_ok()
    }
}

impl MemoryReservation {
    /// Takes more. False, and nothing taken, if it is not free.
    pub fn grow(&self, bytes: u64) -> bool {
        let grown = self.memory.add(bytes);
        if grown {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        grown
    }

    /// Gives some of it back.
    pub fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for ObjectReservation {
    fn drop(&mut self) {
        self.0.memory.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.memory.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_is_given_back() {
        let memory = MemoryLimit::new(10);
        let reservation = memory.reserve(6).unwrap();
        assert!(memory.reserve(5).is_none());
        assert!(reservation.grow(4) && !reservation.grow(1));
        assert_eq!(memory.held(), 10);
        reservation.shrink(3);
        assert_eq!(memory.held(), 7);
        drop(reservation);
        assert_eq!(memory.held(), 0);
        assert!(memory.reserve(10).is_some());
    }

    #[test]
    fn more_than_a_number_holds_is_not_there() {
        let memory = MemoryLimit::new(u64::MAX);
        let _reservation = memory.reserve(1).unwrap();
        assert!(memory.reserve(u64::MAX).is_none());
    }
}
