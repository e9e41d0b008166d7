//! Replies that the proxy writes itself.

use std::io::Write;

use super::Refusal;

/// Tells a client that waits for it to send its body (RFC 9110 Section 15.2.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Tells a client that its tunnel is open (RFC 9110 Section 9.3.6).
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

reasons! {
    /// Why a request got no reply from a server: the error types of RFC 9209 Section 2.3, with the
    /// status recommended there and the name that stands in `Proxy-Status`. (For a destination that is
    /// prohibited 502 is recommended; 403 says that it is no use to try again.)
    pub enum ProxyError {
        DnsTimeout, 504, "dns_timeout", "the name of the server was not resolved in time";
        DnsError, 502, "dns_error", "the name of the server could not be resolved";
        DestinationNotFound, 500, "destination_not_found", "no server is configured for this request";
        DestinationUnavailable, 503, "destination_unavailable", "no server is healthy";
        DestinationIpProhibited, 403, "destination_ip_prohibited", "the proxy does not take this client there";
        DestinationIpUnroutable, 502, "destination_ip_unroutable", "there is no route to the server";
        ConnectionRefused, 502, "connection_refused", "the server refused the connection";
        ConnectionTerminated, 502, "connection_terminated", "the server closed the connection before its reply";
        ConnectionTimeout, 504, "connection_timeout", "the server did not take the connection in time";
        ConnectionReadTimeout, 504, "connection_read_timeout", "the server sent nothing in time";
        ConnectionWriteTimeout, 504, "connection_write_timeout", "the server took nothing in time";
        ConnectionLimitReached, 503, "connection_limit_reached", "all connections to the server are busy";
        HttpRequestError, 400, "http_request_error", "the request is malformed";
        HttpRequestDenied, 403, "http_request_denied", "the request is not allowed";
        HttpProtocolError, 502, "http_protocol_error", "the server's reply is malformed";
        HttpResponseTimeout, 504, "http_response_timeout", "the head of the server's reply was not whole in time";
        HttpResponseIncomplete, 502, "http_response_incomplete", "the server's reply broke off";
        HttpUpgradeFailed, 502, "http_upgrade_failed", "the server did not take the upgrade";
        ProxyInternalError, 500, "proxy_internal_error", "the proxy failed";
        ProxyLoopDetected, 508, "proxy_loop_detected", "the request passed through this proxy too often";
    }
}

/// A reply of the proxy's own, which says why there is no other.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// 400 to 599.
    pub status: u16,
    /// What went wrong, for `Proxy-Status`.
    pub error: ProxyError,
    /// The details in `Proxy-Status` and the clause in the body: printable ASCII without `"` or `\`.
    pub details: &'a str,
}

/// How an [`Answer`] reaches the client.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// This proxy's name in `Proxy-Status`.
    pub name: &'a str,
    /// The time now: an HTTP date.
    pub date: &'a str,
    /// The client's connection is kept. It must not be after a request whose end is not known.
    pub keep_alive: bool,
    /// The request was a HEAD: the body's length is told, the body is not sent.
    pub head_only: bool,
}

impl From<ProxyError> for Answer<'static> {
    fn from(error: ProxyError) -> Self {
        Self {
            status: error.status(),
            error,
            details: error.text(),
        }
    }
}

impl Answer<'static> {
    /// To a request that is refused. The connection must be closed after it.
    pub fn to_refused_request(reason: Refusal) -> Self {
        let error = match reason {
            Refusal::Loop => ProxyError::ProxyLoopDetected,
            _ => ProxyError::HttpRequestError,
        };
        Self {
            status: reason.status(),
            error,
            details: reason.text(),
        }
    }

    /// To a request whose reply is refused.
    pub fn to_refused_reply(reason: Refusal) -> Self {
        Self {
            details: reason.text(),
            ..ProxyError::HttpProtocolError.into()
        }
    }

    /// To a request that did not arrive in time, its head or its body. The connection must be closed after it.
    pub fn to_late_request() -> Self {
        Self {
            status: 408,
            error: ProxyError::HttpRequestError,
            details: "the request did not arrive in time",
        }
    }
}

impl Answer<'_> {
    /// Appends the whole reply.
    pub fn write(&self, envelope: &Envelope, out: &mut Vec<u8>) {
        let Self {
            status,
            error,
            details,
        } = self;
        let Envelope {
            name,
            date,
            keep_alive,
            head_only,
        } = envelope;
        let reason = reason(*status);
        let body_bytes = "000 \n\n".len() + reason.len() + details.len();
        let error = error.name();
        let connection = match keep_alive {
            true => "",
            false => "Connection: close\r\n",
        };
        // RFC 9110 Section 15.5.6 wants it there: what the proxy passes on.
        let allow = match status {
            405 => "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n",
            _ => "",
        };
        write!(
            out,
            "HTTP/1.1 {status:03} {reason}\r\n\
             Date: {date}\r\n\
             Content-Type: text/plain\r\n\
             Content-Length: {body_bytes}\r\n\
             Cache-Control: no-store\r\n\
             Proxy-Status: {name}; error={error}; details=\"{details}\"\r\n\
             {allow}{connection}\r\n"
        )
        .expect("a vector takes every write");
        if !head_only {
            write!(out, "{status:03} {reason}\n{details}\n").expect("a vector takes every write");
        }
    }
}

