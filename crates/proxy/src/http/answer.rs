//! Replies that the proxy writes itself.

use std::io::Write;

use super::Refusal;

/// Tells a client that waits for it to send its body (RFC 9110 Section 15.2.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Tells a client that its tunnel is open (RFC 9110 Section 9.3.6).
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Declares each error once: variant, status, name (RFC 9209 Section 2.3), text.
macro_rules! proxy_errors {
    ($($variant:ident, $status:literal, $name:literal, $text:literal;)*) => {
        /// Why a request got no reply from a server: the error types of RFC 9209 Section 2.3, with
        /// the status recommended there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ProxyError {
            $(#[doc = $text] $variant,)*
        }

        impl ProxyError {
            /// Every error, in the order of the discriminants: the index of a counter.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The status of the reply.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The name in `Proxy-Status`, metrics and logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One clause for people.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

proxy_errors! {
    DnsTimeout, 504, "dns_timeout", "the name of the server was not resolved in time";
    DnsError, 502, "dns_error", "the name of the server could not be resolved";
    DestinationNotFound, 500, "destination_not_found", "no server is configured for this request";
    DestinationUnavailable, 503, "destination_unavailable", "no server is healthy";
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
    HttpResponseIncomplete, 502, "http_response_incomplete", "the server's reply broke off";
    HttpUpgradeFailed, 502, "http_upgrade_failed", "the server did not take the upgrade";
    ProxyInternalError, 500, "proxy_internal_error", "the proxy failed";
    ProxyLoopDetected, 508, "proxy_loop_detected", "the request passed through this proxy too often";
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

    /// To a request whose head did not arrive in time. The connection must be closed after it.
    pub fn to_late_request() -> Self {
        Self {
            status: 408,
            error: ProxyError::HttpRequestError,
            details: "the request's head did not arrive in time",
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
        write!(
            out,
            "HTTP/1.1 {status:03} {reason}\r\n\
             Date: {date}\r\n\
             Content-Type: text/plain\r\n\
             Content-Length: {body_bytes}\r\n\
             Cache-Control: no-store\r\n\
             Proxy-Status: {name}; error={error}; details=\"{details}\"\r\n\
             {connection}\r\n"
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
