//! How a running weir is asked: the control socket of the commands, the API and the metrics over HTTP.

pub mod api;
pub mod call;
pub mod control;
pub mod control_listener;
pub mod dashboard;
pub mod endpoints;
pub mod http;
pub mod peer;
pub mod reply;
pub mod scrape;
pub mod socket_file;
pub mod socket_note;
pub mod spare;
