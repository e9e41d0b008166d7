//! HTTP/1 as pure functions on bytes: heads, framing, chunks, rewriting.
