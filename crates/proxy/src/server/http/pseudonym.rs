//! The name by which the proxy calls itself.

/// In `Via` (RFC 9110 Section 7.6.3), `Proxy-Status` and `Cache-Status`.
pub const PSEUDONYM: &str = "weir";