/// Appends the answer to OPTIONS that ends at this proxy (`Max-Forwards: 0`, or `*` to a forward
/// proxy).
pub fn options(date: &str, keep_alive: bool, out: &mut Vec<u8>) {
    let connection = match keep_alive {
        true => "",
        false => "Connection: close\r\n",
    };
    write!(
        out,
        "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n{connection}\r\n"
    )
    .expect("a vector takes every write");
}

/// The reason phrases of the statuses that the proxy sends (RFC 9110 Section 15).
fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{
        BodyKind, FieldSlots, Limits, Method, ReplyFacts, RequestFacts, Version, read_reply,
    };

    const ENVELOPE: Envelope = Envelope {
        name: "weir",
        date: "Sun, 06 Nov 1994 08:49:37 GMT",
        keep_alive: true,
        head_only: false,
    };

    fn written(answer: Answer, envelope: Envelope) -> Vec<u8> {
        let mut out = Vec::new();
        answer.write(&envelope, &mut out);
        out
    }

    /// As a client of ours would read it.
    fn read(reply: &[u8]) -> ReplyFacts {
        let request = RequestFacts {
            len: 0,
            method: Method::Get,
            version: Version::Http11,
            body: BodyKind::None,
            keep_alive: true,
            expects_continue: false,
            upgrade: false,
            client_close: false,
        };
        let mut slots = FieldSlots::new();
        let head = read_reply(reply, 0, &request, &Limits::default(), &mut slots);
        head.expect("a valid reply").expect("a whole one").facts
    }

    #[test]
    fn an_answer_is_a_whole_reply_that_says_why() {
        let out = written(ProxyError::ConnectionRefused.into(), ENVELOPE);
        let expected = "HTTP/1.1 502 Bad Gateway\r\n\
            Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Content-Type: text/plain\r\n\
            Content-Length: 50\r\n\
            Cache-Control: no-store\r\n\
            Proxy-Status: weir; error=connection_refused; \
            details=\"the server refused the connection\"\r\n\r\n\
            502 Bad Gateway\nthe server refused the connection\n";
        assert_eq!(
            out.escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
    }

    #[test]
    fn every_answer_has_the_length_that_it_says() {
        let errors = ProxyError::ALL.iter().map(|&error| Answer::from(error));
        let requests = Refusal::ALL
            .iter()
            .map(|&reason| Answer::to_refused_request(reason));
        let replies = Refusal::ALL
            .iter()
            .map(|&reason| Answer::to_refused_reply(reason));
        for answer in errors
            .chain(requests)
            .chain(replies)
            .chain([Answer::to_late_request()])
        {
            let out = written(answer, ENVELOPE);
            let facts = read(&out);
            let body = (out.len() - facts.len) as u64;
            assert_eq!(
                (facts.status, facts.body),
                (answer.status, BodyKind::Length(body))
            );
            assert_ne!(reason(answer.status), "Error", "{}", answer.status);
        }
    }

    #[test]
    fn texts_need_no_quoting() {
        let errors = ProxyError::ALL.iter().map(|error| error.text());
        for text in errors.chain(Refusal::ALL.iter().map(|reason| reason.text())) {
            let is_plain = |byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte);
            assert!(text.bytes().all(is_plain), "{text}");
        }
    }

    #[test]
    fn the_answer_to_head_tells_the_length_and_has_no_body() {
        let whole = written(ProxyError::DnsError.into(), ENVELOPE);
        let head_only = Envelope {
            head_only: true,
            ..ENVELOPE
        };
        let head = written(ProxyError::DnsError.into(), head_only);
        assert_eq!(head, whole[..read(&whole).len]);
    }

    #[test]
    fn a_method_that_is_refused_gets_the_list_of_those_that_are_not() {
        let refused = Answer {
            status: 405,
            error: ProxyError::HttpRequestDenied,
            details: "no",
        };
        let out = String::from_utf8(written(refused, ENVELOPE)).expect("ASCII");
        assert!(out.contains("\r\nAllow: GET, HEAD, "), "{out}");
        assert!(read(out.as_bytes()).len < out.len());
    }

    #[test]
    fn an_answer_that_closes_says_so() {
        let closing = Envelope {
            keep_alive: false,
            ..ENVELOPE
        };
        assert!(!read(&written(ProxyError::DnsError.into(), closing)).keep_alive);
        assert!(read(&written(ProxyError::DnsError.into(), ENVELOPE)).keep_alive);
    }
}
