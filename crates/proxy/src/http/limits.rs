//! How large a head may be.

/// How large a head may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the first line to the empty line.
    pub head_bytes: usize,
    /// Bytes of a request target; RFC 9112 Section 3 wants at least 8000.
    pub target_bytes: usize,
    /// Number of fields, at most [`FieldSlots::CAPACITY`](super::FieldSlots::CAPACITY).
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 32 << 10,
            target_bytes: 16 << 10,
            fields: 100,
        }
    }
}

impl Limits {
    /// Limits for heads of so many bytes.
    pub fn of_head(head_bytes: usize) -> Limits {
        let usual = Limits::default();
        Limits {
            head_bytes,
            target_bytes: usual.target_bytes.min(head_bytes),
            ..usual
        }
    }
}
