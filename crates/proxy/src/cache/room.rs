//! The cache's memory: what is taken of it is given back when the last user is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be held, in all.
#[derive(Debug)]
pub struct Room {
    held: AtomicU64,
    limit: u64,
    objects: AtomicU64,
}

/// The bytes of one reply's head, counted as an object while they are held.
#[derive(Debug)]
pub struct Object(Share);

/// Bytes that are held, until it is dropped.
#[derive(Debug)]
pub struct Share {
    bytes: AtomicU64,
    room: Arc<Room>,
}

impl Room {
    /// Room for so many bytes.
    pub fn new(limit: u64) -> Arc<Room> {
        Arc::new(Room {
            held: AtomicU64::new(0),
            limit,
            objects: AtomicU64::new(0),
        })
    }

    /// Takes so many bytes; `None` if they are not free.
    pub fn take(self: &Arc<Room>, bytes: u64) -> Option<Share> {
        self.add(bytes).then(|| Share {
            bytes: AtomicU64::new(bytes),
            room: self.clone(),
        })
    }

    /// As [`take`](Self::take), for one object more.
    pub fn take_object(self: &Arc<Room>, bytes: u64) -> Option<Object> {
        let share = self.take(bytes)?;
        self.objects.fetch_add(1, Ordering::Relaxed);
        Some(Object(share))
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

impl Share {
    /// Takes more. False, and nothing taken, if it is not free.
    pub fn grow(&self, bytes: u64) -> bool {
        let grown = self.room.add(bytes);
        if grown {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        grown
    }

    /// Gives some of it back.
    pub fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.room.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.0.room.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.room.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_is_given_back() {
        let room = Room::new(10);
        let share = room.take(6).unwrap();
        assert!(room.take(5).is_none());
        assert!(share.grow(4) && !share.grow(1));
        assert_eq!(room.held(), 10);
        share.shrink(3);
        assert_eq!(room.held(), 7);
        drop(share);
        assert_eq!(room.held(), 0);
        assert!(room.take(10).is_some());
    }

    #[test]
    fn more_than_a_number_holds_is_not_there() {
        let room = Room::new(u64::MAX);
        let _share = room.take(1).unwrap();
        assert!(room.take(u64::MAX).is_none());
    }
}
