//! How a running weir is asked: the control socket of the commands, and the API.

pub mod api;
pub mod control;
pub mod socket_file;
