//! Lines of the control socket.

/// Each line is a request of a client of its own.
pub fn run(data: &[u8]) {
    weir::fuzzing::control(data);
}
