//! HTTP/1 as the proxy reads and writes it: our own corpus, properties, and a public corpus.

mod corpus;
mod gunicorn;
mod reader;
