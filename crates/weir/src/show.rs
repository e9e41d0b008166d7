//! What people read: reports, tables, sentences, the log.

pub mod describe;
pub mod log;
pub mod output;
pub mod report;
pub mod settings;
pub mod table;
