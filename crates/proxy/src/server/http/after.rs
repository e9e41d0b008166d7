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
    /// The end, once the client has closed: it says that it does (CLIENT_CLOSE).
    AwaitEnd,
    /// The end, though the client may still be sending: its bytes must not cause a RST that overtakes the answer
    /// (RFC 9112 Section 9.6).
    Linger,
    /// A RST, once the client has acknowledged what it was sent. Only a RST says that a reply that ends with its
    /// connection is not whole.
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
