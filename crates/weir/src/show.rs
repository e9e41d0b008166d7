//! What people read: reports, tables, sentences, the log.

pub mod bars;
pub mod capture;
pub mod chart;
pub mod describe;
pub mod events;
pub mod log;
pub mod output;
pub mod quic;
pub mod report;
pub mod residence;
pub mod response_time;
pub mod settings;
pub mod suggest;
pub mod table;
pub mod why;
