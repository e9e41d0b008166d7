//! HTTP/1 as the proxy reads and writes it: our own corpus, public ones, limits and properties.

mod corpus;
mod gunicorn;
mod limits;
mod llhttp;
mod properties;
mod reader;
