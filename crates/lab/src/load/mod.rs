//! `weir-lab load`: open-loop HTTP load with the kernel's own sockets, at a server of the user's.
//!
//! Each request is a client of its own: a new connection at a time that no reply can change (Poisson arrivals), a
//! patience after which it gives up, and one fate. A refusal (RST to the SYN) is a fate and no failure of the
//! generator: it is counted, and the next client comes when it is due. Response times count from when the client was
//! due, so that a generator that is late does not flatter the server.
//!
//! [`clients`] is the loop, and needs neither root nor a namespace; experiments run it in one.

pub mod clients;
pub mod command;
mod picture;
mod reply;
mod report;
pub mod tally;
pub mod target;
