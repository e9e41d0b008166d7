//! VTFM01: service differentiation in an overloaded server, on real sockets.
//!
//! One module a figure, table or claim. They share `ClosedLoop`: one bed, a fresh server and a fresh weir for
//! every case, and clients with real sockets ([`crate::closed_loop`]) whose class is their source address.

pub mod accuracy;
mod closed;
pub mod controller;
pub mod order;
pub mod overload;
pub mod police_high;
pub mod preferred;
pub mod priorities;
