//! What the prioritized queue is made of, as its caller sees it.

use std::net::SocketAddr;

use crate::own_filters::OwnFilters;

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A connection is established and waits in this parking listener.
    Arrived(Slot),
    /// A socket on this port began to listen, or a server's socket ceased to.
    ListenersChanged {
        /// The port.
        port: u16,
        /// It ceased to, and was the last one of the server of this group.
        ceased_in: Option<u32>,
    },
    /// A descriptor given to [`super::Parking::watch`] is readable.
    Woken,
}

/// A parking listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Its group.
    pub group: u32,
    /// Its number in the group.
    pub number: u32,
}

/// What is known of the connection that was sent to a parking listener last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Slot of its class.
    pub class: u32,
    /// Priority of its class, 1 to 64.
    pub priority: u8,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The client's.
    pub source: SocketAddr,
    /// The server's.
    pub destination: SocketAddr,
}

/// A server's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerQueue {
    /// Connections that wait for accept().
    pub length: u32,
    /// The backlog in force.
    pub limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Whether it still listens.
    pub listening: bool,
    /// What keeps packets of some from it, as of the last look with `sweep`.
    pub own_filters: OwnFilters,
}

impl ServerQueue {
    /// Connections that are in it or on their way there.
    pub fn used(&self) -> u32 {
        self.length + self.half_open
    }
}
