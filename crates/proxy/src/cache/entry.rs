//! A kept reply, and the requests that it is for.

use std::sync::Arc;

use super::body::Body;
use super::clock::Moment;
use super::key::Vary;
use super::memory::ObjectReservation;
use super::policy::Terms;

/// Bytes that an entry takes beside its head and its body.
pub(super) const ENTRY_BYTES: u64 = 512;

/// A reply that is kept, or is to be.
#[derive(Debug)]
pub struct Entry {
    /// Status line and fields, without framing, age and the empty line.
    pub head: Box<[u8]>,
    /// Its status.
    pub status: u16,
    /// How it may be used.
    pub terms: Terms,
    /// Its bytes, which several heads in a row may have: a 304 renews only the head.
    pub body: Arc<Body>,
    pub(super) received: Moment,
    /// Of the head.
    pub(super) _object: ObjectReservation,
}

/// The head of a reply that is to be kept.
#[derive(Debug)]
pub struct EntryHead {
    /// As in [`Entry::head`].
    pub bytes: Vec<u8>,
    /// The reply's status.
    pub status: u16,
    /// How the reply may be used.
    pub terms: Terms,
}

/// A reply and the requests that it is for.
pub struct Kept {
    /// The reply.
    pub entry: Arc<Entry>,
    /// What it depends on.
    pub vary: Arc<Vary>,
    /// What the request said in that.
    pub variant: Arc<[u8]>,
}

impl Entry {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.head.len() as u64 + self.body.length()
    }
}
