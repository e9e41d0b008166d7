//! What people read: numbers ([`mod@format`]), cells ([`template`]), tables ([`table`]), and the tables in the documents
//! ([`documents`]). All of it is made from results alone.

pub mod documents;
pub mod format;
pub mod table;
pub mod template;
