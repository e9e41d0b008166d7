//! Where the reply to a GET ends.

use crate::matrix::http::body::Body;

/// Heads are shorter, or no client reads them.
const LONGEST_HEAD_BYTES: usize = 64 << 10;
/// Fields of a head, at most.
const FIELDS: usize = 64;

/// The status line, the fields or the chunks are not HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotHttp;

/// A reply that comes.
#[derive(Debug)]
pub enum Reply {
    /// In its head, of which these bytes have come.
    Head(Vec<u8>),
    /// In its body, behind a head with this status.
    Body(u16, Body),
}

impl Reply {
    /// Before its first byte.
    pub fn new() -> Reply {
        Reply::Head(Vec::new())
    }

    /// Takes bytes; the status once the reply is complete. What comes behind it is not looked at.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Option<u16>, NotHttp> {
        while let Reply::Head(head) = self {
            head.extend_from_slice(bytes);
            let Some((length, status, body)) = read_head(head)? else {
                return Ok(None);
            };
            let rest = head.len() - length;
            bytes = &bytes[bytes.len() - rest.min(bytes.len())..];
            *self = match status {
                // Another head follows.
                100..200 => Reply::new(),
                _ => Reply::Body(status, body),
            };
        }
        let Reply::Body(status, body) = self else {
            return Ok(None);
        };
        while !bytes.is_empty() && !body.is_done() {
            let (taken, _) = body.take(bytes).map_err(|_| NotHttp)?;
            bytes = &bytes[taken..];
        }
        Ok(body.is_done().then_some(*status))
    }

    /// The connection has ended; the status if that completes the reply.
    pub fn at_end(&self) -> Option<u16> {
        match self {
            Reply::Body(status, Body::UntilEnd) => Some(*status),
            _ => None,
        }
    }
}

/// Length, status and body of a whole head.
fn read_head(bytes: &[u8]) -> Result<Option<(usize, u16, Body)>, NotHttp> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => {
            let status = head.code.ok_or(NotHttp)?;
            Ok(Some((length, status, body(status, head.headers)?)))
        }
        Ok(httparse::Status::Partial) if bytes.len() <= LONGEST_HEAD_BYTES => Ok(None),
        _ => Err(NotHttp),
    }
}

fn body(status: u16, fields: &[httparse::Header<'_>]) -> Result<Body, NotHttp> {
    let field = |name: &str| {
        let mut fields = fields.iter();
        let field = fields.find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
    };
    if matches!(status, 204 | 304) {
        return Ok(Body::Length(0));
    }
    if field("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
        return Ok(Body::chunked());
    }
    match field("content-length") {
        Some(length) => length.parse().map(Body::Length).map_err(|_| NotHttp),
        None => Ok(Body::UntilEnd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client makes of bytes that come in pieces of every length; the last answer, and that at the end.
    fn read(bytes: &[u8]) -> (Result<Option<u16>, NotHttp>, Option<u16>) {
        let whole = read_in(bytes, bytes.len());
        for length in 1..bytes.len() {
            assert_eq!(read_in(bytes, length), whole, "pieces of {length}");
        }
        whole
    }

    fn read_in(bytes: &[u8], length: usize) -> (Result<Option<u16>, NotHttp>, Option<u16>) {
        let mut reply = Reply::new();
        for piece in bytes.chunks(length) {
            match reply.take(piece) {
                Ok(None) => {}
                end => return (end, reply.at_end()),
            }
        }
        (Ok(None), reply.at_end())
    }

    #[test]
    fn a_reply_ends_where_its_head_says() {
        let counted = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(counted), (Ok(Some(200)), None));
        let chunked = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        assert_eq!(read(chunked), (Ok(Some(503)), None));
        assert_eq!(read(b"HTTP/1.1 204 No\r\n\r\n"), (Ok(Some(204)), None));
        assert_eq!(
            read(b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            (Ok(Some(200)), None)
        );
        assert_eq!(read(b"HTTP/1.0 200 OK\r\n\r\nhello"), (Ok(None), Some(200)));
    }

    #[test]
    fn half_a_reply_is_none() {
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"),
            (Ok(None), None)
        );
        assert_eq!(read(b"HTTP/1.1 200"), (Ok(None), None));
        assert_eq!(read_in(b"SSH-2.0-x\r\n", 99).0, Err(NotHttp));
    }
}
