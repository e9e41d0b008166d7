//! Requests of the API that change classes.

/// Lines of a method, a class's name and a body; the first byte is the user that asks.
pub fn run(data: &[u8]) {
    weir::fuzzing::api(data);
}
