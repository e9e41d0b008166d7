//! What follows an exchange.

/// What becomes of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The next request.
    Continue,
    /// The end.
    Close,
    /// The end, after a tunnel.
    Tunnelled,
    /// The end, though the client may still be sending: its last bytes must not become a RST that
    /// overtakes the answer (RFC 9112 Section 9.6).
    Linger,
    /// A RST once the client has acknowledged what it was sent: only so can it know that a reply
    /// whose end is the connection's end is not whole.
    CutOff,
    /// A RST at once: the client itself has failed.
    Reset,
}

/// The result of [`serve_next`](super::serve::serve_next).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// There was nothing to read.
    NothingCame,
    /// A request was answered; the next may come.
    Answered,
    /// The connection is to be closed.
    Ended,
}
