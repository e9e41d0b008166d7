//! What the proxy's cache reads of heads.

/// A request's head and two replies' heads, one behind the other.
pub fn run(data: &[u8]) {
    weir_proxy::fuzzing::cache(data);
}
