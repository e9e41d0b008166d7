//! The identity of a task.

use std::num::NonZeroU32;

/// A task; its number may be another task's later, the generation is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskId {
    pub(super) index: u32,
    /// Not zero, so that an optional one is as small.
    pub(super) generation: NonZeroU32,
}
