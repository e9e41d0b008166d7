//! What transfers, their steps and tunnels come to.

use std::io;

use super::pipe::Pipe;

/// Which connection ended a transfer, and how.
#[derive(Debug)]
pub enum Broken {
    /// The connection that is read.
    From(io::Error),
    /// The connection that is written.
    To(io::Error),
}

impl Broken {
    /// The cause.
    pub fn error(&self) -> &io::Error {
        match self {
            Broken::From(error) | Broken::To(error) => error,
        }
    }
}

/// What a transfer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    /// How many bytes were moved.
    pub bytes: u64,
    /// The sender has ended.
    pub ended: bool,
    /// The last segment waits for what the caller sends next: see [`readable_or_pushed`](super::readable_or_pushed).
    pub held_back: bool,
}

/// What went through a tunnel, and how it ended.
#[derive(Debug)]
pub struct Tunnelled {
    /// Bytes from the first connection to the second.
    pub forth: u64,
    /// Bytes from the second to the first.
    pub back: u64,
    /// Of both, the bytes that splice(2) moved.
    pub spliced: u64,
    /// Of both, the bytes that the kernel carried by itself.
    pub redirected: u64,
    /// `Err` if a connection broke or nothing moved for the idle time; `Ok` if both ends came.
    pub end: Result<(), Broken>,
}

/// How far a step came without waiting. Buffers, which no task may hold while it waits, are in no future.
pub enum Begun {
    /// All that was read was sent.
    Done(Option<usize>),
    /// Of so many bytes the receiver has not yet taken these.
    Copied(usize, Vec<u8>),
    /// Of so many bytes the receiver has not yet taken those in the pipe.
    Spliced(usize, Pipe),
}
