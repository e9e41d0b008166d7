//! HTTP/1 as the proxy reads and writes it: our own corpus, a public one, limits and properties.

mod corpus;
mod gunicorn;
mod limits;
mod properties;
mod reader;
